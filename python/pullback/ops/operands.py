"""The operands of an op that takes several. What is made of Python numbers takes the dtype of the tensors and arrays beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..autodiff import scalars
from ..errors import ArgumentError, DTypeError
from ..interop.wrong_calls import with_title
from ..tensors import dtypes
from ..tensors.operand import Listed, Number, as_tensor, operand
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor


def operands(name: str, *values: Any) -> list[Any]:
    """Returns the arguments of an op as Tensors, and Python numbers as Numbers. name: the op's, for messages. Raises DTypeError."""
    return unlisted(name, [operand(value, op=name) for value in values])


def unlisted(name: str, found: Sequence[Any], compared: bool = False) -> list[Any]:
    """Returns operands with each Listed as a Tensor of the dtype that all of them promote to. Its numbers are rounded once.

    compared: integers that do not fit this dtype keep their own, because a comparison with them has a result.
    Raises DTypeError; ShapeError for lists of different lengths.
    """
    if not any([x.__class__ is Listed for x in found]):
        return list(found)
    dtype = _common(found)
    return [_tensor_of(name, x.given, dtype, compared) if x.__class__ is Listed else x for x in found]


def as_tensors(name: str, *values: Any, optional: Sequence[Any] = (), compared: bool = False) -> list[Tensor]:
    """Returns the arguments of an op as Tensors, also Python numbers. For the rest see `unlisted`.

    optional: more arguments, of which None stays None.
    """
    given = [*values, *optional]
    for i, value in enumerate(given):
        if value.__class__ not in _TENSORS and (value is not None or i < len(values)):
            break
    else:  # a short cut for nearly every call
        return given
    found = [value if value is None and i >= len(values) else _or_listed(name, value) for i, value in enumerate(given)]
    return unlisted(name, found, compared)


_TENSORS: Final = frozenset([Tensor, Parameter])


def with_whole(name: str, x: Any, given: Any) -> list[Tensor]:
    """Returns x and another argument as `as_tensors` does, but the other one in its own dtype if its numbers are integers or bools.

    It is a mask or class numbers then, and not an array of floats such as x.
    """
    found = _or_listed(name, given)
    if found.__class__ is Listed and float not in found.kinds:
        found = as_tensor(given)
    return unlisted(name, [_or_listed(name, x), found])


def _or_listed(name: str, value: Any) -> Any:
    """Returns an argument as a Tensor, or as Listed if it is made of Python numbers."""
    found = operand(value, op=name)
    return Listed(found.array, {type(found.array)}) if isinstance(found, Number) else found


def _common(found: Sequence[Any]) -> Any:
    """Returns the dtype that operands promote to, None if there is no tensor or array among them that determines it."""
    strong = [x.dtype for x in found if isinstance(x, Tensor) and x.__class__ is not scalars.Scalar]
    weak = [kind(1) for x in found if x.__class__ is Listed for kind in x.kinds]
    return dtypes.result_type(*strong, *weak, *[x.array for x in found if isinstance(x, Number)]) if strong else None


def _tensor_of(name: str, given: Any, dtype: Any, compared: bool) -> Tensor:
    try:
        return as_tensor(given, dtype=dtype)
    except (ArgumentError, DTypeError) as error:
        if compared and dtype is not None and dtype.kind in "iu":
            return as_tensor(given)
        raise type(error)(with_title(name, error, given)) from None
