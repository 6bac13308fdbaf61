"""Norms, hypot and standard deviations at zero: the first derivative is 0, and the second is NaN, never a finite wrong number."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import close, host
from pullback import nn

L = pb.linalg
LENGTHS: dict[str, Callable[[Any], Any]] = {
    "norm": L.norm, "vector_norm": L.vector_norm, "matrix_norm": lambda x: L.matrix_norm(pb.reshape(x, (-1, 1))),
    "axis": lambda x: L.vector_norm(pb.stack([x, x]), axis=-1, keepdims=True)[1, 0],
    "hypot": lambda x: pb.hypot(x[0], x[1]), "std": pb.std, "std of a sample": lambda x: pb.std(x, correction=1),
    "nanstd": pb.nanstd, "cube": lambda x: L.vector_norm(x, ord=3), "root": lambda x: L.vector_norm(x, ord=0.5),
    "distance": lambda x: nn.functional.pairwise_distance(x[None], 0 * x[None], eps=0.0)[0],
}
AROUND: dict[str, Callable[[Any], Any]] = {
    "itself": lambda r: r, "square": lambda r: r**2, "cos": pb.cos, "Gaussian": lambda r: pb.exp(-0.5 * r**2),
}
T = np.array([1.0, 0.5])


def second_derivatives(f: Callable[[Any], Any], x: Any, t: Any) -> dict[str, Any]:
    """Returns the derivatives in direction t of the derivative, or of the gradient, in all combinations of modes."""
    forward = lambda f: lambda x: pb.jvp(f, (x,), (t,))[1]
    return {
        "reverse of reverse": host(pb.grad(lambda x: pb.sum(pb.grad(f)(x) * t))(x)),
        "forward of reverse": host(forward(pb.grad(f))(x)),
        "reverse of forward": host(pb.grad(forward(f))(x)),
        "forward of forward": host(forward(forward(f))(x)),
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", LENGTHS)
def test_at_zero_the_first_derivative_is_0_and_the_second_is_nan(name: str, dtype: str) -> None:
    zero, t = pb.zeros(2, dtype=dtype), pb.tensor(T, dtype=dtype)
    for around in AROUND.values():
        f = lambda x, around=around: around(LENGTHS[name](x))
        close(pb.grad(f)(zero).astype("float64"), [0, 0])
        close(pb.jvp(f, (zero,), (t,))[1].astype("float64"), 0)
        for mode, found in second_derivatives(f, zero, t).items():
            assert np.isnan(found.astype(float)).all(), mode
        assert not np.isfinite(np.diag(host(pb.hessian(f)(zero).astype("float64")))).any()


@pytest.mark.parametrize("name", LENGTHS)
def test_elsewhere_both_derivatives_are_those_of_the_function(name: str) -> None:
    for around in AROUND.values():
        pb.check_gradients(lambda x, around=around: around(LENGTHS[name](x)), [np.array([0.3, -0.5])], order=2)
    x = pb.tensor([0.3, -0.5], dtype="float64")
    found = second_derivatives(LENGTHS[name], x, pb.tensor(T))
    wanted = host(pb.hessian(LENGTHS[name])(x)) @ T
    for mode, got in found.items():
        close(got, T @ wanted if mode == "forward of forward" else wanted, 1e-9)


@pytest.mark.parametrize(
    "reduce", [lambda x: L.vector_norm(x, axis=-1), lambda x: pb.std(x, axis=-1), lambda x: pb.nanstd(x, axis=-1)]
)
def test_only_the_rows_of_zeros_are_nan(reduce: Any) -> None:
    x, t = np.array([[0.0, 0, 0], [3.0, 4, 1], [0.0, 2, 0]]), np.ones((3, 3)) * [[1.0, 2, 4]]
    f = lambda x: pb.sum(reduce(x) ** 2)
    alone = second_derivatives(f, pb.tensor(x[1:]), pb.tensor(t[1:]))
    for mode, found in second_derivatives(f, pb.tensor(x), pb.tensor(t)).items():
        if mode != "forward of forward":
            assert np.isnan(found[0]).all(), mode
            close(found[1:], alone[mode], 1e-9)
    unused = second_derivatives(lambda x: pb.sum(reduce(x)[1:]), pb.tensor(x), pb.tensor(t))
    assert np.isfinite(unused["reverse of reverse"]).all()


def test_a_row_of_zeros_that_does_not_move_has_no_curvature() -> None:
    x, t = pb.zeros(2, dtype="float64"), pb.tensor([0.0, 1.0], dtype="float64")
    f = lambda x: pb.sum(pb.hypot(x, 0.0) ** 2)
    for mode, found in second_derivatives(f, x, t).items():
        if mode != "forward of forward":
            assert found[0] == 0, mode
            assert np.isnan(found[1]), mode


def test_the_curvature_of_a_kernel_where_two_points_coincide() -> None:
    x = pb.tensor([0.3, -0.2], dtype="float64")
    for length, right in ((lambda d: L.vector_norm(d) ** 2, False), (lambda d: pb.sum(d * d), True)):
        k = lambda a, b, length=length: pb.exp(-0.5 * length(a - b))
        found = host(pb.jacobian(lambda a, k=k: pb.grad(k, argnums=1)(a, x))(x))
        assert np.isnan(np.diag(found)).all() if not right else np.allclose(found, np.eye(2))


@pytest.mark.parametrize("order", [0.5, 0.25, 0.9, -1, -0.5, -2])
def test_norms_of_a_power_below_1_with_an_element_of_0(order: float) -> None:
    x, rest = np.array([0.0, 3.0, -4.0]), np.array([3.0, -4.0])
    found = host(pb.grad(lambda v: L.vector_norm(v, ord=order))(pb.tensor(x)))
    assert found[0] == 0
    close(L.vector_norm(pb.tensor(x), ord=order), np.linalg.norm(x, order) if order > 0 else 0.0)
    if order > 0:
        close(found[1:], host(pb.grad(lambda v: L.vector_norm(v, ord=order))(pb.tensor(rest))), 1e-12)
    else:
        close(found[1:], [0, 0])
    moved = pb.jvp(lambda v: L.vector_norm(v, ord=order), (pb.tensor(x),), (pb.tensor([1.0, 0.0, 0.0], dtype="float64"),))[1]
    assert moved.item() == 0


@needs_kernels
def test_gradients_of_lengths_can_be_captured_and_are_the_same() -> None:
    x = pb.tensor(np.random.default_rng(0).standard_normal((4, 3)) * [[0], [1], [1], [2]], dtype="float32")
    for f, g in itertools.product((lambda x: L.vector_norm(x, axis=-1), lambda x: pb.std(x, axis=-1)), (pb.grad,)):
        gradient = g(lambda x, f=f: pb.sum(f(x)))
        step = pb.capture(gradient)
        for _ in range(2):
            assert (host(step(x)) == host(gradient(x))).all()


@pytest.mark.parametrize("name", ["norm", "vector_norm 3", "vector_norm 0.5", "normalize", "std", "hypot", "cosine_similarity"])
@pytest.mark.parametrize("count", [2, 3])
def test_two_batches_of_which_one_has_the_operand_and_both_the_cotangent(name: str, count: int) -> None:
    f = {
        "norm": pb.linalg.norm, "vector_norm 3": lambda v: pb.linalg.vector_norm(v, ord=3),
        "vector_norm 0.5": lambda v: pb.linalg.vector_norm(v, ord=0.5),
        "normalize": lambda v: pb.sum(pb.nn.functional.normalize(v[None])[0] * v),
        "std": pb.std, "hypot": lambda v: pb.hypot(v[0], v[1]),
        "cosine_similarity": lambda v: pb.nn.functional.cosine_similarity(v[None], v[::-1][None] + 1.0)[0],
    }[name]
    rows, factors = pb.tensor([[3.0, 4.0], [5.0, 12.0]], dtype="float64"), pb.linspace(1.0, 2.0, count, dtype="float64")
    one = lambda row, factor: pb.grad(lambda v: f(v) * factor)(row)
    found = pb.vmap(lambda row: pb.vmap(lambda factor: one(row, factor))(factors))(rows)
    wanted = np.stack([[host(one(row, factor)) for factor in factors] for row in rows])
    np.testing.assert_allclose(host(found), wanted, rtol=1e-14, atol=1e-16)
    jacobians = pb.vmap(pb.jacobian(lambda v: f(v) * v))(rows)
    np.testing.assert_allclose(host(jacobians), np.stack([host(pb.jacobian(lambda v: f(v) * v)(row)) for row in rows]), rtol=1e-14)


@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1e-30), ("float32", 1e30), ("float64", 1e-300), ("float64", 1e300)])
@pytest.mark.parametrize("ord", [0.5, 3, 8, -1, -3])
def test_p_norms_neither_overflow_nor_underflow(ord: float, dtype: str, scale: float) -> None:
    x = np.array([0.5, 1.25, 2.0])
    f = lambda v: pb.linalg.vector_norm(v, ord=ord)
    y, g = pb.value_and_grad(f)(pb.tensor(x * scale, dtype=dtype))
    wanted = np.sum(x**ord) ** (1 / ord)
    np.testing.assert_allclose(host(y) / scale, wanted, rtol=1e-5 if dtype == "float32" else 1e-13)
    np.testing.assert_allclose(host(g), (x / wanted) ** (ord - 1), rtol=1e-5 if dtype == "float32" else 1e-13)
