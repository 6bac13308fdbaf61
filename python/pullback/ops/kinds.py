"""What unary, binary, reduce, movement… mean to promotion, batching, forward mode and cost; and their callables.

The kind of an op fills its columns, so that an op is a row and a declaration. The declaration builds the callable: a
closure of fixed arity that asks one question (does anybody listen?) and calls the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..autodiff.batching import Batched, innermost, run
from ..autodiff.listeners import listeners
from ..autodiff.primitive import Op, Rule, retry
from ..backends import kernel_for
from ..errors import DeviceError, DTypeError
from ..launch.refusal import Refused
from ..tensors import dtypes
from ..tensors.operand import Number, as_tensor, operand
from ..tensors.tensor import Tensor
from . import batching, tangents
from ._counts import COUNTS
from ._shapes import broadcast_shapes


class Kind:
    """The columns that a kind fills.

    Attributes:
        name: the kind.
        batch: how a batch axis passes (ops/batching.py); ops of no kind state their own rule.
        pull: how it passes through a fused pullback, None where there is none or the op states it.
        broadcasts: the inputs broadcast.
        tangent: how a tangent passes (ops/tangents.py).
        issue: how the op is run, where that is not `apply`.
        promotes: the inputs are brought to one dtype.
        widens: it computes, so the reference does half precision in float32 and rounds once.
    """

    __slots__ = ("batch", "broadcasts", "issue", "name", "promotes", "pull", "tangent", "widens")

    def __init__(
        self, name: str, *, batch: batching.Rule, tangent: tangents.Rule, promotes: bool = False, widens: bool = False,
        issue: Callable[..., Any] | None = None, pull: batching.PullRule | None = None,
    ) -> None:  # fmt: skip
        self.name, self.batch, self.tangent, self.issue, self.pull = name, batch, tangent, issue, pull
        self.promotes, self.widens = promotes, widens
        self.broadcasts = batch is batching.elementwise

    def prepare(self, op: Op, inputs: Sequence[Any], params: Sequence[Any]) -> tuple[Any, ...] | None:
        """After a kernel refused: the inputs on one device and of one dtype that the op takes, None if they are already.

        Raises DeviceError, DTypeError, ShapeError in the user's words where no reference could run either.
        """
        check_devices(op.name, inputs)
        dtype = common_dtype(op, inputs) if self.promotes else floating(op, inputs)
        if self.broadcasts:
            broadcast_shapes(op.name, [x.array.shape for x in inputs if isinstance(x, Tensor)])
        if dtype is None:
            return None
        from .cast import in_dtype

        return tuple([in_dtype(x, dtype) if isinstance(x, Tensor) and x.dtype != dtype else x for x in inputs])


ELEMENTWISE: dict[str, Any] = {"batch": batching.elementwise, "pull": batching.pull_elementwise}

UNARY = Kind("unary", **ELEMENTWISE, tangent=tangents.diagonal, promotes=True, widens=True)
BINARY = Kind("binary", **ELEMENTWISE, tangent=tangents.diagonal, promotes=True, widens=True)
COMPARE = Kind("binary", **ELEMENTWISE, tangent=tangents.diagonal, promotes=True, widens=True)  # any number
NEIGHBOUR = Kind("binary", **ELEMENTWISE, tangent=tangents.diagonal, promotes=True)  # about the dtype itself
SELECT = Kind("select", batch=batching.elementwise, tangent=tangents.linear, widens=True)
REDUCE = Kind("reduce", batch=batching.along_axes, pull=batching.pull_along_axes, tangent=tangents.transposed)
LINEAR = Kind("linear", batch=batching.along_axes, tangent=tangents.linear)
MOVEMENT = Kind("movement", batch=batching.along_axes, tangent=tangents.linear)
BILINEAR = Kind("bilinear", batch=batching.product, tangent=tangents.bilinear, promotes=True, widens=True)
ROWS = Kind("rows", batch=batching.leading, pull=batching.pull_leading, tangent=tangents.transposed, widens=True)
OWN = Kind("own", batch=batching.no_rule, tangent=tangents.transposed, widens=True)

TAKES: dict[str, str] = {}  # op name -> "float", "number", "integer", "bool" or "any": the dtypes it takes


def check_devices(name: str, inputs: Sequence[Any]) -> None:
    found = {x.device for x in inputs if isinstance(x, Tensor)}
    if len(found) > 1:
        here, there = sorted(found)[:2]
        raise DeviceError(f'{name}: the inputs are on "{here}" and on "{there}". Move one with t.to("{there}").')


def common_dtype(op: Op, inputs: Sequence[Any]) -> Any:
    """The dtype that the inputs must be cast to, None where they have it."""
    strong = [x.dtype for x in inputs if isinstance(x, Tensor)]
    wanted = dtypes.result_type(*[x.dtype if isinstance(x, Tensor) else x.array for x in inputs])
    wanted = accepted(op.name, wanted)
    if op.kind is COMPARE:
        numbers = [x.array for x in inputs if isinstance(x, Number)]
        wider = (wanted, dtypes.int64, dtypes.float64)
        wanted = next(dtype for dtype in wider if all([dtypes.fits(number, dtype) for number in numbers]))
    check_numbers(op.name, wanted, inputs)
    return wanted if any([dtype != wanted for dtype in strong]) else None


def floating(op: Op, inputs: Sequence[Any]) -> Any:
    """float32 where an op on real numbers was given integers, otherwise None."""
    lead = next((x for x in inputs if isinstance(x, Tensor)), None)
    if lead is None:
        return None
    wanted = accepted(op.name, lead.dtype)
    return wanted if wanted != lead.dtype else None


def accepted(name: str, dtype: Any) -> Any:
    """The dtype, or float32 where an op on real numbers was given integers. Raises DTypeError for the others."""
    takes = TAKES.get(name, "any")
    if takes == "float" and not dtypes.is_float(dtype):
        return dtypes.DEFAULT
    if (takes == "integer" and dtype.kind not in "iub") or (takes == "number" and dtype == dtypes.bool_):
        raise DTypeError(f"{name}: dtype {dtype} is not for this op, which takes {takes}s. Convert with .astype(…).")
    return dtype


def check_numbers(name: str, dtype: Any, inputs: Sequence[Any]) -> None:
    """A Python integer must fit the tensor's dtype: it never widens it, and must not wrap silently."""
    for x in inputs:
        if isinstance(x, Number) and not dtypes.fits(x.array, dtype):
            raise dtypes.out_of_range(f"{name}: {x.array}", dtype, "Convert the tensor first.")


