"""What packing does to real networks, each trained by itself: accuracy alone and out of one model.

    OMP_NUM_THREADS=1 python benchmarks/storage.py mnist    # results/storage/mnist.json
    OMP_NUM_THREADS=1 python benchmarks/storage.py cifar    # results/storage/cifar.json
    OMP_NUM_THREADS=1 python benchmarks/storage.py text     # results/storage/text.json
    OMP_NUM_THREADS=1 python benchmarks/storage.py finetunes  # results/storage/finetunes.json
    OMP_NUM_THREADS=1 python benchmarks/storage.py theory   # results/storage/theory.json
    OMP_NUM_THREADS=1 python benchmarks/storage.py lowrank  # results/storage/lowrank.json

Networks are trained once and kept in --nets; a row of the result is written when it is done, and
rows that are there are not done again, so a script that was killed goes on where it was.
"""

import json
import resource
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import trained
import tyro
from lowrank import low_rank
from tyro.conf import Positional

import superpose as sp

# (units, models, family, method, steps of distillation, rank, if models have parts of their own)
MNIST = [
    *((256, 2, "binary", method, 0) for method in ("sum", "delta", "solve")),
    (256, 2, "binary", "solve", 300),
    (256, 2, "hadamard", "solve", 0),
    (256, 2, "hadamard", "solve", 300),
    *((512, 5, "binary", method, 0) for method in ("sum", "delta", "solve")),
    (512, 5, "binary", "solve", 300),
    (512, 5, "hadamard", "solve", 0),
    (512, 5, "hadamard", "solve", 300),
    (1024, 5, "binary", "sum", 0),
    (1024, 5, "binary", "solve", 0),
    (1024, 5, "hadamard", "solve", 300),
    *((2048, models, "binary", "solve", 0) for models in (5, 10, 20)),
    (2048, 20, "binary", "sum", 0),
    (2048, 20, "hadamard", "solve", 200),
    (256, 2, "hadamard", "solve", 0, 4),
    (512, 5, "hadamard", "solve", 0, 4),
    (512, 5, "hadamard", "solve", 300, 4),
]
CIFAR = [  # (method, steps of distillation, layers that each model keeps for itself, rank)
    ("sum", 0, []),
    ("delta", 0, []),
    ("solve", 0, []),
    ("solve", 300, []),
    ("solve", 0, ["0"]),
    ("solve", 300, ["0"]),
    ("solve", 0, ["0"], 4),
    ("solve", 300, ["0"], 4),
]
TEXT = [  # (method, steps of distillation, whether there is a base, rank)
    ("sum", 0, False),
    ("delta", 0, True),
    ("solve", 0, False),
    ("solve", 0, True),
    ("delta", 0, True, 1),
    ("solve", 0, True, 1),
    ("delta", 0, True, 4),
]
FINE_TUNES = [  # (family, method, rank, seed): the same fine-tunes, compared with each net alone
    (family, method, rank, seed)
    for seed in range(4)
    for family in ("binary", "hadamard")
    for method, rank in (("delta", 0), ("solve", 0), ("delta", 1))
]
LOW_RANK = [(256, 2), (512, 5), (1024, 5), (2048, 5), (2048, 10), (2048, 20)]  # units, models
THEORY = [
    *((256, 2, family, method) for family in ("binary", "hadamard") for method in ("sum", "solve")),
    *((512, 5, family, method) for family in ("binary", "hadamard") for method in ("sum", "solve")),
    (1024, 5, "binary", "solve"),
]


