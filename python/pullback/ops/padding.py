"""Arrays with a constant around them."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from ..autodiff.primitive import apply
from ..errors import DTypeError, ShapeError, check_room
from ..tensors import dtypes
from ..tensors.operand import Number, as_tensor
from ..tensors.tensor import Tensor
from .kinds import check_numbers
from .shape import PAD


def pad(x: Any, pad_width: Any, /, *, value: float = 0) -> Tensor:
    """x with `value` around it; pad_width as NumPy's: an int, (before, after), or a pair for each axis."""
    x = as_tensor(x)
    try:
        widths = np.broadcast_to(np.asarray(pad_width, dtype=object), (x.ndim, 2)).tolist()
        widths = [[index(n) for n in pair] for pair in widths]
    except (ValueError, TypeError):
        raise ShapeError(f"pad: pad_width {pad_width} is no int, (before, after), or pair for each of {x.ndim} axes.") from None
    if any([n < 0 for pair in widths for n in pair]):
        raise ShapeError(f"pad: pad_width {pad_width} is negative; index the tensor to cut it.")
    check_room("pad", [before + n + after for n, (before, after) in zip(x.shape, widths)], x.array.itemsize)
    given: Any = value
    if not isinstance(given, (bool, int, float, np.generic, Tensor)):
        raise DTypeError(f"pad: value={value!r} is not a number.")
    if dtypes.with_number(x.dtype, value) != x.dtype:
        raise DTypeError(f"pad: value {value!r} does not fit a tensor of dtype {x.dtype}. Convert the tensor with astype.")
    check_numbers("pad", x.dtype, (Number(value),))
    return apply(PAD, (x,), (tuple([w[0] for w in widths]), tuple([w[1] for w in widths]), value))
