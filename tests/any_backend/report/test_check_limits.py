"""tape.check: ops that cannot be checked have a reason, what cannot be asked is refused, and the tape stays as it was."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn, optim

A = np.random.default_rng(1).standard_normal((3, 4))


# ---- what cannot be checked


def test_functions_that_cannot_run_again_are_unchecked_with_the_reason() -> None:
    x = pb.Parameter(np.abs(A))
    calls = []

    @pb.custom_gradient
    def moody(x: Any) -> Any:
        calls.append(1)
        return x * len(calls), lambda g: g * len(calls)

    @pb.custom_gradient
    def once(x: Any) -> Any:
        if x.dtype == pb.float64 and calls:
            raise RuntimeError("not again")
        return 2 * x, lambda g: 2 * g

    @pb.custom_gradient
    def cube(x: Any) -> Any:
        return x**3, lambda g: 3 * g * x * x

    def infinite(x: Any) -> Any:
        return pb.sum(pb.log(0 * x))

    def empty(x: Any) -> Any:
        return pb.sum(2 * x[:0])

    estimated = pb.black_box(np.sin, gradient="spsa", batch="rows")
    reasons = {
        once: "it raised RuntimeError when it ran again in float64: not again",
        moody: "it returns different values for the same arguments",
        pb.vmap(cube): "it was called for one example inside a vmap that this tape is outside of",
        estimated: 'its gradient is an estimate ("spsa"), not a formula',
        infinite: "finite differences decide nothing: its values are not finite, or not smooth, at this point",
        empty: "its arguments have no elements",
    }
    for f, why in reasons.items():
        calls.clear()
        with pb.GradientTape() as tape:
            loss = pb.sum(f(x) * x)
        calls.append(1)
        found = tape.check(loss)
        assert found.ok, found
        assert next(row.why for row in found.unchecked) == why
        assert found.unchecked[0].why.split()[0] in str(found)


def test_a_black_box_with_a_formula_is_checked_against_its_function() -> None:
    right = pb.black_box(np.sin, gradient=lambda g, x, y: g * pb.cos(x), batch="rows")
    wrong = pb.black_box(np.sin, gradient=lambda g, x, y: g * y, batch="rows")
    x = pb.Parameter(A.astype("float32"))
    with pb.GradientTape() as tape:
        loss = pb.sum(right(x)) + pb.sum(wrong(x))
    row = tape.check(loss).wrong[0]
    assert row.op == "black box sin"
    assert row.worst is not None
    place = eval(row.worst.where.removeprefix("element "))
    assert abs(row.worst.ours / row.worst.theirs - np.tan(np.float64(np.float32(A[place])))) < 1e-5
    assert right.stats.calls > 1  # the check called it


def test_a_parameter_that_changed_since_makes_its_ops_unchecked() -> None:
    layer, head = nn.Linear(4, 5), pb.Parameter(A[:1])
    opt = optim.SGD(layer.parameters(), lr=0.1)
    with pb.GradientTape(persistent=True) as tape:
        loss = pb.sum(pb.tanh(layer(pb.tanh(head).astype("float32")) @ layer.weight))
    assert not tape.check(loss).unchecked
    opt.step(tape.gradient(loss, layer.parameters()))
    found = tape.check(loss)
    assert found.ok
    assert [row.op for row in found.unchecked] == ["linear", "matmul"]
    for row in found.unchecked:
        assert re.match(r'Parameter "weight" was changed in place after the forward pass \(version 1 then, 2 now\)', row.why)
    assert {row.op: row.status for row in found.rows} == {
        "tanh": "right",
        "cast": "right",
        "linear": "unchecked",
        "matmul": "unchecked",
        "sum": "right",
    }


def test_what_cannot_be_asked() -> None:
    x = pb.Parameter(A)
    with pb.GradientTape() as tape:
        loss = pb.sum(pb.sin(x))
    with pytest.raises(pb.TapeError, match="check: the target is not on this tape"):
        tape.check(pb.sum(x))
    with pytest.raises(pb.TapeError, match="check: a target is a float, not a tensor"):
        tape.check(1.0)
    tape.gradient(loss, x)
    with pytest.raises(pb.TapeError, match="check: this tape has been used"):
        tape.check(loss)

    def inside(row: Any) -> Any:
        with pb.GradientTape() as tape:
            tape.watch(row)
            y = pb.sum(pb.sin(row))
        tape.check(y)
        return y

    with pytest.raises(pb.VmapError, match=r"Call tape\.check outside of it"):
        pb.vmap(inside)(pb.tensor(A))


@pytest.mark.usefixtures("native")
def test_it_is_refused_inside_a_captured_function() -> None:
    x = pb.Parameter(A)

    @pb.capture
    def step() -> Any:
        with pb.GradientTape() as tape:
            loss = pb.sum(pb.sin(x))
        tape.check(loss)
        return loss

    with pytest.raises(pb.CaptureError, match=r"tape\.check, which reads values"):
        step()


# ---- the tape afterwards


def test_the_tape_its_hooks_and_the_gradient_are_as_before() -> None:
    w, seen = pb.Parameter(A.astype("float32")), list[Any]()

    def loss_of(tape: Any) -> Any:
        h = pb.tanh(w @ w.T)
        tape.on_gradient(h, seen.append)
        return pb.sum(h * pb.exp(h))

    with pb.GradientTape() as tape:
        expected = tape.gradient(loss_of(tape), w)
    seen.clear()
    with pb.GradientTape() as tape, pb.profile() as prof:
        loss = loss_of(tape)
        assert tape.check(loss).ok
        assert not seen
        assert not tape.consumed
    assert prof.other.launches > 0
    assert prof.backward.launches == 0
    assert np.array_equal(tape.gradient(loss, w).numpy(), expected.numpy())
    assert len(seen) == 1


def test_a_checkpoint_whose_parameter_changed_since_is_unchecked() -> None:
    """Its inside would be computed again with the new value: a different function from the one that was recorded."""
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    w = pb.Parameter([[2.0]], name="w")
    with pb.GradientTape() as tape:
        inner = pb.checkpoint(lambda w: pb.checkpoint(net)(pb.asarray(A)) * w * w)(w)
        loss = pb.sum(pb.tanh(inner))
    assert not tape.check(loss).unchecked
    w.assign([[3.0]])
    found = tape.check(loss)
    assert found.ok
    (row,) = found.unchecked
    assert row.op.startswith("checkpoint of")
    assert 'Parameter "w" was changed in place after the forward pass' in row.why
    assert [row.op for row in found.rows if row.status == "right"] == ["tanh", "sum"]
