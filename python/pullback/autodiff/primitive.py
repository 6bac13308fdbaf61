"""Op and Rule: what an op computes, its pullbacks and its cost. `apply` runs an op and passes it to the listeners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

from ..backends.reference import runner
from ..launch.refusal import BadIndex, Refused
from ..tensors.tensor import Tensor
from .batching import innermost, run
from .facts import Facts
from .listeners import listeners


def parameters(f: Any) -> tuple[str, ...]:
    """Returns the names of a function's parameters, as `inspect.signature` would, without importing it."""
    return f.__code__.co_varnames[: f.__code__.co_argcount]


class Rule:
    """A pullback: `definition(g, *kept)` in differentiable ops, and `fused(g, *kept)` in one kernel if the op has one.

    If the fused pullback raises Refused, the definition runs instead. `batch` is the batching rule of the fused pullback
    (ops/kinds.py); if it is None, Batched values go through the definition.

    The names of the definition's parameters after `g` list what the tape keeps: an input or the output (by its name in the
    op's reference), a parameter of the op, or `<input>_shape`, `<input>_dtype` or `<input>_device`, which keep no array.
    """

    __slots__ = ("batch", "definition", "fused", "keep", "names")

    def __init__(
        self, definition: Callable[..., Any], op: str, allowed: Sequence[str], inputs: int, batch: Callable[..., Any] | None = None
    ) -> None:
        self.definition, self.fused, self.batch = definition, definition, batch  # ops/declare.py sets `fused` to a kernel
        self.names = tuple([name for name in parameters(definition)[1:] if name != "needs"])
        self.keep: Callable[[tuple[Any, ...]], tuple[Any, ...]] = _keeper(self.names, op, allowed, inputs)


def _keeper(names: Sequence[str], op: str, allowed: Sequence[str], inputs: int) -> Any:
    """Returns `keep(values)`, which picks what these names stand for from (*inputs, y, *params), whose names are `allowed`."""
    # The output and the params count from the end, because a variadic op has one name for any number of inputs.
    place = {name: i if i < inputs else i - len(allowed) for i, name in enumerate(allowed)}
    getters: list[Callable[[Any], Any]] = []
    for name in names:
        stem, _, fact = name.rpartition("_")
        if name in place:
            getters.append(itemgetter(place[name]))
        elif stem in place and fact in ("shape", "dtype", "device"):
            getters.append(lambda values, index=place[stem], fact=fact: getattr(values[index], fact, None))
        else:
            raise TypeError(f"{op}: a pullback keeps {name!r}, but can only keep {', '.join(allowed)} (or _shape, _dtype).")
    if not names:
        return lambda values: ()
    if all([name in place for name in names]):
        first, *more = [place[name] for name in names]
        return itemgetter(first, *more) if more else lambda values: (values[first],)
    return lambda values: tuple([get(values) for get in getters])


def same(g: Tensor) -> Tensor:
    """Returns the cotangent unchanged: the pullback of a sum's terms. The backward pass recognizes it and skips the call."""
    return g


ZERO: Final = "zero"  # a pullback that is zero everywhere: sign, round, comparisons, argmax

OPS: Final[dict[str, Op]] = {}


class Op:
    """An op: one attribute for each property that promotion, batching, differentiation and profiling need.

    Args:
        name: the name of the op, of its kernel (`_cpu.<name>`), of its row in csrc/math/*.def and of its tests.
        kind: the rules for promotion, batching, forward mode and cost that the op shares with similar ops (ops/kinds.py).
        names: the names of its inputs, then those of its params.
        params: the number of params. They follow the inputs, which are tensors.
        rules: a rule for each input, None for an input that gets no gradient; or one rule for all inputs if `joint`.
        pullback: the rules as they were declared: ZERO if every derivative is zero, None if gradients cannot pass.
        joint: the only rule `f(g, …, needs)` returns the gradients of all inputs.
        variadic: the op takes any number of inputs, which its reference receives as one list.
        takes: the dtypes that the op accepts: "float", "number" or "integer" (both without bool), "bits" (integers and bool)
            or "any".
        reference: `f(xp, *inputs, *params)` over NumPy or CuPy arrays, None for a call of a user's function, which never runs.
        kernel: the native kernel, if there is one.
        facts: what only profiles, tests, benchmarks and documents need (facts.py).
        batch, tangent: the batching rule and the forward-mode rule, if they differ from those of the kind.

    Attributes:
        dead: the indices of the inputs that no gradient reaches.
        edges: see `edges_of`.
        call: None, except for the recorded call of a user's function: how cotangents pass through it (transforms/passage.py).
    """

    __slots__ = (
        "batch", "call", "dead", "edges", "facts", "issue", "joint", "kernel", "kind", "name", "names", "native", "params",
        "pullback", "reference", "rules", "takes", "tangent", "variadic",
    )

    def __init__(
        self, name: str, *, kind: Any, names: tuple[str, ...], params: int = 0, rules: tuple[Rule | None, ...], pullback: Any,
        joint: bool = False, variadic: bool = False, takes: str = "any", reference: Callable[..., Any] | None = None,
        kernel: Callable[..., Any] | None = None, batch: Callable[..., Any] | None = None,
        tangent: Callable[..., Any] | None = None, facts: Facts | None = None,
    ) -> None:
        self.name, self.kind, self.names, self.params, self.facts = name, kind, names, params, facts or Facts(name, names[:2])
        self.rules, self.pullback, self.joint, self.variadic, self.takes = rules, pullback, joint, variadic, takes
        self.batch, self.tangent = batch or kind.batch, tangent or kind.tangent
        self.issue: Callable[..., Tensor] = kind.issue or apply  # f(op, inputs, params) runs the op and passes it to the listeners
        self.dead = tuple([i for i, rule in enumerate(rules) if rule is None])
        self.edges, self.native = edges_of(self), kernel is not None
        self.call: Any = None
        self.reference: Any = reference
        self.kernel: Any = kernel or (reference and runner(self))

    def __repr__(self) -> str:
        return self.name


