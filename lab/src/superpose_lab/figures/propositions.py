"""The three propositions: crosstalk has no bias and a known variance, and gradients carry over."""

import copy
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from superpose import contexts, superpose, unsuperpose
from superpose.contexts import Key
from superpose_lab.figures import Scale
from superpose_lab.figures.claims import Claim, exact
from superpose_lab.figures.style import COLOURS, caption, label_ends, new
from superpose_lab.figures.table import Column, Row, Table
from superpose_lab.networks import MLP

FAMILIES = tuple(name for name in contexts.FAMILIES if name != "identity")
PAPER = ("binary", "complex", "onepower", "rotation")  # those that the propositions speak of
SIZES: dict[Scale, tuple[int, ...]] = {
    "smoke": (8, 16),
    "quick": (16, 64, 256),
    "paper": (16, 32, 64, 128, 256, 512),
}
MODELS: dict[Scale, tuple[int, ...]] = {
    "smoke": (2, 4),
    "quick": (2, 5, 20),
    "paper": (2, 5, 10, 20, 50),
}
DRAWS: dict[Scale, int] = {"smoke": 40, "quick": 60, "paper": 100}
ROWS = 32  # weight vectors w of each model, and inputs x
ERRORS = 4  # how many standard errors a mean may be off
SLOW = {"rotation": 10_000}  # M · draws at most: a rotation costs M³


COLUMNS = (
    Column("family", "family"),
    Column("off", "1: mean ε is off by standard errors, at most", "float"),
    Column("bias", "predicted mean ε / deviation ε, at most", "float"),
    Column("low", "2: Var ε measured / predicted, from", "float"),
    Column("high", "to", "float"),
    Column("step", "3: a step differs, relatively, by at most", "float"),
)


def table(scale: Scale, data_dir: Path | None = None) -> Table:
    """Measure ε = Σ over s ≠ k of ⟨w(s), C(s)⁻¹ C(k) x⟩ over many draws of contexts.

    w and x are fixed; the contexts of a draw come from its seed. x is positive, like the outputs of
    a hidden layer, and w has a mean: a family that keeps the sum of a vector shows it.
    """
    details: list[Row] = []
    rows, claims = [], []
    for family in FAMILIES:
        measured: list[Row] = []
        for dim in SIZES[scale]:
            error = {"gradient_error": gradient_error(family, dim)}
            crosstalk = _crosstalk(family, dim, MODELS[scale], DRAWS[scale])
            measured += [row | error for row in crosstalk]
        details += measured
        rows.append(_summary(family, measured))
        if family in PAPER:
            claims += _claims(rows[-1], measured)
    sizes, models = (", ".join(map(str, each[scale])) for each in (SIZES, MODELS))
    about = f"layers of {sizes} inputs, {models} models"
    return Table(COLUMNS, rows, claims, about, details=details)


def _summary(family: str, measured: Sequence[Row]) -> Row:
    """The worst of a family over all sizes and numbers of models."""
    off = [abs(row["bias"] - row["bias_predicted"]) / row["bias_error"] for row in measured]
    ratios = [row["ratio"] for row in measured]
    return {
        "family": family,
        "off": max(off),
        "bias": max(abs(row["bias_predicted"]) for row in measured),
        "low": min(ratios),
        "high": max(ratios),
        "step": max(row["gradient_error"] for row in measured),
    }


def _claims(row: Row, measured: Sequence[Row]) -> list[Claim]:
    family, step = row["family"], row["step"]
    unbiased = row["off"] <= ERRORS and row["bias"] == 0
    sure = all(abs(each["ratio"] - 1) <= ERRORS * each["ratio_error"] + 0.01 for each in measured)
    return [
        exact(
            f"{family}, Proposition 1: the mean of the crosstalk is 0",
            unbiased,
            f"at most {row['off']:.1f} standard errors from it",
        ),
        exact(
            f"{family}, Proposition 2: the variance of the crosstalk is as predicted",
            sure,
            f"measured / predicted from {row['low']:.3f} to {row['high']:.3f}",
        ),
        exact(
            f"{family}, Proposition 3: a step moves the read-out as it would outside",
            step < 1e-10,
            f"relative difference at most {step:.0e}" if step else "the same to the last bit",
        ),
    ]


