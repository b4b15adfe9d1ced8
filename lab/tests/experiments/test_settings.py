"""The paper's experiments: their streams, networks, defaults, and what does not fit."""

import copy
import types

import pytest
import torch
from small import settings

from superpose import SuperposeError
from superpose.learning import NETWORKS, Quiet
from superpose_lab.experiments.jobs import Job, run
from superpose_lab.experiments.settings import EXPERIMENTS, Settings, resnet


def outcome(*arguments, **given):
    return run(Job(settings(*arguments, **given), None, ""), Quiet())


@pytest.mark.parametrize("method", [name for name in NETWORKS if not name.startswith("fast")])
def test_permuting_with_every_method(method):
    found = outcome(method=method, tasks=2)
    assert found.result["tasks"] == 2
    plain = 64 * 16 + 16 * 16 + 16 * 10
    stored = found.result["numbers"]["stored"]
    more = {"separate": 2 * plain, "multihead": plain + 2 * 160, "complex": 2 * plain}
    if method in ("multihead", "onepower"):
        assert stored >= plain
    else:
        assert stored == more.get(method, plain)


def test_rotating_has_ten_contexts_and_fast_has_one_for_each_step_of_a_turn():
    ten = outcome("rotating-mnist", steps=30, period=20, evaluate_every=10)
    assert len(ten.model.tasks) == 10
    assert [step for step, _ in ten.result["first"]] == [10, 20, 30]
    for method in ("fast", "fast-localmix"):
        fast = outcome("rotating-mnist", method=method, steps=30, period=20)
        assert len(fast.model.tasks) == 20
        assert next(fast.model.parameters()).is_complex()


@pytest.mark.parametrize("method", ["standard", "binary", "multihead", "separate", "standard+si"])
def test_icifar_has_the_papers_network(method):
    found = outcome("icifar", method=method, tasks=2, steps=2)
    names = list(found.model.state_dict())
    norms = [name for name in names if "norm" in name]
    assert norms == [], "no scales, no statistics"
    if method == "binary":
        assert "stem.weight" not in found.model.summary().superposed
        assert "head.weight" in found.model.summary().superposed
    if method == "multihead":
        assert len(found.model.private_parameters(0)) in (1, 2)


@pytest.mark.parametrize("method", ["binary", "multihead"])
@pytest.mark.parametrize("stem", ["shared", "superposed", "private"])
def test_the_stem_of_icifar_is_kept_as_it_is_said(method, stem):
    model = outcome("icifar", method=method, stem=stem, tasks=2, steps=2).model
    own = {name: tensor.shape for name, tensor in model.private_tensors(0).items()}
    stems = {"stem.weight": model.stem.weight.shape} if stem == "private" else {}
    heads = {f"head.{n}": t.shape for n, t in model.head.named_parameters(recurse=False)}
    assert own == stems | (heads if method == "multihead" else {})
    assert ("stem.weight" in model.summary().superposed) == (stem == "superposed")
    assert ("stem.weight" in model.summary().shared) == (stem == "shared")


@pytest.mark.parametrize("conv", ["kernel", "channel"])
def test_the_convolutions_of_icifar_are_bound_as_it_is_said(conv):
    model = outcome("icifar", conv=conv, tasks=2, steps=2).model
    impulses = torch.zeros(4, 4, 3, 3)  # the answer to an impulse is the kernel, flipped
    impulses[range(4), range(4), 1, 1] = 1
    kernel = model.state_dict()["blocks.0.conv1.weight"].transpose(0, 1).flip(-1, -2)
    with torch.no_grad(), model.task(1):
        signs = model.blocks[0].conv1(impulses).sign() * kernel.sign()
    assert (signs == signs[:, :1, :1, :1]).all() == (conv == "channel"), "one for each channel"
    assert (signs < 0).any()


@pytest.mark.parametrize("width", [4, 8, 16])
def test_the_gradients_of_a_narrow_resnet_are_right(width):
    """Channels last they are not, or it crashes, where a convolution has less than 16 channels."""
    torch.manual_seed(0)
    net = resnet(
        types.SimpleNamespace(width=width),
        types.SimpleNamespace(classes=10, input_shape=(3, 32, 32)),
    )
    exact = copy.deepcopy(net).to(memory_format=torch.contiguous_format).double()
    x = torch.randn(16, 3, 32, 32)
    net(x).square().sum().backward()
    exact(x.double()).square().sum().backward()
    for (name, own), expected in zip(net.named_parameters(), exact.parameters(), strict=True):
        error = (own.grad - expected.grad).norm() / expected.grad.norm()
        assert error < 0.02, name  # single precision, and ReLUs at zero


@pytest.mark.parametrize(
    ("experiment", "given", "message"),
    [
        ("permuting-mnist", {"method": "fast"}, "repeats, and permuting-mnist does not"),
        ("icifar", {"method": "fast-localmix"}, "repeats, and icifar does not"),
        (
            "icifar",
            {"method": "standard", "stem": "private"},
            "not told the task, so no layer of it",
        ),
        ("rotating-mnist", {"method": "si"}, "si protects earlier tasks, and rotating"),
        ("rotating-mnist", {"method": "binary+ewc"}, "ewc protects earlier tasks"),
        ("permuting-mnist", {"method": "binary+"}, "unknown method 'binary\\+'"),
        ("permuting-mnist", {"units": 0}, "units=0: must be at least 1"),
        ("permuting-mnist", {"hidden": -1}, "hidden=-1: must be at least 1"),
        ("permuting-mnist", {"threads": 0}, "threads=0: must be at least 1"),
        ("icifar", {"width": 0}, "width=0: must be at least 1"),
        ("icifar", {"tasks": 0}, "tasks=0: must be at least 1"),
        ("icifar", {"dataset": "digits", "tasks": 11}, "tasks=11: digits has 10 classes, enough"),
        ("permuting-mnist", {"gain": 0.0}, "gain=0.0: must be above 0"),
        ("permuting-mnist", {"stem": "private"}, "stem=private: permuting-mnist has no stem"),
        ("permuting-mnist", {"conv": "channel"}, "conv=channel: permuting-mnist has no conv"),
        ("rotating-mnist", {"width": 8}, "width=8: rotating-mnist has no width"),
        ("icifar", {"units": 8}, "units=8: icifar has no units"),
        ("rotating-mnist", {"tasks": 2}, "a rotating stream is one task"),
        ("permuting-mnist", {"tasks": 0}, "tasks=0: must be at least 1"),
        (
            "permuting-mnist",
            {"method": "standard", "learnable": True},
            "nothing superposed that learnable",
        ),
    ],
)
def test_what_does_not_fit_is_said(experiment, given, message):
    with pytest.raises(SuperposeError, match=message):
        outcome(experiment, **given)


def test_the_papers_settings_are_the_defaults():
    complete = EXPERIMENTS["permuting-mnist"].complete(Settings(experiment="permuting-mnist"))
    assert (complete.tasks, complete.steps, complete.batch_size) == (50, 1000, 128)
    assert (complete.optimiser, complete.lr, complete.hidden) == ("rmsprop", 1e-4, 2)
    incremental = EXPERIMENTS["icifar"].complete(Settings(experiment="icifar"))
    assert (incremental.tasks, incremental.steps, incremental.lr) == (5, 20000, 1e-3)


def test_contexts_can_be_learned():
    found = outcome(learnable=True, tasks=2, steps=3)
    assert found.result["numbers"]["private_per_task"] == 64 + 16 + 16
