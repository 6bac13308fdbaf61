"""Every op of the registry: forward, pullback, second order, dtypes, layouts, empty, special values, cost."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import (
    ELEMENTWISE,
    FLOATS,
    ROOT,
    as_tensors,
    assert_ulps,
    call,
    condition,
    draw,
    dtype_of,
    exact,
    example,
    ops,
    rng_for,
    takes,
)
from pullback.autodiff.node import Edge
from pullback.autodiff.primitive import OPS, ZERO, Op
from pullback.backends import native as native_backend, reference
from pullback.launch import door
from pullback.launch.refusal import Refused
from pullback.ops._counts import ACTIVATIONS, COUNTS
from pullback.tensors import dtypes, gpu
from pullback.tensors.tensor import Tensor

SIZES = (0, 1, 15, 16, 17, 1023, 1024, 1025, 5000)
SPECIAL = (
    0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0,
    1e-30, -1e-30, 1e30, -1e30, 88.9, -104.5, 1000.0, -1000.0,
)
DRAWS = [op for op in ops() if op.names[0] == "state"]  # random numbers have separate tests
ALL = [op for op in ops() if op not in DRAWS]
BY_ITS_DTYPE = ("nextafter",)  # depends on the dtype itself, so float64 cannot give the expected result
CASES = [(op, dtype) for op in ALL for dtype in takes(op) if op.name not in BY_ITS_DTYPE or dtype in FLOATS]
DIFFERENTIABLE = [op for op in ALL if op.pullback is not None and op.pullback is not ZERO]


def on_floats(kind: str) -> list[tuple[Op, str]]:
    return [(op, dtype) for op in ops(kind) for dtype in ("float32", "float64") if dtype in takes(op)]


def expected(op: Op, inputs: Any, params: Any) -> Any:
    return reference.run(op, inputs, params) if op.name in BY_ITS_DTYPE else exact(op, inputs, params)


# ---- forward


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=str)
def test_a_backend_agrees_with_the_definition_in_float64(op: Op, dtype: str, backend: Any) -> None:
    inputs, params = example(op, dtype_of(dtype))
    got = backend.run(op, inputs, params)
    assert_ulps(got, expected(op, inputs, params), op.facts.ulp, scale=condition(op, inputs, params), what=f"{op} {dtype}")


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=str)
def test_backends_give_the_same_dtype(op: Op, dtype: str, native: None) -> None:
    from conftest import BACKENDS

    inputs, params = example(op, dtype_of(dtype))
    kernels, definitions = BACKENDS
    dtype_of_kernels = kernels.run(op, inputs, params).dtype
    with pb.use_device("cpu"):  # CuPy lacks some dtypes
        assert definitions.run(op, inputs, params).dtype == dtype_of_kernels


@pytest.mark.parametrize(("op", "dtype"), on_floats("unary"), ids=str)
def test_special_values_of_one_input(op: Op, dtype: str, backend: Any) -> None:
    with np.errstate(all="ignore"):
        x = np.array(SPECIAL).astype(dtype)
    signed = op.name != "sign"  # the sign of -0 may be -0 or 0
    assert_ulps(backend.run(op, (x,), ()), expected(op, (x,), ()), op.facts.ulp, signed_zeros=signed, what=str(op))


@pytest.mark.parametrize(("op", "dtype"), on_floats("binary"), ids=str)
def test_special_values_of_two_inputs(op: Op, dtype: str, backend: Any) -> None:
    x = np.array(SPECIAL).astype(dtype)
    a, b = (grid.ravel() for grid in np.meshgrid(x, x))
    got, wanted = backend.run(op, (a, b), ()), expected(op, (a, b), ())
    for i in range(a.size):
        assert_ulps(got[i], wanted[i], op.facts.ulp, what=f"{op}({a[i]!r}, {b[i]!r})")


# ---- layouts


def layouts(x: Any) -> dict[str, Any]:
    """Returns x in different memory layouts. "repeated" has different values, because it repeats x's first row with stride 0."""
    wide = np.zeros([2 * n + 1 for n in x.shape], x.dtype)
    stepped = wide[tuple([slice(1, 2 * n + 1, 2) for n in x.shape])]
    stepped[...] = x
    raw = np.zeros(x.nbytes + 1, np.uint8)
    shifted = raw[1:].view(x.dtype).reshape(x.shape)
    shifted[...] = x
    every = tuple([slice(None, None, -1)] * x.ndim)
    return {
        "contiguous": x, "transposed": np.asfortranarray(x), "stepped": stepped, "negative": np.ascontiguousarray(x[every])[every],
        "repeated": np.broadcast_to(x[:1], x.shape) if x.ndim else x, "misaligned": shifted,
    }


