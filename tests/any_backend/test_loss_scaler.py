"""LossScaler: a step with an overflow changes nothing, all others are those of the gradients without a scale, bit for bit."""

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
from pullback import nn, optim
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

    def change(self, settings: list[float], p: Any, g: Any, slots: list[Any]) -> Any:
        slots[0][...] += g
        return -settings[sets.RATE] * slots[0]


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
    return [None if step == 3 and i == 1 else g for i, g in enumerate(found)]


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
)  # fmt: skip


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


def float16_run(scaler: Any) -> tuple[float, float]:
    """Trains a float16 network, the gradients of which float16 rounds to 0. Returns the first and the last loss."""
    rng = np.random.default_rng(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    for p in net.parameters():
        p.assign(0.3 * rng.standard_normal(p.shape))
    net.to("float16")
    x = pb.tensor(rng.standard_normal((16, 8)), dtype="float16")
    y = pb.tensor(np.sin(host(x).astype(np.float32)).sum(axis=1, keepdims=True), dtype="float16")
    opt = optim.Adam(net.parameters(), 0.03, eps=1e-12, master_weights=True)

    def loss() -> Any:
        return nn.mse(net(x).astype("float32"), y.astype("float32")) * 1e-9

    losses = [float(opt.minimize(loss, scaler=scaler)) for _ in range(25)]
    return losses[0], losses[-1]


def test_gradients_that_float16_cannot_hold() -> None:
    first, last = float16_run(None)
    assert last > 0.9 * first
    first, last = float16_run(pb.amp.LossScaler(2.0**24))
    assert last < 0.1 * first


def test_products_of_autocast_in_float16() -> None:
    w, x = pb.Parameter(np.full((4, 4), 0.5, np.float32)), pb.full((3, 4), 0.25)
    scaler = pb.amp.LossScaler()
    with pb.amp.autocast("float16"):
        with pb.GradientTape(persistent=True) as tape:
            loss = (x @ w).sum() * 2.0**-30
            scaled = scaler.scale(loss)
        assert np.all(host(tape.gradient(loss, [w])[0]) == 0)
        opt = optim.SGD([w], 2.0**30)
        scaler.step(opt, tape.gradient(scaled, [w]))
    assert np.all(host(w) == 0.5 - 0.75)


# ---- several optimizers, accumulation


def test_several_optimizers_share_one_update() -> None:
    a, b = pb.Parameter([1.0]), pb.Parameter([1.0])
    scaler, first, second = pb.amp.LossScaler(4.0, growth_interval=1), optim.SGD([a], 1.0), optim.SGD([b], 1.0)
    scaler.step(first, [pb.tensor([np.inf])])
    scaler.step(second, [pb.tensor([4.0])])  # is divided by the scale of its loss, although the first one had an overflow
    scaler.update()
    assert (float(a[0]), float(b[0]), float(scaler.value)) == (1.0, 0.0, 2.0)
    for opt in (first, second):
        scaler.step(opt, [pb.tensor([2.0])])
    scaler.update()
    assert (float(a[0]), float(b[0]), float(scaler.value)) == (0.0, -1.0, 4.0)
    scaler.update()  # without a step
    assert float(scaler.value) == 4.0
    scaler.step(first, [pb.tensor([2.0])])
    with pytest.raises(pb.PullbackError, match=r"since the last scaler.update\(\)\. Call it once"):
        scaler.step(first, [pb.tensor([2.0])])


def test_an_accumulator() -> None:
    p = pb.Parameter(np.ones(2, np.float16))
    scaler, opt = pb.amp.LossScaler(4.0), optim.SGD([p], 1.0)
    acc = optim.Accumulator(opt.parameters, every=2)
    for rows in ([[4, 8], [8, 8]], [[np.inf, 8], [8, 8]], [[4, 8], [8, 8]]):
        for g in rows:
            if acc.add([pb.tensor(g, dtype="float16")]):
                scaler.step(opt, acc.take())
        scaler.update()
        scale = float(scaler.value)
    assert scale == 2.0
    assert host(p).tolist() == [1 - 1.5 - 3.0, 1 - 2.0 - 4.0]


def test_steps_without_a_scaler_in_between() -> None:
    p = pb.Parameter([1.0])
    scaler, opt = pb.amp.LossScaler(4.0), optim.SGD([p], 1.0, clip_norm=100.0)
    opt.gradient_scale = 0.5
    scaler.step(opt, [pb.tensor([4.0])])
    assert float(opt.gradient_norm) == 0.5
    opt.step([pb.tensor([4.0])])
    assert float(opt.preview([pb.tensor([4.0])])[0][0]) == -2.0
    assert float(p[0]) == 1 - 0.5 - 2.0
    assert host(next(iter(opt.state_dict()["settings"].values())))[0, sets.GRADIENT_SCALE] == 0.5
    scaler.update()
    scaler.step(opt, [pb.tensor([np.nan])])
    assert float(opt.gradient_norm) == 2.0
    assert (opt.steps, float(opt.gradient_scale)) == (2, 0.5)


def test_a_step_without_gradients_does_nothing() -> None:
    scaler, opt = pb.amp.LossScaler(4.0, growth_interval=1), optim.SGD([pb.Parameter([1.0])], 1.0)
    scaler.step(opt, [None])
    scaler.update()
    assert (float(scaler.value), opt.steps) == (4.0, 0)


def test_counts_and_rates_follow_the_device() -> None:
    scaler, p = pb.amp.LossScaler(4.0), pb.Parameter([1.0])
    opt = optim.SGD([p], schedules.Exponential(1.0, 0.5))
    for g in (1.0, np.inf, 1.0, np.nan):
        scaler.step(opt, [pb.tensor([g])])
        scaler.update()
    assert (opt.steps, opt.lr) == (2, 0.25)
    assert "2 steps" in repr(opt)
    assert copy.deepcopy(opt).steps == 2
    opt.step([pb.tensor([1.0])])
    assert (opt.steps, opt.state_dict()["steps"]) == (3, 3)


def test_constant_pruning() -> None:
    found = []
    for run in (plain_run, scaled_run):
        params = parameters("float32")
        opt = optim.Adam(params, 0.1)
        optim.Pruning(opt, 0.5)
        found.append(everything(run(lambda _, opt=opt: opt, params)))
    same(*found)


# ---- state


def test_state(tmp_path: Path) -> None:
    net = nn.Linear(2, 1)
    opt, scaler = optim.SGD(net.parameters(), 0.1), pb.amp.LossScaler(64.0, 3.0, 0.25, 5)
    for value in (1.0, np.inf, 1.0, 1.0):
        opt.minimize(lambda value=value: net(pb.full((1, 2), value)).sum(), scaler=scaler)
    pb.save_training(tmp_path / "run", net, opt, scaler=scaler.state_dict())
    other = pb.amp.LossScaler()
    other.load_state_dict(pb.load_training(tmp_path / "run", net, opt)["scaler"])
    factors, counts = "growth_factor=3, backoff_factor=0.25, growth_interval=5", "2 good steps since its last change, 1 skipped"
    text = f"LossScaler(scale=16, {factors}; {counts})"
    assert [repr(x) for x in (scaler, other, copy.deepcopy(scaler), pickle.loads(pickle.dumps(scaler)))] == [text] * 4
    assert pb.hash(other.state_dict()) == pb.hash(scaler.state_dict())
    assert (scaler.value.dtype, scaler.value.shape, scaler.skipped.dtype) == (np.float32, (), np.int64)
    state = scaler.state_dict()
    for name, value in (("scale", pb.tensor(np.nan)), ("good_steps", pb.tensor(-1.0)), ("growth_factor", 1.0), ("scale", 3.0)):
        with pytest.raises(pb.PullbackError, match=name):
            other.load_state_dict({**state, name: value})
    with pytest.raises(pb.PullbackError, match="the state of a LossScaler has entries"):
        other.load_state_dict({"scale": 1.0})
    assert repr(other) == text


@needs_kernels
def test_a_recording_is_made_again_after_other_factors_were_loaded() -> None:
    p, scaler = pb.Parameter([1.0]), pb.amp.LossScaler(4.0)
    opt = optim.SGD([p], 0.0)
    step = pb.capture(lambda g: opt.minimize(lambda: (p * g).sum(), scaler=scaler))
    step(pb.tensor([np.inf]))
    scaler.load_state_dict({**pb.amp.LossScaler(16.0, backoff_factor=0.25).state_dict()})
    step(pb.tensor([np.inf]))
    assert float(scaler.value) == 4.0


@needs_kernels
def test_a_scaled_step_is_three_launches_more() -> None:
    for clip, more in ((None, 3), (1.0, 2)):
        opt, scaler = optim.Adam(parameters("float32"), 0.1, clip_norm=clip), pb.amp.LossScaler()
        grads = gradients(opt, 0)
        with pb.profile(strict=True) as plain:
            opt.step(grads)
        with pb.profile(strict=True) as prof:
            scaler.step(opt, grads)
            scaler.update()
        assert prof.total.launches == prof.optimizer.launches == plain.optimizer.launches + more


# ---- what is refused


def refused(text: str, call: Callable[[], Any], error: Any = pb.PullbackError) -> None:
    with pytest.raises(error, match=text):
        call()


def test_arguments() -> None:
    scaler, p = pb.amp.LossScaler(), pb.Parameter([1.0])
    opt = optim.SGD([p], 0.1)
    for name, values in {
        "init_scale": (0, -1, np.inf, np.nan, 1e39, 1e-40, "2", None, True), "growth_factor": (1.0, 0.5, np.inf, "2"),
        "backoff_factor": (0.0, 1.0, -0.5, None), "growth_interval": (0, 2.5, -1, 2**25, np.nan, "9"),
    }.items():  # fmt: skip
        for value in values:
            refused(f"LossScaler: {name}=", lambda name=name, value=value: pb.amp.LossScaler(**{name: value}))
    refused("enabled", lambda: pb.amp.LossScaler(enabled=True), TypeError)  # type: ignore[call-arg]
    refused("the loss is a float", lambda: scaler.scale(1.0))  # type: ignore[arg-type]
    refused("dtype int32", lambda: scaler.scale(pb.tensor(1, dtype="int32")), pb.DTypeError)
    refused("a list was given, and not an optimizer", lambda: scaler.step([p], [p]))
    refused("step: the gradient", lambda: scaler.step(opt, [pb.ones((2,))]), pb.ShapeError)
    refused("scaler is a float", lambda: opt.minimize(lambda: p.sum(), scaler=2.0))  # type: ignore[arg-type]
    refused('gate="op" .*scaler', lambda: opt.minimize(lambda: p.sum(), gate="op", scaler=scaler))
    with pytest.raises(AttributeError):
        scaler.growth_factor = 3.0  # type: ignore[misc]
    scaler.step(opt, [pb.tensor([65536.0])])
    assert float(p[0]) == np.float32(0.9)


def test_optimizers_that_are_refused() -> None:
    scaler = pb.amp.LossScaler()
    many = optim.SGD([pb.Parameter(np.ones((2, 3)), dtype="float32")], [0.1, 0.2])
    refused("this SGD trains several members", lambda: scaler.step(many, [pb.ones((2, 3))]))
    opt = optim.SGD(parameters("float32"), 0.1)
    optim.Pruning(opt, schedules.PolynomialSparsity(0.0, 0.5, 1, 3))
    refused("a count of steps on the host", lambda: scaler.step(opt, gradients(opt, 0)))


def test_a_scale_that_changes_before_the_backward_pass_is_an_error() -> None:
    p, scaler = pb.Parameter([1.0]), pb.amp.LossScaler()
    opt = optim.SGD([pb.Parameter([1.0])], 0.1)
    with pb.GradientTape() as tape:
        loss = scaler.scale((p * p).sum())
    scaler.step(opt, [pb.tensor([1.0])])
    scaler.update()
    refused("LossScaler", lambda: tape.gradient(loss, [p]), pb.StaleValueError)
