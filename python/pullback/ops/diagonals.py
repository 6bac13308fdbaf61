"""Diagonals with NumPy's choice of axes. The array API's functions, which take the last two axes, are in matrices.py."""

from __future__ import annotations

from typing import Any

from ..errors import ShapeError
from ..tensors import dtypes
from ..tensors.operand import as_tensor
from ..tensors.ranges import eye
from ..tensors.tensor import Tensor
from . import matrices
from ._shapes import integer
from .elementwise import where
from .movement import pad
from .shape import moveaxis


def diagonal(x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Returns the diagonals over two axes, along a new last axis. `pb.linalg.diagonal` takes the last two axes.

    offset: the number of the diagonal, positive above the main one. Raises ShapeError.
    """
    return matrices.diagonal(moveaxis(x, (axis1, axis2), (-2, -1)), offset=offset)


def trace(x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Tensor:
    """Returns the sum of each diagonal over two axes. `pb.linalg.trace` takes the last two axes. Raises ShapeError."""
    return matrices.trace(moveaxis(x, (axis1, axis2), (-2, -1)), offset=offset, dtype=dtype)


def diag(x: Any, /, k: int = 0) -> Tensor:
    """Returns the k-th diagonal of a matrix, or the matrix that has a vector (n,) as its k-th diagonal and zeros elsewhere.

    The matrix has n + |k| rows. Raises ShapeError if x is neither a vector nor a matrix.
    """
    x, k = as_tensor(x), integer("diag", "k", k)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ShapeError(f"diag: takes a vector or a matrix, not shape {x.shape}. For more axes there is pb.linalg.diagonal.")
    columns = pad(x, (max(k, 0), max(-k, 0)))  # each row has its element of the diagonal in the same column
    on = eye(columns.shape[0], k=k, dtype=dtypes.bool_, device=x.device)
    return where(on, columns, False if x.dtype == dtypes.bool_ else 0)
