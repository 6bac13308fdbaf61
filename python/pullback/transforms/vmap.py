"""vmap: runs a function of one example on all examples of a batch at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NoReturn

import numpy as np

from ..autodiff.batching import Batch, Batched, belongs
from ..errors import ShapeError, VmapError
from ..interop.unknown_names import unexpected
from ..ops._shapes import normalize_axis
from ..ops.by_name import of_all
from ..ops.random import Generator
from ..ops.shape import moveaxis
from ..tensors.operand import own
from ..tensors.precision import made_of
from ..tensors.tensor import Tensor
from ..tree import flatten, prefix_leaves, unflatten
from ..typing import P, R
from .vjp import check_function


def vmap(
    f: Callable[P, R],
    in_axes: int | Sequence[Any] = 0,
    out_axes: int | Sequence[Any] | Mapping[Any, Any] | None = 0,
    **unknown: NoReturn,
) -> Callable[P, R]:
    """Returns a function that runs `f`, written for one example, on a batch: one launch per op, whatever the size of the batch.

    Args:
        f: takes and returns tensors, alone or in nested lists, tuples, dicts. It may use all of `pb`, including tapes and other
            transforms; every example draws different random numbers. It must not read elements (`item()`, `if t:`), and no
            shape may depend on elements.
        in_axes: the axis of the arguments that runs over the examples: one int for all arguments, or a tuple with one entry per
            positional argument, each an int, None (the argument is the same for every example), or a structure of these.
            Keyword arguments have the examples along axis 0. Python numbers and other objects are the same for every example.
        out_axes: the axis of the results that runs over the examples, in the form of in_axes. A result that is the same for
            every example is repeated along it; None returns such a result as it is.

    Raises ShapeError if the numbers of examples differ or an axis is missing, VmapError if an op cannot run on all examples.
    """
    if unknown:
        raise unexpected(unknown)
    check_function("vmap", f)
    for name, axes in (("in_axes", in_axes), ("out_axes", out_axes)):
        if not all([axis is None or isinstance(axis, (int, np.integer)) for axis in flatten(axes)[0]]):
            raise ShapeError(
                f"vmap: {name} is a {type(axes).__name__} that is not made of ints; it must say which axis of the arguments runs "
                f"over the examples. pb.vmap(f) returns a function: pass the arguments to it, pb.vmap(f)(x)."
            )

    @wraps(f)
    def for_all(*args: P.args, **options: P.kwargs) -> R:
        batch, positional, named = examples(args, options, in_axes)
        with batch:
            results, spec = flatten(f(*positional, **named))
        axes = prefix_leaves(out_axes, spec, results, "out_axes")
        return unflatten(spec, [_outside(y, batch, axis) for y, axis in zip(results, axes)])

    return for_all


def examples(args: tuple[Any, ...], options: dict[str, Any], in_axes: Any) -> tuple[Batch, tuple[Any, ...], dict[str, Any]]:
    """Returns a batch, and the arguments as values of one example of this batch. Raises ShapeError."""
    leaves, spec = flatten((args, options))
    axes = _input_axes(in_axes, args, options)
    batch = Batch(_common_length(leaves, axes))
    inside = [x if axis is None else made_of(x, Batched(batch, _first(x, axis, "in_axes"))) for x, axis in zip(leaves, axes)]
    positional, named = unflatten(spec, inside)
    return batch, positional, named


def _input_axes(in_axes: Any, args: tuple[Any, ...], options: dict[str, Any]) -> list[int | None]:
    """Returns the axis of examples of each leaf: None for a leaf that is not an array, or is the same for every example."""
    if isinstance(in_axes, (list, tuple)) and len(in_axes) != len(args):
        raise ShapeError(f"vmap: in_axes has {len(in_axes)} entries for {len(args)} positional arguments. Give one for each.")
    entries = list(in_axes) if isinstance(in_axes, (list, tuple)) else [in_axes] * len(args)
    axes: list[int | None] = []
    for entry, argument in zip([*entries, *[0] * len(options)], [*args, *options.values()]):
        leaves, spec = flatten(argument)
        if any([isinstance(x, Generator) for x in leaves]) and isinstance(argument, (list, tuple)):
            raise VmapError(
                "vmap: an argument is a list of Generators, and f would receive the whole list. Pass one Generator: every example "
                "draws different numbers from it."
            )
        found = prefix_leaves(entry, spec, leaves, "in_axes")
        axes += [axis if hasattr(x, "shape") else None for x, axis in zip(leaves, found)]
    return axes


def _common_length(leaves: list[Any], axes: list[int | None]) -> int:
    lengths: dict[int, int] = {}
    for place, (x, axis) in enumerate(zip(leaves, axes)):
        if axis is None:
            continue
        if not -len(x.shape) <= axis < len(x.shape):
            raise ShapeError(
                f"vmap: argument {place} has shape {tuple(x.shape)}, and no axis {axis} for the examples. Pass in_axes=None "
                f"for what is the same for every example."
            )
        lengths[place] = x.shape[axis]
    if not lengths:
        raise ShapeError("vmap: no argument has an axis of examples. Give it a tensor, and an axis other than None in in_axes.")
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"argument {place} has {n}" for place, n in lengths.items())
        raise ShapeError(f"vmap: the arguments have different numbers of examples: {told}. They must be equal.")
    return next(iter(lengths.values()))


def _first(x: Any, axis: int, what: str) -> Tensor:
    x = own(x)
    return x if axis == 0 else moveaxis(x, normalize_axis(what, axis, x.ndim), 0)


def _outside(y: Any, batch: Batch, axis: int | None) -> Tensor:
    """Returns a result of one example as a tensor with the results of all examples."""
    y = own(y)
    if axis is None:
        if belongs(y, batch):
            raise VmapError(f"vmap: out_axes is None for a result of shape {y.shape} that differs from example to example.")
        return y
    rows = of_all(y, batch)
    return rows if axis == 0 else moveaxis(rows, 0, normalize_axis("out_axes", axis, rows.ndim))
