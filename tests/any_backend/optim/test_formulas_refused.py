"""Formulas that cannot be update rules are refused in words, and then nothing has changed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from formulas import Adam
from pullback import optim
from pullback.errors import DTypeError, PullbackError, ShapeError

OTHER = pb.Parameter([1.0, 2.0], name="other")
NOTHING_READ = "which reads a value on the host, in the formula, at"


def branch(p: Any, g: Any, m: Any, h: Any) -> Any:
    return (-h.lr * g if h.step > 5 else g), m


def logs(p: Any, g: Any, m: Any, h: Any) -> Any:
    return -float(h.lr) * g, m


def reads(p: Any, g: Any, m: Any, h: Any) -> Any:
    return -h.lr * g / pb.sum(g * g).item(), m


def writes(p: Any, g: Any, m: Any, h: Any) -> Any:
    OTHER.assign(2 * OTHER)
    return -h.lr * g, m


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "too few": (lambda p, g, m, h: -h.lr * g, PullbackError, "returned 1 value(s); it must return 2: the change, the new 'm'"),
    "too many": (lambda p, g, m, h: (g, m, m), PullbackError, "returned 3 value(s); it must return 2"),
    "nothing": (lambda p, g, m, h: None, PullbackError, "returned 1 value(s)"),
    "a number": (lambda p, g, m, h: (0.0, m), PullbackError, "returned a float as the change; it must be a tensor like p"),
    "an array": (lambda p, g, m, h: (g, np.zeros(3)), PullbackError, "returned a ndarray as slot 'm'"),
    "a scalar": (lambda p, g, m, h: (h.lr, m), ShapeError, "the change of shape () for weights of shape (3,)"),
    "summed": (lambda p, g, m, h: (g, pb.sum(m)), ShapeError, "slot 'm' of shape () for weights of shape (3,); keep the shape"),
    "repeated": (lambda p, g, m, h: (g[None] * g[:, None], m), ShapeError, "the change of shape (3, 3)"),
    "float16": (lambda p, g, m, h: (g, m.astype("float16")), DTypeError, "slot 'm' of dtype float16 for weights that it reads as"),
    "bool": (lambda p, g, m, h: (g > 0, m), DTypeError, "the change of dtype bool"),
    "no name": (lambda p, g, m, h: (-h.rate * g, m), AttributeError, "no hyper-parameter 'rate'; it has lr, step, beta"),
    "if": (branch, PullbackError, NOTHING_READ),
    "float()": (logs, PullbackError, NOTHING_READ),
    "item()": (reads, PullbackError, NOTHING_READ),
    "assign": (writes, PullbackError, "the formula changes a Parameter or an optimizer"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_formula_is_checked_when_an_optimizer_is_made(name: str) -> None:
    formula, error, message = BAD[name]

    def f(p: Any, g: Any, m: Any, h: Any) -> Any:
        return formula(p, g, m, h)

    kind = optim.rule(slots=("m",), lr=0.1, beta=0.9)(f)
    p = pb.Parameter([1.0, 2.0, 3.0])
    array = p.array
    with pytest.raises(error, match=re.escape(message)):
        kind([p])
    assert p.array is array
    np.testing.assert_array_equal(host(p), [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(host(OTHER), [1.0, 2.0])
    Adam([p]).step([pb.ones(3)])  # The refusal leaves no recording and no ledger behind.
    assert host(p)[0] < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "there is no default learning rate"),
        ({"lr": 0.1, "slots": "m"}, 'give a tuple of names: slots=("m", "v")'),
        ({"lr": 0.1, "slots": ("m", "m")}, "two slots have the same name"),
        ({"lr": 0.1, "slots": (1,)}, "give a tuple of names"),
        ({"lr": 0.1, "m": 0.9, "slots": ("m",)}, "cannot have the name 'm'"),
        ({"lr": 0.1, "clip_norm": 1.0}, "cannot have the name 'clip_norm'"),
        ({"lr": 0.1, "step": 1.0}, "cannot have the name 'step'"),
        ({"lr": 0.1, "parameters": 1.0}, "cannot have the name 'parameters'"),
        ({"lr": 0.1, "nesterov": True}, "nesterov=True; the default of a hyper-parameter is a number"),
        ({"lr": 0.1, **{f"x{i}": 0.0 for i in range(40)}}, "40 hyper-parameters; a rule has at most"),
    ],
)
def test_options_of_a_rule_are_checked(options: Any, message: str) -> None:
    with pytest.raises(PullbackError, match=re.escape(message)):
        optim.rule(**options)


def test_a_rule_needs_a_function_of_its_arguments() -> None:
    with pytest.raises(PullbackError, match=re.escape("is called as f(p, g, m, h): missing a required argument")):

        @optim.rule(slots=("m",), lr=0.1)
        def f(p: Any, g: Any, m: Any, v: Any, h: Any) -> Any:
            return g, m

    with pytest.raises(PullbackError, match=re.escape("a int was given; it makes an optimizer from a function f(p, g, h)")):
        optim.rule(lr=0.1)(3)  # type: ignore[arg-type]
    with pytest.raises(PullbackError, match="give the slots and the hyper-parameters by name"):
        optim.rule(lambda p, g, h: g)


def test_wrong_arguments_of_the_optimizer() -> None:
    p = pb.Parameter([1.0])
    with pytest.raises(TypeError, match=r"Adam\(\) got an unexpected keyword argument 'beta'"):
        Adam([p], beta=0.9)
    with pytest.raises(TypeError, match="got multiple values for argument 'lr'"):
        Adam([p], 0.1, lr=0.1)
    with pytest.raises(TypeError, match=r"takes 3 hyper-parameters by position \(lr, betas, eps\), not 4"):
        Adam([p], 0.1, (0.9, 0.9), 1e-8, 0.0)
    with pytest.raises(PullbackError, match="must be a finite number"):
        Adam([p], eps=float("nan"))
    with pytest.raises(PullbackError, match="it must be a pair of numbers"):
        Adam([p], betas=0.9)
    with pytest.raises(PullbackError, match=r"state is of rule Adam, this optimizer is Momentum"):
        Momentum([p]).load_state_dict(Adam([p]).state_dict())
    assert Momentum([p], factor=-0.5).factor == -0.5


@optim.rule(slots=("m",), lr=0.1, factor=0.9)
def Momentum(p: Any, g: Any, m: Any, h: Any) -> Any:
    """Momentum by formula."""
    m = h.factor * m + g
    return -h.lr * m, m


def test_the_class_looks_like_one_that_was_written_by_hand() -> None:
    assert Momentum.__doc__ == "Momentum by formula."
    assert (Momentum.__name__, Momentum.__module__) == ("Momentum", __name__)
    assert issubclass(Momentum, optim.Optimizer)
    opt = Momentum([pb.Parameter([1.0])], 0.5)
    assert repr(opt) == "Momentum(lr=0.5, factor=0.9; 1 parameter of 1 numbers, 0 steps)"


# ---- formulas with traps


def test_slots_may_be_exchanged() -> None:
    @optim.rule(slots=("a", "b"), lr=1.0)
    def Exchange(p: Any, g: Any, a: Any, b: Any, h: Any) -> Any:
        return -h.lr * b, g, a

    p = pb.Parameter([0.0])
    opt = Exchange([p])
    for x in (1.0, 2.0, 4.0, 8.0):
        opt.step([pb.tensor([x])])
    assert [float(slot) for slot in opt.slots(p).values()] == [8.0, 4.0]
    assert float(p) == -3.0


def test_a_formula_may_return_its_arguments() -> None:
    @optim.rule(slots=("m",), lr=1.0)
    def Same(p: Any, g: Any, m: Any, h: Any) -> Any:
        return p, m

    p = pb.Parameter([1.0, 2.0])
    Same([p]).step([pb.ones(2)])
    np.testing.assert_array_equal(host(p), [2.0, 4.0])


def test_a_formula_that_depends_on_the_shape_is_not_computed_with_others() -> None:
    @optim.rule(lr=1.0, decay=0.5)
    def Decayed(p: Any, g: Any, h: Any) -> Any:
        return -h.decay * p if p.ndim >= 2 else -h.lr * g

    @optim.rule(lr=1.0)
    def Scaled(p: Any, g: Any, h: Any) -> Any:
        return -h.lr * g / p.size

    @optim.rule(lr=1.0)
    def Ramp(p: Any, g: Any, h: Any) -> Any:
        return -h.lr * pb.arange(p.size).reshape(p.shape).astype(p.dtype)

    for kind, wanted in ((Decayed, ([0.5, 0.5], [0, 0, 0])), (Scaled, ([0.5, 0.5], [2 / 3] * 3)), (Ramp, ([1, 0], [1, 0, -1]))):
        params = [pb.Parameter(np.ones((2, 1), np.float32)), pb.Parameter(np.ones(3, np.float32))]
        kind(params).step([pb.ones((2, 1)), pb.ones(3)])
        for p, q in zip(params, wanted):
            np.testing.assert_allclose(host(p).ravel(), q, rtol=1e-7)


def test_random_numbers_differ_in_every_step() -> None:
    @optim.rule(lr=1.0)
    def Noise(p: Any, g: Any, h: Any) -> Any:
        return h.lr * pb.random.normal(p.shape, dtype=p.dtype)

    pb.random.seed(5)
    wanted = [host(pb.random.normal((4,))).copy() for _ in range(3)]
    pb.random.seed(5)
    opt = Noise([pb.Parameter(np.zeros(4, np.float32))])
    for x in wanted:
        before = host(opt.parameters[0]).copy()
        opt.step([pb.ones(4)])
        np.testing.assert_allclose(host(opt.parameters[0]) - before, x, atol=1e-6)


def test_conditions_on_numbers_and_on_arrays_keep_the_dtype() -> None:
    @optim.rule(slots=("m",), lr=0.5, warmup=2.0)
    def Rule(p: Any, g: Any, m: Any, h: Any) -> Any:
        scale = pb.where(h.step <= h.warmup, h.step / h.warmup, 1.0)
        return -scale * pb.where(g > 0, h.lr, -h.lr) + pb.zeros_like(p), pb.maximum(m, h.lr)

    for dtype in ("float32", "float64"):
        opt = Rule([pb.Parameter(np.zeros(2), dtype=dtype)])
        deltas = [host(opt.step([pb.tensor([1.0, -1.0], dtype=dtype)], return_delta=True)[0]) for _ in range(3)]
        np.testing.assert_array_equal(deltas, [[-0.25, 0.25], [-0.5, 0.5], [-0.5, 0.5]])


@needs_kernels
def test_a_formula_without_kernels_runs_and_cannot_be_captured() -> None:
    @optim.rule(lr=1.0)
    def Step(p: Any, g: Any, h: Any) -> Any:
        return pb.nextafter(p, p + g) - p

    p = pb.Parameter(np.ones(3, np.float32))
    opt = Step([p])
    opt.step([pb.ones(3)])
    np.testing.assert_array_equal(host(p), np.full(3, np.nextafter(np.float32(1), np.float32(2))))
    with pytest.raises(pb.CaptureError, match="nextafter, which has no native kernel here"):
        pb.capture(lambda g: opt.step([g]))(pb.ones(3))
    np.testing.assert_array_equal(host(p), np.full(3, np.nextafter(np.float32(1), np.float32(2))))


def test_numbers_take_part_in_transforms_views_and_joins() -> None:
    @optim.rule(lr=0.5, k=2.0)
    def Rule(p: Any, g: Any, h: Any) -> Any:
        rows = pb.vmap(lambda row: row * h.lr + pb.sum(row) * h.k)(g)
        slope = pb.grad(lambda x: pb.sum(x * x * h.k))(p)
        pairs = pb.stack([h.lr, h.k]) + pb.broadcast_to(h.lr, (2,)) * (h.k[None])[0:1]
        return -rows - slope + pairs * np.sqrt(h.lr * h.k)

    for dtype in ("float32", "float64"):
        opt = Rule([pb.Parameter(np.ones((3, 2)), dtype=dtype)])
        (delta,) = opt.preview([pb.ones((3, 2), dtype=dtype)])
        np.testing.assert_array_equal(host(delta), np.tile([-8.5 + 1.5, -8.5 + 3.0], (3, 1)))
