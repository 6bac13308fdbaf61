"""Gradients of each example of a batch: all of them, their norms alone, or a weighted sum of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce, wraps
from operator import add
from typing import Any, Final, NamedTuple

import numpy as np

from ..autodiff.backward import Sums, walk
from ..autodiff.batching import Batched, pull
from ..autodiff.node import Edge, Node, Recorded, dependents, named
from ..autodiff.primitive import Op
from ..autodiff.tape import Tape
from ..errors import ShapeError, UnconnectedError
from ..launch import door
from ..ops.by_name import of_all, unbroadcast
from ..ops.factors import Dense, Factored, inner, transposed
from ..ops.shape import reshape
from ..tensors.creation import asarray, ones, zeros_like
from ..tensors.tensor import Tensor
from ..tree import unflatten
from .vjp import grad, name_of, variables
from .vmap import examples, vmap

TRANSPOSE: Final = "permute_dims"  # the op that `_with_transposes` looks through


def per_example_grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function that gives the gradient of f by the argument(s) `argnums` for each example of a batch.

    Args:
        f: the loss of one example, a scalar. The other positional arguments are given with a leading axis of examples, of
            which f sees one; arguments by keyword are the same for all.

    Returns: in the structure of the argument, tensors of shape (batch, *argument.shape). Random numbers are others for each
    example. What mixes the examples of a batch (batch norm in training mode) has no gradient of one example, and is refused.
    Raises: ShapeError, TapeError, VmapError.
    """

    @wraps(f)
    def gradients(*args: Any, **options: Any) -> Any:
        one = grad(lambda *inside: f(*inside, **options), argnums)
        return vmap(one, in_axes=_axes(args, argnums))(*args)

    return gradients


def per_example_norm(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Tensor]:
    """A function that gives the squared norm of each example's gradient, over all tensors of the argument(s): (batch,).

    Arguments as in `per_example_grad`. The gradients by weights of dense layers (also by plain products) and
    embeddings stay in factors, and inner products of the factors give the norms: Goodfellow 2015, "Efficient per-example gradient
    computations"; for rows and ties Li et al. 2022, "Large language models can be strong differentially private learners",
    section 4. Those by other weights are formed.
    """

    @wraps(f)
    def norms(*args: Any, **options: Any) -> Tensor:
        record = _Record(f, argnums, args, options)
        with door.charged_to(door.BACKWARD):
            return _norms(record.pull(record.seed()))

    return norms


