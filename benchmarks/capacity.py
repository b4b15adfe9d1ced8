"""How many models fit: accuracy against their number, for widths, families and ways of storing.

    OMP_NUM_THREADS=1 python benchmarks/capacity.py run     # results/capacity/capacity.json
    OMP_NUM_THREADS=1 python benchmarks/capacity.py draw    # results/figures/capacity.svg

Permuted MNIST, two hidden layers, no bias. Offline, nets that were trained each by itself (1000
steps, RMSprop 1e-4) are packed, with 3000 unlabelled inputs a task; "distil" is a solve and 1000
steps of distillation on the same inputs. Online, one superposed net learns the tasks one after the
other by the same recipe. The accuracy is the mean over all tasks stored. A row is written when it
is done, and rows that are there are not done again.
"""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
import trained
import tyro
from tyro.conf import Positional

import superpose as sp
from superpose_lab.figures.style import save
from superpose_lab.networks import MLP

COUNTS = (1, 2, 5, 10, 20)
OFFLINE = [
    *((256, family, method) for family in ("binary", "hadamard") for method in ("solve", "sum")),
    (256, "binary", "delta"),
    (512, "binary", "sum"),
    (512, "binary", "delta"),
    (512, "binary", "solve"),
    (256, "binary", "distil"),
    (512, "binary", "distil"),
    (256, "permutation", "solve"),
]
DISTIL = 1000  # steps, after a solve
ONLINE = [(256, "binary"), (512, "binary"), (256, "hadamard")]
COLOURS = {  # Okabe and Ito's, which the colour-blind can tell apart
    "online": "#0072B2", "distil": "#CC79A7", "solve": "#D55E00", "delta": "#009E73",
    "sum": "#7F7F7F",
}  # fmt: skip
LABELS = {
    "online": "learned one after the other",
    "distil": "packed: solve, then distilled",
    "solve": "packed: solve",
    "delta": "packed: delta",
    "sum": "packed: sum (equation 1)",
}


@dataclass
class Capacity:
    what: Positional[Literal["run", "draw"]]
    nets: Path = Path("runs/nets")
    """Where trained networks are kept."""
    out: Path = Path("results/capacity")
    """Where the results go."""

    def run(self) -> None:
        torch.set_num_threads(1)
        if self.what == "draw":
            draw(self.read()["rows"], self.out)
            return
        stream = trained.permuting(max(COUNTS))
        for units, family, method in OFFLINE:
            for models in COUNTS:
                key = {"units": units, "family": family, "method": method, "models": models}
                if not self.has(key):
                    self.add([key | {"accuracy": self.offline(stream, **key)}])
        for units in (256, 512):
            key = {"units": units, "family": "none", "method": "alone", "models": max(COUNTS)}
            if not self.has(key):
                nets = [trained.permuted_mnist_net(stream, units, k, self.nets) for k in range(20)]
                accuracies = [trained.accuracy(net, stream, k) for k, net in enumerate(nets)]
                self.add([key | {"accuracy": sum(accuracies) / 20}])
        for units, family in ONLINE:
            key = {"units": units, "family": family, "method": "online"}
            if not self.has(key):
                self.add([key | row for row in online(stream, units, family)])

    def offline(self, stream, units, family, method, models):  # type: ignore[no-untyped-def]
        nets = {
            str(k): partial(trained.permuted_mnist_net, stream, units, k, self.nets)
            for k in range(models)
        }
        inputs = {str(k): partial(trained.calibration, stream, k, 3000) for k in range(models)}
        steps = DISTIL if method == "distil" else 0
        method = "solve" if steps else method
        given = trained.fitted(method, inputs)
        packed = sp.pack(nets, family, method=method, finetune=steps, **given)
        return mean_accuracy(packed, stream, models)

    def read(self) -> dict[str, list[dict[str, object]]]:
        path = self.out / "capacity.json"
        return json.loads(path.read_text()) if path.exists() else {"rows": []}

    def has(self, key: dict[str, object]) -> bool:
        return any(key.items() <= row.items() for row in self.read()["rows"])

    def add(self, rows: list[dict[str, object]]) -> None:
        for row in rows:
            print(json.dumps(row), flush=True)
        result = {
            "command": "python benchmarks/capacity.py run",
            "torch": torch.__version__,
            "rows": [*self.read()["rows"], *rows],
        }
        self.out.mkdir(parents=True, exist_ok=True)
        part = self.out / ".capacity.json"
        part.write_text(json.dumps(result, indent=1) + "\n")
        part.replace(self.out / "capacity.json")


