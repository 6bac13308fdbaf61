"""Reports to the recording of a thread, made by code that runs in a captured function.

This code reports the side effects that a replay has to repeat in addition to the kernels, and refuses what a replay could not
repeat. A run on shapes alone (profiling/flops.py) receives the same reports.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from ..autodiff.site import call_site, line_of

T = TypeVar("T")


class Objects(Protocol):
    """The living Modules and Parameters that a run has made (`Made`)."""

    def add(self, x: Any) -> None: ...
    def __contains__(self, x: object) -> bool: ...


class Recording(Protocol):
    """The record of one run of the function."""

    @property
    def made(self) -> Objects:
        """The Modules and Parameters that the run has made."""
        ...

    @property
    def opaque(self) -> bool:
        """True if launches that are not native kernels may run."""
        ...

    @property
    def rereads(self) -> bool:
        """True if each replay reads the arrays anew that the run reads from outside."""
        ...

    @property
    def keeps(self) -> bool:
        """True if values of the run are kept for a backward pass that is not part of it."""
        ...

    def refusal(self, what: str, line: str, instead: str) -> Exception:
        """Returns the error for an action that the function must not perform."""
        ...

    def increments(self, owner: Any, name: str) -> None:
        """Receives that the run has added one to an attribute of this object. Every replay does the same at this point."""
        ...

    def guard(self, key: Any, holds: Callable[[], bool]) -> None:
        """Adds a condition: the recording is valid as long as holds() is True. Only one condition per key is kept."""
        ...

    def mode(self, module: Any) -> None:
        """Adds a condition: the recording is valid as long as this Module has the mode that it has now."""
        ...

    def sets(self, owner: Any, name: str) -> None:
        """Receives that pullback sets an attribute of this object for a time, so that its present value is no condition."""
        ...

    def fact(self, owner: Any, name: str) -> None:
        """Adds the condition that an attribute of this object, which pullback reads for the user, is what it is now."""
        ...

    def note(self, tensor: Any) -> None:
        """Receives a tensor that the run has just made."""
        ...

    def prepare(self, key: Any, action: Callable[[], object]) -> None:
        """Makes every replay call action() before it runs. Only one action per key is kept."""
        ...

    def repeats(self, check: Callable[[], None]) -> None:
        """Adds a check that is called at the end of the run if one call repeats it without a look at the conditions of `guard`."""
        ...

    def reads(self, storage: Any) -> None:
        """Receives that the run reads a view made outside of it. The recording is valid until the view becomes stale."""
        ...

    def random_state(self, generator: Any, state: dict[str, int], device: str) -> Any:
        """Returns the [seed, serial] of a draw of random numbers; every replay advances it."""
        ...


class Attempt(Protocol):
    """A run whose effects may be undone, after which the function runs again."""

    def keep(self, p: Any) -> None:
        """Receives a Parameter or Buffer before its values change in place."""
        ...

    def made(self) -> None:
        """Receives that a Parameter is being made. May raise an exception that ends the run."""
        ...

    def step(self) -> None:
        """Receives that state is about to change which cannot be restored. May raise an exception that ends the run."""
        ...


class _Thread(threading.local):
    recording: Recording | None = None
    attempt: Attempt | None = None


thread: Final = _Thread()
running: Final[set[Recording]] = set()  # the recordings of captured functions that run now, in all threads

if hasattr(os, "register_at_fork"):  # The other threads do not exist in a forked process.
    os.register_at_fork(after_in_child=lambda: running.intersection_update({thread.recording} - {None}))

changes = 0  # number of changes to facts that recordings assume: where Parameters are in memory, which ones Modules have


_young: Final[WeakValueDictionary[int, Any]] = WeakValueDictionary()  # by id, what was made since the last recording began


def made(x: T) -> T:
    """Receives a Module or Parameter that was just made, and returns it.

    Until the next recording begins, no recording can have seen it, unless one runs now.
    """
    if thread.recording is not None:
        if thread.attempt is not None and hasattr(x, "storage"):
            thread.attempt.made()
        thread.recording.made.add(x)
    elif not running:
        _young[id(x)] = x
    return x


def note(tensor: Any) -> None:
    """Tells the recording of this thread, if there is one, that a tensor was made. Tensors that kernels make need no call."""
    if thread.recording is not None:
        thread.recording.note(tensor)


def makes(x: object) -> bool:
    """True if this was made by the run of a captured function that is being recorded. Every replay makes it and changes it anew."""
    return thread.recording is not None and x in thread.recording.made


def begin(recording: Recording) -> None:
    """Receives that a recording of a captured function begins in this thread."""
    running.add(recording)
    thread.recording = recording
    _young.clear()


def tell_change(what: str, instead: str, of: object, value: object = None) -> None:
    """Invalidates all earlier recordings, unless none can have seen the object that changes, because it is too young.

    Raises CaptureError inside a captured function, unless it has made the object, or the value that the object gets. Such a value
    is left behind, which the end of the recording notices.
    """
    global changes
    if makes(of):
        return
    if not makes(value):
        refuse(what, instead)
    if running or _young.get(id(of)) is not of:
        changes += 1


def refuse(what: str, instead: str) -> None:
    """Raises the recording's error, which names the user's line, if called inside a captured function."""
    if thread.recording is not None:
        raise thread.recording.refusal(what, line_of(call_site()), instead)


def refuse_opaque(what: str, instead: str) -> None:
    """Like `refuse`, but only if the recording does not allow launches that are not native kernels."""
    if thread.recording is not None and not thread.recording.opaque:
        refuse(what, instead)


def keep(p: Any) -> None:
    """Tells an attempt that the values of a Parameter or Buffer are about to change in place."""
    if thread.attempt is not None:
        thread.attempt.keep(p)


def step() -> None:
    """Tells an attempt that an optimizer, or what belongs to one, is about to change its state."""
    if thread.attempt is not None:
        thread.attempt.step()


def increment(owner: Any, name: str) -> None:
    """Adds one to an attribute of this object. Inside a captured function every replay adds one, too."""
    setattr(owner, name, getattr(owner, name) + 1)
    if thread.recording is not None:
        thread.recording.increments(owner, name)