@pytest.mark.parametrize("layout", ["transposed", "stepped", "negative", "repeated", "misaligned"])
@pytest.mark.parametrize("op", ALL, ids=str)
def test_the_layout_of_the_inputs_does_not_matter(op: Op, layout: str, backend: Any) -> None:
    inputs, params = example(op, np.float32 if "float32" in takes(op) else np.int32)
    placed = [layouts(x)[layout] if isinstance(x, np.ndarray) and x.ndim and dtypes.is_float(x.dtype) else x for x in inputs]
    plain = [np.ascontiguousarray(x) if isinstance(x, np.ndarray) and x.ndim else x for x in placed]
    got, wanted = backend.run(op, placed, params), backend.run(op, plain, params)
    if backend.name == "native" and op.kind.name in (*ELEMENTWISE, "movement", "reduce"):
        np.testing.assert_array_equal(got, wanted)
    else:  # NumPy and BLAS run different code for different strides
        wanted = wanted.astype(np.float64) if dtypes.is_float(wanted.dtype) else wanted
        assert_ulps(got, wanted, op.facts.ulp, scale=condition(op, plain, params))


@pytest.mark.parametrize("op", ops(*ELEMENTWISE), ids=str)
def test_elementwise_ops_at_sizes_around_those_of_packs(op: Op, backend: Any) -> None:
    dtype, rng = np.dtype(np.float32 if "float32" in takes(op) else np.int32), rng_for(op)
    for size in SIZES:
        inputs = [draw(op, dtype, (size,), rng) for _ in range(2 if op.kind.name != "unary" else 1)]
        if op.kind.name == "select":
            inputs = [rng.random(size) < 0.5, *inputs]
        scale = condition(op, inputs, ())
        assert_ulps(backend.run(op, inputs, ()), expected(op, inputs, ()), op.facts.ulp, scale=scale, what=f"{op} of {size}")
        if size > 1 and op.kind.name == "binary":
            column = [inputs[0].reshape(-1, 1)[:17], inputs[1].reshape(1, -1)[:, :33]]
            for pair in (column, [inputs[0], inputs[1][0]]):
                scale = condition(op, pair, ())
                assert_ulps(backend.run(op, pair, ()), expected(op, pair, ()), op.facts.ulp, scale=scale, what=f"{op} broadcast")


@pytest.mark.parametrize("op", ops(*ELEMENTWISE), ids=str)
def test_elementwise_ops_of_no_axes(op: Op, backend: Any) -> None:
    dtype, rng = np.dtype(np.float32 if "float32" in takes(op) else np.int32), rng_for(op)
    inputs = [draw(op, dtype, (), rng) for _ in range(2 if op.kind.name != "unary" else 1)]
    if op.kind.name == "select":
        inputs = [np.array(True), *inputs]
    got = backend.run(op, inputs, ())
    assert got.shape == ()
    assert_ulps(got, expected(op, inputs, ()), op.facts.ulp)


# ---- derivatives


def differentiable_call(op: Op, dtype: Any = np.float64) -> tuple[Any, list[Any]]:
    """Returns a function of the op's floating-point inputs, and their values."""
    inputs, params = example(op, dtype)
    free = [i for i, x in enumerate(inputs) if isinstance(x, np.ndarray) and dtypes.is_float(x.dtype)]

    def f(*xs: Any) -> Tensor:
        values = list(as_tensors(inputs))
        for i, x in zip(free, xs):
            values[i] = x
        return call(op, values, params)

    return f, [inputs[i] for i in free]


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_pullbacks_are_the_derivatives_twice(op: Op) -> None:
    f, args = differentiable_call(op)
    pb.check_gradients(f, args, order=2)


@pytest.mark.parametrize("op", [op for op in ALL if op.pullback is ZERO], ids=str)
def test_ops_declared_to_have_no_slope_have_none(op: Op) -> None:
    f, args = differentiable_call(op, np.float64 if "float64" in takes(op) else np.int32)
    if args and dtypes.is_float(f(*as_tensors(args)).dtype):
        pb.check_gradients(f, args, order=1, step=1e-5)


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_pullbacks_keep_the_dtype_of_their_input(op: Op) -> None:
    for dtype in FLOATS:
        f, args = differentiable_call(op, dtype_of(dtype))
        xs = as_tensors(args)
        with pb.GradientTape() as tape:
            tape.watch(xs)
            y = f(*xs)
        if not dtypes.is_float(y.dtype):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pb.ZeroGradientWarning)
            for x, gx in zip(xs, tape.gradient(y, xs, output_gradients=pb.ones_like(y), unconnected="zero")):
                assert (gx.dtype, gx.shape) == (x.dtype, x.shape), f"{op} {dtype}"


