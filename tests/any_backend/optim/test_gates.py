"""`minimize(gate=)`: updating each parameter during the backward pass gives the bits of one update after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import OPTIMIZERS, same, same_state
from conftest import host
from pullback import nn, optim
from pullback.optim import schedules
from pullback.optim.sets import CLOCK, STEP

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


class Tied(nn.Module):
    """A network that uses one layer before each of the others, and half of them inside of checkpoints."""

    def __init__(self) -> None:
        self.shared = nn.Linear(6, 6)
        self.layers = nn.Sequential(*[nn.Linear(6, 6) for _ in range(4)])

    def forward(self, x: Any) -> Any:
        for k in range(4):

            def block(h: Any, layer: Any = self.layers[k]) -> Any:
                return pb.tanh(layer(pb.tanh(self.shared(h))))

            x = (pb.checkpoint(block) if k % 2 else block)(x)
        return x


def trained(make: Callable[[Any], Any], gate: Any, captured: bool, steps: int = 4) -> tuple[Any, list[Any]]:
    """Returns an optimizer after some steps, and the losses."""
    pb.random.seed(1)
    net = Tied()
    opt = make(net.parameters())

    def step(x: Any) -> Any:
        return opt.minimize(lambda: pb.mean(net(x) ** 2), gate=gate)

    step = pb.capture(step) if captured else step
    return opt, [host(step(pb.tensor(X * (k + 1)))) for k in range(steps)]


def same_optimizers(one: Any, other: Any) -> None:
    same_state(one, other)
    same(pb.asarray(one._table.array), pb.asarray(other._table.array))


def with_program(ps: Any) -> Any:
    """Returns an optimizer whose table has rows after the sets, for a schedule that needs more than a set has room for."""
    return optim.AdamW(ps, lr=schedules.Sequential([schedules.Exponential(0.1, 0.9), schedules.Cosine(0.05, 4)], [2]))


@optim.rule(slots=("m",), lr=0.05, beta=0.9)
def heavy(p: Any, g: Any, m: Any, h: Any) -> Any:
    m = h.beta * m + g
    return -h.lr * (m / (1 - h.beta**h.step) + 0.1 * p), m


@optim.rule(lr=0.05)
def normalized(p: Any, g: Any, h: Any) -> Any:
    return -h.lr * g / (1e-3 + pb.sqrt(pb.sum(g * g)))


def can_update_each(opt: Any) -> bool:
    return opt.clip_norm is None and opt.updates_each


MAKERS: dict[str, Callable[[Any], Any]] = {
    **{name: make for name, make in OPTIMIZERS.items() if can_update_each(make([pb.Parameter(np.ones((2, 2)))]))},
    "scheduled alone": lambda ps: optim.Adam(ps, lr=schedules.WarmupCosine(0.01, steps=6, warmup=2)),
    "groups": lambda ps: optim.SGD(ps, 0.1, 0.9, groups={"*.bias": {"lr": 0.01}, "*.weight": {"momentum": 0.5}}),
    "clip_value": lambda ps: optim.AdamW(ps, clip_value=0.01),
    "ema": lambda ps: optim.Adam(ps, ema=0.9),
    "program": with_program,
    "formula": lambda ps: heavy(ps, ema=0.9, clip_value=0.05, groups={"*.bias": {"beta": 0.5}}),
    "formula with a program": lambda ps: heavy(
        ps, lr=schedules.Sequential([schedules.Exponential(0.1, 0.9), schedules.Cosine(0.05, 4)], [2])
    ),
    "formula that reduces": normalized,
    "formula, several values": lambda ps: heavy(ps, lr=[0.1, 0.2, 0.3, 0.1, 0.2, 0.3]),
    "several values": lambda ps: optim.Adam(ps, lr=[0.1, 0.2, 0.3, 0.1, 0.2, 0.3], betas=(0.9, [0.9, 0.99, 0.9, 0.99, 0.9, 0.99])),
}


@pytest.mark.parametrize("name", MAKERS)
def test_tied_weights_have_the_bits_of_one_update_eager_and_captured(name: str) -> None:
    expected, losses = trained(MAKERS[name], "graph", captured=False)
    for captured in (False, True):
        opt, found = trained(MAKERS[name], "op", captured)
        same_optimizers(expected, opt)
        for a, b in zip(losses, found):
            same(a, b)


def test_all_parameters_are_updated_in_the_phase_of_the_optimizer_one_by_one() -> None:
    net = Tied()
    opt = optim.SGD(net.parameters(), 0.1)
    with pb.profile(strict=True) as prof:
        opt.minimize(lambda: pb.mean(net(pb.tensor(X)) ** 2), gate="op")
    assert prof.optimizer.launches == len(opt.parameters)
    names = [x.kernel for x in prof.launches]
    last = len(names) - 1 - names[::-1].index("sgd_step")
    assert names.index("sgd_step") < last - len(opt.parameters)  # other launches come between the updates


def test_a_constraint_and_a_frozen_parameter() -> None:
    found = []
    for gate in ("graph", "op"):
        w, b = pb.Parameter([0.5, 0.1], constraint=lambda v: pb.maximum(v, 0.0)), pb.Parameter([1.0, 2.0], trainable=False)
        opt = optim.SGD([w, b], 1.0)
        opt.minimize(lambda w=w, b=b: pb.sum(w * b), gate=gate)
        found.append(w.numpy().tolist())
    assert found == [[0.0, 0.0]] * 2


def test_a_loss_that_is_a_view_of_a_parameter_keeps_its_value() -> None:
    p = pb.Parameter([3.0])
    loss = optim.SGD([p], 0.5).minimize(lambda: p[0], gate="op")
    assert (loss.item(), p.item()) == (3.0, 2.5)


def test_a_parameter_behind_a_zero_derivative_gets_a_gradient_of_zeros() -> None:
    found = []
    for gate in ("graph", "op"):
        p, q = pb.Parameter([1.0]), pb.Parameter([2.0])
        opt = optim.SGD([p, q], 0.1, weight_decay=0.5)
        with pytest.warns(pb.ZeroGradientWarning):
            opt.minimize(lambda p=p, q=q: pb.sum(pb.sign(p) * q), gate=gate)
        found.append((p.item(), q.item(), opt.steps))
    assert found[0] == found[1]
    assert found[0][0] == pytest.approx(0.95)


def test_second_derivatives_inside_the_loss() -> None:
    found = []
    for gate in ("graph", "op"):
        p = pb.Parameter([1.0, 2.0])
        opt = optim.Adam([p], 0.1)

        def loss(p: Any = p) -> Any:
            with pb.GradientTape() as tape:
                y = pb.sum(p**3)
            return pb.sum(tape.gradient(y, p) ** 2)

        for _ in range(3):
            opt.minimize(loss, gate=gate)
        found.append(p.numpy().tobytes())
    assert found[0] == found[1]


# ---- what is refused


@pytest.mark.parametrize("captured", [False, True])
def test_clipping_by_the_joint_norm_is_refused_in_words(captured: bool) -> None:
    p = pb.Parameter([1.0, 2.0])
    opt = optim.SGD([p], 0.1)

    def step() -> Any:
        return opt.minimize(lambda: pb.sum(p * p), gate="op")

    step = pb.capture(step) if captured else step
    step()
    opt.clip_norm = 1.0
    before = p.numpy()
    with pytest.raises(pb.PullbackError, match=r'gate="op".*clip_norm=1 needs the joint norm.*gate="graph"'):
        step()
    same(before, p.numpy())
    assert opt.steps == 1
    opt.clip_norm = None
    step()
    assert opt.steps == 2


@pytest.mark.parametrize("kind", [optim.Muon])
def test_rules_that_compute_parameters_together_are_refused(kind: Any) -> None:
    opt = kind([pb.Parameter(np.ones((2, 2)))])
    with pytest.raises(pb.PullbackError, match=rf'gate="op" updates the parameters one by one, and {kind.__name__} computes many'):
        opt.minimize(lambda: pb.sum(opt.parameters[0]), gate="op")
    assert opt.steps == 0


@pytest.mark.parametrize("scope", ["tensor", "global"])
def test_masks_are_those_of_one_update(scope: Any) -> None:
    def pruned(ps: Any) -> Any:
        opt = optim.Adam(ps, 0.1)
        optim.Pruning(opt, schedules.PolynomialSparsity(0.0, 0.5, begin=0, stop=2, every=1), scope=scope)
        return opt

    expected = trained(pruned, "graph", captured=False)[0]
    assert expected.pruning.sparsity == pytest.approx(0.5, abs=0.01)
    for captured in (False, True):
        same_optimizers(expected, trained(pruned, "op", captured)[0])


def test_other_gates_are_refused() -> None:
    opt = optim.SGD([pb.Parameter(1.0)], 0.1)
    with pytest.raises(pb.PullbackError, match=r"gate='none'; use \"graph\" or \"op\".*is a race"):
        opt.minimize(lambda: opt.parameters[0] * 2.0, gate="none")  # type: ignore[arg-type]
    with pytest.raises(pb.PullbackError, match=r"gate=True; use"):
        opt.minimize(lambda: opt.parameters[0] * 2.0, gate=True)  # type: ignore[arg-type]


def test_an_unconnected_parameter_is_an_error_before_any_update() -> None:
    p, q = pb.Parameter(1.0, name="p"), pb.Parameter(2.0, name="q")
    opt = optim.SGD([p, q], 0.1)
    with pytest.raises(pb.UnconnectedError, match=r'"q".*unconnected="none"'):
        opt.minimize(lambda: p * p, gate="op")
    assert (p.item(), p.version, opt.steps) == (1.0, 0, 0)


# ---- early writes


@pytest.mark.parametrize("gate", ["graph", "op"])
def test_a_write_before_the_last_read_is_an_error(gate: Any) -> None:
    """A user's pullback updates w, which the pullback of an earlier op still needs."""
    w, v = pb.Parameter([1.0, 2.0], name="w"), pb.Parameter([3.0, 4.0], name="v")

    @pb.custom_gradient
    def early(x: Any) -> Any:
        def pull(g: Any) -> Any:
            w.assign(w * 2.0)
            return g

        return x * 1.0, pull

    opt = optim.SGD([w, v], 0.1)
    with pytest.raises(pb.StaleValueError, match=r'"w" was changed in place.*version 0 then, 1 now'):
        opt.minimize(lambda: pb.sum(early(w * w) * v), gate=gate)


