"""Recurrent layers: all steps of one layer in one direction are one op, and one launch forward and one backward.

The input products of all steps are computed before, by `linear`. A step adds the product of the hidden state and the weight, and
applies the cell. The result holds everything that the pullback reads, one number after another along its first axis: `rnn` keeps h,
`lstm` h, c and the gates i, f, g, o, and `gru` h, the gates r, z, n, and the hidden product of n. It has the shape
(kept, steps, batch, hidden). Gates may have cotangents too, so that second derivatives are those of the formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..autodiff.batching import pull
from ..autodiff.primitive import Op, apply
from ..backends import kernel_for
from ..backends.autocast import rounded
from ..tensors.creation import zeros, zeros_like
from ..tensors.tensor import Tensor
from ._counts import COUNTS
from .by_name import all_on, in_dtype, reshaped, widened
from .conversion import same_dtype
from .declare import normal, op
from .elementwise import tanh, where
from .kinds import OWN
from .linalg import matmul
from .linear import ABSENT, exact_product
from .movement import concat, stack
from .row_sums import total_of_rows
from .shape import expand_dims, matrix_transpose, permute_dims, unstack

# ---- references


def _steps(steps: int, reverse: bool) -> range:
    """Returns the positions of the steps, in the order in which they run."""
    return range(steps - 1, -1, -1) if reverse else range(steps)


def _product(xp: Any, h: Any, weight: Any, bias: Any) -> Any:
    p = xp.matmul(rounded(xp, h), xp.swapaxes(rounded(xp, weight), 0, 1))
    return p if bias is None else p + bias


def _sigmoid(xp: Any, x: Any) -> Any:
    e = xp.exp(-abs(x))
    return xp.where(x < 0, e, xp.ones_like(e)) / (1 + e)


def _run(xp: Any, kept: int, x: Any, h: Any, reverse: bool, step: Callable[[Any, Any], Sequence[Any]]) -> Any:
    """Calls step(x, h) for each step. Returns all that it keeps, of which the first is the next h."""
    y = xp.empty((kept, *x.shape[:2], h.shape[1]), x.dtype)
    for t in _steps(x.shape[0], reverse):
        for k, value in enumerate(step(x[t], h)):
            y[k, t] = value
        h = y[0, t]
    return y


def _rnn_reference(xp: Any, x: Any, h: Any, weight: Any, bias: Any, reverse: bool, relu: bool) -> Any:
    def step(x: Any, h: Any) -> Any:
        z = x + _product(xp, h, weight, bias)
        return (xp.maximum(z, xp.zeros_like(z)) if relu else xp.tanh(z),)

    return _run(xp, 1, x, h, reverse, step)


def _lstm_reference(xp: Any, x: Any, h: Any, c: Any, weight: Any, bias: Any, reverse: bool) -> Any:
    def step(x: Any, h: Any) -> Any:
        nonlocal c
        a, b, n, d = xp.split(x + _product(xp, h, weight, bias), 4, axis=-1)
        i, f, g, o = _sigmoid(xp, a), _sigmoid(xp, b), xp.tanh(n), _sigmoid(xp, d)
        c = f * c + i * g
        return o * xp.tanh(c), c, i, f, g, o

    return _run(xp, 6, x, h, reverse, step)


def _gru_reference(xp: Any, x: Any, h: Any, weight: Any, bias: Any, reverse: bool) -> Any:
    def step(x: Any, h: Any) -> Any:
        (a, b, c), (u, v, w) = xp.split(x, 3, axis=-1), xp.split(_product(xp, h, weight, bias), 3, axis=-1)
        r, z = _sigmoid(xp, a + u), _sigmoid(xp, b + v)
        n = xp.tanh(c + r * w)
        return (h - n) * z + n, r, z, n, w

    return _run(xp, 5, x, h, reverse, step)


# ---- pullbacks by definition: the same walk over the steps as in the kernels, from the last to the first. `pull_step` maps the
# cotangents of what a step kept, and those that come from the step after, to the cotangents of the input product, of the hidden
# product, and of the state that the step reads directly.


def _walk(
    pull_step: Any, g: Tensor, y: Tensor, state: int, first: Tensor, weight: Tensor, reverse: bool, wide: bool, of_h: bool
) -> Any:
    """Returns the cotangents of x, of the hidden products, and of the states before the first step.

    state: the place in y of the state that each step reads directly; `first` is the one before the first step. of_h: the cotangent
    of h before the first step is needed; otherwise the product that gives it is left out, and None is returned for it.
    """
    of_x: list[Any] = [None] * g.shape[1]
    of_product, before = list(of_x), _earlier(first, y[state], reverse)
    later = carry = zeros_like(first)
    steps = _steps(g.shape[1], reverse)
    for t in reversed(steps):
        of_x[t], of_product[t], carry = pull_step(unstack(g[:, t]), unstack(y[:, t]), before[t], later, carry)
        later = (exact_product if wide else matmul)(of_product[t], weight) if of_h or t != steps[0] else None
    if not of_x:
        nothing = zeros((0, g.shape[2], weight.shape[0]), dtype=g.dtype, device=g.device)
        return nothing, nothing, later, carry
    gx = stack(of_x)
    return gx, gx if of_x[0] is of_product[0] else stack(of_product), later, carry


def _pull_tanh(g: Any, y: Any, before: Tensor, later: Tensor, carry: Tensor) -> Any:
    z = (g[0] + later) * (1 - y[0] * y[0])
    return z, z, carry


def _pull_relu(g: Any, y: Any, before: Tensor, later: Tensor, carry: Tensor) -> Any:
    z = where(y[0] > 0, g[0] + later, 0.0)
    return z, z, carry


def _pull_lstm(g: Any, y: Any, before: Tensor, later: Tensor, carry: Tensor) -> Any:
    _, c, i, f, n, o = y
    size, gh = tanh(c), g[0] + later
    gc = g[1] + carry + gh * (o * (1 - size * size))
    gates = ((g[2] + gc * n) * (i * (1 - i)), (g[3] + gc * before) * (f * (1 - f)), (g[4] + gc * i) * (1 - n * n))
    z = concat([*gates, (g[5] + gh * size) * (o * (1 - o))], axis=-1)
    return z, z, gc * f


def _pull_gru(g: Any, y: Any, before: Tensor, later: Tensor, carry: Tensor) -> Any:
    _, r, z, n, p = y
    gh = g[0] + (later + carry)
    gn = (g[3] + gh * (1 - z)) * (1 - n * n)
    gr, gz = (g[1] + gn * p) * (r * (1 - r)), (g[2] + gh * (before - n)) * (z * (1 - z))
    return concat([gr, gz, gn], axis=-1), concat([gr, gz, g[4] + gn * r], axis=-1), gh * z


def _earlier(first: Tensor, states: Tensor, reverse: bool) -> Tensor:
    """Returns the state before each step, at the position of the step; `first` is the one before the first step."""
    if not states.shape[0]:
        return states
    own = expand_dims(first)
    return concat([states[1:], own] if reverse else [own, states[:-1]])


def _rnn_pullback(g: Tensor, h: Tensor, weight: Tensor, y: Tensor, reverse: bool, relu: bool, needs: Sequence[bool]) -> Any:
    wide, (g, h, w, z) = g.array.itemsize == 2, map(widened, (g, h, weight, y))
    gx, _, gh, _ = _walk(_pull_relu if relu else _pull_tanh, g, z, 0, h, w, reverse, wide, needs[1])
    return _narrowed(y.dtype, (gx, gh, *_of_weights(gx, _earlier(h, z[0], reverse), needs)), needs)


def _lstm_pullback(
    g: Tensor, h: Tensor, c: Tensor, weight: Tensor, y: Tensor, reverse: bool, needs: Sequence[bool]
) -> list[Tensor | None]:
    wide, (g, h, c, w, z) = g.array.itemsize == 2, map(widened, (g, h, c, weight, y))
    gx, _, gh, gc = _walk(_pull_lstm, g, z, 1, c, w, reverse, wide, needs[1])
    return _narrowed(y.dtype, (gx, gh, gc, *_of_weights(gx, _earlier(h, z[0], reverse), needs)), needs)


def _gru_pullback(g: Tensor, h: Tensor, weight: Tensor, y: Tensor, reverse: bool, needs: Sequence[bool]) -> list[Tensor | None]:
    wide, (g, h, w, z) = g.array.itemsize == 2, map(widened, (g, h, weight, y))
    gx, gp, gh, carry = _walk(_pull_gru, g, z, 0, h, w, reverse, wide, needs[1])
    return _narrowed(y.dtype, (gx, gh + carry if needs[1] else None, *_of_weights(gp, _earlier(h, z[0], reverse), needs)), needs)


def _narrowed(dtype: Any, gradients: Sequence[Any], needs: Sequence[bool]) -> list[Tensor | None]:
    return [in_dtype(gx, dtype) if need and gx is not None else None for gx, need in zip(gradients, needs)]


# ---- gradients of the weight and the bias: one product over all steps


class _Each(list[bool]):
    """Marks the gradients that are needed, as `needs` does, of a batch whose rows are those of several examples.

    Gradients of the weight and the bias are then those of each example, with the axes `examples` before their own.
    """

    examples: tuple[int, ...] = ()


def _of_weights(gp: Tensor, before: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
    """Returns the gradients of weight and bias from the cotangents of the hidden products, if they are needed."""
    if isinstance(needs, _Each):
        return _of_weights_each(gp, before, needs)
    rows, h = [reshaped(t, (math.prod(t.shape[:2]), t.shape[2])) for t in (gp, before)]
    return [matmul(matrix_transpose(rows), h) if needs[-2] else None, total_of_rows(rows) if needs[-1] else None]


def _of_weights_each(gp: Tensor, before: Tensor, needs: _Each) -> list[Tensor | None]:
    examples = math.prod(needs.examples)
    steps, rows = gp.shape[0], gp.shape[1] // max(examples, 1)

    def parted(t: Tensor) -> Tensor:
        of_each = permute_dims(reshaped(t, (steps, examples, rows, t.shape[2])), (1, 0, 2, 3))
        return reshaped(of_each, (examples, steps * rows, t.shape[2]))

    z = parted(gp)
    gw = matmul(matrix_transpose(z), parted(before)) if needs[-2] else None
    gb = total_of_rows(z) if needs[-1] else None
    return [
        None if gw is None else reshaped(gw, (*needs.examples, *gw.shape[1:])),
        None if gb is None else reshaped(gb, (*needs.examples, gb.shape[1])),
    ]


_pull_linear, _ = kernel_for("linear_pullback")


def _fused(name: str, carries: int, splits: bool) -> Any:
    """Returns the native pullback: a launch over all steps, and one for the gradients of weight and bias.

    carries: the number of states. splits: the cotangents of the input and the hidden products differ.
    """
    kernel, _ = kernel_for(f"{name}_pullback")
    pull_linear = _pull_linear
    if kernel is None or pull_linear is None:
        return None

    def fused(g: Tensor, *kept: Any) -> list[Tensor | None]:
        *given, needs = kept
        h, weight, y, reverse = given[0], given[carries], given[carries + 1], given[carries + 2]
        arrays = kernel(g.array, *[v.array if isinstance(v, Tensor) else v for v in given], needs[1])
        found: list[Any] = [None if array is None else Tensor(array) for array in arrays]
        gp = found.pop() if splits else found[0]
        if not needs[-2] and not needs[-1]:
            return [*found, None, None]
        before = _earlier(h, y[0], reverse)
        if isinstance(needs, _Each):
            return [*found, *_of_weights_each(gp, before, needs)]
        arrays = pull_linear(gp.array, before.array, weight.array, gp.array, 0, False, needs[-2], needs[-1])
        return [*found, *[None if array is None else Tensor(array) for array in arrays[1:]]]

    return fused


# ---- a batch axis: the rows of all examples are one batch, unless examples have weights of their own


def _rows_of_all(x: Tensor, axis: int) -> Tensor:
    """Moves the first axis, of examples, before the axis of rows, and merges the two."""
    order = (*range(1, axis + 1), 0, *range(axis + 1, x.ndim))
    moved = permute_dims(x, order)
    return reshaped(moved, (*moved.shape[:axis], moved.shape[axis] * moved.shape[axis + 1], *moved.shape[axis + 2 :]))


def _examples_of(x: Tensor, axis: int, size: int) -> Tensor:
    """Undoes _rows_of_all."""
    shape = x.shape
    parted = reshaped(x, (*shape[:axis], size, shape[axis] // max(size, 1), *shape[axis + 1 :]))
    return permute_dims(parted, (axis, *[k for k in range(parted.ndim) if k != axis]))


def _each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    if size and (on[-2] or on[-1]):
        return stack([apply(op, tuple([x[i] if b else x for x, b in zip(xs, on)]), tuple(params)) for i in range(size)])
    weight, bias = [x[0] if b and size else x for x, b in zip(xs[-2:], on[-2:])]
    x, *states = all_on(size, xs[:-2], on[:-2])
    y = apply(op, (_rows_of_all(x, 1), *[_rows_of_all(state, 0) for state in states], weight, bias), tuple(params))
    return _examples_of(y, 2, size)


def _pull_each(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> list[Tensor | None]:
    *values, needs = values
    place = rule.names.index("weight") + 1
    if on[place]:
        found = [pull(rule, *[v[i] if b else v for v, b in zip(values, on)], needs) for i in range(size)]
        return [None if parts[0] is None else stack(parts) for parts in zip(*found)]
    g, *states = all_on(size, values[:place], on[:place])
    (y,) = all_on(size, values[place + 1 : place + 2], on[place + 1 : place + 2])
    each = _Each(needs)
    each.examples = (size, *(needs.examples if isinstance(needs, _Each) else ()))
    folded = (_rows_of_all(g, 2), *[_rows_of_all(state, 0) for state in states], values[place], _rows_of_all(y, 2))
    gx, *others = pull(rule, *folded, *values[place + 2 :], each)
    of_states = [None if t is None else _examples_of(t, 0, size) for t in others[:-2]]
    return [None if gx is None else _examples_of(gx, 1, size), *of_states, *others[-2:]]


# ---- costs


def _cost(gates: int, adds: int, multiplies: int, **functions: int) -> Any:
    """Returns the cost of a cell with this work per element, besides the bias and the functions, which are given by name."""

    def cost(*values: Any) -> dict[str, int]:
        y, weight, bias = values[-1], values[3 if gates == 4 else 2], values[4 if gates == 4 else 3]
        n = math.prod(y.shape[1:])
        work = [sum(times * COUNTS[name][k] for name, times in functions.items()) for k in range(3)]
        products = n * weight.shape[0]
        return {
            "adds": n * (adds + work[0] + (0 if bias is None else gates)), "multiplies": n * (multiplies + work[1]),
            "special_ops": n * work[2], "fmas": products, "matmul_flops": 2 * products,
        }

    return cost


def _rnn_cost(*values: Any) -> dict[str, int]:
    return _cost(1, 1, 0, **{"relu" if values[5] else "tanh": 1})(*values)


# ---- declarations

# ulp: a step multiplies the rounding errors of the steps before it by the weight.
_LAYER: dict[str, Any] = {"kind": OWN, "joint": True, "takes": "float", "ulp": 16, "batch": _each, "pull": _pull_each}

_rnn = op("rnn", **_LAYER, reference=_rnn_reference, inputs=4, pullback=_rnn_pullback, fused=_fused("rnn", 1, False),
          cost=_rnn_cost, example=normal((3, 2, 3), (2, 3), (3, 3), (3,), params=(False, False)))
_lstm = op("lstm", **_LAYER, reference=_lstm_reference, inputs=5, pullback=_lstm_pullback, fused=_fused("lstm", 2, False),
           cost=_cost(4, 5, 3, sigmoid=3, tanh=2),
           example=normal((3, 2, 16), (2, 4), (2, 4), (16, 4), (16,), params=(False,)))
_gru = op("gru", **_LAYER, reference=_gru_reference, inputs=4, pullback=_gru_pullback, fused=_fused("gru", 1, True),
          cost=_cost(3, 5, 2, sigmoid=2, tanh=1),
          example=normal((3, 2, 12), (2, 4), (12, 4), (12,), params=(False,)))
for _layer in (_rnn, _lstm, _gru):
    _layer.facts.multiplied = ("h", "weight")  # of x there is no product


def rnn(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None, reverse: bool = False, relu: bool = False) -> Tensor:
    """Runs all steps of h = tanh(x + weight @ h + bias), or relu, on input products x (steps, batch, hidden).

    h: (batch, hidden), before the first step. reverse: runs from the last step to the first.
    Returns (1, steps, batch, hidden): h after each step.
    """
    return _applied(_rnn, (x, h), weight, bias, (reverse, relu))


def lstm(x: Tensor, h: Tensor, c: Tensor, weight: Tensor, bias: Tensor | None, reverse: bool = False) -> Tensor:
    """Runs all steps of an LSTM on input products x (steps, batch, 4 hidden).

    h, c: (batch, hidden), before the first step. reverse: runs from the last step to the first.
    Returns (6, steps, batch, hidden): h, c and the gates i, f, g, o.
    """
    return _applied(_lstm, (x, h, c), weight, bias, (reverse,))


def gru(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None, reverse: bool = False) -> Tensor:
    """Runs all steps of a GRU on input products x (steps, batch, 3 hidden).

    h: (batch, hidden), before the first step. reverse: runs from the last step to the first.
    Returns (5, steps, batch, hidden): h, the gates r, z, n, and the hidden product of n.
    """
    return _applied(_gru, (x, h), weight, bias, (reverse,))


def _applied(op: Op, inputs: Sequence[Tensor], weight: Tensor, bias: Tensor | None, params: tuple[bool, ...]) -> Tensor:
    given = [*inputs, weight, *([] if bias is None else [bias])]
    if any([t.dtype != weight.dtype for t in given]):
        given = list(same_dtype(given))
    return apply(op, (*given, *([ABSENT] if bias is None else [])), params)
