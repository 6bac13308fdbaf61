"""`optim.rule`, which makes an optimizer from one formula."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from ..errors import PullbackError
from ..interop.wrong_calls import keyword_text
from ..ops.by_name import reshaped
from ..ops.conversion import copy
from ..ops.movement import concat
from ..tensors import devices, dtypes
from ..tensors.tensor import Tensor
from . import arena, sets as c
from .composed import Composed, Hyper, Item, write_slot
from .formula_check import Trace, results, trace
from .optimizer import OPTIONS, Optimizer
from .stages.stage import Step

JOINED: Final = 8192  # the most elements of a parameter that is computed together with others
TOGETHER: Final = 65536  # the most elements of all parameters that are computed together, so that temporaries stay in the cache
MOST: Final = c.SIZE - c.HYPER  # the most numbers of a rule


class ByFormula(Composed):
    """Base class of the optimizers that `optim.rule` makes.

    A formula without reductions runs over several small parameters at once. It runs as one chain of elementwise launches, so that
    a step reads and writes each array about once.
    """

    signed = True
    function: ClassVar[Callable[..., Any]]
    defaults: ClassVar[Mapping[str, Any]]  # by name, the learning rate first
    _ages: tuple[int, ...]  # parameters of one age have equal sets
    _traces: list[Trace]  # of the parts that one network has of each parameter
    _whole: list[bool]  # True if the formula may run on all networks' parts of a parameter at once
    _shared: list[bool]  # for each result, True if it may share memory with the weights or a slot
    _batches: list[list[int]]
    listed = (*Composed.listed, "_traces", "_whole", "_ages")
    apart: Mapping[str, Any] = {**Composed.apart, "_batches": [], "_flat": {}}
    _flat: dict[int, list[Any]]  # by the first parameter of a batch, the joined memory of each slot

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Returns a hyper-parameter."""

    def __init__(self, params: Any, *args: Any, **options: Any) -> None:
        values = self._values(args, options)
        lr = values.pop("lr")
        super().__init__(params, lr, values, **options)

    def _values(self, args: Sequence[Any], options: dict[str, Any]) -> dict[str, Any]:
        """Returns the values of all hyper-parameters, and removes them from the options. Raises TypeError."""
        rule, names = type(self).__name__, list(self.defaults)
        if len(args) > len(names):
            raise TypeError(f"{rule}() takes {len(names)} hyper-parameters by position ({', '.join(names)}), not {len(args)}.")
        given = dict(zip(names, args))
        known = ["params", *names, *[option.name for option in OPTIONS]]
        for name in options:
            if name not in known:
                raise TypeError(keyword_text(rule, name, known))
            if name in given:
                raise TypeError(f"{rule}() got multiple values for argument {name!r}")
        return {**self.defaults, **given, **{name: options.pop(name) for name in names if name in options}}

    def formula(self, p: Tensor, g: Tensor, slots: tuple[Tensor, ...], h: Hyper) -> tuple[Tensor, Sequence[Tensor]]:
        found = results(type(self).__name__, type(self).function(p, g, *slots, h), self.slot_names)
        change, *new = [copy(y) if shared else y for y, shared in zip(found, self._shared)]
        return change, new

    # ---- how the formula runs

    def _make(self) -> None:
        self._check_formula()
        super()._make()
        if "_ages" not in vars(self):
            of_group = {i: k for k, group in enumerate(self._groups) for i in group.entries}
            self._ages = tuple([of_group[i] for i in range(len(self._parameters))])
        self._join()

    def _check_formula(self) -> None:
        """Checks the formula on the shape of each parameter. Raises an error, and then nothing has changed."""
        known: dict[Any, Trace] = {}
        self._traces = [self._traced(known, p.shape[self._lead :], p) for p in self._parameters]
        self._shared = [any(flags) for flags in zip(*[found.shared for found in self._traces])]
        self._replays = all([found.native for found in self._traces])
        self._whole = [not self._lead or self._same(known, p.shape, i) for i, p in enumerate(self._parameters)]

    def _traced(self, known: dict[Any, Trace], shape: tuple[int, ...], p: Any, members: int = 1) -> Trace:
        """Returns what the formula does with arrays of this shape, which hold the weights of `members` networks."""
        dtype, device = arena.slot_dtype(p), p.device
        key = shape, str(dtype), members
        if key not in known:
            rows = devices.full(device, (members, c.SIZE), 1, dtypes.float64)
            h = Hyper(rows, _shape_of_numbers(shape, members), dtype, self.hyper)
            known[key] = trace(type(self).__name__, type(self).function, self.slot_names, h, shape, dtype, device)
        return known[key]

    def _same(self, known: dict[Any, Trace], shape: tuple[int, ...], i: int) -> bool:
        """True if the formula computes the same for each element of parameter i in larger arrays of this shape."""
        if not self._traces[i].elementwise:
            return False
        try:
            found = self._traced(known, shape, self._parameters[i], self._members)
        except Exception:  # a formula for weights of one shape may fail in any way with another
            return False
        return found.elementwise and found.ops == self._traces[i].ops

    def _join(self) -> None:
        """Chooses the parameters that are computed together, and moves their slots into joined memory."""
        known: dict[Any, Trace] = {}
        batches: list[list[int]] = []
        for i, p in enumerate(self._parameters):
            # The length of an array of joined parameters is that of no parameter, so that a formula that depends on it is found.
            if p.size > JOINED or not p.size or self._lead or not self._same(known, (p.size + 1,), i):
                continue
            batch = next((batch for batch in batches if self._fits(i, batch)), None)
            if batch is None:
                batches.append([i])
            else:
                batch.append(i)
        self._batches = [batch for batch in batches if len(batch) > 1]
        self._flat = {batch[0]: [self._joined_slot(k, batch) for k in range(len(self.slot_names))] for batch in self._batches}

    def _fits(self, i: int, batch: list[int]) -> bool:
        """True if parameter i can be computed together with those of the batch."""
        first, sizes = batch[0], [self._parameters[j].size for j in (*batch, i)]
        same = self._parameters[i].dtype == self._parameters[first].dtype and self._ages[i] == self._ages[first]
        return same and sum(sizes) <= TOGETHER and self._traces[i].ops == self._traces[first].ops

    def _joined_slot(self, k: int, batch: list[int]) -> Any:
        """Returns memory for slot k of all parameters of a batch, and makes their slots parts of it."""
        params = [self._parameters[i] for i in batch]
        start = self.slot_starts.get(self.slot_names[k], 0)
        flat = devices.full(self._memory.device, (sum([p.size for p in params]),), start, arena.slot_dtype(params[0]))
        for i, part in zip(batch, _parts(flat, params)):
            self._memory.slots[self.slot_names[k]][i] = part
        return flat

    def __getstate__(self) -> dict[str, Any]:
        made = ("_traces", "_whole", "_shared", "_replays", "_batches", "_flat")
        return {name: x for name, x in super().__getstate__().items() if name not in made}

    # ---- a step

    def load_state_dict(self, given: Mapping[str, Any]) -> None:
        super().load_state_dict(given)
        rows = self._table.on_host()[: self._table.count]
        self._ages = _numbered(zip(self._ages, [row.tobytes() for row in rows.reshape(len(self._parameters), -1)]))

    def _facts(self, alone: bool) -> Any:
        return super()._facts(alone), self._ages

    def _run_ops(self, step: Step) -> None:
        super()._run_ops(step)
        if not step.preview:
            self._skip([i for i, g in enumerate(step.grads) if g is None])

    def _skip(self, entries: Iterable[int]) -> None:
        without = {*entries}
        ages = _numbered(zip(self._ages, [i in without for i in range(len(self._ages))]))
        if len(set(ages)) > len(set(self._ages)):
            self._ages = ages

    def _computed(self, step: Step, now: Any) -> list[Any]:
        grads = step.grads
        hypers: dict[Any, Hyper] = {}
        found: list[Any] = list(grads)
        rest: list[Any] = [None] * len(grads)
        ready = []  # Numbers and joined arrays come first, so that the ops on arrays follow one another and share a pass.
        for entries in self._runs(grads):
            i = entries[0]
            if not self._whole[i]:
                rest[i] = grads[i]
                continue
            shape, dtype = _shape_of_numbers(self._parameters[i].shape, self._members), arena.slot_dtype(self._parameters[i])
            key = self._ages[i], shape, str(dtype)
            if key not in hypers:
                hypers[key] = Hyper(now[i * self._members : (i + 1) * self._members], shape, dtype, self.hyper)
            h = hypers[key]
            for expression in self._traces[i].numbers:
                h.scalars.value(expression)
            ready.append((entries, h, *self._inputs(entries, grads)))
        for entries, h, p, g in ready:
            for j, change in zip(entries, self._together(entries, p, g, h, step)):
                found[j] = change
        if any([g is not None for g in rest]):
            for i, change in enumerate(self._each(rest, step, now)):
                found[i] = found[i] if change is None else change
        return found

    def _runs(self, grads: list[Any]) -> Iterable[list[int]]:
        """Yields the parameters with gradients, those that are computed together in one list."""
        joined: set[int] = set()
        for batch in self._batches:
            alike = len({self._ages[i] for i in batch}) == 1 and self._memory.masks is None
            if alike and all([grads[i] is not None for i in batch]):
                joined.update(batch)
                yield batch
        for i, g in enumerate(grads):
            if g is not None and g.size and i not in joined:
                yield [i]

    def _inputs(self, entries: list[int], grads: list[Any]) -> tuple[Any, Any]:
        """Returns the weights and the gradients of parameters that are computed together."""
        first = entries[0]
        if len(entries) == 1:
            return self._memory.exact(first).array, grads[first]
        g = _flattened([grads[i] for i in entries])
        return _flattened([self._memory.exact(i).array for i in entries]) if self._traces[first].reads_weights else g, g

    def _together(self, entries: list[int], p: Any, g: Any, h: Hyper, step: Step) -> list[Any]:
        """Returns the changes of parameters that are computed together, and writes their slots. p, g: their arrays."""
        first, params = entries[0], [self._parameters[i] for i in entries]
        slots = [slot[first] for slot in self._memory.slots.values()] if len(entries) == 1 else self._flat[first]
        item = Item(p, g, slots, h, self._clips(step))
        change, new = self.formula(item.p, item.g, item.slots, h)
        if not step.preview:
            mask = self._memory.mask(first)
            for slot, value in zip(slots, new):
                write_slot(slot, value, mask, step.go)
        found = self._as_change(change, params[0].dtype)
        return [found] if len(entries) == 1 else _parts(found, params)


