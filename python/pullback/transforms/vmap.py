"""vmap: runs a function of one example on all examples of a batch at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..autodiff.batching import Batch, Batched, belongs
from ..duck import has
from ..errors import ShapeError, VmapError
from ..function_wrapper import FunctionWrapper, Unhidden
from ..ops._shapes import normalize_axis
from ..ops.by_name import of_all
from ..ops.random import Generator
from ..ops.shape import moveaxis
from ..tensors.operand import converted, own
from ..tensors.precision import made_of
from ..tensors.tensor import Tensor
from ..tree import flatten, paths, prefix_leaves, unflatten
from ..typing import P, R
from .vjp import check_function


def vmap(
    f: Callable[P, R], in_axes: int | Sequence[Any] = 0, out_axes: int | Sequence[Any] | Mapping[Any, Any] | None = 0
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
    check_function("vmap", f)
    for name, axes in (("in_axes", in_axes), ("out_axes", out_axes)):
        if not all([axis is None or isinstance(axis, (int, np.integer)) for axis in flatten(axes)[0]]):
            raise ShapeError(
                f"vmap: {name} is a {type(axes).__name__} that is not made of ints; it must say which axis of the arguments runs "
                f"over the examples. pb.vmap(f) returns a function: pass the arguments to it, pb.vmap(f)(x)."
            )
    return Vectorized(f, in_axes, out_axes)


class Vectorized(FunctionWrapper[P, R]):
    """The function that `vmap` returns."""

    _title = "vmap"

    def __init__(self, f: Callable[P, R], in_axes: Any, out_axes: Any) -> None:
        super().__init__(f, in_axes, out_axes)
        self._in_axes, self._out_axes = in_axes, out_axes

    def __call__(self, *args: P.args, **options: P.kwargs) -> R:
        return run_on_examples("vmap", self._function, args, options, self._in_axes, self._out_axes)


def run_on_examples(
    title: str, f: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], in_axes: Any, out_axes: Any = 0
) -> Any:
    """Returns vmap(f, in_axes, out_axes)(*args, **options). title: the function that the user called, for messages."""
    batch, positional, named = examples(title, args, options, in_axes)
    with batch, Unhidden():
        results, spec = flatten(f(*positional, **named))
    axes = prefix_leaves(out_axes, spec, results, f"{title}: out_axes")
    return unflatten(spec, [_outside(title, y, batch, axis) for y, axis in zip(results, axes)])


def examples(
    title: str, args: tuple[Any, ...], options: dict[str, Any], in_axes: Any
) -> tuple[Batch, tuple[Any, ...], dict[str, Any]]:
    """Returns a batch, and the arguments as values of one example of this batch. Raises ShapeError."""
    given = [*args, *options.values()]
    leaves, spec = flatten(given)
    axes = _input_axes(title, in_axes, args, options)
    batch = Batch(_common_length(title, leaves, axes, args, options))

    def inside(position: int, x: Any, axis: int | None) -> Any:
        if axis is None:
            return x
        t = x if isinstance(x, Tensor) else converted(title, _labels(args, options)[position], x, own)
        return made_of(x, Batched(batch, t if axis == 0 else moveaxis(t, axis, 0)))

    values = unflatten(spec, [inside(position, x, axis) for position, (x, axis) in enumerate(zip(leaves, axes))])
    return batch, tuple(values[: len(args)]), dict(zip(options, values[len(args) :]))


def _input_axes(title: str, in_axes: Any, args: tuple[Any, ...], options: dict[str, Any]) -> list[int | None]:
    """Returns the axis of examples of each leaf: None for a leaf that is not an array, or is the same for every example."""
    if isinstance(in_axes, (list, tuple)) and len(in_axes) != len(args):
        raise ShapeError(f"{title}: in_axes has {len(in_axes)} entries for {len(args)} positional arguments. Give one for each.")
    entries = list(in_axes) if isinstance(in_axes, (list, tuple)) else [in_axes] * len(args)
    axes: list[int | None] = []
    for entry, argument in zip([*entries, *[0] * len(options)], [*args, *options.values()]):
        leaves, spec = flatten(argument)
        if any([isinstance(x, Generator) for x in leaves]) and isinstance(argument, (list, tuple)):
            raise VmapError(
                f"{title}: an argument is a list of Generators, and f would receive the whole list. Pass one Generator: every "
                f"example draws different numbers from it."
            )
        found = prefix_leaves(entry, spec, leaves, f"{title}: in_axes")
        axes += [axis if has(x, "shape") else None for x, axis in zip(leaves, found)]
    return axes


def _common_length(title: str, leaves: list[Any], axes: list[int | None], args: tuple[Any, ...], options: dict[str, Any]) -> int:
    lengths: dict[int, int] = {}
    for position, (x, axis) in enumerate(zip(leaves, axes)):
        if axis is None:
            continue
        if not -len(x.shape) <= axis < len(x.shape):
            rest = (
                "What is the same for every example is given by keyword." if title != "vmap"
                else "Pass in_axes=None for what is the same for every example." if position < len(flatten(args)[0])
                else "The axis of a keyword argument is always the first. Give what is the same for every example by position, "
                "with None for it in in_axes, or use it in f without passing it."
            )
            raise ShapeError(
                f"{title}: {_labels(args, options)[position]} has shape {tuple(x.shape)}, and no axis {axis} for the "
                f"examples. {rest}"
            )
        lengths[position] = x.shape[axis]
    if not lengths:
        raise ShapeError(f"{title}: no argument has an axis of examples. Give it a tensor, and an axis other than None in in_axes.")
    if len(set(lengths.values())) > 1:
        labels = _labels(args, options)
        told = ", ".join(f"{labels[position]} has {n}" for position, n in lengths.items())
        raise ShapeError(f"{title}: the arguments have different numbers of examples: {told}. They must be equal.")
    return next(iter(lengths.values()))


def _labels(args: tuple[Any, ...], options: dict[str, Any]) -> list[str]:
    """Returns the names of all leaves of the arguments for messages: "argument 0", `argument 1["b"]`, "argument k"."""
    named = [*[(str(position), x) for position, x in enumerate(args)], *options.items()]
    return [f"argument {name}{path}" for name, x in named for path in paths(x)]


def _outside(title: str, y: Any, batch: Batch, axis: int | None) -> Tensor:
    """Returns a result of one example as a tensor with the results of all examples."""
    y = converted(title, "the result of the function", y, own)
    if axis is None:
        if belongs(y, batch):
            raise VmapError(f"{title}: out_axes is None for a result of shape {y.shape} that differs from example to example.")
        return y
    rows = of_all(y, batch)
    return rows if axis == 0 else moveaxis(rows, 0, normalize_axis(f"{title}: out_axes", axis, rows.ndim))