def mean_accuracy(model: sp.Superposed, stream, models: int) -> float:  # type: ignore[no-untyped-def]
    tasks = model.tasks[:models]
    found = [trained.accuracy(model, stream, k, task=task) for k, task in enumerate(tasks)]
    return round(sum(found) / models, 3)


def online(stream, units: int, family: str) -> list[dict[str, object]]:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    model = sp.superpose(MLP(784, units, 10), family, tasks=max(COUNTS))
    optimiser = torch.optim.RMSprop(model.parameters(), 1e-4)
    rows: list[dict[str, object]] = []
    for step, batch in enumerate(stream, 1):
        optimiser.zero_grad()
        F.cross_entropy(model(batch.x, task=batch.task), batch.y).backward()
        optimiser.step()
        learned, left = divmod(step, stream.period)
        if not left and learned in COUNTS:
            rows.append({"models": learned, "accuracy": mean_accuracy(model, stream, learned)})
    return rows


def draw(rows: list[dict[str, object]], out: Path) -> None:
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "superpose"
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), sharey=True, layout="constrained")
    for axis, units in zip(axes, (256, 512), strict=True):
        here = [row for row in rows if row["units"] == units]
        alone = [row["accuracy"] for row in here if row["method"] == "alone"]
        if alone:
            axis.plot([1, 20], [alone[0]] * 2, color="black", linewidth=0.8)
            axis.text(1, alone[0] + 0.8, "each net alone", fontsize=9)
        ends = []
        for method, colour in COLOURS.items():
            groups: dict[int, tuple[float, list[str]]] = {}  # lines that end in one place
            for family, style in (("binary", "-"), ("hadamard", "--"), ("permutation", ":")):
                line = sorted(
                    (row["models"], row["accuracy"])
                    for row in here
                    if (row["method"], row["family"]) == (method, family)
                )
                if line:
                    axis.plot(*zip(*line, strict=True), style, color=colour, marker="o", ms=3.5)
                    end = line[-1][1]
                    groups.setdefault(round(end / 4), (end, []))[1].append(family)
            for end, families in groups.values():
                ends.append((end, f"{LABELS[method]} ({', '.join(families)})", colour))
        place = -100.0
        for end, label, colour in sorted(ends):
            place = max(end, place + 4.4)
            leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "relpos": (0, 0.5)}
            axis.annotate(
                label, (20, end), (20.8, place), color=colour, fontsize=8.5, va="center",
                annotation_clip=False, arrowprops=leader,
            )  # fmt: skip
        axis.set(title=f"two hidden layers of {units} units", xlim=(0.5, 38))
        axis.set_xlabel("models stored", x=10 / 37.5)
        axis.set_xticks(COUNTS)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines.bottom.set_bounds(1, 20)
        axis.grid(axis="y", linewidth=0.3)
    axes[0].set_ylabel("accuracy, mean over all models stored (%)")
    figure.supxlabel(
        "Permuted MNIST, 3,000 inputs a task, one seed. "
        "Solid lines: binary; dashed: hadamard; dotted: permutation.",
        x=0.012, ha="left", fontsize=8.5, color="0.4",
    )  # fmt: skip
    save(figure, out.parent / "figures" / "capacity.svg")


if __name__ == "__main__":
    tyro.cli(Capacity, description=__doc__).run()
