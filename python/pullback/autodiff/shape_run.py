"""A run of Python code on shapes alone: its launches are recorded nowhere, and their kernels do not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..launch import capturing
from ..launch.made import Made
from ..tensors import devices
from .kept import Kept


class ShapeRun(Kept):
    """The recording of such a run (see `capturing.Recording`). Nothing replays it. It restores random generators at its end.

    A subclass says in `refusal` and `increments` what the code must not do.
    """

    keeps = rereads = False

    def __init__(self) -> None:
        self.made = Made()
        self._outer: Any = None
        self._generators: dict[Any, dict[str, int]] = {}

    @property
    def opaque(self) -> bool:
        """True: launches that are not native kernels may run."""
        return True

    def refusal(self, what: str, line: str, instead: str) -> Exception:
        """Returns the error for code that needs a value."""
        raise NotImplementedError

    def increments(self, owner: Any, name: str) -> None:
        """Receives that the run has added one to an attribute of this object."""
        raise NotImplementedError

    def guard(self, key: Any, holds: Callable[[], bool]) -> None:
        """Does nothing: no recording is kept that could become invalid."""

    def mode(self, module: Any) -> None:
        """Does nothing: no recording is kept that could become invalid."""

    def sets(self, owner: Any, name: str) -> None:
        """Does nothing: no recording is kept that could become invalid."""

    def fact(self, owner: Any, name: str) -> None:
        """Does nothing: no recording is kept that could become invalid."""

    def note(self, tensor: Any) -> None:
        """Does nothing: what the run leaves behind is its own affair."""

    def prepare(self, key: Any, action: Callable[[], object]) -> None:
        """Does nothing: no recording is kept that could be replayed."""

    def repeats(self, check: Callable[[], None]) -> None:
        """Does nothing: no run is repeated."""

    def reads(self, storage: Any) -> None:
        """Does nothing: no recording is kept that could read a stale view."""

    def random_state(self, generator: Any, state: dict[str, int], device: str) -> Any:
        """Returns memory for a state. The generator's own state is restored at the end."""
        self._generators.setdefault(generator, state)
        with devices.working(device):
            return devices.array_module(device).zeros(2, "uint64")

    def _begin(self) -> None:
        self._outer, capturing.thread.recording = capturing.thread.recording, self

    def _end(self) -> None:
        capturing.thread.recording = self._outer
        for generator, state in self._generators.items():
            generator.rewind(state)
