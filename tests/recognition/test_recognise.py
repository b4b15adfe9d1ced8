"""Tasks found by their inputs and by their outputs."""

import copy

import pytest
import torch
from torch import nn

import superpose as sp
from superpose.recognition import Outputs, Statistics

NAMES = ["a", "b", "c", "d"]


def mlp():
    torch.manual_seed(0)
    first, second, last = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 5)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), last)


SHIFTS = dict(zip(NAMES, torch.randn(4, 12, generator=torch.manual_seed(5)) * 2, strict=True))


def inputs(name, rows=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 12, generator=generator) + SHIFTS[name]


def remembering(**options):
    model = sp.superpose(mlp(), "hadamard", tasks=NAMES, **options)
    for name in NAMES:
        model.remember(inputs(name), task=name)
    return model


def mixed(rows=20):
    """Rows of all tasks, interleaved, and their tasks."""
    x = torch.stack([inputs(name, rows, seed=9) for name in NAMES], 1).flatten(0, 1)
    return x, NAMES * rows


def share_right(found, names):
    return sum(map(str.__eq__, found.task, names)) / len(names)


def test_rows_of_many_tasks_are_told_apart_by_name():
    model, (x, names) = remembering(), mixed()
    found = model.recognise(x)
    assert share_right(found, names) > 0.97
    assert found.tasks == NAMES
    assert found.scores.shape == (80, 4)
    assert found.evidence == "inputs"
    best = found.scores.sort(1, descending=True).values
    torch.testing.assert_close(found.margin, best[:, 0] - best[:, 1])
    assert [NAMES[i] for i in found.scores.argmax(1)] == found.task
    torch.testing.assert_close(model(x, task=found.task), model(x, task=list(found.task)))


def test_a_row_is_recognised_as_if_it_were_alone():
    model, (x, _) = remembering(), mixed()
    found = model.recognise(x)
    for row in (0, 7, 33):
        alone = model.recognise(x[row : row + 1])
        torch.testing.assert_close(alone.scores[0], found.scores[row])
        assert alone.task == [found.task[row]]


def test_together_the_evidence_of_rows_adds_up():
    model = remembering()
    near = {name: SHIFTS["a"] + (SHIFTS[name] - SHIFTS["a"]) * 0.52 for name in NAMES[1:]}
    x = torch.randn(400, 12, generator=torch.manual_seed(1)) * 3 + near["b"]
    alone, all_rows = model.recognise(x), model.recognise(x, together=True)
    assert len(set(alone.task)) > 1  # one by one it is anybody's guess
    assert all_rows.task == "b"
    torch.testing.assert_close(all_rows.scores, alone.scores.sum(0))
    assert all_rows.margin.shape == ()
    assert model(x, task=all_rows.task).shape == (400, 5)


def test_among_restricts_the_tasks_and_keeps_their_order():
    model, (x, _) = remembering(), mixed()
    found = model.recognise(x, among=["d", "b"])
    assert found.tasks == ["d", "b"]
    assert set(found.task) == {"b", "d"}
    every = model.recognise(x)
    torch.testing.assert_close(found.scores, every.scores[:, [3, 1]])


def test_numbered_tasks_are_found_by_number():
    model = sp.superpose(mlp(), tasks=3)
    for number, name in enumerate("abc"):
        model.remember(inputs(name), task=number)
    assert model.recognise(inputs("c", 30, seed=3), together=True).task == 2


def test_rows_of_no_task_are_not_known():
    model, (x, _) = remembering(), mixed()
    known = model.recognise(x)
    assert known.known.double().mean() > 0.95
    strange = model.recognise(x[:, torch.arange(11, -1, -1)] * 3)
    assert strange.known.double().mean() < 0.2
    assert strange.surprise.min() > known.surprise.mean()
    assert model.recognise(inputs("b", seed=4), together=True).known
    assert not model.recognise(inputs("b", seed=4) * 4, together=True).known


