"""Rules of forward mode for the kinds of ops (kinds.py).

`rule(op, inputs, y, params, tangents)` returns the tangent of y from those of the inputs (None for an input without one). It
consists of differentiable ops, so that enclosing tapes and forward passes can differentiate it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autodiff.batching import pull
from ..autodiff.primitive import Op, apply, same
from ..autodiff.tape import Tape
from ..tensors import dtypes
from ..tensors.creation import ones_like, zeros_like
from ..tensors.operand import Number
from ..tensors.tensor import Tensor
from .by_name import repeated, unbroadcast


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
