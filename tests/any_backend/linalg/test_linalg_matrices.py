"""Factorisations of random, ill-conditioned and structured matrices, and their derivatives, against NumPy and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import pullback as pb
from captured_step import needs_kernels
from conftest import agrees_with_torch, close, host

RNG = np.random.default_rng(8)
L = pb.linalg


def positive(*shape: int) -> Any:
    x = RNG.standard_normal(shape)
    return x @ x.swapaxes(-1, -2) + np.eye(shape[-1])


GRADED = np.diag(10.0 ** -np.arange(0, 12, 2)) + 1e-14 * RNG.standard_normal((6, 6))
MATRICES = {
    "random": RNG.standard_normal((3, 7, 7)),
    "Hilbert": scipy.linalg.hilbert(8),
    "graded": GRADED,
    "Toeplitz": scipy.linalg.toeplitz([4.0, 1, 0.5, 0, 0, 0.1]),
    "permutation": np.eye(5)[[3, 0, 4, 1, 2]],
    "companion": scipy.linalg.companion([1.0, -3, 2, 5, 1]),
    "of 40 rows": RNG.standard_normal((2, 40, 40)),
    "one": RNG.standard_normal((1, 1, 1)),
}
DTYPES = ("float16", "bfloat16", "float32", "float64")
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def rounded(x: Any, dtype: str) -> tuple[Any, Any]:
    """Returns the tensor of a dtype, and its numbers in float64."""
    y = pb.tensor(x, dtype=dtype)
    return y, host(y.astype("float64"))


def near(got: Any, wanted: Any, dtype: str, scale: Any) -> None:
    """Asserts an error of at most some roundings of numbers of this scale."""
    assert np.abs(host(got.astype("float64")) - wanted).max(initial=0) <= 40 * EPSILON[dtype] * scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MATRICES)
def test_factors_multiply_to_the_matrix(name: str, dtype: str) -> None:
    x, exact = rounded(MATRICES[name], dtype)
    size = np.linalg.norm(exact, 2, axis=(-2, -1)).max() * exact.shape[-1]
    q, r = [y.astype("float64") for y in L.qr(x)]
    near(q @ r, exact, dtype, size)
    near(q.mT @ q, np.eye(exact.shape[-1]), dtype, exact.shape[-1])
    u, s, vh = [y.astype("float64") for y in L.svd(x)]
    near((u * pb.expand_dims(s, axis=-2)) @ vh, exact, dtype, size)
    near(L.svdvals(x), np.linalg.svd(exact, compute_uv=False), dtype, size)
    symmetric, exact = rounded((exact + exact.swapaxes(-1, -2)) / 2, dtype)
    w, v = [y.astype("float64") for y in L.eigh(symmetric)]
    near((v * pb.expand_dims(w, axis=-2)) @ v.mT, exact, dtype, size)
    near(L.eigvalsh(symmetric), np.linalg.eigvalsh(exact), dtype, size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 5, 16, 31, 33, 50])
def test_systems_and_cholesky_factors(rows: int, dtype: str) -> None:
    """On both sides of the size from which on LAPACK takes over, in batches that do not fill the lanes."""
    x, exact = rounded(positive(2, 5, rows, rows) / rows, dtype)
    size = np.linalg.norm(exact, 2, axis=(-2, -1)).max() * rows
    y = L.cholesky(x).astype("float64")
    near(y @ y.mT, exact, dtype, size)
    assert not np.triu(host(y), 1).any()
    b, right = rounded(RNG.standard_normal((5, rows, 3)), dtype)
    for got, a in (
        (L.solve(x, b), exact),
        *[(L.solve_triangular(x, b, upper=u), np.triu(exact) if u else np.tril(exact)) for u in (False, True)],
    ):
        condition = np.linalg.cond(a).max()
        near(got, np.linalg.solve(a, right), dtype, rows * condition * np.abs(np.linalg.solve(a, right)).max())
    if dtype == "float64":
        close(L.slogdet(x).logabsdet, np.linalg.slogdet(exact)[1], 1e-9)
        close(L.det(x), np.linalg.det(exact), 1e-8)


def test_solve_pivots_as_it_should() -> None:
    """Growth of small pivots would show here: the right answers are exact in the dtype."""
    tiny = np.array([[1e-20, 1], [1, 1]])
    close(L.solve(tiny, np.array([1.0, 2])), [1, 1], 1e-15)
    order = RNG.permutation(32)
    x = RNG.integers(-9, 9, (3, 32, 2)).astype(float)
    assert (host(L.solve(np.eye(32)[order], x)) == x[:, np.argsort(order)]).all()
    wilkinson = np.tril(-np.ones((20, 20)), -1) + np.eye(20)
    wilkinson[:, -1] = 1
    close(L.solve(wilkinson, wilkinson.sum(1)), np.ones(20), 1e-12)


@pytest.mark.parametrize("rows", [4, 40])
def test_the_layout_of_the_operands_makes_no_difference(rows: int) -> None:
    x, b = positive(3, rows, rows), RNG.standard_normal((3, rows, 2))
    layouts: list[Callable[[Any], Any]] = [
        lambda x: pb.asarray(np.asfortranarray(x)), lambda x: pb.asarray(np.repeat(x, 2, axis=-1))[..., ::2],
        lambda x: pb.flip(pb.asarray(np.flip(x, 0).copy()), axis=0),
        lambda x: pb.matrix_transpose(pb.asarray(x.swapaxes(-1, -2).copy())),
    ]
    for f in (L.cholesky, L.qr, L.eigh, L.eigvalsh, L.svd, L.svdvals, L.pinv, L.det, L.slogdet, lambda x: L.solve(x, b)):
        wanted = f(x)
        for layout in layouts:
            for got, right in zip(f(layout(x)), wanted):
                assert (host(got) == host(right)).all()


def test_batches_broadcast_and_may_be_empty() -> None:
    a, b = positive(3, 1, 4, 4), RNG.standard_normal((2, 4, 2))
    close(L.solve(a, b), np.linalg.solve(a, b), 1e-9)
    close(L.solve_triangular(a, b, upper=True), np.linalg.solve(np.triu(a), b), 1e-9)
    close(L.lstsq(a[:, 0], b[0]).solution, np.linalg.solve(a[:, 0], b[0]), 1e-8)
    for batch in ((0,), (2, 0)):
        for rows in (0, 3, 40):
            x = pb.zeros((*batch, rows, rows))
            assert L.cholesky(x).shape == L.inv(x).shape == L.pinv(x).shape == x.shape
            assert L.det(x).shape == L.slogdet(x).sign.shape == batch
            assert L.eigvalsh(x).shape == L.svdvals(x).shape == (*batch, rows)
    assert L.det(pb.zeros((2, 0, 0))).tolist() == [1, 1]
    assert [y.tolist() for y in L.slogdet(pb.zeros((1, 0, 0)))] == [[1], [0]]
    assert L.qr(pb.zeros((3, 0)), mode="complete").Q.tolist() == np.eye(3).tolist()
    assert L.svd(pb.zeros((3, 0))).U.tolist() == np.eye(3).tolist()


# ---- derivatives

A, S, B = RNG.standard_normal((2, 4, 4)), positive(2, 4, 4), RNG.standard_normal((2, 4, 3))
DERIVATIVES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
    "cholesky": (L.cholesky, lambda t, x: t.linalg.cholesky((x + x.mT) / 2), (S,)),
    "solve": (L.solve, lambda t, a, b: t.linalg.solve(a, b), (S, B)),
    "triangular": (
        lambda a, b: L.solve_triangular(a, b, upper=True), lambda t, a, b: t.linalg.solve_triangular(a, b, upper=True), (S, B)
    ),
    "inv": (L.inv, lambda t, x: t.linalg.inv(x), (S,)),
    "det": (L.det, lambda t, x: t.linalg.det(x), (A,)),
    "slogdet": (lambda x: L.slogdet(x).logabsdet, lambda t, x: t.linalg.slogdet(x).logabsdet, (A,)),
    "Q": (lambda x: L.qr(x).Q, lambda t, x: t.linalg.qr(x).Q, (A[:, :, :2],)),
    "R": (lambda x: L.qr(x).R, lambda t, x: t.linalg.qr(x).R, (A[:, :3],)),
    "eigvalsh": (L.eigvalsh, lambda t, x: t.linalg.eigvalsh((x + x.mT) / 2), (S,)),
    "eigenvectors": (
        lambda x: pb.square(L.eigh(x).eigenvectors), lambda t, x: t.linalg.eigh((x + x.mT) / 2).eigenvectors ** 2, (S,)
    ),
    "svdvals": (L.svdvals, lambda t, x: t.linalg.svdvals(x), (A[:, :3],)),
    "singular vectors": (
        lambda x: pb.square(L.svd(x, full_matrices=False).U), lambda t, x: t.linalg.svd(x, full_matrices=False).U ** 2,
        (A[:, :, :3],),
    ),
    "pinv": (L.pinv, lambda t, x: t.linalg.pinv(x), (A[:, :3],)),
    "lstsq": (lambda a, b: L.lstsq(a, b).solution, lambda t, a, b: t.linalg.lstsq(a, b).solution, (A[:, :, :2], B)),
    "nuclear norm": (lambda x: L.matrix_norm(x, ord="nuc"), lambda t, x: t.linalg.matrix_norm(x, ord="nuc"), (A,)),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_values_and_gradients_are_torchs(on_cpu: Any, torch: Any, name: str) -> None:
    ours, theirs, arrays = DERIVATIVES[name]
    agrees_with_torch(torch, ours, lambda *xs: theirs(torch, *xs), *arrays)


@pytest.mark.parametrize("name", DERIVATIVES)
def test_two_derivatives_are_differences(name: str) -> None:
    ours, _, arrays = DERIVATIVES[name]
    pb.check_gradients(ours, [x[0, :, :2] if x is B else x[0] for x in arrays], order=2)


@pytest.mark.parametrize("name", DERIVATIVES)
def test_examples_of_a_batch_are_what_they_are_alone(name: str) -> None:
    ours, _, arrays = DERIVATIVES[name]
    xs = [pb.tensor(x) for x in arrays]
    loss = lambda *xs: pb.sum(pb.square(ours(*xs)))
    for got, *alone in zip(pb.vmap(pb.grad(loss))(*xs)[None], *[[pb.grad(loss)(*[x[k] for x in xs])] for k in range(2)]):
        close(got, np.stack([host(y) for y in alone]), 1e-9)
    tangents = [pb.ones_like(x) for x in xs]
    close(pb.jvp(ours, xs, tangents)[1][1], host(pb.jvp(ours, [x[1] for x in xs], [t[1] for t in tangents])[1]), 1e-9)


def test_gradients_of_each_example() -> None:
    loss = lambda a, b: pb.sum(pb.square(L.solve_triangular(a, b, upper=False)))
    a, rows = pb.tensor(S[0]), pb.tensor(B[0].T)
    found = pb.per_example_grad(loss)(a, rows)
    for k in range(3):
        close(found[k], host(pb.grad(loss)(a, rows[k])), 1e-9)


# ---- matrices at which a rule divides by zero: docs/derivatives.md


def gradient_at(f: Callable[..., Any], x: Any) -> Any:
    return host(pb.grad(lambda x: pb.sum(f(x)))(pb.tensor(np.asarray(x, float))))


def test_degenerate_matrices() -> None:
    rank_one = np.outer([1.0, 2, 2], [1.0, 0, 0])
    assert np.isnan(gradient_at(lambda x: L.slogdet(x).logabsdet, rank_one)).all()
    assert not gradient_at(lambda x: L.slogdet(x).sign, rank_one).any()
    assert np.isfinite(gradient_at(L.svdvals, rank_one)).all()
    assert np.isnan(gradient_at(lambda x: L.qr(x).Q, np.zeros((3, 2)))).all()
    assert np.isfinite(gradient_at(L.pinv, rank_one)).all()
    assert not gradient_at(lambda x: L.matrix_rank(x).astype("float64") * pb.sum(x * 0), rank_one).any()
    repeated = np.diag([2.0, 2, 1])
    close(gradient_at(L.eigvalsh, repeated), np.eye(3))
    vectors = gradient_at(lambda x: L.eigh(x).eigenvectors[:, :2] * B[0, :3, :2], repeated)
    assert np.isnan(vectors).all()
    assert np.isnan(gradient_at(lambda x: pb.square(L.eigh(x).eigenvectors).sum(axis=0), repeated)).all()
    full = gradient_at(lambda x: L.svd(x).U[:, 2] * 3.0, np.eye(3)[:, :2] * [1.0, 2])
    assert not full.any()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3), (0, 2, 3), (0,), (2, 0)])
def test_norms_without_elements_are_numpys(shape: tuple[int, ...]) -> None:
    """The largest of no numbers is 0, as in NumPy 2; the smallest of none is an error in words."""
    x, axis = np.zeros(shape), (-2, -1) if len(shape) > 1 else -1
    for order in (None, 1, 2, -1, -2, np.inf, -np.inf, *(("fro", "nuc") if len(shape) > 1 else (0, 3))):
        for keepdims in (False, True):
            try:
                with np.errstate(divide="ignore"):
                    wanted = np.linalg.norm(x, order, axis, keepdims)
            except ValueError:
                with pytest.raises(pb.ShapeError, match=r"^norm: ord=-.*is the smallest of some numbers, and here there are none"):
                    L.norm(x, order, axis, keepdims)
                continue
            found = L.norm(x, order, axis, keepdims)
            assert found.dtype == np.float64
            np.testing.assert_array_equal(host(found), wanted, strict=True)
    close(pb.grad(lambda x: pb.sum(L.norm(x, np.inf, axis)))(pb.tensor(x)), x)


# ---- norms of integers


FEW_ULPS = 8 * np.finfo("float32").eps
OF_INTEGERS: dict[str, Any] = {
    "uint8": [[16, 16], [255, 3]], "int8": [[-128, 1], [100, 100]], "int16": [[300, 400], [-32768, 7]],
    "int32": [[50000, 50000], [-(2**31), 2]], "uint32": [[2**32 - 1, 1], [2, 3]], "int64": [[2**32, 1], [2, -(2**40)]],
    "uint64": [[2**33, 1], [2**42, 3]], "uint16": [[2, 2], [65535, 1]],
}


@pytest.mark.parametrize("dtype", OF_INTEGERS)
@pytest.mark.parametrize("order", [None, 1, 2, -1, -2, 3, 0, np.inf, -np.inf])
def test_norms_of_integers_are_those_of_floats(dtype: str, order: Any) -> None:
    """The powers and sums of integers would overflow, and a negative power of one is 0."""
    x = np.array(OF_INTEGERS[dtype], dtype)
    wide, power = x.astype(float), 2 if order is None else order
    for found, wanted in [
        (L.norm(x.ravel(), order), np.linalg.norm(wide.ravel(), order)),
        (L.norm(x, order, 0), np.linalg.norm(wide, order, 0)),
        (L.vector_norm(x, ord=power), np.linalg.norm(wide.ravel(), order)),
        (L.vector_norm(pb.tensor(x), ord=power, axis=-1), np.linalg.norm(wide, order, -1)),
        (pb.vmap(lambda row: L.norm(row, order))(pb.tensor(x)), np.linalg.norm(wide, order, 1)),
    ]:
        assert found.dtype == pb.float32
        np.testing.assert_allclose(host(found), wanted, rtol=FEW_ULPS)


@pytest.mark.parametrize("dtype", OF_INTEGERS)
@pytest.mark.parametrize("order", ["fro", "nuc", 1, 2, -1, -2, np.inf, -np.inf])
def test_norms_of_matrices_of_integers_are_those_of_floats(dtype: str, order: Any) -> None:
    x = np.array(OF_INTEGERS[dtype], dtype)
    batch = np.stack([x, x[::-1] // 2])
    wanted, size = np.linalg.norm(batch.astype(float), order, (1, 2)), np.linalg.norm(batch.astype(float))
    one = lambda t: L.matrix_norm(t, ord=order)
    for found, there in [
        (L.norm(x, order), wanted[0]), (one(batch), wanted), (pb.vmap(one)(pb.tensor(batch)), wanted)
    ]:
        assert found.dtype == pb.float32
        np.testing.assert_allclose(host(found), there, rtol=FEW_ULPS, atol=FEW_ULPS * size if order in ("nuc", 2, -2) else 0)


@needs_kernels
@pytest.mark.parametrize("order", [1, 2, -1, np.inf])
def test_norms_of_integers_can_be_captured(order: Any) -> None:
    step = pb.capture(lambda x: (L.vector_norm(x, ord=order), L.matrix_norm(x, ord="fro" if order == 2 else order)))
    for values in ([[100, 100], [-128, 3]], [[1, -2], [3, 4]], [[-100, 7], [90, 127]]):
        wide = np.array(values, float)
        for found, wanted in zip(step(pb.tensor(values, dtype="int8")), [np.linalg.norm(wide.ravel(), order), np.linalg.norm(
            wide, "fro" if order == 2 else order
        )]):
            np.testing.assert_allclose(host(found), wanted, rtol=FEW_ULPS)
    assert step.stats().replays > 0


@pytest.mark.parametrize("axis", [(0, 1), [1, 0], np.array([2, 0]), range(1, 3), [1], (-1,)], ids=str)
def test_axes_of_a_norm_may_be_any_sequence(axis: Any) -> None:
    x = np.random.default_rng(2).standard_normal((2, 3, 4))
    for keepdims in (False, True):
        close(L.norm(x, 1, axis, keepdims), np.linalg.norm(x, 1, tuple(axis), keepdims), 1e-12)


@pytest.mark.parametrize(("shape", "arguments"), [
    ((2, 3, 4), (2,)), ((2, 3, 4), ("fro",)), ((2, 3, 4), (None, (0, 1, 2))), ((2, 3, 4), (2, ())), ((2, 3, 4), (2, (0, 0))),
    ((2, 3, 4), (2, (1, -2))), ((), (2,)),
])
def test_norms_that_numpy_refuses_are_refused(shape: Any, arguments: Any) -> None:
    """A norm is one of vectors along one axis, or of matrices over two different axes."""
    with pytest.raises(ValueError, match=r"Improper number of dimensions|Duplicate axes"):
        np.linalg.norm(np.ones(shape), *arguments)
    with pytest.raises(pb.ShapeError, match=r"^norm: (a norm over .*vector_norm|axis=.* names an axis twice)"):
        L.norm(np.ones(shape), *arguments)
