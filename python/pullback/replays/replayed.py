"""The node of a captured function on a tape, and the recording that pulls cotangents back through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import ref

from ..autodiff.backward import Sums, total, walk
from ..autodiff.block_cotangent import BlockCotangent
from ..autodiff.listeners import listeners, new_serial
from ..autodiff.node import CALL, OUTPUT, Edge, Node, Recorded, dependents
from ..autodiff.primitive import Op, Rule
from ..autodiff.site import NOWHERE, call_site
from ..autodiff.tape import Tape
from ..backends import modes
from ..errors import CaptureError
from ..launch import capturing, door
from ..ops.conversion import alias
from ..ops.kinds import OWN
from ..tensors.creation import ones, zeros_like
from ..tensors.tensor import Tensor
from ..transforms.calls import Cotangents
from ..transforms.passage import Passage
from ..tree import unflatten
from .replay import Recalled
from .trace import ConstantLeaf, Trace

Capture = Callable[[Any], Any]  # returns a captured function


class Replayed(Recalled, Passage):
    """A captured function as an op: one object for each recording of its forward pass under a tape.

    Args:
        trace: the ops inside.
        capture: captures the function of the backward pass.
        watched: the tensors from outside that ops read and that the tape watches.
        unwatched: weak references to the other tensors that ops read.
    """

    takes_sums, captured = False, True

    def __init__(self, trace: Trace, capture: Capture, watched: Sequence[Tensor], unwatched: Sequence[ref[Any]]) -> None:
        self.trace, self._capture, self.watched, self.unwatched = trace, capture, watched, unwatched
        self.guard: Any = None  # the key of the condition that the tape watches these tensors
        self.backward: dict[Any, Any] = {}  # the captured functions, by what they compute
        self._usual: Any = None  # the one that pulls one cotangent back to all inputs
        self._seeded: Any = None  # the same for the cotangent 1
        self._repeats = True  # False once a pullback could not be recorded
        ends, every = trace.ends, tuple(range(len(trace.inputs)))
        self._alone = len(ends) == 1
        self._op = _op(f"capture({trace.name})", self, ends[0].dead if self._alone else ())
        self._outputs = [] if self._alone else [_Output(k, end.through, end.dead) for k, end in enumerate(ends)]
        if any([end.through != every or end.dead for end in ends]) and not self._alone:
            self.apart = CALL
            for op in self._outputs:
                op.call = OF_OUTPUT_APART

    # ---- recording a call

    def tell(self, tape: Tape, leaves: Sequence[Any], results: Sequence[Any]) -> None:
        """Adds a call with these arguments and these results of the recording to the tape."""
        trace = self.trace
        for source, how, site in trace.cuts:
            tape.journal.cuts.append(((leaves[source] if source.__class__ is int else source).serial, how, site))
        if not trace.ends:
            return
        serials = [leaves[source].serial if source.__class__ is int else source.serial for source in trace.inputs]
        kept = tuple([results[source] if source >= 0 else leaves[~source] for source in trace.kept])
        versions = tuple([(storage, storage.version + older) for storage, older in trace.storages])
        code, offset = call_site()
        ends = [results[end.position] for end in trace.ends]
        for y in ends:
            if not y.serial:
                y.serial = new_serial()
            tape.values.add(y.serial)
        whole = ends[0].serial if self._alone else new_serial()
        tape.values.add(whole)
        if trace.has_dead:
            tape.dead[whole] = NOWHERE
        edges = ((serials, self._op.rules[0], kept, trace.shapes),)
        tape.nodes.append((self._op, whole, serials, edges, versions, code, offset, ()))
        for op, y, end in zip(self._outputs, ends, trace.ends):
            through = [serials[i] for i in end.through] if self.apart else []
            tape.nodes.append((op, y.serial, [whole, *through], ((whole, op.rules[0], (), None),), (), code, offset, ()))

    def value(self, leaves: Sequence[Any], results: Sequence[Any]) -> Any:
        """Returns the function's value."""
        trace = self.trace
        if trace.form is None and trace.leaves[0] == 0:
            return results[0]
        return unflatten(
            trace.form, [x.value if x.__class__ is ConstantLeaf else results[x] if x >= 0 else leaves[~x] for x in trace.leaves]
        )

    # ---- pulling back

    def pull(self, tape: Tape, edges: Sequence[Any], g: Any, reach: set[int], sums: Sums) -> Sequence[Recorded]:
        """Adds the gradients of the inputs to the sums by a recording. If it cannot, returns the ops inside, to be walked."""
        serials, _, kept, _ = edges[0]
        if self._usual is not None and reach is tape.values and g.__class__ is Tensor and sums.aggregation == "accumulate":
            of = sums.of
            if of.keys().isdisjoint(serials) and len(set(serials)) == len(serials):
                found = self._usual.told((*kept, g))
                if found is not None:
                    contributions, to = found
                    if to.once:
                        of.update(zip(serials, contributions))
                        return ()
                    to.add(contributions, serials, sums)
                    return ()
        received = g.of if isinstance(g, Cotangents) else {0: g}
        if self._repeats and sums.aggregation == "accumulate" and len(set(serials)) == len(serials):
            needed = tuple([i for i, x in enumerate(serials) if reach is tape.values or x in reach])
            listed = tuple([i for i in needed if serials[i] in sums.of])
            try:
                backward = self._backward(tuple(received), needed, listed)
                found = backward(*kept, *received.values())
                if self._alone and not listed and len(needed) == len(serials):
                    self._usual = backward
            except CaptureError:
                self._repeats = False
            else:
                *contributions, to = found
                to.add(contributions, serials, sums)
                return ()
        ends = {end.serial for end in self.trace.ends}
        # These values get serials of their own inside.
        again = {position for serial, position in self.trace.again.items() if serial in ends}
        kept = [alias(x) if position in again else x for position, x in enumerate(kept)] if again else kept
        nodes, serial_of = self._inside(tape, serials, kept, {})
        reach |= _reached(self.trace, nodes, [x for x in serials if x in reach])
        for position, gy in received.items():
            sums.add(serial_of[self.trace.ends[position].serial], gy)
        return nodes

    def gradient(self, tape: Tape, target: Any, sources: Any, output_gradients: Any, aggregation: str) -> Any:
        """Returns what tape.gradient does, if this call is all that the tape holds. Returns None if that is not a simple case."""
        exact = not tape.precisions and modes.precision() == "float32"  # if not, `walk` decides how products round
        if not exact or output_gradients is not None or aggregation != "accumulate":
            return None
        (_, y, _, edges, versions, *_), several = tape.nodes[0], sources.__class__ is list or sources.__class__ is tuple
        serials, _, kept, _ = edges[0]
        if target.__class__ is not Tensor or target.serial != y or target.array.size != 1 or not self._alone or tape.dead:
            return None
        others = listeners.stack if listeners.stack != (tape,) or tape.persistent else ()
        if others or tape.hooks or door.profiling or capturing.thread.recording is not None or not self._repeats:
            return None
        wanted = [x.serial for x in sources if isinstance(x, Tensor)] if several else [getattr(sources, "serial", 0)]
        inputs = set(serials)
        if not (inputs.issuperset(wanted) and tape.leaves.keys() <= set(wanted) and len(inputs) == len(serials)):
            return None
        if (several and len(wanted) != len(sources)) or not all([storage.version == version for storage, version in versions]):
            return None
        tape.stop()
        found = self._pulled(kept, target)
        if found is None:
            return None
        contributions, to = found
        of = dict(zip(serials, contributions)) if to.once else _summed([serials[i] for i in to.inputs], contributions)
        if not tape.persistent:
            tape.consumed, tape.nodes = True, []
        if not several:
            return of[wanted[0]] if wanted[0] in of else zeros_like(sources)
        gradients = [of[x.serial] if x.serial in of else zeros_like(x) for x in sources]
        return gradients if sources.__class__ is list else tuple(gradients)

    def _pulled(self, kept: Sequence[Any], y: Tensor) -> Any:
        """Returns the contributions of the cotangent 1 of y to all inputs, and their Destinations. None if it is not recorded."""
        if self._seeded is None:
            seeded = Backward(self.trace, (0,), tuple(range(len(self.trace.serials))), (), y)
            self._seeded = self.backward["seeded"] = self._capture(seeded)
        found = self._seeded.told(kept)
        if found is None:
            before = door.enter(door.BACKWARD)
            try:
                *contributions, to = self._seeded(*kept)
            except CaptureError:
                self._repeats = False
                return None
            finally:
                door.enter(before)
            return contributions, to
        return found

    def _backward(self, received: tuple[int, ...], needed: tuple[int, ...], listed: tuple[int, ...]) -> Any:
        key = received, needed, listed
        captured = self.backward.get(key)
        if captured is None:
            captured = self.backward.setdefault(key, self._capture(Backward(self.trace, received, needed, listed)))
        return captured

    def _inside(
        self, tape: Tape, serials: Sequence[int], kept: Sequence[Any], serial_of: dict[int, int], versions: Sequence[Any] = ()
    ) -> tuple[list[Recorded], dict[int, int]]:
        """Returns the ops inside a call as nodes of the tape, and their serials by those of the trace."""
        serial_of |= zip(self.trace.serials, serials)
        nodes = self.trace.made_with(kept, serial_of, versions)
        if door.profiling:
            tape.scopes.update({serial_of[serial]: scope for serial, scope in self.trace.scopes.items()})
        tape.precisions.update({serial_of[serial]: precision for serial, precision in self.trace.precisions.items()})
        return nodes, serial_of

    @staticmethod
    def open(tape: Tape) -> None:
        """Replaces the calls of captured functions on a tape by the ops inside them."""
        _open_calls(tape)

    def opened(self, tape: Tape, node: Node, outputs: Sequence[int]) -> list[Recorded]:
        """Returns the ops inside a call that the tape has recorded, with these serials of its ends."""
        edge = Edge._make(node.edges[0])
        serial_of = {end.serial: serial for end, serial in zip(self.trace.ends, outputs)}
        nodes, serial_of = self._inside(tape, edge.x, edge.kept, serial_of, node.versions)
        tape.values.update(serial_of.values())
        return nodes


