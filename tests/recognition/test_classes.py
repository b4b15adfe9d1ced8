"""Statistics of the base's features, and of classes: beside dense Gaussians in float64."""

import pytest
import torch
from torch import nn

import superpose as sp
from superpose.nn.statistics import FLOOR, PRIOR, Usual

CLASSES, FEATURES, TASKS = 3, 6, ["a", "b", "c"]


def empty(classes=CLASSES, rank=2):
    shapes = [(classes,), (classes, FEATURES), (FEATURES,), (2,), (rank, FEATURES)]
    return Usual(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))


def rows(count, seed, shift=0.0):
    generator = torch.manual_seed(seed)
    classes = torch.arange(count) % CLASSES
    means = 3 * torch.randn(CLASSES, FEATURES, generator=generator, dtype=torch.float64) + shift
    stretch = torch.rand(FEATURES, generator=generator, dtype=torch.float64) + 0.5
    x = torch.randn(count, FEATURES, generator=generator, dtype=torch.float64) * stretch
    return means[classes] + x, classes


def covariance(kept):
    """Σ of one task, or of the spread that is given, as a matrix."""
    rest = (kept.variance - kept.basis.square().sum(0)).clamp_min(0)
    average, seen = kept.variance.mean(), kept.rows.sum()
    smooth = (seen * rest + PRIOR * average) / (seen + PRIOR) + FLOOR * average
    return torch.diag(smooth) + kept.basis.T @ kept.basis


def dense(kept, x, matrix):
    """log p(x), by torch's own distributions."""
    normal = torch.distributions.MultivariateNormal
    each = [normal(mean, matrix).log_prob(x) for mean in kept.mean]
    share = kept.rows / kept.rows.sum()
    return (torch.stack(each, 1) + share.log()).logsumexp(1)


def test_batches_give_what_all_rows_at_once_give():
    x, classes = rows(60, 0)
    whole, parts = empty(rank=FEATURES), empty(rank=FEATURES)
    whole.update(x, classes)
    for start, stop in ((0, 1), (1, 8), (8, 60)):
        parts.update(x[start:stop], classes[start:stop])
    means = torch.stack([x[classes == c].mean(0) for c in range(CLASSES)])
    within = x - means[classes]
    torch.testing.assert_close(whole.rows, torch.full_like(whole.rows, 20))
    for kept in (whole, parts):
        torch.testing.assert_close(kept.mean, means)
        torch.testing.assert_close(kept.variance, within.square().mean(0))
        torch.testing.assert_close(kept.basis.T @ kept.basis, within.T @ within / 60)


def test_likelihoods_are_those_of_dense_gaussians():
    kept = [empty(), empty()]
    for seed, one in enumerate(kept):
        one.update(*rows(50, seed))
    stacked = Usual(*(torch.stack(pair) for pair in zip(*kept, strict=True)))
    x, _ = rows(9, 0)
    squared, volume = stacked.distances(x)
    found = stacked.likelihood(squared, volume)
    wanted = torch.stack([dense(one, x, covariance(one)) for one in kept], 1)
    constant = FEATURES / 2 * torch.log(torch.tensor(2 * torch.pi))
    torch.testing.assert_close(found - constant, wanted)
    nearest = torch.stack([(x - mean) for mean in kept[1].mean], 1)
    inverse = torch.linalg.inv(covariance(kept[1]))
    wanted = torch.einsum("bcm,mn,bcn->bc", nearest, inverse, nearest).amin(1)
    torch.testing.assert_close(stacked.nearest(squared)[:, 1], wanted)


def test_a_class_that_was_not_seen_is_no_class():
    kept, fewer = empty(), empty(classes=2)
    x, classes = rows(40, 0)
    some = classes < 2
    kept.update(x[some], classes[some])
    fewer.update(x[some], classes[some])
    both = [Usual(*(tensor.unsqueeze(0) for tensor in one)) for one in (kept, fewer)]
    scores = [one.likelihood(*one.distances(x)) for one in both]
    torch.testing.assert_close(*scores)
    near = [one.nearest(one.distances(x)[0]) for one in both]
    torch.testing.assert_close(*near)


def test_the_first_rows_of_a_class_are_not_far_from_their_task():
    x, classes = rows(60, 0)
    x += 50 * classes.unsqueeze(1)
    mixed, in_turn = empty(), empty()
    order = classes.argsort()
    for some in torch.arange(60).split(5):
        mixed.update(x[some], classes[some])
        in_turn.update(x[order[some]], classes[order[some]])
    torch.testing.assert_close(in_turn.mean, mixed.mean)
    assert abs(in_turn.distance[0] - mixed.distance[0]) < 2