def learned(**options):
    """A model that learns which of 12 inputs is largest, in tasks whose inputs are shifted."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 3))
    model = sp.superpose(net, "hadamard", tasks=NAMES, **options)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(400):
        name = NAMES[step % 4]
        x = inputs(name, 32, seed=step)
        loss = nn.functional.cross_entropy(model(x, task=name), x[:, :3].argmax(1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


def test_statistics_are_kept_while_learning():
    model, (x, names) = learned(recognise=True), mixed()
    assert model.recognisable == NAMES
    assert share_right(model.recognise(x), names) > 0.97
    own = model.private_tensors("b")
    every = torch.cat([inputs("b", 32, seed=step) for step in range(1, 400, 4)])
    torch.testing.assert_close(own["0.weight_input_mean"], every.mean(0), rtol=1e-4, atol=1e-5)
    assert own["0.weight_input_rows"] == 3200
    model.eval()(x, task="b")
    assert own["0.weight_input_rows"] == 3200


def test_means_of_centred_layers_are_enough_but_cannot_tell_the_unknown():
    model, (x, names) = learned(centre="task"), mixed()
    found = model.recognise(x)
    assert found.evidence == "inputs"
    assert found.known is None
    assert share_right(found, names) > 0.97
    means = torch.stack([model.private_tensors(name)["0.weight_mean"] for name in NAMES])
    expected = -(x.unsqueeze(1) - means).double().square().sum(2)
    torch.testing.assert_close(found.scores, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("evidence", "measure"), [("outputs", None), ("entropy", "entropy")])
def test_outputs_are_compared_in_every_task(evidence, measure):
    model, (x, _) = learned(), mixed(5)
    found = model.recognise(x, evidence=evidence)
    for column, name in enumerate(NAMES):
        logits = model(x, task=name)
        if measure == "entropy":
            expected = -torch.distributions.Categorical(logits=logits).entropy()
        else:
            expected = logits.logsumexp(1)
        torch.testing.assert_close(found.scores[:, column], expected)
    assert found.known is None


def test_without_statistics_it_goes_by_outputs_and_says_so():
    assert learned().recognise(mixed(3)[0]).evidence == "outputs"


def test_outputs_of_many_rows_take_a_pass_for_each_task_and_of_few_rows_one():
    model, (x, _) = learned(), mixed()
    asked = []
    handle = model.register_forward_pre_hook(
        lambda module, given, named: asked.append(named["task"]), with_kwargs=True
    )
    many = model.recognise(x, evidence="outputs")
    assert asked == NAMES
    asked.clear()
    few = model.recognise(x[:3], evidence="outputs")
    assert asked == [NAMES * 3]
    handle.remove()
    torch.testing.assert_close(few.scores, many.scores[:3])


@pytest.mark.parametrize("evidence", ["outputs", "inputs"])
@pytest.mark.parametrize("rows", [1, 40])
def test_names_may_be_numbers_of_other_tasks(evidence, rows):
    named = sp.superpose(mlp(), "hadamard", tasks=["a", "b", "c"], recognise="3")
    numbered = sp.superpose(mlp(), "hadamard", tasks=[2, 0, 1], recognise="3")
    numbered.load_state_dict(named.state_dict())
    for model, names in ((named, ["a", "b", "c"]), (numbered, [2, 0, 1])):
        for name, place in zip(names, "abc", strict=True):
            model.private_parameters(name)[0].data += 0.1  # it has learned
            model.remember(inputs(place), task=name)
    x = inputs("c", rows)
    expected = named.recognise(x, evidence=evidence)
    found = numbered.recognise(x, evidence=evidence)
    torch.testing.assert_close(found.scores, expected.scores)
    assert found.task == [{"a": 2, "b": 0, "c": 1}[name] for name in expected.task]


@pytest.mark.parametrize("rows", [3, 20])
def test_outputs_are_found_in_chunks_of_rows(monkeypatch, rows):
    model, x = learned(), mixed(5)[0][:rows]
    expected = model.recognise(x, evidence="outputs").scores
    monkeypatch.setattr("superpose.recognition.outputs.AT_ONCE", 7)
    torch.testing.assert_close(model.recognise(x, evidence="outputs").scores, expected)


def test_a_deep_layer_is_run_up_to_in_every_task():
    model = learned()
    sp.recognition.keep(model, Statistics("2", rank=4))
    for name in NAMES:
        model.remember(inputs(name), task=name)
    x, names = mixed()
    found = model.recognise(x)
    assert share_right(found, names) > 0.9
    assert model.summary().added == {"statistics of inputs": 1}
    with torch.no_grad(), model.task("c"):
        hidden = model[0](inputs("c")).relu()
    own = model.private_tensors("c")["2.weight_input_mean"]
    torch.testing.assert_close(own, hidden.mean(0), rtol=1e-4, atol=1e-5)


def test_the_first_layer_is_asked_once_and_nothing_else_is_run(monkeypatch):
    model, (x, _) = remembering(), mixed()
    passes = []
    original = sp.Superposed.run

    def counting(self, *arguments):
        passes.append(arguments)
        return original(self, *arguments)

    monkeypatch.setattr(sp.Superposed, "run", counting)
    model.recognise(x)
    assert len(passes) == 1


def test_recognising_changes_neither_the_model_nor_its_modes():
    model, (x, _) = learned(recognise=True), mixed()
    model.train()
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    for evidence in ("inputs", "outputs", "entropy"):
        model.recognise(x, evidence=evidence)
    assert model.training
    assert not model[1].training
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_statistics_are_saved_copied_counted_and_removed(tmp_path):
    model, (x, _) = remembering(), mixed()
    expected = model.recognise(x)
    plain = sp.superpose(mlp(), "hadamard", tasks=NAMES)
    more = model.cost().private_per_task - plain.cost().private_per_task
    assert more == 2 * 12 + 3
    assert model.cost().private == 4 * (2 * 12 + 3)
    sp.save(model, tmp_path / "m.safetensors")
    torch.manual_seed(3)
    for same in (sp.load(tmp_path / "m.safetensors", mlp()), copy.deepcopy(model)):
        found = same.recognise(x)
        torch.testing.assert_close(found.scores, expected.scores)
        torch.testing.assert_close(found.surprise, expected.surprise)
    fresh = sp.superpose(mlp(), "hadamard", tasks=NAMES, recognise=True)
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh.recognise(x).scores, expected.scores)
    model.remove_task("c")
    assert model.recognisable == ["a", "b", "d"]
    assert "c" not in model.recognise(x).task
    new = model.add_task("c")
    assert new not in model.recognisable


def test_a_task_that_only_remembers_is_still_its_base():
    net = mlp()
    model = sp.superpose(net, tasks=NAMES, base=True).eval()
    x = inputs("a")
    model.remember(x, task="a")
    assert model.begun == []
    torch.testing.assert_close(model(x, task="a"), net(x), rtol=0, atol=0)


def test_remembered_in_parts_is_remembered_at_once():
    parts = sp.superpose(mlp(), "hadamard", tasks=NAMES)
    for rows in inputs("a").split([64, 128, 8]):
        parts.remember(rows, task="a")
    own, whole = parts.private_tensors("a"), remembering().private_tensors("a")
    for name in ("rows", "mean", "variance"):
        key = next(key for key in own if key.endswith(f"_input_{name}"))
        torch.testing.assert_close(own[key], whole[key])


def test_images_are_recognised_by_the_means_of_their_channels():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    model = sp.superpose(net, "binary", tasks=2)
    x = torch.rand(50, 3, 8, 8)
    tinted = x + torch.tensor([0.2, -0.2, 0.0]).view(3, 1, 1)
    model.remember(x, task=0)
    model.remember(tinted, task=1)
    mean = model.private_tensors(0)["0.weight_input_mean"]
    torch.testing.assert_close(mean, x.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    assert model.recognise(torch.cat([tinted[:3], x[:3]])).task == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("family", list(sp.contexts.FAMILIES))
def test_every_family_keeps_statistics_while_it_learns(family):
    model = sp.superpose(mlp(), family, tasks=NAMES, recognise=Statistics(rank=2))
    for name in NAMES:
        for seed in range(3):
            model(inputs(name, seed=seed), task=name)
    x, names = mixed()
    assert share_right(model.recognise(x), names) > 0.9


def test_a_mixed_batch_in_training_is_kept_by_each_task():
    model = sp.superpose(mlp(), tasks=NAMES, recognise=True)
    x, names = mixed()
    model(x, task=names)
    mean = model.private_tensors("c")["1.weight_input_mean"]
    torch.testing.assert_close(mean, x[2::4].mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda m, x: m.recognise(x, among=["a"]), "two tasks or more"),
        (lambda m, x: m.recognise(x, among="ab"), "give several names"),
        (lambda m, x: m.recognise(x, among=["a", "z"]), "unknown task 'z'"),
        (lambda m, x: m.recognise(x, evidence="magic"), "use one of inputs, outputs"),
        (lambda m, x: m.recognise(x[0]), "give a batch, its rows first"),
        (lambda m, x: m.recognise(x[:0]), "there are no rows"),
        (lambda m, x: m.recognise(x * torch.nan), "no numbers"),
        (lambda m, x: m.remember(x * torch.inf, task="a"), "not finite"),
        (lambda m, x: m.remember(x, task="z"), "unknown task 'z'"),
        (lambda m, x: sp.recognition.keep(m, "head"), "already"),
        (lambda m, x: Outputs("magic"), "log-sum-exp"),
    ],
)
def test_wrong_use_is_told(ask, told):
    with pytest.raises(sp.SuperposeError, match=told):
        ask(remembering(), mixed()[0])


def test_tasks_of_which_nothing_is_known_are_never_guessed():
    model = sp.superpose(mlp(), tasks=NAMES)
    for name in "ab":
        model.remember(inputs(name), task=name)
    x = mixed()[0]
    with pytest.raises(sp.SuperposeError, match=r"inputs of tasks 'c', 'd': call model.remember"):
        model.recognise(x)
    assert set(model.recognise(x, among=model.recognisable).task) == {"a", "b"}
    untrained = sp.superpose(mlp(), tasks=NAMES)
    with pytest.raises(sp.SuperposeError, match="learned nothing yet"):
        untrained.recognise(x)
    declared = sp.superpose(mlp(), tasks=NAMES, recognise=True)
    with pytest.raises(sp.SuperposeError, match="nothing is known of the inputs"):
        declared.recognise(x)
    with pytest.raises(sp.SuperposeError, match=r"keeps nothing of the inputs.*model.remember"):
        untrained.recognise(x, evidence="inputs")
    values = sp.superpose(nn.Linear(12, 1, bias=False), tasks=NAMES)
    with pytest.raises(sp.SuperposeError, match=r"nothing to recognise by.*model.remember"):
        values.recognise(x)


def test_layers_that_cannot_keep_statistics_are_told():
    with pytest.raises(sp.SuperposeError, match="'nothing' is no linear or convolution layer"):
        sp.superpose(mlp(), recognise="nothing")
    with pytest.raises(sp.SuperposeError, match="evidence='outputs'"):
        sp.superpose(nn.GRU(4, 8), recognise=True)
    with pytest.raises(sp.SuperposeError, match="rank=13 is more than the 12 inputs"):
        sp.superpose(mlp(), recognise=Statistics(rank=13))
    with pytest.raises(sp.SuperposeError, match="recognise=3"):
        sp.superpose(mlp(), recognise=3)


class Reading(nn.Module):
    """A network that uses a layer in several ways before the one that is looked at."""

    def __init__(self, way):
        super().__init__()
        self.a, self.b, self.way = nn.Linear(8, 8), nn.Linear(8, 2), way

    def forward(self, x):
        if self.way == "called":
            x = self.a(x)
        elif self.way == "read":
            x = nn.functional.linear(x, self.a.weight, self.a.bias)
        else:
            x = self.a.forward(x)
        return self.b(x)


@pytest.mark.parametrize("way", ["called", "read", "forward"])
def test_inputs_of_a_deep_layer_are_found_in_each_task_however_the_first_is_used(way):
    torch.manual_seed(0)
    model = sp.superpose(Reading(way), "hadamard", tasks=["x", "y", "z"], recognise="b")
    rows = {task: torch.randn(200, 8) + 4 * torch.randn(8) for task in model.tasks}
    for task, x in rows.items():
        model.remember(x, task=task)
    for task, x in rows.items():
        found = model.recognise(x)
        assert found.task.count(task) > 150
        assert found.known.sum() > 180


@pytest.mark.parametrize("options", [{}, {"centre": "task"}])
def test_nothing_can_be_joined_without_statistics(options):
    model, told = (
        sp.superpose(mlp(), tasks=3, **options),
        "keeps nothing of the inputs of its tasks",
    )
    with pytest.raises(sp.SuperposeError, match=told):
        sp.recognition.duplicates(model)
    with pytest.raises(sp.SuperposeError, match=told):
        sp.recognition.join(model, 0, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_statistics_stay_wide_when_the_model_becomes_narrow(dtype, tmp_path):
    model = sp.superpose(mlp(), "hadamard", tasks=2, recognise=Statistics(rank=2))
    for task in range(2):
        model.remember(torch.randn(90, 12) + 3 * task, task=task)
        model.private_tensors(task)["1.weight_input_rows"].fill_(70_000)
    x = torch.randn(5, 12)
    expected = model.recognise(x).scores
    model.to(dtype)
    torch.testing.assert_close(model.recognise(x.to(dtype)).scores, expected, rtol=0.05, atol=0.05)
    model.remember(x.to(dtype), task=1)
    sp.save(model, tmp_path / "narrow.safetensors")
    again = sp.load(tmp_path / "narrow.safetensors", mlp().to(dtype))
    assert again.recognise(x.to(dtype)).task == model.recognise(x.to(dtype)).task
    sp.save(model, tmp_path / "half.safetensors", dtype=torch.float16)
    again = sp.load(tmp_path / "half.safetensors", mlp())
    assert again.private_tensors(1)["1.weight_input_rows"] == 70_005
