"""What runs in a captured function tells the recording of its thread: what a replay has to repeat beside kernels, and what none
could repeat. A run on shapes alone (profile/flops.py) is told the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from ..autodiff.site import call_site, line_of


class Recording(Protocol):
    """What is made of a run of the function.

    Attributes:
        opaque: what is no native kernel may run.
    """

    opaque: bool

    def refusal(self, what: str, line: str, instead: str) -> Exception:
        """The error for what must not happen in the function."""
        ...

    def increments(self, owner: Any, name: str) -> None:
        """The run has added one to an attribute of this object, and so does every replay here."""
        ...

    def guard(self, key: Any, holds: Callable[[], bool]) -> None:
        """The recording is good as long as holds(); one for each key is enough."""
        ...

    def reads(self, storage: Any) -> None:
        """The run reads a view of this Storage that was made outside: the recording is good until the view is stale."""
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
    """Raises what the recording says, naming the user's line, inside a captured function."""
    if thread.recording is not None:
        raise thread.recording.refusal(what, line_of(call_site()), instead)


def refuse_opaque(what: str, instead: str) -> None:
    """The same for what is no native kernel."""
    if thread.recording is not None and not thread.recording.opaque:
        refuse(what, instead)


def increment(owner: Any, name: str) -> None:
    """Adds one to an attribute of this object, and inside a captured function so does every replay."""
    setattr(owner, name, getattr(owner, name) + 1)
    if thread.recording is not None:
        thread.recording.increments(owner, name)
