"""Adaptive clipping (Brock et al. 2021, eq. 3) against its formula in NumPy and that of optax.adaptive_grad_clip."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from pullback import optim
from pullback.launch import door
from pullback.optim.stages.stage import Step
from update_rules import RULES

SHAPES = ((6, 5), (7,), (), (3, 4, 2), (0, 3), (3, 0))
# Units of one block of the order of sums and of several, that share a block with others or fill one or more of them, on either
# device: rows of 300, 1030, 2050 and 5000 elements, long vectors, and many short rows.
LONG_SHAPES = ((5, 300), (3, 1030), (2, 2050), (2, 5000), (4097,), (70_000,), (700, 3), (1, 1024), (2, 3, 7, 11))


def clipped_by(opt: Any, grads: list[Any]) -> list[Any]:
    """Returns arrays of gradients as an optimizer's step clips them."""
    step = Step(opt._memory, opt._table.array, grads, None, False)
    opt._stages["clip_adaptive"].before(step)
    return step.grads


def exact(x: Any) -> Any:
    return np.asarray(host(x)).astype(np.float64)


def parameters(dtype: str = "float64", shapes: Any = SHAPES) -> list[pb.Parameter]:
    rng = np.random.default_rng(1)
    params = [pb.Parameter(rng.standard_normal(shape), dtype=dtype, name=f"p{i}") for i, shape in enumerate(shapes)]
    params[1].assign(np.zeros(shapes[1]))  # whose norm counts as 1e-3
    return params


def gradients(dtype: str = "float64", count: int = 3, shapes: Any = SHAPES) -> list[list[Any]]:
    rng = np.random.default_rng(2)
    return [
        [pb.tensor(rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 2), dtype=dtype) for shape in shapes] for _ in range(count)
    ]


def wanted(p: Any, g: Any, share: float) -> Any:
    axes = tuple(range(1, p.ndim)) if p.ndim > 1 else None
    norms = [np.sqrt((x**2).sum(axis=axes, keepdims=True)) for x in (p, g)]
    most = share * np.maximum(norms[0], 1e-3)
    return np.where(norms[1] > most, g * most / np.maximum(norms[1], 1e-6), g)


