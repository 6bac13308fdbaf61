"""Random calls of pools, for tests/random_calls.py. The windows leave no gaps, so that every element is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.nn import functional

Run = Callable[..., None]


def pools(tensor: Callable[..., Any], run: Run) -> dict[str, Callable[[Any], None]]:
    """Returns functions that call a pool and its pullback.

    tensor(rng, shape) draws a tensor, and run(rng, f, x) calls f and pulls a cotangent back.
    """

    def planes(rng: Any, sizes: list[int]) -> Any:
        lead = rng.integers(1, 5, int(rng.integers(0, 3))).tolist()
        return tensor(rng, (*lead, *[int(n + rng.integers(0, rng.choice([3, 20, 60]))) for n in sizes]))

    def windowed(name: str) -> Callable[[Any], None]:
        def call(rng: Any) -> None:
            sizes = rng.integers(1, 6, 2).tolist()
            x = planes(rng, sizes)
            strides = [int(rng.integers(1, k + 1)) for k in sizes]
            paddings = [int(rng.integers(0, k // 2 + 1)) for k in sizes]
            how: dict[str, Any] = {"ceil_mode": True}  # so that the last elements are in a window
            if name == "avg_pool2d":
                how["count_include_pad"] = bool(rng.integers(2))
            run(rng, lambda x: getattr(functional, name)(x, sizes, strides, paddings, **how), x)
            if name == "max_pool2d":
                functional.max_pool2d(x, sizes, strides, paddings, ceil_mode=True, return_indices=True)

        return call

    def adaptive(rng: Any) -> None:
        counts = rng.integers(2, 6, 2).tolist()
        run(rng, lambda x: functional.adaptive_avg_pool2d(x, counts), planes(rng, counts))

    return {"max_pool2d": windowed("max_pool2d"), "avg_pool2d": windowed("avg_pool2d"), "adaptive": adaptive}
