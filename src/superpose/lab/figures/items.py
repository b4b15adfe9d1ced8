"""The list of figures and tables."""

from superpose.lab.figures import (
    accuracy,
    counts,
    curves,
    geometry,
    propositions,
    recognition,
    samples,
)
from superpose.lab.figures.item import Computed, Item, Learned, Recognised
from superpose.lab.figures.recognition_pictures import bars, contexts, drifting
from superpose.lab.figures.variants import (
    FORMS,
    average_runs,
    icifar_recipe_runs,
    icifar_runs,
    large_runs,
    method_runs,
    our_runs,
    recipe_runs,
    rotating_runs,
    size_runs,
)

UPRIGHT = "accuracy on upright images, %"
MEAN = "mean accuracy of all tasks, %"
TEN = (("complex", "complex, 10 contexts"), ("binary", "binary, 10 contexts"))

ITEMS: dict[str, Item] = {
    "table1": Computed(
        "Table 1",
        "Parameters of a superposed linear layer",
        counts.draw,
        lambda scale, data_dir: counts.table(scale),
    ),
    "fig-size": Learned(
        "Figure 2",
        "Permuting MNIST, by the size of the network",
        curves.by_size,
        size_runs,
        accuracy.size,
        "first task, %",
    ),
    "fig-methods": Learned(
        "Figure 3, left",
        "Permuting MNIST, by the form of superposition",
        curves.by_method,
        method_runs,
        accuracy.methods,
        labels=(("hadamard+projection", "ours (projection)"),),
    ),
    "table-average": Learned(
        "Figure 3, right",
        "Permuting MNIST, mean of the last ten tasks",
        curves.averages,
        average_runs,
        accuracy.average,
    ),
    "fig-rotating-samples": Computed(
        "Figure 4 (a)", "Rotating streams", samples.draw, samples.rotating
    ),
    "fig-rotating-fashion": Learned(
        "Figure 4 (b)",
        "Rotating Fashion-MNIST",
        curves.by_method,
        rotating_runs("rotating-fashion", *FORMS),
        accuracy.turning,
        UPRIGHT,
    ),
    "fig-rotating-close": Learned(
        "Figure 5, left",
        "Rotating Fashion-MNIST, the forms of superposition close up",
        curves.by_method,
        rotating_runs("rotating-fashion", *FORMS[1:]),
        accuracy.close_up,
        UPRIGHT,
        close_up=True,
    ),
    "fig-rotating-context": Learned(
        "Figure 5, right",
        "Rotating Fashion-MNIST, by how contexts are chosen",
        curves.by_method,
        rotating_runs("rotating-fashion", "standard", "complex", "binary", "fast", "fast-localmix"),
        accuracy.selection,
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
        icifar_runs,
        accuracy.icifar,
        "CIFAR-10, %",
    ),
    "fig-geometry": Computed(
        "Supplementary Figure 1",
        "How contexts move a vector",
        geometry.draw,
        lambda scale, data_dir: geometry.table(),
    ),
    "fig-rotating-mnist": Learned(
        "Supplementary Figure 2",
        "Rotating MNIST",
        curves.by_method,
        rotating_runs("rotating-mnist", *FORMS),
        accuracy.turning,
        UPRIGHT,
    ),
    "fig-permuting-2000": Learned(
        "Supplementary Figure 3",
        "Permuting MNIST in large networks",
        curves.by_method,
        large_runs,
        accuracy.large,
    ),
    "propositions": Computed(
        "Propositions 1 to 3",
        "Crosstalk and gradients, predicted and measured",
        propositions.draw,
        lambda scale, data_dir: propositions.table(scale),
    ),
    "recipe": Learned(
        "not in the paper",
        "Changes to the paper's method, one at a time",
        curves.changes,
        recipe_runs,
        accuracy.recipe,
        MEAN,
    ),
    "icifar-recipe": Learned(
        "not in the paper",
        "Changes to the paper's method in a convolutional network, one at a time",
        curves.changes,
        icifar_recipe_runs,
        accuracy.recipe,
        MEAN,
    ),
    "ours": Learned(
        "not in the paper",
        "Our recipe beside the paper's method",
        curves.changes,
        our_runs,
        accuracy.ours,
        MEAN,
    ),
    "recognise-permuted-10": Recognised(
        "not in the paper",
        "The task found from one image: ten permuted tasks",
        bars,
        ("permuted-10", "permuted-10-wide"),
        recognition.after_learning,
    ),
    "recognise-permuted-50": Recognised(
        "not in the paper",
        "The task found from one image: fifty permuted tasks",
        bars,
        ("permuted-50",),
        recognition.after_learning,
    ),
    "recognise-permuted-250": Recognised(
        "not in the paper",
        "The task found from one image: 250 permuted tasks",
        bars,
        ("permuted-250",),
        recognition.after_learning,
    ),
    "recognise-rotated": Recognised(
        "not in the paper",
        "The task found from one image: 36 tasks, each turned by 10° more",
        bars,
        ("rotated-36",),
        recognition.after_learning,
    ),
    "recognise-evidence": Recognised(
        "not in the paper",
        "The task found by different kinds of evidence",
        bars,
        ("permuted-10",),
        recognition.by_evidence,
    ),
    "recognise-doubt": Recognised(
        "not in the paper",
        "The task found by outputs, with and without training that teaches doubt",
        bars,
        ("doubt",),
        recognition.doubting,
    ),
    "recognise-returning": Recognised(
        "not in the paper",
        "Contexts found over a stream whose tasks come back",
        contexts,
        ("stream-returning",),
        recognition.while_learning,
    ),
    "recognise-stream": Recognised(
        "not in the paper",
        "Contexts found over a stream of permuted tasks",
        contexts,
        ("stream-permuted-10", "stream-permuted-50"),
        recognition.while_learning,
    ),
    "recognise-rotating-fashion": Recognised(
        "not in the paper",
        "Rotating Fashion-MNIST, contexts found",
        drifting,
        ("stream-rotating-fashion",),
        recognition.while_learning,
    ),
    "recognise-cifar100": Recognised(
        "not in the paper",
        "The task found on natural images: CIFAR-100 in ten tasks",
        bars,
        ("cifar100-pretrained", "cifar100-scratch"),
        recognition.natural_images,
    ),
}
