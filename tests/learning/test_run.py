"""`superpose run` and `superpose demo`, and what a person sees of them."""

import copy
import io
import json
import multiprocessing
import os
import shlex
import signal
import sys
import types

import pytest
import torch
from rich.console import Console

from superpose.cli import main
from superpose.cli.demo import report
from superpose.errors import SuperposeError
from superpose.experiments import demo
from superpose.experiments.run import Job, run, side_by_side, spread
from superpose.experiments.settings import EXPERIMENTS, Settings, resnet
from superpose.learning import NETWORKS, Interrupted, Lines, LiveTable, Progress, Quiet
from superpose.learning import display as displays

SMALL = ["--dataset", "digits", "--units", "16", "--tasks", "2", "--steps", "12"]


def settings(experiment="permuting-mnist", **given):
    size = {"width": 4} if experiment == "icifar" else {"units": 16}
    small = {"dataset": "digits", "steps": 6, "batch_size": 32, **size}
    return Settings(experiment=experiment, **small | given)


def outcome(*arguments, **given):
    return run(Job(settings(*arguments, **given), None, ""), Quiet())


def test_json_is_all_that_is_printed(tmp_path, capsys):
    main(["run", "permuting-mnist", *SMALL, "--out", str(tmp_path), "--json"])
    printed, errors = capsys.readouterr()
    result = json.loads(printed)
    assert errors == ""
    assert result["steps"] == 24
    assert result["timings"]["seconds"] > 0
    assert json.loads((tmp_path / "result.json").read_text()).items() <= result.items()
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["about"]["lr"] == 1e-4
    assert config["stream"]["dataset"]["name"] == "digits"


def test_a_person_sees_lines_and_a_table(tmp_path, capsys):
    main(["run", "permuting-mnist", *SMALL, "--method", "si", "--out", str(tmp_path / "run")])
    printed = capsys.readouterr().out
    assert "si: task 2/2, step 24/24, loss" in printed
    assert "mean all" in printed
    assert "numbers stored" in printed
    main(["run", "permuting-mnist", *SMALL, "--out", str(tmp_path / "quiet"), "--quiet"])
    quiet = capsys.readouterr().out
    assert "step" not in quiet
    assert "mean all" in quiet


