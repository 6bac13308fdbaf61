"""Adaptive clipping (Brock et al. 2021, eq. 3) against its formula in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from pullback import optim

SHAPES = ((6, 5), (7,), (), (3, 4, 2), (0, 3))


def parameters(dtype: str = "float64") -> list[pb.Parameter]:
    rng = np.random.default_rng(1)
    params = [pb.Parameter(rng.standard_normal(shape), dtype=dtype) for shape in SHAPES]
    params[1].assign(np.zeros(7))  # whose norm counts as 1e-3
    return params


def gradients(dtype: str = "float64", count: int = 3) -> list[list[Any]]:
    rng = np.random.default_rng(2)
    return [
        [pb.tensor(rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 2), dtype=dtype) for shape in SHAPES] for _ in range(count)
    ]


def wanted(p: Any, g: Any, share: float) -> Any:
    axes = tuple(range(1, p.ndim)) if p.ndim > 1 else None
    norms = [np.sqrt((x**2).sum(axis=axes, keepdims=True)) for x in (p, g)]
    most = share * np.maximum(norms[0], 1e-3)
    return np.where(norms[1] > most, g * most / np.maximum(norms[1], 1e-6), g)


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_unit_moves_by_at_most_a_share_of_its_weights(dtype: str, scale: float) -> None:
    """With SGD and a rate of 1 a step subtracts the clipped gradient."""
    opt = optim.SGD(parameters(dtype), 1.0, clip_adaptive=0.01)
    opt.gradient_scale = scale
    tolerance = 1e-12 if dtype == "float64" else float(pb.finfo(dtype).eps) * 2
    for g in gradients(dtype):
        before = [np.asarray(host(p)).astype(np.float64) for p in opt.parameters]
        deltas = opt.preview(g)
        for p, x, delta in zip(before, g, deltas):
            clipped = wanted(p, np.asarray(host(x)).astype(np.float64) * scale, 0.01)
            np.testing.assert_allclose(np.asarray(host(delta)).astype(np.float64), -clipped, rtol=tolerance, atol=1e-7)
        opt.step(g)


def test_each_member_has_its_own_units() -> None:
    rng = np.random.default_rng(3)
    weights, steps = [rng.standard_normal((3, *shape)) for shape in SHAPES], 2
    grads = [[10 * rng.standard_normal(w.shape) for w in weights] for _ in range(steps)]
    rates = [0.1, 0.2, 0.3]
    together = optim.SGD([pb.Parameter(w) for w in weights], lr=rates, clip_adaptive=0.05)
    alone = [optim.SGD([pb.Parameter(w[m]) for w in weights], lr=rates[m], clip_adaptive=0.05) for m in range(3)]
    for g in grads:
        together.step([pb.tensor(x) for x in g])
        for m, opt in enumerate(alone):
            opt.step([pb.tensor(x[m]) for x in g])
    for i, p in enumerate(together.parameters):
        np.testing.assert_array_equal(host(p), np.stack([host(opt.parameters[i]) for opt in alone]))


@needs_kernels
def test_a_captured_step_clips_adaptively_and_records_again() -> None:
    eager, captured = [optim.Adam(parameters("float32"), 0.1, clip_adaptive=0.01, clip_norm=1.0) for _ in range(2)]
    step = pb.capture(lambda g: captured.step(g))
    for k, g in enumerate(gradients("float32", 6)):
        if k == 3:
            eager.clip_adaptive = captured.clip_adaptive = 0.5
        eager.step(g)
        step(g)
    for p, q in zip(eager.parameters, captured.parameters):
        np.testing.assert_array_equal(host(p), host(q))
    assert step.stats().captures == 2


def test_the_share_is_a_part_of_the_state() -> None:
    opt, other = optim.SGD(parameters(), 0.1, clip_adaptive=0.01), optim.SGD(parameters(), 0.1)
    other.load_state_dict(opt.state_dict())
    assert other.clip_adaptive == 0.01
    opt.clip_adaptive = None
    other.load_state_dict(opt.state_dict())
    assert other.clip_adaptive is None
    with pytest.raises(pb.PullbackError, match="clip_adaptive=-1"):
        other.load_state_dict({**opt.state_dict(), "clip_adaptive": -1})


def test_a_wrong_share_is_refused() -> None:
    for bad in (0, -1.0, float("nan"), True, "1"):
        with pytest.raises(pb.PullbackError, match="clip_adaptive"):
            optim.SGD(parameters(), 0.1, clip_adaptive=bad)  # type: ignore[arg-type]
    assert optim.SGD(parameters(), 0.1).clip_adaptive is None
    assert "clip_adaptive=0.1" in repr(optim.SGD(parameters(), 0.1, clip_adaptive=0.1))
