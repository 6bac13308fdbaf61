"""Random calls of attention, like those of random_calls.py."""

from __future__ import annotations

from typing import Any

import pullback as pb
from conftest import FLOATS
from pullback.ops.attention import attention as attend
from random_calls import Call, tensor, with_gradients


def attention(rng: Any) -> None:
    """Runs attention with gradients and tangents of some operands; heads may share keys, and masks broadcast."""
    dtype, causal = rng.choice(FLOATS), bool(rng.random() < 0.5)
    groups, shared = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    queries, keys = [
        int(rng.integers(0 if rng.random() < 0.1 else 1, rng.choice([6, 40, 300], p=[0.5, 0.4, 0.1]))) for _ in range(2)
    ]
    width, out = [int(rng.integers(1, rng.choice([4, 20, 70]))) for _ in range(2)]
    q, k, v = [
        tensor(rng, (2, n, length, d), dtype)
        for n, length, d in ((groups * shared, queries, width), (groups, keys, width), (groups, keys, out))
    ]
    shape = tuple([n if rng.random() < 0.6 else 1 for n in (2, groups * shared, queries, keys)])
    mask = [None, pb.tensor(rng.random(shape) < 0.8), tensor(rng, shape, dtype)][int(rng.integers(3))]
    kept = [x if rng.random() < 0.7 else None for x in (q, k, v)]
    given = [x for x in kept if x is not None] or [q]

    def run(*xs: Any) -> Any:
        found = iter(xs)
        ours = [next(found) if any([x is y for y in given]) else x for x in (q, k, v)]
        return attend(*ours, mask, causal, 0.3)

    with_gradients(rng, run, *given)
    floats = [q, k, v, *([mask] if mask is not None and mask.dtype == q.dtype else [])]
    moves = rng.random(len(floats)) < 0.6
    moves[rng.integers(len(floats))] = True
    tangents = [tensor(rng, x.shape, dtype) if moved else None for x, moved in zip(floats, moves)]
    pb.jvp(lambda *xs: attend(*xs, *[mask][len(xs) - 3 :], causal, 0.3), floats, tangents)


ATTENTION: dict[str, Call] = {"attention": attention}
