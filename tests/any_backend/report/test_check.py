"""tape.check: a wrong derivative is named with op, line and figures, nothing else is, and what cannot be checked has a reason."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import as_tensors, call, example, on_device, ops
from pullback import nn
from pullback.autodiff.primitive import OPS, Op
from pullback.report.tape_check import Check, CheckedOp
from pullback.tensors import gpu

HERE = __file__
RNG = np.random.default_rng(0)
A = np.random.default_rng(1).standard_normal((3, 4))


def line_of(mark: str) -> int:
    """Returns the number of the only line of this file that ends with the comment `# <mark>`."""
    with open(HERE, encoding="utf-8") as file:
        (found,) = [n for n, line in enumerate(file, 1) if line.rstrip().endswith(f"# {mark}")]
    return found


def only_wrong(found: Check) -> CheckedOp:
    (row,) = found.wrong
    assert not found.ok
    return row


def statuses(found: Check) -> dict[str, str]:
    return {row.op: row.status for row in found.rows}


def recorded(op: Op) -> tuple[Any, Any, Any]:
    """Returns a tape with one call of the op on its example, the result, and the arguments, which must stay alive."""
    inputs, params = example(op, "float32")
    tensors = as_tensors(inputs)
    with pb.GradientTape() as tape:
        tape.watch([t for t in tensors if t.dtype.kind == "f"])
        y = call(op, tensors, on_device(params))
    return tape, y, tensors


DIFFERENTIABLE = [op for op in ops() if op.pullback not in (None, "zero") and op.takes in ("float", "number", "any")]


# ---- right and wrong rules


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_every_op_is_right_and_a_wrong_rule_is_found(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    tape, y, arguments = recorded(op)
    assert arguments
    (row,) = tape.check(y).rows
    assert (row.status, row.why) == ("right", ""), row
    assert row.worst is not None
    assert row.worst.excess < 0.01  # so the tolerance leaves room, and is not what makes it right
    rule = next(rule for rule in op.rules if rule is not None)
    kernels = gpu.loaded_kernels() if y.device == "cuda" else None  # on a GPU a library computes some ops, by their definitions
    two = op.native and rule.fused is not rule.definition and (kernels is None or hasattr(kernels, op.name))
    for which in ("fused", "definition") if two else ("definition",):
        with monkeypatch.context() as patch:
            right = getattr(rule, which)
            patch.setattr(rule, which, lambda *args, right=right: scaled(right(*args), 1 + 1e-5))
            found = only_wrong(tape.check(y))
            assert (found.op, found.worst is not None) == (op.name, True)
            assert {"fused": "the fused pullback gives", "definition": "the definition of the pullback, "}[
                which
            ] in found.why or not two
    assert tape.check(y).ok


def scaled(gradients: Any, factor: float) -> Any:
    if isinstance(gradients, list):
        return [None if g is None else g * factor for g in gradients]
    return gradients * factor


def chain(x: Any, f: Any) -> Any:
    y = pb.exp(x * 0.5)
    y = pb.tanh(y) + 1.0  # the tanh
    y = f(y)  # the function
    return pb.sum(pb.sqrt(y) * y)


def twice(y: Any) -> Any:
    return 2.0 * y


def test_a_wrong_rule_in_a_chain_is_named_with_its_line_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = OPS["tanh"].rules[0]
    assert rule is not None
    for which in ("fused", "definition"):
        monkeypatch.setattr(rule, which, lambda g, y: g * (1 - y))  # y is missing: 1 - y * y is right
    x = pb.Parameter(A)
    with pb.GradientTape() as tape:
        loss = chain(x, twice)
    found = tape.check(loss)
    row = only_wrong(found)
    assert (row.op, row.file, row.line, row.function) == ("tanh", HERE, line_of("the tanh"), "chain")
    assert row.worst is not None
    place = eval(row.worst.where.removeprefix("element "))
    y = np.tanh(np.exp(0.5 * A))[place]
    assert abs(row.worst.theirs / row.worst.ours - (1 + y)) < 1e-6  # (1 - y²) / (1 - y)
    assert row.worst.difference > 1e3 * row.worst.allowed
    (sentence,) = found.findings
    assert re.match(rf'tanh, recorded at ".*test_check\.py", line {row.line}, in chain: the pullback gives -?\d', sentence)
    assert re.search(
        r"they differ by \d\.\de.\d+, and may differ by \d\.\de-\d+ \(1e-06 of the derivative, and .* error of", sentence, re.I
    )
    assert sentence in str(found)
    assert f"tanh at test_check.py:{row.line}" in repr(found)
    with pytest.raises(pb.GradientCheckError, match=r"check: 8 ops: 7 right, 1 wrong\ntanh, recorded at "):
        found.raise_if_wrong()


def test_a_wrong_custom_gradient_in_a_chain_is_named_with_its_line_and_nothing_else() -> None:
    @pb.custom_gradient
    def softplus(x: Any) -> Any:
        e = pb.exp(x)
        return pb.log(1 + e), lambda g: g * (1 - 1 / (2 + e))  # 1 + e is right

    x = pb.Parameter(A.astype("float32"))
    with pb.GradientTape() as tape:
        loss = chain(x, softplus)
    row = only_wrong(tape.check(loss))
    assert (row.op, row.line, row.function) == ("softplus", line_of("the function"), "chain")
    assert row.worst is not None
    place = eval(row.worst.where.removeprefix("element "))
    e = np.exp(np.tanh(np.exp(0.5 * A)) + 1)[place]
    ratio = (1 - 1 / (1 + e)) / (1 - 1 / (2 + e))
    assert abs(row.worst.theirs / row.worst.ours - ratio) < 1e-6
    with pb.GradientTape() as tape:
        loss = chain(x, twice)
    tape.check(loss).raise_if_wrong()  # which it does not


def test_one_wrong_element_of_many_is_located() -> None:
    @pb.custom_gradient
    def cube(x: Any) -> Any:
        slope = 3 * x * x
        return x**3, lambda g: (g * slope).at[17, 31].add(0.25)

    x = pb.Parameter(np.random.default_rng(2).standard_normal((40, 50)))
    with pb.GradientTape() as tape:
        loss = pb.sum(cube(x))
    row = only_wrong(tape.check(loss))
    assert row.worst is not None
    assert row.worst.where == "element (17, 31)"
    assert abs(row.worst.ours - row.worst.theirs - 0.25) < 1e-6


def test_a_gradient_of_the_wrong_shape_and_a_pullback_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(g: Any, x: Any) -> Any:
        return (g * pb.cos(x))[0]

    def raising(g: Any, x: Any) -> Any:
        raise ZeroDivisionError("nothing left")

    x = pb.Parameter(A)
    for pull, words in (
        (narrow, r"a gradient of shape \(4,\) for x, which has the shape \(3, 4\)"),
        (raising, "ZeroDivisionError: nothing"),
    ):
        with monkeypatch.context() as patch:
            for which in ("fused", "definition"):
                patch.setattr(OPS["sin"].rules[0], which, pull)
            with pb.GradientTape() as tape:
                loss = pb.sum(pb.sin(pb.exp(x)) * x)
            found = tape.check(loss)
        row = only_wrong(found)
        assert row.op == "sin"
        assert re.search(words, row.why)
        assert statuses(found) == {"exp": "right", "sin": "wrong", "multiply": "right", "sum": "right"}


# ---- kinks


def test_a_kink_is_not_an_error_and_does_not_hide_one(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = pb.Parameter(np.zeros((2, 3)))
    functions = {
        "relu": pb.relu, "abs": pb.abs, "maximum": lambda x: pb.maximum(x, 0.0), "max": lambda x: pb.max(x, axis=1),
        "sort": pb.sort, "floor": lambda x: pb.floor(x) * x, "sqrt": pb.sqrt, "remainder": lambda x: x % 1.0,
    }
    for name, f in functions.items():
        with pb.GradientTape() as tape:
            loss = pb.sum(f(zeros))
        found = tape.check(loss)
        assert found.ok, found
        (row,) = [row for row in found.rows if row.op == name]
        assert row.status == "kink", row
        assert "6 places: checked next to it" in row.why
    for which in ("fused", "definition"):
        monkeypatch.setattr(OPS["relu"].rules[0], which, lambda g, y: pb.where(y > 0, 1.1 * g, 0.0))
    with pb.GradientTape() as tape:
        loss = pb.sum(pb.relu(zeros))
    assert only_wrong(tape.check(loss)).op == "relu"


def test_few_elements_at_a_kink_among_many() -> None:
    values = np.random.default_rng(3).standard_normal((50, 50))
    values[:2] = 0
    values[3] = 1e-6  # next to the kink, and on its right side
    x = pb.Parameter(values)
    with pb.GradientTape() as tape:
        loss = pb.sum(pb.relu(x) * x)
    (relu, multiply, total) = tape.check(loss).rows
    assert (relu.status, relu.why) == ("kink", "at a kink or jump in 100 places: checked next to it")
    assert (multiply.status, total.status) == ("right", "right")


def test_steep_flat_and_large_values_are_no_kinks() -> None:
    x = pb.Parameter(np.array([1e-8, 1e-3, 1.0, 1e3, 1e6]))
    with pb.GradientTape() as tape:
        loss = pb.sum(pb.log(x)) + pb.sum(pb.sqrt(x)) + pb.sum(1 / x) + pb.sum(pb.tanh(x)) + pb.sum(pb.cos(x)) + pb.sum(x**3)
    found = tape.check(loss)
    assert {row.status for row in found.rows} == {"right"}, found


# ---- kinds of ops


def test_values_that_no_pullback_keeps_are_computed_again_or_drawn() -> None:
    w = pb.Parameter(A)
    with pb.GradientTape() as tape:
        loss = pb.sum(pb.tanh(w + w))  # tanh keeps its result only; its argument is computed from w
    add, tanh, _ = tape.check(loss).rows
    assert (add.status, tanh.status, tanh.why) == ("right", "right", "")
    assert tanh.worst is not None
    place = eval(tanh.worst.where.removeprefix("element "))
    weight = tanh.worst.theirs / (1 - np.tanh(2 * A) ** 2)[place]  # the cotangent, whose magnitude is 0.5 to 1.5
    assert 0.5 <= abs(weight) <= 1.5
    with pb.GradientTape() as tape:
        loss = pb.sum(pb.tanh(w + pb.tensor(A)))  # here nobody knows the second term any more
    assert tape.check(loss).rows[1].why == "at drawn values of x, which the tape does not keep"


def test_integers_indices_views_and_constants() -> None:
    x, table = pb.Parameter(A), pb.Parameter(RNG.standard_normal((10, 4)).astype("float32"))
    ids = pb.tensor([1, 1, 9])
    with pb.GradientTape() as tape:
        y = table[ids][0] * 2 + pb.sum(x.T[0]) - x[::2, 1:].reshape((6,))[:4] + pb.segment_sum(x, [0, 1, 0])[0]
        y = pb.outer(y, y).at[0].set(x[0]).at[pb.tensor([1, 2])].add(1.0)
        y = pb.where(y > 0, y, 0.1 * y) + pb.concat([x[:2], pb.ones((2, 4))]) / pb.take_along_axis(x, pb.argsort(x), axis=1)[0]
        loss = (
            nn.cross_entropy(y, pb.concat([ids, ids[:1]]) % 4)
            + pb.mean(pb.einsum("ij,kj->ik", y, y))
            + y.astype("float16").astype("float32").std()
        )
    found = tape.check(loss)
    assert not found.wrong, found
    assert not found.unchecked, found
    assert len(found.rows) > 25


def test_dropout_checks_with_its_own_mask_and_no_generator_moves() -> None:
    net = nn.Sequential(nn.Linear(6, 100), nn.Dropout(0.5), nn.Tanh(), nn.LayerNorm(100), nn.Linear(100, 3))

    @pb.custom_gradient
    def noisy(x: Any) -> Any:
        noise = pb.random.normal(x.shape, dtype=x.dtype)
        return x * noise, lambda g: g * noise

    with pb.GradientTape() as tape:
        loss = nn.mse(noisy(net(pb.tensor(RNG.standard_normal((8, 6)).astype("float32")))), pb.zeros((8, 3)))
    before = pb.random.state_dict()
    found = tape.check(loss)
    assert pb.random.state_dict() == before
    assert [row.op for row in found.rows if row.op in ("dropout", "noisy")] == ["dropout", "noisy"]
    assert {row.status for row in found.rows} == {"right"}, found


def test_checkpoints_are_checked_inside_with_the_lines_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    w = pb.Parameter(A[:, :3])

    @pb.checkpoint
    def block(x: Any) -> Any:
        h = pb.tanh(x @ w)
        return h * pb.sigmoid(h)  # the sigmoid

    def run() -> Check:
        with pb.GradientTape() as tape:
            loss = pb.sum(block(block(pb.tensor(A.T))))
        return tape.check(loss)

    assert {row.status for row in run().rows} == {"right"}
    assert [row.op for row in run().rows] == [*["matmul", "tanh", "sigmoid", "multiply"] * 2, "sum"]
    for which in ("fused", "definition"):
        monkeypatch.setattr(OPS["sigmoid"].rules[0], which, lambda g, y: g * y)
    found = run()
    assert {(row.op, row.line) for row in found.wrong} == {("sigmoid", line_of("the sigmoid"))}
    assert len(found.findings) in (1, 2)


def test_second_derivatives_scans_and_vmap() -> None:
    w = pb.Parameter(A)
    with pb.GradientTape() as outer:
        with pb.GradientTape() as inner:
            inside = pb.sum(pb.vmap(lambda r: pb.logsumexp(pb.exp(r) * r))(w))
        g = inner.gradient(inside, w)
        _, ys = pb.scan(lambda c, x: (pb.tanh(c + x), c * x), pb.zeros(4, dtype=pb.float64), w, checkpoint=2)
        loss = pb.sum(g * g) + pb.sum(ys)
    found = outer.check(loss)
    assert not found.wrong, found
    assert not found.unchecked, found


def test_lower_precision_is_checked_in_float64() -> None:
    x = pb.Parameter(A.astype("float32"))
    with pb.amp.autocast("bfloat16"), pb.GradientTape() as tape:
        y = (x @ x.T).astype(pb.bfloat16)
        loss = pb.sum(pb.exp(y * 0.1).astype("float16") * 2)
        found = tape.check(loss)
    assert {row.status for row in found.rows} == {"right"}, found


def test_a_function_that_rounds_to_float32_is_not_blamed() -> None:
    @pb.custom_gradient
    def rounded(x: Any) -> Any:
        y = pb.sin(x.astype("float32"))
        return y, lambda g: g * pb.cos(x)

    @pb.custom_gradient
    def wrong(x: Any) -> Any:
        y = pb.sin(x.astype("float32"))
        return y, lambda g: g * pb.cos(x) * 1.1

    x = pb.Parameter(A.astype("float32"))
    for f, ok in ((rounded, True), (wrong, False)):
        with pb.GradientTape() as tape:
            loss = pb.sum(f(x))
        assert tape.check(loss).ok == ok


def test_only_outputs_that_the_target_uses_count() -> None:
    @pb.custom_gradient
    def with_a_figure(x: Any) -> Any:
        return (x * x, pb.sum(pb.abs(x))), lambda g: 2 * x * g[0]  # by design, no gradient flows from the figure

    x = pb.Parameter(A)
    with pb.GradientTape(persistent=True) as tape:
        y, figure = with_a_figure(x)
        loss = pb.sum(y)
        both = loss + figure
    assert tape.check(loss).ok
    assert only_wrong(tape.check(both)).op == "with_a_figure"


# ---- the report


def test_the_table_joins_equal_rows_and_names_the_worst() -> None:
    x = pb.Parameter(A)
    with pb.GradientTape() as tape:
        y = x
        for _ in range(100):
            y = pb.sin(y)
        loss = pb.sum(y)
    found = tape.check(loss)
    assert len(found.rows) == 101
    assert repr(found) == "Check(101 ops: 101 right)"
    text = str(found).splitlines()
    assert len(text) == 6  # heads, a rule, sin, sum, the verdict, no finding
    assert re.match(r"sin +test_check\.py:\d+ test_the_table\w+ +100  right", text[2])
    assert text[-2:] == ["101 ops: 101 right", "no derivative is wrong"]
    assert max(map(len, text)) <= 160
