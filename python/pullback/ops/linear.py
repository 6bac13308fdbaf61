"""The linear layer as one op: product, bias and activation in one launch, and one launch for its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from .. import amp
from ..autodiff.batching import pull
from ..autodiff.primitive import OPS, Op, apply
from ..backends import kernel_for
from ..errors import DTypeError, ShapeError
from ..tensors import dtypes
from ..tensors.operand import Number, as_tensor
from ..tensors.tensor import Tensor
from ._counts import ACTIVATIONS, COUNTS
from ._examples import normal
from .batching import layer, pull_layer
from .kinds import OWN, op
from .linalg import matmul
from .reduce import sum_over
from .shape import matrix_transpose, reshaped, same_dtype
from .tangents import layer as layer_tangent

ABSENT: Final = Number(None)  # type: ignore[arg-type]  # in the place of an optional input: no array, never watched


def _reference(xp: Any, x: Any, weight: Any, bias: Any, activation: int) -> Any:
    y = xp.matmul(amp.rounded(xp, x), xp.swapaxes(amp.rounded(xp, weight), 0, 1))
    if bias is not None:
        y = y + bias
    name = ACTIVATIONS[activation]
    return OPS[name].reference(xp, y) if name else y


def _cost(x: Any, weight: Any, bias: Any, activation: int, y: Any) -> dict[str, int]:
    products = y.size * weight.shape[1]
    adds, multiplies, special = COUNTS.get(ACTIVATIONS[activation] or "", (0, 0, 0))
    return {
        "adds": y.size * (adds + (bias is not None)),
        "multiplies": y.size * multiplies,
        "fmas": products,
        "matmul_flops": 2 * products,
        "special_ops": y.size * special,
    }


def _rows(x: Tensor) -> Tensor:
    """(…, n) as (rows, n)."""
    n = x.array.shape[-1]
    rows = 1
    for length in x.array.shape[:-1]:
        rows *= length
    return reshaped(x, (rows, n))


def _pullback(g: Tensor, x: Tensor, weight: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
    """The gradients of x, weight and bias: g @ weight, gᵀ @ x, and the sum of g over all rows."""
    lead = tuple(range(g.ndim - 1))
    return [
        matmul(g, weight) if needs[0] else None,
        matmul(matrix_transpose(_rows(g)), _rows(x)) if needs[1] else None,
        sum_over(g, lead) if needs[2] else None,
    ]


def _weight_factors(of_all: Any, g: Tensor, x: Tensor, weight: Tensor) -> Any:
    from .factors import Outer

    g, x = of_all(g), of_all(x)
    return Outer(*[reshaped(t, (t.shape[0], math.prod(t.shape[1:-1]), t.shape[-1])) for t in (g, x)])


def _activated_pullback(
    g: Tensor, x: Tensor, weight: Tensor, y: Tensor, activation: int, needs: Sequence[bool]
) -> list[Tensor | None]:
    """The activation's pullback of g, then the gradients of x, weight and bias: g @ weight, gᵀ @ x, the sum of g over rows."""
    rule = OPS[str(ACTIVATIONS[activation])].rules[0]
    assert rule is not None
    return _pullback(pull(rule, g, y), x, weight, needs)


def _activated_factors(of_all: Any, g: Tensor, x: Tensor, weight: Tensor, y: Tensor, activation: int) -> Any:
    rule = OPS[str(ACTIVATIONS[activation])].rules[0]
    assert rule is not None
    return _weight_factors(of_all, pull(rule, g, y), x, weight)


_pull, _ = kernel_for("linear_pullback")


