"""Storage: the record that a Parameter and its views share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakMethod, ref

from ..launch import capturing
from .attached import attached

if TYPE_CHECKING:
    from .tensor import Tensor


class Storage:
    """The record that a Parameter and its views share.

    `version` counts the changes in place, `placement` the moves of the Parameter to different memory. `views` are weak references
    to the views that were made since the last change; the next change makes them stale (see `views.py`). `kind` is the name of
    the Parameter's class, for messages. `paths` is a weak reference to the method of the outermost Module that named the
    Parameter; it returns the pairs (path, Parameter) of all places in the Module.
    """

    __slots__ = ("__weakref__", "_forget", "followers", "kind", "name", "paths", "placement", "version", "views")

    def __init__(self, kind: str, name: str | None) -> None:
        self.kind = kind
        self.name = name
        self.paths: WeakMethod[Any] | None = None
        self.version = 0
        self.placement = 0
        self.followers: list[Any] = []  # weak references to optimizers that follow the mode of a network with this Parameter
        self.views: set[ref[Tensor]] = set()
        self._forget = self.views.discard
        storages.add(ref(self, storages.discard))

    def label(self) -> str:
        """Returns the Parameter's name for messages."""
        return f'{self.kind} "{self.name}"' if self.name else f"an unnamed {self.kind}"

    def add_view(self, view: Tensor) -> None:
        """Adds a new tensor over this memory to the views."""
        view.storage = self
        self.views.add(ref(view, self._forget))

    def drop_view(self, view: Tensor) -> None:
        """Removes a tensor from the views, because it has been given its own memory."""
        view.storage = None
        for known in [known for known in tuple(self.views) if known() is view]:
            self.views.discard(known)

    def changed(self) -> None:
        """Records that the values in the memory have changed. Inside a captured function every replay records it, too."""
        self.version += 1
        self.age()
        if capturing.thread.recording is not None:
            capturing.thread.recording.increments(self, "version")

    def age(self) -> None:
        """Makes the views stale, because they were made before the memory changed."""
        if self.views:
            attached.expire(self.views)


storages: Final[set[ref[Storage]]] = set()  # all live storages


def followers_within(params: Sequence[Any]) -> list[Any]:
    """Returns the followers of these Parameters that have no other Parameters."""
    inside = {id(p) for p in params}
    found = {id(follower): follower for p in params for one in p.storage.followers if (follower := one()) is not None}
    return [follower for follower in found.values() if all([id(p) in inside for p in follower.parameters])]
