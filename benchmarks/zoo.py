"""What becomes of the architectures of `transformers`, small and from a config, when superposed.

python benchmarks/zoo.py    # writes results/models/transformers.json

For each: whether a task's outputs are those of its plain network, read out; whether a batch with
one task per row gives the same rows, in the way that is declared; how many weights are bound; which
tensors all tasks share; the same of two models packed by delta, a network and one that differs from
it in every parameter; and whether one exported program gives the outputs of all tasks. `learned`
compares the gradients of a mixed batch, in training, with those of its rows.
"""

import copy
import inspect
import json
import logging
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import superpose as sp

OUT = Path(__file__).parents[1] / "results/models/transformers.json"
TASKS = [1, 0, 2]
ROWS, ROUNDS = 16, 21
IDS = {"input_ids": torch.arange(3, 24).view(3, 7)}
BOTH = IDS | {"decoder_input_ids": torch.arange(3, 24).view(3, 7)}
IMAGES = {"pixel_values": torch.linspace(-1, 1, 3 * 3 * 32 * 32).view(3, 3, 32, 32).sin()}
SOUND = {"input_values": torch.arange(1200.0).view(3, 400).sin()}

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {"vocab_size": 60, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ENCODER = SIZE | TEXT | {"intermediate_size": 64, "max_position_embeddings": 80}
GROUPED = ENCODER | {"num_key_value_heads": 2, "head_dim": 8}
VISION = SIZE | {"intermediate_size": 64, "image_size": 32, "patch_size": 8}
DEEP = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "vocab_size": 60}
HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
WIDE = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
WAVES = SIZE | {
    "intermediate_size": 64, "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3),
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip

MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Tensor]]] = {
    "BERT": ("BertModel", ENCODER, IDS),
    "RoBERTa": ("RobertaModel", ENCODER, IDS),
    "DistilBERT": (
        "DistilBertModel",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 60},
        IDS,
    ),
    "ELECTRA": ("ElectraModel", ENCODER | {"embedding_size": 32}, IDS),
    "ALBERT": ("AlbertModel", ENCODER | {"embedding_size": 16}, IDS),
    "DeBERTa-v2": (
        "DebertaV2Model",
        ENCODER | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        IDS,
    ),
    "DeBERTa-v3": (
        "DebertaV2Model",
        ENCODER
        | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
        | {"norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False},
        IDS,
    ),
    "GPT-2": (
        "GPT2LMHeadModel",
        TEXT | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
        IDS,
    ),
    "GPT-NeoX": ("GPTNeoXForCausalLM", ENCODER, IDS),
    "OPT": ("OPTForCausalLM", SIZE | TEXT | {"ffn_dim": 64, "word_embed_proj_dim": 32}, IDS),
    "BLOOM": ("BloomForCausalLM", TEXT | {"hidden_size": 32, "n_layer": 2, "n_head": 4}, IDS),
    "Falcon": ("FalconForCausalLM", ENCODER, IDS),
    "Phi": ("PhiForCausalLM", ENCODER, IDS),
    "LLaMA": ("LlamaForCausalLM", GROUPED, IDS),
    "Mistral": ("MistralForCausalLM", GROUPED, IDS),
    "Qwen2": ("Qwen2ForCausalLM", GROUPED, IDS),
    "Qwen3": ("Qwen3ForCausalLM", GROUPED, IDS),
    "Gemma": ("GemmaForCausalLM", GROUPED, IDS),
    "Mixtral": ("MixtralForCausalLM", GROUPED | {"num_local_experts": 3}, IDS),
    "Mamba": ("MambaForCausalLM", TEXT | {**SIZE, "state_size": 4}, IDS),
    "T5": (
        "T5ForConditionalGeneration",
        TEXT | {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4},
        BOTH,
    ),
    "BART": ("BartForConditionalGeneration", DEEP | HEADS | WIDE, BOTH),
    "ViT": ("ViTModel", VISION, IMAGES),
    "BEiT": ("BeitModel", VISION, IMAGES),
    "DINOv2": ("Dinov2Model", VISION, IMAGES),
    "CLIP, images": ("CLIPVisionModel", VISION, IMAGES),
    "SigLIP, images": ("SiglipVisionModel", VISION, IMAGES),
    "Swin": (
        "SwinModel",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "window_size": 4}
        | {"depths": [1, 1], "num_heads": [2, 2]},
        IMAGES,
    ),
    "ConvNeXt": (
        "ConvNextModel",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
        IMAGES,
    ),
    "ResNet": (
        "ResNetModel",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        IMAGES,
    ),
    "wav2vec 2.0": ("Wav2Vec2Model", WAVES, SOUND),
    "WavLM": ("WavLMModel", WAVES, SOUND),
    "Whisper": (
        "WhisperModel",
        DEEP | HEADS | WIDE | TEXT
        | {"max_source_positions": 16, "num_mel_bins": 8, "decoder_start_token_id": 1},
        {"input_features": torch.arange(768.0).view(3, 8, 32).sin()}
        | {"decoder_input_ids": IDS["input_ids"]},
    ),
}  # fmt: skip


def network(
    kind: str, options: dict[str, Any], settings: dict[str, Any] | None = None
) -> nn.Module:
    """With random weights, and no tensor of zeros; settings are for configs that have them."""
    made: Any = getattr(transformers, kind)
    config = made.config_class(**options)
    for one in (config, getattr(config, "vision_config", None)):
        for name, value in (settings or {}).items():
            if hasattr(one, name):
                setattr(one, name, value)
    if getattr(config, "pad_token_id", None) is None and hasattr(config, "vocab_size"):
        config.pad_token_id = 0  # classifiers of language models look for a text's last token
    torch.manual_seed(0)
    net: nn.Module = made(config).eval()
    for parameter in net.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    return net


