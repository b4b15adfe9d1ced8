"""The picture of fine-tunes: accuracy against bytes."""

from matplotlib.figure import Figure

from superpose.lab.figures.pretrained import Point, _panel


def point(method: str, label: str, total: int, end: float) -> Point:
    return Point(
        net="mlp", method=method, label=label, words=label, tasks=2, network=100, total=total,
        learned=[end], end=[end],
    )  # fmt: skip


def test_methods_are_points_and_lora_of_growing_rank_is_a_line() -> None:
    axes = Figure().subplots()
    found = [
        point("lora", "LoRA, rank 1", 110, 80.0),
        point("lora", "LoRA, rank 2", 120, 85.0),
        point("superposed", "base + superposed", 200, 90.0),
    ]
    _panel(axes, found)
    lines = [(line.get_xdata(), line.get_ydata()) for line in axes.lines]
    shown = sorted(([float(a) for a in x], [float(b) for b in y]) for x, y in lines if len(x))
    assert shown == [([1.1, 1.2], [80.0, 85.0]), ([2.0], [90.0])]
    labels = {text.get_text() for text in axes.texts}
    assert labels == {"LoRA, rank 1", "2", "base + superposed"}
