"""Constraints along axes after a step: vectors of all lengths, layouts and dtypes, against float64, in one launch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from test_constraints import EPS, nearest

import pullback as pb
from captured_step import needs_kernels, same
from conftest import host
from pullback import optim
from pullback.launch import door
from pullback.optim import constraints as c

# Lengths of less than a block of the order of sums, of several, and of more than one warp of a GPU takes.
LENGTHS = (1, 2, 33, 256, 257, 1000, 2048, 2049, 20_000)
KINDS = {"most": lambda axis: c.MaxNorm(1.5, axis), "unit": c.UnitNorm, "simplex": c.Simplex}


def moved(start: Any, limit: Any, dtype: str, lr: float = 1.0, **options: Any) -> tuple[pb.Parameter, Any, Any]:
    """Returns a Parameter after a step from `start` by a gradient, the change without a constraint in float64, and the delta."""
    p = pb.Parameter(start, dtype=dtype, constraint=limit)
    g = pb.tensor(np.random.default_rng(5).standard_normal(np.shape(start)), dtype=dtype)
    q = pb.Parameter(start, dtype=dtype)
    optim.SGD([q], lr, **options).step([g])
    (delta,) = optim.SGD([p], lr, **options).step([g], return_delta=True)
    return p, host(q).astype(np.float64), delta


@pytest.mark.parametrize("dtype", list(EPS))
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", list(KINDS))
def test_vectors_of_all_lengths(kind: str, length: int, dtype: str) -> None:
    rng = np.random.default_rng(length)
    for shape, axis in (((3, length), 1), ((length, 5), 0), ((2, length, 3), 1), ((length,), None), ((2, 1, length), (1, 2))):
        if kind == "simplex" and isinstance(axis, tuple):
            continue
        limit = KINDS[kind](axis)
        p, free, delta = moved(rng.standard_normal(shape), limit, dtype)
        tolerance = EPS[dtype] * (6 if EPS[dtype] < 2.0**-20 else 2)
        np.testing.assert_allclose(host(p).astype(np.float64), nearest(limit, free), rtol=tolerance, atol=tolerance)
        if kind == "most":
            assert ((host(p).astype(np.longdouble) ** 2).sum(axis=axis) <= 1.5**2).all()
        assert delta.dtype == p.dtype


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_norms_neither_overflow_nor_vanish(scale: float) -> None:
    start = np.array([[3.0, 4.0, 0.0], [1.0, 0.0, -1.0], [0.0, 0.0, 0.0]]) * scale
    for limit in (c.UnitNorm(1), c.MaxNorm(1e-305, 1), c.MaxNorm(2 * scale, 1), c.MaxNorm(1e307, 1)):
        p = pb.Parameter(start, constraint=limit)
        optim.SGD([p], 0.1).step([pb.zeros(start.shape, dtype="float64")])
        exact = start.astype(np.longdouble)  # whose exponents are large enough for all squares
        norms = np.sqrt((exact**2).sum(axis=1, keepdims=True))
        most = 1.0 if isinstance(limit, c.UnitNorm) else limit.c
        changed = (norms > 0) & (isinstance(limit, c.UnitNorm) | (norms > most))
        wanted = np.where(changed, exact / np.where(norms > 0, norms, 1) * most, exact)
        np.testing.assert_allclose(host(p).astype(np.longdouble), wanted, rtol=1e-14)


def test_numbers_that_are_not_finite() -> None:
    nan, inf = math.nan, math.inf
    start = np.array([[0.0, 0.0], [nan, 1.0], [inf, 1.0], [0.3, -0.4]])
    start = np.concatenate([start, [[-inf, 1.0], [-inf, -inf]]])
    for limit, zero, last in (
        (c.MaxNorm(1, 1), [0, 0], [0.3, -0.4]), (c.UnitNorm(1), [0, 0], [0.6, -0.8]), (c.Simplex(1), [0.5, 0.5], [0.85, 0.15]),
    ):
        for dtype in ("float32", "float64"):
            p = pb.Parameter(start, dtype=dtype, constraint=limit)
            optim.SGD([p], 0.1).step([pb.zeros(start.shape, dtype=dtype)])
            wanted = np.array([zero, [nan, nan], [nan, nan], last, [nan, nan], [nan, nan]])
            np.testing.assert_allclose(host(p), wanted, rtol=1e-6)
            np.testing.assert_allclose(host(limit(pb.tensor(start, dtype=dtype))), wanted, rtol=1e-6)


@pytest.mark.parametrize("axes", [(0, 2), (1, 2), (0, 1, 2)], ids=["ops", "kernel", "all"])
def test_norms_near_the_bound_are_compared_in_float64(axes: Any) -> None:
    """A bound that differs from the norm by less than float32 can tell."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        x = rng.standard_normal((3, 1, 5)).astype("float32")
        norms = np.sqrt((x.astype(np.longdouble) ** 2).sum(axis=axes))
        for factor in (1 - 1e-8, 1 - 9e-8, 1 + 3e-8):
            bound = float(norms.max()) * factor
            p = pb.Parameter(x, constraint=c.MaxNorm(bound, axes))
            optim.SGD([p], 1.0).step([pb.zeros(x.shape)])
            assert (np.sqrt((host(p).astype(np.longdouble) ** 2).sum(axis=axes)) <= bound).all()
            kept = norms <= bound
            np.testing.assert_array_equal(np.moveaxis(host(p), axes, range(-len(axes), 0))[kept],
                                          np.moveaxis(x, axes, range(-len(axes), 0))[kept])