def outputs(found: Any) -> Tensor:
    logits: Tensor = found.logits if "logits" in found else found.last_hidden_state
    return logits


def apart(model: sp.Superposed) -> sp.Superposed:
    """So that what tasks have for themselves differs."""
    for task in model.tasks:
        for parameter in model.private_parameters(task):
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def checked(name: str) -> dict[str, Any]:
    """One architecture, with binary contexts."""
    kind, options, inputs = MODELS[name]
    net = network(kind, options)
    model = apart(sp.superpose(net, "binary", tasks=len(TASKS)).eval())
    identity = sp.superpose(net, "identity", tasks=2).eval()
    each = [outputs(model(**inputs, task=task)) for task in range(len(TASKS))]
    plain = outputs(sp.unsuperpose(model, 1).eval()(**inputs))
    summary = model.summary()
    row: dict[str, Any] = {
        "name": name,
        "class": kind,
        "identity": torch.equal(outputs(identity(**inputs, task=1)), outputs(net(**inputs))),
        "read_out": difference(each[1], plain),
        "tasks": difference(each[0], each[1]),
        "bound": len(summary.superposed),
        "private": len(summary.private),
        "shared": summary.shared,
    }
    row |= {"rows": by_row(model, inputs, each, TASKS), "way": model.mixed}
    return row | packed(net, inputs)


def packed(net: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Two models in one, beside a base."""
    tuned = copy.deepcopy(net)
    for parameter in tuned.parameters():
        parameter.add_(0.01 * torch.randn_like(parameter))
    try:
        both = sp.pack({0: net, 1: tuned}, method="delta", base=net)
    except sp.SuperposeError as error:
        return {"delta": None, "delta_why": str(error)}
    each = [outputs(both(**inputs, task=task)) for task in both.tasks]
    plain = outputs(sp.unpack(both, 1).eval()(**inputs))
    rows = by_row(both, inputs, each, [1, 0, 1])
    return {"delta": difference(each[1], plain), "delta_rows": rows, "delta_way": both.mixed}


def exported(name: str) -> dict[str, Any]:
    """A program of one task at a time, and one of a task per row, asked for other tasks."""
    kind, options, inputs = MODELS[name]
    net = network(kind, options)
    model = apart(sp.superpose(net, "binary", tasks=len(TASKS)).eval())
    if "use_cache" in inspect.signature(net.forward).parameters:
        inputs = inputs | {"use_cache": False}  # a cache is no tensor

    def differences(example: Tensor, asked: list[Tensor]) -> float:
        program = torch.export.export(sp.exportable(model), (), inputs | {"task": example})
        run = program.module()
        return max(
            difference(outputs(run(**inputs, task=task)), outputs(model(**inputs, task=task)))
            for task in asked
        )

    of_one = differences(torch.tensor(2), [torch.tensor(0), torch.tensor(1)])
    try:
        rows, why = differences(torch.tensor(TASKS), [torch.tensor([2, 1, 0])]), None
    except sp.SuperposeError as error:
        rows, why = None, str(error)
    return {"exported": of_one, "exported_rows": rows, "exported_rows_why": why}


def by_row(
    model: sp.Superposed, inputs: dict[str, Tensor], each: list[Tensor], tasks: list[int]
) -> float:
    """How far rows of many tasks are from each task's."""
    mixed = outputs(model(**inputs, task=tasks))
    rows = torch.stack([each[task][place] for place, task in enumerate(tasks)])
    return difference(mixed, rows)


def timed(name: str) -> dict[str, float]:
    """The processor time of 16 rows of 16 tasks beside that of the plain network, in turns."""
    kind, options, inputs = MODELS[name]
    index = torch.arange(ROWS) % len(TASKS)
    inputs = {name: tensor[index] for name, tensor in inputs.items()}
    net = network(kind, options)
    model = apart(sp.superpose(net, "binary", tasks=ROWS).eval())
    tasks = torch.arange(ROWS)
    ratios = []
    for _ in range(2 + ROUNDS):
        start = time.process_time()
        model(**inputs, task=tasks)
        middle = time.process_time()
        net(**inputs)
        ratios.append((middle - start) / (time.process_time() - middle))
    middle_ones = sorted(ratios[2:])
    return {
        "ratio": statistics.median(middle_ones),
        "ratio_low": middle_ones[1],
        "ratio_high": middle_ones[-2],
    }


def learned(name: str) -> float:
    """How far the gradients of a mixed batch are from those of its rows alone, without dropout."""
    kind, options, inputs = MODELS[name]
    with torch.no_grad():
        model = apart(sp.superpose(network(kind, options), "binary", tasks=len(TASKS)))
    model.train()
    for module in model.modules():
        for part in vars(module):
            if "drop" in part and isinstance(getattr(module, part), float):
                setattr(module, part, 0.0)
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def gradients(found: list[Tensor]) -> list[Tensor]:
        loss = torch.stack([y.square().sum() for y in found]).sum()
        grads = torch.autograd.grad(loss, parameters, materialize_grads=True)
        return list(grads)

    mixed = gradients([outputs(model(**inputs, task=TASKS))])
    rows = gradients(
        [
            outputs(model(**{n: t[row : row + 1] for n, t in inputs.items()}, task=task))
            for row, task in enumerate(TASKS)
        ]
    )
    return difference(
        torch.cat([g.flatten() for g in mixed]), torch.cat([g.flatten() for g in rows])
    )


def difference(one: Tensor, other: Tensor) -> float:
    """The largest, beside the largest output."""
    return float((one - other).abs().max() / other.abs().max())


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with torch.no_grad():
        rows = [checked(name) | exported(name) | timed(name) for name in MODELS]
    found = {"transformers": transformers.__version__, "torch": torch.__version__, "rows": rows}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
