"""The weights that an update changes: those of a Parameter, or the float32 master of a half precision Parameter."""

from __future__ import annotations

from typing import Any

from ..ops.by_name import in_dtype
from ..ops.elementwise import equal, where
from ..tensors.tensor import Tensor


def exact(opt: Any, i: int) -> Tensor:
    """Returns the weights that an update of the optimizer's parameter i changes: those of the parameter itself, or its master.

    A parameter that is not the rounded master, because it has been assigned since the last step, replaces the master.
    """
    p = Tensor(opt._parameters[i].array)
    if opt._masters is None or opt._masters[i] is None:
        return p
    master = Tensor(opt._masters[i])
    return where(equal(in_dtype(master, p.dtype), p), master, in_dtype(p, master.dtype))
