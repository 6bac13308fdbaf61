"""Op: what an op computes, its pullback, what it costs; and how it is called: kernel, otherwise reference, then tape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from ..backends import reference
from ..backends.reference import runner
from ..launch.refusal import BadIndex, Refused
from ..tensors.tensor import Tensor
from ..tensors.views import OutsideView, StaleView
from .batching import innermost, run
from .listeners import listeners


def parameters(f: Any) -> tuple[str, ...]:
    """Returns the names of a function's parameters, as `inspect.signature` would, without importing it."""
    return f.__code__.co_varnames[: f.__code__.co_argcount]


class Rule:
    """One pullback: `definition(g, *kept)` in differentiable ops, and where there is one, `fused(g, *kept)` in one kernel.

    A fused pullback that raises Refused gives way to the definition. `batch` is how a batch axis passes through the fused pullback
    (ops/kinds.py); None means that the definition runs then.

    The names of the definition's parameters after `g` say what the tape keeps: an input or the output by its name in the
    op's reference, a parameter of the op, or `<input>_shape`, `<input>_dtype`, which keep no array.

    `ends_with`, of an op that ends with an elementwise one, returns that op from the names and values of what is kept, the result
    y among them.
    """

    __slots__ = ("batch", "definition", "ends_with", "fused", "keep", "names")

    def __init__(
        self,
        definition: Callable[..., Any],
        op: str,
        allowed: Sequence[str],
        inputs: int,
        batch: Callable[..., Any] | None = None,
        ends_with: Callable[[Mapping[str, Any]], Op] | None = None,
    ) -> None:
        names = tuple([name for name in parameters(definition)[1:] if name != "needs"])
        place = {name: i if i < inputs else i - len(allowed) for i, name in enumerate(allowed)}
        getters: list[Callable[[Any], Any]] = []
        for name in names:
            stem, _, fact = name.rpartition("_")
            if name in allowed:
                getters.append(itemgetter(place[name]))
            elif stem in allowed and fact in ("shape", "dtype", "device"):
                getters.append(_fact_getter(place[stem], fact))
            else:
                raise TypeError(f"{op}: a pullback keeps {name!r}, but can only keep {', '.join(allowed)} (or _shape, _dtype).")
        self.names = names
        self.definition = definition
        self.fused = definition
        self.batch = batch
        self.ends_with = ends_with
        self.keep: Callable[[tuple[Any, ...]], tuple[Any, ...]] = _getter(names, place, getters)


def _fact_getter(index: int, fact: str) -> Callable[[Any], Any]:
    def get(values: Any) -> Any:
        return getattr(values[index], fact, None)

    return get


def _getter(names: Sequence[str], place: dict[str, int], getters: list[Callable[[Any], Any]]) -> Any:
    if not names:
        return lambda values: ()
    if all(name in place for name in names):
        indices = [place[name] for name in names]
        if len(indices) == 1:
            (only,) = indices
            return lambda values: (values[only],)
        return itemgetter(*indices)
    return lambda values: tuple([get(values) for get in getters])


def same(g: Tensor) -> Tensor:
    """Returns the cotangent as it is: the pullback of a sum's terms. The walk back knows it, and saves the call."""
    return g


ZERO: Final = "zero"  # a pullback that is zero everywhere: sign, round, comparisons, argmax

OPS: Final[dict[str, Op]] = {}


class Op:
    """An op, with one column for each thing that an interpreter of ops asks.

    Args:
        name: the op, its kernel (`_cpu.<name>`), its row in csrc/math/*.def, its test id, its profiler line.
        kind: what the op means to promotion, batching, forward mode and cost (ops/kinds.py).
        names: the names of its inputs, then those of its params.
        params: the number of params. They follow the inputs, which are tensors.
        rules: a rule for each input, None where no gradient passes; or one rule for all inputs if `joint`.
        pullback: the rules as they were declared: ZERO if every derivative is zero, None if gradients cannot pass.
        joint: the only rule `f(g, …, needs)` returns the gradients of all inputs.
        variadic: the op takes any number of inputs, which its reference receives as one list.
        takes: "float", "number", "integer", "bool" or "any": the dtypes it takes.
        reference: `f(xp, *inputs, *params)` over NumPy or CuPy arrays, None for a call of a user's function.
        kernel: the native kernel, if there is one, and otherwise `why_reference`.
        shown: its name in profiles.
        cost: `f(inputs…, params…, y) -> dict` of figures.
        example: `f(rng, dtype) -> (inputs, params)` for tests, benchmarks and docs.
        domain, ulp: the range of the inputs in tests, and the error that a test accepts.
        batch, tangent: how a batch axis and a tangent pass, if not as the kind says.
        factors: for some inputs `f(of_all, g, *kept)`, the gradient of each example in factors (ops/factors.py).
        dead: the places of the inputs that no gradient reaches; those without a rule, if not given.
        edges: see `edges_of`.
        recompute: for the call of a checkpoint, makes the nodes that it did not record.
    """

    __slots__ = (
        "batch", "cost", "dead", "domain", "edges", "example", "factors", "issue", "joint", "kernel", "kind", "name",
        "names", "native", "params", "pullback", "recompute", "reference", "rules", "shown", "takes", "tangent", "ulp", "variadic",
        "why_reference",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        *,
        kind: Any,
        names: tuple[str, ...],
        params: int = 0,
        rules: tuple[Rule | None, ...],
        pullback: Any,
        joint: bool = False,
        variadic: bool = False,
        takes: str = "any",
        reference: Callable[..., Any] | None = None,
        kernel: Callable[..., Any] | None = None,
        why_reference: str | None = None,
        shown: str | None = None,
        cost: Callable[..., Any] | None = None,
        example: Callable[..., Any] | None = None,
        domain: tuple[float, float] = (-2.0, 2.0),
        ulp: float = 4,
        batch: Callable[..., Any] | None = None,
        tangent: Callable[..., Any] | None = None,
        factors: dict[int, Callable[..., Any]] | None = None,
        dead: tuple[int, ...] | None = None,
        edges: Callable[..., Sequence[Any]] | None = None,
        recompute: Callable[..., Any] | None = None,
    ) -> None:
        self.name, self.kind, self.names, self.params, self.shown = name, kind, names, params, shown or name
        self.rules, self.pullback, self.joint, self.variadic, self.takes = rules, pullback, joint, variadic, takes
        self.cost, self.example, self.domain, self.ulp, self.recompute = cost, example, domain, ulp, recompute
        self.batch: Callable[..., Any] = batch or kind.batch
        self.tangent: Callable[..., Any] = tangent or kind.tangent
        self.issue: Callable[..., Tensor] = kind.issue or apply  # f(op, inputs, params) runs the op, and tells the listeners
        self.factors: dict[int, Callable[..., Any]] = factors or {}
        self.dead = tuple([i for i, rule in enumerate(rules) if rule is None]) if dead is None else dead
        self.edges = edges or edges_of(self)
        self.native, self.why_reference = kernel is not None, why_reference
        self.reference: Callable[..., Any] = reference or _nothing_to_run
        self.kernel: Callable[..., Any] = kernel or (_nothing_to_run if reference is None else runner(self))

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


