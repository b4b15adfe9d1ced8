"""The laws of all streams, then what each of them is."""

import json

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch.utils.data import DataLoader

from superpose import SuperposeError
from superpose_lab.data import (
    Incremental,
    Permuting,
    Returning,
    Rotating,
    Turning,
    load,
    normalise,
    rotate,
)
from superpose_lab.data.image_stream import ImageStream
from superpose_lab.data.pool import shuffle

DIGITS = load("digits")


def permuting(**settings) -> ImageStream:
    return Permuting(DIGITS, **{"period": 30, "tasks": 4, "batch_size": 64, **settings})


def rotating(**settings) -> ImageStream:
    return Rotating(
        DIGITS, **{"period": 30, "contexts": 10, "steps": 90, "batch_size": 64, **settings}
    )


def incremental(**settings) -> ImageStream:
    return Incremental(DIGITS, **{"group": 2, "period": 30, "batch_size": 64, **settings})


def turning(**settings) -> ImageStream:
    return Turning(DIGITS, **{"period": 30, "tasks": 4, "batch_size": 64, **settings})


def returning(**settings) -> ImageStream:
    return Returning(DIGITS, **{"period": 8, "batch_size": 64, **settings})


every = pytest.mark.parametrize("make", [permuting, rotating, incremental, turning, returning])


def same(a, b) -> bool:
    return a.x.equal(b.x) and a.y.equal(b.y) and a[2:] == b[2:]


@every
def test_a_batch_depends_on_the_step_alone(make):
    stream, again = make(), make()
    there = [stream.batch(step) for step in range(len(stream))]
    for step in reversed(range(0, len(stream), 7)):
        assert same(again.batch(step), there[step])
    assert not there[0].y.equal(there[1].y)
    assert len(list(make())) == len(stream) == len(there)


@every
def test_seeds_differ(make):
    one, other = make(seed=0), make(seed=1)
    assert not any(one.batch(step).y.equal(other.batch(step).y) for step in range(0, 90, 10))


@every
def test_every_batch_has_the_promised_shape_and_numbers(make):
    stream = make()
    for step in range(0, len(stream), 5):
        x, y, task, context = stream.batch(step)
        assert x.shape == (64, *stream.input_shape)
        assert x.dtype == torch.float32
        assert y.shape == (64,)
        assert y.dtype == torch.int64
        assert 0 <= y.min() <= y.max() < stream.classes
        assert (task, context) == (stream.task_at(step), stream.context_at(step))
        assert 0 <= task < stream.tasks
        assert 0 <= context < stream.contexts
    assert {stream.task_at(step) for step in range(len(stream))} == set(range(stream.tasks))
    assert {stream.context_at(step) for step in range(len(stream))} == set(range(stream.contexts))


@every
@pytest.mark.parametrize("workers", [0, 2])
def test_the_number_of_workers_changes_nothing(make, workers):
    stream = make()
    steps = range(25, 37)
    loader = DataLoader(stream, batch_size=None, sampler=steps, num_workers=workers)
    batches = list(loader)
    assert len(batches) == len(steps)
    assert all(same(a, stream.batch(step)) for a, step in zip(batches, steps, strict=True))


@every
def test_a_description_is_json_and_tells_streams_apart(make):
    described = json.loads(json.dumps(make(seed=5).describe()))
    assert described == make(seed=5).describe()
    assert described != make(seed=6).describe()
    assert described["dataset"]["digest"] == make().dataset.digest


@every
def test_outside_is_an_error(make):
    stream = make()
    for step in (-1, len(stream)):
        with pytest.raises(SuperposeError, match=rf"step {step} is outside 0 … {len(stream) - 1}"):
            stream.batch(step)
    for task in (-1, stream.tasks):
        with pytest.raises(SuperposeError, match=rf"task {task} is outside 0 … {stream.tasks - 1}"):
            stream.test(task)


@every
@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"period": -5}, "period must be at least 1, not -5"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"batch_size": 5000}, "batch_size 5000 is more than the .* images of digits"),
    ],
)
def test_impossible_settings_are_refused(make, setting, reason):
    with pytest.raises(SuperposeError, match=reason):
        make(**setting)


def test_an_epoch_has_no_image_twice_and_the_next_has_another_order(coded):
    stream = Rotating(coded(), period=1000, batch_size=64)  # 600 images: 9 batches, 24 left out
    upright = [stream._pools[0].draw(step) for step in range(18)]
    marks = [tuple(image[0, 0, :2].tolist()) for images, _ in upright for image in images]
    first, second = marks[: 9 * 64], marks[9 * 64 :]
    assert len(set(first)) == len(set(second)) == 9 * 64
    assert first != second
    assert set(first) != set(second), "the same images are left out in every epoch"
    assert all((images[:, 0, 0, 0] == labels).all() for images, labels in upright)