def test_an_axis_may_be_a_number_of_numpy() -> None:
    axis: Any = np.int64(1)
    for limit in (c.MaxNorm(1.0, axis), c.UnitNorm(axis), c.Simplex(axis)):
        assert limit.axis == 1


@pytest.mark.parametrize("ratio", [0.5, 0.9, 0.99, 0.999])
def test_distributions_that_take_many_rounds(ratio: float) -> None:
    """In geometric sequences each round removes a few elements, and in shifted ones nearly all but one."""
    rng = np.random.default_rng(3)
    for k in (1.0, 1e-3, 1e3):
        start = rng.permuted(np.stack([k * ratio ** np.arange(3000.0), -k * ratio ** np.arange(3000.0)]), axis=1)
        p = pb.Parameter(start, constraint=c.Simplex(1))
        optim.SGD([p], 0.1).step([pb.zeros(start.shape, dtype="float64")])
        np.testing.assert_allclose(host(p), nearest(c.Simplex(1), start), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("masters", [False, True])
@pytest.mark.parametrize("dtype", list(EPS))
@pytest.mark.parametrize("kind", list(KINDS))
def test_pruned_weights_averages_and_members(kind: str, dtype: str, masters: bool) -> None:
    """M members with masks, averages, masters and deltas are M networks alone, and each follows the definitions."""
    rng = np.random.default_rng(7)
    start, grads = rng.standard_normal((3, 4, 300)), [rng.standard_normal((3, 4, 300)) for _ in range(3)]
    options: dict[str, Any] = {"ema": 0.9, "master_weights": masters}
    together = pb.Parameter(start, dtype=dtype, constraint=KINDS[kind](1))
    alone = [pb.Parameter(x, dtype=dtype, constraint=KINDS[kind](1)) for x in start]
    opts = [optim.Adam([together], [0.1] * 3, **options), *[optim.Adam([p], 0.1, **options) for p in alone]]
    averages: Any = None
    for g in grads:
        given = [pb.tensor(g, dtype=dtype), *[pb.tensor(x, dtype=dtype) for x in g]]
        previews = [opt.preview([x]) for opt, x in zip(opts, given)]
        deltas = [opt.step([x], return_delta=True) for opt, x in zip(opts, given)]
        for before, after in zip(previews, deltas):
            same(before[0], after[0])
        weights = host(opts[0].slots(together)["master"] if masters and EPS[dtype] > 2.0**-20 else together).astype(np.float64)
        averages = weights if averages is None else 0.9 * averages + 0.1 * weights
    for k, (p, opt) in enumerate(zip(alone, opts[1:])):
        same(together[k], p)
        np.testing.assert_array_equal(host(opts[0].averaged(together))[k], host(opt.averaged(p)))
    np.testing.assert_allclose(host(opts[0].averaged(together)), averages, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", list(KINDS))
def test_pruned_weights_are_no_part_of_their_vectors(kind: str) -> None:
    rng = np.random.default_rng(9)
    p = pb.Parameter(rng.standard_normal((6, 40)), dtype="float64", constraint=KINDS[kind](1))
    opt = optim.SGD([p], 0.1, ema=0.5)
    pruning = optim.Pruning(opt, optim.schedules.PolynomialSparsity(0.0, 0.5, begin=0, stop=1, every=1))
    for _ in range(2):
        opt.step([pb.tensor(rng.standard_normal(p.shape), dtype="float64")])
    kept = host(next(iter(pruning.masks().values())))
    assert 0.4 < kept.mean() < 0.6
    start, g = host(p).copy(), rng.standard_normal(p.shape)
    opt.step([pb.tensor(g, dtype="float64")])
    np.testing.assert_array_equal(host(next(iter(pruning.masks().values()))), kept)
    free = np.where(kept, start - 0.1 * g, 0)
    if kind == "simplex":
        for row, x, keep in zip(host(p), free, kept):
            np.testing.assert_allclose(row[keep], nearest(c.Simplex(0), x[keep]), rtol=1e-12, atol=1e-14)
    else:
        np.testing.assert_allclose(host(p), nearest(KINDS[kind](1), free), rtol=1e-13)
    for x in (p, opt.averaged(p)):
        assert (host(x)[~kept] == 0).all()


@needs_kernels
def test_one_launch_projects_all_parameters_of_a_kind() -> None:
    limits = [c.MaxNorm(1, 0), c.MaxNorm(2, None), c.MaxNorm(0.5, (0, 1)), c.UnitNorm(1), c.NonNegative(), None]
    params = [pb.Parameter(np.ones((4, 3, 2)), dtype="float32", constraint=k) for k in limits]
    opt, g = optim.Adam(params), [pb.ones((4, 3, 2), dtype="float32")] * 6
    with pb.profile() as prof:
        opt.step(g)
    assert [(x.kernel, x.phase) for x in prof.launches] == [(k, door.OPTIMIZER) for k in ("adam_step", "project", "project")]
    step = pb.capture(lambda *g: opt.step(list(g)))
    step(*g)
    step(*g)
    assert step.stats().launches == 3


@needs_kernels
def test_axes_that_are_no_neighbours_and_subclasses_are_computed_with_ops() -> None:
    class Half(c.UnitNorm):
        def vectors(self, x: Any, axes: Any, rounding: float) -> Any:
            return super().vectors(x, axes, rounding) * 0.5

    start = np.random.default_rng(2).standard_normal((4, 3, 2))
    params = [pb.Parameter(start, constraint=k) for k in (c.UnitNorm((0, 2)), Half(1), c.UnitNorm((1, 0)))]
    with pb.profile() as prof:
        optim.SGD(params, 0.0).step([pb.zeros(start.shape, dtype="float64")] * 3)
    assert [x.kernel for x in prof.launches].count("project") == 1
    for p, axes, norm in zip(params, ((0, 2), 1, (0, 1)), (1.0, 0.5, 1.0)):
        np.testing.assert_allclose(host(p), norm * start / np.linalg.norm(start, axis=axes, keepdims=True), rtol=1e-14)


@needs_kernels
@pytest.mark.parametrize("kind", list(KINDS))
def test_kernels_and_ops_agree(kind: str) -> None:
    rng = np.random.default_rng(4)
    for dtype in EPS:
        found, start = [], rng.standard_normal((5, 300))
        for fused in (True, False):
            p = pb.Parameter(start, dtype=dtype, constraint=KINDS[kind](1))
            opt = optim.SGD([p], 0.5)
            if not fused:
                opt._native = opt._memory.kernels = None
            (delta,) = opt.step([pb.ones(p.shape, dtype=dtype)], return_delta=True)
            found.append([host(x).astype(np.float64) for x in (p, delta)])
        for x, y in zip(*found):
            np.testing.assert_allclose(x, y, rtol=8 * EPS[dtype], atol=2 * EPS[dtype])
