"""Nested profiles, launches of other threads, and the op and line to which a launch is charged."""

from __future__ import annotations

import gc
import math
import threading
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import optim
from pullback.launch import door

X = pb.tensor(np.random.default_rng(0).standard_normal((64, 784)).astype(np.float32))


def kernels(prof: Any) -> dict[str, int]:
    return {group.name: group.total.launches for group in prof.by("kernel")}


def test_profiles_nest_and_each_tells_what_ran_inside_it() -> None:
    with pb.profile() as outer:
        pb.sin(X)
        with pb.profile(detail="count") as middle:
            pb.cos(X)
            with pb.profile(detail="kernel") as inner:
                pb.tan(X)
            pb.cos(X)
        pb.sin(X)
    assert [kernels(prof) for prof in (outer, middle, inner)] == [{"sin": 2, "cos": 2, "tan": 1}, {"cos": 2, "tan": 1}, {"tan": 1}]
    assert [launch.kernel for launch in outer.launches] == ["sin", "cos", "tan", "cos", "sin"]
    assert outer.total.seconds == pytest.approx(outer.seconds, rel=0.5)
    assert [span.phase for span in outer.spans] == ["forward"]
    assert (middle.total.seconds, middle.spans, math.isnan(middle.kernel_seconds)) == (0, [], True)
    assert not any([launch.begin_ns for launch in middle.launches])
    assert inner.host.launches > 0
    assert (outer.elsewhere, middle.elsewhere, inner.elsewhere) == (0, 0, 0)


def test_profiles_that_overlap_end_in_any_order() -> None:
    first, second = pb.profile().__enter__(), pb.profile()
    pb.sin(X)
    second.__enter__()
    pb.cos(X)
    first.__exit__(None)
    pb.tan(X)
    second.__exit__(None)
    assert (kernels(first), kernels(second)) == ({"sin": 1, "cos": 1}, {"cos": 1, "tan": 1})
    assert (door.state.ledger, door.state.running) == (None, ())


def test_a_nested_profile_loses_no_phase_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pullback.launch.ledger.KEPT", 8)
    p, within = pb.Parameter([1.0, 2.0]), 0.0
    with pb.profile() as outer:
        for _ in range(40):
            with pb.profile() as inner:
                pb.grad(lambda p: pb.sum(p * p))(p)
            within += inner.total.seconds
            assert {span.phase for span in inner.spans} == {"forward", "backward"}
    assert len(outer.spans) <= 16
    assert outer.backward.launches == 40 * inner.backward.launches > 0
    assert within <= outer.total.seconds * (1 + 1e-9)
    assert outer.forward.seconds > 0 < outer.backward.seconds


def test_counting_on_shapes_inside_a_profile_is_not_in_it() -> None:
    with pb.profile() as prof:
        pb.sin(X)
        counted = pb.flops(lambda x: pb.sum(x @ x.T), X)
        pb.sin(X)
    assert counted.total.matmul_flops > 0
    assert kernels(prof) == {"sin": 2}


def test_launches_of_other_threads_are_counted_apart() -> None:
    def launch() -> None:
        pb.exp(X)

    def launch_in_a_profile() -> None:
        with pb.profile() as own:
            pb.exp(X)
        assert (own.total.launches, own.elsewhere) == (1, 0)

    with pb.profile() as prof:
        pb.sin(X)
        for work in (launch, launch, launch_in_a_profile):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    assert (prof.total.launches, prof.elsewhere) == (1, 3)
    assert "3 launch(es) of other threads are not in these figures" in str(prof)


@pytest.mark.skipif(door.host_kernels is None, reason="capture needs kernels")
def test_replays_of_other_threads_count_what_they_launch() -> None:
    step = pb.capture(lambda x: pb.exp(x) * 2)
    step(X), step(X)
    with pb.profile() as prof:
        thread = threading.Thread(target=lambda: [step(X) for _ in range(3)])
        thread.start()
        thread.join()
    assert (prof.total.launches, prof.elsewhere) == (0, 6)
    assert str(prof).startswith("nothing ran in this thread; 6 launch(es)")


def test_a_profile_of_a_thread_that_has_ended_costs_nothing() -> None:
    before = door.profiling
    thread = threading.Thread(target=lambda: pb.profile().__enter__())
    thread.start()
    thread.join()
    gc.collect()
    assert door.profiling == before


def test_what_makes_a_tensor_is_charged_to_its_own_op_and_line() -> None:
    p = pb.Parameter([1.0, 2.0])
    makers: dict[str, Any] = {
        "zeros": lambda: pb.zeros(3), "ones": lambda: pb.ones(3), "full": lambda: pb.full(3, 2.0),
        "zeros_like": lambda: pb.zeros_like(X), "ones_like": lambda: pb.ones_like(X), "full_like": lambda: pb.full_like(X, 2.0),
        "normal": lambda: pb.random.normal((3,)), "assign": lambda: p.assign(p * 2), "optimizer": lambda: optim.Adam([p]),
        "arange": lambda: pb.arange(3), "eye": lambda: pb.eye(3), "tangent": lambda: pb.jvp(lambda x: x * 2, (X,), (X,)),
    }
    for name, make in makers.items():
        with pb.profile() as prof:
            make()
            pb.sin(X)  # the next op, on another line
        of_sin = [row for row in prof.rows if row.op == "sin"]
        assert [(row.kernel, row.figures.launches) for row in of_sin] == [("sin", 1)], name
        assert all([row.line and row.line != of_sin[0].line for row in prof.rows if row.op != "sin"]), name
        assert name not in ("zeros", "ones", "full", "zeros_like", "normal") or {row.op for row in prof.rows} == {name, "sin"}
