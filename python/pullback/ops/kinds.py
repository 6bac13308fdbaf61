"""The kinds of ops, unary, binary, reduce, movement…, and what each means to promotion, batching and forward mode.

The kind of an op fills its columns, so that an op is a row and a declaration. An op that differs from its kind in one column
states a rule of its own beside its declaration. There are three sorts of rules:

- batch: `rule(op, size, xs, on, params)` issues the op again on all examples at once. `on` says which inputs have the batch as
  their first axis; the other inputs are the same for every example. The result has the batch first, too.
- pull: `rule(rule, size, values, on)` runs a fused pullback on all examples at once; `values` are (g, *kept).
- tangent: `rule(op, inputs, y, params, tangents)` returns the tangent of y from those of the inputs (None for an input without
  one). It works with differentiable ops, so that tapes and other forward passes around it differentiate it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..autodiff.batching import pull
from ..autodiff.primitive import Op, Rule, apply, same
from ..autodiff.tape import Tape
from ..errors import DeviceError, DTypeError
from ..tensors import dtypes
from ..tensors.creation import zeros_like
from ..tensors.operand import Number
from ..tensors.tensor import Tensor
from ._shapes import broadcast_shapes
from .by_name import aligned, all_on, in_dtype, repeated, unbroadcast, view

BatchRule = Callable[[Op, int, Sequence[Any], Sequence[bool], Sequence[Any]], Tensor]
PullRule = Callable[[Rule, int, Sequence[Any], Sequence[bool]], Any]
TangentRule = Callable[[Op, Sequence[Any], Tensor, Sequence[Any], Sequence[Any]], Tensor]


class Kind:
    """The columns that a kind fills.

    Attributes:
        name: the kind.
        batch: how a batch axis passes; ops of the kind "own" state their own rule.
        pull: how a batch axis passes through a fused pullback, None if there is none or the op states it.
        broadcasts: the inputs broadcast.
        tangent: how a tangent passes.
        issue: how the op is run, if not by `apply`.
        promotes: the inputs are brought to one dtype.
        widens: the op computes, so the reference does half precision in float32 and rounds once.
    """

    __slots__ = ("batch", "broadcasts", "issue", "name", "promotes", "pull", "tangent", "widens")

    def __init__(
        self, name: str, *, batch: BatchRule, tangent: TangentRule, promotes: bool = False, widens: bool = False,
        issue: Callable[..., Any] | None = None, pull: PullRule | None = None,
    ) -> None:  # fmt: skip
        self.name, self.batch, self.tangent, self.issue, self.pull = name, batch, tangent, issue, pull
        self.promotes, self.widens = promotes, widens
        self.broadcasts = batch is elementwise

    def prepare(self, op: Op, inputs: Sequence[Any], params: Sequence[Any]) -> tuple[Any, ...] | None:
        """Returns the inputs on one device and in one dtype that the op takes, None if they are already. Runs after a refusal.

        Raises DeviceError, DTypeError, ShapeError in the user's words where no reference could run either.
        """
        check_devices(op.name, inputs)
        dtype = common_dtype(op, inputs) if self.promotes else floating(op, inputs)
        if self.broadcasts:
            broadcast_shapes(op.name, [x.array.shape for x in inputs if isinstance(x, Tensor)])
        if dtype is None:
            return None
        return tuple([in_dtype(x, dtype) if isinstance(x, Tensor) and x.dtype != dtype else x for x in inputs])


# ---- promotion


def check_devices(name: str, inputs: Sequence[Any]) -> None:
    found = {x.device for x in inputs if isinstance(x, Tensor)}
    if len(found) > 1:
        here, there = sorted(found)[:2]
        raise DeviceError(f'{name}: the inputs are on "{here}" and on "{there}". Move one with t.to("{there}").')


def common_dtype(op: Op, inputs: Sequence[Any]) -> Any:
    """Returns the dtype that the inputs must be cast to, None if they have it."""
    strong = [x.dtype for x in inputs if isinstance(x, Tensor)]
    wanted = dtypes.result_type(*[x.dtype if isinstance(x, Tensor) else x.array for x in inputs])
    wanted = accepted(op, wanted)
    if op.kind is COMPARE:
        numbers = [x.array for x in inputs if isinstance(x, Number)]
        wider = (wanted, dtypes.int64, dtypes.float64)
        wanted = next(dtype for dtype in wider if all([dtypes.fits(number, dtype) for number in numbers]))
    check_numbers(op.name, wanted, inputs)
    return wanted if any([dtype != wanted for dtype in strong]) else None


def floating(op: Op, inputs: Sequence[Any]) -> Any:
    """Returns float32 if an op on real numbers was given integers, otherwise None."""
    lead = next((x for x in inputs if isinstance(x, Tensor)), None)
    if lead is None:
        return None
    wanted = accepted(op, lead.dtype)
    return wanted if wanted != lead.dtype else None


def accepted(op: Op, dtype: Any) -> Any:
    """Returns the dtype, or float32 if an op on real numbers was given integers. Raises DTypeError for the others."""
    takes = op.takes
    if takes == "float" and not dtypes.is_float(dtype):
        return dtypes.DEFAULT
    if (takes == "integer" and dtype.kind not in "iub") or (takes == "number" and dtype == dtypes.bool_):
        raise DTypeError(f"{op}: dtype {dtype} is not for this op, which takes {takes}s. Convert with .astype(…).")
    return dtype


def check_numbers(name: str, dtype: Any, inputs: Sequence[Any]) -> None:
    """Raises for a Python integer that does not fit the tensor's dtype: it never widens it, and must not wrap silently."""
    for x in inputs:
        if isinstance(x, Number) and not dtypes.fits(x.array, dtype):
            raise dtypes.out_of_range(f"{name}: {x.array}", dtype, "Convert the tensor first.")


