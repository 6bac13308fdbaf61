"""Op: what an op computes, its pullback, what it costs. And the way of a call: kernel, otherwise reference, then tape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from ..launch.refusal import BadIndex, Refused
from ..tensors.tensor import Tensor
from ..tensors.views import OutsideView, StaleView
from .batching import innermost, run
from .listeners import listeners
from .site import current_frame


def parameters(f: Any) -> tuple[str, ...]:
    """The names of a function's parameters (what `inspect.signature` would tell, without importing it)."""
    return f.__code__.co_varnames[: f.__code__.co_argcount]


class Rule:
    """One pullback: `definition(g, *kept)` in differentiable ops, and where there is one, `fused(g, *kept)` in one kernel.

    A fused pullback that raises Refused gives way to the definition. `batch` is how a batch axis passes through it, None where
    the definition is to be used then (ops/batching.py).

    The names of the definition's parameters after `g` say what the tape keeps: an input or the output by its name in the
    op's reference, a parameter of the op, or `<input>_shape`, `<input>_dtype`, which keep no array.

    `ends_with`, where an op ends with an elementwise one: which, by the names and values of what is kept, its result y among
    them.
    """

    __slots__ = ("batch", "definition", "ends_with", "fused", "keep", "names")

    def __init__(self, definition: Callable[..., Any], op: str, allowed: Sequence[str], inputs: int) -> None:
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
        self.batch: Callable[..., Any] | None = None
        self.ends_with: Callable[[Mapping[str, Any]], Op] | None = None
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
    """The pullback of a sum's terms: the cotangent as it is. The walk back knows it, and saves the call."""
    return g


def _importing() -> dict[str, Any]:
    """The names of the module whose import declares an op now."""
    frame = current_frame(2)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_globals


def _imported_again(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """True if these are of one module, whose first import did not come to its end: Ctrl-C ends any."""
    return before is not now and before.get("__name__") == now.get("__name__")


ZERO: Final = "zero"  # a pullback that is zero everywhere: sign, round, comparisons, argmax

OPS: Final[dict[str, Op]] = {}


class Op:
    """The declaration of an op, and the one entry of it in every list that is derived from OPS.

    Args:
        name: the op, its kernel (`_cpu.<name>`), its row in csrc/math/*.def, its test id, its profiler line.
        kind: what the op means to batching, forward mode and cost (ops/kinds.py).
        reference: `f(xp, *inputs, *params)` over NumPy or CuPy arrays; its parameter names name inputs and params.
        inputs: how many of them are tensors; the rest are params.
        pullback: a rule per input (or one for the only input); ZERO; or None where gradients cannot pass.
        joint: one rule `f(g, …, needs)` that gives the gradients of all inputs, instead of a rule per input.
        batch, tangent: how a batch axis and a tangent pass, where the kind does not say it (ops/batching.py, ops/tangents.py).
        pull: how a batch axis passes through the fused pullbacks, where the kind does not say it.
        factors: for some inputs `f(of_all, g, *kept)`, the gradient of each example in factors (ops/factors.py).
        issue: `f(op, inputs, params)` runs the op on tensors and tells the listeners; `apply` unless the kind has another.
        cost: `f(inputs…, params…, y) -> dict` of figures, by the same names.
        example: `f(rng, dtype) -> (inputs, params)` for tests, benchmarks and docs.
    """

    __slots__ = (
        "batch", "cost", "dead", "declared_in", "domain", "edges", "example", "factors", "issue", "joint", "kernel", "kind", "name",
        "names", "native", "params", "pullback", "reference", "rules", "shown", "tangent", "ulp", "why_reference",
    )  # fmt: skip

    again: Callable[..., Any] | None = None  # of a checkpoint: makes the nodes that it did not record

    def __init__(
        self,
        name: str,
        *,
        kind: Any,
        reference: Callable[..., Any],
        inputs: int,
        pullback: Any = None,
        joint: bool = False,
        cost: Callable[..., Any] | None = None,
        example: Callable[..., Any] | None = None,
        domain: tuple[float, float] = (-2.0, 2.0),
        ulp: float = 4,
        batch: Callable[..., Any] | None = None,
        tangent: Callable[..., Any] | None = None,
        issue: Callable[..., Any] | None = None,
        factors: dict[int, Callable[..., Any]] | None = None,
        pull: Callable[..., Any] | None = None,
    ) -> None:
        names = parameters(reference)[1:]
        allowed = (*names[:inputs], "y", *names[inputs:])
        self.declared_in = _importing()
        if name in OPS and not _imported_again(OPS[name].declared_in, self.declared_in):
            raise ValueError(f"op {name} is declared twice")
        self.name, self.kind, self.reference, self.names = name, kind, reference, names
        self.shown = name  # in profiles
        self.joint, self.cost, self.example, self.domain, self.ulp = joint, cost, example, domain, ulp
        self.params = len(names) - inputs
        self.batch: Callable[..., Any] = batch or kind.batch
        self.tangent: Callable[..., Any] = tangent or kind.tangent
        self.factors: dict[int, Callable[..., Any]] = factors or {}
        self.issue: Callable[..., Tensor] = issue or kind.issue or apply
        if isinstance(pullback, tuple) and all([rule is ZERO for rule in pullback]):
            pullback = ZERO
        self.pullback = pullback
        if pullback is None or pullback is ZERO:
            self.rules: tuple[Rule | None, ...] = (None,) * (1 if joint else inputs)
        else:
            rules = pullback if isinstance(pullback, tuple) else (pullback,)
            self.rules = tuple([None if rule is None or rule is ZERO else Rule(rule, name, allowed, inputs) for rule in rules])
        for rule in self.rules:
            if rule is not None:
                rule.batch = pull or kind.pull
        self.dead = tuple([i for i, rule in enumerate(self.rules) if rule is None])  # inputs that no gradient reaches
        self.edges = edges_of(self)
        from ..backends import connect

        self.kernel: Callable[..., Any]
        self.native, self.why_reference = connect(self)
        OPS[name] = self

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


def edges_of(op: Op) -> Callable[..., Sequence[Any]]:
    """`edges(inputs, y, params, serials)`: what the tape needs to pull a cotangent of y back to each input.

    An edge is (serial of the input, rule, what is kept for it, shape that a gradient of another shape is summed back to, if
    any). Inputs that are not watched (serial 0) and those whose derivative is zero everywhere have none. A joint rule has
    one edge, with the serials and shapes of all inputs.
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
    """Without a loop: most ops that are recorded come here."""
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
    """What happens when a kernel refuses: a batching rule, promotion and checks in the user's words, or the reference backend."""
    from ..backends import reference

    place = innermost(inputs)
    if place >= 0:
        return run(op, inputs, params, place)
    if any([isinstance(x, (OutsideView, StaleView)) for x in inputs]):  # of classes that kernels do not know
        return apply(op, inputs, params)
    promoted = op.kind.prepare(op, inputs, params)
    if promoted is not None:
        return apply(op, promoted, params)
    y = Tensor(reference.run(op, [x.array for x in inputs], params))
    if listeners.record is not None:
        listeners.record(op, y, inputs, params)
    return y
