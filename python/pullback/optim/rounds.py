"""The counts of an Accumulator, which are facts of the host, and how a recording of a captured function depends on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import ref

from ..errors import CaptureError
from ..launch import capturing


class AccumulatorStats(NamedTuple):
    """The counts of an Accumulator.

    Attributes:
        accepted: the number of gradients that were added since the start.
        dropped: the number of stale gradients that were left out.
        pending: the number of accepted gradients that wait for `take`.
    """

    accepted: int
    dropped: int
    pending: int


class _Tally:
    """Counts the gradients that came for the same set of parameters. Both counts only grow, as a replay can only increment."""

    def __init__(self) -> None:
        self.given = self.taken = 0


Waiting = dict[int, int]  # how many gradients wait, by the set of parameters that they are for: bit i stands for parameter i
Event = Callable[["_Round"], bool]  # repeats what the run did; False if it would have taken another way


class _Round:
    """The counts that decide, as a replay would find and change them."""

    def __init__(self, waiting: Waiting, step: int) -> None:
        self.waiting, self.step = waiting, step


class Rounds:
    """Counts gradients and updates. A captured function that changes the counts makes every replay change them, too.

    What the function does depends on the counts: whether there are enough gradients, which parameters have one, whether a gradient
    is stale. So a recording is valid only where the same calls would have the same answers.
    """

    def __init__(self, every: int) -> None:
        self.step = self.dropped = 0
        self._every = every
        self._tallies: dict[int, _Tally] = {}
        self._recording: Callable[[], Any] = lambda: None  # that of the last run that was recorded
        self._events: list[Event] = []  # of that run

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_recording": None, "_events": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _recording=lambda: None)

    def waiting(self) -> Waiting:
        counts = {mask: tally.given - tally.taken for mask, tally in self._tallies.items()}
        return {mask: count for mask, count in counts.items() if count}

    def stats(self) -> AccumulatorStats:
        accepted = sum([tally.given for tally in self._tallies.values()])
        return AccumulatorStats(accepted, self.dropped, sum(self.waiting().values()))

    def present(self) -> int:
        """Returns the set of parameters that have a gradient, as bits."""
        found = 0
        for mask in self.waiting():
            found |= mask
        return found

    # ---- states

    def saved(self, names: Sequence[str]) -> dict[str, Any]:
        """Returns the counts, with the gradients that wait as lists of (count, names of their parameters)."""
        stats = self.stats()
        waiting = [[n, [name for i, name in enumerate(names) if mask >> i & 1]] for mask, n in sorted(self.waiting().items())]
        return {"step": self.step, "accepted": stats.accepted, "dropped": stats.dropped, "waiting": waiting}

    def restore(self, step: int, accepted: int, dropped: int, waiting: Waiting) -> None:
        """Replaces the counts. The tallies stay the same objects, because recordings increment them."""
        self.step, self.dropped = step, dropped
        done = accepted - sum(waiting.values())
        for mask in {0, *self._tallies, *waiting}:
            tally = self._tallies.setdefault(mask, _Tally())
            tally.given = waiting.get(mask, 0) + (done if mask == 0 else 0)
            tally.taken = done if mask == 0 else 0

    # ---- what happens

    def accept(self, mask: int, step: int | None) -> bool:
        """Counts a gradient for a set of parameters. Returns True if there are enough."""
        late, events = None if step is None else self.step - step, self._noted()
        capturing.increment(self._tallies.setdefault(mask, _Tally()), "given")
        full = self._full(self.waiting())
        events.append(lambda of: _as_late(of, step, late) and self._full(_one_more(of, mask)) == full)
        return full

    def drop(self, step: int | None) -> bool:
        """Counts a gradient that is left out. Returns True if there are enough nevertheless."""
        events, full = self._noted(), self._full(self.waiting())
        capturing.increment(self, "dropped")
        events.append(lambda of: step is not None and of.step > step and self._full(of.waiting) == full)
        return full

    def take(self) -> None:
        """Counts an update, which uses all gradients that wait."""
        events, waiting = self._noted(), self.waiting()
        for mask, count in waiting.items():
            for _ in range(count):
                capturing.increment(self._tallies[mask], "taken")
        capturing.increment(self, "step")
        events.append(lambda of: _take(of, waiting))

    def _full(self, waiting: Waiting) -> bool:
        return sum(waiting.values()) >= self._every

    # ---- recordings

    def _noted(self) -> list[Event]:
        """Returns the list of this run's events; outside a recording an empty one that nobody reads."""
        recording = capturing.thread.recording
        if recording is None:
            return []
        if self._recording() is not recording:
            self._recording, self._events = ref(recording), []
            events, before = self._events, self.waiting()
            recording.guard(self, lambda: self._holds(events))
            recording.repeats(lambda: self._refuse_repeats(before, events))
        return self._events

    def _holds(self, events: list[Event]) -> bool:
        """True if the calls of a run would have the same answers now."""
        of = _Round(self.waiting(), self.step)
        return all([event(of) for event in events])

    def _refuse_repeats(self, before: Waiting, events: list[Event]) -> None:
        """Raises CaptureError if a second run in a row could differ from the first."""
        if self.waiting() != before or not self._holds(events):
            raise CaptureError(
                f"capture(steps=...): an Accumulator had {sum(before.values())} pending gradients at the beginning of a step and "
                f"{sum(self.waiting().values())} at its end, or the step used acc.step. The steps of one call must be alike: "
                f"add and take all gradients of an update in one step, without step=; or capture the function without steps=."
            )


def _as_late(of: _Round, step: int | None, late: int | None) -> bool:
    return step is None or of.step - step == late


def _one_more(of: _Round, mask: int) -> Waiting:
    of.waiting[mask] = of.waiting.get(mask, 0) + 1
    return of.waiting


def _take(of: _Round, waiting: Waiting) -> bool:
    same = of.waiting == waiting
    of.waiting, of.step = {}, of.step + 1
    return same
