"""associative_scan: all running results of an associative function along an axis, in about 2 log2(n) calls of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..errors import AxisError, DTypeError, PullbackError, ShapeError
from ..ops._shapes import flag, normalize_axis
from ..ops.by_name import reshaped
from ..ops.movement import concat, stack
from ..ops.shape import flip, part_of
from ..tensors.operand import own
from ..tensors.tensor import Tensor
from ..tree import flatten, shown, unflatten
from .calls import called
from .vjp import check_function

T = TypeVar("T")


def associative_scan(combine: Callable[[T, T], T], xs: T, axis: int = 0, *, reverse: bool = False) -> T:
    """Returns y_0 = x_0, y_1 = combine(y_0, x_1), y_2 = combine(y_1, x_2), … along the axis, as `jax.lax.associative_scan` does.

    Args:
        combine: takes and returns trees like `xs`, of many steps at once: element i of its result must depend on the elements i
            of its arguments only. It must be associative: combine(combine(x, y), z) = combine(x, combine(y, z)).
        xs: a tensor, or nested lists, tuples, dicts of tensors that have the same length n along the axis.
        axis: the axis of each tensor along which the steps follow one another.
        reverse: runs from the end: y_n-1 = x_n-1, y_n-2 = combine(y_n-1, x_n-2), …

    `combine` is called about 2 log2(n) times, on fewer than 2 n elements in total, instead of n times one after the other as in
    `pb.scan`. The results are not rounded in the order of a loop. Derivatives of every order, vmap and capture come with the ops in
    `combine`. For y_t = a_t y_{t-1} + b_t, `pb.linear_recurrence` takes one launch.

    Raises ShapeError if there are no tensors, if the lengths differ, or if `combine` changes a shape, DTypeError if it changes a
    dtype, and PullbackError if it changes the structure. Source: Blelloch 1990.
    """
    check_function("associative_scan", combine)
    reverse = flag("associative_scan", "reverse", reverse)
    given, form = flatten(xs)
    if not given:
        raise ShapeError(f"associative_scan: xs={xs!r} has no tensors. Give a tensor, or nested lists, tuples, dicts of tensors.")
    leaves, spec = flatten(unflatten(form, [own(x) for x in given]))
    steps = _Steps(combine, leaves, spec, axis)
    if steps.length < 2:
        return unflatten(spec, steps.leaves)
    turn = (lambda xs: [flip(x, axis=at) for x, at in zip(xs, steps.axes)]) if reverse else lambda xs: xs
    return unflatten(spec, turn(steps.scanned(turn(steps.leaves), steps.length)))


class _Steps:
    """The leaves of xs, their axes, and the function that combines slices of them."""

    def __init__(self, combine: Callable[..., Any], leaves: list[Tensor], spec: Any, axis: int) -> None:
        self._combine, self.leaves, self._spec = combine, leaves, spec
        shapes = [x.shape for x in leaves]
        if () in shapes:
            hint = "" if any(shapes) else " A list is a tree of tensors: pb.tensor(xs) has one number per step."
            raise AxisError(f"associative_scan: xs has the shapes {shapes}, and a number has no axis of steps.{hint}")
        self.axes = [normalize_axis("associative_scan", axis, x.ndim) for x in leaves]
        lengths = [x.shape[at] for x, at in zip(leaves, self.axes)]
        self.length = lengths[0]
        if len(set(lengths)) > 1:
            raise ShapeError(
                f"associative_scan: the tensors have the lengths {lengths} along axis {axis}; all must have as many steps. They "
                f"have the shapes {[x.shape for x in leaves]}."
            )

    def scanned(self, xs: Sequence[Tensor], n: int) -> list[Tensor]:
        """Combines neighbours, scans these pairs, and completes the steps between them."""
        if n < 2:
            return list(xs)
        pairs = self.combined(self._part(xs, slice(0, n - 1, 2)), self._part(xs, slice(1, None, 2)))
        odd = self.scanned(pairs, n // 2)
        first, rest = self._part(xs, slice(0, 1)), self._part(xs, slice(2, None, 2))
        if n == 2:
            return [concat(both, axis=at) for *both, at in zip(first, odd, self.axes)]
        later = self.combined(odd if n % 2 else self._part(odd, slice(0, n // 2 - 1)), rest)
        return [self._woven(*parts, n) for parts in zip(first, later, odd, self.axes)]

    def _woven(self, first: Tensor, later: Tensor, odd: Tensor, axis: int, n: int) -> Tensor:
        """Returns first, odd[0], later[0], odd[1], later[1], …"""
        count = later.shape[axis]
        pairs = stack([part_of(odd, axis, slice(0, count)), later], axis=axis + 1)
        woven = reshaped(pairs, (*pairs.shape[:axis], 2 * count, *pairs.shape[axis + 2 :]))
        return concat([first, woven] if n % 2 else [first, woven, part_of(odd, axis, slice(count, None))], axis=axis)

    def _part(self, xs: Sequence[Tensor], steps: slice) -> list[Tensor]:
        return [part_of(x, at, steps) for x, at in zip(xs, self.axes)]

    def combined(self, xs: Sequence[Tensor], ys: Sequence[Tensor]) -> list[Tensor]:
        """Returns combine(xs, ys). Raises ShapeError, DTypeError, PullbackError for a result that is unlike its arguments."""
        name = f"associative_scan: {called(self._combine)}"
        first = unflatten(self._spec, list(xs))
        value = self._combine(first, unflatten(self._spec, list(ys)))
        found, form = flatten(value)
        if form != self._spec and shown(value) != shown(first):
            raise PullbackError(
                f"{name} returned {shown(value)}, with {len(found)} tensor(s), for arguments like {shown(first)}, with {len(xs)} "
                f"(* is one tensor); it must return a tree like its arguments."
            )
        try:
            results = [own(y) for y in found]
        except DTypeError as error:
            raise DTypeError(f"{name} returned what is no tensor: {error}") from None
        for x, y in zip(ys, results):
            if y.shape != x.shape:
                raise ShapeError(
                    f"{name} returned the shape {y.shape} for two of shape {x.shape}. It gets many steps at once, along the axis "
                    f"of the scan, and must combine each step by itself and keep the shape."
                )
            if y.dtype != x.dtype:
                raise DTypeError(f"{name} returned {y.dtype} for {x.dtype}; convert its result with .astype.")
        return results


__all__ = ["associative_scan"]