def _shape_of_numbers(shape: tuple[int, ...], members: int) -> tuple[int, ...]:
    """Returns the shape of a hyper-parameter for arrays of this shape."""
    return () if members == 1 else (members,) + (1,) * (len(shape) - 1)


def _flattened(arrays: Sequence[Any]) -> Any:
    """Returns the elements of all arrays in one array."""
    return concat([reshaped(Tensor(array), (array.size,)) for array in arrays]).array


def _parts(flat: Any, params: Sequence[Any]) -> list[Any]:
    """Returns the parts of an array that belong to the parameters whose elements it holds, in their shapes."""
    ends = list(itertools.accumulate([p.size for p in params]))
    return [flat[end - p.size : end].reshape(p.shape) for p, end in zip(params, ends)]


def _numbered(keys: Iterable[Any]) -> tuple[int, ...]:
    """Returns a number for each key, the same for equal keys."""
    numbers: dict[Any, int] = {}
    return tuple([numbers.setdefault(key, len(numbers)) for key in keys])


def rule(
    *given: Any, slots: Sequence[str] | Mapping[str, float] = (), **hyper: Any
) -> Callable[[Callable[..., Any]], type[ByFormula]]:
    """Returns a decorator that makes an optimizer class from a formula.

    The formula is a function f(p, g, *slots, h) of one parameter's weights, gradient and slots, which are tensors of one shape. It
    returns what is added to the weights and the new slots: (change, *new slots). `h` has the hyper-parameters as attributes:
    `h.lr`, which follows its schedule, `h.step`, which is 1 in the first step, and those named here. They are numbers in device
    memory. The formula uses pb functions and operators, and pb.where instead of `if`. Gradients arrive clipped. Weights of half
    precision and their gradients arrive in float32, as their slots are.

    Args:
        slots: the names of the slots, which are zeros before the first step; or a dict of the names with other first values.
        hyper: the default of each hyper-parameter, a number or a tuple of numbers. "lr" has to be among them.

    The class has what all optimizers have: groups, schedules, members, clipping, states, `preview`, `return_delta`. The formula
    runs once for each shape when an optimizer is made, without kernels, and its steps replay its launches.

    Raises PullbackError, when the class or an optimizer is made, for a formula that cannot be an update rule.

    Example:
        >>> @optim.rule(slots=("m",), lr=1e-4, beta1=0.9, beta2=0.99)
        ... def MyLion(p, g, m, h):
        ...     return -h.lr * pb.sign(h.beta1 * m + (1 - h.beta1) * g), h.beta2 * m + (1 - h.beta2) * g
        >>> opt = MyLion(model.parameters(), lr=3e-4)
    """
    if given:
        raise PullbackError('rule: give the slots and the hyper-parameters by name: @optim.rule(slots=("m",), lr=1e-3, beta=0.9).')
    names = _names_of_slots(slots)
    _check_hyper(names, hyper)
    counts = {name: len(value) if isinstance(value, tuple) else 1 for name, value in hyper.items() if name != "lr"}
    if sum(counts.values()) > MOST:
        raise PullbackError(f"rule: {sum(counts.values())} hyper-parameters; a rule has at most {MOST} numbers besides lr.")

    def decorate(f: Callable[..., Any]) -> type[ByFormula]:
        _check_parameters(f, names)
        starts = {name: float(x) for name, x in slots.items()} if isinstance(slots, Mapping) else {}
        defaults = {"lr": hyper["lr"], **hyper}
        rule: dict[str, Any] = {"function": staticmethod(f), "defaults": defaults, "hyper": counts}
        state: dict[str, Any] = {"slot_names": names, "slot_starts": starts}
        shown: dict[str, Any] = {"__doc__": f.__doc__, "__module__": f.__module__, "__qualname__": f.__qualname__}
        return type(f.__name__, (ByFormula,), {**rule, **state, **shown, "__signature__": _signature(defaults)})

    return decorate


