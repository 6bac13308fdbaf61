"""tape.explain: rules as text, kept arrays and their owners, compared with the allocators, and Jacobians that are never formed."""

from __future__ import annotations

import gc
import re
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import close, example, ops, simulated
from pullback import nn
from pullback.autodiff.node import all_kept, named
from pullback.autodiff.primitive import same
from pullback.report import rule_text
from pullback.report.memory import Holdings
from pullback.report.tape_report import Explanation
from pullback.tensors import gpu
from pullback.tensors.tensor import Tensor

# ---- rules


def test_a_rule_reads_as_it_is_declared() -> None:
    def words(op: str, i: int = 0) -> str:
        found = next(o for o in ops() if o.name == op)
        return rule_text.rule_text(found, found.rules[i])

    assert words("tanh") == "g * (1 - y * y)"
    assert (words("multiply", 0), words("multiply", 1)) == ("g * b", "g * a")  # These are two lambdas on one line.
    assert words("add") == "g"
    assert words("sqrt") == "g * (0.5 / y)"  # The text is the declared rule, without the guard against a cotangent of 0.
    assert words("softmax") == "y (g - sum(g y)), where a factor of 0 times NaN is 0"  # it is declared in words
    assert words("pow").startswith("b * a**(b-1)")  # This is the first sentence of the function that the rule calls.


@pytest.mark.parametrize("op", [op for op in ops() if any(op.rules)], ids=str)
def test_every_rule_is_read_from_its_source(op: Any) -> None:
    for i, rule in enumerate(op.rules):
        if rule is not None:
            declared = op.pullback[i] if isinstance(op.pullback, tuple) else op.pullback
            assert declared is same or rule_text.definition_of(declared) is not None
            assert len(rule_text.rule_text(op, rule)) > 0
            assert not re.search(r"\b_[a-z]", rule_text.rule_text(op, rule))  # no name of a private function


def test_a_rule_without_source_is_told_by_its_arguments() -> None:
    scope: dict[str, Any] = {}
    exec("def _twice(g, x):\n    return g * x", scope)
    assert rule_text._text(scope["_twice"]) == "twice(g, x)"


# ---- kept arrays


def of_softmax() -> tuple[pb.GradientTape, pb.Tensor, pb.Parameter]:
    x = pb.Parameter(np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32), name="x")
    with pb.GradientTape() as tape:
        y = pb.sum(pb.softmax(x) ** 2)
    return tape, y, x


def test_softmax_keeps_its_output_and_no_jacobian() -> None:
    tape, y, x = of_softmax()
    found = tape.explain(y)
    row = found.rows[0]
    assert (row.op, row.shape, row.function) == ("softmax", (64, 512), "of_softmax")
    assert row.file == __file__
    assert [(k.name, k.bytes, k.alone) for k in row.kept] == [("y", 131_072, True)]
    assert row.jacobian_bytes == (64 * 512) ** 2 * 4
    assert found.bytes == found.tape_bytes == 131_072  # The power keeps the same array.
    text = str(found)
    assert "4.29 GB" in text
    assert "131,072" in text
    assert "test_explain.py" in text
    assert "131072 bytes kept" in repr(found)
    assert tape.gradient(y, x).shape == (64, 512)  # explain() does not consume the tape.


def test_a_tape_that_has_been_used_has_nothing_to_explain() -> None:
    tape, y, x = of_softmax()
    tape.gradient(y, x)
    with pytest.raises(pb.TapeError, match=r"explain: this tape has been used.*persistent=True"):
        tape.explain(y)


def test_only_the_way_to_the_target_is_explained() -> None:
    x = pb.Parameter(np.ones(4))
    with pb.GradientTape() as tape:
        aside = pb.exp(x)
        y = pb.sum(pb.sign(pb.tanh(x)) + x)
    assert [row.op for row in tape.explain(y).rows] == ["sign", "add", "sum"]
    assert tape.explain(y).rows[0].rules == {}
    assert [row.op for row in tape.explain([y, aside]).rows] == ["exp", "sign", "add", "sum"]


@pytest.mark.usefixtures("on_cpu")
def test_what_the_user_holds_is_not_the_tapes_alone() -> None:
    x, w = pb.Parameter(np.ones((8, 8))), pb.tensor(np.ones((8, 8)))
    with pb.GradientTape() as tape:
        held = pb.tanh(x)
        y = pb.sum(pb.exp(held) * w)
    tanh, exp, multiply = tape.explain(y).rows[:3]
    assert [k.alone for k in tanh.kept] == [False]
    assert [(k.name, k.alone) for k in exp.kept] == [("y", True)]
    assert [(k.name, k.alone) for k in multiply.kept] == [("b", False)]
    view = held[0]
    del held
    assert [k.alone for k in tape.explain(y).rows[0].kept] == [False]  # A view holds the memory.
    del view
    assert [k.alone for k in tape.explain(y).rows[0].kept] == [True]
    with pb.GradientTape() as tape:
        z = pb.sum(pb.exp(x) * x)  # The sum keeps nothing; the product keeps an array that nothing else holds.
        last = pb.exp(x) * x
    assert [k.alone for k in tape.explain([z, last]).rows[-1].kept if k.name == "a"] == [True]
    outside = np.ones(8)
    with pb.GradientTape() as tape:
        z = pb.sum(x[0] * pb.asarray(outside))
    assert tape.explain(z).tape_bytes == 0


