"""The kinds of ops (unary, binary, reduce, movement…). Each determines promotion, batching and forward-mode rules.

The kind supplies an op's rules, so that most ops are one declaration. An op for which a rule of its kind is wrong passes a
different rule in its declaration. There are three sorts of rules:

- batch: `rule(op, size, xs, on, params)` runs the op on all examples at once. `on` marks the inputs that have the batch as their
  first axis; the other inputs are the same for every example. The result has the batch as its first axis too.
- pull: `rule(rule, size, values, on)` runs a fused pullback on all examples at once; `values` are (g, *kept).
- tangent: `rule(op, inputs, y, params, tangents)` returns the tangent of y from those of the inputs (None for an input without
  one). It consists of differentiable ops, so that enclosing tapes and forward passes can differentiate it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..autodiff.batching import pull
from ..autodiff.primitive import Op, Rule, apply, same
from ..autodiff.tape import Tape
from ..errors import DeviceError, DTypeError, shown
from ..tensors import dtypes
from ..tensors.creation import ones_like, zeros_like
from ..tensors.nested import NO_DTYPE
from ..tensors.operand import Number
from ..tensors.tensor import Tensor
from ._shapes import broadcast_shapes
from .by_name import aligned, all_on, in_dtype, repeated, unbroadcast, view

BatchRule = Callable[[Op, int, Sequence[Any], Sequence[bool], Sequence[Any]], Tensor]
PullRule = Callable[[Rule, int, Sequence[Any], Sequence[bool]], Any]
TangentRule = Callable[[Op, Sequence[Any], Tensor, Sequence[Any], Sequence[Any]], Tensor]


class Kind:
    """A kind of op: the rules and properties that ops of this kind share.

    Attributes:
        name: the name of the kind.
        batch: the batching rule; ops of the kind "own" declare a different one.
        pull: the batching rule of a fused pullback, None if there is none or the op declares it.
        broadcasts: True if the inputs broadcast.
        tangent: the forward-mode rule.
        issue: runs the op, if not `apply`.
        promotes: True if the inputs are converted to one dtype.
        widens: True if the op does arithmetic: its reference then computes half precision in float32 and rounds once.
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
        """Returns the inputs converted to one dtype that the op takes, None if they have it. Runs after a kernel refused them.

        Raises DeviceError, DTypeError or ShapeError, in terms of the user's call, if the reference could not run either.
        """
        check_devices(op.name, inputs)
        given = inputs
        if self is COMPARE:
            inputs = [at_infinity(x, inputs) if isinstance(x, Number) else x for x in inputs]
        dtype = common_dtype(op, inputs) if self.promotes else floating(op, inputs)
        if self.broadcasts:
            broadcast_shapes(op.name, [x.array.shape for x in inputs if isinstance(x, Tensor)])
        if dtype is None:
            return tuple(inputs) if any([x is not y for x, y in zip(inputs, given)]) else None
        return tuple([in_dtype(x, dtype) if isinstance(x, Tensor) and x.dtype != dtype else x for x in inputs])


# ---- promotion


def check_devices(name: str, inputs: Sequence[Any]) -> None:
    found = {x.device for x in inputs if isinstance(x, Tensor)}
    if len(found) > 1:
        here, there = sorted(found)[:2]
        raise DeviceError(f'{name}: the inputs are on "{here}" and on "{there}". Move one with t.to("{there}").')


def common_dtype(op: Op, inputs: Sequence[Any]) -> Any:
    """Returns the dtype that the inputs must be converted to, None if they have it."""
    strong = [x.dtype for x in inputs if isinstance(x, Tensor)]
    wanted = dtypes.result_type(*[x.dtype if isinstance(x, Tensor) else x.array for x in inputs])
    wanted = accepted(op, wanted)
    check_numbers(op.name, wanted, inputs)
    return wanted if any([dtype != wanted for dtype in strong]) else None


def floating(op: Op, inputs: Sequence[Any]) -> Any:
    """Returns the dtype that the first tensor must be converted to (float32 if it holds integers), None if it fits."""
    lead = next((x for x in inputs if isinstance(x, Tensor)), None)
    if lead is None:
        return None
    wanted = accepted(op, lead.dtype)
    return wanted if wanted != lead.dtype else None


def accepted(op: Op, dtype: Any) -> Any:
    """Returns the dtype, or float32 if the op takes floats and the dtype is not one. Raises DTypeError if the op cannot take it."""
    takes = op.takes
    if takes == "float" and not dtypes.is_float(dtype):
        return dtypes.DEFAULT
    if dtype.kind not in {"integer": "iu", "bits": "iub", "number": "iufV"}.get(takes, dtype.kind):
        words = "integers and bools" if takes == "bits" else f"{takes}s"
        raise DTypeError(f"{op}: dtype {dtype} is not for this op, which takes {words}. Convert with .astype(...).")
    return dtype


def check_numbers(name: str, dtype: Any, inputs: Sequence[Any]) -> None:
    """Raises for a Python integer that does not fit the tensors' dtype: it must neither widen the dtype nor wrap silently."""
    for x in inputs:
        if isinstance(x, Number) and not dtypes.fits(x.array, dtype):
            remedy = "Convert the tensor first." if dtype.kind in "iu" else NO_DTYPE
            raise dtypes.out_of_range(f"{name}: {shown(x.array)}", dtype, remedy)


def at_infinity(number: Number, inputs: Sequence[Any]) -> Number:
    """Returns a number of a comparison, or infinity with its sign if the tensor's dtype does not reach as far.

    Infinity compares with every number of the dtype as this one does, also after these were rounded to floats.
    """
    wanted = dtypes.result_type(*[x.array if isinstance(x, Number) else x.dtype for x in inputs])
    return number if dtypes.fits(number.array, wanted) else Number(math.inf if number.array > 0 else -math.inf)


