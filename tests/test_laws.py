"""The contract: every family passes every law, in every precision, for any size and task."""

import cases
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from superpose import contexts, functional
from superpose.contexts import Key, LocalMix, mix, stack

DTYPES = [torch.float32, torch.float64, torch.complex64]
SIZES = [1, 2, 7, 16, 48, 67, 134, 256]  # odd, even, powers of two, primes too large for a matrix

SIGNS = contexts.Binary().context(Key(0, "", 0), 4)

every_family = pytest.mark.parametrize("case", cases.CASES, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def context_of(case, dim, task, dtype=torch.float64, layer="layer", seed=0):
    real = dtype.to_real()
    derived = case.family.context(Key(seed, layer, task), dim)
    return derived.to(torch.device("cpu"), real)


def normal(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def tolerance(dim, dtype):
    return 10 * dim * torch.finfo(dtype).eps


def assert_near(actual, expected, dim, dtype):
    scale = max(1.0, expected.abs().max().item())
    assert (actual - expected).abs().max().item() <= tolerance(dim, dtype) * scale


@every_family
@every_dtype
@settings(deadline=None, max_examples=15)
@given(dim=st.sampled_from(SIZES), task=st.integers(0, 10_000), lead=st.lists(st.integers(1, 4)))
def test_law_1_unbind_undoes_bind_and_norms_stay(case, dtype, dim, task, lead):
    x = normal(*lead[:3], dim, dtype=dtype)
    context = context_of(case, dim, task, dtype)
    bound = context.bind(x)
    if case.exact:
        assert torch.equal(context.unbind(bound), x)
    assert_near(context.unbind(bound), x, dim, dtype)
    assert bound.shape == x.shape
    norms, before = (v.abs().square().sum(-1).sqrt() for v in (bound, x))
    assert_near(norms, before, dim, dtype)


@every_family
@every_dtype
@settings(deadline=None, max_examples=10)
@given(dim=st.sampled_from(SIZES), task=st.integers(0, 100))
def test_law_2_binding_the_input_or_the_weight_is_the_dense_model(case, dtype, dim, task):
    dense = torch.from_numpy(case.matrix(Key(0, "layer", task), dim))
    wide = torch.complex128 if dense.is_complex() or dtype.is_complex else torch.float64
    kind = dtype.to_complex() if dense.is_complex() else dtype
    x, weight = normal(3, dim, dtype=dtype), normal(4, dim, dtype=kind, seed=1)
    context = context_of(case, dim, task, dtype)
    expected = x.to(wide) @ dense.to(wide).T @ weight.to(wide).T
    assert_near(F.linear(context.bind(x), weight), expected, dim, kind)
    assert_near(F.linear(x.to(kind), context.bind_weight(weight)), expected, dim, kind)
    stored = context.unbind_weight(weight)
    assert_near(F.linear(context.bind(x), stored), F.linear(x.to(kind), weight), dim, kind)


@every_family
@pytest.mark.parametrize("dim", [7, 16, 134])
def test_gradients_are_those_of_the_dense_model(case, dim):
    dense = torch.from_numpy(case.matrix(Key(0, "layer", 3), dim))
    x = normal(3, dim, dtype=dense.dtype).requires_grad_()
    weight = normal(4, dim, dtype=dense.dtype, seed=1).requires_grad_()
    context = context_of(case, dim, 3)

    def gradients(output):
        return torch.autograd.grad(output.abs().square().sum(), (x, weight))

    expected = gradients(x @ dense.T @ weight.T)
    for output in (F.linear(context.bind(x), weight), F.linear(x, context.bind_weight(weight))):
        for found, wanted in zip(gradients(output), expected, strict=True):
            assert_near(found, wanted, dim, torch.float64)


@every_family
@every_dtype
@pytest.mark.parametrize("dim", [7, 16, 134])
def test_law_3_a_task_per_row_equals_the_rows_one_by_one(case, dtype, dim):
    tasks = [5, 0, 5, 9]
    x = normal(len(tasks), 3, dim, dtype=dtype)
    one_by_one = torch.stack(
        [context_of(case, dim, t, dtype).bind(r) for t, r in zip(tasks, x, strict=True)]
    )
    unique = [context_of(case, dim, task, dtype) for task in (0, 5, 9)]
    together = stack(unique, torch.tensor([1, 0, 1, 2])).by_row().bind(x)
    assert_near(together, one_by_one, dim, dtype)
    vectors = stack(unique, torch.tensor([1, 0, 1, 2])).bind(x[:, 0])
    assert_near(vectors, one_by_one[:, 0], dim, dtype)
    if not isinstance(case.family, contexts.Identity):
        swapped = stack(unique, torch.tensor([0, 1, 1, 2])).by_row().bind(x)
        assert (swapped[:2] - one_by_one[:2]).abs().max() > 0.1


@every_family
def test_law_4_a_context_depends_on_its_whole_key_and_on_nothing_else(case):
    x = normal(64)
    keys = [Key(0, "a", 2), Key(1, "a", 2), Key(0, "b", 2), Key(0, "a", 3)]
    bound = [case.family.context(key, 64).bind(x) for key in keys]
    torch.manual_seed(5)
    np.random.seed(5)
    assert torch.equal(case.family.context(keys[0], 64).bind(x), bound[0])
    if not isinstance(case.family, contexts.Identity):
        assert all((other - bound[0]).abs().max() > 0.1 for other in bound[1:])


@every_family
@pytest.mark.parametrize("dim", [16, 15])
def test_law_7_crosstalk_has_the_predicted_mean_and_variance(case, dim):
    """Propositions 1 and 2: ⟨w, C(s)⁻¹ C(k) x⟩ over random tasks."""
    w, x = normal(dim, seed=1) + 0.5, normal(dim, seed=2) + 0.5
    pairs = 4000
    noise = []
    for pair in range(pairs):
        # onepower's contexts of two tasks of one layer are powers of one: draw new layers instead
        k, s = (context_of(case, dim, task, layer=f"layer {pair}") for task in (1, 2))
        noise.append((w * s.unbind(k.bind(x))).sum())
    noise = torch.stack(noise)
    mean, variance = case.family.moments(w, x)
    squares = (noise - mean).abs().square()
    mean_error = (squares.mean() / pairs).sqrt()
    variance_error = squares.std() / pairs**0.5
    assert (noise.mean() - mean).abs() <= 5 * mean_error + 1e-12
    assert (squares.mean() - variance).abs() <= 5 * variance_error + 1e-12
    if not isinstance(case.family, (contexts.Identity, contexts.Permutation)):
        assert mean == 0


def test_the_variances_are_those_of_proposition_2():
    w, x = normal(16, seed=1), normal(16, seed=2)
    by_entry = (w * x).square().sum()
    by_norm = w.square().sum() * x.square().sum() / 16
    for family in (contexts.Binary(), contexts.Complex(), contexts.OnePower()):
        torch.testing.assert_close(family.moments(w, x)[1], by_entry)
    for family in (contexts.Rotation(), contexts.Hadamard(), contexts.BlockRotation(block_size=16)):
        torch.testing.assert_close(family.moments(w, x)[1], by_norm)


@every_family
def test_the_variance_of_one_coordinate_is_exact(case):
    if isinstance(case.family, (contexts.Identity, contexts.Permutation)):
        pytest.skip("its crosstalk is its mean")
    w, x = normal(1, seed=1), normal(1, seed=2)
    torch.testing.assert_close(case.family.moments(w, x)[1], (w * x).square().sum())


@pytest.mark.parametrize("dim", [3, 5, 6])
def test_the_variance_of_hadamard_is_the_mean_over_all_signs(dim):
    """H D H with D = diag(±1) is all that is random between two tasks, but for outer signs."""
    w, x = normal(dim, seed=1), normal(dim, seed=2)
    dense = functional.hadamard(torch.eye(dim).double())
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * dim)
    between = torch.stack([dense @ row.diag() @ dense for row in signs])  # (2ᴹ, M, M)
    by_outer_signs = (w[:, None] * between * x).square().sum((1, 2))
    torch.testing.assert_close(contexts.Hadamard().moments(w, x)[1], by_outer_signs.mean())


@pytest.mark.parametrize("family", [contexts.Binary(), contexts.Hadamard()])
def test_learned_numbers_that_are_no_signs_are_unbound_too(family):
    numbers = family.draw(Key(0, "layer", 1), 8).double()
    context, x = family.make(numbers * (1 + normal(*numbers.shape).abs())), normal(8)
    torch.testing.assert_close(context.unbind(context.bind(x)), x)
    assert (context.transpose().bind(context.bind(x)) - x).abs().max() > 0.1


@every_family
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: contexts.family("binry"), "unknown family 'binry': use one of identity, binary"),
        (lambda: contexts.BlockRotation(block_size=0), "block_size=0: use a whole number"),
        (lambda: contexts.with_learning(contexts.Permutation(), True), "no numbers to learn"),
        (lambda: mix([]), "0 contexts and 0 weights"),
        (
            lambda: mix([SIGNS]),
            "only contexts made of phases",
        ),
        (lambda: contexts.Binary().context(Key(0, "", 0), 4) ** 0.5, "has no power 0.5"),
        (lambda: (contexts.Binary() ** 2).moments(torch.ones(2), torch.ones(2)), "no closed form"),
        (
            lambda: contexts.BlockRotation(True, 16).context(Key(0, "", 0), 20),
            "block_size that divides 20",
        ),
        (
            lambda: contexts.Binary(learnable=True) * contexts.Hadamard(),
            "Binary.learnable=True. is part of a ProductOf, which has no numbers to learn",
        ),
        (lambda: contexts.Binary() * contexts.Hadamard(learnable=True), "part of a ProductOf"),
        (lambda: contexts.Phase(learnable=True) ** 2, "part of a PowerOf"),
        (lambda: LocalMix(contexts.Complex(learnable=True)), "part of a LocalMix"),
    ],
)
def test_errors_say_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_cache_is_bounded_and_gives_back_the_same_contexts():
    cache = contexts.layer.ContextCache(max_bytes=10_000)
    layers = [contexts.LayerContext(contexts.Hadamard(), 0, f"layer {n}", 100) for n in range(4)]
    tables = [cache.table(layer, torch.device("cpu"), torch.float32) for layer in layers]
    x = normal(100, dtype=torch.float32)
    for table, layer in zip(tables, layers, strict=True):
        for task in [*range(40), 3, 7]:
            assert torch.equal(table.one(task).bind(x), layer.derive(task).bind(x))
            assert cache.bytes <= cache.max_bytes + 40 * 2 * 100
    assert cache.table(layers[3], torch.device("cpu"), torch.float32) is tables[3]
    assert cache.table(layers[0], torch.device("cpu"), torch.float32) is not tables[0]
    row = torch.tensor([1, 0, 1, 2])
    together = tables[3].rows([3, 77, 90], row).by_row().bind(x.expand(4, 1, 100))
    for i, task in enumerate([77, 3, 77, 90]):
        assert torch.equal(together[i, 0], layers[3].derive(task).bind(x))
    first = tables[3].one(3)
    assert tables[3].one(3) is first
    cache.clear()
    assert cache.bytes == 0


