"""The triangles of matrices."""

from __future__ import annotations

from typing import Any

from ..errors import ShapeError
from ..tensors import devices, dtypes
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from ._shapes import integer
from .elementwise import where


def tril(x: Any, /, *, k: int = 0) -> Tensor:
    """The last two axes' lower triangle, up to the k-th diagonal; zeros above. Raises ShapeError."""
    return _triangle("tril", x, k, lower=True)


def triu(x: Any, /, *, k: int = 0) -> Tensor:
    """The last two axes' upper triangle, from the k-th diagonal; zeros below. Raises ShapeError."""
    return _triangle("triu", x, k, lower=False)


def _triangle(name: str, x: Any, k: int, *, lower: bool) -> Tensor:
    x = as_tensor(x)
    if x.ndim < 2:
        raise ShapeError(f"{name}: shape {x.shape} has no two last axes.")
    k = integer(name, "k", k)
    xp = devices.array_module(x.device)
    with devices.working(x.device):
        apart = xp.arange(x.shape[-1]) - xp.arange(x.shape[-2])[:, None]
        kept = apart <= k if lower else apart >= k
    return where(Tensor(kept), x, False if x.dtype == dtypes.bool_ else 0)
