"""Declarations of ops: `unary` and `binary` return the function that users call, `op` returns the Op.

A declaration builds its callable: a closure of fixed arity that asks one question (does anybody listen?) and calls the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..autodiff.batching import Batched, innermost, run
from ..autodiff.listeners import listeners
from ..autodiff.primitive import OPS, ZERO, Op, Rule, parameters, retry
from ..autodiff.site import current_frame
from ..backends import kernel_for
from ..launch.refusal import Refused
from ..tensors.operand import Number, as_tensor, operand
from ..tensors.tensor import Tensor
from ._counts import COUNTS
from .by_name import masked
from .kinds import BINARY, UNARY, BatchRule, Kind, PullRule, TangentRule


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
) -> Op:
    """Declares an op, and enters it in OPS.

    Args:
        reference: `f(xp, *inputs, *params)` over NumPy or CuPy arrays; its parameter names name inputs and params.
        inputs: how many of them are tensors; the rest are params.
        pullback: a rule per input (or one for the only input); ZERO; or None where gradients cannot pass.
        joint: the pullback is one rule `f(g, …, needs)` that returns the gradients of all inputs.
        fused: `f(g, *kept)` for each rule, or for the only one, which replaces it at first order if the kernel is native.
        pull: how a batch axis passes through the fused pullbacks, if not as the kind says.
        ends_with: see `Rule`.
        kernel: the native kernel and the name in profiles, if another op's.
        adapt: takes the native kernel and returns a function of (*inputs, *params), if the kernel takes them otherwise.

    The other columns are those of `Op`.
    """
    names = parameters(reference)[1:]
    native, reason = kernel_for(kernel or name)
    if isinstance(pullback, tuple) and all([rule is ZERO for rule in pullback]):
        pullback = ZERO
    rules = _rules(name, names, inputs, pullback, joint, batch=pull or kind.pull, ends_with=ends_with)
    _check_first(name)
    declared = Op(
        name, kind=kind, names=names, params=len(names) - inputs, rules=rules, pullback=pullback, joint=joint, variadic=variadic,
        takes=takes, reference=reference, kernel=adapt(native) if adapt and native else native, why_reference=reason,
        shown=kernel, cost=cost, example=example, domain=domain, ulp=ulp, batch=batch, tangent=tangent, factors=factors,
    )  # fmt: skip
    if fused is not None and declared.native:
        quicks: Any = fused if isinstance(fused, (tuple, list)) else (fused,)
        for rule, quick in zip(rules, quicks):
            if rule is not None and quick is not None:
                rule.fused = quick
    OPS[name] = declared
    return declared


def _rules(op: str, names: tuple[str, ...], inputs: int, pullback: Any, joint: bool, **columns: Any) -> tuple[Rule | None, ...]:
    """Returns a rule for each input, or one for all of them if `joint`; None where no gradient passes."""
    if pullback is None or pullback is ZERO:
        return (None,) * (1 if joint else inputs)
    allowed = (*names[:inputs], "y", *names[inputs:])
    definitions = pullback if isinstance(pullback, tuple) else (pullback,)
    return tuple([None if f is None or f is ZERO else Rule(f, op, allowed, inputs, **columns) for f in definitions])


_declared_in: dict[str, dict[str, Any]] = {}  # by the name of an op, the names of the module that declared it


def _check_first(name: str) -> None:
    """Raises ValueError if the op is declared already, unless the first import of its module was cut short, as by Ctrl-C."""
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
    singular: bool = False,
) -> Callable[[Any], Tensor]:
    """Declares an elementwise op of one input; returns the function.

    `singular` says that the derivative can be infinite or undefined: no cotangent then still means no gradient.
    """
    declared = op(
        name, kind=UNARY, reference=reference, pullback=pullback, cost=per_element(name), takes=takes, domain=domain, ulp=ulp
    )
    if singular:
        keep_zeros(declared)
    if declared.native:
        fuse_unary(declared)
    kernel = on_tensors(declared)

    def call(x: Any, /) -> Tensor:  # as `apply`, in its own lines: a call of another function would take a tenth of the time
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

    return named(call, name, doc or f"{name}(x), element by element.")


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
    singular: bool = False,
) -> Callable[[Any, Any], Tensor]:
    """Declares an elementwise op of two inputs, tensors or Python numbers; returns the function."""
    declared = op(
        name, kind=kind, reference=reference, inputs=2, pullback=pullback, cost=per_element(name), takes=takes, domain=domain,
        ulp=ulp,
    )  # fmt: skip
    if singular:
        keep_zeros(declared)
    if declared.native:
        fuse_binary(declared)
    kernel = on_tensors(declared)

    def call(a: Any, b: Any, /) -> Tensor:  # as `apply`, in its own lines: see `unary`
        if a.__class__ is not Tensor or b.__class__ is not Tensor:
            a = a if a.__class__ is Tensor else operand(a, op=name)
            b = b if b.__class__ is Tensor else operand(b, op=name)
            if a.__class__ is Batched or b.__class__ is Batched:
                return run(declared, (a, b), (), innermost((a, b)))
            if a.__class__ is Number and b.__class__ is Number:
                a = as_tensor(a.array)
        try:
            y = kernel(a, b)
        except Refused:
            return retry(declared, (a, b), ())
        record = listeners.record
        if record is not None:
            record(declared, y, (a, b), ())
        return y

    return named(call, name, doc or f"{name}(a, b), element by element, with broadcasting.")


def keep_zeros(op: Op) -> None:
    """Makes the definitions give 0, not NaN, where the cotangent is 0 (`m::mask_nan_gradient` in csrc/math does so in the kernels).

    So the branch that a `where` did not choose gives no NaN, whatever the derivative is there.
    """
    for rule in op.rules:
        if rule is not None:
            rule.definition = rule.fused = masked(rule.definition)


def on_tensors(op: Op) -> Callable[..., Tensor]:
    """Returns the op's kernel on tensors. Native elementwise kernels take and give tensors: that saves a third of a call."""
    if op.native:
        return op.kernel
    kernel = op.kernel
    return lambda *inputs: Tensor(kernel(*[x.array for x in inputs]))


