"""scan: a loop over the leading axis that passes a carry from step to step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, overload

import numpy as np

from ..duck import attribute, has
from ..errors import DTypeError, PullbackError, ShapeError
from ..ops._shapes import flag, integer
from ..ops.movement import stack
from ..ops.shape import unstack
from ..tensors.creation import asarray
from ..tensors.dtypes import result_type
from ..tensors.operand import as_tensor, own
from ..tensors.tensor import Tensor
from ..tree import alike, flatten, shown, structure, unflatten
from .calls import Again, call_recorders, called, record, with_listeners
from .checkpoint import checkpoint as checkpointed
from .vjp import check_function

C = TypeVar("C")
S = TypeVar("S")
Y = TypeVar("Y")


@overload
def scan(
    f: Callable[[C, S], tuple[C, Y]], init: C | float, xs: S, length: int | None = None, *, reverse: bool = False,
    checkpoint: bool | int = False,
) -> tuple[C, Y]: ...
@overload
def scan(
    f: Callable[[C, None], tuple[C, Y]], init: C | float, xs: None = None, *, length: int, reverse: bool = False,
    checkpoint: bool | int = False,
) -> tuple[C, Y]: ...
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, length: int | None = None, *, reverse: bool = False,
    checkpoint: bool | int = False,
) -> tuple[Any, Any]:
    """Runs `carry, y = f(carry, x)` for each x along the first axis of `xs`. Returns the last carry and all y, stacked.

    Args:
        f: must keep the structure, the shapes and the dtypes of the carry; x and y may be nested lists, tuples, dicts.
        init: the first carry. A Python number in it stays one until a step returns a tensor in its place, of any dtype. In the
            last carry it is a tensor in any case.
        xs: a tensor, or nested tensors whose first axes have equal lengths; None if the steps take no x.
        length: the number of steps, required if xs is None.
        reverse: runs from the last x to the first; each y keeps the position of its x.
        checkpoint: k makes a checkpoint of every k steps, so that a tape keeps n / k carries, and the inside of k steps while
            it walks back over them. True takes the k that needs the least memory, about the square root of n. With checkpoints
            the backward pass computes each step a second time.

    The value and the gradients are those of the unrolled loop. Raises ShapeError if lengths or the carry's shapes do not match,
    DTypeError if the carry changes its dtype, PullbackError if `f` returns a wrong structure or `checkpoint` is not valid.
    """
    check_function("scan", f)
    reverse = flag("scan", "reverse", reverse)
    leaves, spec = flatten(xs)
    first, form = flatten(init)
    carry = unflatten(form, [own(x) if has(x, "shape") else x for x in first])
    n = _length(xs, leaves, length, any([attribute(x, "shape", ()) for x in first]))
    columns = [_slices(own(x)) for x in leaves]
    steps = [(i, unflatten(spec, [column[i] for column in columns])) for i in range(n)]
    if reverse:
        steps.reverse()

    @wraps(f)
    def segment(carry: Any, part: Sequence[tuple[int, Any]]) -> tuple[Any, list[Any]]:
        found: list[Any] = []
        for i, x in part:
            carry, y = _step(f, carry, x, i)
            found.append(y)
        return carry, found

    size = _steps_between(checkpoint, n)
    run, ys = checkpointed(segment) if checkpoint else segment, []
    for start in range(0, n, size):
        carry, found = run(carry, steps[start : start + size])
        ys += found
    last, form = flatten(carry)
    carry = unflatten(form, [own(x) if has(x, "shape") or isinstance(x, (int, float)) else x for x in last])
    return carry, _stacked(ys[::-1] if reverse else ys, called(f))


def _steps_between(checkpoint: Any, n: int) -> int:
    """Returns the number of steps between two checkpoints. Raises PullbackError."""
    if isinstance(checkpoint, (bool, np.bool_)):
        return math.ceil(math.sqrt(n)) if checkpoint else n
    if not isinstance(checkpoint, (int, np.integer)) or checkpoint < 1:
        raise PullbackError(f"scan: checkpoint={checkpoint!r} must be False, True, or a number of steps from 1 on.")
    return int(checkpoint)


def _length(xs: Any, leaves: Sequence[Any], length: int | None, init_has_axes: bool) -> int:
    """Returns the number of steps. Raises ShapeError if the lengths differ, or if there are no steps."""
    shapes = [as_tensor(x).shape for x in leaves]
    n = None if length is None else integer("scan", "length", length)
    if n is not None and n < 1:
        raise ShapeError(f"scan: length={n}, but there must be one step or more: what f returns tells the shapes of all y.")
    if not shapes and n is None:
        raise ShapeError("scan: xs has no tensors, and there is no length. Give the number of steps, length=.")
    if () in shapes:
        hint = " A list is a tree of tensors: pb.tensor(xs) has one number per step." if isinstance(xs, (list, tuple)) else ""
        if not hint and init_has_axes:
            hint = " The first carry comes before xs: pb.scan(f, init, xs)."
        raise ShapeError(f"scan: xs has the shapes {shapes}, and a number has no axis of steps.{hint}")
    lengths = {shape[0] for shape in shapes}
    if len(lengths) > 1:
        raise ShapeError(f"scan: the first axes of xs, the steps, must be equally long; xs has the shapes {shapes}.")
    if n is not None and lengths - {n}:
        (steps,) = lengths
        raise ShapeError(f"scan: xs has {steps} steps along its first axis, but length={n}. Leave length out, or cut xs.")
    n = lengths.pop() if lengths else n
    if not n:
        raise ShapeError("scan: there are no steps, so that the shapes of what f returns are not known. Give at least one.")
    return n


def _slices(x: Tensor) -> list[Tensor]:
    """Returns the slices along the first axis, recorded as one call, whose pullback stacks all their gradients.

    As separate ops, each slice would have a gradient of the size of x.
    """
    tapes, others = call_recorders()
    parts = list(with_listeners(others, lambda: unstack(x)))

    def pull(cotangents: list[Any]) -> list[Tensor]:
        """The cotangents of the slices, stacked"""
        stacked = stack(cotangents)
        return [stacked + 0.0 if len(cotangents) > 1 else stacked]  # -0 becomes 0, as in the sum of gradients of separate slices

    record("slices", pull, [x], parts, to=tapes, again=Again(None, lambda xs: (unstack(xs[0]), pull)))
    return parts


def _step(f: Callable[[Any, Any], Any], carry: Any, x: Any, i: int) -> tuple[Any, Any]:
    """Runs one step. Raises PullbackError, ShapeError or DTypeError if the structure, a shape or a dtype of the carry changes."""
    result = f(carry, x)
    if not (isinstance(result, (tuple, list)) and len(result) == 2):
        got = f"{len(result)} values" if isinstance(result, (tuple, list)) else f"a {type(result).__name__}"
        raise PullbackError(f"scan: {called(f)} must return two things, the next carry and y; step {i} returned {got}.")
    (old, before), (new, after) = flatten(carry), flatten(result[0])
    if before != after and not alike(carry, result[0]):
        raise PullbackError(
            f"scan: the carry changed its structure in step {i}, from {shown(carry)} to {shown(result[0])}. It must keep it."
        )
    made = {}
    for place, (a, b) in enumerate(zip(old, new)):
        if isinstance(a, Tensor) and isinstance(b, (Tensor, int, float, str)):
            _keeps(a, b, f"leaf {place} of the carry" if len(old) > 1 else "the carry", i)
            if not isinstance(b, (Tensor, str)):
                made[place] = asarray(b, dtype=a.dtype, device=a.device)
    carry = unflatten(after, [made.get(place, b) for place, b in enumerate(new)]) if made else result[0]
    return carry, result[1]


def _keeps(a: Tensor, b: Any, where: str, i: int) -> None:
    """Raises ShapeError or DTypeError if step i turned a tensor of the carry into one of another shape or dtype."""
    if isinstance(b, str):
        raise DTypeError(f"scan: {where} went from a tensor to {b!r} in step {i}. It must stay a tensor.")
    dtype = b.dtype if isinstance(b, Tensor) else result_type(a, b)
    if a.shape != attribute(b, "shape", ()):
        raise ShapeError(
            f"scan: {where} went from shape {a.shape} to {getattr(b, 'shape', ())} in step {i}. It must keep its shape."
        )
    if a.dtype != dtype:
        raise DTypeError(
            f"scan: {where} went from dtype {a.dtype} to {dtype} in step {i}. It must keep its dtype: convert the first carry, "
            f"init.astype(pb.{dtype}), or the result of the step."
        )


def _stacked(ys: list[Any], name: str) -> Any:
    """Returns the y of all steps stacked leaf by leaf, in the structure of one y."""
    rows, specs = zip(*[flatten(y) for y in ys])
    if any([spec != specs[0] for spec in specs]) and len({str(structure(y)) for y in ys}) > 1:
        raise PullbackError(f"scan: {name} returned a y of another structure in some steps than in others.")
    return unflatten(specs[0], [_column(column, name) for column in zip(*rows)])


def _column(column: Sequence[Any], name: str) -> Any:
    others = [y for y in column if not (isinstance(y, (Tensor, int, float)) or has(y, "dtype"))]
    if others:
        raise DTypeError(f"scan: {name} returned a {type(others[0]).__name__} in y. Return tensors, numbers, or None.")
    shapes = [attribute(y, "shape", ()) for y in column]
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ShapeError(
                f"scan: {name} returned a y of shape {shape} in step {i}, and of shape {shapes[0]} in step 0. The y of all steps "
                f"are stacked, so they must have one shape."
            )
    dtype = result_type(*column)
    return stack([y if isinstance(y, Tensor) else asarray(y, dtype=dtype) for y in column])
