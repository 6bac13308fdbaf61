"""Runs recorded ops and calls again in float64, at the values that a tape kept: the functions that `tape.check` differentiates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..autodiff.block_cotangent import complete
from ..autodiff.node import Node
from ..autodiff.primitive import ZERO, Op
from ..launch import door
from ..launch.refusal import Refused
from ..ops.by_name import unbroadcast
from ..ops.linear import ABSENT
from ..tensors import dtypes
from ..tensors.creation import asarray, zeros_like
from ..tensors.operand import Number
from ..tensors.tensor import Tensor
from ..transforms.calls import Again, Call, is_real
from ..transforms.checkpoint import Noted, Rewound
from .measures import on_host
from .walk import Walk, kept_by_name

FUSED: Final = "the fused pullback"
DEFINITION: Final = "the definition of the pullback"
PULLBACK: Final = "the pullback"

Array = np.ndarray[Any, Any]
Pull = Callable[[Sequence[Any], Sequence[Array]], Sequence[Any]]  # (arguments, cotangents of the results) -> gradients or None


class CannotRunError(Exception):
    """The op or call cannot run again; the message is the reason."""


@dataclass(frozen=True)
class Function:
    """A recorded op or call as a function of float64 arrays, with its pullbacks.

    Attributes:
        names: the names of the arguments.
        point: the arguments: float64 arrays, and unchanged values that have no derivative (Numbers, arrays of integers).
        checked: the positions of the arguments whose gradients are checked.
        run: returns the results, float64 arrays, for arguments such as `point`.
        pulls: the pullbacks by name. An op with a fused kernel has two.
        elementwise: each element of the result depends on one element of each argument, which broadcast.
        places: the positions of `run`'s results among the outputs of a call.
        known: true if `point` holds the arguments of the recorded run, and not values drawn in their place.
        drawn: the names of arguments whose values matter for a pullback, but are not known, so that they were drawn at random.
        is_example: true if the tape does not know enough, and `point` is the example of the op's declaration.
        rounding: the relative rounding error of the results.
    """

    names: Sequence[str]
    point: list[Any]
    checked: Sequence[int]
    run: Callable[[Sequence[Any]], list[Array]]
    pulls: Mapping[str, Pull]
    elementwise: bool = False
    places: Sequence[int] = (0,)
    known: bool = True
    drawn: Sequence[str] = ()
    is_example: bool = False
    rounding: float = float(np.finfo(np.float64).eps)


def function_of(node: Node, walk: Walk, values: Mapping[int, Any], rng: np.random.Generator, device: str) -> Function:
    """Returns a recorded op or call as a Function. Raises CannotRunError with the reason if it cannot run again.

    Args:
        values: the recorded values that are known, by serial: tensors and float64 arrays.
        rng: draws the values that are not known.
    """
    if isinstance(node.op, Call):
        return _of_call(node, node.op.again, walk.used[node.y], rng, device)
    return _of_op(node, walk.shapes, values, rng, device)


# ---- ops


def _of_op(
    node: Node, shapes: Mapping[int, tuple[int, ...]], values: Mapping[int, Any], rng: np.random.Generator, device: str
) -> Function:
    op = node.op
    point, drawn = _arguments(node, shapes, values, rng)
    params, watched, is_example = tuple([_wide(p) for p in node.params]), node.inputs, False
    if any([x is ABSENT for x in point]) and not _takes(op, point, params):
        point, params = _example(op, rng)
        drawn, watched, is_example = [], [True] * len(point), True
    names, rules = _names(op, len(point)), _rules(node, len(point))
    checked = [i for i, x in enumerate(point) if watched[i] and _is_float(x) and (i in rules or op.pullback is ZERO)]

    def run(arguments: Sequence[Any]) -> list[Array]:
        return [_reference(op, arguments, params)]

    def pull_by(fused: bool) -> Pull:
        def pull(arguments: Sequence[Any], cotangents: Sequence[Array]) -> Sequence[Any]:
            inputs = [_tensor(x, device) for x in arguments]
            facts = (*inputs, asarray(run(arguments)[0], device=device), *params)
            return _pulled(rules, inputs, facts, asarray(cotangents[0], device=device), fused=fused, joint=op.joint)

        return pull

    two = op.native and any([rule.fused is not rule.definition for rule in rules.values()])
    pulls = {FUSED: pull_by(True), DEFINITION: pull_by(False)} if two else {PULLBACK: pull_by(False)}
    matter = drawn if any(["y" in rule.names for rule in rules.values()]) else []
    known = not drawn and not is_example
    return Function(names, point, checked, run, pulls, op.kind.broadcasts, known=known, drawn=matter, is_example=is_example)


def _names(op: Op, count: int) -> Sequence[str]:
    return [f"{op.names[0]}[{i}]" for i in range(count)] if op.variadic else op.names[:count]


def _reference(op: Op, arguments: Sequence[Any], params: Sequence[Any]) -> Array:
    inputs = [x.array if isinstance(x, Number) else x for x in arguments]
    with np.errstate(all="ignore"):
        return np.asarray(op.reference(np, *([inputs] if op.variadic else inputs), *params), np.float64)


def _takes(op: Op, point: Sequence[Any], params: Sequence[Any]) -> bool:
    """True if the reference of the op accepts these arguments, some of which are left out."""
    try:
        _reference(op, point, params)
    except Exception:  # a reference does not check its arguments, so it may raise anything
        return False
    return True


def _example(op: Op, rng: Any) -> tuple[list[Any], Sequence[Any]]:
    """Returns the inputs and the params of the example in the op's declaration."""
    if op.facts.example is None:
        raise CannotRunError("the tape keeps neither its arguments nor their shapes")
    inputs, params = op.facts.example(rng, np.dtype(np.float64))
    return [as_array(x) for x in inputs], tuple([_wide(p) for p in params])


