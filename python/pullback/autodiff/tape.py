"""Tape: records ops while entered. `backward.py` walks the record backwards; neither names an op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

from ..errors import TapeError
from ..launch import capturing, door
from ..tensors.escape import escape_listeners
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor, new_serial
from ..tree import beside, flatten, unflatten
from .backward import seeds_for, sweep
from .error_text import not_watched
from .kept import Kept, Listening
from .listeners import listeners
from .node import Recorded
from .primitive import Op
from .site import Site, call_site, current_frame, user_frame

if TYPE_CHECKING:
    from typing_extensions import Self


class Tape(Listening):
    """Records the ops on watched tensors while entered; `gradient` then walks them backwards.

    What users make is a GradientTape (transforms/tape.py), which can do more with the record.

    Args:
        persistent: allows several calls of `gradient`; otherwise the first frees what was kept as it consumes it.
        watch_parameters: trainable Parameters are watched by themselves.
    """

    of_function = False  # True for the tape of a transform, whose user has not asked for zeros: see backward.connected
    observes = True  # while a profile runs, `add` tells the door itself, which answers with the scope of the pullback

    def __init__(self, persistent: bool = False, watch_parameters: bool = True) -> None:
        self.persistent = persistent
        self.watch_parameters = watch_parameters
        self.recording = capturing.thread.recording  # made inside a captured function
        self.entered: Site | None = None  # where it last began to record
        self.code: CodeType | None = None  # the user's code that the last op was called from: most come from there again
        self.reset()

    def reset(self) -> None:
        """Forgets everything recorded and watched."""
        self.nodes: list[Recorded] = []
        self.values: set[int] = set()  # the serials of all watched values
        self.leaves: set[int] = set()  # of those that were watched, not computed
        self.watched: dict[int, Site] = {}  # of those, where `watch` was called for them
        self.hooks: dict[int, list[Callable[[Tensor], Any]]] = {}
        self.has_dead = False  # whether a derivative that is zero everywhere is among the nodes
        self.scopes: dict[int, int] = {}  # by serial, while a profile runs: the module that a value was computed in
        self.cuts: list[tuple[int, str, Site]] = []  # where watched values left: numpy(), stop_gradient, …
        self.consumed = False

    def __repr__(self) -> str:
        state = "used up" if self.consumed else "recording" if self in listeners.stack else "not recording"
        kind = ", persistent" if self.persistent else ""
        return f"{type(self).__name__}({len(self.nodes)} ops, {len(self.leaves)} watched, {state}{kind})"

    # ---- recording

    def __enter__(self) -> Self:
        if self in listeners.stack:
            raise TapeError("this tape is recording already; make another one for a nested derivative.")
        frame = current_frame(1)
        self.entered = frame.f_code, frame.f_lasti
        super().__enter__()
        return self

    def stop(self) -> None:
        """Records no more."""
        if self in listeners.stack:
            listeners.leave(self)

    def stop_recording(self) -> _Paused:
        """`with tape.stop_recording():` what runs inside is not recorded on this tape."""
        return _Paused(self)

    def watch(self, target: Any) -> None:
        """Records what is done with these tensors (alone or nested in lists, tuples, dicts) from now on.

        Raises TapeError for what is not a floating-point tensor.
        """
        frame = current_frame(1)
        for x in flatten(target)[0]:
            if not isinstance(x, Tensor) or x.dtype.kind not in "fV":
                raise TapeError(not_watched(x))
            if not x.serial:
                x.serial = new_serial()
            if x.serial not in self.values:
                self._add_leaf(x)
                self.watched[x.serial] = frame.f_code, frame.f_lasti

    def on_gradient(self, t: Tensor, fn: Callable[[Tensor], Any]) -> None:
        """`fn(gradient_of_t)` runs in the backward pass; what it returns, if not None, replaces the gradient.

        Raises TapeError where `t` is not on this tape.
        """
        if self.recording is not capturing.thread.recording:
            capturing.refuse("on_gradient on a tape from outside", "Make the tape inside the function.")
        if not self.knows(t):
            raise TapeError(
                "on_gradient: the tensor is not on this tape. Call it while recording, on a watched tensor or a result."
            )
        self.hooks.setdefault(t.serial, []).append(fn)

    def knows(self, x: Any) -> bool:
        """Whether a value is watched; a trainable Parameter is as soon as it is used."""
        return x.serial in self.values or self._watches(x)

    def _add_leaf(self, x: Tensor) -> None:
        self.values.add(x.serial)
        self.leaves.add(x.serial)

    def _watches(self, x: Any) -> bool:
        """Whether a value not seen yet is watched: a trainable Parameter is."""
        if self.watch_parameters and isinstance(x, Parameter) and x.trainable and x.array.dtype.kind in "fV":
            self._add_leaf(x)
            return True
        return False

    def add(self, op: Op, y: Tensor, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        """Records an op if any of its inputs is watched."""
        values = self.values
        serials: list[int] = []
        watched = changeable = False
        for x in inputs:
            serial = x.serial
            if x.storage is not None:  # a Parameter or a view of one
                changeable = True
                if serial not in values:
                    self._watches(x)
            if serial in values:
                watched = True
                serials.append(serial)
            else:
                serials.append(0)
        if not watched:
            if door.profiling:
                door.observe(op, y, inputs, params)
            return
        frame = current_frame(2)  # the op's caller, past this frame and the op
        code = frame.f_code
        if code is not self.code:
            frame = user_frame(frame)
            self.code = code = frame.f_code
        offset = frame.f_lasti
        if op.dead:
            if op.pullback is None:
                self.cuts += [(serial, op.name, (code, offset)) for serial in serials if serial]
                return
            self.has_dead = self.has_dead or any([serials[i] for i in op.dead])
        result = y.serial
        if not result:
            y.serial = result = new_serial()
        values.add(result)
        if door.profiling:
            self.scopes[result] = door.label(op.shown, code, offset)
        edges = op.edges(inputs, y, params, serials)
        self.nodes.append((op, result, serials, edges, _versions(inputs, edges) if changeable else (), code, offset))  # a Node

    def on_escape(self, x: Tensor, how: str) -> None:
        """Remembers that a watched value leaves here, so that an UnconnectedError can name the line."""
        if self.knows(x):
            self.cuts.append((x.serial, how, call_site()))

    # ---- walking back

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected: str = "error",
        aggregation: str = "accumulate",
    ) -> Any:
        """The vector-Jacobian product of the target(s) with respect to each source, in the structure of `sources`.

        Args:
            target: a tensor on the tape, or a nested list, tuple, dict of them, which are summed.
            sources: tensors, intermediate ones too, alone or nested.
            output_gradients: the cotangent of each target, of its shape; ones for a scalar.
            unconnected: "error", "zero" or "none" for a source that the target does not depend on.
            aggregation: how several contributions to one tensor are summed: "accumulate", "add_n" or "tree".

        Raises: TapeError, UnconnectedError, StaleValueError, ShapeError. Warns: ZeroGradientWarning.
        """
        self._ready(unconnected)
        (targets, nested), wanted = flatten(target), flatten(sources)
        given = beside(target, output_gradients) if nested and output_gradients is not None else [output_gradients]
        gradients = self.pull(targets, lambda: seeds_for(targets, given), wanted[0], unconnected, aggregation)
        return unflatten(wanted[1], gradients)

    def _ready(self, unconnected: str) -> str:
        """Raises TapeError where the tape has been used up, or the word is none."""
        if unconnected not in ("error", "zero", "none"):
            raise TapeError(f'gradient: unconnected={unconnected!r}; use "error", "zero" or "none".')
        self._check_not_consumed("gradient")
        return unconnected

    def pull(
        self, targets: list[Any], seeds: Callable[[], list[Any]], sources: list[Any], unconnected: str = "error",
        aggregation: str = "accumulate", retain: bool = False,
    ) -> list[Any]:  # fmt: skip
        """The gradient of each source, for what seeds() gives as cotangents of the targets. `retain` keeps all for another call."""
        return self.backward(lambda free: sweep(self, targets, seeds(), sources, unconnected, aggregation, free), retain)

    def backward(self, run: Callable[[bool], list[Any]], retain: bool = False) -> list[Any]:
        """What `run(free)` returns: a walk back, which gives up what the tape kept if it is free to."""
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
                    listeners.stack = recording  # a refused question changes nothing
                if self.scopes:
                    door.leave_scope(scope)
        finally:  # once more, in case that Ctrl-C has ended this
            door.enter(before)
            if self.scopes:
                door.leave_scope(scope)

    def _check_not_consumed(self, asked: str) -> None:
        if self.consumed:
            raise TapeError(
                f"{asked}: this tape has been used and has freed what it kept. For several calls make it with "
                f"pb.GradientTape(persistent=True)."
            )


class _Paused(Kept):
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._before = listeners.stack

    def _begin(self) -> None:
        self._before = listeners.stack
        self._tape.stop()

    def _end(self) -> None:
        listeners.stack = self._before


def _versions(inputs: Sequence[Any], edges: Sequence[Any]) -> tuple[Any, ...]:
    """The memory of kept inputs that can change in place, with its version now."""
    held = {id(value) for edge in edges for value in edge[2]}  # Edge.kept
    return tuple([(x.storage, x.storage.version) for x in inputs if x.storage is not None and id(x) in held])


def _on_escape(x: Tensor, how: str) -> None:
    for listener in listeners.stack:
        listener.on_escape(x, how)


escape_listeners.append(_on_escape)
