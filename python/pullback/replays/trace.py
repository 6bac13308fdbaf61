"""The record of a captured function under a tape: the ops inside, without the values that each call computes anew.

A function records its forward pass once. The values that pullbacks keep are results of this recording, so they have memory of
their own. Each call adds one node to the tape. The backward pass pulls a cotangent back through this node by a second recording,
whose arguments are the kept values and the cotangents.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from ..autodiff.batching import Batched
from ..autodiff.listeners import listeners, new_serial
from ..autodiff.node import Node, Recorded, all_kept, dependents, named, needed_by
from ..autodiff.tape import Tape
from ..backends.modes import Precision
from ..launch import capturing
from ..tensors import devices
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..tensors.views import OutsideView, StaleView
from ..transforms.calls import Call, Reads
from .closures import Copies, Hidden


class Inside(Tape):
    """Stands for a tape while a function that is called under this tape is recorded. It watches what that tape watches."""

    def __init__(self, outer: Tape) -> None:
        super().__init__(persistent=outer.persistent, watch_parameters=outer.watch_parameters)
        self.values |= outer.values
        self.made: dict[int, weakref.ref[Any]] = {}  # by id, the living results of the ops
        self.outside: dict[int, Tensor] = {}  # by serial, the watched tensors that ops read and did not make
        self.unwatched: dict[int, weakref.ref[Any]] = {}  # by id, the other tensors that ops read and did not make

    def add(self, op: Any, y: Tensor, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        for x in inputs:
            if isinstance(x, Tensor) and id(x) not in self.made:
                self.read(x)
        super().add(op, y, inputs, params)
        self.has_made(y)

    def has_made(self, y: Tensor) -> None:
        """Notes that an op of the function has made a tensor."""
        self.made[id(y)] = weakref.ref(y, partial(self.made.pop, id(y)))  # not a Python function, in which Ctrl-C would be lost

    def read(self, x: Tensor) -> None:
        """Notes that the function reads a tensor that it has not made."""
        if self.knows(x):
            self.outside[x.serial] = x
        else:
            self.unwatched[id(x)] = weakref.ref(x)


class Within(Reads):
    """Receives what an `Inside` does not: the ops inside a checkpoint or a custom gradient, which is one op for a tape."""

    def __init__(self, inside: Inside) -> None:
        super().__init__()
        self._inside = inside

    def add(self, op: Any, y: Tensor, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        for x in inputs:
            if isinstance(x, Tensor) and id(x) not in self._inside.made:
                if x.serial in self._inside.values:
                    self._inside.outside[x.serial] = x
                elif not isinstance(x, Parameter):  # the tape may watch it in a later call, which is then another function
                    self._inside.unwatched[id(x)] = weakref.ref(x)
        self._inside.has_made(y)


class Slot(NamedTuple):
    """Stands for a value that each call computes anew: the one at this position among those that pullbacks keep."""

    position: int


class ConstantLeaf(NamedTuple):
    """A leaf of the function's value that is the same in each call."""

    value: Any


class End(NamedTuple):
    """A result of the function that a tape watches.

    Attributes:
        position: its position among the results of the recording.
        serial: its serial in the trace.
        through: the positions of the inputs that it depends on.
        dead: those of them through which every derivative is zero.
    """

    position: int
    serial: int
    through: tuple[int, ...]
    dead: tuple[int, ...]