def _open_calls(tape: Tape) -> None:
    outputs: dict[int, list[int]] = {}
    for op, y, inputs, *_ in tape.nodes:
        if isinstance(op, _Output):
            outputs.setdefault(inputs[0], []).append(y)
    opened: list[Recorded] = []
    for recorded in tape.nodes:
        node = Node._make(recorded)
        if isinstance(node.op.call, Replayed):
            opened += node.op.call.opened(tape, node, outputs.get(node.y, [node.y]))
        elif not isinstance(node.op, _Output):
            opened.append(recorded)
    tape.nodes = opened


def _reached(trace: Trace, nodes: list[Recorded], serials: list[int]) -> set[int]:
    tape = Tape(watch_parameters=False)
    tape.nodes = nodes
    tape.values = {*serials, *[node[1] for node in nodes]}
    return dependents(tape, serials)


def _summed(serials: Sequence[int], contributions: Sequence[Tensor]) -> dict[int, Tensor]:
    sums = Sums("accumulate")
    for serial, contribution in zip(serials, contributions):
        sums.add(serial, contribution)
    return {serial: total(g) for serial, g in sums.of.items()}


def _op(name: str, replayed: Replayed, dead: tuple[int, ...]) -> Op:
    def unused(g: Any) -> Any:
        raise AssertionError("a captured function is pulled back by its Replayed")

    trace = replayed.trace
    rule = Rule(unused, name, (), 0)
    rule.names = tuple([f"value {position}" for position in range(len(trace.kept))])
    names = tuple([f"input {position}" for position in range(len(trace.inputs))])
    op = Op(name, kind=OWN, names=names, rules=(rule,), pullback=unused, joint=True)
    op.dead, op.call = dead, replayed
    return op