def test_the_shuffle_is_pinned_and_a_shuffle():
    assert shuffle(8, 3, 1, 2).tolist() == [6, 2, 4, 0, 5, 1, 3, 7]
    for numbers in ((0, 0), (0, 1), (1, 0), (2, 7)):
        assert sorted(shuffle(100, 3, *numbers).tolist()) == list(range(100))
    orders = [
        (seed, use, a, b) for seed in (0, 1) for use in (0, 1) for a in (0, 1) for b in (0, 1)
    ]
    assert len({tuple(shuffle(50, *order).tolist()) for order in orders}) == len(orders)


# Permuting


def test_the_first_task_is_the_images_as_they_are():
    stream = permuting()
    images = torch.from_numpy(DIGITS.test.images)
    assert stream.test(0)[0].equal(normalise(images.flatten(1), "grey"))
    assert stream.permutation(0).equal(torch.arange(64))


def test_each_task_has_one_permutation_for_training_and_testing():
    stream = permuting()
    plain, labels = stream.test(0)
    seen = set()
    for task in range(stream.tasks):
        permutation = stream.permutation(task)
        assert permutation.sort().values.equal(torch.arange(64))
        x, y = stream.test(task)
        assert x.equal(plain[:, permutation])
        assert y.equal(labels)
        step = task * stream.period + 3
        images, _ = stream._pools[0].draw(step)
        assert stream.batch(step).x.equal(normalise(images.flatten(1), "grey")[:, permutation])
        seen.add(tuple(permutation.tolist()))
    assert len(seen) == stream.tasks
    assert not stream.permutation(1).equal(permuting(seed=1).permutation(1))


def test_the_tasks_last_a_period_each():
    stream = Permuting(DIGITS)
    assert (len(stream), stream.tasks, stream.contexts) == (50_000, 50, 50)
    changes = [stream.task_at(step) for step in (0, 999, 1000, 1999, 2000, 49_999)]
    assert changes == [0, 0, 1, 1, 2, 49]


def test_colour_can_be_permuted_too(coded):
    stream = Permuting(coded(), period=5, tasks=2)
    assert stream.input_shape == (108,)
    x = stream.batch(7).x
    assert x.shape == (128, 108)
    assert -1 <= x.min() < x.max() <= 1


def test_a_permutation_that_was_given_out_can_be_changed_without_harm():
    stream = permuting()
    before = stream.test(2)[0]
    stream.permutation(2).zero_()
    assert stream.test(2)[0].equal(before)


# Rotating


def test_whole_turns_are_exact():
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (9, 1, 28, 28), np.uint8))
    for degrees in (0, 360, -720):
        assert rotate(noise, degrees).equal(noise.float())
    images = torch.from_numpy(DIGITS.test.images)
    upright = normalise(images, "grey")
    stream = rotating()
    assert stream.test(0)[0].equal(upright)
    drawn, _ = stream._pools[0].draw(30)
    assert stream.batch(30).x.equal(normalise(drawn, "grey"))


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_quarter_turns_go_counter_clockwise(quarters):
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 3, 9, 9), np.uint8))
    turned = rotate(images, 90 * quarters)
    expected = torch.rot90(images, quarters, dims=(-2, -1)).float()
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-2)


@pytest.mark.parametrize("degrees", [7.2, 36, 123.4, 359.64])
def test_angles_between_are_interpolated(degrees):
    images = DIGITS.test.images[:6]
    expected = ndimage.rotate(
        images.astype(np.float64), degrees, (3, 2), reshape=False, order=1, mode="grid-constant"
    )
    turned = rotate(torch.from_numpy(images), degrees).double()
    torch.testing.assert_close(turned, torch.from_numpy(expected), rtol=0, atol=1e-2)
    assert (turned - torch.from_numpy(images)).abs().max() > 2


def test_an_oblong_image_turns_without_being_stretched():
    disc = torch.zeros(1, 1, 21, 41)
    y, x = torch.meshgrid(torch.arange(21) - 10, torch.arange(41) - 20, indexing="ij")
    disc[0, 0] = 255 * torch.sigmoid(2 * (6 - (x**2 + y**2).sqrt()))
    torch.testing.assert_close(rotate(disc, 33), disc, rtol=0, atol=13)


def test_what_turns_into_the_picture_is_background(coded):
    for kind, black in (("grey", -0.1307 / 0.3081), ("colour", -1.0)):
        white = coded(kind=kind)
        white.train.images[:] = 255
        stream = Rotating(white, period=8, contexts=2, steps=8, batch_size=2)
        corners = stream.batch(1).x[:, :, [0, 0, -1, -1], [0, -1, 0, -1]]
        assert (corners < stream.batch(1).x[:, :, 3:4, 3]).all()
        assert corners.min() >= black - 1e-6
        torch.testing.assert_close(
            rotate(torch.full((1, 1, 6, 6), 255), 45)[0, 0, 0, 0].item(), 0.0
        )