def after_reading(read: Callable[[Any], Any], make: Callable[..., Any] = optim.Adam) -> tuple[Any, Any, Any]:
    """Returns (optimizer, w, v) after a step in which a pullback reads w, whose gradient is complete and v's is not."""
    w, v = pb.Parameter([1.0, 2.0], name="w"), pb.Parameter([3.0, 4.0], name="v")

    @pb.custom_gradient
    def reads(x: Any) -> Any:
        return x * 1.0, lambda g: g * read(w)

    opt = make([w, v], schedules.Exponential(0.1, 0.5))
    with pytest.raises(pb.StaleValueError, match=r'multiply.*test_gates\.py.*reads Parameter "w", which gate="op" has updated'):
        opt.minimize(lambda: pb.sum(reads(v) * w), gate="op")
    return opt, w, v


def test_a_rule_by_formula_counts_the_steps_of_each_parameter_after_an_error() -> None:
    """`heavy` divides by 1 - beta^step, and its step is 1 for a parameter that has not been updated."""
    opt, w, v = after_reading(lambda w: w, heavy)
    before = [host(p).astype(np.float64) for p in (w, v)]
    momentum = host(opt.slots(w)["m"]).astype(np.float64)
    opt.step([pb.ones(2), pb.ones(2)])
    m = 0.9 * momentum + 1
    np.testing.assert_allclose(host(w), before[0] - 0.05 * (m / (1 - 0.9**2) + 0.1 * before[0]), rtol=1e-5)
    np.testing.assert_allclose(host(v), before[1] - 0.05 * (1 / (1 - 0.9) + 0.1 * before[1]), rtol=1e-5)


