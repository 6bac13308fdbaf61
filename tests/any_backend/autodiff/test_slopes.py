"""Gradients that are zero, undefined or cut: unconnected sources, kinks, ties, and the branch that pb.where did not choose."""

from __future__ import annotations

import inspect
import re
import threading
import warnings
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import ROOT, as_tensors, call, close, example, host, ops, rng_for, takes, watched
from pullback import nn
from pullback.autodiff.node import named
from pullback.autodiff.primitive import OPS, ZERO, Op
from pullback.ops.lapack import FROM_LAPACK

# ---- unconnected


def test_unconnected_three_ways() -> None:
    x, lone = pb.Parameter(2.0, name="x"), pb.Parameter([1.0, 2.0], name="lone")
    with pb.GradientTape(persistent=True) as tape:
        y = x * x
        lone * 2
    with pytest.raises(pb.UnconnectedError, match=r'source 1, Parameter "lone"'):
        tape.gradient(y, [x, lone])
    close(tape.gradient(y, [x, lone], unconnected="zero")[1], [0.0, 0.0])
    assert tape.gradient(y, [x, lone], unconnected="none")[1] is None
    with pytest.raises(pb.TapeError, match="zero"):
        tape.gradient(y, x, unconnected="ignore")


@pytest.mark.parametrize(
    ("leave", "how"),
    [
        (lambda h: pb.tensor(h.numpy()), r"numpy\(\)"), (lambda h: pb.tensor(h.item()), r"item\(\)"),
        (lambda h: pb.tensor(float(h)), r"float\(\)"), (lambda h: pb.tensor(np.asarray(h)), r"np\.asarray\(\)"),
        (lambda h: pb.tensor(h.tolist()), r"tolist\(\)"), (pb.stop_gradient, "stop_gradient"),
        (lambda h: pb.from_dlpack(np.from_dlpack(h)), r"__dlpack__\(\)"),
    ],
)
@pytest.mark.usefixtures("on_cpu")
def test_the_line_where_the_path_was_cut_is_named(leave: Any, how: str) -> None:
    x = pb.Parameter(2.0)
    with pb.GradientTape() as tape:
        h = x * x
        y = leave(h) * 3
    with pytest.raises(pb.UnconnectedError, match=how + r' at ".*test_slopes\.py", line \d+'):
        tape.gradient(y, x)


@pytest.mark.parametrize("leave", [lambda a: a.numpy(), lambda a: float(a), lambda a: a.item(), lambda a: a.tolist(), np.asarray])
@pytest.mark.usefixtures("on_cpu")
def test_a_parameter_that_leaves_before_any_op_used_it_is_told_the_line(leave: Any) -> None:
    a, b = pb.Parameter(2.0, name="a"), pb.Parameter([3.0], name="b")
    with pb.GradientTape() as tape:
        loss = pb.sum(leave(a) * b)
    with pytest.raises(pb.UnconnectedError, match=r'source 0, Parameter "a"; the path was cut by .*test_slopes\.py", line \d+'):
        tape.gradient(loss, [a, b])


def test_a_target_from_after_the_tape_is_told_so() -> None:
    x, here = pb.Parameter([1.0, 2.0], name="x"), inspect.currentframe().f_lineno  # type: ignore[union-attr]
    with pb.GradientTape(persistent=True) as tape:
        y = x * x
        inside = pb.sum(y)
    for target in (inside * 2, y[1]):
        with pytest.raises(pb.UnconnectedError, match="target is not on the tape") as told:
            tape.gradient(target, x)
        assert f'the tape (the `with` at "{__file__}", line {here + 1},' in str(told.value)
        assert "had stopped" in str(told.value)
    tape.gradient(inside, x)
    with pytest.raises(pb.UnconnectedError) as told:
        tape.gradient(inside, pb.Parameter(1.0))
    assert "target is not" not in str(told.value)


def test_an_op_of_another_thread_is_not_on_the_tape_and_the_error_says_so() -> None:
    x, found = pb.Parameter(2.0, name="x"), []
    with pb.GradientTape() as tape:
        thread = threading.Thread(target=lambda: found.append(x * x))
        thread.start()
        thread.join()
    with pytest.raises(pb.UnconnectedError, match="in another thread than the one that entered it"):
        tape.gradient(found[0], x)


