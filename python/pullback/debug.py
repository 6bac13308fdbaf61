"""debug_nans: stops at the first NaN or infinity that an op makes, forward or backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .autodiff.kept import Listening
from .autodiff.listeners import listeners
from .autodiff.primitive import Op
from .autodiff.site import call_site, line_of
from .errors import NonFiniteError, TapeError
from .tensors import devices, dtypes
from .tensors.tensor import Tensor


class debug_nans(Listening):  # a context manager reads as a verb
    """`with pb.debug_nans():` raises NonFiniteError at the first op whose result holds a NaN or an infinity.

    The message names the op and the line, and in a backward pass the forward line that made the op. An op whose inputs hold
    one already is not blamed. Every result is read once more, and pullbacks run op by op: for finding a fault, not for
    training. Per thread, as tapes are.
    """

    def __enter__(self) -> debug_nans:
        if self in listeners.stack:
            raise TapeError("debug_nans: this one is entered already; make another one.")
        super().__enter__()
        return self

    def add(self, op: Op, y: Tensor, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        """Checks the result of an op that ran."""
        found = first_non_finite(y.array)
        if found is None or any([first_non_finite(x.array) is not None for x in inputs]):
            return
        index, value = found
        given = ", ".join([f"{x.shape} {x.dtype}" if isinstance(x, Tensor) else repr(x.array) for x in inputs])
        raise NonFiniteError(
            f"{op.name}({given}) made the first {value}, at index {index}, from inputs without one; at {line_of(call_site())}. "
            f"Look at its inputs there, or keep them away from this point (pb.clip, pb.where on the input, an eps)."
        )

    def on_escape(self, x: Tensor, how: str) -> None:
        """A value that leaves pullback is no concern here."""


def first_non_finite(array: Any) -> tuple[tuple[int, ...], float] | None:
    """Where an array (or a Python number) first holds a NaN or an infinity, and which; None where it does not."""
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