def test_a_pullback_that_reads_an_updated_parameter_is_an_error_and_the_step_counts_for_all() -> None:
    opt, w, v = after_reading(lambda w: w)
    assert (w.version, v.version, opt.steps) == (1, 0, 1)
    table = host(pb.asarray(opt._table.array))[: len(opt.parameters)]
    assert table[:, CLOCK].tolist() == [1.0, 1.0]
    assert table[:, STEP].tolist() == [1.0, 0.0]
    opt.minimize(lambda: pb.sum(v * w), gate="op")
    assert host(pb.asarray(opt._table.array))[:2, CLOCK].tolist() == [2.0, 2.0]
    assert opt.lr == pytest.approx(0.025)


def test_reading_before_the_update_is_allowed() -> None:
    w, v = pb.Parameter([1.0, 2.0]), pb.Parameter([3.0, 4.0])

    @pb.custom_gradient
    def reads(x: Any) -> Any:
        return x * 1.0, lambda g: g * v

    optim.SGD([w, v], 0.1).minimize(lambda: pb.sum(reads(w * v)), gate="op")
    np.testing.assert_allclose(host(w), [1 - 0.1 * 9, 2 - 0.1 * 16], rtol=1e-6)
    np.testing.assert_allclose(host(v), [3 - 0.1 * 3, 4 - 0.1 * 8], rtol=1e-6)


def test_the_thread_listens_as_before_after_an_error() -> None:
    after_reading(lambda w: w)
    p = pb.Parameter(2.0)
    with pb.GradientTape() as tape:
        y = p * p
    assert tape.gradient(y, p).item() == 4.0
    assert pb.multiply(p, p).item() == 4.0