# ---- batching: an axis more

# How a parameter changes, by its name in the op's reference, when a first axis of that size is put before all others. The
# parameters that are not named here do not count axes.
SHIFTED: dict[str, Callable[[Any, int], Any]] = {
    "axis": lambda axis, size: axis + 1,
    "axes": lambda axes, size: tuple([axis + 1 for axis in axes]),
    "order": lambda order, size: (0, *[axis + 1 for axis in order]),
    "shape": lambda shape, size: (size, *shape),
    "key": lambda key, size: (slice(None), *key),
    "before": lambda before, size: (0, *before),
    "after": lambda after, size: (0, *after),
}


def shifted(op: Op, size: int, params: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the op's parameters, counted with a first axis more."""
    return _moved(op.names[len(op.names) - op.params :], size, params)


def _moved(names: Sequence[str], size: int, values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([SHIFTED[name](value, size) if name in SHIFTED else value for name, value in zip(names, values)])


def elementwise(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Makes the examples' ranks equal; the rest is broadcasting."""
    return apply(op, tuple(aligned(xs, on) if len(xs) > 1 else xs), tuple(params))


def along_axes(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Moves, reduces or scans along axes: the parameters that name axes count one more."""
    return op.issue(op, tuple(all_on(size, xs, on)), shifted(op, size, params))


def leading(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Runs an op of one input that takes any leading axes."""
    return apply(op, tuple(xs), tuple(params))


def everywhere(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Runs an op of several inputs that take any leading axes, the same ones."""
    return apply(op, tuple(all_on(size, xs, on)), tuple(params))


def no_rule(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Stands in the place of a rule that an op of no kind must state itself."""
    raise NotImplementedError(f"op {op} has no batching rule")


# ---- batching of fused pullbacks: by the same kernel, on all examples at once


def pull_elementwise(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> Tensor:
    """Makes the examples' ranks equal; the rest is broadcasting."""
    return pull(rule, *aligned(values, on))


def pull_along_axes(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> Tensor:
    """Counts one axis more in what is kept of a reduction: a shape and axes."""
    return pull(rule, values[0], *_moved([name.removeprefix("x_") for name in rule.names], size, values[1:]))


def pull_leading(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> Tensor:
    """Runs a kernel that takes any leading axes."""
    return pull(rule, *all_on(size, values, on))


# ---- tangents


def diagonal(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """For elementwise ops: the Jacobian by an input is diagonal, so its pullback is its own transpose."""
    values, total = (*inputs, y, *params), None
    for rule, t in zip(op.rules, tangents):
        if t is None or rule is None:
            continue
        part = t if rule.definition is same else pull(rule, t, *rule.keep(values))
        total = part if total is None else total + part
    assert total is not None
    return repeated(total, y.shape)


def linear(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """For ops that are linear in their floating-point inputs, all together: the op itself."""
    return op.issue(op, tuple([_or_zero(t, x) if _varies(x) else x for x, t in zip(inputs, tangents)]), tuple(params))


def bilinear(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """For ops that are linear in each of two inputs: the product rule."""
    (a, b), (ta, tb) = inputs, tangents
    if tb is None:
        return apply(op, (ta, b), tuple(params))
    by_b = apply(op, (a, tb), tuple(params))
    return by_b if ta is None else apply(op, (ta, b), tuple(params)) + by_b


def transposed(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """For all other ops: the pullback is linear in the cotangent u, and its derivative by u is its transpose."""
    u = zeros_like(y)
    with Tape(watch_parameters=False) as tape:
        tape.watch(u)
        gradients = pulled(op, inputs, y, params, u, [t is not None for t in tangents])
    parts = [(gx, t) for gx, t in zip(gradients, tangents) if gx is not None and t is not None]
    return tape.gradient([gx for gx, _ in parts], u, output_gradients=[t for _, t in parts], unconnected="zero")


def pulled(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], g: Tensor, needs: Sequence[bool]) -> list[Any]:
    """Returns the gradients of the inputs that are needed, by the definitions of the op's rules; None for the others."""
    values = (*inputs, y, *params)
    if op.joint:
        (rule,) = op.rules
        gradients = rule.definition(g, *rule.keep(values), list(needs)) if rule is not None else [None] * len(inputs)
    else:
        gradients = [
            rule.definition(g, *rule.keep(values)) if rule is not None and need else None for rule, need in zip(op.rules, needs)
        ]
    return [gx if gx is None or gx.shape == x.shape else unbroadcast(gx, x.shape) for gx, x in zip(gradients, inputs)]


def _varies(x: Any) -> bool:
    """True if a derivative could be taken by this input."""
    return isinstance(x, Number) or dtypes.is_float(x.dtype)


def _or_zero(t: Any, x: Any) -> Any:
    return t if t is not None else Number(0.0) if isinstance(x, Number) else zeros_like(x)


# ---- kinds

ELEMENTWISE: dict[str, Any] = {"batch": elementwise, "pull": pull_elementwise}
ALONG_AXES: dict[str, Any] = {"batch": along_axes, "tangent": linear}

UNARY = Kind("unary", **ELEMENTWISE, tangent=diagonal, promotes=True, widens=True)
BINARY = Kind("binary", **ELEMENTWISE, tangent=diagonal, promotes=True, widens=True)
COMPARE = Kind("binary", **ELEMENTWISE, tangent=diagonal, promotes=True, widens=True)  # any number
NEIGHBOUR = Kind("binary", **ELEMENTWISE, tangent=diagonal, promotes=True)  # about the dtype itself
SELECT = Kind("select", batch=elementwise, tangent=linear, widens=True)
REDUCE = Kind("reduce", batch=along_axes, pull=pull_along_axes, tangent=transposed)
LINEAR = Kind("linear", **ALONG_AXES)
MOVEMENT = Kind("movement", **ALONG_AXES)
VIEW = Kind("view", **ALONG_AXES, issue=lambda op, inputs, params: view(op, inputs[0], *params))
BILINEAR = Kind("bilinear", batch=no_rule, tangent=bilinear, promotes=True, widens=True)
ROWS = Kind("rows", batch=leading, pull=pull_leading, tangent=transposed, widens=True)
OWN = Kind("own", batch=no_rule, tangent=transposed, widens=True)