def weighted_grad(f: Callable[..., Any], weights: Any, argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function that gives the sum of the examples' gradients, each times its weight.

    Args:
        f: as in `per_example_grad`.
        weights: (batch,), or a function from the squared norms (batch,) of the examples' gradients to weights. Weights are
            constants: no gradient flows through them.

    One forward pass and one backward pass; a function of the norms takes a second one. Clipping each gradient to norm c is
    `lambda n: pb.minimum(1, c * pb.rsqrt(n))`. Returns the structure and shapes of the argument(s).
    Source: Lee & Kifer 2021, "Scaling up differentially private deep learning with fast per-example gradient clipping".
    """

    @wraps(f)
    def gradient(*args: Any, **options: Any) -> Any:
        record = _Record(f, argnums, args, options)
        with door.charged_to(door.BACKWARD):
            given = weights(_norms(record.pull(record.seed(), retain=True))) if callable(weights) else weights
            found = [_total(parts, x) for parts, x in zip(record.pull(record.seed(given)), record.sources)]
        return unflatten(record.spec, found)

    return gradient


def _axes(args: tuple[Any, ...], argnums: int | Sequence[int]) -> tuple[int | None, ...]:
    fixed = [n % len(args) for n in ((argnums,) if isinstance(argnums, int) else argnums) if -len(args) <= n < len(args)]
    return tuple([None if place in fixed else 0 for place in range(len(args))])


class _Record:
    """One forward pass for all examples, and backward passes that leave the gradients of the sources in factors."""

    def __init__(
        self, f: Callable[..., Any], argnums: int | Sequence[int], args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        self.tape = Tape(persistent=True, watch_parameters=False)
        inside, self.sources, self.spec = variables(args, argnums, self.tape, "per-example gradients")
        axes = _axes(args, argnums)
        self.batch, one, _ = examples(args, {}, axes)
        with self.batch, self.tape:
            self.value = asarray(f(*[x if axis is None else y for x, y, axis in zip(inside, one, axes)], **options))
        if self.value.size != 1:
            raise ShapeError(
                f"per-example gradients: {name_of(f)} returned shape {self.value.shape} for one example; it must be a scalar."
            )

    def seed(self, weights: Any = None) -> Tensor:
        """The cotangent of the losses: each example's weight."""
        y = self.value
        if weights is None:
            return ones((self.batch.size, *y.shape), dtype=y.dtype, device=y.device)
        given = asarray(weights, dtype=y.dtype, device=y.device)
        if given.shape != (self.batch.size,):
            raise ShapeError(
                f"weighted_grad: the weights have shape {given.shape}; there must be one for each of {self.batch.size} examples."
            )
        return given.reshape((self.batch.size, *y.shape))

    def pull(self, seed: Tensor, retain: bool = False) -> list[list[Factored]]:
        """For each source the parts that its gradients are the sum of."""
        tape, wanted = self.tape, {x.serial for x in self.sources}
        nodes, held = tape.nodes, _with_transposes(tape.nodes, wanted)
        tape.nodes = [_held_back(node, held) for node in named(nodes)]
        sums = Sums("accumulate")
        sums.of.update({serial: _Held() for serial in held})
        sums.of[self.value.serial] = Batched(self.batch, seed)
        try:
            with self.batch:
                tape.consumed = not retain
                walk(tape, tape.nodes[:] if retain else tape.nodes, dependents(tape, wanted), set(), sums)
                return [self._all_factored(sums.of[x.serial].parts) for x in self.sources]
        finally:
            tape.nodes = nodes if retain else []

    def _all_factored(self, parts: list[Any]) -> list[Factored]:
        """The parts in factors, and one for the sum of those that are formed."""
        found = [self._factored(part) for part in parts]
        formed = [part.all for part in found if isinstance(part, Dense)]
        rest: list[Factored] = [part for part in found if not isinstance(part, Dense)]
        return [*rest, Dense(reduce(add, formed))] if formed else rest

    def _factored(self, part: Any) -> Factored:
        """A part in the factors that its op tells, otherwise formed."""
        if isinstance(part, Tensor):
            return Dense(self._of_all(part))
        if isinstance(part, _Transposed):
            return transposed(self._factored(part.part))
        factors, g, kept, formed = part
        found = factors(self._of_all, g, *kept)
        return Dense(self._of_all(formed())) if found is None else found

    def _of_all(self, x: Tensor) -> Tensor:
        return of_all(x, self.batch)


class _Part(NamedTuple):
    """A part of a source's gradient that is not formed: how its op factors it, from what, and how it is formed."""

    factors: Callable[..., Factored | None]
    g: Tensor
    kept: tuple[Any, ...]
    formed: Callable[[], Tensor]


class _Held:
    """The parts of a source's gradient: those that an op tells in factors are not formed."""

    array: Final = np.empty(())  # to those who ask for its shape

    def __init__(self, *parts: Any) -> None:
        self.parts = list(parts)

    def add(self, more: Any) -> None:
        self.parts += more.parts if isinstance(more, _Held) else [more]

    def total(self) -> _Held:
        return self


class _Transposed(NamedTuple):
    """A part of the gradient by a matrix, which its transpose was used for."""

    part: Any


class _HoldingRule:
    """In the place of a rule: gives the gradients of some inputs as `_Held`."""

    def __init__(self, definition: Callable[..., Any]) -> None:
        self.definition = self.fused = definition
        self.batch: None = None


def _with_transposes(nodes: Sequence[Recorded], wanted: set[int]) -> set[int]:
    """These values, and the transposes of them: what multiplies by a transpose has the gradient in factors, too."""
    held = set(wanted)
    for node in named(nodes):
        if node.op.name == TRANSPOSE and node.inputs[0] in held and node.kept() == [(1, 0)]:  # a permutation keeps its order
            held.add(node.y)
    return held


def _held_back(node: Node, wanted: set[int]) -> Node:
    """The node of a tape, with the pullbacks that give factors of gradients by these values held back."""
    op = node.op
    if wanted.isdisjoint(node.inputs) or not (op.factors or node.y in wanted):
        return node
    hold = _held_jointly if op.joint else _held_alone
    return node._replace(edges=[hold(op, edge, wanted) for edge in node.named_edges()])


def _held_alone(op: Op, edge: Edge, wanted: set[int]) -> Edge:
    factors = op.factors.get(op.rules.index(edge.rule))
    if edge.x not in wanted or not (factors or op.name == TRANSPOSE):
        return edge

    def hold(g: Any, *kept: Any) -> _Held:
        if isinstance(g, _Held):  # the op is a transpose
            return _Held(*[_Transposed(part) for part in g.parts])
        assert factors is not None
        return _Held(_Part(factors, g, kept, lambda: _of_shape(pull(edge.rule, g, *kept), edge.shape)))

    return edge._replace(rule=_HoldingRule(hold), shape=None)


def _held_jointly(op: Op, edge: Edge, wanted: set[int]) -> Edge:
    held = [place for place, x in enumerate(edge.x) if place in op.factors and x in wanted]

    def hold(g: Tensor, *rest: Any) -> list[Any]:
        *kept, needs = rest

        def formed(place: int) -> Tensor:
            only = [k == place for k in range(len(edge.x))]
            return _of_shape(edge.rule.definition(g, *kept, only)[place], edge.shape[place])

        others = [need and place not in held for place, need in enumerate(needs)]
        gradients: list[Any] = list(edge.rule.definition(g, *kept, others)) if any(others) else [None] * len(edge.x)
        for place in held:
            if needs[place]:
                gradients[place] = _Held(_Part(op.factors[place], g, tuple(kept), partial(formed, place)))
        return gradients

    shapes = [() if place in held else shape for place, shape in enumerate(edge.shape)]
    return edge._replace(rule=_HoldingRule(hold), shape=shapes)


def _of_shape(gx: Tensor, shape: Any) -> Tensor:
    return gx if shape is None or gx.shape == shape else unbroadcast(gx, shape)


def _norms(gradients: list[list[Factored]]) -> Tensor:
    """The squared norm of each example's gradient; a source's parts are summed before they are squared."""
    total: Any = None
    for parts in gradients:
        for i, a in enumerate(parts):
            for j, b in enumerate(parts[: i + 1]):
                product = inner(a, b) if i == j else 2 * inner(a, b)
                total = product if total is None else total + product
    if total is None:
        raise UnconnectedError("per_example_norm: the loss does not depend on the argument, so that every gradient is zero.")
    return total


def _total(parts: list[Factored], x: Tensor) -> Tensor:
    """The sum of all examples' gradients."""
    found = [reshape(part.total(), x.shape) for part in parts]
    return reduce(add, found) if found else zeros_like(x)
