"""Storage: what a Parameter and its views share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from weakref import ref

from ..launch import capturing
from .attached import attached

if TYPE_CHECKING:
    from .tensor import Tensor


class Storage:
    """What a Parameter and its views share: the memory's version, and a number for where it is placed.

    `version` grows with every change in place, `placement` when the Parameter moves to other memory. `views` are weak references
    to the tensors that were made as views since the last change: the next change makes them stale (see `views.py`). `kind` is the
    name of the class of the Parameter, for messages.
    """

    __slots__ = ("__weakref__", "_forget", "kind", "name", "placement", "version", "views")

    def __init__(self, kind: str, name: str | None) -> None:
        self.kind = kind
        self.name = name
        self.version = 0
        self.placement = 0
        self.views: set[ref[Tensor]] = set()
        self._forget = self.views.discard
        storages.add(ref(self, storages.discard))

    def label(self) -> str:
        """How messages call it."""
        return f'{self.kind} "{self.name}"' if self.name else f"an unnamed {self.kind}"

    def add_view(self, view: Tensor) -> None:
        """A new tensor over this memory becomes one of the views."""
        view.storage = self
        self.views.add(ref(view, self._forget))

    def drop_view(self, view: Tensor) -> None:
        """A view has memory of its own from now on."""
        view.storage = None
        for known in [known for known in tuple(self.views) if known() is view]:
            self.views.discard(known)

    def changed(self) -> None:
        """The memory has other values from now on; a replay changes it, too."""
        self.version += 1
        self.age()
        if capturing.thread.recording is not None:
            capturing.thread.recording.increments(self, "version")

    def age(self) -> None:
        """Makes the views stale: they were made before the memory changed."""
        if self.views:
            attached.expire(self.views)


storages: Final[set[ref[Storage]]] = set()  # all that are alive