def _crosstalk(family: str, dim: int, models: tuple[int, ...], draws: int) -> list[dict[str, Any]]:
    made = contexts.family(family)
    draws = max(min(draws, SLOW.get(family, 10**9) // dim), 20)
    generator = torch.Generator().manual_seed(dim)
    normal = functools.partial(torch.randn, generator=generator, dtype=torch.float64)
    w = normal(max(models) - 1, ROWS, dim) + 0.2  # (s, row, M)
    x = normal(ROWS, dim).abs()
    pairs = w.norm(dim=-1).square() * x.norm(dim=-1).square()  # (s, row)
    total = torch.stack([_draw(made, seed, w, x) for seed in range(draws)])  # (draw, s, row)
    mean, variance = made.moments(w, x)
    rows = []
    for count in models:
        scale = pairs[: count - 1].mean(0)  # one model's ‖w‖²‖x‖², for each row
        epsilon = total[:, : count - 1].sum(1)  # (draw, row)
        expected = mean[: count - 1].sum(0)
        spread = variance[: count - 1].sum(0)
        squares = (epsilon - expected).abs().square() / spread  # 1 on average
        by_draw = squares.mean(1)
        signed = (epsilon.real / spread.sqrt()).mean(1)
        rows.append(
            {
                "family": family,
                "M": dim,
                "K": count,
                "draws": draws,
                "bias": _short(signed.mean()),
                "bias_predicted": _short((expected.real / spread.sqrt()).mean()),
                "bias_error": _short(signed.std() / draws**0.5),
                "variance": _short((squares.mean(0) * spread / scale).mean()),
                "variance_predicted": _short((spread / scale).mean()),
                "ratio": _short(by_draw.mean()),
                "ratio_error": _short(by_draw.std() / draws**0.5),
            }
        )
    return rows


def _draw(family: contexts.Family, seed: int, w: Tensor, x: Tensor) -> Tensor:
    """⟨w(s), C(s)⁻¹ C(k) x⟩ for every other model s and row: (s, row)."""
    dim = x.shape[-1]
    bound = family.context(Key(seed, "layer", 0), dim).bind(x)  # (row, M)
    terms = []
    for other, weights in enumerate(w, start=1):
        unbound = family.context(Key(seed, "layer", other), dim).unbind(bound)
        terms.append((weights * unbound).sum(-1))
    return torch.stack(terms)


def gradient_error(family: str, dim: int) -> float:
    """The relative difference between one step in superposition and the step outside.

    >>> gradient_error("binary", 8) < 1e-12
    True
    """
    with torch.random.fork_rng():
        torch.manual_seed(dim)
        net = MLP(dim, dim, 10).double()
        x, y = torch.randn(64, dim, dtype=torch.float64), torch.randint(10, (64,))
    model = superpose(net, family, tasks=2, private="none")
    alone = unsuperpose(model, 1)
    start = copy.deepcopy(alone)
    _step(model, F.cross_entropy(model(x, task=1), y))
    complex_valued = next(alone.parameters()).is_complex()
    logits = alone(x + 0j).real if complex_valued else alone(x)
    _step(alone, F.cross_entropy(logits, y))
    weights = [
        torch.cat([p.detach().flatten() for p in each.parameters()])
        for each in (unsuperpose(model, 1), alone, start)
    ]
    inside, outside = weights[0] - weights[2], weights[1] - weights[2]
    return _short((inside - outside).norm() / outside.norm())


def _step(model: torch.nn.Module, loss: Tensor) -> None:
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    loss.backward()
    updates.step()


def _short(value: Tensor) -> float:
    """Five digits: more differ between machines."""
    return float(f"{value.item():.4e}")


def draw(table: Table) -> Any:
    """Draw predictions as lines, measurements as marks."""
    figure = new(9.6, 6.6)
    over_m, over_k, bias, gradients = figure.subplots(2, 2).flat
    rows = table.details
    sizes = sorted({row["M"] for row in rows})
    counts = sorted({row["K"] for row in rows})
    middle = counts[len(counts) // 2]
    fixed = 256 if 256 in sizes else sizes[-1]
    labels = []
    for axes, key, other, at in ((over_m, "M", "K", middle), (over_k, "K", "M", fixed)):
        ends = []
        for offset, family in enumerate(FAMILIES):
            these = [row for row in rows if row["family"] == family and row[other] == at]
            nudge = 1.02 ** (offset - len(FAMILIES) / 2)  # marks that fall together are all seen
            xs = [row[key] for row in these]
            axes.plot(xs, [row["variance_predicted"] for row in these], color=COLOURS[family], lw=1)
            axes.scatter(
                [x * nudge for x in xs],
                [row["variance"] for row in these],
                color=COLOURS[family],
                s=18,
                zorder=3,
            )
            ends.append((family, xs[-1], these[-1]["variance_predicted"], COLOURS[family]))
        axes.set(xscale="log", yscale="log", xlabel=key)
        axes.set_xticks(xs, [str(x) for x in xs])
        axes.minorticks_off()
        axes.set_xlim(xs[0] * 0.85, xs[-1] * (xs[-1] / xs[0]) ** 0.42)
        axes.set_ylabel("Var ε / ‖w‖²‖x‖²")
        labels.append((axes, ends))
    over_m.set_title(f"Variance over M, {middle} models")
    over_k.set_title(f"Variance over K, M = {fixed}")
    for number, family in enumerate(FAMILIES):
        these = [row for row in rows if row["family"] == family]
        for i, row in enumerate(these):
            where = number + (i + 0.5) / len(these) * 0.7 - 0.35
            bias.errorbar(
                where,
                row["bias"],
                2 * row["bias_error"],
                color=COLOURS[family],
                fmt="o",
                ms=2.2,
                lw=0.8,
            )
            bias.hlines(row["bias_predicted"], where - 0.03, where + 0.03, color="k", lw=1.4)
        by_size = list({row["M"]: row["gradient_error"] for row in these}.values())
        xs = [number + 0.12 * (i - len(by_size) / 2) for i in range(len(by_size))]
        errors = [max(error, 1e-17) for error in by_size]
        gradients.scatter(xs, errors, color=COLOURS[family], s=18)
    for axes in (bias, gradients):
        axes.set_xticks(range(len(FAMILIES)), FAMILIES, rotation=30, ha="right")
        axes.set_xlim(-0.6, len(FAMILIES) - 0.4)
    bias.axhline(0, color="k", lw=0.6)
    bias.set_yscale("symlog", linthresh=0.5, linscale=1.5)
    ticks = [-0.4, -0.2, 0, 0.2, 0.4, 1, 10, 100]
    bias.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    bias.set_ylim(-0.5, 100)
    bias.set_ylabel("mean ε / deviation ε")
    bias.set_title("Bias, at every M and K")
    gradients.set(yscale="log", ylim=(3e-18, 1e-11))
    gradients.set_yticks([1e-17, 1e-16, 1e-15, 1e-14, 1e-13, 1e-12, 1e-11])
    gradients.set_yticklabels(["0", *(f"$10^{{-{n}}}$" for n in range(16, 10, -1))])
    gradients.minorticks_off()
    gradients.axhline(2.2e-16, color="k", lw=0.8, ls=":")
    gradients.annotate("float64 rounding", (len(FAMILIES) - 0.5, 2.6e-16), ha="right", fontsize=7.5)
    gradients.set_ylabel("relative difference")
    gradients.set_title("One step inside against outside, each M")
    draws = sorted({row["draws"] for row in rows})
    many = f"{draws[0]} to {draws[-1]}" if len(draws) > 1 else str(draws[0])
    caption(
        figure,
        "Propositions 1 to 3. Lines and black bars: predicted. Marks: "
        f"measured over {many} draws of contexts, a seed each, with {ROWS} pairs of w and x; error "
        "bars are two standard errors. "
        f"M = {', '.join(map(str, sizes))}; K = {', '.join(map(str, counts))} models. Permutation "
        "keeps the sum of a vector, so its bias is not zero, and is predicted.",
    )
    for axes, ends in labels:
        label_ends(axes, ends, 7.5)
    return figure