class _Output(Op):
    """One end of a call, the one at `position`."""

    def __init__(self, position: int, through: tuple[int, ...], dead: tuple[int, ...]) -> None:
        def placed(g: Tensor) -> Cotangents:
            """The cotangent, at its position among those of the call's results"""
            return Cotangents({position: g})

        rule = Rule(placed, "output", (), 0)
        zero = tuple([1 + k for k, i in enumerate(through) if i in dead])
        super().__init__("output", kind=OWN, names=("call",), rules=(rule,), pullback=placed)
        self.dead = zero


class _OfOutputApart(Passage):
    takes_sums, apart = False, OUTPUT


OF_OUTPUT_APART: Final = _OfOutputApart()


class Destinations:
    """The inputs that the contributions of a backward pass go to.

    Attributes:
        inputs: the position of the input of each contribution.
        once: True if each input gets one contribution.

    Args:
        blocks: for each contribution that is zero outside of one block, (elements before the block, elements after it).
    """

    def __init__(self, inputs: list[int], once: bool, blocks: Sequence[tuple[Any, Any] | None]) -> None:
        self.inputs, self.once, self._blocks = inputs, once, blocks

    def add(self, contributions: Sequence[Tensor], serials: Sequence[int], sums: Sums) -> None:
        """Adds the contributions to the sums of the inputs with these serials."""
        for i, contribution, block in zip(self.inputs, contributions, self._blocks):
            sums.add(serials[i], contribution if block is None else BlockCotangent(contribution, *block))