def _names_of_slots(slots: Any) -> tuple[str, ...]:
    given: Any = slots if isinstance(slots, Iterable) else ""
    names: tuple[Any, ...] = () if isinstance(given, str) else tuple(given)
    if isinstance(given, str) or not all([isinstance(name, str) and name.isidentifier() for name in names]):
        raise PullbackError(f'rule: slots={slots!r}; give a tuple of names: slots=("m", "v").')
    if len(set(names)) < len(names):
        raise PullbackError(f"rule: slots={slots!r}; two slots have the same name.")
    firsts: list[Any] = list(given.values()) if isinstance(given, Mapping) else []
    if not all([isinstance(x, (int, float, np.number)) for x in firsts]):
        raise PullbackError(f"rule: slots={slots!r}; the first value of a slot must be a number: slots={{{names[0]!r}: 0.1}}.")
    return names


def _check_hyper(slots: Sequence[str], hyper: Mapping[str, Any]) -> None:
    if "lr" not in hyper:
        raise PullbackError("rule: there is no default learning rate; give one: @optim.rule(lr=1e-3, ...).")
    taken = {"params", "step", "average", *slots, *[option.name for option in OPTIONS]}
    for kind in Optimizer.__mro__:
        taken.update(vars(kind), inspect.get_annotations(kind))
    for name, value in hyper.items():
        if name in taken - {"lr"}:
            raise PullbackError(
                f"rule: a hyper-parameter cannot have the name {name!r}, which an optimizer uses for something else."
            )
        numbers = value if isinstance(value, tuple) else (value,)
        if name != "lr" and not all([isinstance(x, (int, float)) and not isinstance(x, bool) for x in numbers] or [False]):
            raise PullbackError(f"rule: {name}={value!r}; the default of a hyper-parameter is a number or a tuple of numbers.")


def _check_parameters(f: Any, slots: Sequence[str]) -> None:
    """Raises PullbackError unless f is a function of the weights, the gradient, the slots and the hyper-parameters."""
    wanted = ", ".join(["p", "g", *slots, "h"])
    if not inspect.isfunction(f):
        raise PullbackError(f"rule: a {type(f).__name__} was given; it makes an optimizer from a function f({wanted}).")
    try:
        inspect.signature(f).bind(*[None] * (3 + len(slots)))
    except TypeError as error:
        raise PullbackError(f"rule: {f.__name__}{inspect.signature(f)} is called as {f.__name__}({wanted}): {error}.") from None


def _signature(defaults: Mapping[str, Any]) -> inspect.Signature:
    """Returns the signature of an optimizer with these hyper-parameters, for help()."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    own = [inspect.Parameter(name, kind, default=value) for name, value in defaults.items()]
    return inspect.Signature([inspect.Parameter("params", kind), *own, *OPTIONS])
