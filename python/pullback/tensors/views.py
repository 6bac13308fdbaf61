"""Views of Parameters: what becomes of them when the Parameter changes, and what tells a recording that it has read one.

A view is a Tensor whose `storage` is its Parameter's. Its class says how `array` may be read, so that nothing is asked of any
other tensor: an ordinary view is a Tensor; a change of the Parameter makes it a StaleView; a recording that begins makes it an
OutsideView, until somebody reads it.
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

_memory: Final[Any] = Tensor.__dict__["array"].__get__  # the slot, behind the properties below

_recordings: Final[list[Recording]] = []  # that run now, in any thread


class StaleView(Tensor):
    """A view from before the last change of its Parameter: what it was is overwritten. Its shape and dtype are known still."""

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
    """A view that was there when a recording began: the recording holds while the view is not stale, if it reads the view."""

    __slots__ = ()

    @property
    def array(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        _become(self, Tensor)
        for recording in tuple(_recordings):
            recording.reads(self.storage)
        return self.array


LEAVES.update((StaleView, OutsideView))


def expire(views: set[ref[Tensor]]) -> None:
    """The memory of these views has changed."""
    while views:
        try:
            view = views.pop()()
        except KeyError:  # another thread was quicker
            return
        if view is not None:
            view.__class__ = StaleView


attached.expire = expire


def _become(view: Tensor, kind: type[Tensor]) -> None:
    """A view that is not stale gets another class; one that another thread makes stale meanwhile is stale in the end."""
    view.__class__ = kind
    if not any([known() is view for known in tuple(view.storage.views)]):
        view.__class__ = StaleView


def living() -> list[Tensor]:
    """All views that are not stale."""
    known = [storage() for storage in tuple(storages)]
    found = [view() for storage in known if storage is not None for view in tuple(storage.views)]
    return [view for view in found if view is not None]


def revive(view: Tensor) -> None:
    """A view is good again, because the change that made it stale has not happened."""
    if view.__class__ is StaleView:
        view.__class__ = Tensor
        view.storage.add_view(view)


def begin(recording: Recording) -> None:
    """The recording is told of each view that it reads of those that are there now."""
    _recordings.append(recording)
    for view in living():
        if view.__class__ is Tensor:
            _become(view, OutsideView)


def end(recording: Recording) -> None:
    """The recording is told no more. Views that nobody has read stay as they are until somebody does."""
    if recording in _recordings:
        _recordings.remove(recording)