def _fused(g: Tensor, x: Tensor, weight: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
    array = g.array
    return _wrapped(_pull(array, x.array, weight.array, array, 0, needs[0], needs[1], needs[2]))  # type: ignore[misc]


def _activated_fused(
    g: Tensor, x: Tensor, weight: Tensor, y: Tensor, activation: int, needs: Sequence[bool]
) -> list[Tensor | None]:
    return _wrapped(_pull(g.array, x.array, weight.array, y.array, activation, needs[0], needs[1], needs[2]))  # type: ignore[misc]


def _wrapped(arrays: Sequence[Any]) -> list[Tensor | None]:
    return [None if array is None else Tensor(array) for array in arrays]


_linear = op("linear", kind=OWN, batch=layer, pull=pull_layer, tangent=layer_tangent, reference=_reference, inputs=3, joint=True,
             pullback=_pullback, takes="float", cost=_cost, fused=_fused if _pull else None,
             factors={1: _weight_factors}, example=normal((5, 3), (4, 3), (4,), params=(0,)))  # fmt: skip


def _activated() -> Op:
    """Another op by the same kernel, because its pullback keeps y, which the plain one frees."""
    linked = op("linear_activated", kind=OWN, batch=layer, pull=pull_layer, tangent=layer_tangent, reference=_reference,
                inputs=3, joint=True, pullback=_activated_pullback, takes="float", cost=_cost,
                factors={1: _activated_factors}, example=normal((5, 3), (4, 3), (4,), params=(2,)))  # fmt: skip
    linked.kernel, linked.native, linked.why_reference = _linear_kernel(linked)
    linked.shown = _linear.name
    rule = linked.rules[0]
    assert rule is not None
    rule.ends_with = lambda kept: OPS[str(ACTIVATIONS[kept["activation"]])]
    if linked.native and _pull:
        rule.fused = _activated_fused
    return linked


def _linear_kernel(linked: Op) -> tuple[Any, bool, str | None]:
    kernel, reason = kernel_for("linear")
    return (kernel, True, None) if kernel else (linked.kernel, False, reason)


_linear_activated = _activated()


def linear(x: Any, weight: Any, bias: Any = None, activation: str | None = None) -> Tensor:
    """activation(x @ weightᵀ + bias) in one launch, without writing what is in between.

    Args:
        x: (…, in) float tensor.
        weight: (out, in), as torch.nn.Linear keeps it.
        bias: (out,) or None.
        activation: the name of a function that the kernel applies to the result ("relu", "tanh" or "sigmoid"), or None.

    Returns: (…, out). Raises: ShapeError, DTypeError.
    Cost: 2 in FLOPs per element of the result, one for the bias, and the activation's.
    """
    x, weight = as_tensor(x), as_tensor(weight)
    b = ABSENT if bias is None else as_tensor(bias)
    if activation is not None and (activation.__class__ is not str or activation not in ACTIVATIONS):
        shown = repr(activation) if activation.__class__ is str else f"a {type(activation).__name__}"
        raise ValueError(f"linear: activation is {shown}; use {', '.join(map(repr, ACTIVATIONS))}, or apply another one after it.")
    _check_shapes(x, weight, b)
    dtype = x.array.dtype
    if dtype != weight.array.dtype or (isinstance(b, Tensor) and dtype != b.array.dtype) or not dtypes.is_float(dtype):
        x, weight, b = _floats(x, weight, b)
    if activation is None:
        return apply(_linear, (x, weight, b), (0,))
    return apply(_linear_activated, (x, weight, b), (ACTIVATIONS.index(activation),))


def _check_shapes(x: Tensor, weight: Tensor, bias: Any) -> None:
    """A bias of one element, or a matrix of one column, would broadcast and succeed."""
    inner, shape = x.array.shape, weight.array.shape
    if len(shape) == 2 and inner and inner[-1] == shape[1] and (bias is ABSENT or bias.array.shape == (shape[0],)):
        return
    if len(shape) != 2:
        raise ShapeError(f"linear: weight has shape {shape}; it must be (out, in).")
    if not inner or inner[-1] != shape[1]:
        raise ShapeError(
            f"linear: the last axis of x {inner} must have the length of the last axis of weight {shape}, (out, in), "
            f"which is {shape[1]}. {_remedy(inner, shape)}"
        )
    raise ShapeError(
        f"linear: bias has shape {bias.shape}, but weight {shape} gives {shape[0]} outputs. Give it the shape ({shape[0]},)."
    )


def _remedy(x: Sequence[int], weight: Sequence[int]) -> str:
    """What most likely makes them fit."""
    if not x:
        return "Give x an axis of features."
    if len(x) > 2 and math.prod(x[1:]) == weight[1]:
        return f"Flatten x to ({x[0]}, {weight[1]}) before, with nn.Flatten()."
    turned = ", or transpose the weight (weight.mT)" if x[-1] == weight[0] else ""
    return f"Make the layer nn.Linear({x[-1]}, {weight[0]}), or reshape x{turned}."


def _floats(x: Tensor, weight: Tensor, bias: Any) -> tuple[Any, ...]:
    """All three in their common floating-point dtype."""
    given = [t for t in (x, weight, bias) if t is not ABSENT]
    found = same_dtype(given)
    if not dtypes.is_float(found[0].dtype):
        raise DTypeError(
            f"linear: x and weight have dtypes {x.dtype} and {weight.dtype}; one must be floating-point. Use .astype(pb.float32)."
        )
    return (*found, *([ABSENT] if bias is ABSENT else []))