@dataclass
class Benchmark:
    what: Positional[Literal["mnist", "cifar", "text", "finetunes", "theory", "lowrank"]]
    nets: Path = Path("runs/nets")
    """Where trained networks are kept."""
    out: Path = Path("results/storage")
    """Where the results go."""
    rows: int = 0
    """Stop after so many new rows; 0 does all of them."""

    def run(self) -> None:
        torch.set_num_threads(1)
        getattr(self, self.what)()

    def done(self) -> list[dict[str, object]]:
        path = self.out / f"{self.what}.json"
        return json.loads(path.read_text())["rows"] if path.exists() else []

    def record(self, key: dict[str, object], measure: object) -> None:
        """Add the row of a key, unless it is there already."""
        rows = self.done()
        if any(all(row.get(name) == value for name, value in key.items()) for row in rows):
            return
        begin = time.process_time()
        row = {**key, **measure(), "seconds": round(time.process_time() - begin, 1)}  # type: ignore[operator]
        print(json.dumps(row), flush=True)
        result = {
            "command": f"python benchmarks/storage.py {self.what}",
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "rows": [*rows, row],
        }
        self.out.mkdir(parents=True, exist_ok=True)
        part = self.out / f".{self.what}.json"
        part.write_text(json.dumps(result, indent=1) + "\n")
        part.replace(self.out / f"{self.what}.json")

    def mnist(self) -> None:
        stream = trained.permuting(20)
        for units, models, family, method, steps, *rank in MNIST:
            key = {"units": units, "models": models, "family": family, "method": method}
            key |= {"finetune": steps, "calibration": 6000} | ranked(*rank)
            given = (stream, units, models, family, method, steps, *rank)
            self.record(key, partial(self._mnist, *given))

    def _mnist(self, stream, units, models, family, method, steps, rank=0):  # type: ignore[no-untyped-def]
        tasks = range(models)
        nets = {
            str(k): partial(trained.permuted_mnist_net, stream, units, k, self.nets) for k in tasks
        }
        alone = [trained.accuracy(nets[str(k)](), stream, k) for k in tasks]
        inputs = {str(k): partial(trained.calibration, stream, k) for k in tasks}
        packed = sp.pack(
            nets, family, method=method, finetune=steps, rank=rank, **trained.fitted(method, inputs)
        )
        found = [trained.accuracy(packed, stream, k, task=str(k)) for k in tasks]
        return summary(alone, found) | sizes(packed)

    def cifar(self) -> None:
        for method, steps, private, *rank in CIFAR:
            key = {"net": "small cnn", "models": 5, "family": "hadamard", "method": method}
            key |= {"finetune": steps, "private_layers": private} | ranked(*rank)
            self.record(key, partial(self._cifar, method, steps, private, *rank))

    def _cifar(self, method, steps, private, rank=0):  # type: ignore[no-untyped-def]
        stream = trained.incremental()
        nets = {str(k): partial(trained.cifar_net, stream, k, self.nets) for k in range(5)}
        alone = [trained.accuracy(nets[str(k)](), stream, k) for k in range(5)]
        inputs = {str(k): partial(trained.cifar_calibration, stream, k) for k in range(5)}
        packed = sp.pack(
            nets, "hadamard", method=method, finetune=steps, private_layers=private, rank=rank,
            **trained.fitted(method, inputs),
        )  # fmt: skip
        found = [trained.accuracy(packed, stream, k, task=str(k)) for k in range(5)]
        return summary(alone, found) | sizes(packed)

    def text(self) -> None:
        corpus = trained.Reviews()
        start = trained.text_base(corpus, self.nets)
        nets = {name: trained.text_net(corpus, name, self.nets) for name in corpus.tasks}
        given = (corpus, start, nets)
        for method, steps, base, *rank in TEXT:
            key = {"net": "BERT, 2 layers of 128", "models": 4, "family": "hadamard"}
            key |= {"method": method, "base": base, "finetune": steps} | ranked(*rank)
            self.record(key, partial(self._text, *given, method, steps, base, *rank))

    def finetunes(self) -> None:
        corpus = trained.Reviews()
        start = trained.text_base(corpus, self.nets)
        nets = {name: trained.text_net(corpus, name, self.nets) for name in corpus.tasks}
        for family, method, rank, seed in FINE_TUNES:
            key = {"family": family, "method": method, "rank": rank, "seed": seed}
            self.record(key, partial(self._finetunes, corpus, start, nets, **key))

    def _finetunes(self, corpus, start, nets, family, method, rank, seed):  # type: ignore[no-untyped-def]
        given = trained.fitted(method, {name: corpus.calibration(name) for name in nets})
        packed = sp.pack(nets, family, method=method, base=start, rank=rank, seed=seed, **given)
        found = [corpus.accuracy(packed, name, task=name) for name in nets]
        new = {name: corpus.inputs(corpus.rows(name)[0][-1000:]) for name in nets}
        seen = sp.crosstalk(packed, nets, new)
        return {
            "accuracy": round(sum(found) / len(found), 2),
            "agreement": sum(seen.agreement.values()) / len(nets),
            "noise": sum(seen.outputs.values()) / len(nets),
        }

    def _text(self, corpus, start, nets, method, steps, base, rank=0):  # type: ignore[no-untyped-def]
        alone = [corpus.accuracy(nets[name], name) for name in corpus.tasks]
        inputs = {name: corpus.calibration(name) for name in corpus.tasks}
        given = ({"base": start} if base else {}) | trained.fitted(method, inputs)
        packed = sp.pack(nets, "hadamard", method=method, finetune=steps, rank=rank, **given)
        found = [corpus.accuracy(packed, name, task=name) for name in corpus.tasks]
        return summary(alone, found) | sizes(packed)

    def theory(self) -> None:
        stream = trained.permuting(20)
        for units, models, family, method in THEORY:
            key = {"units": units, "models": models, "family": family, "method": method}
            self.record(key, partial(self._theory, stream, units, models, family, method))

    def _theory(self, stream, units, models, family, method):  # type: ignore[no-untyped-def]
        tasks = range(models)
        nets = {
            str(k): partial(trained.permuted_mnist_net, stream, units, k, self.nets) for k in tasks
        }
        inputs = {str(k): partial(trained.calibration, stream, k) for k in tasks}
        packed = sp.pack(nets, family, method=method, **trained.fitted(method, inputs))
        found = sp.crosstalk(packed, nets, inputs)
        planned = sp.plan(
            nets["0"](), family, tasks=models, method=method, inputs=inputs["0"](), noise=0.05
        )
        return {
            "layers": [
                vars(one) | {"planned": ahead.noise, "rank": ahead.rank, "width": ahead.width}
                for one, ahead in zip(found.layers, planned.layers, strict=True)
            ],
            "output_noise": sum(found.outputs.values()) / models,
            "agreement": sum(found.agreement.values()) / models,
        }

    def lowrank(self) -> None:
        """Each net compressed by itself, to the size that all of them have when they are packed."""
        stream = trained.permuting(20)
        for units, models in LOW_RANK:
            nets = partial(trained.permuted_mnist_net, stream, units, directory=self.nets)
            cases = partial(_of_stream, stream, nets, trained.calibration, models)
            key = {"net": f"MLP, {units} units", "models": models}
            self.record(key, partial(self._lowrank, cases, models))
        images = trained.incremental()
        nets = partial(trained.cifar_net, images, directory=self.nets)
        cases = partial(_of_stream, images, nets, trained.cifar_calibration, 5)
        self.record({"net": "small cnn", "models": 5}, partial(self._lowrank, cases, 5))
        corpus = trained.Reviews()
        start = trained.text_base(corpus, self.nets)
        cases = partial(_of_corpus, corpus, self.nets)
        for share in (4, 16, 64):
            key = {"net": "BERT, 2 layers of 128", "models": 4, "share": share}
            self.record(key, partial(self._lowrank, cases, share, start))

    def _lowrank(self, cases, share, base=None):  # type: ignore[no-untyped-def]
        alone, found = [], []
        numbers = 0 if base is None else sum(p.numel() for p in base.parameters())
        for net, inputs, accuracy in cases():
            small, kept = low_rank(net, inputs, share, base)
            alone.append(accuracy(net))
            found.append(accuracy(small))
            numbers += kept
        return summary(alone, found) | {"stored_bytes": 4 * numbers}