# ---- batching: one more axis

# Maps the name of a parameter in the op's reference to a function (value, size) that returns the parameter's value after a new
# first axis of this size was inserted. Parameters that are not listed do not depend on axes.
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
    """Returns the op's parameters adjusted to an additional first axis."""
    return _moved(op.names[len(op.names) - op.params :], size, params)


def _moved(names: Sequence[str], size: int, values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([SHIFTED[name](value, size) if name in SHIFTED else value for name, value in zip(names, values)])


def elementwise(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Lifts the examples of all inputs to one rank; broadcasting does everything else."""
    return apply(op, tuple(aligned(xs, on) if len(xs) > 1 else xs), tuple(params))


def along_axes(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Runs an op that moves, reduces or scans along axes, with the parameters that name axes adjusted."""
    return op.issue(op, tuple(all_on(size, xs, on)), shifted(op, size, params))


def leading(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Runs an op of one input that accepts any leading axes."""
    return apply(op, tuple(xs), tuple(params))


def everywhere(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Runs an op of several inputs that accepts any leading axes, if all inputs have the same ones."""
    return apply(op, tuple(all_on(size, xs, on)), tuple(params))


def no_rule(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Raises NotImplementedError: the batching rule of kinds whose ops must declare one."""
    raise NotImplementedError(f"op {op} has no batching rule")


# ---- batching of fused pullbacks: the same kernel runs on all examples at once


def pull_elementwise(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> Tensor:
    """Lifts the examples of all values to one rank; broadcasting does everything else."""
    return pull(rule, *aligned(values, on))


def pull_along_axes(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> Tensor:
    """Adjusts the kept values of a reduction (a shape and axes) to the additional first axis."""
    return pull(rule, values[0], *_moved([name.removeprefix("x_") for name in rule.names], size, values[1:]))


def pull_leading(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> Tensor:
    """Runs a kernel that accepts any leading axes."""
    return pull(rule, *all_on(size, values, on))


# ---- tangents


def diagonal(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """For elementwise ops: the Jacobian with respect to an input is diagonal, so the pullback also maps tangents."""
    values, total = (*inputs, y, *params), None
    for rule, t in zip(op.rules, tangents):
        if t is None or rule is None:
            continue
        part = t if rule.definition is same else pull(rule, t, *rule.keep(values))
        total = part if total is None else total + part
    assert total is not None
    return repeated(total, y.shape)


def linear(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """For ops that are jointly linear in their floating-point inputs: runs the op on the tangents."""
    return op.issue(op, tuple([_or_zero(t, x) if _varies(x) else x for x, t in zip(inputs, tangents)]), tuple(params))


def bilinear(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """For ops that are linear in each of two inputs: applies the product rule."""
    (a, b), (ta, tb) = inputs, tangents
    if tb is None:
        return apply(op, (ta, b), tuple(params))
    by_b = apply(op, (a, tb), tuple(params))
    return by_b if ta is None else apply(op, (ta, b), tuple(params)) + by_b


def transposed(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """For all other ops: the pullback is linear in the cotangent u, and the pullback of that linear map is the tangent rule."""
    u = ones_like(y)  # not 0, because pullbacks replace a NaN by 0 where their cotangent is 0
    with Tape(watch_parameters=False) as tape:
        tape.watch(u)
        gradients = pulled(op, inputs, y, params, u, [t is not None for t in tangents])
    parts = [(gx, t) for gx, t in zip(gradients, tangents) if gx is not None and t is not None]
    return tape.gradient([gx for gx, _ in parts], u, output_gradients=[t for _, t in parts], unconnected="zero")


def pulled(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], g: Tensor, needs: Sequence[bool]) -> list[Any]:
    """Returns the gradients that `needs` marks, from the definitions of the op's rules; None for the other inputs."""
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
    """True if the op can be differentiated with respect to this input."""
    return isinstance(x, Number) or dtypes.is_float(x.dtype)


def _or_zero(t: Any, x: Any) -> Any:
    return t if t is not None else Number(0.0) if isinstance(x, Number) else zeros_like(x)


# ---- kinds

ELEMENTWISE: dict[str, Any] = {"batch": elementwise, "pull": pull_elementwise}
ALONG_AXES: dict[str, Any] = {"batch": along_axes, "tangent": linear}

UNARY = Kind("unary", **ELEMENTWISE, tangent=diagonal, promotes=True, widens=True)
BINARY = Kind("binary", **ELEMENTWISE, tangent=diagonal, promotes=True, widens=True)
COMPARE = Kind("binary", **ELEMENTWISE, tangent=diagonal, promotes=True, widens=True)  # compares with Python numbers of any size
NEIGHBOUR = Kind("binary", **ELEMENTWISE, tangent=diagonal, promotes=True)  # depends on the dtype's spacing: must not be widened
SELECT = Kind("select", batch=elementwise, tangent=linear, widens=True)
REDUCE = Kind("reduce", batch=along_axes, pull=pull_along_axes, tangent=transposed)
LINEAR = Kind("linear", **ALONG_AXES)
MOVEMENT = Kind("movement", **ALONG_AXES)
VIEW = Kind("view", **ALONG_AXES, issue=lambda op, inputs, params: view(op, inputs[0], *params))
BILINEAR = Kind("bilinear", batch=no_rule, tangent=bilinear, promotes=True, widens=True)
ROWS = Kind("rows", batch=leading, pull=pull_leading, tangent=transposed, widens=True)
OWN = Kind("own", batch=no_rule, tangent=transposed, widens=True)
OWN_OF_TWO = Kind("own", batch=no_rule, tangent=transposed, promotes=True, widens=True)  # converts both inputs to one dtype
