"""Norms, unit vectors and angles of vectors of any size that the dtype can hold: values and derivatives."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

import pullback as pb
from pullback import nn

F: Final = nn.functional
RANGE: Final = {
    "float32": (-37, -30, -20, -17, -16, -3, 0, 5, 18, 19, 25, 37), "float64": (-307, -200, -160, -150, 0, 100, 153, 200, 307),
    "bfloat16": (-37, -20, 0, 20, 37), "float16": (-4, 0, 4),
}
CASES: Final = [(dtype, exponent) for dtype, exponents in RANGE.items() for exponent in exponents]
# Where 10^-exponent, the size of second derivatives, has a place in the dtype, too.
SMOOTH: Final = [c for c in CASES if c[0] in ("float32", "float64") and abs(c[1]) <= {"float32": 30, "float64": 200}[c[0]]]
EPS: Final = {"float32": 2e-6, "float64": 1e-14, "bfloat16": 2e-2, "float16": 4e-3}
X: Final = np.array([[3.0, -1.5, 0.25, 2.0, 0.0], [0.5, 1.0, -2.0, 0.125, 1.5]])
W: Final = np.array([[1.0, -0.5, 2.0, 0.25, -1.0], [0.5, 0.75, -1.5, 1.0, 2.0]])


def sized(x: Any, dtype: str, exponent: int) -> pb.Tensor:
    """Returns 10^exponent x, which is at most the largest number."""
    return pb.tensor(x * 10.0**exponent, dtype="float64").astype(dtype)


def wide(x: pb.Tensor) -> Any:
    """Returns numbers of more range and digits."""
    return x.astype("float64").numpy().astype(np.longdouble)


def close(y: pb.Tensor, right: Any, dtype: str) -> None:
    off = np.abs(wide(y) - right).max() / np.abs(right).max()
    assert off <= EPS[dtype], f"{y} is {float(off):.2g} off {right}"


def length(x: Any) -> Any:
    return np.sqrt((x * x).sum(-1, keepdims=True))


@pytest.mark.parametrize(("dtype", "exponent"), CASES)
def test_a_norm_is_right_over_the_whole_range(dtype: str, exponent: int) -> None:
    x = sized(X, dtype, exponent)
    for axis in (0, 1, None):
        y = pb.linalg.vector_norm(x, axis=axis)
        close(y, np.sqrt((wide(x) ** 2).sum(axis)), dtype)
        close(pb.linalg.vector_norm(x.T, axis=None if axis is None else 1 - axis), wide(y), dtype)
    close(pb.linalg.matrix_norm(x), np.sqrt((wide(x) ** 2).sum()), dtype)
    close(pb.linalg.vector_norm(pb.reshape(x, (1, 2, 5)), axis=(0, 2)), length(wide(x))[:, 0], dtype)


@pytest.mark.parametrize(("dtype", "exponent"), CASES)
@pytest.mark.parametrize("cotangent", [1e-3, 1.0, 30.0])
def test_its_derivatives_are_right_over_the_whole_range(dtype: str, exponent: int, cotangent: float) -> None:
    x, w = sized(X, dtype, exponent), pb.tensor(W, dtype=dtype)

    def f(x: Any) -> Any:
        return pb.linalg.vector_norm(x, axis=1) * cotangent

    unit = wide(x) / length(wide(x)) * cotangent
    close(pb.grad(lambda x: pb.sum(f(x)))(x), unit, dtype)
    close(pb.jvp(f, (x,), (w,))[1], (unit * W).sum(1), dtype)
    close(pb.vjp(lambda x: pb.vmap(f, in_axes=1)(pb.stack([x, x], axis=1)), x)[1](pb.ones((2, 2), dtype=dtype))[0], 2 * unit, dtype)


@pytest.mark.parametrize(("dtype", "exponent"), SMOOTH)
def test_its_second_derivative_is_right_over_the_whole_range(dtype: str, exponent: int) -> None:
    x = sized(X[0], dtype, exponent)
    n = length(wide(x))
    u = wide(x) / n
    hessian = pb.jacobian(pb.grad(pb.linalg.vector_norm))(x)
    close(hessian, (np.eye(5) - np.outer(u, u)) / n, dtype)
    w = pb.tensor(W[0], dtype=dtype)
    close(pb.jvp(pb.grad(pb.linalg.vector_norm), (x,), (w,))[1], (W[0] - u * (u @ W[0])) / n, dtype)


@pytest.mark.parametrize(("dtype", "exponent"), [c for c in CASES if -12 < c[1] < 35])
def test_unit_vectors_are_right_over_the_whole_range(dtype: str, exponent: int) -> None:
    x, w = sized(X, dtype, exponent), pb.tensor(W, dtype=dtype)
    n = length(wide(x))
    u = wide(x) / n
    close(F.normalize(x), u, dtype)
    right = (W - u * (u * W).sum(1, keepdims=True)) / n * 10.0**exponent
    gradient = pb.grad(lambda x: pb.sum(F.normalize(x) * w))(x)
    close(pb.tensor((wide(gradient) * 10.0**exponent).astype("float64")), right, dtype)
    tangent = pb.jvp(F.normalize, (x,), (sized(W, dtype, exponent),))[1]
    close(tangent, right, dtype)


@pytest.mark.parametrize(("dtype", "exponent"), [c for c in CASES if -8 < c[1] < 35])
def test_angles_are_right_or_nan_over_the_whole_range(dtype: str, exponent: int) -> None:
    x, w = sized(X, dtype, exponent), pb.tensor(W, dtype=dtype)
    n, m = length(wide(x)), length(wide(w))
    u, v = wide(x) / n, wide(w) / m
    cosine = (u * v).sum(1, keepdims=True)
    for a, b in ((x, w), (w, x)):
        close(F.cosine_similarity(a, b), cosine[:, 0], dtype)
    both = F.cosine_similarity(x, sized(W, dtype, exponent))
    if exponent <= (153 if dtype == "float64" else 18):
        close(both, cosine[:, 0], dtype)
    else:
        assert np.isnan(both.numpy()).all()
    by_x, by_w = pb.grad(lambda x, w: pb.sum(F.cosine_similarity(x, w)), argnums=(0, 1))(x, w)
    close(pb.tensor((wide(by_x) * 10.0**exponent).astype("float64")), (v - cosine * u) / n * 10.0**exponent, dtype)
    close(by_w, (u - cosine * v) / m, dtype)


@pytest.mark.parametrize("n", [1, 7, 300, 100_000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_small_squares_count_beside_a_large_one(n: int, dtype: str) -> None:
    small, top = (2.0**-64, 2.0**-50) if dtype == "float32" else (2.0**-538, 2.0**-520)
    x = np.full(n, small, dtype)
    x[0] = top
    close(pb.linalg.vector_norm(pb.tensor(x)), np.sqrt((x.astype(np.longdouble) ** 2).sum()), dtype)


def test_a_norm_that_no_number_can_hold_is_infinite() -> None:
    x = pb.tensor(np.full(4, 3e38, "float32"))
    assert float(pb.linalg.vector_norm(x)) == np.inf
    assert float(pb.linalg.vector_norm(pb.tensor([1.0, np.inf]))) == np.inf
    assert np.isnan(float(pb.linalg.vector_norm(pb.tensor([1e30, np.nan]))))
    assert float(pb.linalg.vector_norm(pb.zeros(0))) == 0.0


@pytest.mark.parametrize(("dtype", "exponent"), SMOOTH)
@pytest.mark.parametrize("function", ["vector_norm", "std"])
def test_a_vector_that_is_not_used_has_no_second_derivative(dtype: str, exponent: int, function: str) -> None:
    """The sum over it, which its cotangent 0 multiplies, may be infinite."""
    x, v = sized(X, dtype, exponent), sized(W, dtype, exponent)

    def first(x: Any) -> Any:
        return (pb.std(x, axis=1) if function == "std" else pb.linalg.vector_norm(x, axis=1))[0]

    twice = pb.grad(lambda x: pb.sum(pb.grad(first)(x) * v))(x)
    np.testing.assert_array_equal(wide(twice[1]), 0)
    close(twice[0], wide(pb.hvp(first, x, v)[0]), dtype)