def _arguments(
    node: Node, shapes: Mapping[int, tuple[int, ...]], values: Mapping[int, Any], rng: Any
) -> tuple[list[Any], list[str]]:
    """Returns the op's arguments, and the names of those that are not known and were drawn.

    An argument whose shape is not known either is left out (ABSENT). No gradient goes to it, and no pullback reads it.
    """
    op, kept = node.op, dict(kept_by_name(node))
    point, drawn = list[Any](), list[str]()
    for name, serial in zip(_names(op, len(node.inputs)), node.inputs):
        value = kept.get(name, values.get(serial)) if serial else kept.get(name)
        if value is None:
            shape = shapes.get(serial, shapes.get(node.y) if op.kind.broadcasts else None)
            value = ABSENT if shape is None else rng.uniform(*op.facts.domain, shape)
            drawn.append(name)
        point.append(as_array(value))
    return point, drawn


def _rules(node: Node, count: int) -> dict[int, Any]:
    """Returns the rules that the tape recorded, by the position of the input; a joint rule at all `count` positions."""
    op, edges = node.op, node.named_edges()
    if op.joint:
        return {i: edge.rule for edge in edges for i in range(count)}
    return {op.rules.index(edge.rule): edge.rule for edge in edges}


def _pulled(rules: Mapping[int, Any], inputs: Sequence[Any], facts: Any, g: Tensor, *, fused: bool, joint: bool) -> Sequence[Any]:
    found: list[Any] = [None] * len(inputs)
    for i, rule in rules.items():
        needs = [[isinstance(x, Tensor) and is_real(x) for x in inputs]] if joint else []
        kept = rule.keep(facts)
        try:
            gx = complete((rule.fused if fused else rule.definition)(g, *kept, *needs))
        except Refused:  # the kernel does not take these values
            gx = rule.definition(g, *kept, *needs)
        if joint:
            found = list(gx)
            break
        found[i] = gx
    return [None if gx is None else _like(gx, x) for gx, x in zip(found, inputs)]


def _like(gx: Tensor, x: Any) -> Array:
    """Returns the gradient of a broadcast input as an array, summed back to the input's shape if that is possible."""
    fits = len(gx.shape) >= len(x.shape) and all([n in (1, m) for n, m in zip(x.shape[::-1], gx.shape[::-1])])
    return on_host(gx if gx.shape == x.shape or not fits else unbroadcast(gx, x.shape)).astype(np.float64)


# ---- calls of a user's function


def _of_call(node: Node, again: Again | str, used: Sequence[int], rng: np.random.Generator, device: str) -> Function:
    if isinstance(again, str):
        raise CannotRunError(again)
    (edge,) = node.named_edges()
    names = [f"argument {i}" if len(edge.x) > 1 else "its argument" for i in range(len(edge.x))]
    unknown = again.inputs is None
    point = [rng.standard_normal(shape) for shape in edge.shape] if unknown else [as_array(x) for x in again.inputs or ()]
    states: dict[Any, dict[str, int]] = {}
    modes: door.Modes = {}
    try:
        with Noted(states, modes):
            first = again.run([_tensor(x, device) for x in point])[0]
    except Exception as error:  # any error of the user's function
        raise CannotRunError(f"it raised {type(error).__name__} when it ran again in float64: {error}") from error
    finally:
        for generator, state in states.items():
            generator.rewind(state)

    def call(arguments: Sequence[Any]) -> tuple[list[Any], Any]:
        """Returns the outputs and the pullback. Each call draws the same random numbers, and leaves the generators as they were."""
        with Rewound(states, modes, ()):
            outputs, pull = again.run([_tensor(x, device) for x in arguments])
        return list(outputs), pull

    def run(arguments: Sequence[Any]) -> list[Array]:
        outputs, _ = call(arguments)
        return [on_host(outputs[place]).astype(np.float64) for place in used]

    def pull(arguments: Sequence[Any], cotangents: Sequence[Array]) -> Sequence[Any]:
        outputs, pullback = call(arguments)
        gs: list[Any] = [zeros_like(y) if is_real(y) else None for y in outputs]
        for place, g in zip(used, cotangents):
            gs[place] = asarray(g, dtype=outputs[place].dtype, device=device)
        return [None if gx is None else on_host(gx).astype(np.float64) for gx in pullback(gs)]

    rounding = max([float(dtypes.finfo(first[place].dtype).eps) for place in used])
    checked = [i for i, serial in enumerate(edge.x) if serial]
    return Function(names, point, checked, run, {PULLBACK: pull}, places=used, known=not unknown, rounding=rounding)


# ---- values


def as_array(value: Any) -> Any:
    """Returns a recorded value as an argument of a reference: on the host, floating-point numbers in float64."""
    if isinstance(value, Number):
        return value
    array = on_host(value) if isinstance(value, Tensor) else value
    return array.astype(np.float64) if dtypes.is_float(array.dtype) else array


def _is_float(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind == "f"


def _tensor(x: Any, device: str) -> Any:
    return asarray(x, device=device) if isinstance(x, np.ndarray) else x


def _wide(param: Any) -> Any:
    """Returns float64 for a parameter that is another floating-point dtype, and any other parameter unchanged."""
    return dtypes.float64 if isinstance(param, np.dtype) and dtypes.is_float(param) else param
