"""Composition: products, powers and mixtures of contexts and families."""

import pytest
import torch
import torch.nn.functional as F
from cases import every_case
from checks import assert_near, context_of, normal

from superpose import contexts
from superpose.contexts import Key, LocalMix, mix


@every_case
@pytest.mark.parametrize("dim", [8, 9])
def test_contexts_form_a_group(case, dim):
    a, b, c = (context_of(case, dim, task) for task in (1, 2, 3))
    x = normal(5, dim)

    def same(left, right):
        assert_near(left.bind(x), right.bind(x), dim, torch.float64)

    same((a * b) * c, a * (b * c))
    same(a * a.inverse(), a**0)
    same((a * b).inverse(), b.inverse() * a.inverse())
    same(a**3, a * a * a)
    same(a**-2, a.inverse() * a.inverse())
    same(a**2 * a**-3, a**-1)
    torch.testing.assert_close((a**0).bind(x).real, x)
    if case.commutes:
        same(a * b, b * a)
    else:
        assert ((a * b).bind(x) - (b * a).bind(x)).abs().max() > 0.1
    weight = normal(4, dim, dtype=a.bind(x).dtype, seed=1)
    product = a * b
    assert_near(
        F.linear(product.bind(x), weight),
        F.linear(x.to(weight.dtype), product.bind_weight(weight)),
        dim,
        torch.float64,
    )


def test_onepower_turns_sums_of_tasks_into_products():
    family = contexts.OnePower()
    a, b, both = (family.context(Key(0, "layer", task), 32) for task in (3, 4, 7))
    x = normal(32)
    torch.testing.assert_close((a * b).bind(x), both.bind(x))
    torch.testing.assert_close(
        family.context(Key(0, "layer", 1), 32).__pow__(7).bind(x), both.bind(x)
    )
    far = 10**12
    a, b, both = (family.context(Key(0, "layer", task), 32) for task in (far, 3, far + 3))
    torch.testing.assert_close((a * b).bind(x), both.bind(x))


@pytest.mark.parametrize("family", [contexts.Complex(), contexts.Phase()])
def test_phases_take_any_power_and_any_mixture(family):
    a, b = (family.context(Key(0, "layer", task), 16) for task in (1, 2))
    x = normal(16)
    half = a**0.5
    torch.testing.assert_close((half * half).bind(x), a.bind(x))
    mixed = mix([a, b], [3, 1])
    torch.testing.assert_close(mixed.turns, 0.75 * a.turns + 0.25 * b.turns)
    torch.testing.assert_close(mixed.unbind(mixed.bind(x)).real, x)


def test_local_mix_averages_the_phases_of_neighbouring_tasks():
    family = contexts.Complex()
    phases = [family.context(Key(0, "layer", task), 16).turns for task in (4, 5, 6)]
    mixed = LocalMix(family).context(Key(0, "layer", 5), 16)
    torch.testing.assert_close(mixed.turns, sum(phases) / 3)
    far = LocalMix(family, window=2, weights=(1, 0, 0, 0, 0)).context(Key(0, "layer", 6), 16)
    torch.testing.assert_close(far.turns, phases[0])

    def likeness(one, other):
        return (one.phasors * other.phasors.conj()).mean().abs().item()

    fast = [family.context(Key(0, "layer", t), 4096) for t in (5, 6)]
    near = [LocalMix(family).context(Key(0, "layer", t), 4096) for t in (5, 6)]
    assert likeness(*fast) < 0.1 < 0.5 < likeness(*near)


def test_weights_of_a_local_mix_may_be_a_list():
    family = LocalMix(contexts.Phase(), 1, weights=[1, 2, 1])
    assert family == LocalMix(contexts.Phase(), 1, weights=(1, 2, 1))
    assert contexts.from_description(contexts.describe(family)) == family
    layer = contexts.LayerContext(family, 0, "layer", 8)
    turns = [contexts.Phase().context(Key(0, "layer", task), 8).turns for task in (4, 5, 6)]
    found = layer.fixed(5, torch.device("cpu"), torch.float64).turns
    torch.testing.assert_close(found, (turns[0] + 2 * turns[1] + turns[2]) / 4)


def test_compositions_of_families():
    family = contexts.Binary() * contexts.Permutation()
    key = Key(0, "layer", 3)
    x = normal(12)
    signs = contexts.Binary().context(Key(0, "layer:outer", 3), 12)
    order = contexts.Permutation().context(Key(0, "layer:inner", 3), 12)
    assert torch.equal(family.context(key, 12).bind(x), signs.bind(order.bind(x)))
    squared = (contexts.Rotation() ** 2).context(key, 12)
    once = contexts.Rotation().context(key, 12)
    torch.testing.assert_close(squared.bind(x), once.bind(once.bind(x)))
