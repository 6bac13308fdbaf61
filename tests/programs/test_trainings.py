"""In the mode "everywhere" whole trainings end with the same bits on every device, with any number of threads and in every way.

The ways are eager, captured, and several steps in one captured call. Hashes are compared after every 20 of 200 steps. With
PULLBACK_TRAININGS=long more networks, optimizers and dtypes run, in every way and with 1, 2 and 4 threads, which takes the
simulated device more than an hour. Plans of `fusion="fast"` are not compared, because they may change the order of roundings.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

import pullback as pb
from same_bits import Configuration, places
from trainings import LONG, TRAININGS, WAYS

REASON = pb.config.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f'"everywhere" is not possible here: {REASON}')

Run = tuple[Configuration, str]


def runs() -> list[Run]:
    """Returns the configurations and the ways to run each: all of both in a long run, otherwise each at least once."""
    if LONG:
        return [(Configuration(place, n), ",".join(WAYS)) for place in sorted(places()) for n in (1, 2, 4)]
    levels = [place for place in places() if place != "cuda"]
    chosen = [(Configuration(levels[0], 1), "eager"), (Configuration(levels[-1], 2), "eager,steps")]
    chosen += [(Configuration(levels[-1], 4), "captured"), (Configuration(levels[0], 4), "steps")]
    return [(Configuration("cuda", 1), "captured")] * ("cuda" in places()) + chosen


def test_a_training_ends_with_the_same_bits_everywhere() -> None:
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        lines = list(pool.map(lambda run: run[0].lines("trainings.py", run[1]), runs()))
    found: dict[tuple[str, ...], dict[str, list[str]]] = {training: {} for training in TRAININGS}
    for (configuration, _), results in zip(runs(), lines):
        for training, way, hashes, first, last in results:
            assert last < first, f"{training} does not train: {first}, {last}"
            found[tuple(training)][f"{configuration.place}, {configuration.threads} threads, {way}"] = hashes
    wrong = []
    for training, results in found.items():
        (name, wanted), *others = results.items()
        assert len(others) > 2
        for other, hashes in others:
            part = next((k for k, (a, b) in enumerate(zip(wanted, hashes, strict=True)) if a != b), None)
            if part is not None:
                wrong.append(f"{', '.join(filter(None, training))}: [{name}] and [{other}] differ from hash {part} on")
    assert not wrong, "\n".join(wrong)
