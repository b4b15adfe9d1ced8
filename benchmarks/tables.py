"""Write the tables of docs/ anew from the files in results/.

    python benchmarks/tables.py            # writes them
    python benchmarks/tables.py --check    # exits with 1 if one is out of step

A table stands between `<!-- NAME: … -->` and `<!-- end -->`; NAME is a function below.
"""

import itertools
import json
import re
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import speed as speeds

from superpose_lab.figures import fine_tunes as tuned
from superpose_lab.figures.catalogue import FIGURES
from superpose_lab.figures.table import grid
from superpose_lab.results import Results

ROOT = Path(__file__).parents[1]
RESULTS = Results(ROOT / "results")
DOCUMENTS = [
    ROOT / name
    for name in (
        "docs/families.md",
        "docs/finetuning.md",
        "docs/learning.md",
        "docs/models.md",
        "docs/precision.md",
        "docs/recognition.md",
        "docs/serving.md",
        "docs/speed.md",
        "docs/storage.md",
    )
]
STORED_BY = {
    "alone": "each net alone, mean of all",
    "online": "learned one after the other",
    "distil": "solve, then 1000 steps of distillation",
    "solve": "solve",
    "delta": "delta",
    "sum": "sum",
}
PRECISION = {
    "MLP, 256 units": "20 tasks, learned one after the other",
    "MLP, 256 units, separate": "10 separate networks",
    "MLP, 256 units, packed": "10 networks, packed",
    "ResNet-18, width 16": "3 tasks, ResNet-18",
    "Int8WeightOnlyConfig": "torchao, int8",
    "Int8DynamicActivationInt8WeightConfig": "torchao, int8, inputs too",
}
RECIPE = "hadamard+projection"
FAMILIES = ["hadamard", "rotation", "phase", "complex", "onepower", "binary", "standard"]


def speed() -> str:
    return speeds.table(json.loads((ROOT / "results/speed/bench.json").read_text()))


def first_use() -> str:
    found = json.loads((ROOT / "results/speed/bench.json").read_text())["first_use_ms"]
    lines = ["| family | ms |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {ms:.2f} |" for name, ms in found.items())])


def families() -> str:
    """Permuting MNIST, 50 tasks, 256 units: the paper's setting."""
    lines = [
        "| method | first task | mean of last ten | mean of all 50 | seeds |",
        "|---|---|---|---|---|",
    ]
    folders = {RECIPE: f"{RECIPE}-u256-lr0.0006-cosine"} | {m: f"{m}-u256" for m in FAMILIES}
    for method, folder in folders.items():
        results = list(by_seed("permuting-mnist", folder).values())
        if results:
            names = ("first_task", "mean_last_ten", "mean_all")
            cells = [told([100 * result[name] for result in results]) for name in names]
            lines.append(f"| `{method}` | {' | '.join(cells)} | {len(results)} |")
    return "\n".join(lines)


def own_numbers() -> str:
    """Permuting MNIST, 256 units: what numbers of each task's own add."""
    return reproduced("own-numbers", without=("size", "first_task"))


def recognised() -> str:
    """Accuracy with the task told and found, from one row, by protocol."""
    names = ("permuted-10", "permuted-50", "permuted-250", "rotated")
    return found_tasks(*names, without=("numbers_a_task", "degrees_off_if_wrong"))


def evidence() -> str:
    """Ten permuted tasks: what each kind of evidence finds."""
    return found_tasks("evidence", without=("label", "told"))


def doubt() -> str:
    """Tasks found by outputs, by method of learning."""
    return found_tasks("doubt", without=("numbers",))


def unbroken() -> str:
    """Streams whose tasks are told to one network and found by another."""
    return found_tasks("returning", "stream", "rotating-fashion")


def natural() -> str:
    """CIFAR-100 in ten tasks, by kind of evidence."""
    return found_tasks("cifar100")