def test_joined_statistics_are_those_of_all_rows():
    (x, of_x), (y, of_y) = rows(30, 0), rows(45, 1)
    one, other, whole = (empty(rank=FEATURES) for _ in range(3))
    one.update(x, of_x)
    other.update(y, of_y)
    whole.update(torch.cat([x, y]), torch.cat([of_x, of_y]))
    found = one.merged(other)
    for name in ("rows", "mean", "variance"):
        torch.testing.assert_close(getattr(found, name), getattr(whole, name))
    torch.testing.assert_close(found.basis.T @ found.basis, whole.basis.T @ whole.basis)


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, FEATURES), nn.Linear(FEATURES, 3)
    )


def learned(plain, rank=2, **kept):
    """Tasks with a base that have learned something, each of inputs of its own."""
    statistics = sp.nn.Statistics("3", rank=rank, base=True, **kept)
    model = sp.superpose(plain, "hadamard", tasks=TASKS, base=True, rank=1, recognise=statistics)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    model.begin(*TASKS)
    for task in TASKS:
        optimiser.zero_grad()
        model(inputs(task)[0], task=task).square().mean().backward()
        optimiser.step()
    return model


def inputs(task, count=90, seed=0):
    """Rows of three classes each; means of classes, and not of tasks, tell tasks apart."""
    generator = torch.manual_seed(1)
    means = 2 * torch.randn(3, CLASSES, 8, generator=generator)
    means -= means.mean(1, keepdim=True)
    classes = torch.arange(count) % CLASSES
    noise = torch.randn(count, 8, generator=torch.manual_seed(seed + TASKS.index(task)))
    return means[TASKS.index(task)][classes] + 0.5 * noise, classes


def remembering(plain, rank=2, **kept):
    model = learned(plain, rank, **kept)
    for task in TASKS:
        x, classes = inputs(task)
        model.remember(x, task=task, **({"classes": classes} if kept else {}))
    return model


def test_the_base_runs_by_itself_whatever_tasks_have_learned():
    plain = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)
    )
    model = sp.superpose(plain, "hadamard", tasks=2, base=True, rank=1, private_layers=["4"])
    optimiser = torch.optim.SGD(model.parameters(), 0.5)
    x = torch.randn(4, 3, 3, 3)
    model.begin(0, 1)
    for task in (0, 1):
        model(x, task=task).square().mean().backward()
    optimiser.step()
    model.eval(), plain.eval()
    found = model.run(model.base_view(), x)
    assert torch.equal(found, plain(x))
    assert not torch.allclose(model(x, task=0), found)
    with pytest.raises(sp.SuperposeError, match="no base"):
        sp.superpose(plain, tasks=2).base_view()


@pytest.mark.parametrize("kept", [{}, {"classes": CLASSES}], ids=["tasks", "classes"])
def test_scores_are_those_of_the_pretrained_networks_features(kept):
    plain = net()
    model = remembering(plain, **kept)
    each = []
    for task in TASKS:
        x, classes = inputs(task)
        one = empty(classes=(len(kept) and CLASSES) or 1)
        with torch.no_grad():
            features = plain[:3](x)
        for start in range(0, len(x), 64):  # how far rows are depends on it, scores do not
            some = slice(start, start + 64)
            one.update(features[some].double(), classes[some] if kept else None)
        each.append(one)
    x = torch.cat([inputs(task, 12, seed=50)[0] for task in TASKS])
    with torch.no_grad():
        features = plain[:3](x).double()
    if kept:
        stacked = Usual(*(torch.stack(one) for one in zip(*each, strict=True)))
        pooled = Usual(*(tensor[0] for tensor in stacked.pooled()))
        spread = sum(one.variance for one in each) / 3
        torch.testing.assert_close(pooled.variance, spread)
        wanted = [dense(one, features, covariance(pooled)) for one in each]
    else:
        wanted = [dense(one, features, covariance(one)) for one in each]
    found = model.recognise(x)
    wanted = torch.stack(wanted, 1)
    margins = [scores - scores[:, :1] for scores in (found.scores, wanted)]
    torch.testing.assert_close(*margins, rtol=1e-3, atol=1e-2)
    among = model.recognise(x, among=["c", "a"]).scores  # no matter which tasks are asked for
    torch.testing.assert_close(among[:, 0] - among[:, 1], found.scores[:, 2] - found.scores[:, 0])


