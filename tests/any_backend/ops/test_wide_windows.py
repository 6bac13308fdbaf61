"""Strides, paddings, dilations and kernels of any size: the results by definition where there are results, else errors in words.

The definition visits the taps that meet an element, so that it ends for all numbers. An op must do so too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback.nn import functional as F

WIDE = (7, 40, 800, 10**4, 2**29, 2**30, 2**31 - 1, 2**31, 2**32 + 1, 2**38)
ABSURD = (2**40 + 1, 2**41, 2**62, 2**63 - 1, 2**63, 2**64, 10**30)
X = np.random.default_rng(0).standard_normal((2, 4, 5, 6))
GEOMETRIES: dict[str, Callable[[int], tuple[int, int, int]]] = {  # stride, padding and dilation
    "all": lambda b: (b, b, b),
    "between": lambda b: (b, b, b - 1),
    "dilation": lambda b: (1, b, b),
    "stride": lambda b: (b, 1, 1),
    "padded": lambda b: (b - 1, b, b + 2),
}


def convolved(x: Any, w: Any, stride: int, padding: int, dilation: int, groups: int) -> Any:
    """Returns the convolution by definition: a sum over the taps that meet an element of x."""
    size = [(n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(x.shape[2:], w.shape[2:])]
    y = np.zeros((len(x), len(w), *size))
    outs, ins = len(w) // groups, x.shape[1] // groups
    for p, q, i, j in itertools.product(*map(range, (*size, *w.shape[2:]))):
        row, column = p * stride + i * dilation - padding, q * stride + j * dilation - padding
        if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
            for g in range(groups):
                out, into = slice(g * outs, (g + 1) * outs), slice(g * ins, (g + 1) * ins)
                y[:, out, p, q] += x[:, into, row, column] @ w[out, :, i, j].T
    return y


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("b", WIDE)
def test_convolutions_and_their_gradients_are_the_definitions(native: None, b: int, geometry: str, groups: int) -> None:
    stride, padding, dilation = GEOMETRIES[geometry](b)
    rng = np.random.default_rng(b % 1000)
    w = rng.standard_normal((4, 4 // groups, 3, 2 if geometry == "stride" else 3))
    how: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    wanted = convolved(X, w, **how)
    g = rng.standard_normal(wanted.shape)
    x, v = pb.tensor(X), pb.tensor(w)
    with pb.GradientTape() as tape:
        tape.watch([x, v])
        y = F.conv2d(x, v, **how)
    gx, gw = tape.gradient(y, [x, v], output_gradients=pb.tensor(g))
    np.testing.assert_allclose(host(y), wanted, rtol=1e-12, atol=1e-12)
    # The convolution is linear in x and in w, so that each partial derivative is the result for one element, paired with g.
    for gradient, value, of in ((gx, X, lambda e: convolved(e, w, **how)), (gw, w, lambda e: convolved(X, e, **how))):
        for place in rng.integers(0, value.size, 4):
            one = np.zeros(value.size)
            one[place] = 1
            np.testing.assert_allclose(host(gradient).reshape(-1)[place], np.sum(of(one.reshape(value.shape)) * g), atol=1e-12)


@pytest.mark.parametrize("b", WIDE[:4])
def test_a_transposed_convolution_is_the_gradient_of_the_convolution(native: None, b: int) -> None:
    x, w = pb.tensor(X[:, :, :1, :2]), pb.tensor(np.random.default_rng(1).standard_normal((4, 3, 2, 2)))
    y = F.conv_transpose2d(x, w, stride=b, padding=b, dilation=2 * b)
    with pb.GradientTape() as tape:
        z = pb.zeros(y.shape, dtype="float64")
        tape.watch(z)
        paired = F.conv2d(z, w, stride=b, padding=b, dilation=2 * b)
    assert paired.shape == x.shape
    np.testing.assert_array_equal(host(tape.gradient(paired, z, output_gradients=x)), host(y))


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_tap_outside_multiplies_zeros_of_the_padding(bad: float) -> None:
    w = np.ones((1, 4, 3, 3))
    w[0, 1, 0, 0] = bad
    for b in (1, 7, 800):
        y = host(F.conv2d(pb.tensor(X), pb.tensor(w), padding=b, dilation=b))
        assert np.isnan(y[:, :, 0, 0]).all()  # there the first tap meets the padding, and bad * 0 is NaN


@pytest.mark.parametrize("b", ABSURD)
@pytest.mark.parametrize("name", ["stride", "padding", "dilation", "groups", "output_padding"])
def test_absurd_numbers_of_a_convolution_are_refused(name: str, b: int) -> None:
    for f in (F.conv2d, F.conv_transpose2d):
        if name != "output_padding" or f is F.conv_transpose2d:
            with pytest.raises(pb.ShapeError, match=r"is larger than 2\^40|covers more than 2\^40"):
                f(pb.tensor(X), pb.ones((4, 4, 3, 3)), **{name: b})


@pytest.mark.parametrize("b", [2**30, 2**36, 2**40])
def test_a_result_that_no_memory_holds_is_an_out_of_memory_error(native: None, b: int) -> None:
    x, w = pb.tensor(X), pb.ones((4, 4, 3, 3), dtype="float64")
    for call in (
        lambda: F.conv2d(x, w, padding=b),
        lambda: F.conv_transpose2d(x, w, stride=b),
        lambda: F.conv_transpose2d(x, w, dilation=b // 2),
        lambda: F.adaptive_avg_pool2d(x, b),
    ):
        with pytest.raises((pb.OutOfMemoryError, pb.ShapeError)):
            call()


# ---- pools


def pooled(x: Any, k: int, stride: int, padding: int, dilation: int, ceil: bool, how: str) -> Any:
    """Returns the pool of the last axis by definition. how: "max", "mean" or "padded"."""
    n, reach = x.shape[-1], dilation * (k - 1) + 1
    room = n + 2 * padding - reach
    count = (-(-room // stride) if ceil else room // stride) + 1
    count -= ceil and (count - 1) * stride >= n + padding
    results = []
    for o in range(count):
        start = o * stride - padding
        inside = [i for i in range(n) if i >= start and (i - start) % dilation == 0 and (i - start) // dilation < k]
        taken = x[..., inside]
        length = min(start + k, n + padding) - start
        results.append(taken.max(-1) if how == "max" else taken.sum(-1) / (length if how == "padded" else len(inside)))
    return np.stack(results, -1)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("how", ["max", "mean", "padded"])
@pytest.mark.parametrize("b", [6, *WIDE])
def test_pools_and_their_gradients_are_the_definitions(native: None, b: int, how: str, ceil: bool) -> None:
    options: dict[str, Any] = {} if how == "max" else {"count_include_pad": how == "padded"}
    for stride, padding in ((1, b // 2), (b // 2 + 1, b // 2), (b, b // 2), (3, b // 2)):
        f = F.max_pool1d if how == "max" else F.avg_pool1d
        wanted = pooled(X, b, stride, padding, 1, ceil, how)
        x = pb.tensor(X)
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = f(x, b, stride, padding, ceil_mode=ceil, **options)
            total = pb.sum(y * y)
        np.testing.assert_allclose(host(y), wanted, rtol=1e-12)
        direction = np.random.default_rng(0).standard_normal(X.shape) * 1e-6
        up, down = (np.sum(pooled(X + d, b, stride, padding, 1, ceil, how) ** 2) for d in (direction, -direction))
        slope = np.sum(host(tape.gradient(total, x)) * direction)
        np.testing.assert_allclose(slope, (up - down) / 2, rtol=1e-5, atol=1e-10 * np.abs(wanted).max())
        planes = F.max_pool2d(x, b, stride, padding, ceil_mode=ceil) if how == "max" else None
        if planes is not None:
            rows = np.moveaxis(pooled(np.moveaxis(X, -2, -1), b, stride, padding, 1, ceil, how), -1, -2)
            np.testing.assert_array_equal(host(planes), pooled(rows, b, stride, padding, 1, ceil, how))


@pytest.mark.parametrize("b", WIDE)
def test_wide_dilations_of_maxima(native: None, b: int) -> None:
    y, at = F.max_pool1d(pb.tensor(X), 3, padding=b, stride=b, dilation=b, return_indices=True)
    np.testing.assert_array_equal(host(y), pooled(X, 3, b, b, b, False, "max"))
    np.testing.assert_array_equal(host(y), np.take_along_axis(X, host(at), -1))
    with pytest.raises(pb.ShapeError, match="lies in the padding"):
        F.max_pool1d(pb.tensor(X[..., :3]), 2, padding=4, stride=1, dilation=8)


@pytest.mark.parametrize("b", ABSURD)
def test_absurd_numbers_of_a_pool_are_refused(b: int) -> None:
    x = pb.tensor(X)
    named = (
        {"kernel_size": b},
        {"kernel_size": b, "padding": b // 2},
        {"kernel_size": 2, "stride": b},
        {"kernel_size": 2, "padding": b},
    )
    for f, arguments in itertools.product((F.max_pool1d, F.max_pool2d, F.avg_pool1d, F.avg_pool2d), named):
        with pytest.raises(pb.ShapeError, match=r"is larger than 2\^40"):
            f(x, **arguments)
    with pytest.raises(pb.ShapeError, match=r"of at most 2\^40"):
        F.avg_pool2d(x, 2, divisor_override=-b)
