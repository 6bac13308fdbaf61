"""A cotangent or a tangent of zero gives zero in elementwise ops, whatever the slope is, and NaN in sums of products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import call, close, example, host, ops, takes, watched
from pullback import nn
from pullback.autodiff.primitive import Op

ODD = np.array([[np.nan, np.inf], [-np.inf, 0.0]], np.float32)
EVEN = np.array([[1.0, 2.0], [-3.0, 0.5]], np.float32)
F = nn.functional


def gradients_of_nothing(f: Any, *arrays: Any) -> list[Any]:
    """Returns the gradients by tensors from which `where` selects nothing."""
    with pb.GradientTape() as tape:
        xs = [watched(a, tape) for a in arrays]
        y = pb.sum(pb.where(False, f(*xs), 0.0))
    return [host(g) for g in tape.gradient(y, xs)]


EDGES = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 0.5, 1e300, 1e-300]


def elementwise_with_slopes() -> list[Op]:
    return [op for op in ops() if op.kind.name in ("unary", "binary") and any(op.rules) and "float32" in takes(op)]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("op", elementwise_with_slopes(), ids=str)
@pytest.mark.filterwarnings("ignore::pullback.ZeroGradientWarning", "ignore::RuntimeWarning")
def test_a_cotangent_or_a_tangent_of_zero_gives_zero_at_every_slope_of_every_elementwise_op(op: Op, dtype: str) -> None:
    inputs, params = example(op, np.float64)
    grids = np.meshgrid(*[np.array(EDGES)] * len(inputs))
    xs = [pb.tensor(x.ravel(), dtype=dtype) for x in grids]
    free = [k for k, rule in enumerate(op.rules) if rule is not None]
    f = lambda *xs: call(op, list(xs), params)
    nothing = lambda *xs: pb.sum(pb.where(False, f(*xs), 0.0))
    zeros = tuple([pb.zeros_like(x) for x in xs])
    for k in free:
        gradient = pb.grad(nothing, argnums=k)
        assert not np.any(host(gradient(*xs).astype("float64")))
        assert not np.any(host(pb.jvp(f, tuple(xs), zeros)[1].astype("float64")))
        for argument in free:  # the definitions, and not the kernels
            second = pb.grad(lambda *xs, g=gradient: pb.sum(g(*xs)), argnums=argument)(*xs)
            assert not np.any(host(second.astype("float64"))), argument
        assert not np.any(host(pb.jvp(gradient, tuple(xs), zeros)[1].astype("float64")))


def test_a_mean_without_nan_has_one_gradient_for_one_function() -> None:
    x = pb.tensor([math.nan, 1.0, 2.0], dtype="float64")
    for square in (pb.square, lambda z: z**2, lambda z: z * z):
        close(pb.grad(lambda z, f=square: pb.nanmean(f(z)))(x), [0, 1, 2])
    close(pb.grad(lambda z: pb.nansum(pb.sin(z)))(x), [0, math.cos(1), math.cos(2)])


def test_a_cotangent_of_zero_times_nan_is_nan_where_the_page_of_derivatives_says_so() -> None:
    image, kernel = np.tile(ODD, (1, 1, 2)), np.ones((1, 2, 2), np.float32)
    for f, args, which in (
        (pb.matmul, (ODD, EVEN), 1), (lambda a, b: pb.einsum("ij,jk->ik", a, b), (ODD, EVEN), 1), (F.linear, (ODD, EVEN), 1),
        (F.conv1d, (image, kernel), 1), (F.layer_norm, (ODD,), 0),
    ):
        found = gradients_of_nothing(f, *args)
        assert np.isnan(found[which]).any(), f
    seen = np.isfinite(ODD)
    w = gradients_of_nothing(lambda x, w: pb.where(seen, x, 0.0) @ w, ODD, EVEN)
    assert not np.any(w[0])
    assert not np.any(w[1])


def test_an_operand_of_hypot_that_no_batch_has_may_have_fewer_axes() -> None:
    rng = np.random.default_rng(0)
    a, b, ta, tb = [rng.uniform(0.5, 2, shape) for shape in ((3,), (3, 5, 3), (3,), (3, 5, 3))]
    tangent = pb.vmap(lambda x, y, tx, ty: pb.jvp(pb.hypot, (x, y), (tx, ty))[1], in_axes=(None, 0, None, 0))
    got = tangent(*[pb.tensor(x) for x in (a, b, ta, tb)])
    np.testing.assert_allclose(host(got), (a * ta + b * tb) / np.hypot(a, b), rtol=1e-14)
