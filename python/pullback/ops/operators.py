"""Attaches the ops that tensors and tapes call: operators, array methods, and the functions listed in `attached.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import DTypeError, ShapeError
from ..tensors import pickling
from ..tensors.attached import attached
from ..tensors.dtypes import is_float
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from . import by_name, conversion, elementwise, index, linalg, reduce, shape, writing
from .accumulate import AGGREGATIONS

BINARY: dict[str, Callable[..., Tensor]] = {
    "add": elementwise.add, "sub": elementwise.subtract, "mul": elementwise.multiply, "truediv": elementwise.divide,
    "floordiv": elementwise.floor_divide, "mod": elementwise.remainder, "pow": elementwise.pow, "matmul": linalg.matmul,
    "and": elementwise.bitwise_and, "or": elementwise.bitwise_or, "xor": elementwise.bitwise_xor,
    "lshift": elementwise.bitwise_left_shift, "rshift": elementwise.bitwise_right_shift,
}  # fmt: skip
SIGNS = {
    "add": "+=", "sub": "-=", "mul": "*=", "truediv": "/=", "floordiv": "//=", "mod": "%=", "pow": "**=", "matmul": "@=",
    "and": "&=", "or": "|=", "xor": "^=", "lshift": "<<=", "rshift": ">>=",
}  # fmt: skip
COMPARE = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
UNARY = {"neg": elementwise.negative, "pos": elementwise.positive, "abs": elementwise.abs, "invert": elementwise.bitwise_invert}
REDUCTIONS = ("sum", "mean", "prod", "max", "min", "all", "any", "argmax", "argmin", "var", "std")


def _reflected(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(self: Tensor, other: Any) -> Tensor:
        return op(other, self)

    return call


def _in_place(name: str, op: Callable[..., Tensor]) -> Callable[..., Parameter]:
    sign = SIGNS[name]

    def call(self: Parameter, other: Any) -> Parameter:
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


def _reduction(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(self: Tensor, axis: Any = None, **options: Any) -> Tensor:
        return op(self, axis=axis, **options)

    call.__doc__ = op.__doc__
    return call


def _method(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(self: Tensor, *args: Any, **options: Any) -> Tensor:
        return op(self, *args, **options)

    call.__doc__ = op.__doc__
    return call


def _reshape(self: Tensor, *lengths: Any) -> Tensor:
    """Returns the tensor in another shape: t.reshape(2, 3) or t.reshape((2, 3)); one length may be -1. Raises ShapeError."""
    return shape.reshape(self, lengths[0] if len(lengths) == 1 else lengths)


def attach() -> None:
    """Attaches operators, methods and functions. pullback/__init__.py calls it once, when it is imported."""
    _attach_operators()
    attached.to, attached.converted, attached.assign = conversion.to, conversion.converted, writing.assign
    attached.reduced = pickling.reduced
    attached.unbroadcast, attached.aggregations = by_name.unbroadcast, AGGREGATIONS


def _attach_operators() -> None:
    for name, op in BINARY.items():
        setattr(Tensor, f"__{name}__", op)
        setattr(Tensor, f"__r{name}__", _reflected(op))
        setattr(Parameter, f"__i{name}__", _in_place(name, op))
    for name, op_name in COMPARE.items():
        setattr(Tensor, f"__{name}__", getattr(elementwise, op_name))
    for name, op in UNARY.items():
        setattr(Tensor, f"__{name}__", op)
    for name in REDUCTIONS:
        setattr(Tensor, name, _reduction(getattr(reduce, name)))
    for name, op in {"astype": conversion.astype, "transpose": shape.transpose, "flatten": shape.flatten}.items():
        setattr(Tensor, name, _method(op))
    attributes: dict[str, Any] = {
        "reshape": _reshape,
        "__getitem__": index.getitem,
        "at": property(index.At),
        "T": property(shape.transpose),
        "mT": property(shape.matrix_transpose),
        "__hash__": object.__hash__,  # a class that sets __eq__ is unhashable without it
    }
    for name, attribute in attributes.items():
        setattr(Tensor, name, attribute)
