"""The order of summation of csrc/families/order.h, written in NumPy, for tests that compare the bits of kernels with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

BLOCK = 256  # consecutive terms whose halves are combined, and whose result is combined with its neighbour's
CHAIN = 8  # consecutive rows whose contributions to a sum over rows are added one after another
RUN = 32  # consecutive elements of a chain of a running reduction


def by_halves(terms: Any, combine: Callable[[Any, Any], Any] = np.add) -> Any:
    """Combines the terms, which lie along the first axis, by rule 2: the upper half joins the lower half."""
    while len(terms) > 1:
        half = 1 << (len(terms) - 1).bit_length() - 1
        joined = len(terms) - half
        terms = np.concatenate([combine(terms[:joined], terms[half:]), terms[joined:half]])
    return terms[0]


def by_neighbours(results: Any, combine: Callable[[Any, Any], Any] = np.add) -> Any:
    """Combines the results of blocks, which lie along the first axis, by rule 3: each even one with the next."""
    while len(results) > 1:
        pairs = len(results) // 2
        results = np.concatenate([combine(results[: 2 * pairs : 2], results[1 : 2 * pairs : 2]), results[2 * pairs :]])
    return results[0]


def in_order(terms: Any, axis: int = -1, combine: Callable[[Any, Any], Any] = np.add) -> Any:
    """Reduces the terms along an axis, of which there is at least one, in their own dtype."""
    terms = np.moveaxis(np.asarray(terms), axis, 0)
    blocks = [by_halves(terms[k : k + BLOCK], combine) for k in range(0, len(terms), BLOCK)]
    return by_neighbours(np.stack(blocks), combine)


def over_rows(rows: Any) -> Any:
    """Sums what each row, along the first axis, contributes to a gradient: in chains of rows, whose sums are added in order."""
    chains = []
    for k in range(0, len(rows), CHAIN):
        chains.append(np.zeros_like(rows[0]))
        for row in rows[k : k + CHAIN]:
            chains[-1] = chains[-1] + row
    return in_order(np.stack(chains), axis=0)


def fma(a: Any, b: Any, c: Any) -> Any:
    """Returns a * b + c, rounded once. All three have one dtype, float32 or float64; no result may overflow or be denormal."""
    if c.dtype == np.float32:
        return _add_once(a.astype(np.float64) * b.astype(np.float64), c)  # the product is exact in float64
    product = a * b  # from here on as Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008
    low, rest = _two_sum(c, _product_error(a, b, product))
    high, more = _two_sum(product, low)
    return high + _sum_to_odd(rest, more)


def product(a: Any, b: Any) -> Any:
    """Returns a (…, m, k) @ b (…, k, n): chains of BLOCK multiply-adds from 0, whose sums are added in pairs of neighbours."""
    blocks, single = [], a.dtype == np.float32
    zero = np.zeros(np.matmul(a[..., :0], b[..., :0, :]).shape, a.dtype)
    a, b = (a.astype(np.float64), b.astype(np.float64)) if single else (a, b)
    for first in range(0, max(1, a.shape[-1]), BLOCK):
        blocks.append(zero)
        for k in range(first, min(a.shape[-1], first + BLOCK)):
            column, row = a[..., :, k, None], b[..., None, k, :]
            blocks[-1] = _add_once(column * row, blocks[-1]) if single else fma(column, row, blocks[-1])
    return by_neighbours(np.stack(blocks))


def _add_once(product: Any, c: Any) -> Any:
    """Returns product + c, rounded once to float32: the product is in float64, c in float32.

    A sum that was rounded to float64 rounds on to what the exact sum rounds to, unless it lies halfway between two numbers of
    float32.
    """
    total = np.atleast_1d(product + c)
    halfway = total.view(np.int64) & 0x1FFFFFFF == 0x10000000
    if halfway.any():
        at = np.broadcast_to(product, total.shape)[halfway], np.broadcast_to(c, total.shape)[halfway].astype(np.float64)
        total[halfway] = _sum_to_odd(*at)
    return total.astype(np.float32).reshape(np.broadcast_shapes(np.shape(product), np.shape(c)))


def _two_sum(x: Any, y: Any) -> Any:
    total = x + y
    back = total - x
    return total, (x - (total - back)) + (y - back)


def _product_error(a: Any, b: Any, product: Any) -> Any:
    (a, a_low), (b, b_low) = _split(a), _split(b)
    return ((a * b - product) + a * b_low + a_low * b) + a_low * b_low


def _split(x: Any) -> Any:
    """Returns the upper and the lower half of the mantissa (Veltkamp)."""
    wide = x * 134217729.0
    high = wide - (wide - x)
    return high, x - high


def _sum_to_odd(x: Any, y: Any) -> Any:
    """Returns x + y in float64. An inexact sum becomes the one of its two neighbours whose last bit is 1."""
    total, error = _two_sum(x, y)
    bits = np.atleast_1d(total).view(np.int64).reshape(np.shape(total))
    step = np.where((error > 0) == (total > 0), 1, -1) * ((error != 0) & (bits % 2 == 0))
    return np.atleast_1d(bits + step).view(np.float64).reshape(np.shape(total))


def running(terms: Any, axis: int = -1, combine: Callable[[Any, Any], Any] = np.add) -> Any:
    """Returns the running results along an axis: in chains, whose totals run in the same way."""
    terms = np.moveaxis(np.asarray(terms), axis, 0)
    results = np.copy(terms)
    for k in range(len(terms)):
        if k % RUN:
            results[k] = combine(results[k - 1], terms[k])
    if len(terms) > RUN:
        before = running(results[RUN - 1 :: RUN], 0, combine)
        for k in range(RUN, len(terms)):
            results[k] = combine(before[k // RUN - 1], results[k])
    return np.moveaxis(results, 0, axis)
