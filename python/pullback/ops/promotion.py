"""What happens to a call that a kernel refused: its inputs are promoted to one dtype, or an error says what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..autodiff import scalars
from ..autodiff.batching import innermost, run
from ..autodiff.primitive import OPS, Op, apply, tell
from ..backends import modes, reference
from ..errors import DeviceError, DTypeError, shown
from ..tensors import dtypes
from ..tensors.nested import NO_DTYPE
from ..tensors.operand import Number
from ..tensors.tensor import Tensor
from ..tensors.views import OutsideView, StaleView
from ._shapes import broadcast_shapes
from .by_name import in_dtype


def retry(op: Op, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> Tensor:
    """Runs an op whose kernel raised Refused: by the op's batching rule, again with promoted inputs, or by the reference backend.

    Raises an error in the user's terms if the arguments are wrong.
    """
    place = innermost(inputs)
    if place >= 0:
        return run(op, inputs, params, place)
    if any([x.__class__ is scalars.Scalar for x in inputs]):
        return scalars.run(op, inputs, params, OPS["cast"])
    if any([isinstance(x, (OutsideView, StaleView)) for x in inputs]):  # kernels refuse these classes; apply reads x.array
        return apply(op, inputs, params)
    promoted = prepare(op, inputs, params)
    if promoted is not None:
        return apply(op, promoted, params)
    arrays = [x.array for x in inputs]
    y = reference.run(op, arrays, params)
    if modes.mode() == "everywhere" and reference.has_kernel(op, arrays):
        reference.refuse_floats(op, [*arrays, y])
    return tell(op, Tensor(y), inputs, params)


def prepare(op: Op, inputs: Sequence[Any], params: Sequence[Any]) -> tuple[Any, ...] | None:
    """Returns the inputs converted to one dtype that the op takes, None if they have it. Runs after a kernel refused them.

    Raises DeviceError, DTypeError or ShapeError, in terms of the user's call, if the reference could not run either.
    """
    kind = op.kind
    check_devices(op.name, inputs)
    given = inputs
    if kind.unbounded:
        inputs = [at_infinity(x, inputs) if isinstance(x, Number) else x for x in inputs]
    dtype = common_dtype(op, inputs) if kind.promotes else floating(op, inputs)
    if kind.broadcasts:
        broadcast_shapes(op.name, [x.array.shape for x in inputs if isinstance(x, Tensor)])
    if dtype is None:
        return tuple(inputs) if any([x is not y for x, y in zip(inputs, given)]) else None
    return tuple([in_dtype(x, dtype) if isinstance(x, Tensor) and x.dtype != dtype else x for x in inputs])


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