# ---- declarations


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
    TAKES[name] = takes
    op = Op(name, kind=UNARY, reference=reference, inputs=1, pullback=pullback, cost=per_element(name), domain=domain, ulp=ulp)
    if singular:
        keep_zeros(op)
    if op.native:
        fuse_unary(op)
    kernel = on_tensors(op)

    def call(x: Any, /) -> Tensor:
        if x.__class__ is not Tensor:
            if x.__class__ is Batched:
                return run(op, (x,), (), innermost((x,)))
            x = as_tensor(x)
        try:
            y = kernel(x)
        except Refused:
            return retry(op, (x,), ())
        record = listeners.record
        if record is not None:
            record(op, y, (x,), ())
        return y

    return named(call, name, doc or f"{name}(x), element by element.")


def keep_zeros(op: Op) -> None:
    """Makes the definitions give 0, not NaN, where the cotangent is 0 (`m::mask_nan_gradient` in csrc/math does so in the kernels).

    So the branch that a `where` did not choose gives no NaN, whatever the derivative is there.
    """
    for rule in op.rules:
        if rule is not None:
            rule.definition = rule.fused = _masked(rule.definition)


def _masked(definition: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def guarded(g: Tensor, *kept: Any) -> Tensor:
        from .elementwise import mask_nan_gradient

        return mask_nan_gradient(g, definition(g, *kept))

    return guarded


def on_tensors(op: Op) -> Callable[..., Tensor]:
    """The op's kernel on tensors. Native elementwise kernels take and give them as they are: that saves a third of a call."""
    if op.native:
        return op.kernel
    kernel = op.kernel
    return lambda *inputs: Tensor(kernel(*[x.array for x in inputs]))


def fuse_unary(op: Op) -> None:
    """The native pullback takes (g, what is kept): x or y, whichever its row in csrc/math/unary.def reads."""
    pull, _ = kernel_for(f"{op.name}_pullback")
    rule = op.rules[0]
    if pull is not None and rule is not None and rule.names in (("x",), ("y",)):
        rule.fused = pull


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
    TAKES[name] = takes
    op = Op(name, kind=kind, reference=reference, inputs=2, pullback=pullback, cost=per_element(name), domain=domain, ulp=ulp)
    if singular:
        keep_zeros(op)
    if op.native:
        fuse_binary(op)
    kernel = on_tensors(op)

    def call(a: Any, b: Any, /) -> Tensor:
        if a.__class__ is not Tensor or b.__class__ is not Tensor:
            a = a if a.__class__ is Tensor else operand(a, op=name)
            b = b if b.__class__ is Tensor else operand(b, op=name)
            if a.__class__ is Batched or b.__class__ is Batched:
                return run(op, (a, b), (), innermost((a, b)))
            if a.__class__ is Number and b.__class__ is Number:
                a = as_tensor(a.array)
        try:
            y = kernel(a, b)
        except Refused:
            return retry(op, (a, b), ())
        record = listeners.record
        if record is not None:
            record(op, y, (a, b), ())
        return y

    return named(call, name, doc or f"{name}(a, b), element by element, with broadcasting.")


def fuse_binary(op: Op) -> None:
    """The native pullbacks `<name>_pullback_a` and `_b` take (g, a, b, y), as in csrc/math/binary.def."""
    for rule, which in zip(op.rules, "ab"):
        pull, _ = kernel_for(f"{op.name}_pullback_{which}")
        if pull is not None and rule is not None and rule.names:
            rule.fused = _fused_binary(pull, rule)


def _fused_binary(pull: Callable[..., Any], rule: Rule) -> Callable[..., Tensor]:
    """A slot that was not kept is passed g, which the row does not read."""
    names = rule.names
    slots = [names.index(slot) if slot in names else None for slot in ("a", "b", "y")]
    return lambda g, *kept: pull(g, *[g if slot is None else kept[slot] for slot in slots])


def op(
    name: str,
    *,
    kind: Kind,
    reference: Callable[..., Any],
    inputs: int = 1,
    pullback: Any = None,
    joint: bool = False,
    cost: Callable[..., Any] | None = None,
    takes: str = "any",
    example: Callable[..., Any] | None = None,
    fused: Callable[..., Any] | Sequence[Callable[..., Any] | None] | None = None,
    ulp: float = 4,
    batch: batching.Rule | None = None,
    tangent: tangents.Rule | None = None,
    issue: Callable[..., Any] | None = None,
    factors: dict[int, Callable[..., Any]] | None = None,
    pull: batching.PullRule | None = None,
) -> Op:
    """Declares any other op. `fused(g, *kept)` replaces a rule at first order where the native module has its kernel."""
    TAKES[name] = takes
    declared = Op(
        name, kind=kind, reference=reference, inputs=inputs, pullback=pullback, joint=joint, cost=cost, example=example, ulp=ulp,
        batch=batch, tangent=tangent, issue=issue, factors=factors, pull=pull,
    )  # fmt: skip
    if fused is not None and declared.native:
        quicks: Any = fused if isinstance(fused, (tuple, list)) else (fused,)
        for rule, quick in zip(declared.rules, quicks):
            if rule is not None and quick is not None:
                rule.fused = quick
    return declared


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


def named(call: Any, name: str, doc: str) -> Any:
    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return call