def found_tasks(*names: str, without: tuple[str, ...] = ()) -> str:
    """What was measured for `superpose-lab reproduce recognise-…`, some columns left out."""
    return reproduced(*(f"recognise-{name}" for name in names), without=without)


def reproduced(*names: str, without: tuple[str, ...]) -> str:
    """Tables of `superpose-lab reproduce` as one, without rows that have no runs."""
    tables = [FIGURES[name].table(name, "paper", RESULTS) for name in names]
    measured = any(row["seeds"] for table in tables for row in table.rows)
    return grid(tables, without, measured=True) if measured else "Not measured yet."


def convolutions() -> str:
    """iCIFAR with contexts of kernels and of channels, and their difference seed by seed."""
    names = {
        "mean_when_learned": "mean, each task just learned",
        "mean_all": "mean of all, at the end",
        "first_task": "first task, at the end",
    }
    lines = [
        f"| family | width | tasks × steps | contexts | {' | '.join(names.values())} | seeds |",
        "|---" * (5 + len(names)) + "|",
    ]
    lengths = {"5 × 1000": "s1000-e500", "3 × 300": "t3-s300-e150"}
    for length, family, width in itertools.product(lengths, ("binary", "hadamard"), (16, 32)):
        kernel, channel = (
            by_seed("icifar", f"{family}-w{width}{conv}-{lengths[length]}")
            for conv in ("", "-conv-channel")
        )
        seeds = sorted(kernel.keys() & channel.keys())
        if not seeds:
            continue
        change = {k: {name: channel[k][name] - kernel[k][name] for name in names} for k in seeds}
        for told_as, found in {"kernel": kernel, "channel": channel, "difference": change}.items():
            cells = [told([100 * found[seed][name] for seed in seeds]) for name in names]
            what = f"{family} | {width} | {length} | {told_as}"
            lines.append(f"| {what} | {' | '.join(cells).replace('-', '−')} | {len(seeds)} |")
    return "\n".join(lines)


def by_seed(experiment: str, name: str) -> dict[int, dict[str, Any]]:
    """Results of finished runs by seed."""
    return {seed: line["result"] for seed, line in RESULTS.named(experiment, name).items()}


