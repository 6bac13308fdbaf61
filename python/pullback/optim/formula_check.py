"""Checks the formula of a rule once, on shapes alone, and finds out how it may run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from ..autodiff.kept import Listening
from ..autodiff.scalars import Scalars
from ..autodiff.shape_run import ShapeRun
from ..errors import DTypeError, PullbackError, ShapeError
from ..launch import door
from ..tensors import devices
from ..tensors.operand import Number
from ..tensors.tensor import Tensor

Formula = Callable[..., Any]  # f(p, g, *slots, h) -> (change, *new slots), or the change alone if there are no slots
_MOVES_NOTHING: Final = ("cast", "copy")  # ops that keep the positions of elements, besides the elementwise ones


class Trace(NamedTuple):
    """What a formula does with arrays of one shape and dtype.

    Attributes:
        ops: the ops with their operands. Two traces with equal ops compute the same for each element, if both are `elementwise`.
        elementwise: True if each element of the results depends on the elements at its position and on numbers only.
        shared: a flag for each result: it shares memory with the weights or a slot, which the step overwrites.
        native: True if each op has a kernel here, so that a recording can replay it.
        reads_weights: True if the formula reads the weights.
        numbers: the expressions of Scalars that the formula computes, conversions last.
    """

    ops: list[Any]
    elementwise: bool
    shared: tuple[bool, ...]
    native: bool
    reads_weights: bool
    numbers: list[Any]


def results(rule: str, found: Any, slots: Sequence[str]) -> tuple[Any, ...]:
    """Returns what a formula returned as a tuple of the change and the new slots. Raises PullbackError."""
    given = found if isinstance(found, tuple) else tuple(found) if isinstance(found, list) else (found,)
    if len(given) != 1 + len(slots):
        wanted = ", ".join(["the change", *[f"the new {name!r}" for name in slots]])
        raise PullbackError(f"{rule}: the formula returned {len(given)} value(s); it must return {1 + len(slots)}: {wanted}.")
    return given


def trace(rule: str, formula: Formula, slots: Sequence[str], h: Any, shape: tuple[int, ...], dtype: Any, device: str) -> Trace:
    """Runs a formula on arrays of this shape and dtype, and returns what it did. The kernels of its ops do not run.

    h: the hyper-parameters, whose values do not matter.

    Raises PullbackError, ShapeError or DTypeError if the formula cannot be an update rule.
    """
    zeros = devices.full(device, shape, 0, dtype)
    tensors = [Tensor(zeros) for _ in range(2 + len(slots))]
    before = door.enter(door.OPTIMIZER)
    ledger = door.begin("count", dry=True)
    try:
        with _Check(rule) as check, _OpsOfFormula(tensors, h.scalars) as listener:
            found = results(rule, formula(*tensors, h), slots)
    finally:
        door.end(ledger)
        door.enter(before)
    for name, y in zip(["the change", *[f"slot {name!r}" for name in slots]], found):
        _check_result(rule, name, y, shape, dtype)
    owners = [listener.owner(y) for y in found]
    shared = tuple([owner is not None and owner is not tensors[1] for owner in owners])
    reads_weights = listener.reads(tensors[0]) or any([owner is tensors[0] for owner in owners])
    numbers = sorted(h.scalars.known, key=lambda expression: len(expression) > 1 and expression[0].name == "cast")
    return Trace(listener.ops, listener.elementwise, shared, check.native, reads_weights, numbers)


def _check_result(rule: str, name: str, y: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """Raises an error unless y is an array like the weights."""
    if not isinstance(y, Tensor):
        raise PullbackError(f"{rule}: the formula returned a {type(y).__name__} as {name}; it must be a tensor like p.")
    if y.shape != shape:
        raise ShapeError(f"{rule}: the formula returned {name} of shape {y.shape} for weights of shape {shape}; keep the shape.")
    if y.dtype != dtype:
        raise DTypeError(
            f"{rule}: the formula returned {name} of dtype {y.dtype} for weights that it reads as {dtype}; keep the dtype, with "
            f".astype(p.dtype)."
        )


class _Check(ShapeRun):
    """A run of a formula, which may not read values or change objects."""

    def __init__(self, rule: str) -> None:
        super().__init__()
        self._rule = rule
        self.native = True

    @property
    def opaque(self) -> bool:
        """True. It is read before a launch that is not a native kernel, and notes that there is one."""
        self.native = False
        return True

    def refusal(self, what: str, line: str, instead: str) -> Exception:
        """Returns the error for code that needs a value."""
        return PullbackError(
            f"{self._rule}: {what} in the formula, at {line}: a formula is recorded, and its steps run without Python. Compute "
            f"with pb.* functions: pb.where(condition, a, b) instead of if, h.step and h.lr instead of numbers that change."
        )

    def increments(self, owner: Any, name: str) -> None:
        """Raises PullbackError: a formula returns what changes."""
        raise PullbackError(f"{self._rule}: the formula changes a Parameter or an optimizer. It must return all that it changes.")


class _OpsOfFormula(Listening):
    """Listens to the ops of a formula."""

    def __init__(self, given: Sequence[Tensor], scalars: Scalars) -> None:
        self.ops: list[Any] = []
        self.elementwise = True
        self._owners = {id(x): x for x in given}  # by the id of a tensor or a view of it, the argument that owns the memory
        self._shape = given[0].shape
        self._kept = list(given)  # in the order of their numbers
        self._numbers = {id(x): k for k, x in enumerate(given)}
        self._read: set[int] = set()
        self._scalars = scalars

    def reads(self, x: Tensor) -> bool:
        """True if an op has read this tensor."""
        return self._numbers[id(x)] in self._read

    def owner(self, y: Tensor) -> Tensor | None:
        """Returns the argument whose memory y is a view of, or y itself if it is an argument; None for new memory."""
        return self._owners.get(id(y))

    def add(self, op: Any, y: Any, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        if any([y is value for value in self._scalars.known.values()]) or self._is_scalar(inputs):
            return
        operands = [self._operand(x) for x in inputs]
        self._read.update([k for k in operands if isinstance(k, int)])
        self.ops.append((op.name, operands, repr(params)))
        self._numbers[id(y)] = len(self._kept)
        self._kept.append(y)
        if op.kind.name == "view" and (owner := self.owner(inputs[0])) is not None:
            self._owners[id(y)] = owner
        keeps_places = op.kind.broadcasts or op.name in _MOVES_NOTHING
        self.elementwise &= keeps_places and None not in operands and y.shape == self._shape

    def _is_scalar(self, inputs: Sequence[Any]) -> bool:
        """True if the op computes a Scalar."""
        return bool(inputs) and all([isinstance(x, Number) or self._expression(x) is not None for x in inputs])

    def _operand(self, x: Any) -> Any:
        """Returns the number of a tensor, the value of a Number, the expression of a Scalar, and None for any other tensor."""
        if isinstance(x, Number):
            return ("number", x.array)
        return self._numbers.get(id(x), self._expression(x))

    def _expression(self, x: Any) -> Any:
        return next((expression for expression, value in self._scalars.known.items() if value is x), None)

    def on_escape(self, x: Tensor, how: str, given: Any = None) -> None:
        """Ignores values that leave pullback: _Check refuses them."""
