"""Functions outside of pullback (hardware, simulators) as part of a network: their derivatives are estimated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..autodiff.batching import Batched
from ..errors import PullbackError, ShapeError, TapeError
from ..launch import capturing
from ..ops import random
from ..ops.elementwise import multiply
from ..ops.reduce import sum
from ..ops.shape import matrix_transpose, reshape
from ..tensors import devices
from ..tensors.creation import asarray
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from .calls import batches_of, called, is_real, on, record, with_listeners
from .custom import conforming
from .surrogate import Surrogate

ESTIMATES: Final = ("central", "spsa", "surrogate")


@dataclass
class Stats:
    """What a black box was asked so far.

    Attributes:
        calls: of the function. evaluations: inputs that it was given in them (with batch="rows", rows).
        forward_calls, backward_calls: the calls for values and for derivatives; together they are `calls`.
    """

    calls: int = 0
    evaluations: int = 0
    forward_calls: int = 0
    backward_calls: int = 0


def black_box(
    F: Callable[..., Any],
    gradient: str | Callable[..., Any] = "central",
    step: float = 1e-3,
    samples: int = 8,
    batch: bool | str = True,
    *,
    generator: random.Generator | None = None,
) -> BlackBox:
    """A function of tensors with the value of `F`, through which gradients flow by an estimate of its vector-Jacobian product.

    Args:
        F: from one or more NumPy arrays, always float64 on the host, to an array. No tape sees what it does.
        gradient: "central": central differences along each element. "spsa": central differences along `samples` random
            directions of elements +1 and -1. "surrogate": the slopes of an affine function fitted to the inputs and outputs
            seen so far, one pair per row where x has two or more axes and y as many rows (`Surrogate`). Or a function
            `(g, x, y) -> gx` of tensors (x is a tuple where F takes several); it is differentiated again where it is made of
            differentiable ops.
        step: the distance from x to each side, in units of x. The error is step^2 / 6 times the third derivative, plus F's
            noise / step.
        samples: the random directions of "spsa". Its estimate has no bias but that of the differences; its variance grows
            with n, the elements that are moved together, and falls as 1 / samples. For a batch say batch="rows".
        batch: True: F takes stacks of inputs, with one axis more in front, and returns the stack of outputs: all inputs of a
            pass go in one call. "rows": the first axis of x itself counts independent inputs, so that row i of F(x) depends
            on row i of x only; F takes any number of rows. False: F takes one input of the shape of x.
        generator: of the random directions; pb.random's where None.

    Calls of F, exactly, for x of n elements (with "rows": B rows of n elements): forward 1 evaluation in 1 call. Backward
    "central" 2 n evaluations, "spsa" 2 samples, "surrogate" and functions none; all evaluations of a backward pass are in 1 call,
    with batch=False each in one of its own. With "rows" every one of these counts B evaluations, and so for the B examples of
    a vmap. `stats` of the result counts.

    Derivatives of second order by an estimate are refused (TapeError). Raises ShapeError, PullbackError.
    Source: Spall 1992 (spsa); Ljung & Söderström 1983 (surrogate).
    """
    if not callable(gradient) and gradient not in ESTIMATES:
        raise PullbackError(f"black_box: gradient={gradient!r}; use {', '.join(map(repr, ESTIMATES))}, or a function (g, x, y).")
    if not step > 0 or samples < 1 or batch not in (True, False, "rows"):
        raise PullbackError(
            f'black_box: step={step} must be positive, samples={samples} 1 or more, batch={batch!r} True, False or "rows".'
        )
    return BlackBox(F, gradient, step, samples, batch, generator)


class BlackBox:
    """What `black_box` returns. `stats` counts the calls of the function."""

    def __init__(
        self, F: Callable[..., Any], gradient: Any, step: float, samples: int, batch: bool | str, generator: Any
    ) -> None:
        self.function, self.stats = F, Stats()
        self._gradient, self._step, self._samples, self._batch = gradient, step, samples, batch
        self._generator = generator or random.default
        self._surrogate = Surrogate()

    def __call__(self, *args: Any) -> Tensor:
        xs = [as_tensor(x) for x in args]
        layout = _Layout(called(self.function), xs, rows=self._batch == "rows")
        values, shape = self._evaluate(layout, layout.joined(xs)[None], forward=True)
        y = layout.tensor(values.reshape(*layout.lead, *shape), like=xs[0])
        if self._gradient == "surrogate":
            layout = layout.of_pairs(xs, y.shape)
            self._surrogate.see(layout.joined(xs), values.reshape(layout.rows, -1))

        def pull(cotangents: list[Any]) -> list[Any]:
            """An estimate of the function's vector-Jacobian product"""
            (g,) = cotangents
            if callable(self._gradient):
                given = self._gradient(g, xs[0] if len(xs) == 1 else tuple(xs), y)
                return conforming(given, xs, layout.name, rule="black_box")
            return layout.split(self._estimate(layout, xs, g))

        record(f"black box {layout.name}", pull, xs, [y])
        return y

    def _estimate(self, layout: _Layout, xs: Sequence[Tensor], g: Tensor) -> Tensor:
        """The estimated gradient, of shape (rows, elements of a row)."""
        seen = reshape(g, (layout.own_rows, -1))
        if self._gradient == "surrogate":
            return seen @ matrix_transpose(_unknown(layout, xs, asarray(self._surrogate.slopes(), dtype=g.dtype, device=g.device)))
        directions = self._directions(layout)
        base, offsets = layout.joined(xs), self._step * directions
        points = np.concatenate([base + offsets, base - offsets])
        values, _ = self._evaluate(layout, points, forward=False)
        above, below = np.split(values, 2)
        slopes = _unknown(layout, xs, layout.stacked((above - below) / (2 * self._step), like=g))
        if slopes.shape[1:] != seen.shape:
            raise ShapeError(f"black_box: {layout.name} returned another shape for x moved by {self._step} than for x, {g.shape}.")
        along = sum(multiply(slopes, seen), axis=-1)  # (directions, rows)
        if self._gradient == "central":
            return matrix_transpose(along)
        weights = layout.stacked(directions / self._samples, like=g)
        return sum(weights * reshape(along, (*along.shape, 1)), axis=0)

    def _directions(self, layout: _Layout) -> Any:
        """(directions, rows or 1, elements): along each element, or of random signs."""
        if self._gradient == "central":
            return np.eye(layout.elements)[:, None, :]
        shape = (self._samples, layout.rows, layout.elements)
        return with_listeners((), lambda: self._generator.bernoulli(shape)).numpy() * 2.0 - 1.0

    def _evaluate(self, layout: _Layout, points: Any, *, forward: bool) -> tuple[Any, tuple[int, ...]]:
        """F at points of shape (N, rows, elements): its values, of shape (N, rows, elements of y), and the shape of one y."""
        inputs = layout.arrays(points)
        count = len(points) * layout.rows
        if self._batch is False:
            result = np.stack([self._call([x[i] for x in inputs], 1, forward=forward) for i in range(count)])
        else:
            result = self._call(inputs, count, forward=forward)
            if not result.ndim or len(result) != count:
                raise ShapeError(
                    f"black_box: with batch={self._batch!r} {layout.name} was given {count} inputs along the first axis and "
                    f"returned shape {result.shape}; it must return {count} outputs along the first axis. Say batch=False if it "
                    f"takes one input at a time."
                )
        return result.reshape(len(points), layout.rows, -1), result.shape[1:]

    def _call(self, xs: Sequence[Any], count: int, *, forward: bool) -> Any:
        capturing.refuse("a black box, whose function is not made of kernels,", "Call it outside a captured function.")
        self.stats.calls += 1
        self.stats.evaluations += count
        self.stats.forward_calls += forward
        self.stats.backward_calls += not forward
        return np.array(with_listeners((), lambda: self.function(*xs)), dtype=np.float64)  # a copy: it may reuse its memory