def _nothing_to_run(*arguments: Any) -> Any:
    """Stands for the kernel and the reference of a call and of its outputs, which have run already."""
    raise AssertionError("a call of a function is recorded, and never run as an op")


def edges_of(op: Op) -> Callable[..., Sequence[Any]]:
    """Returns `edges(inputs, y, params, serials)`, which lists what the tape needs to pull a cotangent of y back to the inputs.

    Each is a plain tuple with the fields of a `node.Edge`. Inputs that are not watched (serial 0) and those whose derivative is
    zero everywhere have none. A joint rule has one edge, with the serials and shapes of all inputs.
    """
    rules = op.rules
    first = rules[0] if rules else None
    if op.joint:

        def edges(inputs: Sequence[Any], y: Any, params: Sequence[Any], serials: Sequence[int]) -> Sequence[Any]:
            shapes = [x.array.shape if serial else None for x, serial in zip(inputs, serials)]
            return ((serials, first, first.keep((*inputs, y, *params)), shapes),) if first else ()

    elif len(rules) > 1:
        return _edges_of_two(*rules) if len(rules) == 2 else _edges_of_several(rules)

    elif first is None:

        def edges(inputs: Sequence[Any], y: Any, params: Sequence[Any], serials: Sequence[int]) -> Sequence[Any]:
            return ()

    elif first.names == ("y",):

        def edges(inputs: Sequence[Any], y: Any, params: Sequence[Any], serials: Sequence[int]) -> Sequence[Any]:
            return ((serials[0], first, (y,), None),)

    else:

        def edges(inputs: Sequence[Any], y: Any, params: Sequence[Any], serials: Sequence[int]) -> Sequence[Any]:
            return ((serials[0], first, first.keep((*inputs, y, *params)), None),)

    return edges


def _edges_of_two(first: Rule | None, second: Rule | None) -> Callable[..., Sequence[Any]]:
    """Returns `edges` for two inputs, without a loop: most ops that are recorded come here."""
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
    """Runs an op on tensors (and Numbers): the native kernel, otherwise the reference; then tells the listeners."""
    if listeners.batches:
        place = innermost(inputs)
        if place >= 0:
            return run(op, inputs, params, place)
    try:
        y = Tensor(op.kernel(*[x.array for x in inputs], *params))
    except Refused:
        return retry(op, inputs, params)
    except BadIndex as bad:
        raise IndexError(str(bad)) from bad
    if listeners.record is not None:
        listeners.record(op, y, inputs, params)
    return y


def retry(op: Op, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> Tensor:
    """Runs an op whose kernel refused: by its batching rule, on promoted inputs, or by the reference backend.

    Raises what is wrong in the user's words.
    """
    place = innermost(inputs)
    if place >= 0:
        return run(op, inputs, params, place)
    if any([isinstance(x, (OutsideView, StaleView)) for x in inputs]):  # of classes that kernels do not know
        return apply(op, inputs, params)
    promoted = op.kind.prepare(op, inputs, params)
    if promoted is not None:
        return apply(op, promoted, params)
    return tell(op, Tensor(reference.run(op, [x.array for x in inputs], params)), inputs, params)


def tell(op: Op, y: Tensor, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> Tensor:
    """Tells the listeners that the op made y, and returns y.

    Every op comes here or does the same in its own lines, for speed: `apply`, and the functions of unary and binary ops.
    """
    if listeners.record is not None:
        listeners.record(op, y, inputs, params)
    return y