def test_an_error_is_one_sentence_and_exit_code_one(tmp_path, capsys):
    call = ["run", "permuting-mnist", *SMALL, "--out", str(tmp_path), "--quiet"]
    main(call)
    for extra, message in (
        ([], "holds a run already: add --resume"),
        (["--resume", "--seed", "3"], "was started with seed=0, not 3"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main([*call, *extra])
        assert stopped.value.code == 1
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["run", "permuting-mnist", *SMALL, "--resume"])
    assert stopped.value.code == 1
    assert "--resume needs --out" in capsys.readouterr().err


def test_divergence_is_an_error(tmp_path, capsys):
    options = ["--optimiser", "sgd", "--lr", "1e9", "--out", str(tmp_path), "--quiet"]
    with pytest.raises(SystemExit) as stopped:
        main(["run", "permuting-mnist", *SMALL, *options])
    assert stopped.value.code == 1
    assert "learning broke down at step 12" in capsys.readouterr().err
    assert not (tmp_path / "result.json").exists()


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    call = ["run", "permuting-mnist", *SMALL, "--method", "binary", "--evaluate-every", "5"]

    class PressesCtrlC(Quiet):
        def show(self, progress):
            if progress.step == 15:
                os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(displays, "for_terminal", lambda *_, **__: PressesCtrlC())
        with pytest.raises(SystemExit) as stopped:
            main([*call, "--out", str(tmp_path / "stopped")])
    assert stopped.value.code == 130
    message = capsys.readouterr().err
    assert "stopped after 15 of 24 steps" in message
    command = shlex.split(message.splitlines()[-1])
    assert command[:2] == ["superpose", "run"]
    main([*command[1:], "--quiet"])
    main([*call, "--out", str(tmp_path / "whole"), "--quiet"])
    for name in ("result.json", "metrics.jsonl"):
        whole, stopped = (tmp_path / each / name for each in ("whole", "stopped"))
        assert whole.read_bytes() == stopped.read_bytes()


def test_seeds_side_by_side_are_the_runs_one_by_one(tmp_path, capsys):
    call = ["run", "permuting-mnist", *SMALL, "--json"]
    main([*call, "--seeds", "2", "--jobs", "2", "--out", str(tmp_path / "both")])
    result = json.loads(capsys.readouterr().out)
    values = []
    for seed in (0, 1):
        main([*call, "--seed", str(seed), "--out", str(tmp_path / str(seed))])
        alone = (tmp_path / str(seed) / "result.json").read_bytes()
        assert alone == (tmp_path / "both" / f"seed-{seed}" / "result.json").read_bytes()
        values.append(json.loads(alone)["mean_all"])
    assert values[0] != values[1]
    mean = sum(values) / 2
    assert result["mean_all"]["mean"] == pytest.approx(mean)
    assert result["mean_all"]["deviation"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert result["seeds"] == [0, 1]
    assert json.loads((tmp_path / "both" / "result.json").read_text()).items() <= result.items()


def test_the_error_of_one_seed_is_that_of_all(tmp_path):
    jobs = [
        Job(settings(tasks=2, seed=seed, method=name), tmp_path / str(seed), str(seed))
        for seed, name in enumerate(["binary", "bynary"])
    ]
    with pytest.raises(SuperposeError, match="unknown method 'bynary'"):
        side_by_side(jobs, 1, Quiet())


def test_an_error_can_wait_until_the_others_have_ended(tmp_path):
    jobs = [
        Job(settings(tasks=2, seed=seed, method=name), tmp_path / str(seed), str(seed))
        for seed, name in enumerate(["bynary", "binary"])
    ]
    with pytest.raises(SuperposeError, match="unknown method 'bynary'"):
        side_by_side(jobs, 1, Quiet(), keep_going=True)
    assert (tmp_path / "1" / "result.json").exists()


def test_the_deviation_is_that_of_a_sample():
    found = spread([{"mean_all": value} for value in (0.1, 0.2, 0.3)])["mean_all"]
    assert found["mean"] == pytest.approx(0.2)
    assert found["deviation"] == pytest.approx(0.1)


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
    own = [tensor.shape for tensor in model.private_parameters(0)]
    stems = [model.stem.weight.shape] if stem == "private" else []
    heads = [tensor.shape for tensor in model.head.parameters(recurse=False)]
    assert own == stems + (heads if method == "multihead" else [])
    assert ("stem.weight" in model.summary().superposed) == (stem == "superposed")
    assert ("stem.weight" in model.summary().shared) == (stem == "shared")


@pytest.mark.parametrize("conv", ["kernel", "channel"])
def test_the_convolutions_of_icifar_are_bound_as_it_is_said(conv):
    model = outcome("icifar", conv=conv, tasks=2, steps=2).model
    impulses = torch.zeros(4, 4, 3, 3)  # the answer to an impulse is the kernel, flipped
    impulses[range(4), range(4), 1, 1] = 1
    kernel = model.state_dict()["blocks.0.conv1.weight"].transpose(0, 1).flip(-1, -2)
    with torch.no_grad():
        signs = model.blocks[0].conv1(impulses, task=1).sign() * kernel.sign()
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
        ("permuting-mnist", {"method": "fast"}, "tasks of permuting-mnist do not come again"),
        ("icifar", {"method": "fast-localmix"}, "tasks of icifar do not come again"),
        (
            "icifar",
            {"method": "standard", "stem": "private"},
            "not told the task, so no layer of it",
        ),
        ("rotating-mnist", {"method": "si"}, "si holds what earlier tasks learned, and rotating"),
        ("rotating-mnist", {"method": "binary+ewc"}, "ewc holds what earlier tasks learned"),
        ("permuting-mnist", {"method": "binary+"}, "unknown method 'binary\\+'"),
        ("permuting-mnist", {"units": 0}, "units=0: it is at least 1"),
        ("permuting-mnist", {"hidden": -1}, "hidden=-1: it is at least 1"),
        ("permuting-mnist", {"threads": 0}, "threads=0: it is at least 1"),
        ("icifar", {"width": 0}, "width=0: it is at least 1"),
        ("icifar", {"tasks": 0}, "tasks=0: it is at least 1"),
        ("icifar", {"dataset": "digits", "tasks": 11}, "tasks=11: digits has 10 classes to share"),
        ("permuting-mnist", {"gain": 0.0}, "gain=0.0: it is above 0"),
        ("permuting-mnist", {"stem": "private"}, "stem=private: permuting-mnist has no stem"),
        ("permuting-mnist", {"conv": "channel"}, "conv=channel: permuting-mnist has no conv"),
        ("rotating-mnist", {"width": 8}, "width=8: rotating-mnist has no width"),
        ("icifar", {"units": 8}, "units=8: icifar has no units"),
        ("rotating-mnist", {"tasks": 2}, "a rotating stream is one task"),
        ("permuting-mnist", {"tasks": 0}, "tasks=0: it is at least 1"),
        ("permuting-mnist", {"method": "standard", "learnable": True}, "no numbers to learn"),
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


PROGRESS = Progress("binary", 2, 10, 3000, 10000, 0.213, 0.9507, 0.9612, 75.0, evaluated=True)


def test_the_live_table_tells_how_far_each_run_is():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with LiveTable(["binary", "standard"], console) as table:
        table.show(PROGRESS)
    drawn = console.file.getvalue()
    for text in ("binary", "3/10", "3,000", "0.213", "95.1 %", "96.1 %", "1:15", "standard"):
        assert text in drawn


def test_lines_are_not_too_many(capsys):
    with Lines(interval=60) as lines:
        lines.show(PROGRESS)
        lines.show(PROGRESS)
        lines.show(Progress("other", 0, 1, 5, 9, 0.1, None, None, 1.0))
    assert capsys.readouterr().out.count("\n") == 1


def test_tensorboard_is_asked_for_by_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    job = Job(settings(tasks=2), tmp_path, "", {"tensorboard": True})
    with pytest.raises(SuperposeError, match=r"pip install 'superpose\[tensorboard\]'"):
        run(job, Quiet())
    assert not any(tmp_path.iterdir())


def test_tensorboard_is_told_every_record(tmp_path, monkeypatch):
    told = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            told.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            told.append((name, value, step))

        def close(self):
            told.append("closed")

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    result = run(Job(settings(tasks=2), tmp_path, "", {"tensorboard": True}), Quiet()).result
    assert told[0] == (str(tmp_path / "tensorboard"), None)
    assert ("accuracy/task 0", result["first_task"], 12) in told
    assert ("loss", result["loss"][0][1], 6) in told
    assert told[-1] == "closed"


def test_the_demo_compares_three_methods_and_draws_them(tmp_path, capsys):
    small = ["--dataset", "digits", "--tasks", "2", "--steps", "60", "--units", "32"]
    main(["demo", *small, "--jobs", "1", "--out", str(tmp_path), "--json"])
    results = json.loads(capsys.readouterr().out)["results"]
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    for name in ("standard", "binary", "hadamard"):
        saved = json.loads((tmp_path / name / "result.json").read_text())
        assert saved.items() <= results[name].items()
        assert saved["method"] == name
    report(results, tmp_path, quiet=False)
    printed = capsys.readouterr().out
    for name, result in results.items():
        row = next(line for line in printed.splitlines() if f" {name} " in line)
        assert f"{100 * result['mean_all']:.1f} %" in row
    assert "What to try next" in printed


def test_a_demo_that_was_stopped_goes_on_as_it_says(tmp_path, capsys, monkeypatch):
    def stop(*_):
        raise Interrupted("stopped")

    call = ["demo", "--dataset", "digits", "--tasks", "2", "--steps", "12", "--units", "16"]
    with monkeypatch.context() as patch:
        patch.setattr(demo, "run", stop)
        with pytest.raises(SystemExit):
            main([*call, "--jobs", "1", "--out", str(tmp_path / "a folder")])
    command = shlex.split(capsys.readouterr().err.splitlines()[-1])
    assert command[0] == "superpose"
    main([*command[1:], "--json"])
    result = json.loads(capsys.readouterr().out)
    assert (result["dataset"], result["out"]) == ("digits", str(tmp_path / "a folder"))
    assert result["results"]["binary"]["steps"] == 24


def test_a_demo_to_go_on_with_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["demo", "--resume"])
    assert "--resume needs --out DIR" in capsys.readouterr().err


def test_the_demo_says_which_data_it_uses(monkeypatch):
    def offline(name, data_dir):
        raise SuperposeError("mnist could not be fetched: nowhere")

    monkeypatch.setattr(demo, "load", offline)
    name, sentence = demo.choose_dataset(None)
    assert name == "digits"
    assert "mnist could not be fetched" in sentence
    monkeypatch.setattr(demo, "load", lambda name, data_dir: None)
    assert demo.choose_dataset(None)[0] == "mnist"


def test_a_demo_without_matplotlib_says_so_before_it_learns(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit):
        main(["demo", "--dataset", "digits", "--tasks", "2", "--out", str(tmp_path / "demo")])
    assert "figures need matplotlib" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


def test_several_seeds_do_not_take_the_place_of_one(tmp_path, capsys):
    main(["run", "permuting-mnist", *SMALL, "--out", str(tmp_path), "--quiet"])
    before = (tmp_path / "result.json").read_bytes()
    with pytest.raises(SystemExit):
        main(["run", "permuting-mnist", *SMALL, "--seeds", "2", "--out", str(tmp_path), "--quiet"])
    assert "holds the run of one seed" in capsys.readouterr().err
    assert (tmp_path / "result.json").read_bytes() == before


def test_one_seed_does_not_take_the_place_of_several(tmp_path, capsys):
    several = ["run", "permuting-mnist", *SMALL, "--out", str(tmp_path), "--quiet"]
    main([*several, "--seeds", "2"])
    before = (tmp_path / "result.json").read_bytes()
    for resume in ([], ["--resume"]):
        with pytest.raises(SystemExit):
            main([*several, *resume])
        assert "a result that is not one run's" in capsys.readouterr().err
    assert (tmp_path / "result.json").read_bytes() == before


def test_a_worker_that_is_killed_is_told(tmp_path):
    class Kills(Quiet):
        def show(self, progress):
            for child in multiprocessing.active_children():
                child.kill()

    long = settings(tasks=2, steps=10**5, evaluate_every=5)
    with pytest.raises(SuperposeError, match=r"was killed, .* go on with the same command"):
        side_by_side([Job(long, tmp_path / "a", "a")], 1, Kills())
    with pytest.raises(SuperposeError, match="jobs=0: it is at least 1"):
        side_by_side([Job(long, tmp_path / "b", "b")], 0, Quiet())


def test_ctrl_c_pressed_twice_stops_runs_side_by_side(tmp_path):
    class Presses(Quiet):
        left = 2

        def show(self, progress):
            if self.left:
                self.left -= 1
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    long = settings(tasks=2, steps=10**5, evaluate_every=5)
    jobs = [Job(long, tmp_path / name, name) for name in "ab"]
    with pytest.raises(Interrupted, match="stopped"):
        side_by_side(jobs, 1, Presses())
    assert signal.getsignal(signal.SIGINT) is before
    assert (tmp_path / "a" / "checkpoint.pt").exists(), "the one that ran is saved"
    assert not (tmp_path / "b").exists(), "the other one was never started"