def test_the_cache_forgets_what_was_used_longest_ago():
    cache, device = contexts.layer.ContextCache(max_bytes=2500), torch.device("cpu")
    a, b, c = (contexts.LayerContext(contexts.Rotation(), 0, n, 16) for n in "abc")
    used = {}
    for layer in (a, b, a, c):  # 1024 bytes each, so that two of them fit
        used[layer] = cache.table(layer, device, torch.float32)
        used[layer].one(0)
    assert cache.table(a, device, torch.float32) is used[a]
    assert cache.table(b, device, torch.float32) is not used[b]


def test_a_context_is_as_exact_as_the_weight_that_it_meets():
    layer = contexts.LayerContext(contexts.Rotation(), 0, "exact", 16)
    layer.fixed(0, torch.device("cpu"), torch.float32)
    double = layer.fixed(0, torch.device("cpu"), torch.float64)
    off = double.bind(normal(16)) - layer.derive(0).bind(normal(16))
    assert off.abs().max() < 1e-12


def test_one_layer_that_would_fill_the_cache_starts_again():
    cache = contexts.layer.ContextCache(max_bytes=1000)
    layer = contexts.LayerContext(contexts.Binary(), 0, "layer", 100)
    table = cache.table(layer, torch.device("cpu"), torch.float32)
    for task in range(200):
        assert torch.equal(table.one(task).signs, layer.derive(task).signs)
        assert cache.bytes <= 4 * cache.max_bytes
