"""Attaches the ops that tensors and tapes call: operators, array methods, and the functions listed in `attached.py`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from ..errors import DTypeError, ShapeError
from ..interop.gate import gate_methods
from ..interop.unknown_names import attach_hints
from ..tensors import pickling
from ..tensors.attached import attached
from ..tensors.dtypes import is_float
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, ShapeLike
from . import (
    assembled,
    by_name,
    conversion,
    diagonals,
    elementwise,
    index,
    linalg,
    movement,
    reduce,
    shape,
    sort,
    variance,
    writing,
)
from .accumulate import AGGREGATIONS

BINARY: dict[str, Callable[..., Tensor]] = {
    "add": elementwise.add, "sub": elementwise.subtract, "mul": elementwise.multiply, "truediv": elementwise.divide,
    "floordiv": elementwise.floor_divide, "mod": elementwise.remainder, "pow": elementwise.pow, "matmul": linalg.matmul,
    "and": elementwise.bitwise_and, "or": elementwise.bitwise_or, "xor": elementwise.bitwise_xor,
    "lshift": elementwise.bitwise_left_shift, "rshift": elementwise.bitwise_right_shift,
}
SIGNS = {
    "add": "+=", "sub": "-=", "mul": "*=", "truediv": "/=", "floordiv": "//=", "mod": "%=", "pow": "**=", "matmul": "@=",
    "and": "&=", "or": "|=", "xor": "^=", "lshift": "<<=", "rshift": ">>=",
}
COMPARE = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
UNARY = {"neg": elementwise.negative, "pos": elementwise.positive, "abs": elementwise.abs, "invert": elementwise.bitwise_invert}
# Methods, by the module of the function that each is: those that NumPy's arrays and PyTorch's tensors share, and PyTorch's of one
# argument. Methods whose function only NumPy has are attached by `interop/dispatch.py`.
METHODS: dict[ModuleType, str] = {
    reduce: "all any argmax argmin max mean min prod sum",
    variance: "std var",
    elementwise: "abs acos acosh asin asinh atan atanh ceil clip cos cosh erf erfc erfinv exp exp2 expm1 floor isfinite isinf "
    "isnan log log10 log1p log2 reciprocal relu round rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc",
    shape: "squeeze swapaxes transpose",
    conversion: "astype copy", index: "nonzero", sort: "argsort sort", diagonals: "diagonal trace",
}


def _reflected(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(self: Tensor, other: ArrayLike, /) -> Tensor:
        return op(other, self)

    return call


def _in_place(name: str, op: Callable[..., Tensor]) -> Callable[..., Parameter]:
    sign = SIGNS[name]

    def call(self: Parameter, other: ArrayLike, /) -> Parameter:
        value = op(self, other)
        if value.shape != self.shape:
            raise ShapeError(
                f"{sign}: {self.label()} has shape {self.shape}, and the result has shape {value.shape}. A Parameter keeps its "
                f"shape: reduce the right-hand side to it, or write w = w {sign[:-1]} x for a tensor of the other shape."
            )
        if is_float(value.dtype) != is_float(self.dtype):
            raise DTypeError(
                f"{sign}: {self.label()} has dtype {self.dtype}, and the result has dtype {value.dtype}. A Parameter keeps its "
                f"dtype: convert the right-hand side with .astype, or give the Parameter a dtype that holds the result."
            )
        return self.assign(value)

    return call


def _round(self: Tensor, ndigits: int | None = None, /) -> Tensor:
    """Implements round(t) and round(t, 2), which return tensors."""
    return elementwise.round(self, ndigits or 0)


def _divmod(self: ArrayLike, other: ArrayLike, /) -> Any:
    """Implements divmod(t, x)."""
    return elementwise.floor_divide(self, other), elementwise.remainder(self, other)


def _reshape(self: Tensor, *lengths: ShapeLike) -> Tensor:
    """Returns the tensor in another shape: t.reshape(2, 3) or t.reshape((2, 3)); one length may be -1. Raises ShapeError."""
    given: Any = lengths[0] if len(lengths) == 1 else lengths
    return shape.reshape(self, given)


def _repeat(self: Tensor, repeats: ArrayLike, *more: NoReturn, axis: int | None = None) -> Tensor:
    """Repeats each element along an axis; with axis=None, of the flattened tensor. Raises ShapeError.

    Raises TypeError for several positional integers, which mean an axis to NumPy and one count per axis to PyTorch.
    """
    if more:
        counts = ", ".join(map(repr, (repeats, *more)))
        theirs = f", and NumPy's is t.repeat({repeats!r}, axis={more[0]!r})" if len(more) == 1 else ""
        raise TypeError(f"repeat({counts}) has two meanings. PyTorch's repeat is pb.tile(t, ({counts})){theirs}.")
    return movement.repeat(self, repeats, axis=axis)


def attach() -> None:
    """Attaches operators, methods and functions. pullback/__init__.py calls it once, when it is imported."""
    _attach_operators()
    attach_hints(Tensor)
    gate_methods(index.At)
    attached.to, attached.converted, attached.assign = conversion.to, conversion.converted, writing.assign
    attached.assembled, attached.filled = assembled.assembled, assembled.filled
    attached.lerp, attached.progression = assembled.lerp, assembled.progression
    attached.reduced = pickling.reduced
    attached.padded, attached.unbroadcast, attached.aggregations = by_name.padded, by_name.unbroadcast, AGGREGATIONS


def _attach_operators() -> None:
    for name, op in BINARY.items():
        setattr(Tensor, f"__{name}__", op)
        setattr(Tensor, f"__r{name}__", _reflected(op))
        setattr(Parameter, f"__i{name}__", _in_place(name, op))
    for name, op_name in COMPARE.items():
        setattr(Tensor, f"__{name}__", getattr(elementwise, op_name))
    for name, op in UNARY.items():
        setattr(Tensor, f"__{name}__", op)
    for module, names in METHODS.items():
        for name in names.split():
            setattr(Tensor, name, getattr(module, name))
    attributes: dict[str, Any] = {
        "__round__": _round,
        "__divmod__": _divmod,
        "__rdivmod__": _reflected(_divmod),
        "__getitem__": index.getitem,
        "at": property(index.At),
        "T": property(shape.transpose),
        "mT": property(shape.matrix_transpose),
        "__hash__": object.__hash__,  # a class that sets __eq__ is unhashable without it
    }
    for name, attribute in attributes.items():
        setattr(Tensor, name, attribute)
    for name, method in {"reshape": _reshape, "repeat": _repeat, "flatten": shape.flatten}.items():  # no public functions
        method.__name__, method.__qualname__, method.__module__ = name, f"Tensor.{name}", Tensor.__module__
        setattr(Tensor, name, method)
