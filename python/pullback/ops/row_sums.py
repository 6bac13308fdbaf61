"""Vectors that all rows share, such as the bias of a layer, and their gradients: sums over rows in the order of layers' kernels.

If `vmap` runs a layer whose examples have weights of their own, these ops stand for its bias. Under "everywhere" its gradient then
has the bits that the layer's kernel gives to each example alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autodiff.primitive import Op, apply
from ..backends import modes
from ..tensors.tensor import Tensor
from .by_name import reshaped, view
from .declare import no_flops, normal, op
from .kinds import OWN, VIEW
from .movement import concat
from .reduce import sum_over
from .shape import part_of, permute_dims


def _by_layer(kernel: Any) -> Any:
    """Returns a kernel that sums the rows of x (rows, n): the pullback of a linear layer without inputs, for its bias alone."""
    return lambda x: kernel(x, x[:, :0], x[:0].T, x, 0, False, False, True)[2]


def _sum_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """For sum_rows(x)."""
    return _in_order(xs[0])


def _repeated(x: Any, rows: int) -> Any:
    return np.broadcast_to(x[..., None, :], (*x.shape[:-1], rows, x.shape[-1]))  # also for CuPy arrays


_sum = op("sum_rows", kind=OWN, kernel="linear_pullback", adapt=_by_layer, takes="float", batch=_sum_each,
          reference=lambda xp, x: x.sum(axis=0), cost=lambda x, y: {"adds": max(0, x.size - y.size)},
          pullback=lambda g, x_shape: repeated_rows(g, x_shape[0]), example=normal((5, 3)))
_repeat = op("repeat_rows", kind=VIEW, reference=lambda xp, x, rows, chain: _repeated(x, rows), cost=no_flops,
             pullback=lambda g, chain: total_of_rows(g, chain), example=normal((2, 3), params=(4, 0)))


def repeated_rows(x: Tensor, rows: int, chain: int = 0) -> Tensor:
    """Returns x (…, n) repeated to (…, rows, n), without copying. The gradient of x is total_of_rows(g, chain)."""
    return view(_repeat, x, rows, chain)


def total_of_rows(x: Tensor, chain: int = 0) -> Tensor:
    """Returns the sums (…, n) over the rows of x (…, rows, n).

    Under "everywhere" the rows are added as the terms of a product with ones (families/order.h). With `chain`, this holds for each
    chain of so many rows, and the sums of the chains are reduced.
    """
    *lead, rows, n = x.shape
    if modes.mode() != "everywhere":
        return sum_over(x, (len(lead),))
    y = reshaped(x, (math.prod(lead), rows, n))
    return reshaped(_by_chains(y, chain) if chain else _in_order(y), (*lead, n))


def _by_chains(x: Tensor, chain: int) -> Tensor:
    size, rows, n = x.shape
    whole = rows // chain
    sums = []
    if whole:
        chains = reshaped(part_of(x, 1, slice(0, whole * chain)), (size * whole, chain, n))
        sums.append(reshaped(_in_order(chains), (size, whole, n)))
    if rows % chain:
        sums.append(reshaped(_in_order(part_of(x, 1, slice(whole * chain, rows))), (size, 1, n)))
    return sum_over(concat(sums, axis=1) if sums else x, (1,))


def _in_order(x: Tensor) -> Tensor:
    """Returns the sums (size, n) over the rows of x (size, rows, n)."""
    size, rows, n = x.shape
    return reshaped(apply(_sum, (reshaped(permute_dims(x, (1, 0, 2)), (rows, size * n)),)), (size, n))
