"""Jacobians of residuals that treat the rows of a batch independently, as most networks do.

One backward pass for each output of a row suffices. In general row i of a Jacobian needs a cotangent that is 1 at residual i and 0
elsewhere, so that all rows together need as many backward passes as there are residuals, or one pass with an axis of residuals. If
residual i depends on row i of every intermediate value only, one pass serves all residuals: rows of its cotangents belong to rows
of residuals. Only where a shared value (a weight) enters, its contributions of the rows are kept apart instead of summed, which
gives one outer product for each row.

The backward walk proves the independence as it goes, op by op. It gives up at any op that it does not know to be independent, and
the caller then computes the Jacobian in the general way. Source of the idea: Goodfellow 2015, "Efficient per-example gradient
computations".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ..autodiff.batching import Batch, Batched, pull
from ..autodiff.node import Edge, Node, all_kept, named
from ..autodiff.request import check_versions, open_calls
from ..autodiff.tape import Tape
from ..launch import door
from ..ops.by_name import of_all, unbroadcast
from ..ops.linalg import matmul
from ..ops.movement import concat, stack
from ..ops.shape import broadcast_to, expand_dims, reshape
from ..tensors.creation import asarray, zeros
from ..tensors.tensor import Tensor
from ..transforms.passage import OF_OUTPUT
from ..tree import flatten

MOST_OUTPUTS: Final = 16  # the most residuals of one row, each of which takes a backward pass
FEWEST_ROWS: Final = 8  # with fewer rows the general way costs little


class _Unknown(Exception):
    """The walk has met an op that may mix rows."""


def row_jacobian(f: Callable[[], Any], sources: Sequence[Tensor]) -> tuple[list[Tensor], Any] | None:
    """Returns the blocks (m, *source.shape) of the Jacobian of the m residuals, one for each source, and the value of f.

    f returns one tensor, or nested lists, tuples, dicts of tensors, whose elements are the residuals. Returns None if the rows of
    one of these tensors are not known to be independent.
    """
    tape = Tape(watch_parameters=False)
    with tape:
        tape.watch(list(sources))
        value = f()
    open_calls(tape)
    targets = flatten(value)[0]
    if tape.hooks or not targets or not all([isinstance(y, Tensor) for y in targets]):
        return None
    nodes = list(named(tape.nodes))
    try:
        with door.charged_to(door.BACKWARD):
            parts = [_of_target(nodes, y, sources) for y in targets]
    except _Unknown:
        return None
    return [column[0] if len(column) == 1 else concat(list(column)) for column in zip(*parts)], value


def _of_target(nodes: list[Node], y: Tensor, sources: Sequence[Tensor]) -> list[Tensor]:
    """Returns the blocks of the Jacobian of one tensor of residuals. Raises _Unknown."""
    serial, shape = _before_flattening(nodes, y)
    n = shape[0] if shape else 0
    count = y.size // n if n else 0
    if n < FEWEST_ROWS or not 0 < count <= MOST_OUTPUTS:
        raise _Unknown
    passes: list[list[Tensor]] = []
    for k in range(count):
        unit = [0.0] * count
        unit[k] = 1.0
        seed = broadcast_to(asarray([unit], dtype=y.dtype, device=y.device), (n, count))
        passes.append(_Walk(n, sources).run(nodes, serial, reshape(seed, shape)))
    if count == 1:
        return passes[0]
    return [reshape(stack(list(blocks), axis=1), (n * count, *x.shape)) for blocks, x in zip(zip(*passes), sources)]


def _before_flattening(nodes: list[Node], y: Tensor) -> tuple[int, tuple[int, ...]]:
    """Returns the serial and the shape of the tensor of which y is a reshaping, which keeps the order of the residuals."""
    serial, shape = y.serial, y.shape
    for node in reversed(nodes):
        if node.y == serial and node.op.name == "reshape":
            serial, shape = node.inputs[0], next(all_kept([node]))
    return serial, shape


class _Walk:
    """One backward pass.

    Attributes:
        rows: by serial, cotangents of the value's shape, whose row i is that of residual i. All other elements of the cotangent
            of residual i are zero.
        shared: by serial, cotangents of shape (n, *value.shape), one for each residual.
    """

    def __init__(self, n: int, sources: Sequence[Tensor]) -> None:
        self.n, self.sources = n, sources
        self.rows: dict[int, Tensor] = {}
        self.shared: dict[int, Tensor] = {}

    def run(self, nodes: list[Node], serial: int, seed: Tensor) -> list[Tensor]:
        """Returns one block for each source. Raises _Unknown."""
        wanted = {x.serial for x in self.sources}
        self._add(self.rows, serial, seed)
        for node in reversed(nodes):
            if node.y in wanted or (node.y not in self.rows and node.y not in self.shared):
                continue
            op = node.op
            if getattr(op, "formula", False) or (op.call is not None and op.call is not OF_OUTPUT):
                raise _Unknown
            if node.versions:
                check_versions(op, node.versions, node.site)
            if node.y in self.shared:
                self._pull_shared(node, self.shared.pop(node.y))
            if node.y in self.rows:
                self._pull_rows(node, self.rows.pop(node.y))
        if not wanted.isdisjoint(self.rows):
            raise _Unknown
        return [
            self.shared[x.serial] if x.serial in self.shared else zeros((self.n, *x.shape), dtype=x.dtype, device=x.device)
            for x in self.sources
        ]

    def _add(self, sums: dict[int, Tensor], serial: int, g: Any) -> None:
        if serial and g is not None:
            sums[serial] = sums[serial] + g if serial in sums else g

    # ---- shared values: a batch of cotangents, as in any Jacobian

    def _pull_shared(self, node: Node, g: Tensor) -> None:
        with Batch(self.n, directions=True) as batch:
            for x, shape, gx in _pulled(node, Batched(batch, g)):
                self._add(self.shared, x, of_all(_summed(gx, shape), batch))

    # ---- rows

    def _pull_rows(self, node: Node, g: Tensor) -> None:
        if g.shape[:1] != (self.n,):
            raise _Unknown
        if node.op.name in ("linear", "linear_activated"):
            return self._through_linear(node, g)
        if node.op.kind.broadcasts:
            return self._through_elements(node, g)
        for edge in node.named_edges():
            if node.op.name == "matmul":
                self._through_product(node, edge, g)
            elif self._keeps_rows(node, edge, g):
                gx = pull(edge.rule, g, *edge.kept)
                if gx.shape[:1] != (self.n,):
                    raise _Unknown
                self._add(self.rows, edge.x, gx)
            else:
                raise _Unknown
        return None

    def _through_elements(self, node: Node, g: Tensor) -> None:
        """An elementwise op: an input without an axis of rows is shared."""
        for x, broadcast, gx in _pulled(node, g):
            shape = gx.shape if broadcast is None else tuple(broadcast)
            if gx.shape != g.shape:
                raise _Unknown
            padded = (1,) * (g.ndim - len(shape)) + shape
            if padded[0] == self.n:
                self._add(self.rows, x, _summed(gx, shape))
            else:
                self._add(self.shared, x, reshape(_summed(gx, (self.n, *padded[1:])), (self.n, *shape)))

    def _through_linear(self, node: Node, g: Tensor) -> None:
        """A dense layer: the rule for a batch of examples gives each row's gradient of the weight and of the bias."""
        for edge in node.named_edges():
            x, weight, *activated = edge.kept
            if g.ndim < 2 or x.shape[:-1] != g.shape[:-1] or edge.rule.batch is None:
                raise _Unknown
            needs = [serial != 0 for serial in edge.x]
            on = [True, True, False, *([True, False] if activated else [])]
            found = edge.rule.batch(edge.rule, self.n, [g, x, weight, *activated, needs], on)
            for sums, serial, gx in zip((self.rows, self.shared, self.shared), edge.x, found):
                self._add(sums, serial, gx)

    def _through_product(self, node: Node, edge: Edge, g: Tensor) -> None:
        """A product a @ b: rows of the result belong to rows of the matrix a, and b is shared."""
        other = edge.kept[0]
        if edge.rule is node.op.rules[0]:
            if other.ndim > 2 or g.ndim != other.ndim:
                raise _Unknown
            self._add(self.rows, edge.x, pull(edge.rule, g, other))
        elif other.ndim != 2 or g.ndim > 2:
            raise _Unknown
        elif g.ndim == 1:
            self._add(self.shared, edge.x, other * expand_dims(g, axis=1))
        else:
            self._add(self.shared, edge.x, matmul(expand_dims(other, axis=2), expand_dims(g, axis=1)))

    def _keeps_rows(self, node: Node, edge: Edge, g: Tensor) -> bool:
        """True for an op of one input that treats the elements along the first axis independently, and leaves this axis first."""
        kept = dict(zip(edge.rule.names, edge.kept))
        if node.op.name == "reshape":
            return kept["x_shape"][:1] == (self.n,)
        if node.op.name == "slice":
            first = (kept["key"] or (None,))[0]
            return kept["x_shape"][:1] == (self.n,) and isinstance(first, slice) and first == slice(None)
        if node.op.kind.name == "rows":
            return g.ndim > 1
        return node.op.name in ("sum", "mean", "max", "min", "prod") and 0 not in kept["axes"]


def _pulled(node: Node, g: Tensor) -> Iterator[tuple[int, Any, Tensor]]:
    """Yields the serial of each input that needs a gradient, its shape if it was broadcast, and its gradient, not yet summed."""
    for edge in node.named_edges():
        if node.op.joint:
            found = pull(edge.rule, g, *edge.kept, [x != 0 for x in edge.x])
            yield from [(x, shape, gx) for x, shape, gx in zip(edge.x, edge.shape, found) if x and gx is not None]
        else:
            yield edge.x, edge.shape, pull(edge.rule, g, *edge.kept)


def _summed(g: Tensor, shape: Any) -> Tensor:
    return g if shape is None or g.shape == tuple(shape) else unbroadcast(g, shape)
