"""MiniLM-L6, a small text encoder that is pretrained, with a head on top."""

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from superpose import SuperposeError
from superpose_lab.checks import installed
from superpose_lab.data.materials import folder

NAME = "all-MiniLM-L6-v2"
PADDING = 0  # the number of the token that fills a text up


class TextClassifier(nn.Module):
    """An encoder of `transformers`, the mean over the tokens of a text, and a linear head."""

    def __init__(self, encoder: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, classes) of token numbers (B, T); `PADDING` is no token."""
        mask = (ids != PADDING).long()  # (B, T)
        tokens = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state  # (B, T, C)
        weights = mask.unsqueeze(-1).to(tokens.dtype)
        return self.head((tokens * weights).sum(1) / weights.sum(1))


def minilm(classes: int, data_dir: str | os.PathLike[str] | None = None) -> TextClassifier:
    """MiniLM-L6 without dropout, and a new head; its embeddings are frozen."""
    _require_transformers()
    from transformers import AutoModel

    path, options = folder(NAME, data_dir), {"hidden_dropout_prob": 0.0}
    options["attention_probs_dropout_prob"] = 0.0
    encoder = AutoModel.from_pretrained(path, add_pooling_layer=False, **options)
    encoder.embeddings.requires_grad_(False)
    return TextClassifier(encoder, encoder.config.hidden_size, classes)


def tokenised(
    texts: Sequence[str], length: int, data_dir: str | os.PathLike[str] | None = None
) -> Tensor:
    """Token numbers (texts, length), cut or filled up."""
    _require_transformers()
    from transformers import AutoTokenizer

    made: Any = AutoTokenizer.from_pretrained(folder(NAME, data_dir))
    options = {"padding": "max_length", "truncation": True, "max_length": length}
    return torch.tensor(made(list(texts), **options)["input_ids"])


def _require_transformers() -> None:
    if not installed("transformers"):
        raise SuperposeError("MiniLM is read by transformers (not installed): install it with pip")
