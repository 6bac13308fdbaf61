"""What runs in a captured function tells the recording of its thread: what a replay has to repeat beside kernels, and what none
could repeat.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from .errors import CaptureError
from .site import call_site, line_of


class Recording(Protocol):
    """What `capture.py` makes of a run of the function."""

    def repeat(self, effect: Callable[[], None]) -> None:
        """Every replay calls effect() after the launches before this."""
        ...

    def grows(self, storage: Any) -> None:
        """Every replay changes the memory of this Storage here, as the run did: its version grows."""
        ...

    def guard(self, key: Any, holds: Callable[[], bool]) -> None:
        """The recording is good as long as holds(); one for each key is enough."""
        ...

    def random_state(self, generator: Any, state: dict[str, int], device: str) -> Any:
        """[seed, serial] of a draw, which every replay moves on."""
        ...


class _Thread(threading.local):
    recording: Recording | None = None


thread: Final = _Thread()

changes = 0  # of what recordings rely on without asking: where Parameters are, and which Modules have


def tell_change(what: str, instead: str) -> None:
    """Recordings made before do not hold any more. Raises CaptureError inside one."""
    global changes
    refuse(what, instead)
    changes += 1


def refuse(what: str, instead: str) -> None:
    """Raises CaptureError, naming the user's line, inside a captured function."""
    if thread.recording is not None:
        raise CaptureError(f"{what} inside a captured function, at {line_of(call_site())}: a replay could not repeat it. {instead}")


def repeat(effect: Callable[[], None]) -> None:
    """Inside a captured function: every replay calls effect(), too."""
    if thread.recording is not None:
        thread.recording.repeat(effect)
