"""LossScaler: a step with an overflow changes nothing, all others are those of the gradients without a scale, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from pullback import optim
from pullback.optim import constraints, schedules, sets
from update_rules import RULES

SHAPES = ((3, 4), (4,), (), (0, 3), (2, 3, 2))
BAD = (1, 2, 5)  # the steps whose gradients overflow


@optim.rule(slots={"m": 0.5}, lr=0.1, beta=0.9)
def ByFormula(p: Any, g: Any, m: Any, h: Any) -> Any:
    m = h.beta * m + (1 - h.beta**h.step) * g
    return -h.lr * m, m


@optim.rule(slots=("m",), lr=0.1)
def ByNorm(p: Any, g: Any, m: Any, h: Any) -> Any:
    return -h.lr * g / (1 + pb.sqrt(pb.sum(g * g))), m + g


class WithoutKernel(optim.Optimizer):
    slot_names = ("m",)

    def formula(self, p: Any, g: Any, slots: Any, h: Any) -> Any:
        m = slots[0] + g
        return -h.lr * m, (m,)


Make = Callable[[Any], Any]
OPTIMIZERS: dict[str, Make] = {
    **{name: lambda params, cls=cls, options=options: cls(params, **options) for name, (cls, options) in RULES.items()},
    "adafactor": lambda params: optim.Adafactor(params, 0.1),
    "muon": lambda params: optim.Muon(params, 0.1, auxiliary_options={"lr": 0.1}),
    "muon of matrices": lambda params: optim.Muon(params[:1] * 1, 0.1),
    "formula": lambda params: ByFormula(params),
    "formula with a sum": lambda params: ByNorm(params, clip_norm=0.5),
    "without a kernel": lambda params: WithoutKernel(params, 0.1),
    "clipped": lambda params: optim.Adam(params, 0.1, clip_norm=0.5, clip_value=0.2),
    "clipped by units": lambda params: optim.SGD(params, 0.1, clip_adaptive=0.1, clip_norm=0.05),
    "muon clipped by units": lambda params: optim.Muon(params, 0.1, clip_adaptive=0.1, clip_norm=0.05),
    "averaged": lambda params: optim.SGD(params, schedules.Exponential(0.1, 0.9), momentum=0.9, ema=0.9),
    "formula averaged": lambda params: ByFormula(params, schedules.Cosine(0.1, 5), ema=0.9),
    "groups": lambda params: optim.AdamW(params, 0.1, groups={"p0": {"lr": 0.3, "weight_decay": 0.1}}),
}
HALF: dict[str, Make] = {
    "masters": lambda params: optim.Adam(params, 0.01, master_weights=True, ema=0.9, clip_norm=0.5),
    "random": lambda params: optim.Adam(params, 0.01, stochastic_rounding=True, ema=0.9),
    "nearest": lambda params: optim.LAMB(params, 0.01),
    "muon masters": lambda params: optim.Muon(params, 0.1, master_weights=True),
    "formula, random": lambda params: ByFormula(params, stochastic_rounding=True),
}


def parameters(dtype: str, shapes: Any = SHAPES) -> list[pb.Parameter]:
    rng = np.random.default_rng(1)
    return [pb.Parameter(rng.standard_normal(shape), dtype=dtype, name=f"p{i}") for i, shape in enumerate(shapes)]


def gradients(opt: Any, step: int) -> list[Any]:
    rng = np.random.default_rng(step)
    found = [pb.tensor(rng.standard_normal(p.shape), dtype=p.dtype) for p in opt.parameters]
    missing = ((3, 1), (5, 0)) if len(found) > 1 else ()
    return [None if (step, i) in missing else g for i, g in enumerate(found)]


def bad(opt: Any, step: int) -> list[Any]:
    """Returns gradients one element of which is not finite."""
    found, i = gradients(opt, step), step % 2 if len(opt.parameters) > 1 else 0
    first = (0,) * opt.parameters[i].ndim
    return [
        g if k != i else g.at[first].set(pb.tensor([np.inf, np.nan, -np.inf][step % 3], dtype=g.dtype)) for k, g in enumerate(found)
    ]


def everything(opt: Any) -> list[Any]:
    """Returns the weights, slots, averages, masters, settings and counts, but not the norm, which every scaled step computes."""
    state = opt.state_dict()
    settings = [np.delete(host(x), sets.GRADIENT_NORM, axis=1) for x in state["settings"].values()]
    slots = [host(x) for slots in state["slots"].values() for x in slots.values()]
    return [*[host(p) for p in opt.parameters], *slots, *settings, host(state["program"]), state["steps"], np.asarray(opt.lr)]


def same(a: list[Any], b: list[Any]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def scaled_run(make: Make, params: list[Any], how: str = "eager") -> Any:
    """Does eight steps, three of which overflow. The gradients are scaled by 8 in the first step, and less after an overflow."""
    opt, scaler = make(params), pb.amp.LossScaler(8.0, growth_interval=2)

    def step(*grads: Any) -> None:
        given = iter(grads)
        scaler.step(opt, [None if skip else scaler.scale(next(given)).astype(p.dtype) for skip, p in zip(missing, opt.parameters)])
        scaler.update()

    run = pb.capture(step) if how == "captured" else step
    plain = pb.capture(step) if how == "captured" else step  # of a step without one of the gradients
    for k in range(8):
        grads = (bad if k in BAD else gradients)(opt, k)
        missing = [g is None for g in grads]
        (plain if any(missing) else run)(*[g for g in grads if g is not None])
    assert int(scaler.skipped) == len(BAD)
    assert float(scaler.value) == 4.0  # after 8, 8, 4, 2, 2, 4, 2, 2
    return opt


def plain_run(make: Make, params: list[Any]) -> Any:
    opt = make(params)
    for k in range(8):
        if k not in BAD:
            opt.step(gradients(opt, k))
    return opt


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_without_a_scale_and_overflows_change_nothing(name: str) -> None:
    wanted, found = [run(OPTIMIZERS[name], parameters("float32")) for run in (plain_run, scaled_run)]
    same(everything(found), everything(wanted))
    assert found.steps == 5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", HALF)
def test_half_precision(name: str, dtype: str) -> None:
    same(*[everything(run(HALF[name], parameters(dtype))) for run in (scaled_run, plain_run)])


@needs_kernels
@pytest.mark.parametrize("name", [name for name in (*OPTIMIZERS, *HALF) if name != "without a kernel"])
def test_captured_steps_have_the_same_bits(name: str) -> None:
    make, dtype = {**OPTIMIZERS, **HALF}[name], "float16" if name in HALF else "float32"
    same(*[everything(scaled_run(make, parameters(dtype), how)) for how in ("eager", "captured")])


LIMITS: tuple[Any, ...] = (
    constraints.NonNegative(), constraints.UnitNorm(0), constraints.MaxNorm(0.5, 1), constraints.Simplex(0), lambda p: p * 0.5
)


@pytest.mark.parametrize("masters", [False, True])
def test_constraints(masters: bool) -> None:
    found = []
    for run in (plain_run, scaled_run):
        params = parameters("float16" if masters else "float32", [(3, 4)] * len(LIMITS))
        for p, limit in zip(params, LIMITS):
            p.constraint = limit
        opt = run(lambda ps: optim.SGD(ps, 0.1, momentum=0.9, ema=0.9, master_weights=masters), params)
        found.append([*everything(opt), *[host(p) for p in params]])
    same(*found)


@pytest.mark.parametrize("how", ["eager", pytest.param("captured", marks=needs_kernels)])
def test_scales_are_those_of_torch(how: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare the scales with")
    factors = {"growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 3}
    scaler, theirs = pb.amp.LossScaler(1000.0, **factors), torch.amp.GradScaler("cpu", 1000.0, **factors)
    p, q = pb.Parameter([1.0, -2.0]), torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    opt, other = optim.SGD([p], 0.1, momentum=0.9), torch.optim.SGD([q], 0.1, momentum=0.9)
    x = [
        [1, 2],
        [np.inf, 1],
        [3, 1],
        [1, 1],
        [2, 1],
        [1, 5],
        [0, np.nan],
        [1e37, 0],
        [1, 1],
        *[[0.5, -0.5]] * 7,
        [-np.inf, 0],
        [1, 0],
    ]

    def step(row: Any) -> Any:
        return opt.minimize(lambda: (p * row).sum(), scaler=scaler)

    run = pb.capture(step) if how == "captured" else step
    for k, row in enumerate(x):
        loss = run(pb.tensor(row, dtype="float32"))
        expected = (q * torch.tensor(row, dtype=torch.float32)).sum()
        other.zero_grad()
        theirs.scale(expected).backward()
        theirs.step(other)
        theirs.update()
        assert float(scaler.value) == theirs.get_scale(), k
        np.testing.assert_allclose(host(p), q.detach().numpy(), rtol=1e-6)
        np.testing.assert_allclose(host(loss), expected.detach().numpy(), rtol=1e-6)
    assert int(scaler.skipped) == len(x) - opt.steps == 4


def test_the_scale_stays_a_number() -> None:
    for start, g, best in ((3e38, 0.0, 3e38), (2e-38, np.nan, 2e-38)):
        scaler, p = pb.amp.LossScaler(start, growth_interval=1), pb.Parameter([1.0])
        scaler.step(optim.SGD([p], 0.1), [pb.tensor([g])])
        scaler.update()
        assert float(scaler.value) == np.float32(best)


def test_large_finite_gradients_are_no_overflow() -> None:
    p = pb.Parameter(np.ones(9, np.float32))
    scaler, opt = pb.amp.LossScaler(1.0), optim.SGD([p], 1.0)
    scaler.step(opt, [pb.full((9,), 3e38)])
    assert int(scaler.skipped) == 0
    assert np.all(host(p) == np.float32(-3e38))


def test_constant_pruning() -> None:
    found = []
    for run in (plain_run, scaled_run):
        params = parameters("float32")
        opt = optim.Adam(params, 0.1)
        optim.Pruning(opt, 0.5)
        found.append(everything(run(lambda _, opt=opt: opt, params)))
    same(*found)
