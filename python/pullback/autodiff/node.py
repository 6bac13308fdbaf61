"""The fields of a recorded op, and the walks that find which recorded values depend on which.

A tape keeps plain tuples in the order of the fields below, because it makes one for every op, and a NamedTuple takes 0.1 µs
longer for each node and each edge. `named` gives the fields names. Only the hot loops (`Tape.add`, `backward.walk`) and this
file access the fields by position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from .site import Site

if TYPE_CHECKING:
    from ..tensors.tensor import Tensor
    from .primitive import Op, Rule
    from .tape import Tape

CALL, OUTPUT = 1, 2  # the values of op.call.apart (transforms/passage.py)

# A Node as the tape keeps it.
Recorded: TypeAlias = "tuple[Op, int, list[int], Sequence[Any], Sequence[Any], CodeType, int, Sequence[Any]]"


class Edge(NamedTuple):
    """The path of a cotangent from an op to one of its inputs. A joint rule has one edge for all inputs."""

    x: Any  # the serial of the input; for a joint rule, the list of the serials of all inputs
    rule: Rule  # the pullback
    kept: tuple[Any, ...]  # the arguments of the pullback after the cotangent
    # The input's shape if the op broadcast it, to which the gradient is summed back, otherwise None. For a joint rule, the list of
    # the shapes of all inputs.
    shape: Any


class Node(NamedTuple):
    """One recorded op."""

    op: Op
    y: int  # the serial of its output
    inputs: list[int]  # the serials of its inputs; 0 stands for an input that is not watched
    edges: Sequence[Any]  # plain tuples with the fields of an Edge; see `primitive.edges_of`
    versions: Sequence[Any]  # for each kept value that can change in place, its storage and the storage's version when the op ran
    code: CodeType  # the user's code that called the op
    offset: int  # the offset of the instruction there
    params: Sequence[Any]  # the op's parameters, with which `tape.check` runs it again

    @property
    def site(self) -> Site:
        return self.code, self.offset

    def named_edges(self) -> list[Edge]:
        return [Edge._make(edge) for edge in self.edges]


def named(nodes: Iterable[Recorded]) -> Iterator[Node]:
    """Yields the recorded ops as Nodes, whose fields have names."""
    return map(Node._make, nodes)


def all_kept(nodes: Iterable[Recorded]) -> Iterator[Any]:
    """Yields all values that the pullbacks of these nodes keep."""
    return (value for node in nodes for edge in node[3] for value in edge[2])


def dependents(tape: Tape, serials: Iterable[int]) -> set[int]:
    """Returns these values and all that depend on them. Derivatives that are zero everywhere do not count as dependence."""
    reach = {serial for serial in serials if serial in tape.values}
    for op, y, inputs, *_ in tape.nodes:
        if op.call is not None and op.call.apart == OUTPUT:
            if not reach.isdisjoint(live(op, inputs)[1:]):
                reach.add(y)
        elif not reach.isdisjoint(inputs) and not (op.dead and reach.isdisjoint(live(op, inputs))):
            reach.add(y)
    return reach


def needed_by(tape: Tape, targets: list[Tensor], through_zero: bool = False) -> set[int]:
    """Returns the values that the targets depend on, and the targets. through_zero: zero derivatives count as dependence."""
    needed = {t.serial for t in targets if tape.knows(t)}  # a Parameter that is a target itself is watched, though no op used it
    for op, y, inputs, *_ in reversed(tape.nodes):
        if y in needed and (op.call is None or op.call.apart != CALL):
            needed.update(inputs if through_zero or not op.dead else live(op, inputs))
    needed.discard(0)  # 0 stands for inputs that are not watched
    return needed


def live(op: Op, inputs: list[int]) -> list[int]:
    """Returns the inputs whose derivative is not zero everywhere."""
    return [x for i, x in enumerate(inputs) if i not in op.dead]