class _Listed:
    """Keeps the contributions to a cotangent one by one, because others arrived before them."""

    def __init__(self) -> None:
        self.contributions: list[Tensor | BlockCotangent] = []

    def add(self, g: Tensor | BlockCotangent) -> None:
        self.contributions.append(g)


class Backward:
    """The function of a backward pass: of the kept values, and of the cotangents of the ends that received one.

    Args:
        received: the positions of these ends.
        needed: the positions of the inputs whose gradients are wanted.
        listed: the positions of the inputs whose contributions are returned one by one; others are summed.
        scalar: the only end, if its cotangent is 1 and not an argument.
    """

    __slots__ = ("__name__", "_listed", "_needed", "_received", "_seed", "_trace")

    def __init__(
        self, trace: Trace, received: tuple[int, ...], needed: tuple[int, ...], listed: tuple[int, ...], scalar: Any = None
    ) -> None:
        self._trace, self._received, self._needed, self._listed = trace, received, needed, listed
        self._seed = None if scalar is None else (scalar.shape, scalar.dtype, scalar.device)
        self.__name__ = f"pullback of {trace.name}"

    def __call__(self, *values: Any) -> list[Any]:
        trace, sums, scope = self._trace, Sums("accumulate"), door.scope_now()
        kept, cotangents = values[: len(trace.kept)], values[len(trace.kept) :]
        if self._seed is not None:
            shape, dtype, device = self._seed
            cotangents = (ones(shape, dtype=dtype, device=device),)
        tape = Tape(watch_parameters=False)
        serial_of = {serial: serial for serial in trace.values if serial not in trace.again}
        tape.nodes = trace.made_with(kept, serial_of)
        tape.values, tape.scopes = set(serial_of.values()), {serial_of[serial]: scope for serial, scope in trace.scopes.items()}
        tape.precisions = {serial_of[serial]: precision for serial, precision in trace.precisions.items()}
        inputs = [serial_of[serial] for serial in trace.serials]
        tape.leaves = dict.fromkeys(inputs)  # type: ignore[assignment]
        wanted = [inputs[i] for i in self._needed]
        reach = tape.values if len(wanted) == len(inputs) else dependents(tape, wanted)
        for position, g in zip(self._received, cotangents):
            sums.add(serial_of[trace.ends[position].serial], g)
        for i in self._listed:
            sums.of[inputs[i]] = _Listed()
        walk(tape, tape.nodes, reach, set(), sums)
        door.leave_scope(scope)
        gradients = [sums.of.get(serial) for serial in wanted]
        contributions = [[] if s is None else s.contributions if isinstance(s, _Listed) else [total(s)] for s in gradients]
        inputs_of = [i for i, of in zip(self._needed, contributions) for _ in of]
        every = [g for of in contributions for g in of]
        blocks = [(g.before, g.after) if isinstance(g, BlockCotangent) else None for g in every]
        tensors = [g.value if isinstance(g, BlockCotangent) else g for g in every]
        return [*tensors, Destinations(inputs_of, inputs_of == list(range(len(trace.serials))), blocks)]
