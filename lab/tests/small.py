"""Small settings of experiments, that the tests share."""

from superpose_lab.experiments.settings import Settings


def settings(experiment="permuting-mnist", **given):
    size = {"width": 4} if experiment == "icifar" else {"units": 16}
    small = {"dataset": "digits", "steps": 6, "batch_size": 32, **size}
    return Settings(experiment=experiment, **small | given)