def optax_adaptive_grad_clip(p: Any, g: Any, clipping: float, eps: float = 1e-3) -> Any:
    """optax.adaptive_grad_clip for arrays whose last axis belongs to the outputs, as JAX stores a dense layer and a convolution."""

    def unitwise_norm(x: Any) -> Any:
        axis = {0: None, 1: None, 2: 0, 3: 0, 4: (0, 1, 2)}[np.squeeze(x).ndim]
        squares = np.square(x).sum(axis=axis, keepdims=True)
        return np.broadcast_to(np.sqrt(squares), x.shape)

    norm, most = unitwise_norm(g), clipping * np.maximum(unitwise_norm(p), eps)
    return np.where(norm < most, g, g * (most / np.maximum(norm, 1e-6)))


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("shapes", [SHAPES, LONG_SHAPES], ids=["short", "long"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_unit_moves_by_at_most_a_share_of_its_weights(dtype: str, shapes: Any, scale: float) -> None:
    """With SGD and a rate of 1 a step subtracts the clipped gradient."""
    opt = optim.SGD(parameters(dtype, shapes), 1.0, clip_adaptive=0.01)
    opt.gradient_scale = scale
    tolerance = 1e-12 if dtype == "float64" else float(pb.finfo(dtype).eps) * 2
    for g in gradients(dtype, 2, shapes):
        before = [exact(p) for p in opt.parameters]
        deltas = opt.preview(g)
        for p, x, delta in zip(before, g, deltas):
            np.testing.assert_allclose(exact(delta), -wanted(p, exact(x) * scale, 0.01), rtol=tolerance, atol=1e-7)
        opt.step(g)


@pytest.mark.parametrize("shape", [(9,), (12, 8), (5, 3, 6, 10)])
def test_it_is_the_clipping_of_optax(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    for size in (1e-9, 1e-4, 1.0, 100.0):
        p, g = rng.standard_normal(shape), size * rng.standard_normal(shape)
        opt = optim.SGD([pb.Parameter(p, dtype="float64")], 1.0, clip_adaptive=0.02)
        delta = exact(opt.preview([pb.tensor(g, dtype="float64")])[0])
        if p.ndim == 1:
            np.testing.assert_allclose(-delta, optax_adaptive_grad_clip(p, g, 0.02), rtol=1e-12)
        else:
            moved = [np.moveaxis(x, 0, -1) for x in (p, g)]
            np.testing.assert_allclose(-np.moveaxis(delta, 0, -1), optax_adaptive_grad_clip(*moved, 0.02), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(30, 70), (3, 2500), (40, 5, 9)])
def test_gradients_of_any_strides(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    p = rng.standard_normal(shape)
    x = 3 * rng.standard_normal((*shape[:-1], 3 * shape[-1]))
    kept = pb.tensor(x, dtype=dtype)
    turned = pb.tensor(np.ascontiguousarray(np.moveaxis(x[..., : shape[-1]], 0, -1)), dtype=dtype)
    axes = (len(shape) - 1, *range(len(shape) - 1))
    cases = [kept[..., ::3], kept[..., : shape[-1]], pb.transpose(turned, axes), kept[..., shape[-1] - 1 :: -1]]
    cases += [pb.broadcast_to(kept[..., :1], shape), pb.broadcast_to(kept[0, ..., 0, :1] if len(shape) > 2 else kept[0, :1], shape)]
    for g in cases:
        opt = optim.SGD([pb.Parameter(p, dtype=dtype)], 1.0, clip_adaptive=0.01)
        before, (delta,) = exact(opt.parameters[0]), opt.preview([g])
        tolerance = 1e-12 if dtype == "float64" else float(pb.finfo(dtype).eps) * 2
        np.testing.assert_allclose(exact(delta), -wanted(before, exact(g), 0.01), rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize("rule", ["sgd-momentum", "adamw", "lamb", "lion"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_a_step_is_that_with_clipped_gradients(rule: str, dtype: str) -> None:
    """Clipping by the joint norm and by value, trust ratios, masters, groups and missing gradients come after it."""
    kind, hyper = RULES[rule]
    options: dict[str, Any] = {**hyper, "clip_norm": 0.05, "clip_value": 0.02, "groups": {"p3": {"lr": 0.003}}}
    options["master_weights"] = dtype == "bfloat16"
    clips, plain = kind(parameters(dtype), **options, clip_adaptive=0.01), kind(parameters(dtype), **options)
    for k, grads in enumerate(gradients(dtype, 4)):
        given = [None if i == k else g for i, g in enumerate(grads)]
        clipped = clipped_by(clips, [None if g is None else g.array for g in given])
        deltas = clips.step(given, return_delta=True)
        for x, y in zip(deltas, plain.step(clipped, return_delta=True)):
            np.testing.assert_array_equal(exact(x), exact(y))
    for p, q in zip(clips.parameters, plain.parameters):
        np.testing.assert_array_equal(exact(p), exact(q))


COMPOSED: dict[str, Callable[..., Any]] = {
    "muon": lambda params, **options: optim.Muon(params, lr=0.01, **options),
    "adafactor": lambda params, **options: optim.Adafactor(params, lr=0.01, **options),
    "formula": lambda params, **options: optim.rule(lr=0.01)(lambda p, g, h: -h.lr * g)(params, **options),
}


@pytest.mark.parametrize("rule", sorted(COMPOSED))
def test_rules_of_several_launches_clip_too(rule: str) -> None:
    shapes = ((6, 5), (7,), (12, 4), (3, 5))
    clips, plain = [
        COMPOSED[rule](parameters("float32", shapes), clip_norm=0.5, **options) for options in ({"clip_adaptive": 0.01}, {})
    ]
    for grads in gradients("float32", 3, shapes):
        clipped = clipped_by(clips, [g.array for g in grads])
        clips.step(grads)
        plain.step(clipped)
    for p, q in zip(clips.parameters, plain.parameters):
        np.testing.assert_array_equal(exact(p), exact(q))
    with pytest.raises(pb.PullbackError, match="clip_adaptive"):
        optim.Muon(parameters("float32", shapes), auxiliary_options={"clip_adaptive": 0.1})


def test_numbers_that_are_not_finite() -> None:
    """A norm of NaN clips nothing, and an infinite one leaves zeros, and NaN where the infinity is."""
    p = pb.Parameter(np.ones((4, 3)), dtype="float32")
    g = np.full((4, 3), 5.0)
    g[0, 1], g[1, 2] = np.nan, np.inf
    (delta,) = optim.SGD([p], 1.0, clip_adaptive=0.01).preview([pb.tensor(g, dtype="float32")])
    clipped = -0.01 * np.sqrt(3) / np.sqrt(75) * 5
    rows = [[-5.0, np.nan, -5.0], [0.0, 0.0, np.nan], [clipped] * 3, [clipped] * 3]
    np.testing.assert_allclose(exact(delta), rows, rtol=1e-6)


def test_squares_neither_overflow_nor_vanish() -> None:
    """Squares of these float32 numbers are outside of float32."""
    for size in (1e30, 1e-30):
        p = pb.Parameter(np.full((2, 8), 1e30), dtype="float32")
        g = pb.tensor(np.full((2, 8), size), dtype="float32")
        (delta,) = optim.SGD([p], 1.0, clip_adaptive=0.5).preview([g])
        np.testing.assert_allclose(exact(delta), -min(size, 0.5e30), rtol=1e-6)


@pytest.mark.parametrize("shapes", [SHAPES, ((5, 300), (4097,), (2, 2050))], ids=["short", "long"])
def test_each_member_has_its_own_units(shapes: Any) -> None:
    rng = np.random.default_rng(3)
    weights, steps = [rng.standard_normal((3, *shape)) for shape in shapes], 2
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


def test_parameters_that_are_updated_in_the_backward_pass_have_the_same_bits() -> None:
    def trained(gate: Any) -> list[Any]:
        opt = optim.AdamW(parameters("float32"), 0.01, clip_adaptive=0.01)
        opt.gradient_scale = 0.5
        for _ in range(3):
            opt.minimize(lambda: sum([(p * p * 3 + p).sum() for p in opt.parameters], pb.tensor(0.0)), gate=gate)
        return [host(p) for p in opt.parameters]

    for x, y in zip(trained("op"), trained("graph")):
        np.testing.assert_array_equal(x, y)


@needs_kernels
@pytest.mark.parametrize("gate", ["graph", "op"])
def test_a_captured_step_reads_the_share_and_records_again_if_clipping_is_turned_on_or_off(gate: Any) -> None:
    options = {} if gate == "op" else {"clip_norm": 1.0}
    eager, captured = [optim.Adam(parameters("float32"), 0.1, clip_adaptive=0.01, **options) for _ in range(2)]

    def train(opt: Any, x: Any) -> None:
        opt.minimize(lambda: sum([(p * p * x + p).sum() for p in opt.parameters], pb.tensor(0.0)), gate=gate)

    step = pb.capture(lambda x: train(captured, x))
    captures = []
    for k, x in enumerate(np.random.default_rng(6).standard_normal(8).astype(np.float32)):
        if k in (2, 3):
            eager.clip_adaptive = captured.clip_adaptive = 0.1 * k
        if k == 4:
            eager.clip_adaptive = captured.clip_adaptive = None
        if k == 6:
            eager.clip_adaptive = captured.clip_adaptive = 0.02
        train(eager, pb.tensor(x))
        step(pb.tensor(x))
        captures.append(step.stats().captures)
        for p, q in zip(eager.parameters, captured.parameters):
            np.testing.assert_array_equal(host(p), host(q))
    assert captures == [1, 1, 1, 1, 2, 2, captures[-1], captures[-1]]


@needs_kernels
@pytest.mark.parametrize("rule", ["sgd", "adamw", "lamb", *sorted(COMPOSED)])
def test_it_is_one_launch_for_all_parameters(rule: str) -> None:
    shapes = [(5, 4), (6,), (3, 2), (4, 4, 2)] * 10
    launches = []
    for options in ({}, {"clip_adaptive": 0.01}):
        params = [pb.Parameter(np.ones(shape), dtype="float32") for shape in shapes]
        opt = COMPOSED[rule](params, **options) if rule in COMPOSED else RULES[rule][0](params, **RULES[rule][1], **options)
        step = pb.capture(lambda g, opt=opt: opt.step(g))
        g = [pb.ones(shape, dtype="float32") for shape in shapes]
        for _ in range(2):
            step(g)
        launches.append(step.stats().launches)
    assert launches[1] == launches[0] + 1
    with pb.profile() as prof:
        opt.step(g)
    assert [(x.kernel, x.phase) for x in prof.launches if "clip" in x.kernel] == [("clip_adaptive", door.OPTIMIZER)]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_it_costs_the_same_on_both_backends(dtype: str) -> None:
    figures = []
    for fused in (True, False):
        opt = optim.SGD(parameters(dtype, LONG_SHAPES), clip_adaptive=0.1)
        (grads,) = gradients(dtype, 1, LONG_SHAPES)
        if not fused:
            opt._native = opt._memory.kernels = None
        with pb.profile(strict=True) as prof:
            opt.step([None, pb.broadcast_to(grads[1][:, :1], grads[1].shape), *grads[2:]])
        named = [name for name in door.FIGURES if name != "executed_flops"]  # That figure differs between backends.
        figures.append([(x.kernel, x.dtype, *[getattr(x, name) for name in named]) for x in prof.launches if "clip" in x.kernel])
    assert figures[0] == figures[1]


@needs_kernels
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_kernels_clip_as_the_reference(dtype: str) -> None:
    """The factors are computed in float64, so that only the last bit may differ, by the order of the sums."""
    opt = optim.SGD(parameters(dtype, LONG_SHAPES), 1.0, clip_adaptive=0.01)
    (grads,) = gradients(dtype, 1, LONG_SHAPES)
    found = clipped_by(opt, [g.array for g in grads])
    kernels, opt._memory.kernels = opt._memory.kernels, None
    for x, y in zip(found, clipped_by(opt, [g.array for g in grads])):
        np.testing.assert_allclose(exact(x), exact(y), rtol=2.0**-50 if dtype == "float64" else float(pb.finfo(dtype).eps))
    opt._memory.kernels = kernels


def test_states_files_and_copies_have_the_share(tmp_path: Path) -> None:
    (g,) = gradients("float32", 1)
    opt = optim.SGD(parameters("float32"), 0.1, clip_adaptive=0.01)
    opt.clip_adaptive = 0.03
    other, off = optim.SGD(parameters("float32"), 0.1), optim.SGD(parameters("float32"), 0.1, clip_adaptive=0.5)
    pb.save(tmp_path / "state.safetensors", opt.state_dict())
    other.load_state_dict(pb.load(tmp_path / "state.safetensors"))
    off.load_state_dict(optim.SGD(parameters("float32"), 0.1).state_dict())
    assert (other.clip_adaptive, off.clip_adaptive) == (0.03, None)
    opts = [opt, other, copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))]
    for each in opts:
        each.step(g)
        for p, q in zip(opt.parameters, each.parameters):
            np.testing.assert_array_equal(exact(p), exact(q))
    with pytest.raises(pb.PullbackError, match="clip_adaptive"):
        opt.load_state_dict({**opt.state_dict(), "clip_adaptive": -1.0})
    assert opt.clip_adaptive == 0.03


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
    opt = optim.SGD(parameters(), 0.1)
    with pytest.raises(pb.PullbackError, match="clip_adaptive"):
        opt.clip_adaptive = -1.0
    assert opt.clip_adaptive is None
    assert "clip_adaptive=0.1" in repr(optim.SGD(parameters(), 0.1, clip_adaptive=0.1))
