"""Philox4x32-10 in NumPy: the numbers of csrc/math/random.h, bit for bit.

A counter-based generator (Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"): block k of
call `serial` is a function of (seed, serial, k) alone, so any element can be computed anywhere, in any order.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL: Final = (0x9E3779B9, 0xBB67AE85)
ROUNDS: Final = 10
LOW: Final = np.uint64(0xFFFFFFFF)
HALF: Final = np.uint64(32)


def philox(c: Any, key: tuple[int, int]) -> Any:
    """Four arrays of words from four counter arrays (uint64 holding 32 bits) and a key of two words."""
    k0, k1 = key
    for _ in range(ROUNDS):
        a, b = MULTIPLIERS[0] * c[0], MULTIPLIERS[1] * c[2]
        c = ((b >> HALF) ^ c[1] ^ np.uint64(k0), b & LOW, (a >> HALF) ^ c[3] ^ np.uint64(k1), a & LOW)
        k0, k1 = (k0 + WEYL[0]) & 0xFFFFFFFF, (k1 + WEYL[1]) & 0xFFFFFFFF
    return c


def words(seed: int, serial: int, count: int) -> Any:
    """The first `count` 32-bit words of a call, as uint32; word i is word i % 4 of block i // 4."""
    blocks = -(-count // 4)
    k = np.arange(blocks, dtype=np.uint64)
    serials = [np.full(blocks, part, np.uint64) for part in (serial & 0xFFFFFFFF, serial >> 32)]
    y = philox((k & LOW, k >> HALF, *serials), (seed & 0xFFFFFFFF, seed >> 32))
    return np.stack(y, axis=1).reshape(-1)[:count].astype(np.uint32)


def pairs(seed: int, serial: int, count: int) -> Any:
    """The first `count` 64-bit words of a call, two of each block, as uint64."""
    w = words(seed, serial, 2 * count).astype(np.uint64).reshape(-1, 2)
    return w[:, 1] << HALF | w[:, 0]


def uniform(seed: int, serial: int, count: int, double: bool = False) -> Any:
    """Multiples of 2^-24 (float32), or of 2^-53 (float64) where `double`, in [0, 1)."""
    if double:
        return (pairs(seed, serial, count) >> np.uint64(11)) * 2.0**-53
    return (words(seed, serial, count) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def multiply_high(a: Any, b: int) -> Any:
    """The upper 64 bits of a product of uint64 and an integer below 2^64."""
    a0, a1, b0, b1 = a & LOW, a >> HALF, np.uint64(b & 0xFFFFFFFF), np.uint64(b >> 32)
    middle = a1 * b0 + ((a0 * b0) >> HALF)
    rest = a0 * b1 + (middle & LOW)
    return a1 * b1 + (middle >> HALF) + (rest >> HALF)
