"""Standard deviations and normalized rows for numbers of any size that the dtype can hold: values and derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import pullback as pb
from pullback import nn

F: Final = nn.functional
RANGE: Final = {
    "float32": (-30, -20, -17, 0, 18, 19, 20, 35), "float64": (-290, -200, -160, 0, 153, 200, 290), "bfloat16": (-30, 0, 30),
    "float16": (-3, 0, 3),
}
CASES: Final = [(dtype, exponent) for dtype, exponents in RANGE.items() for exponent in exponents]
EPS: Final = {"float32": 4e-6, "float64": 1e-13, "bfloat16": 2e-2, "float16": 4e-3}
X: Final = np.random.default_rng(0).standard_normal((4, 3, 10))
W: Final = np.random.default_rng(1).standard_normal((4, 3, 10))


def sized(x: Any, dtype: str, exponent: int) -> pb.Tensor:
    return pb.tensor(x * 10.0**exponent, dtype="float64").astype(dtype)


def wide(x: pb.Tensor) -> Any:
    return x.astype("float64").numpy().astype(np.longdouble)


def close(y: pb.Tensor, right: Any, dtype: str, factor: Any = 1) -> None:
    off = np.abs(wide(y) * factor - right).max() / np.abs(right).max()
    assert off <= EPS[dtype], f"{y} is {float(off):.2g} off {right}"


@pytest.mark.parametrize(("dtype", "exponent"), CASES)
@pytest.mark.parametrize("correction", [0, 1])
def test_a_standard_deviation_is_right_over_the_whole_range(dtype: str, exponent: int, correction: int) -> None:
    x, t = sized(X, dtype, exponent), pb.tensor(W, dtype=dtype)
    z = wide(x)
    for axis, of in ((0, 4), ((1, 2), 30), (None, 120), (-1, 10)):
        right = z.std(axis=axis, ddof=correction, keepdims=True)
        slope = (z - z.mean(axis=axis, keepdims=True)) / (right * (of - correction))

        for f in (
            lambda x, axis=axis: pb.std(x, axis=axis, correction=correction, keepdims=True),
            lambda x, axis=axis: pb.nanstd(x, axis=axis, correction=correction, keepdims=True),
        ):
            close(f(x), right, dtype)
            close(pb.grad(lambda x, f=f: pb.sum(f(x)))(x), slope, dtype)
            close(pb.jvp(f, (x,), (t,))[1], (slope * wide(t)).sum(axis=axis, keepdims=True), dtype)
            close(pb.capture(f)(x), right, dtype)
            close(pb.vmap(f)(pb.stack([x, x]))[1], right, dtype)


@pytest.mark.parametrize(("dtype", "exponent"), [c for c in CASES if abs(c[1]) <= {"float32": 30, "float64": 200}.get(c[0], -1)])
def test_its_second_derivative_is_right_over_the_whole_range(dtype: str, exponent: int) -> None:
    x = sized(X[0, 0], dtype, exponent)
    z = wide(x) - wide(x).mean()
    s = wide(x).std()
    right = (np.eye(10) - 0.1 - np.outer(z, z) / (10 * s * s)) / (10 * s)
    f: Any
    for f in (pb.std, pb.nanstd):
        close(pb.jacobian(pb.grad(f))(x), right, dtype)
        close(pb.jacobian(pb.grad(f), mode="forward")(x), right, dtype)


def test_a_variance_is_infinite_only_if_no_number_can_hold_it() -> None:
    """The sum of the squares was infinite. Squares near the smallest number had lost digits."""
    x = np.random.default_rng(2).standard_normal(1000)
    for exponent in (18.5, -18.5):
        given = pb.tensor((x * 10**exponent).astype("float32"))
        close(pb.var(given), wide(given).var(), "float32")
    assert float(pb.var(pb.tensor([1e20, -1e20]))) == np.inf
    assert float(pb.var(pb.tensor([1e-30, -1e-30]))) == 0.0


@pytest.mark.parametrize("factor", [0.0, 1.0, np.inf, np.nan])
def test_a_standard_deviation_without_a_size(factor: float) -> None:
    """Equal elements have the deviation 0, as a mean over one element less than none; others have none."""
    x = pb.tensor([factor, factor])
    for f in (pb.std, pb.nanstd):
        assert np.isnan(float(f(x))) if factor not in (0.0, 1.0) else float(f(x)) == 0.0
    assert float(pb.std(pb.tensor([1.0, 2.0]), correction=2)) == np.inf
    assert np.isnan(float(pb.std(pb.zeros(0))))
    assert pb.std(pb.zeros((3, 0)), axis=0).shape == (0,)
    assert float(pb.std(pb.tensor(3.0))) == 0.0


Norm = tuple[Callable[[Any], Any], Callable[[Any], Any], bool]
NORMS: Final[dict[str, Norm]] = {
    "layer_norm": (lambda x: F.layer_norm(x, eps=0.0), lambda x: x, True),
    "rms_norm": (lambda x: F.rms_norm(x, eps=0.0), lambda x: x, False),
    "instance_norm": (lambda x: F.instance_norm(x, eps=0.0), lambda x: x, True),
    "group_norm": (lambda x: F.group_norm(x, 1, eps=0.0), lambda x: x.reshape(4, 30), True),
    "batch_norm": (
        lambda x: F.batch_norm(x, None, None, training=True, eps=0.0), lambda x: x.transpose(1, 0, 2).reshape(3, 40), True
    ),
}


@pytest.mark.parametrize(("dtype", "exponent"), CASES)
@pytest.mark.parametrize("name", NORMS)
def test_normalized_rows_are_right_over_the_whole_range(name: str, dtype: str, exponent: int) -> None:
    """Where the squares overflowed they were NaN, and where they vanished infinite or NaN."""
    f, to_rows, centred = NORMS[name]
    x, t = sized(X, dtype, exponent), sized(W, dtype, exponent)
    z, w = to_rows(wide(x)), to_rows(wide(pb.tensor(W, dtype=dtype)))
    z = z - z.mean(-1, keepdims=True) if centred else z
    size = np.sqrt((z * z).mean(-1, keepdims=True))
    u = z / size
    close(pb.tensor(to_rows(wide(f(x)).astype("float64"))), u, dtype)
    unit = np.longdouble(10.0) ** exponent
    right = (w - (w.mean(-1, keepdims=True) if centred else 0) - u * (u * w).mean(-1, keepdims=True)) / (size / unit)
    one = pb.tensor(W, dtype=dtype)
    by_kernel = pb.grad(lambda x: pb.sum(f(x) * one))(x)
    by_definition = pb.vjp(pb.grad(lambda x, w: pb.sum(f(x) * w), argnums=1), x, one)[1](one)[0]
    for gradient in (by_kernel, by_definition):
        close(pb.tensor(to_rows(wide(gradient) * unit).astype("float64")), right, dtype)
    close(pb.tensor(to_rows(wide(pb.jvp(f, (x,), (t,))[1])).astype("float64")), right, dtype)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("exponent", [-17, 0, 17])
def test_their_second_derivatives_are_right_where_a_number_can_hold_them(name: str, exponent: int) -> None:
    f, unit = NORMS[name][0], 10.0**exponent
    slope = pb.grad(lambda x: pb.sum(pb.sin(f(x))))
    x, t = sized(X, "float32", exponent), sized(W, "float32", exponent)
    right = pb.jvp(slope, (pb.tensor(wide(x).astype("float64") / unit),), (pb.tensor(wide(t).astype("float64") / unit),))[1]
    close(pb.jvp(slope, (x,), (t,))[1], wide(right), "float32", unit)


def test_a_layer_norm_of_a_row_with_an_infinity_or_distances_that_overflow_is_nan() -> None:
    for row in ([1.0, np.inf, 2.0], [3e38, -3e38, -3e38], [1.0, np.nan, 2.0]):
        assert np.isnan(F.layer_norm(pb.tensor([row, [1.0, 2.0, 4.0]])).numpy()).all(-1).tolist() == [True, False]
