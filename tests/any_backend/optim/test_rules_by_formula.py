"""Optimizers made from a formula: `optim.rule`."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from formulas import FORMULAS, REDUCING, Adam, Lion
from pullback import nn, optim

SHAPES = ((40, 30), (7,), (), (0,), (3, 5, 2))


def made(rule: str, dtype: str = "float32", shapes: Any = SHAPES, seed: int = 1, **options: Any) -> Any:
    rng = np.random.default_rng(seed)
    params = [pb.Parameter(rng.uniform(-0.11, 0.11, shape), dtype=dtype, name=f"p{i}") for i, shape in enumerate(shapes)]
    return FORMULAS[rule][0](params, **options)


def random_gradients(opt: Any, count: int, seed: int = 4) -> list[list[Any]]:
    rng = np.random.default_rng(seed)
    return [[pb.tensor(rng.standard_normal(p.shape), dtype=p.dtype) for p in opt.parameters] for _ in range(count)]


def bits(tensors: Any) -> list[bytes]:
    return [np.asarray(host(x)).tobytes() for x in tensors]


def state(opt: Any) -> list[bytes]:
    """Returns the bits of the weights, the slots and the settings."""
    slots = [slot for p in opt.parameters for slot in opt.slots(p).values()]
    return [*bits(opt.parameters), *bits(slots), *bits(opt.state_dict()["settings"].values())]


# ---- the formulas


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("rule", FORMULAS)
def test_100_steps_are_those_of_the_published_formula(rule: str, dtype: str, tolerance: float) -> None:
    opt = made(rule, dtype)
    wanted, slots = [host(p).astype(np.float64) for p in opt.parameters], [dict[str, Any]() for _ in opt.parameters]
    for t, grads in enumerate(random_gradients(opt, 100), 1):
        opt.step(grads)
        for i, g in enumerate(grads):
            if g.size:
                wanted[i] = FORMULAS[rule][1](wanted[i], host(g).astype(np.float64), slots[i], t, opt.lr)
    for p, q in zip(opt.parameters, wanted):
        np.testing.assert_allclose(host(p), q, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("rule", "theirs", "options"), [("adam", "Adam", {"lr": 1e-3}), ("rprop", "Rprop", {"lr": 1e-2})])
def test_adam_and_rprop_are_torchs(rule: str, theirs: str, options: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    opt = made(rule, "float64")
    params = [torch.nn.Parameter(torch.tensor(host(p))) for p in opt.parameters]
    reference = getattr(torch.optim, theirs)(params, **options)
    for grads in random_gradients(opt, 100):
        opt.step(grads)
        for p, g in zip(params, grads):
            p.grad = torch.tensor(host(g))
        reference.step()
    for p, q in zip(opt.parameters, params):
        np.testing.assert_allclose(host(p), q.detach().numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rule", ["adam", "lamb"])
def test_half_precision_weights_are_computed_in_float32(rule: str, dtype: str) -> None:
    opt = made(rule, dtype, ((4, 3),))
    (p,) = opt.parameters
    first = host(p).astype(np.float32)
    wide = FORMULAS[rule][0]([pb.Parameter(first)])
    (g,) = random_gradients(opt, 1)[0]
    (change,) = wide.step([g.astype("float32")], return_delta=True)
    opt.step([g])
    assert {slot.dtype for slot in opt.slots(p).values()} == {np.dtype("float32")}
    wanted = pb.tensor(first + host(change.astype(dtype)).astype(np.float32)).astype(dtype)
    assert bits([p]) == bits([wanted])


def test_bias_corrections_are_computed_in_float64() -> None:
    """1 - 0.999 in float32 has a relative error of 1.3e-5."""
    opt = Adam([pb.Parameter(np.zeros(3, np.float32))], lr=1.0)
    opt.step([pb.tensor(np.array([1.0, -2.0, 3.0], np.float32))])
    np.testing.assert_allclose(host(opt.parameters[0]), [-1.0, 1.0, -1.0], rtol=3e-7)


# ---- what all optimizers have

OPTIONS: dict[str, Any] = {
    "lr": optim.schedules.Cosine(0.01, 6), "groups": {"p1": {"lr": 0.02}, "p0": {"lr_scale": 0.5}}, "clip_norm": 3.0,
    "clip_value": 0.2, "ema": 0.9,
}


@needs_kernels
@pytest.mark.parametrize("rule", FORMULAS)
def test_eager_steps_captured_steps_and_single_launches_have_the_same_bits(rule: str) -> None:
    eager, captured, single = (made(rule, **OPTIONS) for _ in range(3))
    single._replays = False
    step = pb.capture(lambda *grads: captured.step(list(grads)))
    for grads in random_gradients(eager, 6):
        eager.step(grads)
        step(*grads)
        single.step(grads)
    assert state(eager) == state(captured) == state(single)
    assert step.stats().captures == 1


@pytest.mark.parametrize("first", [None, 0.5])
def test_steps_follow_clip_norm_while_gradients_are_scaled(first: float | None) -> None:
    """A step replays a recording, which must not be used again if only the launch of clip_norm is new."""
    opt, other = made("adam", clip_norm=first), made("adam", clip_norm=None if first else 0.5)
    for each in (opt, other):
        each.gradient_scale = 0.5
    (grads,) = random_gradients(opt, 1)
    opt.step(grads)
    opt.clip_norm = other.clip_norm
    for p in opt.parameters:
        p.assign(pb.zeros_like(p))
    for p in other.parameters:
        p.assign(pb.zeros_like(p))
    opt.load_state_dict(other.state_dict())
    for each in (opt, other):
        each.step(grads)
    assert state(opt) == state(other)
    assert opt.gradient_norm == other.gradient_norm


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("rule", FORMULAS)
def test_members_are_solo_runs_bit_for_bit(rule: str, clip_norm: float | None) -> None:
    rates, shapes = [0.01, 0.02, 0.005], ((3, 9, 4), (3, 5), (3,))
    together = made(rule, shapes=shapes, lr=rates, clip_norm=clip_norm)
    alone = [FORMULAS[rule][0]([pb.Parameter(host(p)[m]) for p in together.parameters], lr=rate, clip_norm=clip_norm)
             for m, rate in enumerate(rates)]
    for k, grads in enumerate(random_gradients(together, 5)):
        given: list[Any] = [None if k == 2 and i == 1 else g for i, g in enumerate(grads)]
        together.step(given)
        for m, opt in enumerate(alone):
            opt.step([None if g is None else pb.tensor(host(g)[m]) for g in given])
    for m, opt in enumerate(alone):
        assert bits([p[m] for p in together.parameters]) == bits(opt.parameters)
        for p, q in zip(together.parameters, opt.parameters):
            assert bits([x[m] for x in together.slots(p).values()]) == bits(opt.slots(q).values())


@pytest.mark.parametrize("rule", FORMULAS)
def test_parameters_that_are_computed_together_have_the_bits_of_each_alone(rule: str) -> None:
    together = made(rule)
    alone = [FORMULAS[rule][0]([pb.Parameter(host(p))]) for p in together.parameters]
    assert bool(together._batches) == (rule not in REDUCING)
    for k, grads in enumerate(random_gradients(together, 6)):
        given: list[Any] = [None if k in (1, 4) and i == 1 else g for i, g in enumerate(grads)]
        together.step(given)
        for opt, g in zip(alone, given):
            opt.step([g])
    assert bits(together.parameters) == bits([opt.parameters[0] for opt in alone])


@pytest.mark.parametrize("rule", ["adam", "adan", "lamb"])
def test_states_copies_and_loads_go_on_exactly(rule: str) -> None:
    opt, plain = made(rule, **OPTIONS), made(rule, **OPTIONS)
    first, second = random_gradients(opt, 3), random_gradients(opt, 3, seed=5)
    for grads in first:
        opt.step([grads[0], None, *grads[2:]])
    copies = [copy.deepcopy(opt), pickle.loads(pickle.dumps(opt)), plain]
    plain.load_state_dict(opt.state_dict())
    for p, q in zip(plain.parameters, opt.parameters):
        p.assign(q)
    for grads in second:
        for each in (opt, *copies):
            each.step(grads)
    assert all([state(opt) == state(each) for each in copies])


@pytest.mark.parametrize("captured", [False, pytest.param(True, marks=needs_kernels)])
@pytest.mark.parametrize("rule", ["adam", "lars"])
def test_deltas_previews_and_slots(rule: str, captured: bool) -> None:
    opt = made(rule, **OPTIONS)
    assert all([not host(slot).any() for p in opt.parameters for slot in opt.slots(p).values()])

    def both(*grads: Any) -> Any:
        return opt.preview(list(grads)), opt.step(list(grads), return_delta=True)

    call = pb.capture(both) if captured else both
    for grads in random_gradients(opt, 3):
        before, kept = [host(p).copy() for p in opt.parameters], state(opt)
        opt.preview(grads)
        assert state(opt) == kept
        previewed, deltas = call(*grads)
        assert bits(previewed) == bits(deltas)
        for p, old, delta in zip(opt.parameters, before, deltas):
            np.testing.assert_array_equal(old + host(delta), host(p))


def test_hyper_parameters_are_set_between_steps() -> None:
    opt, other = made("lion"), made("lion", lr=0.5, beta1=0.1, groups={"p0": {"weight_decay": 0.25}})
    opt.lr, opt.beta1, opt.groups[0].weight_decay = 0.5, 0.1, 0.25
    other.groups[0].weight_decay = 1e-3
    opt.groups[0].weight_decay = 1e-3
    (grads,) = random_gradients(opt, 1)
    assert (opt.beta1, opt.beta2) == (0.1, 0.99)
    opt.step(grads)
    other.groups[-1].weight_decay = 1e-3
    other.step(grads)
    assert bits(opt.parameters) == bits(other.parameters)


@needs_kernels
def test_a_captured_step_reads_new_hyper_parameters_and_notices_clipping() -> None:
    eager, captured = made("adam"), made("adam")
    step = pb.capture(lambda *grads: captured.step(list(grads)))
    for k, grads in enumerate(random_gradients(eager, 8)):
        for opt in (eager, captured):
            opt.betas = (0.5 + k / 20, 0.9)
            opt.lr = 0.1 / (k + 1)
            opt.clip_value = None if k < 4 else 0.1 + k / 100
            opt.gradient_scale = 1.0 if k < 6 else 0.5
        eager.step(grads)
        step(*grads)
        assert state(eager) == state(captured)
    assert step.stats().captures == 3


@pytest.mark.parametrize("rule", ["adam", "lamb"])
def test_bounds_masks_and_averages(rule: str) -> None:
    opt = made(rule, shapes=((40, 30), (7,)), lr=0.05, ema=0.5)
    for p in opt.parameters:
        p.constraint = Box()
    masks = [np.arange(p.size).reshape(p.shape) % 3 != 0 for p in opt.parameters]
    average = [np.zeros(p.shape, np.float32) for p in opt.parameters]
    for k, grads in enumerate(random_gradients(opt, 4)):
        if k == 2:
            opt._memory.masks = [pb.tensor(mask.astype(np.uint8)).array for mask in masks]
        opt.step(grads)
        for i, p in enumerate(opt.parameters):
            x = host(p).copy()
            assert x.min() >= np.float32(-0.05)
            assert x.max() <= np.float32(0.08)
            average[i] = x if k == 0 else (average[i] + x) / 2
            if k >= 2:
                average[i] = np.where(masks[i], average[i], 0)
                assert not x[~masks[i]].any()
                assert not any([host(slot)[~masks[i]].any() for slot in opt.slots(p).values()])
            np.testing.assert_allclose(host(opt.averaged(p)), average[i], rtol=1e-6, atol=1e-9)


class Box:
    """A constraint that is nothing but bounds."""

    bounds = (-0.05, 0.08)

    def __call__(self, p: Any) -> Any:
        return pb.clip(p, *self.bounds)


def test_minimize_trains_and_a_tape_does_not_record_the_formula() -> None:
    pb.random.seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    opt = Adam(net.parameters(), lr=0.03)
    x = pb.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    y = pb.tensor([[0.0], [1.0], [1.0], [0.0]])
    losses = [float(opt.minimize(lambda: pb.mean((net(x) - y) ** 2))) for _ in range(200)]
    assert losses[-1] < 0.05 < losses[0]
    with pb.GradientTape() as tape:
        opt.step([pb.ones(p.shape) for p in opt.parameters])
    assert not tape.nodes


def test_a_profile_knows_the_cost() -> None:
    """Lion: 9 additions and multiplications and one addition to the weight per element, and -lr and twice 1 - beta."""
    opt = Lion([pb.Parameter(np.ones(10_000))], weight_decay=0.1)
    g = pb.ones(10_000, dtype="float64")
    opt.step([g])
    with pb.profile(strict=True) as prof:
        opt.step([g])
    assert prof.coverage == 1.0
    assert prof.optimizer.flops == 100_003
    assert {"begin_steps", "sign", "add_step"} < {group.name for group in prof.by("op")}
    assert not prof.forward.launches
    assert pb.flops(lambda: opt.step([g])).optimizer.flops == prof.optimizer.flops


@needs_kernels
def test_elementwise_ops_run_in_one_pass() -> None:
    opt = made("adam", shapes=((300, 200), (30,), (3, 3), (7,)))
    for grads in random_gradients(opt, 2):
        opt.step(grads)
    ((step),) = opt._recorded.values()
    stats = step.stats()
    assert stats.launches > 30
    if opt.parameters[0].device == "cpu":
        rows = next(iter(step._replays.values()))[0].rows()
        passes = Counter([(row[1], row[4]) for row in rows])
        assert sorted([shape for (_, shape), count in passes.items() if count >= 10]) == [(46,), (300, 200)]
