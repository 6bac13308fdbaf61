"""The recording that a captured function used last, which the next call tries first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..autodiff.listeners import listeners
from ..backends import modes
from ..launch import capturing
from ..launch.refusal import Refused
from ..tensors import devices
from .replay import Replay


class Quick(NamedTuple):
    """The last used recording, for calls whose arguments are all tensors.

    Such a call needs no signature, because the kernel module itself compares the arguments with the recorded ones.
    """

    replay: Replay
    arguments: int
    device: str
    rounding: tuple[str, str]

    def serves(self, args: Sequence[Any]) -> bool:
        """True if the recording is valid for these arguments, except that shapes, dtypes and layouts remain to be compared."""
        return len(args) == self.arguments and not listeners.differentiates and not listeners.batches and self._holds()

    def replays(self, arrays: Sequence[Any]) -> bool:
        """Replays a recording that is `plain` on these arrays, without results, whatever listens. Returns False, and runs nothing,
        if it is not valid for them. An array may be None, for which no recording is valid.
        """
        if len(arrays) != self.arguments or not self._holds():
            return False
        try:
            self.replay.run_plain(arrays)
        except Refused:  # An array is None, or its shape, dtype or layout differs.
            return False
        return True

    def _holds(self) -> bool:
        return (
            capturing.thread.recording is None
            and devices.default_device() == self.device
            and modes.rounding() == self.rounding
            and self.replay.holds()
        )