def fuse_unary(op: Op) -> None:
    """Sets the native pullback, which takes (g, what is kept): x or y, whichever its row in csrc/math/unary.def reads."""
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
    """Returns the pullback of (g, *kept). A slot that was not kept is passed g, which the row does not read."""
    names = rule.names
    slots = [names.index(slot) if slot in names else None for slot in ("a", "b", "y")]
    return lambda g, *kept: pull(g, *[g if slot is None else kept[slot] for slot in slots])


def named(call: Any, name: str, doc: str) -> Any:
    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return call


# ---- costs


def per_element(name: str) -> Callable[..., dict[str, int]]:
    """The cost of an elementwise op: what its functor did when it ran on the counting scalar, times the elements."""
    adds, multiplies, special = COUNTS.get(name, (0, 0, 0))

    def cost(*values: Any) -> dict[str, int]:
        n = values[-1].size
        return {"adds": n * adds, "multiplies": n * multiplies, "special_ops": n * special}

    return cost


def no_flops(*values: Any) -> dict[str, int]:
    """The cost of an op that only moves data."""
    return {}


# ---- arguments with which tests and benchmarks call an op that its declaration alone does not tell how to call

Example = Callable[[Any, Any], tuple[tuple[Any, ...], tuple[Any, ...]]]


def normal(*shapes: Any, params: tuple[Any, ...] = ()) -> Example:
    """One array of normally distributed numbers (small integers, coin flips) per shape; arrays (indices) as they are."""
    return lambda rng, dtype: (tuple([draw(rng, np.dtype(dtype), shape) for shape in shapes]), params)


def distinct(*shapes: Any, params: tuple[Any, ...] = ()) -> Example:
    """As normal, with numbers that all differ by a half or more: for ops with a kink where two are equal."""

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
