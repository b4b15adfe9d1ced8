"""The list of figures and tables."""

from superpose_lab.figures import (
    causes,
    counts,
    curves,
    geometry,
    learned,
    propositions,
    recognised,
    samples,
    wanted,
)
from superpose_lab.figures.bars import bars, contexts, drifting
from superpose_lab.figures.figure import Computed, Figure, Learned, Recognised
from superpose_lab.figures.wanted import FORMS, rotating_runs

BEYOND = "not in the paper"
UPRIGHT = "accuracy on upright images, %"
MEAN = "mean accuracy of all tasks, %"
TEN = (("complex", "complex, 10 contexts"), ("binary", "binary, 10 contexts"))
SELECTED = ("standard", "complex", "binary", "fast", "fast-localmix")

FIGURES: dict[str, Figure] = {
    "table1": Computed(
        "Table 1", "Parameters of a superposed linear layer", counts.draw, counts.table
    ),
    "fig-size": Learned(
        "Figure 2",
        "Permuting MNIST, by the size of the network",
        curves.by_size,
        wanted.size_runs,
        claims=learned.size_claims,
        ylabel="first task, %",
    ),
    "fig-methods": Learned(
        "Figure 3, left",
        "Permuting MNIST, by the form of superposition",
        curves.by_method,
        wanted.method_runs,
        claims=learned.method_claims,
        labels=(("hadamard+projection", "ours (projection)"),),
    ),
    "table-average": Learned(
        "Figure 3, right",
        "Permuting MNIST, mean of the last ten tasks",
        curves.averages,
        wanted.average_runs,
        learned.AVERAGES,
        learned.average_claims,
    ),
    "fig-rotating-samples": Computed(
        "Figure 4 (a)", "Rotating streams", samples.draw, samples.rotating
    ),
    "fig-rotating-fashion": Learned(
        "Figure 4 (b)",
        "Rotating Fashion-MNIST",
        curves.by_method,
        rotating_runs("rotating-fashion", *FORMS),
        learned.TURNING,
        learned.turning_claims,
        UPRIGHT,
    ),
    "fig-rotating-close": Learned(
        "Figure 5, left",
        "Rotating Fashion-MNIST, the forms of superposition close up",
        curves.by_method,
        rotating_runs("rotating-fashion", *FORMS[1:]),
        learned.TURNING,
        learned.close_claims,
        UPRIGHT,
        close_up=True,
    ),
    "fig-rotating-context": Learned(
        "Figure 5, right",
        "Rotating Fashion-MNIST, by how contexts are chosen",
        curves.by_method,
        rotating_runs("rotating-fashion", *SELECTED),
        learned.TURNING,
        learned.selection_claims,
        UPRIGHT,
        TEN,
    ),
    "fig-icifar-samples": Computed(
        "Figure 6 (a)", "The tasks of iCIFAR", samples.draw, samples.incremental
    ),
    "fig-icifar": Learned(
        "Figure 6 (b)",
        "iCIFAR",
        curves.by_size,
        wanted.icifar_runs,
        learned.ICIFAR,
        learned.icifar_claims,
        "CIFAR-10, %",
    ),
    "fig-geometry": Computed(
        "Supplementary Figure 1", "How contexts move a vector", geometry.draw, geometry.table
    ),
    "fig-rotating-mnist": Learned(
        "Supplementary Figure 2",
        "Rotating MNIST",
        curves.by_method,
        rotating_runs("rotating-mnist", *FORMS),
        learned.TURNING,
        learned.turning_claims,
        UPRIGHT,
    ),
    "fig-permuting-2000": Learned(
        "Supplementary Figure 3",
        "Permuting MNIST in large networks",
        curves.by_method,
        wanted.large_runs,
        claims=learned.large_claims,
    ),
    "propositions": Computed(
        "Propositions 1 to 3",
        "Crosstalk and gradients, predicted and measured",
        propositions.draw,
        propositions.table,
    ),
    "recipe": Learned(
        BEYOND,
        "Changes to the paper's method, one at a time",
        curves.changes,
        wanted.recipe_runs,
        learned.CHANGES,
        ylabel=MEAN,
    ),
    "icifar-recipe": Learned(
        BEYOND,
        "Changes to the paper's method in a convolutional network, one at a time",
        curves.changes,
        wanted.icifar_recipe_runs,
        learned.CHANGES,
        ylabel=MEAN,
    ),
    "icifar-ours": Learned(
        BEYOND,
        "Our recipe beside the paper's method, in a convolutional network",
        curves.changes,
        wanted.icifar_our_runs,
        learned.NUMBERS,
        ylabel=MEAN,
    ),
    "ours": Learned(
        BEYOND,
        "Our recipe beside the paper's method",
        curves.changes,
        wanted.our_runs,
        learned.CHANGES,
        ylabel=MEAN,
    ),
    "own-numbers": Learned(
        BEYOND,
        "Private numbers of each task: means, biases, low-rank parts",
        curves.changes,
        wanted.own_runs,
        learned.NUMBERS,
        ylabel=MEAN,
    ),
    "zenke": Learned(
        "Figure 3, right",
        "SI on the protocol that the paper quotes: ten tasks of twenty epochs",
        curves.changes,
        causes.zenke_runs,
        learned.CHANGES,
        causes.zenke_claims,
        MEAN,
    ),
    "released": Learned(
        BEYOND,
        "Large networks, with settings that are not in the paper's text",
        curves.changes,
        causes.released_runs,
        learned.RELEASED,
        ylabel=MEAN,
    ),
    "rates-permuting": Learned(
        BEYOND,
        "Rotation and complex by the learning rate: permuting MNIST",
        curves.by_rate,
        causes.rate_runs,
        learned.RATES,
    ),
    "rates-rotating": Learned(
        BEYOND,
        "Rotation and complex by the learning rate: rotating Fashion-MNIST",
        curves.by_rate,
        causes.turning_rate_runs,
        learned.TURNING_RATES,
        ylabel="upright images, mean of the last turns, %",
    ),
    "icifar-scratch": Learned(
        BEYOND,
        "The limits of superposition in a narrow convolutional network",
        curves.changes,
        causes.scratch_runs,
        learned.FORGOTTEN,
        ylabel=MEAN,
    ),
    "recognise-permuted-10": Recognised(
        BEYOND,
        "The task recognised from one image: ten permuted tasks",
        bars,
        ("permuted-10", "permuted-10-wide"),
        recognised.after_learning,
    ),
    "recognise-permuted-50": Recognised(
        BEYOND,
        "The task recognised from one image: fifty permuted tasks",
        bars,
        ("permuted-50",),
        recognised.after_learning,
    ),
    "recognise-permuted-250": Recognised(
        BEYOND,
        "The task recognised from one image: 250 permuted tasks",
        bars,
        ("permuted-250",),
        recognised.after_learning,
    ),
    "recognise-rotated": Recognised(
        BEYOND,
        "The task recognised from one image: 36 tasks, each turned by 10° more",
        bars,
        ("rotated-36",),
        recognised.after_learning,
    ),
    "recognise-evidence": Recognised(
        BEYOND,
        "The task recognised by different kinds of evidence",
        bars,
        ("permuted-10",),
        recognised.by_evidence,
    ),
    "recognise-doubt": Recognised(
        BEYOND,
        "The task recognised by outputs, with and without training that teaches doubt",
        bars,
        ("doubt",),
        recognised.by_evidence,
    ),
    "recognise-returning": Recognised(
        BEYOND,
        "Contexts over a stream whose unnamed tasks come back",
        contexts,
        ("stream-returning",),
        recognised.while_learning,
    ),
    "recognise-stream": Recognised(
        BEYOND,
        "Contexts over a stream of unnamed permuted tasks",
        contexts,
        ("stream-permuted-10", "stream-permuted-50"),
        recognised.while_learning,
    ),
    "recognise-rotating-fashion": Recognised(
        BEYOND,
        "Rotating Fashion-MNIST, contexts recognised",
        drifting,
        ("stream-rotating-fashion",),
        recognised.while_learning,
    ),
    "recognise-cifar100": Recognised(
        BEYOND,
        "The task recognised on natural images: CIFAR-100 in ten tasks",
        bars,
        ("cifar100-pretrained", "cifar100-scratch"),
        recognised.by_evidence,
    ),
}
