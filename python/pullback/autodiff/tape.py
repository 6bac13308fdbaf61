"""Tape: records ops while entered. `backward.py` walks the record backwards. Neither file treats any op by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal
from weakref import ref

from ..backends import modes
from ..errors import TapeError
from ..launch import capturing, door
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..tree import beside, flatten, unflatten
from ..typing import Tree
from .backward import WALK, sweep
from .error_text import not_watched
from .journal import Journal, note_derivative
from .kept import Listening
from .listeners import listeners, new_serial
from .node import Recorded
from .primitive import Op
from .request import ready, refuse_outside, seeds_for
from .returned import note
from .site import Origin, call_site, current_frame, origin_of, user_frame

if TYPE_CHECKING:
    from typing_extensions import Self

Aggregation = Literal["accumulate", "add_n", "tree"]
Unconnected = Literal["error", "zero", "none"]


class Tape(Listening):
    """Records the ops on watched tensors while entered; `gradient` then walks them backwards.

    Users make a GradientTape (transforms/tape.py), which adds methods to this class.

    Args:
        persistent: allows several calls of `gradient`; otherwise the first call frees the record while it walks back.
        watch_parameters: the tape watches trainable Parameters without a call of `watch`.
    """

    observes = True  # while a profile runs, `add` itself passes the op to the door, which returns the pullback's scope

    def __init__(self, persistent: bool = False, watch_parameters: bool = True) -> None:
        self.persistent, self.watch_parameters = persistent, watch_parameters
        self.recording = capturing.thread.recording  # not None if the tape was made inside a captured function
        self.journal = Journal()
        self.code: CodeType | None = None  # the user's code that called the last op, and probably calls the next
        self.reset()

    def reset(self) -> None:
        """Forgets everything recorded and watched."""
        self.nodes: list[Recorded] = []
        self.values: set[int] = set()  # the serials of all watched values
        self.leaves: dict[int, ref[Tensor]] = {}  # by serial, the values that were watched, not computed
        self.hooks: dict[int, list[Callable[[Tensor], Any]]] = {}
        self.dead: dict[int, Origin] = {}  # by serial, where ops came from whose derivative by a watched input is zero everywhere
        self.scopes: dict[int, int] = {}  # by serial, while a profile runs: the scope that the pullback is attributed to
        self.precisions: dict[int, modes.Precision] = {}  # by serial, where products of the op rounded their factors
        self.journal.clear()
        self.left = None  # a Returned, once a watched value has left pullback as numbers (returned.py)
        self.consumed = False

    # ---- recording

    def __enter__(self) -> Self:
        if self in listeners.stack:
            raise TapeError("this tape is recording already; make another one for a nested derivative.")
        frame = current_frame(1)
        self.journal.entered = frame.f_code, frame.f_lasti
        super().__enter__()
        return self

    def stop(self) -> None:
        """Stops recording. Does nothing if the tape does not record."""
        if self in listeners.stack:
            listeners.leave(self)

    def watch(self, target: Tree, *more: Tree) -> None:
        """Starts recording the ops on these tensors (each a tensor, or tensors nested in lists, tuples, dicts).

        Raises TapeError if a value is not a floating-point tensor.
        """
        refuse_outside(self, "watch")
        site = call_site()
        for x in flatten((target, *more))[0]:
            if not isinstance(x, Tensor) or x.dtype.kind not in "fV":
                raise TapeError(not_watched(x))
            if not x.serial:
                x.serial = new_serial()
            if x.serial not in self.values:
                self.values.add(x.serial)
                self.leaves[x.serial] = ref(x)
                self.journal.watched[x.serial] = site

    def knows(self, x: Any) -> bool:
        """True if a value is watched. A trainable Parameter becomes watched when it is first used."""
        if x.serial in self.values:
            return True
        if not (self.watch_parameters and isinstance(x, Parameter) and x.trainable and x.array.dtype.kind in "fV"):
            return False
        self.values.add(x.serial)
        self.leaves[x.serial] = ref(x)
        return True

    def add(self, op: Op, y: Tensor, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        """Records an op if any of its inputs is watched."""
        values, serials = self.values, []
        watched = changeable = False
        for x in inputs:
            serial = x.serial
            if x.storage is not None:  # a Parameter or a view of one
                changeable = True
                if serial not in values:
                    self.knows(x)
            known = serial in values
            watched = watched or known
            serials.append(serial if known else 0)
        if self.left is not None:
            self.left.meet(op, y, inputs, watched)
        if not watched:
            if door.profiling:
                door.observe(op, y, inputs, params)
            return
        frame = current_frame(2)  # the op's caller, past this frame and the op
        code = frame.f_code
        if code is not self.code:
            frame = user_frame(frame)
            self.code = code = frame.f_code
        result = y.serial or new_serial()
        if op.dead:
            if op.pullback is None:
                self.journal.cuts += [(serial, op.name, (code, frame.f_lasti)) for serial in serials if serial]
                return
            if any([serials[i] for i in op.dead]):
                self.dead[result] = origin_of(current_frame(2), WALK)
        y.serial = result
        values.add(result)
        if door.profiling:
            self.scopes[result] = door.label(op.facts.shown, code, frame.f_lasti)
        if modes.used and modes.precision() != "float32":
            self.precisions[result] = modes.precision()
        edges, versions = op.edges(inputs, y, params, serials), ()
        if changeable:
            held = {id(value) for edge in edges for value in edge[2]}  # Edge.kept
            versions = tuple([(x.storage, x.storage.version) for x in inputs if x.storage is not None and id(x) in held])
        self.nodes.append((op, result, serials, edges, versions, code, frame.f_lasti, params))  # a Node

    def on_escape(self, x: Tensor, how: str, given: Any = None) -> None:
        """Records the line where a watched value leaves pullback, so that messages can name it."""
        if self.knows(x):
            self.journal.cuts.append((x.serial, how, call_site()))
            note(self, x, how, given)

    # ---- walking back

    def gradient(
        self, target: Tree, sources: Tree, output_gradients: Any = None, unconnected: Unconnected = "error",
        aggregation: Aggregation = "accumulate",
    ) -> Any:
        """Computes the vector-Jacobian product of the target(s) with respect to each source, in the structure of `sources`.

        Args:
            target: a tensor on the tape, or a nested list, tuple or dict of tensors, whose products are summed.
            sources: a tensor or nested tensors; they may be intermediate results.
            output_gradients: the cotangent of each target, of the target's shape; 1 by default, for a scalar target.
            unconnected: the treatment of a source that the target does not depend on: "error" raises, "zero" returns zeros,
                "none" returns None.
            aggregation: how k contributions to one tensor are summed: "accumulate" adds each to one buffer when it arrives. "add_n"
                keeps all k and sums them in one launch. "tree" sums pairs, pairs of pairs, and so on, in the next wider dtype
                (float64 for float32), which rounds least, and keeps about log2(k) sums.

        Raises: TapeError, UnconnectedError, StaleValueError, ShapeError. Warns: ZeroGradientWarning.
        """
        ready(self, unconnected)
        call = self.nodes[0][0].call if len(self.nodes) == 1 else None  # of a captured function, if any
        if call is not None and (found := call.gradient(self, target, sources, output_gradients, aggregation)) is not None:
            return found
        (targets, nested), wanted = flatten(target), flatten(sources)
        given = beside(target, output_gradients) if nested and output_gradients is not None else [output_gradients]
        gradients = self.pull(targets, lambda: seeds_for(targets, given), wanted[0], unconnected, aggregation)
        return unflatten(wanted[1], gradients)

    def pull(
        self, targets: list[Any], seeds: Callable[[], list[Any]], sources: list[Any], unconnected: str = "error",
        aggregation: str = "accumulate", retain: bool = False,
    ) -> list[Any]:
        """Returns the gradient of each source. seeds() returns the targets' cotangents. `retain` keeps the tape's record."""
        found = self.run_backward(lambda free: sweep(self, targets, seeds(), sources, unconnected, aggregation, free), retain)
        note_derivative(targets, found)
        return found

    def run_backward(self, run: Callable[[bool], list[Any]], retain: bool = False) -> list[Any]:
        """Runs a backward pass and returns the result of `run(free)`. If `free` is True, `run` may release the record."""
        recording = listeners.stack
        if not self.persistent:
            self.stop()
        before, scope = door.state.phase, door.scope_now() if door.profiling else 0
        try:
            try:
                door.enter(door.BACKWARD)
                return run(not (retain or self.persistent))
            finally:
                door.enter(before)
                if not self.consumed:
                    listeners.stack = recording  # a call that failed early leaves the tape recording
                if self.scopes:
                    door.leave_scope(scope)
        finally:  # again, in case Ctrl-C interrupted the first attempt
            door.enter(before)
            if self.scopes:
                door.leave_scope(scope)
