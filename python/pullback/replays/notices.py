"""What the user is told about the recordings of a captured function: warnings, and the error for what a run leaves behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, Final

from ..autodiff.site import warn
from ..errors import CaptureError
from .facts.behind import Behind
from .facts.facts import Facts
from .signature import changed_float, difference

OFTEN: Final = 3  # recordings that one fact, or one float among the arguments, has caused, before the user is told


class Notices:
    """Counts what happens to the recordings of one captured function, whose name for messages is `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changes: Counter[str] = Counter()
        self._warned: set[str] = set()
        # By signature, the facts as the last recording left them, if it left something behind, and how many recordings did.
        self._left: dict[Hashable, tuple[Facts, int]] = {}
        self._floats = 0  # how many recordings in a row differ from the one before in the value of a float only

    def _warn_once(self, key: str, text: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warn(text, UserWarning)

    def full(self, before: Any, now: Any, cache: int) -> None:
        """Warns, once, that a recording was forgotten. before, now: the last two signatures."""
        self._warn_once(
            "full",
            f"{self._name} has been recorded for more than {cache} signatures: {difference(before, now)}. Each costs a run without "
            f"capture; the oldest is forgotten. Pad to fewer shapes, pass numbers that change as tensors, or raise cache=.",
        )

    def full_of_kinds(self, cache: int) -> None:
        """Warns, once, that the recordings for one kind of listeners were forgotten."""
        self._warn_once(
            "full",
            f"{self._name} ran under more than {cache} kinds of tapes and transforms: batches of other sizes, or other watched "
            f"arguments. Each costs a recording; the oldest is forgotten. Use fewer sizes, or raise cache=.",
        )

    def recorded(self, before: Any, now: Any) -> None:
        """Warns, once, when float arguments alone have caused OFTEN recordings in a row. before, now: the last two signatures."""
        value = changed_float(before, now)
        self._floats = self._floats + 1 if value is not None else 1
        if self._floats == OFTEN:
            self._warn_once(
                "float",
                f"{self._name} was recorded {OFTEN} times in a row for other values of a float: {difference(before, now)}. Each "
                f"value has its own recording. Pass a tensor of the dtype that you compute in, pb.tensor({value}, pb.float32): "
                f"every replay reads it. An option that must be a number, such as eps, refuses tensors. If there are few values, "
                f"keep it as it is; otherwise compute with the tensor outside of that option.",
            )

    def changed(self, before: Sequence[Facts]) -> None:
        """Warns, once, if the same fact has ended the validity of recordings again and again. before: those of this signature."""
        label = before[0].change() if before else None
        if label is None:
            return
        self._changes[label] += 1
        if self._changes[label] == OFTEN - 1:
            self._warn_once(
                label,
                f"{self._name} was recorded {OFTEN} times because {label} changed. Each value has its own recording, which costs "
                f"a run without capture. If there are few values, keep it as it is. A number that changes in each call is best "
                f"passed as a tensor, or held in an nn.Buffer and assigned to; a flag that depends on a count, as a bool argument.",
            )

    def repeats(self, signature: Hashable) -> bool:
        """True if the last recording left something behind, and nothing that it read has changed since."""
        left = self._left.get(signature)
        return left is not None and left[0].change() is None

    def ended(self, signature: Hashable, behind: Behind, repeated: bool) -> None:
        """Receives what a recording left behind. Raises CaptureError if it `repeated` one that left something behind, too."""
        if behind.reasons:
            if repeated:
                raise CaptureError(self._refusal(behind))
            times = self._left.get(signature, (None, 0))[1] + 1
            self._left[signature] = behind.after or Facts(), times
            if times == OFTEN:
                self._warn_once(
                    "left",
                    f"{self._name} was recorded {OFTEN} times without a replay: each time {behind.reasons[0][0]}, and something "
                    f"else changes from call to call. {behind.reasons[0][1]}",
                )
            return
        self._left.pop(signature, None)
        if behind.drew:
            self._warn_once(
                "drew",
                f"random numbers of NumPy or Python were drawn while {self._name} was recorded. If it draws them, they are "
                f"constants in replays: use pb.random, whose numbers every replay draws anew.",
            )
        for label in behind.counted:
            self._warn_once(
                label,
                f"{label} is counted in {self._name} and stands still in replays. Count outside, or hold the count in an nn.Buffer "
                f"and assign to it.",
            )

    def _refusal(self, behind: Behind) -> str:
        first, remedy = behind.reasons[0]
        others = [what for what, _ in behind.reasons[1:4]]
        more = f" Also: {'; '.join(others)}." if others else ""
        return (
            f"{self._name} does in each call what a replay could not repeat: {first}. {remedy}{more} This call has run, and "
            f"what it has changed stays."
        )
