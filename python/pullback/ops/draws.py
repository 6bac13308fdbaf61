"""Ops that draw random numbers, with Philox4x32-10 in NumPy, which gives the same bits as csrc/math/random.h.

Philox is a counter-based generator (Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"): block k of
call `serial` depends on (seed, serial, k) only, so any element can be computed on any device, in any order. The ops take their
state as a uint64 array [seed, serial].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..autodiff.primitive import Op, apply
from ..backends.reference import distinct_bytes, special
from ..errors import PullbackError
from ..tensors import devices, dtypes
from ..tensors.creation import ones
from ..tensors.tensor import Tensor
from ._shapes import Shape
from .batch_rules import shifted
from .by_name import spread
from .declare import normal, op
from .kinds import LINEAR, OWN
from .sort import argsort

MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL: Final = (0x9E3779B9, 0xBB67AE85)
ROUNDS: Final = 10
LOW: Final = np.uint64(0xFFFFFFFF)
HALF: Final = np.uint64(32)


def philox(c: Any, key: tuple[int, int]) -> Any:
    """Returns four arrays of 32-bit words for four arrays of counter words and a key of two words. Arrays are uint64."""
    k0, k1 = key
    for _ in range(ROUNDS):
        a, b = MULTIPLIERS[0] * c[0], MULTIPLIERS[1] * c[2]
        c = ((b >> HALF) ^ c[1] ^ np.uint64(k0), b & LOW, (a >> HALF) ^ c[3] ^ np.uint64(k1), a & LOW)
        k0, k1 = (k0 + WEYL[0]) & 0xFFFFFFFF, (k1 + WEYL[1]) & 0xFFFFFFFF
    return c


def words(seed: int, serial: int, count: int) -> Any:
    """Returns the first `count` 32-bit words of a call, as uint32; word i is word i % 4 of block i // 4."""
    blocks = -(-count // 4)
    k = np.arange(blocks, dtype=np.uint64)
    serials = [np.full(blocks, part, np.uint64) for part in (serial & 0xFFFFFFFF, serial >> 32)]
    y = philox((k & LOW, k >> HALF, *serials), (seed & 0xFFFFFFFF, seed >> 32))
    return np.stack(y, axis=1).reshape(-1)[:count].astype(np.uint32)


def pairs(seed: int, serial: int, count: int) -> Any:
    """Returns the first `count` 64-bit words of a call as uint64. Each block gives two."""
    w = words(seed, serial, 2 * count).astype(np.uint64).reshape(-1, 2)
    return w[:, 1] << HALF | w[:, 0]


def uniform(seed: int, serial: int, count: int, double: bool = False) -> Any:
    """Returns `count` numbers in [0, 1): multiples of 2^-24 in float32 or, if `double`, of 2^-53 in float64."""
    if double:
        return (pairs(seed, serial, count) >> np.uint64(11)) * 2.0**-53
    return (words(seed, serial, count) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def multiply_high(a: Any, b: int) -> Any:
    """Returns the upper 64 bits of the 128-bit product of a uint64 array and an integer below 2^64."""
    a0, a1, b0, b1 = a & LOW, a >> HALF, np.uint64(b & 0xFFFFFFFF), np.uint64(b >> 32)
    middle = a1 * b0 + ((a0 * b0) >> HALF)
    rest = a0 * b1 + (middle & LOW)
    return a1 * b1 + (middle >> HALF) + (rest >> HALF)


# ---- references


def _key(state: Any) -> tuple[int, int]:
    seed, serial = devices.move(state, "cpu")
    return int(seed), int(serial)


def _unit(count: int, dtype: Any, state: Any) -> Any:
    return uniform(*_key(state), count, double=dtype == dtypes.float64)


def _uniform(xp: Any, state: Any, shape: Shape, dtype: Any, low: float, high: float) -> Any:
    u = _unit(math.prod(shape), dtype, state)
    return xp.asarray((u.dtype.type(low) + u.dtype.type(high - low) * u).astype(dtype).reshape(shape))


def _normal(xp: Any, state: Any, shape: Shape, dtype: Any, mean: float, std: float) -> Any:
    """Transforms each pair of uniform numbers into a pair of normal numbers (Box & Muller 1958)."""
    count = math.prod(shape)
    u = _unit(count + count % 2, dtype, state).reshape(-1, 2).astype(np.float64)
    radius, angle = np.sqrt(-2 * np.log1p(-u[:, 0])), 2 * np.pi * u[:, 1]
    z = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)[:count]
    return xp.asarray((mean + std * z).astype(dtype).reshape(shape))


def _truncated_normal(xp: Any, state: Any, shape: Shape, dtype: Any, mean: float, std: float, low: float, high: float) -> Any:
    """Applies the inverse distribution function to each uniform number, so that no number is rejected."""
    start, end = math.erf(low * math.sqrt(0.5)), math.erf(high * math.sqrt(0.5))
    u = _unit(math.prod(shape), dtype, state).astype(np.float64)
    z = np.clip(math.sqrt(2.0) * special(np, "erfinv")(start + (end - start) * u), low, high)
    return xp.asarray((mean + std * z).astype(dtype).reshape(shape))


def check_bounds(low: float, high: float, dtype: Any) -> None:
    """Raises PullbackError if low is not below high, or if too few numbers of the dtype lie between their probabilities."""
    if not low < high:
        raise PullbackError(f"truncated_normal: low={low} must be less than high={high}; both count in standard deviations.")
    near, far = sorted((abs(low), abs(high)))
    share = math.erfc(near * math.sqrt(0.5)) - math.erfc(far * math.sqrt(0.5))  # of the numbers on that side of the mean
    double = dtype == dtypes.float64
    if low * high > 0 and near > 2 and share < 1024 * 2.0 ** (-53 if double else -24):
        raise PullbackError(
            f"truncated_normal: [low, high] = [{low}, {high}] holds {share / 2:.1g} of the distribution, too little for "
            f"{'float64' if double else 'float32'} arithmetic to tell numbers in it apart. "
            f"{'' if double else 'dtype=pb.float64 reaches further, and '}scipy.stats.truncnorm draws from any tail."
        )


def _bernoulli(xp: Any, state: Any, shape: Shape, p: float) -> Any:
    return xp.asarray((_unit(math.prod(shape), dtypes.float32, state) < np.float32(p)).reshape(shape))


def _randint(xp: Any, state: Any, shape: Shape, dtype: Any, low: int, high: int) -> Any:
    """Scales 64-bit words to the range without rejection. The bias is below (high - low) / 2^64."""
    scaled = multiply_high(pairs(*_key(state), math.prod(shape)), high - low)
    return xp.asarray((scaled + np.uint64(low % 2**64)).astype(np.int64).astype(dtype).reshape(shape))


def _permutation(xp: Any, state: Any, count: int) -> Any:
    """Returns the permutation that sorts `count` 64-bit words. Equal words, which practically never occur, keep their order."""
    return xp.asarray(np.argsort(pairs(*_key(state), count), kind="stable").astype(np.int64))


def _dropout(xp: Any, x: Any, state: Any, p: float) -> Any:
    keep = xp.asarray((_unit(x.size, dtypes.float32, state) >= np.float32(p)).reshape(x.shape))
    wide = x.astype(xp.float32) if x.dtype.itemsize == 2 else x
    return xp.where(keep, wide * wide.dtype.type(1 / (1 - p)), xp.zeros_like(wide)).astype(x.dtype)


# ---- a batch axis


def _draw_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Draws different numbers for each example. All examples have the same state, so the first one serves for the whole batch."""
    return apply(op, (xs[0][0],), shifted(op, size, params))


def _shuffle_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """For permutation(state, count): returns, for each example, the order that sorts uniform random numbers."""
    numbers = apply(draw_uniform, (xs[0][0],), ((size, params[0]), dtypes.float64, 0.0, 1.0))
    return argsort(numbers, axis=1)


def _drop_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """For dropout(x, state, p): draws one mask per example if the state is batched, otherwise one mask for all examples."""
    x, state = xs
    if on[1]:
        return apply(op, (x if on[0] else spread(x, size), state[0]), tuple(params))
    return x * apply(op, (ones(x.shape[1:], dtype=x.dtype, device=x.device), state), tuple(params))


# ---- ops

STATE_BYTES = 16


def _counted(adds: int, multiplies: int, special: int, bounds: int = 0) -> Any:
    """Returns the cost of a draw from its work per pair of floating-point numbers. Drawing the words is integer arithmetic.

    One counter gives four numbers, or two 64-bit ones, and all of them are computed. bounds: multiplications and special ops
    per counter, which compute the limits of the range.
    """

    def cost(*values: Any) -> dict[str, int]:
        wide = values[-1].dtype.itemsize == 8
        counters = -(-values[-1].size // (2 if wide else 4))
        pairs = counters * (1 if wide else 2)
        return {
            "adds": adds * pairs, "multiplies": multiplies * pairs + bounds * counters,
            "special_ops": special * pairs + bounds * counters, "bytes_read": STATE_BYTES,
        }

    return cost


def _draws(name: str, reference: Any, work: tuple[int, ...], batch: Any = _draw_each) -> Any:
    return op(name, kind=OWN, reference=reference, cost=_counted(*work), batch=batch)


draw_uniform = _draws("uniform", _uniform, (2, 4, 0))
draw_normal = _draws("normal", _normal, (3, 7, 4))
draw_truncated = _draws("truncated_normal", _truncated_normal, (6, 8, 2, 2))
draw_bernoulli = _draws("bernoulli", _bernoulli, (0, 2, 0))
draw_randint = _draws("randint", _randint, (0, 0, 0))
draw_permutation = _draws("permutation", _permutation, (0, 0, 0), _shuffle_each)
drop = op("dropout", kind=LINEAR, reference=_dropout, takes="float", inputs=2, batch=_drop_each,
           example=normal((3, 5), np.array([7, 1], np.uint64), params=(0.3,)),
           cost=lambda x, state, p, y: {"multiplies": y.size + -(-y.size // 4) * 4, "bytes_read": distinct_bytes(x) + STATE_BYTES},
           pullback=(lambda g, state, p: apply(drop, (g, state), (p,)), None))
