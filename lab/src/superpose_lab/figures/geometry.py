"""Supplementary Figure 1: where the contexts of a family can take a vector."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from superpose import contexts
from superpose.contexts import Key
from superpose_lab.figures import Scale
from superpose_lab.figures.claims import exact
from superpose_lab.figures.style import COLOURS, GREY, caption, new
from superpose_lab.figures.table import Column, Row, Table

VECTOR = (1.0, 0.75, 0.5)
TASKS = 400
RADII = (1.0, 0.42)  # of the torus as it is drawn

PANELS = {
    "binary": ("a lattice", 3, "at most 2ᴹ points"),
    "complex": ("a torus", 2, "all of it: any phases"),
    "rotation": ("a sphere", 3, "all of it: any rotation"),
    "onepower": ("a line on the torus", 2, "steps of one direction"),
    "permutation": ("M! points", 3, "the same numbers, in other places"),
    "hadamard": ("points of the sphere", 3, "at most 2²ᴹ points"),
}
IN_THE_PAPER = ("binary", "complex", "rotation")
INVARIANTS: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(("binary", "complex", "onepower"), torch.abs),
    **dict.fromkeys(("rotation", "hadamard"), lambda x: x.norm(dim=-1)),
    "permutation": lambda x: x.sort(-1).values,
}
"""The functions of a vector (…, M) that a family does not change."""
PLACES = {"binary": 2**3, "permutation": 6, "hadamard": 2**5}
"""The number of places; other families have a new one for each context."""


COLUMNS = (
    Column("family", "family"),
    Column("shape", "moves a vector on"),
    Column("reach", "reaches"),
    Column("tasks", "contexts drawn", "number"),
    Column("different", "different places", "number"),
)


def table(scale: Scale, data_dir: Path | None = None) -> Table:
    """Bind one vector by the contexts of many tasks."""
    rows: list[Row] = []
    points, claims = {}, []
    for family, (shape, dim, reach) in PANELS.items():
        w = torch.tensor(VECTOR[:dim], dtype=torch.float64)
        made = contexts.family(family)
        bound = [made.context(Key(0, "geometry", k), dim).bind(w) for k in range(1, TASKS)]
        images = torch.stack(bound)  # (task, M)
        invariant = INVARIANTS[family]
        drawn = DRAWN[dim](images)
        points[family] = [[round(value, 4) for value in point] for point in drawn.tolist()]
        places = len({tuple(point) for point in points[family]})
        kept = bool((invariant(images) - invariant(w)).abs().max() < 1e-12)
        row = {"family": family, "shape": shape, "reach": reach, "tasks": len(images)}
        rows.append(row | {"different": places})
        if family in IN_THE_PAPER:
            holds = kept and places == PLACES.get(family, len(images))
            ours = f"{places} different places for {len(images)} contexts, length kept"
            claims.append(exact(f"{family} moves a vector on {shape}", holds, ours))
    picture = {"points": points, "path": _path()}
    return Table(COLUMNS, rows, claims, picture=picture)


def _path() -> list[list[float]]:
    """The way of onepower from c⁰ to its next powers, through the fractions between them."""
    w = torch.tensor(VECTOR[:2], dtype=torch.float64)
    one = contexts.family("onepower").context(Key(0, "geometry", 1), 2)
    images = torch.stack([(one ** (part / 24)).bind(w) for part in range(24 * 12)])
    return [[round(value, 4) for value in point] for point in _torus(images).tolist()]


def _torus(images: Tensor) -> Tensor:
    """Two phases as a point of a torus in space."""
    one, two = images.angle().unbind(-1)
    large, small = RADII
    radius = large + small * two.cos()
    return torch.stack([radius * one.cos(), radius * one.sin(), small * two.sin()], -1)


DRAWN: dict[int, Callable[[Tensor], Tensor]] = {2: _torus, 3: lambda images: images}


def draw(table: Table) -> Any:
    """Draw six scenes: the paper's three, and three more families."""
    figure = new(9.6, 6.3)
    for number, row in enumerate(table.rows, start=1):
        family = row["family"]
        axes = figure.add_subplot(2, 3, number, projection="3d")
        axes.set_proj_type("ortho")
        _scenery(axes, PANELS[family][1], family)
        points = torch.tensor(table.picture["points"][family])
        if family == "onepower":
            path = torch.tensor(table.picture["path"])
            axes.plot(*path.T.tolist(), color=COLOURS[family], lw=1.6)
        size = 60 if row["different"] < 20 else 9
        axes.scatter(*points.T.tolist(), color=COLOURS[family], s=size, depthshade=True, lw=0)
        if PANELS[family][1] == 3:
            start = VECTOR
            axes.quiver(0, 0, 0, *start, color="k", lw=1.6, arrow_length_ratio=0.12)
            axes.text(*(1.15 * v for v in start), "w", fontweight="bold", fontsize=11)
        letter = "ABCDEF"[number - 1]
        axes.set_title(f"{letter}  {family}: {row['shape']}", color=COLOURS[family])
        axes.text2D(
            0.5,
            0.0,
            f"{row['different']} places for {row['tasks']} contexts",
            transform=axes.transAxes,
            ha="center",
            fontsize=8,
            color=GREY,
        )
        axes.set_axis_off()
        axes.set_box_aspect((1, 1, 1) if PANELS[family][1] == 3 else (1, 1, 0.5), zoom=1.4)
        axes.view_init(elev=24 if PANELS[family][1] == 3 else 42, azim=-38)
    caption(
        figure,
        f"Where {table.rows[0]['tasks']} contexts of each family of the library take one vector w; "
        f"seed 0. A, C, E, F: w = {VECTOR} in "
        "three real dimensions. B, D: two complex dimensions, the two phases drawn as the angles "
        "of a torus; phase does the same to planes of a real vector. A, B, C are the paper's.",
    )
    return figure


def _scenery(axes: Any, dim: int, family: str) -> None:
    """The surface that keeps the lengths: a box, a torus or a sphere."""
    u = torch.linspace(0, 2 * torch.pi, 41)[:, None]
    if dim == 2:
        v = torch.linspace(0, 2 * torch.pi, 25)[None]
        large, small = RADII
        radius = large + small * v.cos()
        surface = radius * u.cos(), radius * u.sin(), small * v.sin() + 0 * u
        limit = large + small
        axes.set(xlim=(-limit, limit), ylim=(-limit, limit), zlim=(-limit / 2, limit / 2))
    else:
        v = torch.linspace(0, torch.pi, 25)[None]
        length = torch.tensor(VECTOR).norm()
        surface = length * u.cos() * v.sin(), length * u.sin() * v.sin(), length * v.cos() + 0 * u
        limit = float(length)
        axes.set(xlim=(-limit, limit), ylim=(-limit, limit), zlim=(-limit, limit))
    if family == "binary":
        corners = [torch.tensor(VECTOR) * torch.tensor(s) for s in _signs()]
        for i, a in enumerate(corners):
            for b in corners[i + 1 :]:
                if (a != b).sum() == 1:
                    axes.plot(*torch.stack([a, b]).T.tolist(), color="#AAAAAA", lw=1)
        return
    grid = [part.numpy() for part in surface]
    axes.plot_wireframe(*grid, rcount=20, ccount=12, color="#C8C8C8", lw=0.4)


def _signs() -> list[tuple[float, float, float]]:
    return [(a, b, c) for a in (-1.0, 1.0) for b in (-1.0, 1.0) for c in (-1.0, 1.0)]
