"""Experience replay: what is kept, what is learned again, and what that is good for."""

import pytest
import torch
from learning.problems import make_net, make_stream
from sklearn.datasets import load_digits
from torch import nn

from superpose.errors import SuperposeError
from superpose.learning import Quiet, Replay, TensorStream, method, train


def batches(count=15, size=7):
    """Rows that tell their number in everything they have."""
    for start in range(0, count * size, size):
        number = torch.arange(start, start + size)
        yield start // size, number[:, None].float(), number


def replay_of(*options, **named):
    return Replay(nn.Identity(), *options, **named)


def test_the_reservoir_keeps_every_row_with_the_same_chance():
    trials, rows, samples = 600, 105, 10
    kept = torch.zeros(rows)
    for seed in range(trials):
        replay = replay_of(samples, seed=seed)
        for batch in batches():
            replay.rows(*batch)
        assert replay.seen == rows
        assert len(replay.tasks) == len(set(replay.kept[1].tolist())) == samples
        kept[replay.kept[1]] += 1
    share = samples / rows
    deviation = (trials * share * (1 - share)) ** 0.5
    assert (kept - trials * share).abs().max() < 4.5 * deviation
    thirds = torch.stack([part.sum() for part in kept.split(35)]) / (trials * samples)
    torch.testing.assert_close(thirds, torch.full((3,), 1 / 3), atol=0.02, rtol=0)


def test_the_second_of_two_rows_takes_the_only_place_every_other_time():
    kept = []
    for seed in range(400):
        replay = replay_of(1, seed=seed)
        replay.rows(*next(batches(1, size=2)))
        kept += replay.kept[1].tolist()
    assert sum(kept) / 400 == pytest.approx(0.5, abs=0.1)


def test_a_row_is_kept_with_its_label_and_task():
    replay = replay_of(20)
    for batch in batches():
        replay.rows(*batch)
    x, y = replay.kept
    assert torch.equal(x[:, 0].long(), y)
    assert replay.tasks == (y // 7).tolist()
    assert replay.numbers == 20 * (1 + 2)


@pytest.mark.parametrize(("rows", "more"), [(None, 7), (3, 3), (50, 14)])
def test_a_step_learns_its_own_rows_and_then_some_of_those_before(rows, more):
    replay = replay_of(100, rows)
    first, second, third = list(batches(3))
    task, x, y = replay.rows(*first)
    assert (task, x is first[1], y is first[2]) == (0, True, True), "there is nothing to replay yet"
    replay.rows(*second)
    task, x, y = replay.rows(*third)
    assert len(task) == len(x) == len(y) == 7 + more
    assert torch.equal(y[:7], third[2])
    again = y[7:].tolist()
    assert len(set(again)) == more
    assert set(again) <= set(range(14)), "the step's own rows are not among them"
    assert task == (y // 7).tolist()
    assert replay.seen == 21


def test_a_network_that_is_not_told_the_task_is_told_none():
    replay = replay_of(10)
    for _, x, y in batches(3):
        task, *_ = replay.rows(None, x, y)
        assert task is None


def test_tasks_may_be_given_for_each_row():
    replay = replay_of(100)
    replay.rows(torch.tensor([3, 4]), torch.zeros(2, 1))
    task, x = replay.rows(["a", "b"], torch.ones(2, 1))
    assert task[:2] == ["a", "b"]
    assert sorted(task[2:]) == [3, 4]
    assert x[:, 0].tolist() == [1, 1, 0, 0]


def test_rows_are_drawn_anew_at_each_step():
    replay = replay_of(100, again=5)
    drawn = [tuple(replay.rows(*batch)[2][7:].tolist()) for batch in batches()]
    assert len(set(drawn[1:])) == 14
    other = replay_of(100, again=5, seed=1)
    assert drawn != [tuple(other.rows(*batch)[2][7:].tolist()) for batch in batches()]


@pytest.mark.parametrize("samples", [3, 4, 5])
def test_the_streams_own_tensors_are_left_alone(samples):
    x, y = torch.arange(40.0).view(-1, 1), torch.arange(40)
    before, replay = x.clone(), replay_of(samples)
    for part in zip(x.split(4), y.split(4), strict=True):  # views
        replay.rows(0, *part)
    assert torch.equal(x, before)
    assert torch.equal(y, torch.arange(40))


def test_it_goes_on_from_its_state():
    whole, dealt = replay_of(10), list(batches())
    for batch in dealt[:6]:
        whole.rows(*batch)
    again = replay_of(10, seed=9)
    again.load_state_dict(whole.state_dict())
    for batch in dealt[6:]:
        one, other = whole.rows(*batch), again.rows(*batch)
        assert torch.equal(one[2], other[2])
        assert one[0] == other[0]
    empty = replay_of(10)
    empty.load_state_dict(replay_of(10).state_dict())
    assert empty.kept == empty.tasks == []


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
    assert replay["numbers"]["penalty"] == 300 * (64 + 2)
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
        replay_of(0)
    with pytest.raises(SuperposeError, match="again=0: must be at least 1"):
        replay_of(5, again=0)
    assert replay_of(5).describe() == {"name": "Replay", "samples": 5, "again": None, "seed": 0}