def test_a_watch_after_the_use_is_told_both_lines() -> None:
    x, w = pb.tensor(2.0), pb.Parameter(3.0)
    here = inspect.currentframe().f_lineno  # type: ignore[union-attr]
    with pb.GradientTape() as tape:
        y = x * w
        tape.watch(x)
    with pytest.raises(pb.UnconnectedError) as told:
        tape.gradient(y, [x, w])
    assert f'it was watched at "{__file__}", line {here + 3}' in str(told.value)
    assert f'multiply, recorded at "{__file__}", line {here + 2}' in str(told.value)
    assert "used it before" in str(told.value)
    with pb.GradientTape() as tape:
        z = x * x
        tape.watch(x)
    with pytest.raises(pb.UnconnectedError, match="no op that was recorded used it after that"):
        tape.gradient(z, x)


def test_a_module_as_a_source_is_told_of_its_parameters() -> None:
    net = nn.Linear(2, 1)
    with pb.GradientTape() as tape:
        loss = pb.sum(net(pb.ones((1, 2))))
    with pytest.raises(pb.TapeError, match=r"source is a Linear, not a tensor.*module\.parameters\(\)"):
        tape.gradient(loss, net)
    with pytest.raises(pb.TapeError, match=r"watch.*Linear.*module\.parameters\(\)"):
        pb.GradientTape().watch(net)


@pytest.mark.parametrize("value", [3, [1, 2], True, [False], np.arange(3)])
def test_a_parameter_that_cannot_be_trained_is_refused_when_it_is_made(value: Any) -> None:
    with pytest.raises(pb.DTypeError, match=r"Parameter: the value has dtype (int64|bool).*pb\.float32.*trainable=False"):
        pb.Parameter(value)
    assert pb.Parameter(value, trainable=False).dtype in (pb.int64, pb.bool)
    assert pb.Parameter(value, dtype=pb.float32).dtype == pb.float32


@pytest.mark.usefixtures("on_cpu")
def test_a_program_through_numpy_and_back_is_told_the_line_of_its_numpy_call() -> None:
    w = pb.Parameter(np.ones((3, 3)), name="w")

    def forward(x: Any) -> Any:
        h = pb.tanh(x @ w)
        cut.append(inspect.currentframe().f_lineno + 1)  # type: ignore[union-attr]
        smooth = np.cumsum(h.numpy(), axis=0)
        return pb.mean(pb.square(pb.tensor(smooth) * 2.0))

    cut: list[int] = []
    with pb.GradientTape() as tape:
        loss = forward(np.ones((2, 3)))
    with pytest.raises(pb.UnconnectedError, match=rf'"w".*numpy\(\) at "{re.escape(__file__)}", line {cut[0]}, in forward'):
        tape.gradient(loss, w)
    with pb.GradientTape() as tape:
        recorded = pb.sum(np.sin(np.cumsum(w, axis=0)))  # The tape records NumPy functions of a tensor.
    close(tape.gradient(recorded, w)[2], np.cos(np.full(3, 3.0)))


def test_a_hook_does_not_hide_that_a_source_is_unconnected() -> None:
    w, x = pb.Parameter(2.0), pb.tensor(1.0)
    with pb.GradientTape() as tape:
        tape.watch(x)
        h = w * 2
        tape.on_gradient(h, lambda g: None)
        y = h * h
        x * 3
    with pytest.raises(pb.UnconnectedError):
        tape.gradient(y, x)


# ---- zero gradients


@pytest.mark.parametrize(
    ("op", "name"),
    [(pb.sign, "sign"), (pb.round, "round"), (lambda x: pb.floor_divide(x, 2.0), "floor_divide"), (lambda x: x > 1, "greater"),
     (lambda x: pb.copysign(pb.ones(3), x), "copysign"), (pb.argmax, "argmax"), (lambda x: x.astype("int32"), "astype")],
)
def test_a_gradient_that_is_zero_everywhere_warns_with_op_and_line(op: Any, name: str) -> None:
    x = pb.Parameter([1.0, 2.0, 3.0], name="x")
    with pb.GradientTape() as tape:
        y = pb.sum(op(x).astype(pb.float32))
    with pytest.warns(pb.ZeroGradientWarning, match=rf'"x".*{name}.*recorded at ".*test_slopes\.py", line \d+'):
        close(tape.gradient(y, x), np.zeros(3))


