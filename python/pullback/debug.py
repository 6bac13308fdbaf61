"""debug_nans, which stops at the first NaN or infinity that an op produces, forward or backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .autodiff.kept import Listening
from .autodiff.listeners import listeners
from .autodiff.primitive import Op
from .autodiff.site import call_site, line_of
from .errors import NonFiniteError, TapeError
from .exports import exported as _exported
from .interop.gate import ungated
from .tensors import devices, dtypes
from .tensors.tensor import Tensor

__all__ = ["debug_nans"]


class debug_nans(Listening):  # The name is lower case because a context manager reads like a verb.
    """`with pb.debug_nans():` raises NonFiniteError at the first op whose result contains a NaN or an infinity.

    The message names the op and the line; in a backward pass, the line of the forward op. An op whose inputs already contain a NaN
    or an infinity does not raise. Every result is read once more, and pullbacks run op by op, so use it to find a fault and not
    for training. Like a tape, it applies to the thread that entered it.
    """

    def __enter__(self) -> debug_nans:
        if self in listeners.stack:
            raise TapeError("debug_nans: this one is entered already; make another one.")
        super().__enter__()
        return self

    @ungated
    def add(self, op: Op, y: Tensor, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        """Checks the result of an op that ran. The array of an input that was not given is None."""
        found, inputs = first_non_finite(y.array), [x for x in inputs if x.array is not None]
        if found is None or any([first_non_finite(x.array) is not None for x in inputs]):
            return
        index, value = found
        given = ", ".join([f"{x.shape} {x.dtype}" if isinstance(x, Tensor) else repr(x.array) for x in inputs])
        raise NonFiniteError(
            f"{op.name}({given}) made the first {value}, at index {index}, from inputs without one; at {line_of(call_site())}. "
            f"Look at its inputs there, or keep them away from this point (pb.clip, pb.where on the input, an eps)."
        )

    @ungated
    def on_escape(self, x: Tensor, how: str, given: Any = None) -> None:
        """Ignores values that leave pullback."""


def first_non_finite(array: Any) -> tuple[tuple[int, ...], float] | None:
    """Returns the index and the value of the first NaN or infinity in an array or a Python number, or None if there is none."""
    import numpy as np

    if isinstance(array, (int, float)):
        return None if np.isfinite(array) else ((), array)
    if not dtypes.is_float(array.dtype):
        return None
    array = devices.move(array, "cpu")
    finite = np.isfinite(array)
    if finite.all():
        return None
    index = tuple([int(i) for i in np.unravel_index(int((~finite).argmax()), array.shape)])
    return index, float(array[index])


_exported(globals())