def both_pullbacks(op: Op, inputs: Any, params: Any, rng: Any) -> Any:
    """Yields (index of the rule, fused result, definition's result, cotangent) for each rule with a fused kernel."""
    tensors = as_tensors(inputs)
    y = call(op, tensors, params)
    g = pb.asarray(np.asarray(rng.choice([1.0, -2.0, 0.5], y.shape)).astype(y.dtype))
    extra = ([True] * len(tensors),) if op.joint else ()
    for i, edge in enumerate(map(Edge._make, op.edges(tensors, y, params, [1] * len(tensors)))):
        rule, kept = edge.rule, edge.kept
        if rule.fused is rule.definition:
            continue
        try:
            pair = [rule.fused(g, *kept, *extra), rule.definition(g, *kept, *extra)]
        except Refused:
            assert not hasattr(gpu.loaded_kernels(), op.name)  # on a GPU a library computes the op, and the definition is taken
            continue
        for fused, defined in zip(*[p if isinstance(p, (tuple, list)) else [p] for p in pair]):
            if fused is not None:
                yield i, unbroadcast(fused, defined), defined.numpy(), g.numpy()


def unbroadcast(fused: Tensor, defined: Tensor) -> Any:
    return np.broadcast_to(fused.numpy(), defined.shape)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_a_fused_pullback_is_its_definition(op: Op, dtype: str, native: None) -> None:
    inputs, params = example(op, dtype)
    for i, fused, defined, g in both_pullbacks(op, inputs, params, rng_for(op)):
        scale = float(np.abs(g).max()) + float(np.abs(defined).max(initial=0.0)) * (op.kind.name not in ELEMENTWISE)
        assert_ulps(fused, defined.astype(np.float64), 8, scale=scale, what=f"{op}, rule {i}")


@pytest.mark.parametrize("op", [op for op in DIFFERENTIABLE if op.kind.name in ("unary", "binary")], ids=str)
def test_a_fused_pullback_is_its_definition_at_kinks_and_infinities(op: Op, native: None) -> None:
    x = np.array(SPECIAL).astype(np.float32)
    inputs = (x,) if op.kind.name == "unary" else tuple([grid.ravel() for grid in np.meshgrid(x, x)])
    for i, fused, defined, g in both_pullbacks(op, inputs, (), rng_for(op)):
        for k in range(fused.size):
            what = f"{op}, rule {i}, at {[float(x[k]) for x in inputs]}, g = {g[k]}"
            assert_ulps(fused[k], defined[k].astype(np.float64), 8, scale=abs(g[k]), what=what)


# ---- cost


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("op", ALL, ids=str)
def test_the_ledger_shows_the_declared_cost(op: Op, width: int, backend: Any) -> None:
    inputs, params = example(op, np.dtype(f"f{width}" if "float32" in takes(op) else f"i{width}"))
    ledger = door.begin()
    try:
        y = backend.run(op, inputs, params)
    finally:
        launches = door.end(ledger).launches
    assert op.facts.cost is not None, f"{op} has no cost; if it has a new row in csrc/math, `make dev` measures it"
    declared = op.facts.cost(inputs, *params, y) if op.variadic else op.facts.cost(*inputs, *params, y)
    arrays = [x for x in (*inputs, *params) if isinstance(x, np.ndarray)]
    moved = {"bytes_read": sum(map(reference.distinct_bytes, arrays)), "bytes_written": y.nbytes}
    declared = {**dict.fromkeys(door.FIGURES, 0), **moved, **declared}
    if "float32" not in takes(op):  # operations on integers are not FLOPs
        declared["integer_ops"] += declared["adds"] + declared["multiplies"] + 2 * declared["fmas"] + declared["special_ops"]
        declared |= dict.fromkeys(("adds", "multiplies", "fmas", "special_ops"), 0)
    assert all([launch.known for launch in launches])
    del declared["executed_flops"]  # depends on the backend; see test_counted.py
    for figure, wanted in declared.items():
        assert sum([getattr(launch, figure) for launch in launches]) == wanted, f"{op}: {figure}"


# ---- the registry