def edges_of(op: Op) -> Callable[..., Sequence[Any]]:
    """Returns `edges(inputs, y, params, serials)`, which lists what the tape needs to pull a cotangent of y back to the inputs.

    Each edge is a plain tuple with the fields of a `node.Edge`. Inputs that are not watched (serial 0) and inputs whose
    derivative is zero everywhere have no edge. A joint rule has one edge, with the serials and shapes of all inputs.
    """
    rules = op.rules
    first = rules[0] if rules else None
    if len(rules) > 1:
        return _edges_of_two(*rules) if len(rules) == 2 else _edges_of_several(rules)
    if first is None:
        return lambda inputs, y, params, serials: ()
    if op.joint:
        return lambda inputs, y, params, serials: (
            (serials, first, first.keep((*inputs, y, *params)), [x.array.shape if s else None for x, s in zip(inputs, serials)]),
        )
    if first.names == ("y",):
        return lambda inputs, y, params, serials: ((serials[0], first, (y,), None),)
    return lambda inputs, y, params, serials: ((serials[0], first, first.keep((*inputs, y, *params)), None),)


def _edges_of_two(first: Rule | None, second: Rule | None) -> Callable[..., Sequence[Any]]:
    """Returns `edges` for two inputs, without a loop, because most recorded ops have two inputs."""
    keeps = any([rule is not None and rule.names for rule in (first, second)])

    def edges(inputs: Sequence[Any], y: Any, params: Sequence[Any], serials: Sequence[int]) -> Sequence[Any]:
        values = (*inputs, y, *params) if keeps else ()
        shape, found = y.array.shape, []
        if serials[0] and first is not None:
            own = inputs[0].array.shape
            found.append((serials[0], first, first.keep(values), None if own == shape else own))
        if serials[1] and second is not None:
            own = inputs[1].array.shape
            found.append((serials[1], second, second.keep(values), None if own == shape else own))
        return found

    return edges


def _edges_of_several(rules: Sequence[Rule | None]) -> Callable[..., Sequence[Any]]:
    def edges(inputs: Sequence[Any], y: Any, params: Sequence[Any], serials: Sequence[int]) -> Sequence[Any]:
        values = (*inputs, y, *params)
        shape, found = y.array.shape, []
        for x, serial, rule in zip(inputs, serials, rules):
            if serial and rule is not None:
                own = x.array.shape
                found.append((serial, rule, rule.keep(values), None if own == shape else own))
        return found

    return edges


def apply(op: Op, inputs: tuple[Any, ...], params: tuple[Any, ...] = ()) -> Tensor:
    """Runs an op on tensors (and Numbers) by its native kernel, or else by the reference, and passes it to the listeners."""
    if listeners.batches:
        place = innermost(inputs)
        if place >= 0:
            return run(op, inputs, params, place)
    try:
        y = Tensor(op.kernel(*[x.array for x in inputs], *params))
    except Refused:
        return op.kind.retry(op, inputs, params)
    except BadIndex as bad:
        raise IndexError(str(bad)) from bad
    if listeners.record is not None:
        listeners.record(op, y, inputs, params)
    return y


def tell(op: Op, y: Tensor, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> Tensor:
    """Passes an op and its result y to the listeners. Returns y. For speed `apply` and elementwise functions repeat these lines."""
    if listeners.record is not None:
        listeners.record(op, y, inputs, params)
    return y
