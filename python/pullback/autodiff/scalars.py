"""Scalars: float64 numbers in device memory that take the dtype of the arrays they meet, as Python numbers do.

A formula of an optimizer reads its hyper-parameters as Scalars. Arithmetic among Scalars is in float64 whatever the dtype of the
weights is, because 1 - beta ** step in float32 has an error of 6e-5. An op on a Scalar and an array converts the Scalar first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..errors import PullbackError
from ..tensors import devices, dtypes
from ..tensors.operand import Number
from ..tensors.tensor import Tensor
from ..tree import LEAVES
from .stand_in import StandIn

if TYPE_CHECKING:
    from .primitive import Op

Expression = tuple[Any, ...]  # (name,) of a Scalar that was given; otherwise (op, expressions and numbers of the inputs, params)


class _Number(StandIn):
    """Stands in for the array of a Scalar, so that kernels refuse it and the op comes to `run`."""

    __slots__ = ()

    def __init__(self, value: Any) -> None:
        self.shape: tuple[int, ...] = value.shape
        self.dtype = value.dtype

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise PullbackError(
            "a hyper-parameter in a formula is a number in the device's memory, whose value is not read on the host. Compute with "
            "it in pb.* functions (pb.where instead of if)."
        )


class Scalars:
    """Scalars that were computed from one another. The same expression is computed once.

    Args:
        given: returns the value of a Scalar by its name, as a tensor.
        dtype: the dtype of arrays that are made of Scalars alone, as by pb.where(array > 0, a, b).
    """

    def __init__(self, given: Callable[[Any], Tensor], dtype: Any) -> None:
        self._given, self.dtype = given, dtype
        self.known: dict[Expression, Tensor] = {}

    def named(self, name: Any) -> Scalar:
        """Returns the Scalar that was given by this name."""
        return Scalar(self, (name,), self.value((name,)))

    def value(self, expression: Expression) -> Tensor:
        """Returns the value of an expression, whose parts are computed first if they are not known yet."""
        found = self.known.get(expression)
        if found is None:
            found = self.known[expression] = self._computed(expression)
        return found

    def _computed(self, expression: Expression) -> Tensor:
        if len(expression) == 1:
            return self._given(expression[0])
        op, parts, params = expression
        return op.issue(op, tuple([self.value(part) if isinstance(part, tuple) else Number(part) for part in parts]), params)


class Scalar(Tensor):
    """A number, or one number per member, that takes part in ops like a Python number."""

    __slots__ = ("expression", "of", "value")

    def __init__(self, of: Scalars, expression: Expression, value: Tensor) -> None:
        self.array = _Number(value)
        self.serial = 0
        self.storage = None
        self.of, self.expression, self.value = of, expression, value

    @property
    def device(self) -> str:
        return devices.device_of(self.value.array)

    def __repr__(self) -> str:
        return f"<a number in the device's memory, shape={self.shape}, dtype={self.dtype}>"

    def __format__(self, spec: str) -> str:
        return repr(self)

    def in_dtype(self, dtype: Any, cast: Any) -> Tensor:
        """Returns the value in this dtype. A condition, which is a bool, is not converted."""
        if self.dtype == dtype or not dtypes.is_float(self.dtype):
            return self.value
        return self.of.value((cast, (self.expression,), (dtype,)))


LEAVES.add(Scalar)
_SELECT: Final = "select"  # the kind of `where`, whose first input is a condition


def run(op: Op, inputs: Sequence[Any], params: Sequence[Any], cast: Op) -> Tensor:
    """Runs an op with Scalars among its inputs. The result is a Scalar if no input is an array.

    cast: the op that converts between floating-point dtypes.
    """
    scalars = [x for x in inputs if x.__class__ is Scalar]
    if len(scalars) < len([x for x in inputs if isinstance(x, Tensor)]):
        values = inputs[1:] if op.kind.name == _SELECT else inputs
        found = [x for x in values if isinstance(x, Tensor) and x.__class__ is not Scalar and dtypes.is_float(x.dtype)]
        dtype = common_dtype(found) if found else scalars[0].of.dtype
        return op.issue(op, tuple([x.in_dtype(dtype, cast) if x.__class__ is Scalar else x for x in inputs]), tuple(params))
    of = scalars[0].of
    expression = (op, tuple([x.expression if x.__class__ is Scalar else x.array for x in inputs]), tuple(params))
    if all([x.of is of for x in scalars]) and _is_hashable(expression):
        return Scalar(of, expression, of.value(expression))
    y = op.issue(op, tuple([x.value if x.__class__ is Scalar else x for x in inputs]), tuple(params))
    return Scalars(lambda _: y, of.dtype).named("")


def _is_hashable(expression: Expression) -> bool:
    try:
        hash(expression)
    except TypeError:  # a slice among the params
        return False
    return True


def common_dtype(inputs: Sequence[Any]) -> Any:
    """Returns the dtype that tensors, Numbers and Scalars promote to. Scalars count as Python numbers if there is an array."""
    arrays = any([isinstance(x, Tensor) and x.__class__ is not Scalar for x in inputs])
    return dtypes.result_type(*[_weighed(x, arrays) for x in inputs])


def _weighed(x: Any, arrays: bool) -> Any:
    """Returns the operand of dtypes.result_type that stands for x."""
    if isinstance(x, Number):
        return x.array
    return 1.0 if arrays and x.__class__ is Scalar and dtypes.is_float(x.dtype) else x.dtype
