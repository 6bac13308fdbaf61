"""The linear layer as one op: one launch computes product, bias and activation, and one launch computes the gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal

from ..autodiff.batching import pull
from ..autodiff.primitive import OPS, Op, apply
from ..backends import kernel_for
from ..backends.autocast import autocast, rounded
from ..errors import ArgumentError, DTypeError, ShapeError, an
from ..tensors import dtypes
from ..tensors.operand import Number
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from ._counts import ACTIVATIONS, COUNTS
from .by_name import aligned, in_dtype, lifted, repeated, reshaped, spread, widened
from .conversion import same_dtype
from .declare import normal, op
from .kinds import OWN
from .linalg import Outer, matmul
from .operands import as_tensors
from .row_sums import repeated_rows, total_of_rows
from .shape import matrix_transpose, reshape
from .tangents import diagonal

ABSENT: Final = Number(None)  # type: ignore[arg-type]  # an optional input that was not given; tapes never watch it


def _reference(xp: Any, x: Any, weight: Any, bias: Any, activation: int) -> Any:
    y = xp.matmul(rounded(xp, x), xp.swapaxes(rounded(xp, weight), 0, 1))
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
    """Returns x (…, n) reshaped to (rows, n)."""
    n = x.array.shape[-1]
    rows = 1
    for length in x.array.shape[:-1]:
        rows *= length
    return reshaped(x, (rows, n))


def _pullback(g: Tensor, x: Tensor, weight: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
    """Gradients of x, weight and bias: g @ weight, gᵀ @ x, and the sum of g over all rows."""
    return [
        matmul(g, weight) if needs[0] else None,
        matmul(matrix_transpose(_rows(g)), _rows(x)) if needs[1] else None,
        total_of_rows(_rows(g)) if needs[2] else None,
    ]


def _weight_factors(of_all: Any, g: Tensor, x: Tensor, weight: Tensor) -> Any:
    g, x = of_all(g), of_all(x)
    return Outer(*[reshaped(t, (t.shape[0], math.prod(t.shape[1:-1]), t.shape[-1])) for t in (g, x)])


def _slope(activation: int) -> Any:
    """Returns the rule of an activation's pullback."""
    return OPS[str(ACTIVATIONS[activation])].rules[0]


def _activated_pullback(
    g: Tensor, x: Tensor, weight: Tensor, y: Tensor, activation: int, needs: Sequence[bool]
) -> list[Tensor | None]:
    """h @ weight, hᵀ @ x, and the sum of h over all rows, for h the activation's pullback of g."""
    return _pullback(pull(_slope(activation), g, y), x, weight, needs)


def _activated_factors(of_all: Any, g: Tensor, x: Tensor, weight: Tensor, y: Tensor, activation: int) -> Any:
    return _weight_factors(of_all, pull(_slope(activation), g, y), x, weight)


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


# ---- a batch axis, a tangent. Under "everywhere" an example gets the bits that the kernels give it alone: half precision is
# rounded once, at the end, and the gradient of a bias is summed in their order.


def _linear_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """For linear(x, weight, bias, activation): all examples share one layer, or each example has its own."""
    if not on[1] and not on[2]:
        return apply(op, tuple(xs), tuple(params))
    dtype = xs[0].dtype
    x, weight, bias = [t if t is ABSENT else widened(t) for t in xs]
    rank = x.ndim - on[0]
    rows = lifted(x, 2) if on[0] and rank < 2 else x
    if on[1] and rank > 2:  # x (size, …, in) meets weight (size, out, in)
        rows = reshape(rows, (*((size,) if on[0] else ()), -1, x.shape[-1]))
    y = _product(dtype, rows, matrix_transpose(weight))
    y = reshaped(y, (size if on[0] or on[1] else 1, *x.shape[int(on[0]) : -1], y.shape[-1]))
    if bias is not ABSENT:
        own = repeated_rows(bias, math.prod(y.shape[1:-1]))  # (size, rows, out), or (rows, out) if the examples share the bias
        y = y + reshaped(own, (*bias.shape[:-1], *y.shape[1:]))
    name = ACTIVATIONS[params[0]]
    return in_dtype(apply(OPS[name], (y,)) if name else y, dtype)