class Trace:
    """The ops of one recording of a function.

    A source is the position of a result of the recording, or for argument leaf number i, ~i.

    Attributes:
        name: the function's name for messages.
        inputs: the watched values that the ops read: the number of an argument leaf, or a tensor from outside.
        serials, shapes: their serials in the trace, and their shapes.
        ends: the results that depend on the inputs.
        kept: the sources of the values that pullbacks keep.
        leaves, form: the leaves of the function's value (sources or Constants) and its structure.
        nodes: the ops, in which Slots stand for kept values.
        scopes: by serial, the scope that a pullback is attributed to.
        precisions: by serial, where products of the op rounded their factors.
        storages: the storages that pullbacks read, and how much older than at the end of the run they were when they were read.
        cuts: (an input, how, site) for each place where a watched value left the tape.
        again: by serial, the positions in `kept` of the inputs that a checkpoint computes with again.
        closed: False if pullbacks refer to values in ways that are not known here, so that the trace serves no other call.
    """

    def __init__(self, name: str, inside: Inside, leaves: Sequence[Any], outputs: Sequence[Any], form: Any) -> None:
        recording: Any = capturing.thread.recording
        self.name, self.form, self.closed = name, form, not recording.made.memory
        self.backward: dict[Any, Any] = {}
        self.results: list[Tensor] = []
        tensors = [(i, x) for i, x in reversed(list(enumerate(leaves))) if isinstance(x, Tensor)]
        sources = {id(x): ~i for i, x in tensors if not isinstance(x, Parameter)}
        leaf_of = {x.serial: i for i, x in tensors if x.serial}
        for y in outputs:
            if isinstance(y, Tensor) and id(y) not in inside.made and id(y) not in sources:
                inside.read(y)
        self.leaves = [self._leaf(y, inside, sources) for y in outputs]
        ends = len(self.results)
        self.kept: list[int] = []
        self.again: dict[int, int] = {}
        self._device = next((x.device for x in leaves if isinstance(x, Tensor)), None) or devices.default_device()
        self._slots: dict[int, Slot] = {}  # by the id of a value, while the trace is made
        nodes = self._needed(inside, sources)
        self._slots = {}
        produced = {node.y for node in nodes}
        self.serials = tuple(dict.fromkeys([x for node in nodes for x in node.inputs if x and x not in produced]))
        self.inputs: list[Any] = [leaf_of[serial] if serial in leaf_of else inside.outside[serial] for serial in self.serials]
        self.shapes = [(leaves[x] if isinstance(x, int) else x).shape for x in self.inputs]
        self.values = {*self.serials, *produced}
        self.scopes = {serial: scope for serial, scope in inside.scopes.items() if serial in produced}
        self.precisions: dict[int, Precision] = {
            serial: precision for serial, precision in inside.precisions.items() if serial in produced
        }
        self.cuts = _cuts(inside, leaf_of)
        self.storages = _storages(nodes)
        self.has_dead = bool(inside.dead)
        self.ends = self._ends(inside, self.results if inside.persistent else self.results[:ends], produced)

    def _leaf(self, y: Any, inside: Inside, sources: dict[int, int]) -> Any:
        """Returns what a leaf of the function's value is in each call. A tensor that the function made is a result."""
        if not isinstance(y, Tensor) or isinstance(y, Parameter) or (inside.outside.get(y.serial) is y and id(y) not in sources):
            return ConstantLeaf(y)
        return self._source(y, sources)

    def _source(self, y: Tensor, sources: dict[int, int]) -> int:
        if id(y) not in sources:
            sources[id(y)] = len(self.results)
            self.results.append(y)
        return sources[id(y)]

    def _needed(self, inside: Inside, sources: dict[int, int]) -> list[Node]:
        """Returns the nodes that the results depend on, and makes their templates."""
        copies = Copies(partial(self._in_call, inside=inside, sources=sources), searches=True)
        needed = {y.serial for y in self.results if y.dtype.kind in "fV"}
        found: list[Node] = []
        self.nodes: list[Recorded] = []
        for node in named(reversed(inside.nodes)):
            if node.y in needed:
                before = len(self.results)
                found.append(node)
                self.nodes.append(self._template(node, inside, sources, copies))
                needed.update(node.inputs)
                if inside.persistent:  # the tape may record its own backward pass, which reads the kept values
                    needed.update([y.serial for y in self.results[before:]])
        found.reverse()
        self.nodes.reverse()
        if any([isinstance(node.op, Call) for node in found]) and self._is_kept_elsewhere(inside, sources):
            self.closed = False
        return found

    def _is_kept_elsewhere(self, inside: Inside, sources: dict[int, int]) -> bool:
        """True if a value that an op has made is alive for another reason than the results, the templates, and the nodes.

        A pullback may then reach it in a way that no search has found.
        """
        known = {
            *sources,
            *[id(x) for value in all_kept(inside.nodes) for x in (value if isinstance(value, (list, tuple)) else (value,))],
        }
        if known.issuperset(list(inside.made)):
            return False
        gc.collect()  # a function that refers to itself keeps its values until then
        return not known.issuperset(list(inside.made))

    def _ends(self, inside: Inside, results: Sequence[Tensor], produced: set[int]) -> list[End]:
        found = []
        for position, y in enumerate(results):
            if y.serial in produced:
                through, live = needed_by(inside, [y], through_zero=True), needed_by(inside, [y])
                on = tuple([i for i, serial in enumerate(self.serials) if serial in through])
                found.append(End(position, y.serial, on, tuple([i for i in on if self.serials[i] not in live])))
        return found

    def _template(self, node: Node, inside: Inside, sources: dict[int, int], copies: Copies) -> Recorded:
        """Returns the node with Slots in place of the values that each call computes anew."""
        if isinstance(node.op, Call):
            return self._template_of_call(node, copies) if self.closed else node
        edges = [(x, rule, tuple([self._slot(v, inside, sources) for v in kept]), shape) for x, rule, kept, shape in node.edges]
        return (node.op, node.y, node.inputs, edges, (), node.code, node.offset, node.params)

    def _template_of_call(self, node: Node, copies: Copies) -> Recorded:
        """Does the same for a call, whose pullback refers to values also in its closure."""
        edge, call = node.named_edges()[0], cast("Call", node.op)
        try:
            kept, op = copies.of(edge.kept), call.copied(copies.of)
        except Hidden:
            self.closed = False
            return node
        self.closed = call.closed
        if op.call is not None:  # of a checkpoint
            self.again.update({serial: x.position for serial, x in zip(edge.x, kept) if serial and x.__class__ is Slot})
        return (op, node.y, node.inputs, (edge._replace(rule=op.rules[0], kept=kept),), (), node.code, node.offset, node.params)

    def _in_call(self, value: Any, inside: Inside, sources: dict[int, int]) -> Any:
        """Returns the Slot for a value that a call refers to, or the value itself if it is the same in each call."""
        if not isinstance(value, Tensor):
            is_array = devices.on_host(value) or devices.on_device(value)
            if is_array and devices.device_of(value) == self._device and value.dtype.kind in "biufV" and _changes(value):
                raise Hidden
            return value
        if isinstance(value, Batched) and value.batch not in listeners.stack:
            return value  # an example of a batch inside of the function is copied, with all examples replaced
        outside = id(value) not in sources and id(value) not in inside.made
        if outside and (value.storage is not None or isinstance(value, (OutsideView, StaleView))):
            return value  # a view from outside is read as it is then, and raises an error if it is stale
        return self._slot(value, inside, sources) if value.device == self._device else value

    def _slot(self, value: Any, inside: Inside, sources: dict[int, int]) -> Any:
        if value.__class__ is tuple or value.__class__ is list:
            found = [self._slot(item, inside, sources) for item in value]
            return value if all([a is b for a, b in zip(found, value)]) else type(value)(found)
        if not isinstance(value, Tensor):
            if hasattr(value, "strides") and _changes(value):
                self.closed = False
            return value
        if isinstance(value, Parameter) or (id(value) not in sources and id(value) not in inside.made and _stays(value)):
            return value
        if id(value) not in self._slots:
            self._slots[id(value)] = Slot(len(self.kept))
            self.kept.append(self._source(value, sources))
        return self._slots[id(value)]

    # ---- copies of the ops

    def made_with(self, kept: Sequence[Any], serials: dict[int, int], versions: Sequence[Any] = ()) -> list[Recorded]:
        """Returns the nodes with the kept values of a call, and with these serials. Others get new ones, which are added."""
        found: list[Recorded] = []
        for serial, position in self.again.items():  # a checkpoint knows its inputs by their own serials
            x = kept[position]
            x.serial = x.serial or serials.get(serial) or new_serial()
            serials.setdefault(serial, x.serial)
        copies = Copies(lambda x: kept[x.position] if x.__class__ is Slot else x, searches=False)
        read = {id(storage): (storage, version) for storage, version in versions}
        for op, y, inputs, edges, _, code, offset, params in self.nodes:
            own = op.copied(copies.of) if isinstance(op, Call) else op
            if y not in serials:
                serials[y] = new_serial()
            renamed = [
                (
                    [serials.get(s, 0) for s in x] if op.joint else serials[x], rule if own is op else own.rules[0],
                    tuple([_filled(v, kept) for v in of]), shape,
                )
                for x, rule, of, shape in edges
            ]
            values = [value for edge in renamed for value in edge[2] if isinstance(value, Tensor)]
            checked = {id(x.storage): read[id(x.storage)] for x in values if x.storage is not None and id(x.storage) in read}
            found.append(
                (own, serials[y], [serials.get(x, 0) for x in inputs], renamed, tuple(checked.values()), code, offset, params)
            )
        return found


def _filled(value: Any, kept: Sequence[Any]) -> Any:
    if value.__class__ is Slot:
        return kept[value.position]
    return type(value)([_filled(item, kept) for item in value]) if value.__class__ in (tuple, list) else value


def _changes(array: Any) -> bool:
    recording: Any = capturing.thread.recording
    return recording.changes(array)


def _stays(x: Tensor) -> bool:
    """True if the tensor, which no op has made, has the same values in each call."""
    return x.__class__ is Tensor and x.storage is None and not _changes(x.array)


def _cuts(inside: Inside, leaf_of: dict[int, int]) -> list[tuple[Any, str, Any]]:
    if not inside.journal.cuts:
        return []
    sources: dict[int, Any] = {**inside.outside, **leaf_of}
    reach = {serial: dependents(inside, [serial]) for serial in sources}
    return [(sources[s], how, site) for at, how, site in inside.journal.cuts for s in sources if at in reach[s]]


def _storages(nodes: Sequence[Node]) -> list[tuple[Any, int]]:
    found: dict[int, tuple[Any, int]] = {}
    for node in nodes:
        for storage, version in node.versions:
            older = min(version - storage.version, found.get(id(storage), (None, 0))[1])
            found[id(storage)] = storage, older
    return list(found.values())
