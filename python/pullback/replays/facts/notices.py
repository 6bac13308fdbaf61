"""What the user is told about the facts of a captured function: warnings, and the error for what a run leaves behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Final

from ...autodiff.site import warn
from ...errors import CaptureError
from .behind import Behind
from .facts import Facts

OFTEN: Final = 3  # recordings that one fact has caused, before the user is told


class Notices:
    """Counts what happens to the recordings of one captured function, whose name for messages is `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changes: Counter[str] = Counter()
        self._warned: set[str] = set()
        self._left: set[Hashable] = set()  # the signatures whose last recording left something behind

    def changed(self, before: Sequence[Facts]) -> None:
        """Warns, once, if the same fact has ended the validity of recordings again and again. before: those of this signature."""
        label = before[0].change() if before else None
        if label is None:
            return
        self._changes[label] += 1
        if self._changes[label] == OFTEN - 1 and label not in self._warned:
            self._warned.add(label)
            warn(
                f"{self._name} was recorded {OFTEN} times because {label} changed. Each value has its own recording, and each "
                f"recording costs a run without capture. Pass what changes from call to call as a tensor argument, or hold it in an "
                f"nn.Buffer and assign to it.",
                UserWarning,
            )

    def ended(self, signature: Hashable, behind: Behind) -> None:
        """Receives what a recording left behind. Raises CaptureError if the one before it left something behind, too."""
        if behind.reasons:
            if signature in self._left:
                raise CaptureError(self._refusal(behind))
            self._left.add(signature)
            return
        self._left.discard(signature)
        for label in behind.counted:
            if label not in self._warned:
                self._warned.add(label)
                warn(
                    f"{label} is counted in {self._name} and stands still in replays. Count outside, or hold the count in an "
                    f"nn.Buffer and assign to it.",
                    UserWarning,
                )

    def _refusal(self, behind: Behind) -> str:
        first, remedy = behind.reasons[0]
        others = [what for what, _ in behind.reasons[1:4]]
        more = f" Also: {'; '.join(others)}." if others else ""
        return f"{self._name} does in each call what a replay could not repeat: {first}. {remedy}{more}"