def held(nbytes: int) -> int:
    """Returns the bytes of memory that hold an array: the pool of a GPU hands out multiples of 512."""
    on_gpu = pb.ones(1).device != "cpu" and not simulated()
    return -(-nbytes // 512) * 512 if on_gpu else nbytes


def test_a_view_keeps_the_whole_array_which_is_counted_once() -> None:
    x = pb.Parameter(np.ones((100, 10)))
    with pb.GradientTape() as tape:
        h = x + 1.0
        y = pb.sum(pb.sin(h[0]) + pb.cos(h[1]))
        del h
    sin, cos = [row for row in tape.explain(y).rows if row.op in ("sin", "cos")]
    assert [(k.shape, k.bytes, k.alone, k.again) for k in sin.kept] == [((10,), held(8000), True, False)]
    assert [(k.bytes, k.again) for k in cos.kept] == [(held(8000), True)]


@pytest.mark.parametrize("wrap", [lambda f: f, pb.checkpoint], ids=["plain", "checkpoint"])
def test_the_call_of_a_function_with_its_own_pullback_is_one_row_with_what_its_pullback_has(wrap: Any) -> None:
    @pb.custom_gradient
    def twice(x: Any, y: Any) -> Any:
        e = pb.exp(x)
        return (2 * e, y), wrap(lambda gs: (gs[0] * 2 * e, gs[1]))

    x = pb.Parameter(np.ones((10, 10)), name="x")
    with pb.GradientTape() as tape:
        a, b = twice(x * 1.5, x * 2.5)
        z = pb.sum(a) + pb.sum(b)
    (call,) = [row for row in tape.explain(z).rows if row.op == "twice"]
    assert list(call.rules) == ["input 0, input 1"]
    assert [(k.name, k.bytes, k.alone) for k in call.kept if k.name == "e"] == [("e", held(800), True)]
    assert call.jacobian_bytes == 200 * 200 * 8  # both results by both arguments
    found = tape.diagnose(z, x)
    assert [r.tag.split()[0] for r in found.ops] == ["multiply", "multiply", "twice", "sum", "sum", "add"]
    close(tape.gradient(z, x), 3 * np.exp(np.full((10, 10), 1.5)) + 2.5)


def test_index_arrays_are_counted() -> None:
    x = pb.Parameter(np.ones(1000))
    with pb.GradientTape() as tape:
        y = pb.sum(x[pb.tensor(np.arange(100))])
    take = next(row for row in tape.explain(y).rows if row.op == "take")
    assert [(k.name, k.bytes) for k in take.kept] == [("indices", held(800))]


# ---- against the allocators


def programs() -> dict[str, Callable[[Any, Any], Any]]:
    layer = nn.LayerNorm(64)
    return {
        "elementwise": lambda x, w: pb.sum(pb.tanh(pb.exp(x * 0.1) + w) ** 2 / (1.5 + pb.sin(x))),
        "products": lambda x, w: pb.sum(pb.relu(x @ w.mT) @ pb.sigmoid(w @ x.mT)),
        "rows": lambda x, w: pb.mean(pb.softmax(layer(x + w)) * pb.logsumexp(x, keepdims=True, axis=-1)),
        "views": lambda x, w: pb.sum(pb.square((x * w)[::2].mT) + pb.sin((x + w)[1::2].mT)),
        "indices": lambda x, w: pb.sum(pb.max(x * w, axis=1)[pb.argsort(x[:, 0])] * pb.sort(x[:, 1] * 2.0)),
        "a custom gradient": lambda x, w: pb.sum(_log1pexp(x * w) * w),
        "a checkpoint": lambda x, w: pb.sum(pb.checkpoint(lambda a: pb.tanh(pb.exp(a) * w))(x + w)),
        "one buffer many times": lambda x, w: sum([pb.sum(pb.square(x + w) * float(k)) for k in range(5)], start=pb.sum(x * w)),
    }


@pb.custom_gradient
def _log1pexp(x: Any) -> Any:
    e = pb.exp(x)
    return pb.log(1 + e), lambda g: g * (1 - 1 / (1 + e))


def recorded(f: Callable[[Any, Any], Any]) -> tuple[pb.GradientTape, Any, list[Any]]:
    rng = np.random.default_rng(0)
    sources = [pb.Parameter(rng.standard_normal((64, 64)).astype(np.float32)) for _ in range(2)]
    with pb.GradientTape() as tape:
        y = f(*sources)
    return tape, y, sources


def numpys_bytes() -> int:
    """Returns the bytes that NumPy's allocator has allocated and not freed since tracing began."""
    gc.collect()
    numpys = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    return sum([trace.size for trace in tracemalloc.take_snapshot().filter_traces([numpys]).traces])


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", programs())
def test_the_bytes_of_the_tape_alone_are_those_that_numpys_allocator_gets_back(name: str) -> None:
    tracemalloc.start()
    try:
        tape, y, sources = recorded(programs()[name])
        said = tape.explain(y)
        before = numpys_bytes()
        tape.reset()
        freed = before - numpys_bytes()
    finally:
        tracemalloc.stop()
    assert said.tape_bytes == freed
    assert said.tape_bytes > 0
    assert said.bytes >= said.tape_bytes
    del sources


@pytest.mark.skipif(not pb.cuda.is_available(), reason=str(pb.cuda.why_not()))
@pytest.mark.skipif(simulated() and gpu.need().kernels is None, reason="without kernels the simulated device has no allocator")
@pytest.mark.parametrize("name", programs())
def test_the_bytes_of_the_tape_alone_are_those_that_the_devices_allocator_gets_back(name: str) -> None:
    with pb.use_device("cuda"):
        tape, y, sources = recorded(programs()[name])
        said = tape.explain(y)
        gc.collect()
        before = pb.cuda.memory()["live"]
        tape.reset()
        gc.collect()
        freed = before - pb.cuda.memory()["live"]
    blocks = len([k for row in said.rows for k in row.kept if k.alone and not k.again])
    rounding = 511 * blocks if simulated() else 0  # There an array does not have the size of its block.
    assert 0 < said.tape_bytes <= freed <= said.tape_bytes + rounding
    del sources


class Pointed:
    """A stand-in for a CuPy array as reference counting sees it: the array holds a pointer, which holds memory."""

    class Memory:
        def __init__(self, size: int) -> None:
            self.size = size

    class Pointer:
        def __init__(self, mem: Any) -> None:
            self.mem = mem

    __cuda_array_interface__ = None

    def __init__(self, data: Any, base: Any = None) -> None:
        self.data, self.base, self.shape, self.dtype = data, base, (), "float32"


def test_memory_behind_pointers_is_counted_by_its_owner() -> None:
    def array(size: int) -> Pointed:
        return Pointed(Pointed.Pointer(Pointed.Memory(size)))

    def over(array: Any) -> Tensor:
        t = Tensor(np.zeros(()))  # a Tensor is made of nothing but a device's own arrays
        t.array = array
        return t

    def blocks() -> list[list[tuple[int, bool]]]:
        holdings, found = Holdings(tape), []
        for node in named(tape.nodes):
            kept = [list(holdings.blocks(value)) for value in all_kept([node])]
            found.append([(block.bytes, block.alone) for arrays in kept for _, block in arrays])
        return found

    tape = pb.GradientTape()
    whole, shared, outside = array(512), array(1024), array(2048)
    kept = [
        (over(array(256)),), (over(whole), over(Pointed(Pointed.Pointer(whole.data.mem), base=whole))),
        (over(shared), over(Pointed(shared.data))), (over(Pointed(outside.data)),),
    ]
    tape.nodes = [(None, i, [0], [(1, None, values, None)], (), None, 0, ()) for i, values in enumerate(kept)]  # type: ignore[misc]
    del whole, shared, kept
    assert blocks() == [[(256, True)], [(512, True)] * 2, [(1024, True)] * 2, [(2048, False)]]
    del outside
    assert blocks()[-1] == [(2048, True)]


def test_large_arrays_are_freed_with_the_tape() -> None:
    """Large arrays come from pullback's allocator, so a weak reference to the array shows when it is freed."""
    x = pb.Parameter(np.ones((256, 256), np.float32))
    with pb.GradientTape() as tape:
        h = pb.exp(x)
        y = pb.sum(pb.tanh(h))
        kept = weakref.ref(h)
        del h
    said = tape.explain(y)
    assert [(row.op, row.tape_bytes) for row in said.rows] == [("exp", 262_144), ("tanh", 262_144), ("sum", 0)]
    assert kept() is not None
    tape.reset()
    assert kept() is None


# ---- cost


def test_an_explanation_is_recorded_by_nobody_and_calls_no_hooks() -> None:
    seen: list[Any] = []
    with pb.GradientTape(persistent=True) as tape:
        x = pb.Parameter(2.0)
        y = pb.tanh(x) * x
        tape.on_gradient(x, seen.append)
        nodes = len(tape.nodes)
        with pb.profile() as prof:
            assert isinstance(tape.explain(y), Explanation)
        assert len(tape.nodes) == nodes
    assert seen == []
    assert prof.forward.launches == prof.backward.launches == 0


@pytest.mark.parametrize("op", [op for op in ops() if any(op.rules)], ids=str)
def test_every_op_can_be_explained(op: Any) -> None:
    from conftest import as_tensors, call, takes

    inputs, params = example(op, np.float32 if "float32" in takes(op) else np.int32)
    tensors = as_tensors(inputs)
    with pb.GradientTape() as tape:
        tape.watch([t for t in tensors if t.dtype.kind in "fV"])
        y = call(op, tensors, params)
    row = tape.explain(y).rows[-1]
    assert (row.op, row.shape) == (op.name, y.shape)
    assert row.rules
    assert op.name in str(tape.explain(y))
