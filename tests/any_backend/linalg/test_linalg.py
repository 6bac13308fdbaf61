"""Factorisations and linear systems: values, derivatives where matrices are degenerate, and bad matrices."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import close, host

RNG = np.random.default_rng(5)
A = RNG.standard_normal((2, 4, 4))
S = A @ A.swapaxes(-1, -2) + np.eye(4)
B = RNG.standard_normal((4, 3))
L = pb.linalg
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
    "cholesky": (lambda x: L.cholesky(x, upper=True), lambda x: np.linalg.cholesky(x).swapaxes(-1, -2), (S,)),
    "solve": (L.solve, np.linalg.solve, (S, B)),
    "inv": (L.inv, np.linalg.inv, (S,)),
    "det": (L.det, np.linalg.det, (A,)),
    "slogdet": (L.slogdet, np.linalg.slogdet, (A,)),
    "qr": (L.qr, np.linalg.qr, (A[:, :3],)),
    "pinv": (L.pinv, np.linalg.pinv, (A[:, :, :2],)),
    "svd": (lambda x: L.svd(x, full_matrices=False), lambda x: np.linalg.svd(x, full_matrices=False), (A[:, :3],)),
    "eigh": (L.eigh, np.linalg.eigh, (S,)),
}


def leaves(y: Any) -> list[Any]:
    return list(y) if isinstance(y, tuple) else [y]


def values(name: str, y: Any) -> list[Any]:
    """Returns the results of a function as arrays, with those signs of vectors that LAPACK chooses chosen in one way."""
    arrays = [host(x) for x in leaves(y)]
    if name in ("svd", "eigh"):
        vectors = arrays[0 if name == "svd" else 1]
        largest = np.take_along_axis(vectors, np.argmax(np.abs(vectors), axis=-2, keepdims=True), axis=-2)
        arrays[0 if name == "svd" else 1] = vectors * np.sign(largest)
        if name == "svd":
            arrays[2] = arrays[2] * np.sign(largest).swapaxes(-1, -2)
    return arrays


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_numpys_in_every_layout_and_under_vmap(name: str) -> None:
    f, numpys, args = FUNCTIONS[name]
    wanted = values(name, numpys(*args))
    for layout in (np.ascontiguousarray, lambda x: np.repeat(x, 2, axis=-1)[..., ::2], np.asfortranarray):
        for got, there in zip(values(name, f(*[pb.asarray(layout(x)) for x in args])), wanted):
            close(got, there, 1e-9)
    axes = (0,) + (None,) * (len(args) - 1)
    for got, there in zip(values(name, pb.vmap(f, in_axes=axes)(*[pb.tensor(x) for x in args])), wanted):
        close(got, there, 1e-9)
    for dtype in ("float16", "bfloat16", "float32"):
        assert all([y.dtype == pb.tensor([0.0], dtype=dtype).dtype for y in leaves(f(*[pb.tensor(x, dtype=dtype) for x in args]))])


def test_gradients_of_solve_under_vmap_are_those_of_each_example() -> None:
    f = pb.grad(lambda a, b: pb.sum(pb.sin(L.solve(a, b))), (0, 1))
    for axes in ((None, 0), (0, None), (0, 0)):
        args = [pb.tensor(x if axis == 0 else x[0]) for x, axis in zip((S, np.stack([B, B + 1])), axes)]
        found = pb.vmap(f, in_axes=axes)(*args)
        for k in range(2):
            for got, wanted in zip(found, f(*[x if axis is None else x[k] for x, axis in zip(args, axes)])):
                close(got[k], wanted, 1e-12)


def test_triangular_systems_from_both_sides() -> None:
    lower, upper = np.tril(S), np.triu(S)
    close(L.solve_triangular(S, B, upper=False), np.linalg.solve(lower, np.broadcast_to(B, (2, 4, 3))), 1e-9)
    close(L.solve_triangular(S, B.T, upper=True, left=False), B.T @ np.linalg.inv(upper), 1e-9)
    pb.check_gradients(
        lambda a, b: L.solve_triangular(a, b, upper=True, unitriangular=True), [0.1 * A[0, :2, :2], B[:2, 0]], order=2
    )


def test_empty_matrices() -> None:
    assert L.cholesky(pb.zeros((2, 0, 0))).shape == (2, 0, 0)
    assert L.det(pb.zeros((0, 0))).item() == 1
    assert [y.shape for y in L.svd(pb.zeros((0, 3)))] == [(0, 0), (0,), (3, 3)]
    assert [y.shape for y in L.qr(pb.zeros((2, 0, 3)))] == [(2, 0, 0), (2, 0, 3)]
    assert [y.shape for y in L.eigh(pb.zeros((0, 2, 2)))] == [(0, 2), (0, 2, 2)]
    assert L.solve(pb.eye(2), pb.zeros((2, 0))).shape == (2, 0)
    assert L.pinv(pb.zeros((0, 3))).shape == (3, 0)


# ---- degenerate matrices


def test_eigenvalues_that_are_equal_have_a_gradient_and_their_vectors_have_none() -> None:
    one = pb.eye(3, dtype="float64")
    close(pb.grad(lambda x: pb.sum(L.eigvalsh(x)))(one), np.eye(3))
    close(pb.grad(lambda x: pb.sum(L.svdvals(x)))(one), np.eye(3))
    weights = pb.tensor(B[:3])
    assert not np.isfinite(host(pb.grad(lambda x: pb.sum(L.eigh(x).eigenvectors * weights))(one))).all()


def test_the_determinant_of_a_singular_matrix_has_two_derivatives() -> None:
    for x in (np.zeros((3, 3)), np.eye(3), np.outer([1.0, 2, 3], [1, 0, 1])):
        pb.check_gradients(L.det, [x], order=2)


def test_one_singular_matrix_spoils_only_its_own_gradient() -> None:
    x = pb.tensor(np.stack([np.zeros((2, 2)), 2 * np.eye(2)]))
    gradient = host(pb.grad(lambda x: pb.sum(L.slogdet(x).logabsdet))(x))
    assert np.isnan(gradient[0]).all()
    close(gradient[1], np.eye(2) / 2)
    close(pb.grad(lambda x: L.slogdet(x).logabsdet[1])(x)[0], np.zeros((2, 2)))


def test_least_squares_of_deficient_rank() -> None:
    a = np.array([[1.0, 1], [2, 2], [3, 3]])
    found, wanted = L.lstsq(a, np.array([1.0, 0, 1])), np.linalg.lstsq(a, np.array([1.0, 0, 1]))
    close(found.solution, wanted[0])
    assert found.rank.item() == L.matrix_rank(a).item() == 1
    close(found.residuals, np.sum((a @ wanted[0] - [1, 0, 1]) ** 2))


def exact_solution(a: Any, b: Any) -> Any:
    """Returns the solution of a square system in rational numbers."""
    rows = [[Fraction(x) for x in (*row, y)] for row, y in zip(a.tolist(), b.tolist())]
    for j, pivot in enumerate(rows):
        pivot[:] = [x / pivot[j] for x in pivot]
        for row in rows:
            if row is not pivot:
                row[:] = [x - row[j] * y for x, y in zip(row, pivot)]
    return np.array([float(row[-1]) for row in rows])


def test_least_squares_of_ill_conditioned_matrices_are_as_exact_as_numpys() -> None:
    a, errors = 1 / np.add.outer(np.arange(10.0), np.arange(1.0, 11)), []
    for b in (a @ np.random.default_rng(7).standard_normal((10, 12))).T:
        wanted = exact_solution(a, b)
        found = host(L.lstsq(a, b, rcond=1e-16).solution), np.linalg.lstsq(a, b, rcond=1e-16)[0]
        errors.append([np.abs(x - wanted).max() for x in found])
    ours, numpys = np.exp(np.log(errors).mean(0))
    assert ours < 3 * numpys


def test_derivatives_of_least_squares_that_keep_a_deficient_rank() -> None:
    u, v = B[:3, :1], A[0, :1, :2]
    for f in (lambda u, v: L.lstsq(u @ v, B[:3, 1], rcond=1e-9).solution, lambda u, v: L.pinv(u @ v, rtol=1e-9)):
        pb.check_gradients(f, [u, v], order=2)


def test_gradients_of_least_squares_take_no_square_of_the_number_of_equations() -> None:
    a = np.random.default_rng(0).standard_normal((100_000, 2))
    gradient = pb.grad(lambda a: pb.sum(L.lstsq(a, np.ones(len(a))).solution))(pb.tensor(a))
    inverse = np.linalg.inv(a.T @ a)
    x, z = inverse @ a.sum(0), inverse @ np.ones(2)
    close(gradient, np.outer(1 - a @ x, z) - np.outer(a @ z, x), 1e-6)


# ---- bad matrices


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda: L.cholesky(np.stack([np.eye(3), np.diag([1.0, -1, 1])])), "matrix 1 of the batch.*leading 2 x 2"),
        (lambda: L.solve(np.stack([np.eye(2), np.ones((2, 2))]), np.ones(2)), "matrix 1 of the batch is singular"),
        (lambda: L.inv(np.zeros((2, 2))), "^inv: the matrix is singular"),
        (lambda: L.matrix_power(np.zeros((2, 2)), -1), "^matrix_power: the matrix is singular"),
        (lambda: L.lstsq(np.full((3, 2), np.nan), np.ones(3)), "^lstsq: the matrix has an element that is NaN"),
        (lambda: L.matrix_rank(np.full((3, 2), np.nan)), "^matrix_rank: the matrix has an element that is NaN"),
        (lambda: L.matrix_norm(np.full((3, 2), np.nan), ord=2), "^matrix_norm: the matrix has an element that is NaN"),
        (lambda: L.norm(np.full((3, 2), np.nan), ord=2), "^norm: the matrix has an element that is NaN"),
        (lambda: L.solve_triangular(np.diag([1.0, 0]), np.ones(2), upper=True), "diagonal element 1 is 0"),
        (lambda: L.svd(np.full((2, 2), np.nan)), "NaN or infinite"),
        (lambda: L.eigh(np.full((2, 2), np.inf)), "NaN or infinite"),
    ],
)
def test_a_bad_matrix_is_named(f: Any, words: str) -> None:
    with pytest.raises(pb.LinAlgError, match=words):
        f()
    with pytest.raises(np.linalg.LinAlgError):
        f()


def test_other_refusals() -> None:
    for f in (L.cholesky, L.inv, L.det, L.eigh):
        with pytest.raises(pb.ShapeError, match="square"):
            f(pb.ones((2, 3)))
    with pytest.raises(pb.ShapeError, match="do not fit"):
        L.solve(pb.eye(3), pb.ones(2))
    with pytest.raises(pb.PullbackError, match="no derivative"):
        pb.grad(lambda x: pb.sum(L.qr(x, mode="complete").Q))(pb.tensor(A[0, :, :2]))
    assert np.isnan(host(L.solve(np.full((2, 2), np.nan), np.ones(2)))).all()
