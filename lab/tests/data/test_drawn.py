"""Tasks drawn from classes, and blocks of images."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

import superpose as sp
from superpose_lab.data.blocks import HELD_OUT, Blocks
from superpose_lab.data.datasets import Dataset, LabelledImages
from superpose_lab.data.drawn import DrawnTasks, Split, Splits, drawn, split_off


def rows(classes: int, each: int) -> Split:
    """Row i is the number i, so that it can be told where it went."""
    y = torch.arange(classes).repeat(each)
    return Split(torch.arange(len(y)), y)


def splits() -> Splits:
    known, test = split_off(rows(12, 40), 0.25)
    return Splits(*split_off(known, 0.2), test)


def stream(**options) -> DrawnTasks:
    given = {"group": 3, "number": 6, "period": 5, "batch_size": 8, "seed": 3} | options
    return DrawnTasks("numbers", splits(), **given)


def test_splits_share_no_row_and_have_their_share_of_every_class():
    parts = splits()
    seen = torch.cat([part.x for part in parts])
    assert seen.sort().values.equal(torch.arange(12 * 40))
    for part, each in zip(parts, (24, 6, 10), strict=True):
        assert (part.y.bincount() == each).all()
        assert (part.x % 12 == part.y).all()
    assert split_off(rows(12, 40), 0.25)[1].x.equal(parts.test.x)


def test_the_first_sets_are_disjoint_and_none_comes_twice():
    sets = list(islice(drawn(12, 3, seed=3), 60))
    assert sorted(one for part in sets[:4] for one in part) == list(range(12))
    assert len({frozenset(one) for one in sets}) == 60
    assert all(len(set(one)) == 3 for one in sets)
    assert sets != list(islice(drawn(12, 3, seed=4), 60))


def test_a_batch_has_rows_of_its_tasks_classes_labelled_from_zero():
    tasks = stream()
    for step in (0, 4, 12, 29):
        x, y, task, context = tasks.batch(step)
        assert task == context == step // 5
        assert torch.tensor(tasks.sets[task])[y].equal(x % 12)
        assert set(x.tolist()) <= set(splits().train.x.tolist())


def test_an_epoch_has_every_row_once():
    tasks = stream(period=9)  # 72 rows in batches of 8
    seen = torch.cat([tasks.batch(9 + step).x for step in range(9)])
    assert len(seen.unique()) == 72


def test_more_tasks_begin_with_the_same_ones():
    few, many = stream(number=2), stream(number=30)
    assert few.sets == many.sets[:2]
    assert few.batch(7).x.equal(many.batch(7).x)
    assert few.test(1)[0].equal(many.test(1)[0])


def test_tests_are_of_the_split_that_is_asked_for():
    tasks = stream(tested=20)
    for name in ("test", "validation"):
        x, y = replace(tasks, test_on=name).test(4)
        assert set(x.tolist()) <= set(getattr(splits(), name).x.tolist())
        assert len(x) == len(y) == min(20, 3 * (10 if name == "test" else 6))


def test_a_batch_larger_than_a_task_is_refused():
    with pytest.raises(sp.SuperposeError, match="batch_size 100 is more than the 72 rows"):
        stream(batch_size=100).batch(0)


@pytest.fixture(scope="module")
def images() -> Dataset:
    """Every pixel of an image has the number of its place, and the label its last digit."""
    count = HELD_OUT + 200
    pixels = np.broadcast_to(np.arange(36, dtype=np.uint8).reshape(1, 6, 6), (count, 1, 6, 6))
    parts = LabelledImages(pixels.copy(), np.arange(count) % 10)
    return Dataset("places", "grey", 10, parts, parts)


def test_blocks_change_places_whole_and_labels_change_names(images):
    tasks = Blocks(images, 5, side=3, period=2, batch_size=16)
    upright = Blocks(images, 5, side=6, period=2).test(0)[0][0]  # one block stays where it is
    orders = []
    for task in range(5):
        x, y = tasks.test(task)
        assert x.shape == (2000, 36)
        place = {float(value): number for number, value in enumerate(upright)}
        moved = torch.tensor([place[float(value)] for value in x[0]]).view(6, 6)
        assert moved.flatten().sort().values.equal(torch.arange(36))
        corners = moved[::3, ::3]
        inside = corners.repeat_interleave(3, 0).repeat_interleave(3, 1)
        within = (torch.arange(3)[:, None] * 6 + torch.arange(3)).repeat(2, 2)
        assert moved.equal(inside + within)
        names = y[:10]
        assert names.sort().values.equal(torch.arange(10))
        assert y.equal(names[torch.arange(2000) % 10])
        orders.append((corners.flatten().tolist(), names.tolist()))
    assert len({str(order) for order, _ in orders}) > 2
    assert len({str(names) for _, names in orders}) == 5


def test_rows_held_out_are_never_learned(images):
    numbered = images.train.images.copy()
    numbered[:, 0, 0, 0], numbered[:, 0, 0, 1] = np.divmod(np.arange(len(numbered)), 256)
    split = LabelledImages(numbered, images.train.labels)
    tasks = Blocks(Dataset("numbered", "grey", 10, split, split), 1, side=6, batch_size=100)
    raw = torch.cat([tasks.batch(step).x[:, :2] for step in range(4)])
    held_out = replace(tasks, validation=True, tested=HELD_OUT).test(0)[0][:, :2]
    learned = {tuple(row) for row in raw.tolist()}
    assert len(learned) == 200
    assert not learned & {tuple(row) for row in held_out.tolist()}


def test_an_image_that_cannot_be_cut_is_refused(images):
    with pytest.raises(sp.SuperposeError, match="6 × 6 pixels cannot be cut into blocks of side 4"):
        Blocks(images, 2, side=4)


def test_the_classes_of_each_task_can_be_given():
    tasks = stream(number=2, sets=[[5, 1, 2], [0, 11, 7]])
    x, y, *_ = tasks.batch(7)
    assert torch.tensor([0, 11, 7])[y].equal(x % 12)
