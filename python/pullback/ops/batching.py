"""How a batch axis passes through an op: one rule per kind, and one for each op that is of no kind.

A rule `rule(op, size, xs, on, params)` issues the op again on all examples at once. `on` says which of the inputs have the
batch as their first axis; the others are the same for every example. The result has it first, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ..autodiff.batching import pull, spread
from ..autodiff.primitive import Op, apply
from ..tensors.dtypes import float64, int64
from ..tensors.tensor import Tensor
from ._counts import ACTIVATIONS

Rule = Callable[[Op, int, Sequence[Any], Sequence[bool], Sequence[Any]], Tensor]
PullRule = Callable[[Any, int, Sequence[Any], Sequence[bool]], Any]  # of a primitive.Rule, on (g, *kept)

# What becomes of a parameter, by its name in the op's reference, when a first axis of that size is put before all others. The
# parameters that are not named here do not count axes.
SHIFTED: dict[str, Callable[[Any, int], Any]] = {
    "axis": lambda axis, size: axis + 1,
    "axes": lambda axes, size: tuple([axis + 1 for axis in axes]),
    "order": lambda order, size: (0, *[axis + 1 for axis in order]),
    "shape": lambda shape, size: (size, *shape),
    "key": lambda key, size: (slice(None), *key),
    "before": lambda before, size: (0, *before),
    "after": lambda after, size: (0, *after),
}


def shifted(op: Op, size: int, params: Sequence[Any]) -> tuple[Any, ...]:
    """The op's parameters, counted with a first axis more."""
    return _moved(op.names[len(op.names) - op.params :], size, params)