def rows() -> list[tuple[str, str]]:
    """Returns the rows of the tables of ops. test_update_rules.py tests the rows of optimizers."""
    return [
        (path.name, name)
        for path in sorted((ROOT / "csrc" / "math").glob("*.def"))
        if path.name != "update.def"
        for name in re.findall(r"^PB_[A-Z_]+\((\w+)", path.read_text(), re.MULTILINE)
    ]


def test_every_row_has_a_declaration() -> None:
    found = rows()
    assert found, "csrc/math/*.def has no rows"
    assert [(path, name) for path, name in found if name not in OPS] == []


def test_what_is_generated_from_the_kernels_is_up_to_date(native: None) -> None:
    """If this fails, run `make dev`, which runs tools/generate.py."""
    assert native_backend.module.counts == COUNTS
    assert ("none", *ACTIVATIONS[1:]) == native_backend.module.activations


def test_every_pullback_kernel_of_elements_is_called_by_its_op(native: None) -> None:
    """A pullback that is zero or a different op needs no kernel, because nothing would ever call it."""
    ends = {"_pullback": 0, "_pullback_a": 0, "_pullback_b": 1}
    kernels = [(name, end) for name in COUNTS for end in ends if name.endswith(end)]
    assert len(kernels) > 40
    for name, end in kernels:
        rule = OPS[name.removesuffix(end)].rules[ends[end]]
        assert rule is not None, name
        assert rule.fused is not rule.definition, name


LISTS = ("_counts.py", "__init__.py", "operators.py")  # generated, or lists of names


def files_that_name(op: str) -> set[str]:
    """Returns the source files whose code names an op, except those that only list names."""
    found = set()
    for path in [*(ROOT / "csrc").rglob("*.*"), *(ROOT / "python" / "pullback").rglob("*.py")]:
        listed = path.name in LISTS
        if path.suffix in (".py", ".def", ".h", ".cpp", ".cu", ".cuh") and not listed:
            comment = "#" if path.suffix == ".py" else "//"
            if any([re.search(rf"\b{op}\b", line.partition(comment)[0]) for line in path.read_text().splitlines()]):
                found.add(path.name)
    return found


@pytest.mark.skipif(not (ROOT / "csrc").exists(), reason="the source tree is not here: an installed package")
def test_an_op_that_nothing_composes_is_named_in_two_files() -> None:
    row_and_declaration = {"unary.def", "elementwise.py"}
    assert files_that_name("reciprocal") == row_and_declaration
    # A function that the C++ library lacks is written in csrc/math, once for numbers and once for counting scalars.
    formulas = {"hyperbolic.h", "function_list.h"}
    assert files_that_name("acosh") == files_that_name("asinh") == row_and_declaration | formulas
    # erf is also part of the formulas of GELU and of the truncated normal distribution, and NumPy has no erf.
    others = {"error_function.h", "random.h", "draws.py", "activations.py", "reference.py"}
    assert files_that_name("erf") == row_and_declaration | formulas - {"hyperbolic.h"} | others


def test_every_op_has_a_usable_example() -> None:
    for op in ALL:
        inputs, params = example(op, np.float32 if "float32" in takes(op) else np.int32)
        assert call(op, as_tensors(inputs), params).size, op


def test_every_op_is_differentiable_twice_or_it_is_known_why_not() -> None:
    without = {op.name: why_no_derivative(op) for op in ops() if op not in DIFFERENTIABLE}
    assert {name for name, why in without.items() if why == "it stops gradients"} == {"stop_gradient"}
    flat = {name for name, why in without.items() if why == "it is flat between jumps"}
    assert flat == {"sign", "floor", "ceil", "trunc", "round", "floor_divide"}
    assert None not in without.values(), without


def why_no_derivative(op: Op) -> str | None:
    if op in DRAWS:
        return "its input is the state of a generator"
    if op.pullback is None:
        return "it stops gradients"
    if op.pullback is not ZERO:
        return None
    f, args = differentiable_call(op, np.float64 if "float64" in takes(op) else np.int32)
    if not args:
        return "it has no floating-point input"
    return "it is flat between jumps" if dtypes.is_float(f(*as_tensors(args)).dtype) else "its result is not floating-point"


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
def test_every_fused_activation_is_differentiable_twice(activation: str) -> None:
    rng = np.random.default_rng(3)
    args = [rng.standard_normal(shape) for shape in ((5, 3), (4, 3), (4,))]
    assert pb.check_gradients(lambda x, w, b: pb.nn.functional.linear(x, w, b, activation=activation), args, order=2) < 1e-6
