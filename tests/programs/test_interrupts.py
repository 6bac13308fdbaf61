"""Ctrl-C at any point: no tape, phase, scope, ledger or recording stays active, and counters match the work that was done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from interrupted import Point, ended_by_ctrl_c, traced
from pullback import backends, nn, optim
from pullback.autodiff.listeners import listeners
from pullback.launch import capturing, door
from pullback.ops import _stream
from pullback.ops.random import drawn
from pullback.tensors import devices, precision
from pullback.transforms.checkpoint import thread

X = pb.tensor(np.linspace(-1, 1, 12).reshape(4, 3).astype(np.float32))
W = pb.Parameter(np.linspace(1, 2, 6).reshape(3, 2).astype(np.float32))
LABELS = pb.tensor([0, 1, 1, 0])
NET = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
DROPOUT = nn.Dropout(0.5).eval()
OPTIMIZER = optim.SGD(NET.parameters(), lr=0.01)


def f(x: Any) -> Any:
    return pb.sum(pb.tanh(x @ W) ** 2)


def gradient() -> Any:
    with pb.GradientTape() as outer:
        outer.watch(X)
        with pb.GradientTape() as inner:
            inner.watch(X)
            y = f(X)
        slope = inner.gradient(y, X)
        with outer.stop_recording():
            pb.sum(slope)
        total = pb.sum(slope * slope)
    return outer.gradient(total, X)


def training() -> Any:
    with pb.GradientTape() as tape:
        loss = nn.cross_entropy(NET(X), LABELS)
    OPTIMIZER.step(tape.gradient(loss, OPTIMIZER.parameters))
    return loss


def profiled() -> Any:
    with pb.profile() as prof:
        training()
    return prof.total.flops


def checkpointed() -> Any:
    vars(DROPOUT)["training"] = True  # in the forward pass only, so the backward pass changes the mode
    try:
        with pb.GradientTape() as tape:
            tape.watch(X)
            y = f(pb.checkpoint(lambda x: DROPOUT(pb.sin(x)))(X))
    finally:
        vars(DROPOUT)["training"] = False
    return tape.gradient(y, X)


PROGRAMS: dict[str, Callable[[], Any]] = {
    "gradient": gradient,
    "training": training,
    "profile": profiled,
    "checkpoint": checkpointed,
    "jvp": lambda: pb.jvp(pb.grad(f), (X,), (X,)),
    "vmap": lambda: pb.vmap(pb.grad(lambda row: pb.sum(pb.sin(row @ W))))(X),
    "per_example": lambda: pb.per_example_norm(lambda w, x: pb.sum((x @ w) ** 2))(W, X),
    "flops": lambda: pb.flops(f, X, argnums=0).total.flops,
    "debug": lambda: _without_nans(gradient),
    "reports": lambda: _reported(),
}
if backends.why_not(devices.default_device()) is None:
    PROGRAMS |= {"capture": lambda: pb.capture(training)(), "replay": (lambda step: lambda: step(X))(pb.capture(lambda x: f(x)))}


def _without_nans(run: Callable[[], Any]) -> Any:
    with pb.debug_nans():
        return run()


def _reported() -> Any:
    with pb.GradientTape() as tape:
        loss = f(X)
    return str(tape.explain(loss)), str(tape.diagnose(loss, [W]))


def left_behind() -> dict[str, Any]:
    """Returns the state of this thread that is not as it was at the start."""
    kernels = backends.kernels_on(devices.default_device())
    if kernels is not None:
        kernels.plan_begin([])  # raises if a recording is still active
        kernels.plan_abort()
    state = {
        "listeners": listeners.stack, "record": listeners.record, "phase": door.state.phase, "scope": door.scope_now(),
        "profiles": door.profiling, "ledger": door.state.ledger, "recording": capturing.thread.recording,
        "draws": drawn.before, "alike": drawn.alike, "modes": door.state.modes, "mode": DROPOUT.training, "again": thread.again,
        "replaced": door.state.replaced,
        "lock": _stream._lock._is_owned(),  # type: ignore[attr-defined]
    }
    return {name: value for name, value in state.items() if value}


def points(run: Callable[[], Any]) -> list[tuple[Point, int]]:
    """Returns every call and line of pullback that the program reaches, with the occurrence to interrupt: the first or the last."""
    counts: dict[Point, int] = {}

    def count(point: Point) -> None:
        counts[point] = counts.get(point, 0) + 1

    traced(run, count)
    return [(point, most if place % 2 else 1) for place, (point, most) in enumerate(counts.items())]


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_left_behind_wherever_a_program_is_interrupted(name: str) -> None:
    run = PROGRAMS[name]
    run()  # does the imports and everything else that happens only once
    assert not left_behind()
    interrupted = 0
    for point, occurrence in points(run):
        seen = 0

        def interrupt(here: Point, point: Point = point, occurrence: int = occurrence) -> None:
            nonlocal seen
            if here == point:
                seen += 1
                if seen == occurrence:
                    raise KeyboardInterrupt

        try:
            traced(run, interrupt)
        except KeyboardInterrupt:  # the traceback still keeps all frames alive
            interrupted += 1
            left = left_behind()
            assert not left, f"{left} after an interrupt at {point[0].co_qualname}, {point[2]} of line {point[1]}"
    assert interrupted > 10
    run()


def test_a_look_at_a_tape_while_it_records_does_not_stop_it() -> None:
    with pb.GradientTape() as tape:
        for name in dir(tape):
            getattr(tape, name)
        y = f(X)
    assert tape.gradient(y, W).shape == W.shape


def test_no_python_runs_where_a_tensor_dies_that_something_was_remembered_for() -> None:
    """Python discards an exception that a weak reference's callback raises, so Ctrl-C would be lost there."""
    told: list[Point] = []

    def forget_one(x: Any) -> Any:
        one = [precision.made_of(np.ones(2), pb.sin(x))]
        before = len(precision.made)
        traced(one.clear, told.append)
        assert len(precision.made) == before - 1
        return pb.cos(x)

    assert host(pb.jvp(forget_one, (X,), (X,))[1]).shape == X.shape
    assert not told