def test_no_warning_where_another_path_has_a_slope() -> None:
    x = pb.Parameter(2.5)
    with pb.GradientTape() as tape:
        y = pb.round(x) * x
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tape.gradient(y, x).item() == 2.0


DOCUMENT = (ROOT / "docs" / "derivatives.md").read_text()
FIRST, SECOND = DOCUMENT.split("## Second derivatives")
KINKS, CURVES = [re.findall(r"^\| `([^`]+)` \| (\S+) \| (\S+) \|", part, flags=re.MULTILINE) for part in (FIRST, SECOND)]


@pytest.mark.filterwarnings("ignore::pullback.ZeroGradientWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("function", "at", "slope"), KINKS, ids=[f"{function} at {at}" for function, at, _ in KINKS])
def test_derivatives_at_kinks_are_those_of_the_document(function: str, at: str, slope: str, dtype: str) -> None:
    with pb.GradientTape() as fused:
        x = watched(float(at), fused, dtype)
        y = eval(function, {"pb": pb, "nn": nn, "x": x})
    close(fused.gradient(y, x), float(slope))
    with pb.GradientTape(), pb.GradientTape() as defined:  # The outer tape makes the definitions run, not the kernels.
        x = watched(float(at), defined, dtype)
        y = eval(function, {"pb": pb, "nn": nn, "x": x})
        close(defined.gradient(y, x), float(slope))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("function", "at", "curvature"), CURVES, ids=[f"{function} at {at}" for function, at, _ in CURVES])
def test_second_derivatives_are_those_of_the_document(function: str, at: str, curvature: str, dtype: str) -> None:
    f = lambda x: eval(function, {"pb": pb, "nn": nn, "x": x})
    close(pb.grad(pb.grad(f))(pb.tensor(float(at), dtype=dtype)), float(curvature))


def kinks(op: Op) -> bool:
    """True if the op's result has a kink or a jump near points whose inputs are equal, zero or integers.

    False for factorisations: `docs/derivatives.md` describes their degenerate matrices, and test_degenerate_matrices.py tests them.
    """
    if FROM_LAPACK in str(op.facts.same_bits):
        return False
    inputs, params = example(op, np.float64)
    free = [i for i, x in enumerate(inputs) if isinstance(x, np.ndarray) and x.dtype == np.float64]
    rng, h = rng_for(op), 1e-8
    for moved in (free, *[[i] for i in free]):
        for value in (-1.0, 0.0, 0.5, 1.0, 2.0):
            ways = [rng.standard_normal(x.shape) if i in moved else None for i, x in enumerate(inputs)]
            below, at, above = [
                host(call(op, as_tensors([x if d is None else value + t * d for x, d in zip(inputs, ways)]), params))
                for t in (-h, 0.0, h)
            ]
            with np.errstate(all="ignore"):
                left, right = (at - below) / h, (above - at) / h
                bends = np.abs(right - left) > 1e-3 * (1 + np.abs(left) + np.abs(right))
            if (bends & np.isfinite(left) & np.isfinite(right)).any():
                return True
    return False


def test_the_document_has_a_row_for_every_op_with_a_kink() -> None:
    found = {op.name for op in ops() if op.pullback not in (None, ZERO) and kinks(op)}
    assert {"relu", "abs", "maximum", "max", "sort", "remainder"} <= found  # The search finds known kinks.
    assert "tanh" not in found
    documented: set[str] = set()
    for function, at, _ in KINKS:
        with pb.GradientTape() as tape:
            eval(function, {"pb": pb, "nn": nn, "x": watched(float(at), tape)})
        documented |= {node.op.name for node in named(tape.nodes)}
    assert found - documented == set()


def test_the_document_names_the_ops_that_are_zero_everywhere() -> None:
    sentence = re.search(r"The derivative of ([^.]*) is zero everywhere", DOCUMENT)
    assert sentence
    for name in re.findall(r"`(\w+)`", sentence[1]):
        assert OPS[name].pullback is ZERO
        assert name in [found for found, _ in DECLARED_ZERO]
    assert len(re.findall(r"`(\w+)`", sentence[1])) == len(DECLARED_ZERO)