def ranked(rank: int = 0) -> dict[str, int]:
    """What tells rows apart whose models have low-rank parts; the others do not have it."""
    return {"rank": rank} if rank else {}


def _of_stream(stream, nets, calibration, models):  # type: ignore[no-untyped-def]
    """Nets of the tasks of a stream, their inputs, and how well such a net does."""
    for k in range(models):
        yield (
            nets(task=k),
            calibration(stream, k),
            partial(trained.accuracy, stream=stream, number=k),
        )


def _of_corpus(corpus, directory):  # type: ignore[no-untyped-def]
    """The same of the questions about film reviews."""
    for name in corpus.tasks:
        net = trained.text_net(corpus, name, directory)
        yield net, corpus.calibration(name), partial(corpus.accuracy, name=name)


def summary(alone: list[float], packed: list[float]) -> dict[str, object]:
    count = len(alone)
    return {
        "alone": round(sum(alone) / count, 2),
        "packed": round(sum(packed) / count, 2),
        "alone_each": [round(a, 2) for a in alone],
        "packed_each": [round(a, 2) for a in packed],
    }


def sizes(packed: sp.Packed) -> dict[str, int]:
    cost = packed.cost()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "stored_bytes": cost.stored_bytes,
        "separate_bytes": cost.separate_bytes,
        "peak_bytes_of_the_process": peak,
    }


if __name__ == "__main__":
    tyro.cli(Benchmark, description=__doc__).run()
