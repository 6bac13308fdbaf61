"""Declares ops: `unary` and `binary` return the function that users call, `op` returns the Op.

`unary` and `binary` build a closure of fixed arity that calls the kernel and then, if a listener is installed, records the op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..autodiff.batching import Batched, innermost, run
from ..autodiff.facts import BY_LIBRARY, Facts
from ..autodiff.listeners import listeners
from ..autodiff.primitive import OPS, ZERO, Op, Rule, parameters
from ..autodiff.site import current_frame
from ..backends import kernel_for
from ..interop.gate import ungated
from ..launch.refusal import Refused
from ..tensors.operand import Listed, Number, as_tensor, operand
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from ._counts import COUNTS
from .by_name import masked
from .counted import PullCost, cost_of_elements, count_as_kernels, count_per_element
from .kinds import BINARY, COMPARE, UNARY, BatchRule, Kind, PullRule, TangentRule
from .operands import unlisted
from .promotion import retry


def op(
    name: str,
    *,
    kind: Kind,
    reference: Callable[..., Any],
    inputs: int = 1,
    variadic: bool = False,
    pullback: Any = None,
    joint: bool = False,
    fused: Callable[..., Any] | Sequence[Callable[..., Any] | None] | None = None,
    pull_cost: PullCost | Sequence[PullCost | None] | None = None,
    takes: str = "any",
    cost: Callable[..., Any] | None = None,
    example: Example | None = None,
    domain: tuple[float, float] = (-2.0, 2.0),
    ulp: float = 4,
    batch: BatchRule | None = None,
    pull: PullRule | None = None,
    ends_with: Callable[[Mapping[str, Any]], Op] | None = None,
    tangent: TangentRule | None = None,
    factors: dict[int, Callable[..., Any]] | None = None,
    kernel: str | None = None,
    adapt: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    same_bits: bool | str | None = None,
) -> Op:
    """Declares an op and adds it to OPS. Raises ValueError if another op has the name.

    Args:
        reference: `f(xp, *inputs, *params)` over NumPy or CuPy arrays; its parameter names become those of inputs and params.
        inputs: the number of tensors among its parameters; the remaining ones are params.
        pullback: one rule per input (or one for the only input); ZERO; or None if no gradient can pass.
        joint: the pullback is one rule `f(g, …, needs)` that returns the gradients of all inputs.
        fused: one `f(g, *kept)` per rule. It replaces the rule at first order if the op's kernel is native.
        pull_cost: one cost `f(g, *kept)` per fused pullback, if it differs from what the definition costs. On a backend without
            the kernel the definition counts as this.
        pull: the batching rule of the fused pullbacks, if it differs from that of the kind.
        kernel: the name of the op whose native kernel and name in profiles this op uses, if not its own.
        adapt: maps the native kernel to a function of (*inputs, *params), if the kernel takes its arguments in another form.
        same_bits: see `Facts`; if it is None, an op with a kernel gives the same bits everywhere, as does a view, which computes
            nothing.

    The remaining arguments are described in `Op` and `Facts`.
    """
    names = parameters(reference)[1:]
    native, reason = kernel_for(kernel or name)
    if isinstance(pullback, tuple) and all([rule is ZERO for rule in pullback]):
        pullback = ZERO
    rules = _rules(name, names, inputs, pullback, joint, pull or kind.pull)
    _check_first(name)
    runs_no_library = native is not None or kind.name == "view"
    facts = Facts(
        kernel or name, names[:2], cost=cost, example=example, domain=domain, ulp=ulp, factors=factors, why_reference=reason,
        ends_with=ends_with, same_bits=(runs_no_library or BY_LIBRARY) if same_bits is None else same_bits,
    )
    declared = Op(
        name, kind=kind, names=names, params=len(names) - inputs, rules=rules, pullback=pullback, joint=joint, variadic=variadic,
        takes=takes, reference=reference, kernel=adapt(native) if adapt and native else native, batch=batch, tangent=tangent,
        facts=facts,
    )
    if fused is not None and declared.native:
        quicks: Any = fused if isinstance(fused, (tuple, list)) else (fused,)
        for rule, quick in zip(rules, quicks):
            if rule is not None and quick is not None:
                rule.fused = quick
    if pull_cost is not None and not declared.native:
        count_as_kernels(declared, [pull_cost] if callable(pull_cost) else pull_cost)
    OPS[name] = declared
    return declared


def _rules(op: str, names: tuple[str, ...], inputs: int, pullback: Any, joint: bool, batch: Any) -> tuple[Rule | None, ...]:
    """Returns one rule per input, or a single rule if `joint`. A rule is None if no gradient passes to its input."""
    if pullback is None or pullback is ZERO:
        return (None,) * (1 if joint else inputs)
    allowed = (*names[:inputs], "y", *names[inputs:])
    definitions = pullback if isinstance(pullback, tuple) else (pullback,)
    return tuple([None if f is None or f is ZERO else Rule(f, op, allowed, inputs, batch) for f in definitions])


_declared_in: dict[str, dict[str, Any]] = {}  # maps the name of an op to the globals of the module that declared it


def _check_first(name: str) -> None:
    """Raises ValueError if the op is declared already. An import that runs again after it was interrupted (Ctrl-C) is allowed."""
    frame = current_frame(1)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    now, before = frame.f_globals, _declared_in.get(name)
    if before is not None and (before is now or before.get("__name__") != now.get("__name__")):
        raise ValueError(f"op {name} is declared twice")
    _declared_in[name] = now


# ---- elementwise ops


def unary(
    name: str,
    *,
    reference: Callable[..., Any],
    pullback: Any = None,
    takes: str = "float",
    domain: tuple[float, float] = (-2.0, 2.0),
    ulp: float = 4,
    doc: str | None = None,
) -> Callable[[ArrayLike], Tensor]:
    """Declares an elementwise op of one input and returns its public function.

    Where the cotangent is 0, the gradient is 0, also if the derivative is infinite or undefined.
    """
    declared = op(
        name, kind=UNARY, reference=reference, pullback=pullback, cost=per_element(name), takes=takes, domain=domain, ulp=ulp
    )
    keep_zeros(declared)
    fuse_unary(declared) if declared.native else count_per_element(declared)
    kernel = on_tensors(declared)

    def call(x: ArrayLike, /) -> Tensor:  # `apply`, inlined: calling it would take a tenth of the time
        if x.__class__ is not Tensor:
            if x.__class__ is Batched:
                return run(declared, (x,), (), innermost((x,)))
            x = as_tensor(x)
        try:
            y = kernel(x)
        except Refused:
            return retry(declared, (x,), ())
        record = listeners.record
        if record is not None:
            record(declared, y, (x,), ())
        return y

    return named(call, name, doc or f"Returns {name}(x), element by element.")


def binary(
    name: str,
    *,
    reference: Callable[..., Any],
    pullback: Any = None,
    takes: str = "any",
    domain: tuple[float, float] = (-2.0, 2.0),
    ulp: float = 4,
    doc: str | None = None,
    kind: Kind = BINARY,
    cost: Callable[..., Any] | None = None,
    tangent: TangentRule | None = None,
    check: Callable[[Any, Any], None] | None = None,
) -> Callable[[ArrayLike, ArrayLike], Tensor]:
    """Declares an elementwise op of two inputs (tensors or Python numbers) and returns its public function.

    cost: for an op without a row in csrc/math; the work of the others is measured (see `per_element`).
    check: raises an error for arguments that the op refuses because of their values. It is called unless both are tensors.
    """
    declared = op(
        name, kind=kind, reference=reference, inputs=2, pullback=pullback, cost=cost or per_element(name), takes=takes,
        domain=domain, ulp=ulp, tangent=tangent,
    )
    keep_zeros(declared)
    fuse_binary(declared) if declared.native else count_per_element(declared)
    kernel = on_tensors(declared)

    def call(a: ArrayLike, b: ArrayLike, /) -> Tensor:  # `apply`, inlined as in `unary`. Messages look for an argument in a and b
        x: Any = a
        y: Any = b
        if a.__class__ is not Tensor or b.__class__ is not Tensor:
            if check is not None:
                check(a, b)
            x = a if a.__class__ is Tensor else operand(a, op=name)
            y = b if b.__class__ is Tensor else operand(b, op=name)
            if x.__class__ is Listed or y.__class__ is Listed:
                x, y = unlisted(name, (x, y), kind is COMPARE)
            if x.__class__ is Batched or y.__class__ is Batched:
                return run(declared, (x, y), (), innermost((x, y)))
            if isinstance(x, Number) and isinstance(y, Number):
                x = as_tensor(x.array)
        try:
            z = kernel(x, y)
        except (Refused, OverflowError):  # a Python integer that is larger than any float
            return retry(declared, (x, y), ())
        record = listeners.record
        if record is not None:
            record(declared, z, (x, y), ())
        return z

    return named(call, name, doc or f"Returns {name}(a, b), element by element, with broadcasting.")


def keep_zeros(op: Op) -> None:
    """Makes the op's pullbacks give 0 instead of NaN where the cotangent is 0, as csrc/math/functors.h does with the kernels.

    The branch that a `where` did not choose then contributes no NaN, whatever its derivative is. A rule that keeps nothing only
    passes the cotangent on.
    """
    for rule in op.rules:
        if rule is not None and rule.names:
            rule.definition = rule.fused = masked(rule.definition)


def on_tensors(op: Op) -> Callable[..., Tensor]:
    """Returns the op's kernel as a function of tensors. Native elementwise kernels take and return tensors directly, which saves a
    third of the time of a call.
    """
    if op.native:
        return op.kernel
    kernel = op.kernel
    return lambda *inputs: Tensor(kernel(*[x.array for x in inputs]))


def fuse_unary(op: Op) -> None:
    """Sets the native pullback, which takes (g, kept). Its row in csrc/math/unary.def determines if x or y is kept."""
    pull, _ = kernel_for(f"{op.name}_pullback")
    rule = op.rules[0]
    if pull is not None and rule is not None and rule.names in (("x",), ("y",)):
        rule.fused = pull


def fuse_binary(op: Op) -> None:
    """Sets the native pullbacks `<name>_pullback_a` and `_b`, which take (g, a, b, y), as in csrc/math/binary.def."""
    for rule, which in zip(op.rules, "ab"):
        pull, _ = kernel_for(f"{op.name}_pullback_{which}")
        if pull is not None and rule is not None and rule.names:
            rule.fused = _fused_binary(pull, rule)


def _fused_binary(pull: Callable[..., Any], rule: Rule) -> Callable[..., Tensor]:
    """Returns the pullback of (g, *kept). g stands in for operands that were not kept, which the kernel does not read."""
    names = rule.names
    slots = [names.index(slot) if slot in names else None for slot in ("a", "b", "y")]
    return lambda g, *kept: pull(g, *[g if slot is None else kept[slot] for slot in slots])


def named(call: Any, name: str, doc: str) -> Any:
    call.__name__ = call.__qualname__ = name
    call.__code__ = call.__code__.replace(co_name=name)  # for tracebacks, and for errors that name the function
    call.__doc__ = doc
    return ungated(call)


# ---- costs


def per_element(name: str) -> Callable[..., dict[str, int]] | None:
    """Returns the cost of an elementwise op: the operations that its functor performs on the counting scalar, per element.

    An op without a row in csrc/math has no functor, so its cost is unknown: None.
    """
    if name not in COUNTS:
        return None
    work = COUNTS[name]
    return lambda *values: cost_of_elements(values[-1].size, work)


def no_flops(*values: Any) -> dict[str, int]:
    """Returns the cost of an op that only moves data."""
    return {}


# ---- example arguments for tests and benchmarks, for ops whose declaration does not determine valid arguments

Example = Callable[[Any, Any], tuple[tuple[Any, ...], tuple[Any, ...]]]


def normal(*shapes: Any, params: tuple[Any, ...] = ()) -> Example:
    """Returns an example with one random array per shape; arrays among `shapes` (indices) are passed on unchanged.

    The numbers are normally distributed floats, integers from -4 (unsigned: 0) to 4, or coin flips for bool.
    """
    return lambda rng, dtype: (tuple([draw(rng, np.dtype(dtype), shape) for shape in shapes]), params)


def distinct(*shapes: Any, params: tuple[Any, ...] = ()) -> Example:
    """Returns an example as `normal` does, with numbers that all differ by at least 1/2: for ops with a kink at equal elements."""

    def example(rng: Any, dtype: Any) -> Any:
        sizes = [0 if isinstance(shape, np.ndarray) else int(np.prod(shape)) for shape in shapes]
        pool = rng.permutation(sum(sizes)) / 2 - (0 if np.dtype(dtype).kind in "ub" else sum(sizes) / 4)
        parts = np.split(pool, np.cumsum(sizes)[:-1])
        arrays = [s if isinstance(s, np.ndarray) else part.reshape(s).astype(dtype) for part, s in zip(parts, shapes)]
        return tuple(arrays), params

    return example


def draw(rng: Any, dtype: Any, shape: Any) -> Any:
    if isinstance(shape, np.ndarray):
        return shape
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -4, 5, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)
