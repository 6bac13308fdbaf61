"""Gradients of each example of a batch: the gradients themselves, their norms, or a weighted sum of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import add
from typing import Any, Final, Literal, NamedTuple, overload

import numpy as np

from ..autodiff.backward import Sums, walk
from ..autodiff.batching import Batched, pull
from ..autodiff.journal import note_derivative
from ..autodiff.node import Edge, Node, Recorded, all_kept, dependents, named
from ..autodiff.primitive import Op
from ..autodiff.request import connected, open_calls
from ..autodiff.tape import Tape
from ..backends import modes
from ..backends.autocast import autocast
from ..errors import ShapeError
from ..function_wrapper import FunctionWrapper
from ..launch import door
from ..ops.by_name import of_all, unbroadcast
from ..ops.factors import Dense, Factored, inner, transposed
from ..ops.shape import reshape
from ..tensors.creation import asarray, ones, zeros, zeros_like
from ..tensors.dtypes import result_type
from ..tensors.tensor import Tensor
from ..tree import flatten, unflatten
from ..typing import ArrayLike, Gradient, P
from .room import check_memory
from .vjp import check_argnums, check_function, gradient_of, name_of, variables
from .vmap import examples, run_on_examples

Weights = ArrayLike | Callable[[Tensor], ArrayLike]
TRANSPOSE: Final = "permute_dims"  # the op that `_with_transposes` looks through


@overload
def per_example_grad(f: Callable[P, Any], argnums: Literal[0] = 0) -> Gradient[P]: ...
@overload
def per_example_grad(f: Callable[P, Any], argnums: int | Sequence[int] = 0) -> Callable[P, Any]: ...
def per_example_grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Returns a function that computes the gradient of f with respect to the argument(s) `argnums` for each example of a batch.

    Args:
        f: the loss of one example, a scalar. The positional arguments other than `argnums` have a leading axis of examples, and
            f receives one example of them; keyword arguments are the same for all examples.

    The gradients have the structure of the argument, with tensors of shape (batch, *argument.shape). Every example draws different
    random numbers. A function that mixes the examples of a batch (batch norm in training mode) has no gradient per example and is
    refused. Raises: ShapeError, TapeError, VmapError.
    """
    argnums = check_argnums("per_example_grad", argnums)
    check_function("per_example_grad", f)
    return PerExampleGradient(f, argnums)


class PerExampleGradient(FunctionWrapper[..., Any]):
    """The function that `per_example_grad` returns."""

    _title = "per_example_grad"

    def __init__(self, f: Callable[..., Any], argnums: int | Sequence[int]) -> None:
        super().__init__(f, argnums)
        self._argnums = argnums

    def __call__(self, *args: Any, **options: Any) -> Any:
        one = gradient_of("per_example_grad", lambda *inside: self._function(*inside, **options), self._argnums)
        axes = _axes(args, self._argnums)
        _check_memory(args, axes)
        return run_on_examples("per_example_grad", one, args, {}, axes)


def _check_memory(args: tuple[Any, ...], axes: Sequence[int | None]) -> None:
    """Raises OutOfMemoryError if there is no room for a gradient for each example."""
    shared = [x for x, axis in zip(args, axes) if axis is None for x in flatten(x)[0] if isinstance(x, Tensor)]
    leaves = [x for x, axis in zip(args, axes) if axis == 0 for x in flatten(x)[0]]
    shapes = [x.shape if isinstance(x, Tensor) else np.shape(x) for x in leaves]  # NumPy would copy a tensor to the host
    counts = [shape[0] for shape in shapes if shape]
    if shared and counts:
        check_memory(
            "per_example_grad", f"the gradients of {max(counts):,} examples", max(counts) * sum([x.nbytes for x in shared]),
            shared[0].device, "Give fewer examples at once, or do without the gradients: pb.per_example_norm and pb.weighted_grad.",
        )


def per_example_norm(f: Callable[P, Any], argnums: int | Sequence[int] = 0) -> Callable[P, Tensor]:
    """Returns a function that computes the squared norm of each example's gradient, over all tensors of the argument(s): (batch,).

    The arguments are those of `per_example_grad`. The gradients of the weights of dense layers, matrix products and embeddings stay
    in factors, and inner products of the factors give the norms; the gradients of other weights are formed. If the loss does not
    depend on an argument, there is a ZeroGradientWarning, as in `per_example_grad`. Raises ShapeError, TapeError, VmapError.

    Source: Goodfellow 2015, "Efficient per-example gradient computations"; for rows and ties Li et al. 2022, "Large language models
    can be strong differentially private learners", section 4.
    """
    argnums = check_argnums("per_example_norm", argnums)
    check_function("per_example_norm", f)
    return PerExampleNorm(f, argnums)