def test_a_step_has_the_angle_and_the_context_of_the_paper():
    stream = Rotating(DIGITS)
    assert (len(stream), stream.tasks, stream.contexts) == (50_000, 1, 10)
    steps = [0, 99, 100, 999, 1000, 1250, 49_999]
    assert [stream.context_at(step) for step in steps] == [0, 0, 1, 9, 0, 2, 9]
    assert [stream.angle_at(step) for step in steps[:6]] == [0, 35.64, 36, 359.64, 0, 90]
    fast = Rotating(DIGITS, contexts=1000)
    assert all(fast.context_at(step) == step % 1000 for step in range(0, 3000, 7))
    for each in (stream, fast):
        assert all(each.context_of(each.angle_at(t)) == each.context_at(t) for t in range(1000))


def test_a_batch_is_turned_by_its_angle_and_the_test_set_by_any():
    stream = rotating()
    drawn, labels = stream._pools[0].draw(11)
    assert stream.batch(11).x.equal(normalise(rotate(drawn, 360 * 11 / 30), "grey"))
    assert stream.batch(11).y.equal(labels)
    x, y = stream.test_at(77)
    assert x.equal(normalise(rotate(torch.from_numpy(DIGITS.test.images), 77), "grey"))
    assert y.equal(stream.test(0)[1])


def test_a_turn_has_no_more_contexts_than_steps():
    with pytest.raises(SuperposeError, match="31 contexts are more than the 30 steps of a turn"):
        rotating(contexts=31)


# Incremental


def test_each_task_has_its_own_classes_from_label_0(coded):
    data = coded(classes=20)
    stream = Incremental(data, group=4, tasks=5, period=30, batch_size=32)
    assert (len(stream), stream.classes, stream.contexts) == (150, 4, 5)
    for task in range(5):
        x, y, told, _ = stream.batch(30 * task + 13)
        assert told == task
        classes = ((x[:, 0, 0, 0] + 1) * 127.5).round().long()
        assert classes.equal(y + 4 * task)
        x, y = stream.test(task)
        assert x.shape == (4 * 7, 3, 6, 6)
        assert ((x[:, 0, 0, 0] + 1) * 127.5).round().long().equal(y + 4 * task)
        assert y.bincount().tolist() == [7] * 4


def test_a_task_has_its_own_order_however_long_the_tasks_are(coded):
    def numbers(period, step):
        stream = Incremental(coded(), group=4, period=period, batch_size=32)
        return ((stream.batch(step).x[:, 0, 0, 1] + 1) * 127.5).round().tolist()

    assert numbers(30, 30) == numbers(50, 50)
    assert numbers(30, 30) != numbers(30, 0)


def test_a_first_data_set_takes_the_place_of_the_first_group(coded):
    small, large = coded("small", classes=10), coded("large", classes=30, each=20)
    stream = Incremental(large, small, group=10, tasks=3, period=10, batch_size=16)
    assert stream.groups == [range(10), range(10, 20), range(20, 30)]
    assert stream.test(0)[0].equal(normalise(torch.from_numpy(small.test.images), "colour"))
    later = large.test.labels // 10 == 2
    x, y = stream.test(2)
    assert x.equal(normalise(torch.from_numpy(large.test.images[later]), "colour"))
    assert y.tolist() == (large.test.labels[later] - 20).tolist()
    described = stream.describe()
    assert described["first"] == {"name": "small", "digest": small.digest}


def test_what_cannot_be_cut_into_groups_is_refused(coded):
    with pytest.raises(SuperposeError, match="5 tasks of 10 classes need 50, but digits has 10"):
        Incremental(DIGITS)
    with pytest.raises(SuperposeError, match=r"digits has grey images of .* one kind and shape"):
        Incremental(coded(), DIGITS, tasks=2)
    with pytest.raises(SuperposeError, match="coded has 20 classes, but a task has 5"):
        Incremental(coded(), coded(), group=5, tasks=2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every
def test_a_gpu_gives_the_same_batches(make):
    here, there = make().batch(47), make(device="cuda").batch(47)
    assert there.x.is_cuda
    torch.testing.assert_close(there.x.cpu(), here.x)
    assert there.y.cpu().equal(here.y)


def test_tasks_turn_by_ten_degrees_each():
    stream = turning(tasks=36)
    upright, labels = stream.test(0)
    for task in (9, 27):
        x, y = stream.test(task)
        expected = upright.view(-1, 8, 8).rot90(task // 9, (1, 2)).flatten(1)
        assert torch.allclose(x, expected, atol=1e-3)
        assert y.equal(labels)
    assert [stream.degrees(a, b) for a, b in ((0, 0), (1, 0), (0, 1), (0, 35), (0, 18))] == [
        0, 10, 10, 10, 180,
    ]  # fmt: skip


def test_tasks_come_back_as_they_were():
    stream, plain = returning(), permuting(tasks=5)
    assert [stream.task_at(step) for step in range(0, len(stream), 8)] == list(Returning.order)
    assert {batch.context for batch in stream} == set(range(5))
    assert all(stream.test(task)[0].equal(plain.test(task)[0]) for task in range(5))