@needs_kernels
@pytest.mark.usefixtures("interruptible")
@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals are for the main thread")
def test_a_run_of_several_steps_ends_between_two_of_them_and_counts_them(on_cpu: None) -> None:
    pb.random.seed(0)
    steps, width = 4000, 64
    net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 2))
    opt = optim.Adam(net.parameters(), lr=1e-3)

    def step(x: Any) -> Any:
        return opt.minimize(lambda: pb.mean(net(x) ** 2))

    train = pb.capture(step, steps=steps)
    one = np.random.default_rng(0).standard_normal((64, width)).astype(np.float32)
    xs = pb.tensor(np.broadcast_to(one, (steps, 64, width)))
    train(xs)
    initial = [host(p).copy() for p in net.parameters()], opt.state_dict(), pb.random.state_dict(), opt.steps
    ended_by_ctrl_c(lambda: train(xs))
    done = opt.steps - initial[3]
    assert done > 0
    got, drawn_to = [host(p).copy() for p in net.parameters()], pb.random.state_dict()
    for p, value in zip(net.parameters(), initial[0]):
        p.assign(pb.tensor(value))
    opt.load_state_dict(initial[1])
    pb.random.load_state_dict(initial[2])
    for _ in range(done):
        step(pb.tensor(one))
    for p, value in zip(net.parameters(), got):
        np.testing.assert_array_equal(host(p), value)
    assert pb.random.state_dict() == drawn_to


@needs_kernels
def test_a_replay_counts_its_steps_without_code_in_which_a_signal_could_arrive() -> None:
    class Interrupted(optim.SGD):
        arrived = threading.Event()  # a recording does not look into it

        def __setattr__(self, name: str, value: Any) -> None:
            if self.arrived.is_set():
                raise KeyboardInterrupt
            super().__setattr__(name, value)

    net = nn.Linear(3, 2)
    opt = Interrupted(net.parameters(), lr=0.01)
    step = pb.capture(lambda x: opt.minimize(lambda: pb.sum(net(x) ** 2)))
    step(X), step(X)
    Interrupted.arrived.set()
    step(X)
    assert opt._steps == 3