def _pull_each(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> list[Tensor | None]:
    """Returns the gradients of x, weight and bias per example, after the activation's pullback if there is one."""
    dtype = values[0].dtype
    wide: list[Any] = [widened(t) if isinstance(t, Tensor) else t for t in values]
    g, x, weight, *activated, needs = wide
    g = g if on[0] else spread(g, size)
    if activated:
        y, number = activated
        g = pull(_slope(number), *aligned((g, y), (True, on[3])))
    *lead, outputs = g.shape
    rows = reshaped(g, (size, math.prod(lead[1:]), outputs))
    gx = gw = gb = None
    if needs[0]:
        gx = _product(dtype, rows if on[2] else reshaped(g, (math.prod(lead), outputs)), weight)
        gx = reshaped(gx, (*lead, gx.shape[-1]))
    if needs[1]:
        x = reshaped(x, (*((size,) if on[1] else ()), rows.shape[1], x.shape[-1]))
        gw = _product(dtype, matrix_transpose(rows), x)
    if needs[2]:
        gb = total_of_rows(rows)
    return [None if t is None else in_dtype(t, dtype) for t in (gx, gw, gb)]


def _product(dtype: Any, a: Tensor, b: Tensor) -> Tensor:
    """Returns a @ b. `amp.autocast` is for float32, and leaves factors alone that were widened from another dtype."""
    return matmul(a, b) if a.dtype == dtype else exact_product(a, b)


def exact_product(a: Tensor, b: Tensor) -> Tensor:
    """Returns a @ b, whatever `amp.autocast` is in force."""
    with autocast("float32"):
        return matmul(a, b)


def _tangent(op: Op, inputs: Sequence[Any], y: Tensor, params: Sequence[Any], tangents: Sequence[Any]) -> Tensor:
    """Applies the product rule to x and weight, and then the activation's derivative."""
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
    return repeated(total, y.shape)


# ---- declarations

_LAYER: dict[str, Any] = {
    "kind": OWN, "reference": _reference, "inputs": 3, "joint": True, "takes": "float", "cost": _cost,
    "batch": _linear_each, "pull": _pull_each, "tangent": _tangent,
}
_linear = op("linear", **_LAYER, pullback=_pullback, fused=_fused if _pull else None, factors={1: _weight_factors},
             example=normal((5, 3), (4, 3), (4,), params=(0,)))
# A separate op that runs the same kernel: its pullback keeps y, whereas that of `linear` does not.
_linear_activated = op("linear_activated", **_LAYER, kernel="linear", pullback=_activated_pullback,
                       fused=_activated_fused if _pull else None, factors={1: _activated_factors},
                       ends_with=lambda kept: OPS[str(ACTIVATIONS[kept["activation"]])],
                       example=normal((5, 3), (4, 3), (4,), params=(2,)))

Activation = Literal["relu", "tanh", "sigmoid"]  # the names in ACTIVATIONS


def linear(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, activation: Activation | None = None) -> Tensor:
    """Returns activation(x @ weightᵀ + bias), computed in one launch that does not write intermediate results.

    Args:
        x: (…, in) float tensor.
        weight: (out, in), the layout of torch.nn.Linear.
        bias: (out,) or None.
        activation: the name of a function that the kernel applies to the result ("relu", "tanh" or "sigmoid"), or None.

    Returns: (…, out). Raises: ShapeError, DTypeError, ValueError for an unknown activation.
    Cost: per element of the result 2 · in FLOPs, one for the bias, and those of the activation.
    """
    x, weight, b = as_tensors("linear", x, weight, optional=(bias,))
    b = ABSENT if bias is None else b
    if activation is not None and (activation.__class__ is not str or activation not in ACTIVATIONS):
        shown, known = repr(activation) if activation.__class__ is str else an(activation), ", ".join(map(repr, ACTIVATIONS))
        raise ArgumentError(f"linear: activation is {shown}; use {known}, or apply another one after it.")
    _check_shapes(x, weight, b)
    dtype = x.array.dtype
    if dtype != weight.array.dtype or (isinstance(b, Tensor) and dtype != b.array.dtype) or not dtypes.is_float(dtype):
        x, weight, b = _floats(x, weight, b)
    if activation is None:
        return apply(_linear, (x, weight, b), (0,))
    return apply(_linear_activated, (x, weight, b), (ACTIVATIONS.index(activation),))


def _check_shapes(x: Tensor, weight: Tensor, bias: Any) -> None:
    """Raises ShapeError unless the shapes fit exactly. Otherwise a bias or a weight with an axis of length 1 would broadcast."""
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
    """Returns the change that most likely makes x and weight fit."""
    if not x:
        return "Give x an axis of features."
    if len(x) > 2 and math.prod(x[1:]) == weight[1]:
        return f"Flatten x to ({x[0]}, {weight[1]}) before, with nn.Flatten()."
    turned = ", or transpose the weight (weight.mT)" if x[-1] == weight[0] else ""
    return f"Make the layer nn.Linear({x[-1]}, {weight[0]}), or reshape x{turned}."


def _floats(x: Tensor, weight: Tensor, bias: Any) -> tuple[Any, ...]:
    """Returns x, weight and bias in their common floating-point dtype. Raises DTypeError if it is not floating-point."""
    given = [t for t in (x, weight, bias) if t is not ABSENT]
    found = same_dtype(given)
    if not dtypes.is_float(found[0].dtype):
        raise DTypeError(
            f"linear: x and weight have dtypes {x.dtype} and {weight.dtype}; one must be floating-point. Use .astype(pb.float32)."
        )
    return (*found, *([ABSENT] if bias is ABSENT else []))