class PerExampleNorm(FunctionWrapper[P, Tensor]):
    """The function that `per_example_norm` returns."""

    _title = "per_example_norm"

    def __init__(self, f: Callable[P, Any], argnums: int | Sequence[int]) -> None:
        super().__init__(f, argnums)
        self._argnums = argnums

    def __call__(self, *args: P.args, **options: P.kwargs) -> Tensor:
        record = _Record("per_example_norm", self._function, self._argnums, args, options)
        connected(record.tape, [record.value], record.sources, "zero")  # for its warnings
        with door.charged_to(door.BACKWARD), record.rounding():
            found = record.norms(record.pull(record.seed()))
        note_derivative([record.value], [found])
        return found


@overload
def weighted_grad(f: Callable[P, Any], weights: Weights, argnums: Literal[0] = 0) -> Gradient[P]: ...
@overload
def weighted_grad(f: Callable[P, Any], weights: Weights, argnums: int | Sequence[int] = 0) -> Callable[P, Any]: ...
def weighted_grad(f: Callable[..., Any], weights: Weights, argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Returns a function that computes the weighted sum of the examples' gradients, in the structure and shapes of the argument(s).

    Args:
        f: as in `per_example_grad`.
        weights: the weights, of shape (batch,), or a function that maps the squared norms of the examples' gradients, of shape
            (batch,), to the weights. Weights are constants: no gradient flows through them.

    It runs one forward pass and one backward pass, and a second backward pass if `weights` is a function. To clip each gradient to
    norm c, use `lambda n: pb.minimum(1, c * pb.rsqrt(n))`. Raises ShapeError, TapeError, VmapError.
    Source: Lee & Kifer 2021, "Scaling up differentially private deep learning with fast per-example gradient clipping".
    """
    argnums = check_argnums("weighted_grad", argnums)
    check_function("weighted_grad", f)
    return WeightedGradient(f, weights, argnums)


class WeightedGradient(FunctionWrapper[..., Any]):
    """The function that `weighted_grad` returns."""

    _title = "weighted_grad"

    def __init__(self, f: Callable[..., Any], weights: Weights, argnums: int | Sequence[int]) -> None:
        super().__init__(f, weights, argnums)
        self._weights, self._argnums = weights, argnums

    def __call__(self, *args: Any, **options: Any) -> Any:
        weights, record = self._weights, _Record("weighted_grad", self._function, self._argnums, args, options)
        connected(record.tape, [record.value], record.sources, "zero")  # for its warnings
        with door.charged_to(door.BACKWARD), record.rounding():
            given = weights(record.norms(record.pull(record.seed(), retain=True))) if callable(weights) else weights
            found = [_total(terms, x) for terms, x in zip(record.pull(record.seed(given)), record.sources)]
        note_derivative([record.value], found)
        return unflatten(record.spec, found)


def _axes(args: tuple[Any, ...], argnums: int | Sequence[int]) -> tuple[int | None, ...]:
    fixed = [n % len(args) for n in ((argnums,) if isinstance(argnums, int) else argnums) if -len(args) <= n < len(args)]
    return tuple([None if position in fixed else 0 for position in range(len(args))])


class _Record:
    """The record of one forward pass for all examples. Its backward passes leave the gradients of the sources in factors."""

    def __init__(
        self, title: str, f: Callable[..., Any], argnums: int | Sequence[int], args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        self.tape = Tape(persistent=True, watch_parameters=False)
        inside, self.sources, self.spec = variables(args, argnums, self.tape, title)
        axes = _axes(args, argnums)
        self.batch, one, _ = examples(title, args, {}, axes)
        with self.batch, self.tape:
            self.value = asarray(f(*[x if axis is None else y for x, y, axis in zip(inside, one, axes)], **options))
        open_calls(self.tape)
        if self.value.size != 1:
            raise ShapeError(f"{title}: {name_of(f)} returned shape {self.value.shape} for one example; it must be a scalar.")

    def rounding(self) -> autocast:
        """Returns the block in which the factors of gradients are multiplied: as the ops on the sources did, if all did alike."""
        wanted = {x.serial for x in self.sources}
        nodes = [node for node in named(self.tape.nodes) if not wanted.isdisjoint(node.inputs)]
        found: set[modes.Precision] = {self.tape.precisions.get(node.y, "float32") for node in nodes}
        return autocast(found.pop() if len(found) == 1 else "float32")

    def seed(self, weights: Any = None) -> Tensor:
        """Returns the cotangent of the losses: each example's weight, or 1 by default."""
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
        """Runs a backward pass. Returns for each source the terms whose sum is its gradient."""
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
                return [self._all_factored(sums.of[x.serial].terms) for x in self.sources]
        finally:
            tape.nodes = nodes if retain else []

    def norms(self, gradients: list[list[Factored]]) -> Tensor:
        """Returns the squared norm of each example's gradient. The terms of a source are summed before they are squared."""
        alone = [inner(a, a) for terms in gradients for a in terms]
        crossed = [2 * inner(a, b) for terms in gradients for i, a in enumerate(terms) for b in terms[:i]]
        if not alone:
            return zeros((self.batch.size,), dtype=result_type(*self.sources or [self.value]), device=self.value.device)
        return reduce(add, [*alone, *crossed])

    def _all_factored(self, terms: list[Any]) -> list[Factored]:
        """Returns the terms in factors, and one dense term with the sum of all formed terms."""
        factored = [self._factored(term) for term in terms]
        formed = [term.all for term in factored if isinstance(term, Dense)]
        rest: list[Factored] = [term for term in factored if not isinstance(term, Dense)]
        return [*rest, Dense(reduce(add, formed))] if formed else rest

    def _factored(self, term: Any) -> Factored:
        """Returns a term in its op's factors, or as a dense term if the op cannot factor it."""
        if isinstance(term, Tensor):
            return Dense(self._of_all(term))
        if isinstance(term, _Transposed):
            return transposed(self._factored(term.term))
        factors, g, kept, formed = term
        factored = factors(self._of_all, g, *kept)
        return Dense(self._of_all(formed())) if factored is None else factored

    def _of_all(self, x: Tensor) -> Tensor:
        return of_all(x, self.batch)


class _Term(NamedTuple):
    """A term of a source's gradient that is not formed.

    Attributes:
        factors: the op's function that returns the term in factors.
        g, kept: the arguments of `factors`: the cotangent and the values that the tape kept.
        formed: forms the term.
    """

    factors: Callable[..., Factored | None]
    g: Tensor
    kept: tuple[Any, ...]
    formed: Callable[[], Tensor]


class _Held:
    """The terms of a source's gradient. Terms that an op can factor are not formed."""

    array: Final = np.empty(())  # the backward pass reads its shape

    def __init__(self, *terms: Any) -> None:
        self.terms = list(terms)

    def add(self, more: Any) -> None:
        self.terms += more.terms if isinstance(more, _Held) else [more]

    def total(self) -> _Held:
        return self


class _Transposed(NamedTuple):
    """A term of the gradient of a matrix that was used through its transpose."""

    term: Any


class _HoldingRule:
    """Replaces a rule, and returns the gradients of some inputs as `_Held`."""

    def __init__(self, definition: Callable[..., Any]) -> None:
        self.definition = self.fused = definition
        self.batch: None = None


def _with_transposes(nodes: Sequence[Recorded], wanted: set[int]) -> set[int]:
    """Returns these values and their transposes, because a product with a transpose also has its gradient in factors."""
    held = set(wanted)
    for node in named(nodes):
        # permute_dims keeps its permutation
        if node.op.name == TRANSPOSE and node.inputs[0] in held and list(all_kept([node])) == [(1, 0)]:
            held.add(node.y)
    return held


def _held_back(node: Node, wanted: set[int]) -> Node:
    """Returns the node, in which the pullbacks that can factor the gradients of these values are replaced by holding rules."""
    op = node.op
    if wanted.isdisjoint(node.inputs) or not (op.facts.factors or node.y in wanted):
        return node
    hold = _held_jointly if op.joint else _held_alone
    return node._replace(edges=[hold(op, edge, wanted) for edge in node.named_edges()])


def _held_alone(op: Op, edge: Edge, wanted: set[int]) -> Edge:
    factors = op.facts.factors.get(op.rules.index(edge.rule))
    if edge.x not in wanted or not (factors or op.name == TRANSPOSE):
        return edge

    def hold(g: Any, *kept: Any) -> _Held:
        if isinstance(g, _Held):  # the op is a transpose
            return _Held(*[_Transposed(term) for term in g.terms])
        assert factors is not None
        return _Held(_Term(factors, g, kept, lambda: _of_shape(pull(edge.rule, g, *kept), edge.shape)))

    return edge._replace(rule=_HoldingRule(hold), shape=None)


def _held_jointly(op: Op, edge: Edge, wanted: set[int]) -> Edge:
    held = [position for position, x in enumerate(edge.x) if position in op.facts.factors and x in wanted]

    def hold(g: Tensor, *rest: Any) -> list[Any]:
        *kept, needs = rest

        def formed(position: int) -> Tensor:
            only = [k == position for k in range(len(edge.x))]
            return _of_shape(edge.rule.definition(g, *kept, only)[position], edge.shape[position])

        others = [need and position not in held for position, need in enumerate(needs)]
        gradients: list[Any] = list(edge.rule.definition(g, *kept, others)) if any(others) else [None] * len(edge.x)
        for position in held:
            if needs[position]:
                gradients[position] = _Held(_Term(op.facts.factors[position], g, tuple(kept), partial(formed, position)))
        return gradients

    shapes = [() if position in held else shape for position, shape in enumerate(edge.shape)]
    return edge._replace(rule=_HoldingRule(hold), shape=shapes)


def _of_shape(gx: Tensor, shape: Any) -> Tensor:
    return gx if shape is None or gx.shape == shape else unbroadcast(gx, shape)


def _total(terms: list[Factored], x: Tensor) -> Tensor:
    """Returns the sum of all examples' gradients of the source x."""
    factored = [reshape(term.total(), x.shape) for term in terms]
    return reduce(add, factored) if factored else zeros_like(x)
