"""The contract: every family passes every law, in every precision, for any size and task."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases import every_case
from checks import assert_near, context_of, normal
from hypothesis import given, settings
from hypothesis import strategies as st

from superpose import contexts, functional
from superpose.contexts import Key, LocalMix, mix, stack

DTYPES = [torch.float32, torch.float64, torch.complex64]
SIZES = [1, 2, 7, 16, 48, 67, 134, 256]  # odd, even, powers of two, primes too large for a matrix
SIGNS = contexts.Binary().context(Key(0, "", 0), 4)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@every_case
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


@every_case
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


@every_case
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


@every_case
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


@every_case
def test_law_4_a_context_depends_on_its_whole_key_and_on_nothing_else(case):
    x = normal(64)
    keys = [Key(0, "a", 2), Key(1, "a", 2), Key(0, "b", 2), Key(0, "a", 3)]
    bound = [case.family.context(key, 64).bind(x) for key in keys]
    torch.manual_seed(5)
    np.random.seed(5)
    assert torch.equal(case.family.context(keys[0], 64).bind(x), bound[0])
    if not isinstance(case.family, contexts.Identity):
        assert all((other - bound[0]).abs().max() > 0.1 for other in bound[1:])


@every_case
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


@every_case
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
            lambda: contexts.BlockRotation(16, learnable=True).context(Key(0, "", 0), 20),
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
