"""How a tangent passes through an op in forward mode: one rule per kind.

A rule `rule(op, inputs, y, params, tangents)` gives the tangent of y from those of the inputs, None for an input without one.
It works with differentiable ops, so that tapes and other forward passes around it differentiate it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..autodiff.batching import pull
from ..autodiff.primitive import Op, apply, same
from ..tensors import dtypes
from ..tensors.operand import Number
from ..tensors.tensor import Tensor
from ._counts import ACTIVATIONS

Rule = Callable[[Op, Sequence[Any], Tensor, Sequence[Any], Sequence[Any]], Tensor]


def diagonal(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """Elementwise: the Jacobian by an input is diagonal, so its pullback is its own transpose."""
    from .shape import broadcast_to

    values, total = (*inputs, y, *params), None
    for rule, t in zip(op.rules, tangents):
        if t is None or rule is None:
            continue
        part = t if rule.definition is same else pull(rule, t, *rule.keep(values))
        total = part if total is None else total + part
    assert total is not None
    return total if total.shape == y.shape else broadcast_to(total, y.shape)


def linear(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """Linear in its floating-point inputs, all together: the op itself."""
    return op.issue(op, tuple([_or_zero(t, x) if _varies(x) else x for x, t in zip(inputs, tangents)]), tuple(params))


def bilinear(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """Linear in each of two inputs."""
    (a, b), (ta, tb) = inputs, tangents
    if tb is None:
        return apply(op, (ta, b), tuple(params))
    by_b = apply(op, (a, tb), tuple(params))
    return by_b if ta is None else apply(op, (ta, b), tuple(params)) + by_b


def transposed(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """Any other op: its pullback is linear in the cotangent u, and what transposes it is its own derivative by u."""
    from ..autodiff.tape import GradientTape
    from ..tensors.creation import zeros_like

    u = zeros_like(y)
    with GradientTape(watch_parameters=False) as tape:
        tape.watch(u)
        gradients = pulled(op, inputs, y, params, u, [t is not None for t in tangents])
    parts = [(gx, t) for gx, t in zip(gradients, tangents) if gx is not None and t is not None]
    return tape.gradient([gx for gx, _ in parts], u, output_gradients=[t for _, t in parts], unconnected="zero")


def pulled(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], g: Tensor, needs: Sequence[bool]) -> list[Any]:
    """The gradients of the inputs that are needed, by the definitions of the op's rules; None for the others."""
    from .shape import unbroadcast

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
    """Whether an input is one that a derivative could be taken by."""
    return isinstance(x, Number) or dtypes.is_float(x.dtype)


def _or_zero(t: Any, x: Any) -> Any:
    from ..tensors.creation import zeros_like

    return t if t is not None else Number(0.0) if isinstance(x, Number) else zeros_like(x)


# ---- ops with a rule of their own


def padding(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """pad: the border is a constant."""
    before, after, _ = params
    return apply(op, (tangents[0],), (before, after, 0.0))


def layer(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """linear(x, weight, bias, activation): bilinear in x and weight, then the activation's slope."""
    from ..autodiff.primitive import OPS
    from .linear import linear

    (x, weight, _), (tx, tw, tb) = inputs, tangents
    parts = [linear(tx, weight)] if tx is not None else []
    parts += [linear(x, tw)] if tw is not None else []
    parts += [tb] if tb is not None else []
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    name = ACTIVATIONS[params[0]]
    if name:
        return diagonal(OPS[name], (x,), y, (), (total,))
    from .shape import broadcast_to

    return broadcast_to(total, y.shape)
