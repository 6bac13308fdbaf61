"""Times calls: medians and quartiles of rounds, each so long that the final wait for the device does not count."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

Run = Callable[[], Any]


class Effort(NamedTuple):
    """The size of a measurement: the number of rounds, and the seconds per round."""

    rounds: int
    seconds: float


FULL, DRY = Effort(9, 0.04), Effort(1, 0.002)


def seconds(run: Run, finish: Run, count: int) -> float:
    """Returns the seconds per call of `count` calls, from an idle device until the last call is done."""
    finish()
    begin = time.perf_counter()
    for _ in range(count):
        run()
    finish()
    return (time.perf_counter() - begin) / count


def count_for(run: Run, finish: Run, budget: float) -> int:
    """Returns the number of calls that take about `budget` seconds, and warms up at the same time."""
    run()
    count = 1
    while (taken := seconds(run, finish, count) * count) < budget / 2 and count < 100_000:
        count = max(2 * count, min(int(count * budget / max(taken, 1e-9)), 100 * count))
    return max(1, int(count * budget / max(taken, 1e-9))) if taken > budget else count


def summary(values: list[float]) -> dict[str, float]:
    """Returns the median and the quartiles."""
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": median, "q1": q1, "q3": q3}


def measure(run: Run, finish: Run, effort: Effort, steps: int = 1) -> dict[str, Any]:
    """Returns the microseconds per step, if one call does `steps` steps, and the number of calls per round."""
    count = count_for(run, finish, effort.seconds)
    values = [seconds(run, finish, count) * 1e6 / steps for _ in range(effort.rounds)]
    return {"us": summary(values), "calls_a_round": count, "rounds": effort.rounds}