def learning() -> str:
    """Permuting MNIST, ten tasks, 256 units: networks, penalties and superposition."""
    names = {
        "first_task": "first task",
        "last_task": "last task",
        "mean_all": "mean of all",
        "mean_when_learned": "when learned",
        "backward_transfer": "backward transfer",
    }
    lines = [f"| method | {' | '.join(names.values())} |", "|---" * (1 + len(names)) + "|"]
    strengths = {"ewc": 1.0, "ewc-online": 10.0, "si": 3.0}
    for method in ("standard", "binary", "ewc", "ewc-online", "si", "separate"):
        strength = strengths.get(method)
        end = "" if strength is None else f"-strength{strength}"
        result = by_seed("permuting-mnist", f"{method}-u256-t10{end}")[0]
        name = method if strength is None else f"{method}, strength {strength:g}"
        cells = (f"{100 * result[key]:.1f}" for key in names)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def zoo() -> str:
    """Architectures of `transformers`, and what became of them."""
    lines = [
        "| architecture | weights bound | shared, beside embeddings | mixed batches | time "
        "| packed | exported |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows("models/transformers"):
        normed = {name.partition(".parametrizations")[0] for name in row["shared"]}
        normed -= set(row["shared"])
        rest = [name for name in row["shared"] if not name.startswith(tuple(normed))]
        last = {name.removesuffix(".weight").rpartition(".")[2] for name in rest}
        other = [name for name in sorted(last) if not re.search(r"emb|^w[tp]e$|shared", name)]
        shared = [f"`{name}`" for name in other]
        shared += ["a convolution with `weight_norm`"] if normed else []
        if row["delta"] is None:
            packed = "no: a task cannot have a `weight_norm` for itself"
        else:
            packed = f"yes, {row['delta_way']}"
        exported = "one task at a time" if row["exported_rows"] is None else "yes"
        time = f"{row['ratio']:.1f}"
        cells = (
            row["name"],
            str(row["bound"]),
            ", ".join(shared),
            row["way"],
            time,
            packed,
            exported,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def theory() -> str:
    """The noise of each layer, measured and predicted."""
    lines = [
        "| units | models | family, method | first layer | second | third |",
        "|---|---|---|---|---|---|",
    ]
    errors = []
    for row in rows("storage/theory"):
        cells = []
        for layer in row["layers"]:
            measured, predicted = layer["measured"], layer["predicted"]
            errors.append(predicted / measured - 1)
            off = f"{round(100 * errors[-1]):+d}".replace("-", "−")
            cells.append(f"{measured:.4f}, {predicted:.4f} ({off} %)")
        kind = f"{row['family']}, {row['method']}"
        lines.append(f"| {row['units']} | {row['models']} | {kind} | {' | '.join(cells)} |")
    close = sum(abs(error) <= 0.1 for error in errors)
    return "\n".join([*lines, "", f"{close} of {len(errors)} are within 10 %."])


def mnist() -> str:
    lines = [
        "| units | models | family, method | each net alone | packed | bytes: packed, separate |",
        "|---|---|---|---|---|---|",
    ]
    order = sorted(rows("storage/mnist"), key=lambda row: (row["units"], row["models"]))
    for row in order:
        kind = f"{row['units']} | {row['models']} | {row['family']}, {way(row)}"
        lines.append(f"| {kind} | {accuracies(row)} | {sizes(row, 1)} |")
    return "\n".join(lines)


def cifar() -> str:
    return by_method(rows("storage/cifar"))


def text() -> str:
    return by_method([row for row in rows("storage/text") if "seed" not in row])


def lowrank() -> str:
    """Nets compressed each by itself, beside the best of packing them at the same size."""
    lines = [
        "| nets | models | each net alone | packed | with distillation | low rank "
        "| bytes: packed, low rank |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows("storage/lowrank"):
        alike = packed_alike(row)
        order = sorted(alike, key=lambda r: r["packed"])
        plain = [r for r in order if not r["finetune"]][-1]
        distilled = [f"{r['packed']:.1f}" for r in order if r["finetune"]]
        cells = [f"{plain['packed']:.1f}", *(distilled[-1:] or [""])]
        size = f"{plain['stored_bytes'] / 1e6:.2f} MB, {row['stored_bytes'] / 1e6:.2f} MB"
        told = f"{row['net']} | {row['models']} | {row['alone']:.1f} | {' | '.join(cells)}"
        lines.append(f"| {told} | {row['packed']:.1f} | {size} |")
    return "\n".join(lines)


def packed_alike(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the same nets, packed."""
    files = ("storage/mnist", "storage/cifar", "storage/text")
    every = [r for file in files for r in rows(file) if not {"seed", "rank"} & r.keys()]
    found = [r for r in every if r.get("base", True)]
    named = [(r.get("net") or f"MLP, {r['units']} units", r) for r in found]
    return [r for net, r in named if (net, r["models"]) == (row["net"], row["models"])]


def fine_tunes_stored() -> str:
    """Fine-tunes by delta, by solve and with low-rank parts: mean and deviation over seeds."""
    lines = [
        "| family | method | accuracy | answers as the net alone, % "
        "| noise of the output, % | seeds |",
        "|---|---|---|---|---|---|",
    ]
    found = rows("storage/finetunes")
    ways = dict.fromkeys((row["family"], row["method"], row["rank"]) for row in found)
    for family, method, rank in sorted(ways):
        kind = {"family": family, "method": method, "rank": rank}
        some = [row for row in found if kind.items() <= row.items()]
        cells = [told([row["accuracy"] for row in some])]
        cells += [told([100 * row[name] for row in some]) for name in ("agreement", "noise")]
        label = f"{method}, rank {rank} for each" if rank else method
        lines.append(f"| {family} | {label} | {' | '.join(cells)} | {len(some)} |")
    return "\n".join(lines)


def by_method(found: list[dict[str, Any]]) -> str:
    lines = ["| method | each net alone | packed | bytes: packed, separate |", "|---|---|---|---|"]
    for row in found:
        lines.append(f"| {way(row)} | {accuracies(row)} | {sizes(row, 2)} |")
    return "\n".join(lines)


def capacity() -> str:
    """Accuracy against the number of models, best way of storing first."""
    found = rows("capacity/capacity")
    counts = sorted({row["models"] for row in found})
    lines = [
        f"| units | family | stored by | {' | '.join(map(str, counts))} |",
        "|---" * (3 + len(counts)) + "|",
    ]
    families = ("none", "binary", "hadamard", "permutation")
    for units in sorted({row["units"] for row in found}):
        for family, method in itertools.product(families, STORED_BY):
            kind = {"units": units, "family": family, "method": method}
            line = {row["models"]: row["accuracy"] for row in found if kind.items() <= row.items()}
            if line:
                cells = [f"{line[count]:.1f}" if count in line else "" for count in counts]
                name = "" if family == "none" else family
                lines.append(f"| {units} | {name} | {STORED_BY[method]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def precision() -> str:
    """Accuracy and bytes by the bits of the weights: a column for each store."""
    found = rows("precision/precision")
    nets = list(dict.fromkeys(row["net"] for row in found))
    kinds = dict.fromkeys((row["precision"], row.get("group")) for row in found)
    lines = [
        f"| weights | {' | '.join(PRECISION[net] for net in nets)} |",
        "|---" * (1 + len(nets)) + "|",
    ]
    for kind, group in kinds:
        of_kind = [r for r in found if (r["precision"], r.get("group")) == (kind, group)]
        cells = {r["net"]: f"{r['accuracy']:.1f} % in {r['bytes'] / 1e6:.2f} MB" for r in of_kind}
        name = PRECISION.get(kind, kind) + (f", a scale for {group} inputs" if group else "")
        lines.append(f"| {name} | {' | '.join(cells.get(net, '') for net in nets)} |")
    return "\n".join(lines)


def fine_tunes() -> str:
    """Pretrained networks fine-tuned again and again: accuracy and bytes of every method."""
    return tuned.table(tuned.points(tuned.read(RESULTS))).strip()


def rows(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / f"results/{name}.json").read_text())["rows"]
    return found


def way(row: dict[str, Any]) -> str:
    """How models were packed, in words."""
    parts = [row["method"]]
    if row.get("base") and row["method"] != "delta":  # which always has one
        parts.append("with the base")
    if row.get("private_layers"):
        parts.append("first layer private")
    if row.get("rank"):
        parts.append(f"rank {row['rank']} for each")
    if row["finetune"]:
        parts.append(f"{row['finetune']} steps of distillation")
    return ", ".join(parts)


def accuracies(row: dict[str, Any]) -> str:
    return f"{row['alone']:.1f} | {row['packed']:.1f}"


def sizes(row: dict[str, Any], digits: int) -> str:
    packed, separate = (row[f"{kind}_bytes"] / 1e6 for kind in ("stored", "separate"))
    return f"{packed:.{digits}f} MB, {separate:.{digits}f} MB"


def told(values: list[float]) -> str:
    deviation = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{round(fmean(values), 6):.1f}{deviation}"


def serving() -> str:
    """Requests a second and latency, for each number of clients."""
    found = json.loads((ROOT / "results/serving/speed.json").read_text())["served"]
    clients = list(dict.fromkeys(row["clients"] for row in found))
    heads = [f"{number} client{'s' * (number > 1)}" for number in clients]
    lines = [f"| served | tasks | {' | '.join(heads)} |", "|---" * (2 + len(clients)) + "|"]
    for kind, tasks in dict.fromkeys((row["kind"], row["tasks"]) for row in found):
        rows = [row for row in found if (row["kind"], row["tasks"]) == (kind, tasks)]
        cells = [
            f"{row['requests_per_s']['median']:,.0f} ({row['p50_ms']['median']:.1f}; "
            f"{row['p99_ms']['median']:.0f})"
            for row in rows
        ]
        shown = "–" if kind in ("route", "reading") else tasks
        lines.append(f"| `{kind}` | {shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def serving_ratios() -> str:
    """What is compared with what, beside its goal."""
    found = json.loads((ROOT / "results/serving/speed.json").read_text())
    told_as = {
        "64 tasks / 1 task": ("requests a second of 64 tasks to those of one", 32),
        "superpose / route": ("requests a second to those of a route that does nothing", 32),
        "superpose / reading": ("requests a second to those of a route that reads the same", 32),
        "superpose / separate": ("requests a second to those of 64 separate models", 32),
        "superposed / separate, in process": (
            "the same for a batch of 32 rows, without a server",
            32,
        ),
        "superpose / peft": ("requests a second to those of 64 adapters of PEFT", 32),
        "one client's extra ms": ("median ms above the route and the pass together", 1),
        "superpose / in process, rows a second": ("rows a second to the model in process", 128),
        "superpose / json": ("requests a second to those with numbers as JSON", 32),
    }
    lines = ["| what | clients | goal | measured | spread |", "|---|---|---|---|---|"]
    for name, (what, clients) in told_as.items():
        if name not in found["ratios"]:
            continue
        own, goal = found["ratios"][name][str(clients)], found["goals"].get(name)
        least = "ms" not in name
        missed = goal is not None and (own["median"] < goal if least else own["median"] > goal)
        sign = "" if goal is None else f"{'≥' if least else '≤'} {goal:g}"
        measured = f"{own['median']:.2f}{' **missed**' if missed else ''}"
        spread = f"{own['min']:.2f}–{own['max']:.2f}"
        lines.append(f"| {what} | {clients} | {sign or '–'} | {measured} | {spread} |")
    return "\n".join(lines)


def faults() -> str:
    """What was done to the server, and what came of it."""
    found = json.loads((ROOT / "results/serving/faults.json").read_text())
    lines = ["| trial | counted |", "|---|---|"]
    for trial, told_of_it in found.items():
        if isinstance(told_of_it, dict):
            facts = "; ".join(f"{name}: {_plain(value)}" for name, value in told_of_it.items())
            lines.append(f"| {trial} | {facts} |")
    return "\n".join(lines)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{n:,} × {name}" for name, n in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}"


TABLES = {
    "serving": serving,
    "serving ratios": serving_ratios,
    "faults": faults,
    "speed": speed,
    "first use": first_use,
    "families": families,
    "own numbers": own_numbers,
    "recognised": recognised,
    "evidence": evidence,
    "doubt": doubt,
    "unbroken streams": unbroken,
    "natural images": natural,
    "convolutions": convolutions,
    "learning": learning,
    "zoo": zoo,
    "theory": theory,
    "mnist": mnist,
    "cifar": cifar,
    "text": text,
    "fine tunes stored": fine_tunes_stored,
    "lowrank": lowrank,
    "capacity": capacity,
    "precision": precision,
    "fine tunes": fine_tunes,
}


def renewed(text: str) -> str:
    def table(match: re.Match[str]) -> str:
        return f"{match[1]}\n{TABLES[match[2]]()}\n<!-- end -->"

    return re.sub(r"(<!-- ([a-z ]+): .*? -->)\n.*?<!-- end -->", table, text, flags=re.DOTALL)


def main() -> None:
    late = []
    for path in DOCUMENTS:
        before = path.read_text()
        after = renewed(before)
        if after != before:
            late.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(after)
    if "--check" in sys.argv and late:
        sys.exit(f"out of step with results/: {', '.join(late)}; run python benchmarks/tables.py")


if __name__ == "__main__":
    main()
