"""Times of two libraries in turns, so that what changes on the machine changes for both; medians and quartiles."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

ROUNDS = 9
SECONDS = 0.04  # of one measurement: long enough that waiting for the device at its end does not count

Run = Callable[[], Any]


def seconds(run: Run, finish: Run, count: int) -> float:
    """The time of one of `count` runs, from an idle device until the last is done."""
    finish()
    begin = time.perf_counter()
    for _ in range(count):
        run()
    finish()
    return (time.perf_counter() - begin) / count


def count_for(run: Run, finish: Run, budget: float) -> int:
    """How many runs take about that long; warms up on the way."""
    run()
    count = 1
    while (taken := seconds(run, finish, count) * count) < budget / 2 and count < 100_000:
        count = max(2 * count, min(int(count * budget / max(taken, 1e-9)), 100 * count))
    return max(1, int(count * budget / max(taken, 1e-9))) if taken > budget else count


def summary(values: list[float]) -> dict[str, float]:
    """The median and the quartiles."""
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": median, "q1": q1, "q3": q3}


def compare(
    ours: Run, finish: Run, theirs: Run | None = None, their_finish: Run | None = None, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Microseconds of both, taken in turns, and the ratio ours / theirs of each turn."""
    budget = SECONDS if rounds > 2 else SECONDS / 10
    counts = [count_for(ours, finish, budget)]
    if theirs is not None and their_finish is not None:
        counts.append(count_for(theirs, their_finish, budget))
    mine, other = [], []
    for _ in range(rounds):
        mine.append(seconds(ours, finish, counts[0]) * 1e6)
        if theirs is not None and their_finish is not None:
            other.append(seconds(theirs, their_finish, counts[1]) * 1e6)
    result: dict[str, Any] = {"ours_us": summary(mine), "runs_a_round": counts, "rounds": rounds}
    if other:
        result["theirs_us"] = summary(other)
        result["ratio"] = summary([a / b for a, b in zip(mine, other)])
    return result