def zero_everywhere() -> list[tuple[str, Op]]:
    """Returns the ops from floating-point to floating-point numbers whose declared derivative is zero."""
    found: list[tuple[str, Op]] = []
    for op in ops():
        if op.pullback is ZERO and op.kind.name in ("unary", "binary") and "float32" in takes(op):
            inputs, params = example(op, np.float32)
            if call(op, as_tensors(inputs), params).dtype == pb.float32:
                found.append((op.name, op))
    return found


DECLARED_ZERO = zero_everywhere()


@pytest.mark.parametrize(("name", "op"), DECLARED_ZERO, ids=[name for name, _ in DECLARED_ZERO])
def test_every_op_without_a_slope_warns_where_nothing_else_passes(name: str, op: Op) -> None:
    inputs, params = example(op, np.float32)
    x = pb.Parameter(inputs[0], name="x")
    with pb.GradientTape() as tape:
        y = pb.sum(call(op, [x, *as_tensors(inputs[1:])], params))
    with pytest.warns(pb.ZeroGradientWarning, match=rf'"x".*{name}, recorded at ".*\.py", line \d+'):
        close(tape.gradient(y, x), np.zeros(x.shape))


def test_ties_split_evenly() -> None:
    with pb.GradientTape() as tape:
        x = watched([3.0, 1.0, 3.0, 3.0], tape)
        y = pb.max(x)
    close(tape.gradient(y, x), [1 / 3, 0, 1 / 3, 1 / 3])
    with pb.GradientTape() as tape:
        a, b = watched(2.0, tape), watched(2.0, tape)
        y = pb.minimum(a, b)
    assert [g.item() for g in tape.gradient(y, [a, b])] == [0.5, 0.5]
    with pb.GradientTape() as tape:
        a, b = watched([2.0, 5.0], tape), watched([2.0, 1.0], tape)
        y = pb.sum(a.at[pb.tensor([0, 1])].max(b))
    first, second = tape.gradient(y, [a, b])
    close(first.numpy() + second.numpy(), [1.0, 1.0])


def test_where_differentiates_only_the_branch_it_chose() -> None:
    with pb.GradientTape() as tape:
        x = watched([-1.0, 4.0, 0.0], tape)
        y = pb.sum(pb.where(x > 0, pb.sqrt(x), 0 * x))
    close(tape.gradient(y, x), [0.0, 0.25, 0.0])


def test_where_keeps_the_other_branch_out_of_second_derivatives_too() -> None:
    x = pb.tensor([-1.0, 4.0, 0.0], dtype=pb.float64)
    with pb.GradientTape() as outer:
        outer.watch(x)
        with pb.GradientTape() as inner:
            inner.watch(x)
            y = pb.sum(pb.where(x > 0, pb.sqrt(x) * pb.log(x), x * x))
        (g,) = inner.gradient(y, [x])
        total = pb.sum(g)
    close(g, [-2.0, 0.25 * np.log(4.0) + 0.5, 0.0])
    close(outer.gradient(total, x), [2.0, -np.log(4.0) / (4 * 4**1.5), 2.0])


def test_a_where_inside_a_where_keeps_both_branches_out() -> None:
    with pb.GradientTape() as tape:
        x = watched([-1.0, 0.0, 4.0], tape)
        inner = pb.where(x < 0, pb.sqrt(x), pb.log(x) * pb.sqrt(x))
        y = pb.sum(pb.where(x > 0, inner, 3 * x))
    close(tape.gradient(y, x), [3.0, 3.0, 0.5 + 0.25 * np.log(4.0)])


def test_straight_through_passes_the_gradient() -> None:
    with pb.GradientTape() as tape:
        x = watched([0.2, 1.7], tape)
        y = pb.sum(pb.straight_through(pb.round)(x) ** 2)
    close(tape.gradient(y, x), [0.0, 4.0])
    with pytest.raises(pb.ShapeError, match="straight_through"):
        pb.straight_through(pb.sum)(pb.ones(3))


def test_the_slope_of_a_power_of_a_number_is_rounded_once() -> None:
    """The slope of a^x at x = 0 is log(a). The logarithms of C libraries differ in the last digit."""
    for base in np.exp(np.random.default_rng(0).uniform(-700, 700, 300)):
        exact = Decimal(float(base)).ln(Context(prec=60))
        assert pb.grad(lambda x, base=float(base): base**x)(pb.tensor(0.0, dtype="float64")).item() == float(exact)