def test_classes_tell_tasks_apart_whose_means_are_the_same():
    right = {}
    for name, kept in (("tasks", {}), ("classes", {"classes": CLASSES})):
        model = remembering(net(), rank=0, **kept)
        found = {task: model.recognise(inputs(task, 60, seed=50)[0]) for task in TASKS}
        right[name] = sum(one == task for task in TASKS for one in found[task].task) / 180
        assert all(one.known.float().mean() > 0.9 for one in found.values())
        assert not model.recognise(100 * torch.ones(5, 8)).known.any()
    assert right["classes"] > 0.9
    assert right["classes"] > right["tasks"] + 0.05


def test_a_deep_layer_of_the_base_takes_one_pass():
    model = remembering(net())
    passes = []
    first = model[0].register_forward_pre_hook(lambda *_: passes.append(1))
    model.recognise(inputs("a")[0])
    first.remove()
    assert len(passes) == 1


def test_training_does_not_add_to_what_is_told():
    model = remembering(net())
    before = {n: t.clone() for n, t in model.private_tensors("a").items() if "_input_" in n}
    model.train()(inputs("b")[0], task="a").sum().backward()
    after = model.private_tensors("a")
    assert before
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_statistics_of_classes_are_saved_counted_and_removed(tmp_path):
    model = remembering(net(), classes=CLASSES)
    sp.save(model, tmp_path / "many.safetensors")
    again = sp.load(tmp_path / "many.safetensors", net())
    x = inputs("b")[0]
    torch.testing.assert_close(again.recognise(x).scores, model.recognise(x).scores)
    without = sp.superpose(net(), "hadamard", tasks=TASKS, base=True, rank=1)
    added = model.cost().private_per_task - without.cost().private_per_task
    numbers = CLASSES * (FEATURES + 1) + FEATURES + 2 + 2 * FEATURES
    group = [g for g in model.private_state.flats.values() if g.kind == "recognition"]
    assert sum(one.start.numel() for one in group) == numbers
    assert added == numbers
    assert sp.recognition.duplicates(model) == []
    model.remove_task("a")
    assert set(model.recognise(x).task) <= {"b", "c"}


def test_tasks_that_see_the_same_classes_are_told_and_joined():
    model = remembering(net(), classes=CLASSES)
    x, classes = inputs("a", 200, seed=9)
    model.add_task("d")
    model.remember(x, task="d", classes=classes)
    assert sp.recognition.duplicates(model) == [("a", "d")]
    sp.recognition.join(model, "a", "d")
    assert model.tasks == TASKS
    assert int(model.private_tensors("a")["3.weight_input_rows"].sum()) == 290


def wrong(what):
    plain = net()
    if what == "no base":
        sp.superpose(plain, tasks=2, recognise=sp.nn.Statistics(base=True))
    if what == "no classes":
        learned(plain, classes=3).remember(inputs("a")[0], task="a")
    if what == "classes of none":
        learned(plain).remember(inputs("a")[0], task="a", classes=inputs("a")[1])
    if what == "too large":
        learned(plain, classes=2).remember(inputs("a")[0], task="a", classes=inputs("a")[1])
    if what == "too few":
        learned(plain, classes=3).remember(inputs("a")[0], task="a", classes=[0, 1])
    if what == "no numbers":
        learned(plain, classes=3).remember(inputs("a")[0], task="a", classes=torch.rand(90))
    if what == "negative":
        sp.nn.Statistics(classes=-1)
    if what == "forget":
        sp.nn.Statistics(base=True, forget=0.1)
    if what == "found":
        data = [(*inputs(task), *inputs(task)) for task in TASKS]
        stream = sp.learning.TensorStream(data, period=5, batch_size=8)
        chosen = sp.learning.method("hadamard", recognise=sp.nn.Statistics(classes=3))
        sp.learning.train(plain, stream, chosen, tasks="found")


@pytest.mark.parametrize(
    ("what", "told"),
    {
        "no base": "statistics are to be of a base, and tasks have none",
        "no classes": "are of 3 classes: give that of each row, from 0 to 2",
        "classes of none": "do not tell classes apart: leave classes out",
        "too large": "0 to 2 were given, and the statistics are of 2",
        "too few": "a whole number for each of the 90 rows",
        "no numbers": "a whole number for each of the 90 rows",
        "negative": "classes=-1: give their number",
        "forget": "told by model.remember: leave them out",
        "found": "needs statistics that are taken in training",
    }.items(),
)
def test_wrong_use_is_told(what, told):
    with pytest.raises(sp.SuperposeError, match=told):
        wrong(what)
