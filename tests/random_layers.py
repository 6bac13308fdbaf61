"""Random calls of pools and of norms of channels, for tests/random_calls.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback import nn
from pullback.nn import functional

Calls = dict[str, Callable[[Any], None]]


def layers(tensor: Callable[..., Any], run: Callable[..., None]) -> dict[str, Calls]:
    """Returns families of functions that call an op and its pullback.

    tensor(rng, shape, dtype) draws a tensor, and run(rng, f, *xs) calls f and pulls a cotangent back.
    """
    return {"pools": pools(tensor, run), "channels": channels(tensor, run)}


def channels(tensor: Callable[..., Any], run: Callable[..., None]) -> Calls:
    def norm(over_batch: bool) -> Callable[[Any], None]:
        def call(rng: Any) -> None:
            groups, each = rng.integers(1, 4, 2).tolist()
            space = [] if rng.random() < 0.3 else [int(rng.integers(1, rng.choice([4, 20, 300])))]
            each += space in ([], [1])  # the elements of a group that are equal are measured twice
            x = tensor(rng, (int(rng.integers(2, rng.choice([4, 30]))), groups * each, *space))
            vectors = [tensor(rng, (groups * each,), str(x.dtype)) if rng.random() < 0.7 else None for _ in range(2)]

            def f(x: Any, *given: Any) -> Any:
                left = iter(given)
                w, b = [None if v is None else next(left) for v in vectors]
                return functional.batch_norm(x, None, None, w, b, True) if over_batch else functional.group_norm(x, groups, w, b)

            run(rng, f, x, *[v for v in vectors if v is not None])

        return call

    def moving(rng: Any) -> None:
        """Calls a batch norm that moves running values, of which one may be missing."""
        count = int(rng.integers(1, 7))
        x = tensor(rng, (int(rng.integers(2, rng.choice([4, 30]))), count, int(rng.integers(1, rng.choice([4, 300])))))
        momentum = None if rng.random() < 0.5 else 0.1
        layer = nn.BatchNorm1d(count, momentum=momentum, affine=bool(rng.integers(2)), dtype=x.dtype)
        missing = rng.choice(["running_mean", "running_var", "weight", "bias", "none"])
        if missing != "none":
            setattr(layer, missing, None)
        layer(x)

    return {"batch_norm": norm(True), "group_norm": norm(False), "moving": moving}


def pools(tensor: Callable[..., Any], run: Callable[..., None]) -> Calls:
    """The windows leave no gaps, so that every element is read."""

    def planes(rng: Any, sizes: list[int]) -> Any:
        lead = rng.integers(1, 5, int(rng.integers(1, 3))).tolist()
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
