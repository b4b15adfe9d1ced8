"""Experience replay: what is kept, what is learned again, and what that is good for."""

import pytest
import torch
from learning.problems import make_net, make_stream
from sklearn.datasets import load_digits
from torch import nn

from superpose.errors import SuperposeError
from superpose.learning import Labelled, Quiet, Replay, TensorStream, method, train


def batches(count=15, size=7):
    """Rows that tell their number in everything they have."""
    for start in range(0, count * size, size):
        number = torch.arange(start, start + size)
        yield Labelled(number[:, None].float(), number, start // size, 2 * (start // size))


def test_the_reservoir_keeps_every_row_with_the_same_chance():
    trials, rows, samples = 600, 105, 10
    kept = torch.zeros(rows)
    for seed in range(trials):
        replay = Replay(samples, seed=seed)
        for batch in batches():
            replay.before_forward(batch)
        assert replay.seen == rows
        assert len(replay.kept) == len(set(replay.kept.y.tolist())) == samples
        kept[replay.kept.y] += 1
    share = samples / rows
    deviation = (trials * share * (1 - share)) ** 0.5
    assert (kept - trials * share).abs().max() < 4.5 * deviation
    thirds = torch.stack([part.sum() for part in kept.split(35)]) / (trials * samples)
    torch.testing.assert_close(thirds, torch.full((3,), 1 / 3), atol=0.02, rtol=0)


def test_the_second_of_two_rows_takes_the_only_place_every_other_time():
    kept = []
    for seed in range(400):
        replay = Replay(1, seed=seed)
        replay.before_forward(next(batches(1, size=2)))
        kept += replay.kept.y.tolist()
    assert sum(kept) / 400 == pytest.approx(0.5, abs=0.1)


def test_a_row_is_kept_with_its_label_task_and_context():
    replay = Replay(20)
    for batch in batches():
        replay.before_forward(batch)
    kept = replay.kept
    assert torch.equal(kept.x[:, 0].long(), kept.y)
    assert torch.equal(kept.task, kept.y // 7)
    assert torch.equal(kept.context, 2 * kept.task)
    assert replay.numbers == 20 * (1 + 3)


@pytest.mark.parametrize(("rows", "more"), [(None, 7), (3, 3), (50, 14)])
def test_a_step_learns_its_own_rows_and_then_some_of_those_before(rows, more):
    replay = Replay(100, rows)
    first, second, third = list(batches(3))
    assert replay.before_forward(first) is first, "there is nothing to replay yet"
    replay.before_forward(second)
    mixed = replay.before_forward(third)
    assert len(mixed) == 7 + more
    assert torch.equal(mixed.y[:7], third.y)
    again = mixed.y[7:].tolist()
    assert len(set(again)) == more
    assert set(again) <= set(range(14)), "the step's own rows are not among them"
    assert torch.equal(mixed.task, mixed.y // 7)
    assert replay.seen == 21


def test_rows_are_drawn_anew_at_each_step():
    replay = Replay(100, rows=5)
    drawn = [tuple(replay.before_forward(batch).y[7:].tolist()) for batch in batches()]
    assert len(set(drawn[1:])) == 14
    other = Replay(100, rows=5, seed=1)
    assert drawn != [tuple(other.before_forward(batch).y[7:].tolist()) for batch in batches()]


@pytest.mark.parametrize("samples", [3, 4, 5])
def test_the_streams_own_tensors_are_left_alone(samples):
    x, y = torch.arange(40.0).view(-1, 1), torch.arange(40)
    before, replay = x.clone(), Replay(samples)
    for part in Labelled(x, y, 0, 0).split(4):  # views
        replay.before_forward(part)
    assert torch.equal(x, before)
    assert torch.equal(y, torch.arange(40))


def test_it_goes_on_from_its_state_and_begins_anew():
    whole, dealt = Replay(10), list(batches())
    start = [whole.before_forward(batch) for batch in dealt[:6]]
    again = Replay(10, seed=9)
    again.load_state_dict(whole.state_dict())
    for batch in dealt[6:]:
        assert torch.equal(whole.before_forward(batch).y, again.before_forward(batch).y)
    whole.begin(nn.Identity())
    assert (whole.numbers, whole.seen) == (0, 0)
    for batch, found in zip(dealt, start, strict=False):
        assert torch.equal(whole.before_forward(batch).y, found.y)
    empty = Replay(10)
    empty.load_state_dict(Replay(10).state_dict())
    assert empty.kept is None


def permuted_digits(tasks=3, period=100):
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    generator = torch.Generator().manual_seed(0)
    data = []
    for _ in range(tasks):
        own = x[:, torch.randperm(64, generator=generator)]
        data.append((own[:1400], y[:1400], own[1400:], y[1400:]))
    return TensorStream(data, period=period, batch_size=32)


def test_replay_keeps_what_the_standard_network_forgets():
    stream = permuted_digits()

    def learned(chosen):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        return train(net, stream, chosen, lr=2e-3, display=Quiet()).result

    standard, replay = learned("standard"), learned(method("replay", samples=300))
    assert standard["forgetting"] > 0.15
    assert replay["forgetting"] < 0.5 * standard["forgetting"]
    assert replay["mean_all"] > standard["mean_all"] + 0.05
    assert replay["last_task"] > standard["last_task"] - 0.05
    assert replay["numbers"]["penalty"] == 300 * (64 + 3)
    few = learned(method("replay", samples=20))
    assert standard["mean_all"] < few["mean_all"] < replay["mean_all"]


@pytest.mark.parametrize("name", ["multihead", "binary", "hadamard+projection", "complex"])
def test_it_goes_with_networks_that_are_told_the_task(name):
    stream = make_stream()
    result = train(make_net(), stream, f"{name}+replay", lr=1e-2, display=Quiet()).result
    assert result["method"] == f"{name}+replay"
    assert result["mean_all"] > 0.9


def test_sizes_have_to_make_sense():
    with pytest.raises(SuperposeError, match="samples=0: must be at least 1"):
        Replay(0)
    with pytest.raises(SuperposeError, match="rows=0: must be at least 1"):
        Replay(5, rows=0)
    assert Replay(5).describe() == {"name": "Replay", "samples": 5, "rows": None, "seed": 0}
