"""Views of Parameters: makes them stale when the Parameter changes, and reports to a recording that it reads one.

A view is a Tensor with the `storage` of its Parameter. Its class decides what a read of `array` does, so that reads of all other
tensors need no check. An ordinary view is a Tensor; a change of the Parameter makes it a StaleView. The start of a recording makes
it an OutsideView until the view is next read.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn
from weakref import ref

from ..errors import StaleValueError
from ..launch.capturing import Recording
from ..tree import LEAVES
from . import devices
from .attached import attached
from .storage import storages
from .tensor import Tensor

_memory: Final[Any] = Tensor.__dict__["array"].__get__  # reads the slot that the properties below hide

_recordings: Final[list[Recording]] = []  # the recordings that run now, in any thread


class StaleView(Tensor):
    """A view from before the last change of its Parameter. Its values are overwritten, but its shape and dtype can be read."""

    __slots__ = ()

    @property
    def array(self) -> NoReturn:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise StaleValueError(
            f"a view of {self.storage.label()}, of shape {self.shape}, is read after the {self.storage.kind} was changed in place: "
            f"its values are gone. Take the view again after the update. To keep the old values, take a snapshot before it: "
            f"pb.copy(p), or pb.stop_gradient(p) for a constant."
        )

    @property
    def device(self) -> str:
        return devices.device_of(_memory(self))

    def __repr__(self) -> str:
        return f"<stale view of {self.storage.label()}, shape={self.shape}, dtype={self.dtype}>"

    def __format__(self, spec: str) -> str:
        return repr(self)


def _fact(name: str) -> property:
    return property(lambda view: getattr(_memory(view), name))


for _name in ("shape", "dtype", "ndim", "size", "nbytes", "itemsize"):
    setattr(StaleView, _name, _fact(_name))


class OutsideView(Tensor):
    """A view that existed when a recording began. A recording that reads the view is valid until the view becomes stale."""

    __slots__ = ()

    @property
    def array(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        _become(self, Tensor)
        for recording in tuple(_recordings):
            recording.reads(self.storage)
        return self.array


LEAVES.update((StaleView, OutsideView))


def expire(views: set[ref[Tensor]]) -> None:
    """Makes these views stale, because their memory has changed, and empties the set."""
    while views:
        try:
            view = views.pop()()
        except KeyError:  # another thread has taken the last one
            return
        if view is not None:
            view.__class__ = StaleView


attached.expire = expire


def _become(view: Tensor, kind: type[Tensor]) -> None:
    """Changes the class of a view that is not stale. If another thread makes the view stale meanwhile, it ends up stale."""
    view.__class__ = kind
    if not any([known() is view for known in tuple(view.storage.views)]):
        view.__class__ = StaleView


def living() -> list[Tensor]:
    """Returns all views that are not stale."""
    known = [storage() for storage in storages.copy()]
    found = [view() for storage in known if storage is not None for view in storage.views.copy()]
    return [view for view in found if view is not None]


def revive(view: Tensor) -> None:
    """Makes a stale view readable again, because the change that made it stale did not take place."""
    if view.__class__ is StaleView:
        view.__class__ = Tensor
        view.storage.add_view(view)


def begin(recording: Recording) -> None:
    """Starts to report to a recording each read of a view that exists now."""
    _recordings.append(recording)
    for view in living():
        if view.__class__ is Tensor:
            _become(view, OutsideView)


def end(recording: Recording) -> None:
    """Stops reporting to a recording. Views that were not read stay OutsideViews until they are next read."""
    if recording in _recordings:
        _recordings.remove(recording)