class _Layout:
    """How the inputs lie beside each other in one array of shape (rows, elements).

    The rows are the independent inputs: the examples of the batches that a vmap runs over, times the first axis with `rows`.
    Raises PullbackError, ShapeError for inputs that cannot be perturbed together.

    Attributes:
        lead: the axes of the rows, first those of batches. own_rows: of one example.
    """

    def __init__(self, name: str, xs: Sequence[Tensor], *, rows: bool) -> None:
        if not xs or not all([is_real(x) for x in xs]):
            raise PullbackError(
                f"black_box: {name} takes one or more floating-point tensors, and was called with "
                f"{', '.join([f'{x.dtype} {x.shape}' for x in xs]) or 'nothing'}. Bind other arguments before: "
                f"pb.black_box(lambda x: F(x, mode)); convert integers with .astype(pb.float32)."
            )
        self.name, self.shapes, self._batches = name, [x.shape for x in xs], batches_of(xs)
        if rows and (not all(self.shapes) or len({shape[0] for shape in self.shapes}) > 1):
            raise ShapeError(f'black_box: with batch="rows" the inputs of {name} need equally many rows; they have {self.shapes}.')
        self._counted = int(rows)
        self.own_rows = self.shapes[0][0] if rows else 1
        self.lead = (*[batch.size for batch in self._batches], *self.shapes[0][: self._counted])
        self.rows = math.prod(self.lead)
        self._ends = np.cumsum([math.prod(shape[self._counted :]) for shape in self.shapes]).tolist()
        self.elements = self._ends[-1]

    def of_pairs(self, xs: Sequence[Tensor], y: tuple[int, ...]) -> _Layout:
        """With the rows that are pairs of input and output to a surrogate: those of x, where all inputs and y have as many."""
        if self.lead or not all([len(shape) > 1 for shape in self.shapes]):
            return self
        return _Layout(self.name, xs, rows=len({shape[0] for shape in self.shapes} | set(y[:1] or (None,))) == 1)

    def joined(self, xs: Sequence[Tensor]) -> Any:
        """The inputs beside each other, as float64 on the host: (rows, elements)."""
        values: list[Any] = with_listeners(self._batches, lambda: [on(x, self._batches) for x in xs])
        for _ in self._batches:
            values = [x.value for x in values]
        return np.concatenate([devices.move(x.array, "cpu").astype(np.float64).reshape(self.rows, -1) for x in values], axis=1)

    def arrays(self, points: Any) -> list[Any]:
        """For each input the array of all its points, from (N, rows, elements): (N * rows, *shape of one)."""
        parts = np.split(points, self._ends[:-1], axis=2)
        return [np.ascontiguousarray(part.reshape(-1, *shape[self._counted :])) for part, shape in zip(parts, self.shapes)]

    def stacked(self, values: Any, *, like: Tensor) -> Tensor:
        """An array (N, rows or 1, k) as the tensor (N, rows of one example, k)."""
        sizes = [batch.size for batch in self._batches]
        full = np.broadcast_to(values, (len(values), self.rows, values.shape[2]))
        return self.tensor(np.moveaxis(full.reshape(len(values), *sizes, self.own_rows, -1), 0, len(sizes)), like=like)

    def tensor(self, values: Any, *, like: Tensor) -> Tensor:
        """An array whose first axes are those of the batches as a tensor of one example."""
        t = with_listeners((), lambda: asarray(np.ascontiguousarray(values), dtype=like.dtype, device=like.device))
        for batch in self._batches:
            t = Batched(batch, t)
        return t

    def split(self, gradient: Tensor) -> list[Tensor]:
        """The gradient of each input, from that of all, of shape (rows, elements)."""
        starts = [0, *self._ends]
        return [reshape(gradient[:, a:b], shape) for a, b, shape in zip(starts, self._ends, self.shapes)]


def _unknown(layout: _Layout, xs: Sequence[Tensor], slopes: Tensor) -> Tensor:
    """Estimated slopes, as a tensor that depends on the inputs in a way that nobody knows."""

    def pull(_: list[Any]) -> list[Any]:
        """Refused"""
        raise TapeError(
            f"black_box: a second derivative through {layout.name} was asked for, and only its first is estimated. Give "
            f"gradient= a function (g, x, y) in differentiable ops, or stop the gradient of the first derivative."
        )

    record(f"slopes of {layout.name}", pull, xs, [slopes])
    return slopes