def _moved(names: Sequence[str], size: int, values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([SHIFTED[name](value, size) if name in SHIFTED else value for name, value in zip(names, values)])


def all_on(size: int, xs: Sequence[Any], on: Sequence[bool]) -> list[Any]:
    """Every input with the batch as its first axis."""
    return [x if b else spread(x, size) for x, b in zip(xs, on)]


def aligned(xs: Sequence[Any], on: Sequence[bool], least: int = 0) -> list[Any]:
    """The inputs with examples of one rank, of `least` axes at least.

    Otherwise the (3,) of one example in a batch of 2 would meet an unbatched (2, 3), and broadcast.
    """
    ranks = [len(x.shape) - b for x, b in zip(xs, on)]
    rank = max(least, *ranks)
    return [lifted(x, rank) if b and own < rank else x for x, b, own in zip(xs, on, ranks)]


def lifted(x: Tensor, rank: int) -> Tensor:
    """A batch of examples of lower rank, with axes of length 1 before the first of each."""
    from .shape import reshaped

    shape = x.array.shape
    return reshaped(x, (shape[0], *(1,) * (rank + 1 - len(shape)), *shape[1:]))


def elementwise(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """The examples' ranks are made equal, and the rest is broadcasting."""
    return apply(op, tuple(aligned(xs, on) if len(xs) > 1 else xs), tuple(params))


def along_axes(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """An op that moves, reduces or scans along axes: the parameters that name axes count one more."""
    return op.issue(op, tuple(all_on(size, xs, on)), shifted(op, size, params))


def leading(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """An op of one input that takes any leading axes."""
    return apply(op, tuple(xs), tuple(params))


def everywhere(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """An op of several inputs that take any leading axes, the same ones."""
    return apply(op, tuple(all_on(size, xs, on)), tuple(params))


def reshaping(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """reshape."""
    from .shape import reshaped

    return reshaped(xs[0], (size, *params[0]))


def broadcasting(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """broadcast_to."""
    from .shape import broadcast_to

    (shape,) = params
    return broadcast_to(lifted(xs[0], len(shape)) if xs[0].ndim <= len(shape) else xs[0], (size, *shape))


# ---- fused pullbacks: by the same kernel, on all examples at once


def pull_elementwise(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> Tensor:
    """The examples' ranks are made equal, and the rest is broadcasting."""
    return pull(rule, *aligned(values, on))


def pull_along_axes(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> Tensor:
    """What is kept of a reduction: a shape and axes, which count one more."""
    return pull(rule, values[0], *_moved([name.removeprefix("x_") for name in rule.names], size, values[1:]))


def pull_leading(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> Tensor:
    """A kernel that takes any leading axes."""
    return pull(rule, *all_on(size, values, on))


def pull_row_losses(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> Tensor:
    """Of cross_entropy: the rows of all examples are rows."""
    from .shape import reshaped

    g, logits, labels = all_on(size, values[:3], on)
    rows = reshaped(logits, (labels.size, logits.shape[-1]))
    return reshaped(pull(rule, reshaped(g, (labels.size,)), rows, reshaped(labels, (labels.size,)), *values[3:]), logits.shape)


def pull_layer(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> list[Tensor | None]:
    """Of linear: the activation's pullback of g, then gradients of x, weight and bias for each example."""
    matmul, activations, sum_over, matrix_transpose, reshaped = _of_layers()
    g, x, weight, *activated, needs = values
    g = g if on[0] else spread(g, size)
    if activated:
        y, number = activated
        g = pull(activations[number], *aligned((g, y), (True, on[3])))
    *lead, outputs = g.shape
    rows = reshaped(g, (size, math.prod(lead[1:]), outputs))
    gx = gw = None
    if needs[0]:
        gx = apply(matmul, (rows if on[2] else reshaped(g, (math.prod(lead), outputs)), weight))
        gx = reshaped(gx, (*lead, gx.shape[-1]))
    if needs[1]:
        x = reshaped(x, (*((size,) if on[1] else ()), rows.shape[1], x.shape[-1]))
        gw = apply(matmul, (matrix_transpose(rows), x))
    return [gx, gw, sum_over(rows, (1,)) if needs[2] else None]


@cache
def _of_layers() -> tuple[Any, ...]:
    """What pull_layer needs of modules that import this one, looked up once: an import in a function takes a microsecond."""
    from ..autodiff.primitive import OPS
    from .reduce import sum_over
    from .shape import matrix_transpose, reshaped

    return OPS["matmul"], [OPS[str(name)].rules[0] if name else None for name in ACTIVATIONS], sum_over, matrix_transpose, reshaped


def no_rule(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """In the place of a rule that an op of no kind must state itself."""
    raise NotImplementedError(f"op {op} has no batching rule")


# ---- indices: rows of a table that is another one for each example are rows of all tables, one after the other


def _tables(x: Tensor, axis: int) -> tuple[Tensor, int]:
    """(size, …) as all slices along the axis of one example after those of the one before, and how many each has."""
    from .shape import moveaxis, reshaped

    rows = moveaxis(x, axis + 1, 1)
    return reshaped(rows, (rows.shape[0] * rows.shape[1], *rows.shape[2:])), rows.shape[1]


def _numbered(indices: Tensor, length: int) -> Tensor:
    """Indices into tables of that length each, as indices into all of them."""
    from ..tensors.creation import arange
    from .shape import reshape

    first = arange(indices.shape[0], device=indices.device) * length
    return within(indices, length, 2 * first.size * length) + reshape(first, (-1, *(1,) * (indices.ndim - 1)))


def within(indices: Tensor, length: int, beyond: int) -> Tensor:
    """Indices from 0 up, as int64. A GPU's have not been looked at yet: those out of range become `beyond`, which a kernel
    that checks a longer axis finds."""
    from .elementwise import greater_equal, less, logical_or, where

    indices = indices.astype(int64)
    if indices.device == "cpu":
        return indices
    indices = where(less(indices, 0), indices + length, indices)
    return where(logical_or(less(indices, 0), greater_equal(indices, length)), beyond, indices)


def _back(rows: Tensor, size: int, length: int, axis: int) -> Tensor:
    """What `_tables` took apart."""
    from .shape import moveaxis, reshaped

    return moveaxis(reshaped(rows, (size, length, *rows.shape[1:])), 1, axis + 1)


def _updates(updates: Tensor, axis: int, count: int) -> Tensor:
    """The updates of one example have the indices' axes at `axis`: these axes first."""
    from .shape import moveaxis

    return moveaxis(updates, list(range(axis + 1, axis + 1 + count)), list(range(1, 1 + count)))


def gather(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """take(x, indices, axis)."""
    from .shape import moveaxis

    (x, indices), (axis,) = xs, params
    if not on[1]:
        return apply(op, (x, indices), (axis + 1,))
    if not on[0]:
        return moveaxis(apply(op, (x, indices), (axis,)), axis, 0)
    rows, length = _tables(x, axis)
    y = apply(op, (rows, _numbered(indices, length)), (0,))
    there = list(range(axis + 1, axis + indices.ndim))
    return moveaxis(y, list(range(1, indices.ndim)), there)


def scatter(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """scatter_add(updates, indices, shape, axis)."""
    from .shape import flatten, reshaped

    (updates, indices), (shape, axis) = xs, params
    if not on[1]:
        return apply(op, (updates, indices), shifted(op, size, params))
    updates = _updates(all_on(size, xs, on)[0], axis, indices.ndim - 1)
    length, rest = shape[axis], updates.shape[indices.ndim :]
    flat = reshaped(updates, (indices.size, *rest))
    y = apply(op, (flat, flatten(_numbered(indices, length))), ((size * length, *rest), 0))
    return _back(y, size, length, axis)


def index_write(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """index_<how>(x, updates, indices, axis)."""
    from .shape import flatten, reshaped

    (axis,) = params
    x, updates, _ = all_on(size, xs, on)
    indices = xs[2]
    if not on[2]:
        return apply(op, (x, updates, indices), (axis + 1,))
    rows, length = _tables(x, axis)
    updates = _updates(updates, axis, indices.ndim - 1)
    flat = reshaped(updates, (indices.size, *updates.shape[indices.ndim :]))
    return _back(apply(op, (rows, flat, flatten(_numbered(indices, length))), (0,)), size, length, axis)


def by_segment(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """segment_<how>(data, ids, num_segments)."""
    from .shape import flatten, moveaxis, reshaped

    (data, ids), (count,) = xs, params
    if not on[1]:
        return moveaxis(apply(op, (moveaxis(data, 0, 1), ids), (count,)), 1, 0)
    data = all_on(size, xs, on)[0]
    rows = reshaped(data, (size * data.shape[1], *data.shape[2:]))
    y = apply(op, (rows, flatten(_numbered(ids, count))), (size * count,))
    return reshaped(y, (size, count, *y.shape[1:]))


def searching(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """searchsorted(x1, x2, right): the elements of x1 that are before each of x2, counted where x1 is many."""
    from .elementwise import less, less_equal
    from .reduce import sum
    from .shape import expand_dims, reshaped

    x1, x2 = xs
    if not on[0]:
        return apply(op, (x1, x2), tuple(params))
    x2 = x2 if on[1] else spread(x2, size)
    table = reshaped(x1, (size, *(1,) * (x2.ndim - 1), x1.shape[1]))
    before = (less_equal if params[0] else less)(table, expand_dims(x2, axis=-1))
    return sum(before, axis=-1)


# ---- rows, products, random numbers


def product(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """matmul(a, b). Examples that meet one matrix are rows of one product."""
    from .shape import matrix_transpose, reshaped

    a, b = xs
    if b.array.ndim == 1 + on[1]:
        return _with_vector(op, a, b, on)
    if on[0] and not on[1] and b.array.ndim == 2 and a.array.flags.c_contiguous:
        *lead, inner = a.array.shape
        return reshaped(apply(op, (reshaped(a, (math.prod(lead), inner)), b)), (*lead, b.array.shape[-1]))
    if on[1] and not on[0] and a.array.ndim == 2 and b.array.ndim == 3 and b.array.shape[2] == 1:  # a matrix and vectors
        y = apply(op, (reshaped(b, b.array.shape[:2]), matrix_transpose(a)))
        return reshaped(y, (*y.array.shape, 1))
    return apply(op, tuple(aligned(xs, on)))


def _with_vector(op: Op, a: Tensor, b: Tensor, on: Sequence[bool]) -> Tensor:
    """matmul of a matrix and a vector."""
    from .shape import matrix_transpose, reshaped

    if not on[0]:
        return apply(op, (b, matrix_transpose(a)))
    size, m, k = a.array.shape
    if not on[1]:
        return reshaped(apply(op, (reshaped(a, (size * m, k)), b)), (size, m))
    return reshaped(apply(op, (a, reshaped(b, (size, k, 1)))), (size, m))


def normalizing(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """layer_norm(x, weight, bias, eps), rms_norm(x, weight, eps). Weights of every example come after the norm."""
    x, affine = xs[0], list(zip(xs[1:], on[1:]))
    x = x if on[0] else spread(x, size)
    if not any(on[1:]):
        return apply(op, (x, *xs[1:]), tuple(params))
    from .linear import ABSENT

    y = apply(op, (x, *[ABSENT] * len(affine)), tuple(params))
    for k, (value, own) in enumerate(affine):
        if value is not ABSENT:
            value = lifted(value, x.ndim - 1) if own else value
            y = y * value if k == 0 else y + value
    return y


def row_losses(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """cross_entropy(logits, labels, …): the rows of all examples are rows."""
    from .shape import reshaped

    logits, labels = all_on(size, xs, on)
    y = apply(op, (reshaped(logits, (labels.size, logits.shape[-1])), reshaped(labels, (labels.size,))), tuple(params))
    return reshaped(y, labels.shape)


def layer(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """linear(x, weight, bias, activation): one layer for all examples, or a layer for each."""
    from ..autodiff.primitive import OPS
    from .linalg import matmul
    from .linear import ABSENT
    from .shape import matrix_transpose, reshape, reshaped

    x, weight, bias = xs
    if not on[1] and not on[2]:
        return apply(op, (x, weight, bias), tuple(params))
    rank = x.ndim - on[0]
    rows = lifted(x, 2) if on[0] and rank < 2 else x
    if on[1] and rank > 2:  # (size, …, in) with (size, out, in)
        rows = reshape(rows, (*((size,) if on[0] else ()), -1, x.shape[-1]))
    y = matmul(rows, matrix_transpose(weight))
    y = reshaped(y, (size if on[0] or on[1] else 1, *x.shape[int(on[0]) : -1], y.shape[-1]))
    if bias is not ABSENT:
        y = y + (lifted(bias, y.ndim - 1) if on[2] else bias)
    name = ACTIVATIONS[params[0]]
    return apply(OPS[name], (y,)) if name else y


def drawing(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Random numbers from a state that is the same for all examples: other ones for each."""
    return apply(op, (xs[0][0],), shifted(op, size, params))


def shuffling(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """permutation(state, count): the order of random numbers."""
    from ..autodiff.primitive import OPS

    numbers = apply(OPS["uniform"], (xs[0][0],), ((size, params[0]), float64, 0.0, 1.0))
    return apply(OPS["argsort"], (numbers,), (1, False, True))


def dropping(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """dropout(x, state, p): another mask for each example where the state is drawn for each, otherwise one for all."""
    from ..tensors.creation import ones

    x, state = xs
    if on[1]:
        return apply(op, (x if on[0] else spread(x, size), state[0]), tuple(params))
    return x * apply(op, (ones(x.shape[1:], dtype=x.dtype, device=x.device), state), tuple(params))
