"""Calls of a captured function under tapes, batches and forward mode: each listener is served by a recording.

The innermost listener is served first. The function that runs for it (`ForTape`, `ForBatch`, …) runs the captured function under a
listener of the same kind, and returns also what the listener needs to know. This function is captured, too, and is called under
the listeners that are left, which are served in the same way. So the recording at the end runs without listeners from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..autodiff.batching import Batch
from ..autodiff.listeners import listeners
from ..autodiff.tape import Tape
from ..backends import kernels_on
from ..errors import VmapError
from ..launch import capturing
from ..tensors import devices
from ..tensors.operand import own
from ..tensors.precision import made_of
from ..tensors.tensor import Tensor
from ..tensors.views import OutsideView, StaleView
from ..transforms.calls import Reads
from ..transforms.checkpoint import Noted
from ..transforms.jvp import Forward
from ..tree import flatten
from .served import Unserved, thread
from .signature import is_array
from .under_others import under_batch, under_forward, under_reads
from .under_tape import under_tape

_SERVE: Final[dict[type, Callable[..., Any]]] = {
    Tape: under_tape, Batch: under_batch, Forward: under_forward, Reads: under_reads,
}


def call(captured: Any, args: Any, options: Any, counted: Any) -> Any:
    """Calls a captured function under the present listeners."""
    given, spec = flatten((args, options))
    leaves = [_leaf(x) for x in given]
    device = next((x.device for x in leaves if isinstance(x, Tensor)), None) or devices.default_device()
    kinds = tuple([_kind(listener) for listener in listeners.stack])
    if captured.stepped or kernels_on(device) is None or captured.runs_eagerly(kinds):
        return captured.eagerly(args, options, counted)
    if captured.is_derived:
        return _served(captured, leaves, spec)
    attempt = Attempt()
    try:
        with attempt:
            value = _served(captured, leaves, spec)
        if thread.unserved:
            captured.run_eagerly(kinds, attempt.makes)
    except (Unserved, VmapError) as error:  # VmapError: the function reads an example of a batch that is not an argument
        if isinstance(error, VmapError) and not listeners.batches:  # of a batch that has ended
            raise
        attempt.undo()
        captured.run_eagerly(kinds, attempt.makes)
        return captured.eagerly(args, options, counted)
    finally:
        thread.unserved = False
    if counted is not None:
        counted.done += 1
    return value


class Attempt(Noted):
    """A call that is being served. If that turns out to be impossible, `undo` restores what the function has changed until then.

    It ends before an optimizer does a step, whose state would not be restored, and before the first Parameter is there, which the
    function might keep: with the numbers of this run, which the second run would draw again. Under tapes alone no call is undone.

    Attributes:
        makes: True if the function makes Parameters.
    """

    def __init__(self) -> None:
        self._states: dict[Any, dict[str, int]] = {}
        self._old: dict[Any, tuple[Any, Any]] = {}
        self.makes = False
        self._may_fail = not all([isinstance(listener, Tape) for listener in listeners.stack])
        super().__init__(self._states, {})
        self._inside = self._inside[0], self._outside[1]  # Notes of modes would keep Modules alive that the function makes.

    def _begin(self) -> None:
        super()._begin()
        capturing.thread.attempt = self

    def _end(self) -> None:
        capturing.thread.attempt = None
        super()._end()

    def keep(self, p: Any) -> None:
        if self._may_fail and p.storage not in self._old:
            self._old[p.storage] = p.array, devices.copied(p.array)

    def made(self) -> None:
        self.makes = True
        self.step()

    def step(self) -> None:
        if self._may_fail:
            raise Unserved

    def undo(self) -> None:
        for generator, state in self._states.items():
            generator.rewind(state)
        for storage, (array, values) in self._old.items():
            devices.write(array, values)
            storage.changed()


def _served(captured: Any, leaves: list[Any], spec: Any) -> Any:
    serve = _SERVE.get(_kind(listeners.stack[-1]))
    if serve is None:
        raise Unserved
    return serve(captured, listeners.stack[-1], leaves, spec)


def _kind(listener: Any) -> type:
    return next((kind for kind in _SERVE if isinstance(listener, kind)), type(listener))


def _leaf(x: Any) -> Any:
    """Returns an argument as a tensor that no other code can write to, if it is an array."""
    if isinstance(x, (OutsideView, StaleView)):
        _ = x.array  # raises for a stale view, and turns an outside view into a plain tensor
    return made_of(x, own(x)) if is_array(x) else x
