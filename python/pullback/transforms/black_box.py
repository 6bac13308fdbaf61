"""black_box: makes a function outside pullback (hardware, a simulator) part of a network, with estimated derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

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
from ..typing import ArrayLike
from .calls import Again, Pull, batches_of, called, is_real, on, record, with_listeners
from .custom import conforming
from .linearity import refuse_nonlinear
from .surrogate import Surrogate

Estimate = Literal["central", "spsa", "surrogate"]
ESTIMATES: Final[tuple[Estimate, ...]] = get_args(Estimate)


@dataclass
class BlackBoxStats:
    """The numbers of calls and evaluations of a black box so far.

    Attributes:
        calls: number of calls of the function.
        evaluations: number of inputs that these calls evaluated (with batch="rows": of rows).
        forward_calls, backward_calls: the calls for values and for derivatives; together they make up `calls`.
    """

    calls: int = 0
    evaluations: int = 0
    forward_calls: int = 0
    backward_calls: int = 0


def black_box(
    F: Callable[..., Any],
    gradient: Estimate | Callable[..., Any] = "central",
    step: float = 1e-3,
    samples: int = 8,
    batch: bool | Literal["rows"] = True,
    *,
    generator: random.Generator | None = None,
) -> BlackBox:
    """Returns a function of tensors with the value of `F`, whose vector-Jacobian product is estimated in the backward pass.

    Args:
        F: takes one or more NumPy arrays, always float64 on the host, and returns an array. No tape records what it does.
        gradient: "central": central differences along each element. "spsa": central differences along `samples` random
            directions of elements +1 and -1. "surrogate": the slopes of an affine function fitted to the inputs and outputs
            seen so far, one pair per row if x has two or more axes and y the same number of rows (`Surrogate`). Or a function
            `(g, x, y) -> gx` of tensors (x is a tuple if F takes several); it can be differentiated again if it consists of
            differentiable ops.
        step: the distance from x to each side, in units of x. The error is step^2 / 6 times the third derivative, plus F's
            noise / step.
        samples: the number of random directions of "spsa". Its estimate has only the bias of the differences. Its variance
            grows with n, the number of elements that are moved together, and falls as 1 / samples. For a batch of independent
            rows pass batch="rows".
        batch: True: F takes a stack of inputs along an additional first axis, and returns the stack of outputs, so that one
            call evaluates all inputs of a pass. "rows": the first axis of x itself counts independent inputs, so that row i of
            F(x) depends only on row i of x; F takes any number of rows. False: F takes one input of the shape of x.
        generator: the generator of the random directions; None selects that of pb.random.

    The exact number of evaluations of F, for x of n elements (with "rows": B rows of n elements): the forward pass takes 1
    evaluation in 1 call. The backward pass takes 2 n evaluations for "central", 2 samples for "spsa", and none for "surrogate" or a
    function. They take 1 call together, or with batch=False 1 call each. With "rows", and under a vmap over B examples, each of
    these evaluations counts B times. `stats` of the result holds the counts.

    Raises: PullbackError for invalid options or inputs, ShapeError if F returns a wrong shape, TapeError if an estimated derivative
    is differentiated again.
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
    """The function that `black_box` returns. `stats` counts the calls of the wrapped function."""

    def __init__(self, F: Callable[..., Any], gradient: Any, step: float, samples: int, batch: bool | str, generator: Any) -> None:
        self.function, self.stats = F, BlackBoxStats()
        self._gradient, self._step, self._samples, self._batch = gradient, step, samples, batch
        self._generator = generator
        self._surrogate = Surrogate()

    def __repr__(self) -> str:
        gradient = called(self._gradient) if callable(self._gradient) else self._gradient
        return f"black_box({called(self.function)}, gradient={gradient}; {self.stats.evaluations} evaluations)"

    def __call__(self, *args: ArrayLike) -> Tensor:
        xs = [as_tensor(x) for x in args]
        y, pull = self._run(xs)
        again: Again | str = f'its gradient is an estimate ("{self._gradient}"), not a formula'
        if callable(self._gradient):
            again = Again(xs, self._run_again)
        record(f"black box {called(self.function)}", pull, xs, [y], again=again, formula=callable(self._gradient))
        return y

    def _run_again(self, xs: Sequence[Tensor]) -> tuple[list[Tensor], Pull]:
        y, pull = self._run(xs)
        return [y], pull

    def _run(self, xs: Sequence[Tensor]) -> tuple[Tensor, Pull]:
        """Returns the value of F and its pullback."""
        layout = _Layout(called(self.function), xs, rows=self._batch == "rows")
        values, shape = self._evaluate(layout, layout.joined(xs)[None], forward=True)
        y = layout.tensor(values.reshape((*layout.lead, *shape)), like=xs[0])
        if self._gradient == "surrogate":
            layout = layout.of_pairs(xs, y.shape)
            self._surrogate.see(layout.joined(xs), values.reshape(layout.rows, -1))

        def pull(cotangents: list[Any]) -> list[Any]:
            """An estimate of the function's vector-Jacobian product"""
            (g,) = cotangents
            if callable(self._gradient):
                refuse_nonlinear("black_box", layout.name, pull, cotangents)
                given = self._gradient(g, xs[0] if len(xs) == 1 else tuple(xs), y)
                return conforming(given, xs, layout.name, rule="black_box")
            return layout.split(self._estimate(layout, xs, g))

        return y, pull

    def _estimate(self, layout: _Layout, xs: Sequence[Tensor], g: Tensor) -> Tensor:
        """Returns the estimated gradient, of shape (rows, elements of a row)."""
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
        """Returns the directions, of shape (directions, rows or 1, elements): unit vectors, or random signs for "spsa"."""
        if self._gradient == "central":
            return np.eye(layout.elements)[:, None, :]
        shape = (self._samples, layout.rows, layout.elements)
        return with_listeners((), lambda: (self._generator or random.default).bernoulli(shape)).numpy() * 2.0 - 1.0

    def _evaluate(self, layout: _Layout, points: Any, *, forward: bool) -> tuple[Any, tuple[int, ...]]:
        """Evaluates F at points of shape (N, rows, elements).

        Returns its values, of shape (N, rows, elements of y), and the shape of one y.
        """
        inputs = layout.arrays(points)
        count = len(points) * layout.rows
        if self._batch is False:
            result = np.stack([self._call([x[i] for x in inputs], 1, forward=forward) for i in range(count)])
        else:
            result = self._call(inputs, count, forward=forward)
            if not result.ndim or len(result) != count:
                raise ShapeError(
                    f"black_box: with batch={self._batch!r} {layout.name} was given {count} inputs along the first axis and "
                    f"returned shape {result.shape}; it must return {count} outputs along the first axis. Pass batch=False if it "
                    f"takes one input at a time."
                )
        return result.reshape(len(points), layout.rows, -1), result.shape[1:]

    def _call(self, xs: Sequence[Any], count: int, *, forward: bool) -> Any:
        capturing.refuse("a black box, whose function is not made of kernels,", "Call it outside a captured function.")
        self.stats.calls += 1
        self.stats.evaluations += count
        self.stats.forward_calls += forward
        self.stats.backward_calls += not forward
        try:
            return np.array(with_listeners((), lambda: self.function(*xs)), dtype=np.float64)  # a copy: F may reuse its memory
        except Exception as error:
            note: Any = getattr(error, "add_note", None)  # from Python 3.11 on
            if self._batch is not False and note is not None:
                shapes = ", ".join([str(x.shape) for x in xs])
                note(
                    f"black_box: with batch={self._batch!r} {called(self.function)} receives {count} inputs along the first axis "
                    f"of its arrays, here of shape {shapes}. Pass batch=False if it takes one input at a time."
                )
            raise


class _Layout:
    """The arrangement of all inputs in one array of shape (rows, elements).

    The rows are the independent inputs: the examples of a vmap's batches, times the length of the first axis if `rows` is True.
    Raises PullbackError, ShapeError for inputs that cannot be perturbed together.

    Attributes:
        lead: the lengths of the axes that count rows: first those of batches, then the first axis if `rows` is True.
        own_rows: the number of rows of one example.
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
        """Returns the layout for a surrogate, in which each row is one pair of input and output.

        The rows are those of x if all inputs and y have the same number of them.
        """
        if self.lead or not all([len(shape) > 1 for shape in self.shapes]):
            return self
        return _Layout(self.name, xs, rows=len({shape[0] for shape in self.shapes} | set(y[:1] or (None,))) == 1)

    def joined(self, xs: Sequence[Tensor]) -> Any:
        """Returns the concatenated inputs as one float64 array on the host, of shape (rows, elements)."""
        values: list[Any] = with_listeners(self._batches, lambda: [on(x, self._batches) for x in xs])
        for _ in self._batches:
            values = [x.value for x in values]
        return np.concatenate([devices.move(x.array, "cpu").astype(np.float64).reshape(self.rows, -1) for x in values], axis=1)

    def arrays(self, points: Any) -> list[Any]:
        """Splits points of shape (N, rows, elements) into one array per input, of shape (N * rows, *shape of one input)."""
        parts = np.split(points, self._ends[:-1], axis=2)
        return [np.ascontiguousarray(part.reshape(-1, *shape[self._counted :])) for part, shape in zip(parts, self.shapes)]

    def stacked(self, values: Any, *, like: Tensor) -> Tensor:
        """Returns an array of shape (N, rows or 1, k) as a tensor of shape (N, rows of one example, k)."""
        sizes = [batch.size for batch in self._batches]
        full = np.broadcast_to(values, (len(values), self.rows, values.shape[2]))
        return self.tensor(np.moveaxis(full.reshape(len(values), *sizes, self.own_rows, -1), 0, len(sizes)), like=like)

    def tensor(self, values: Any, *, like: Tensor) -> Tensor:
        """Returns an array whose first axes are those of the batches as a tensor of one example."""
        t = with_listeners((), lambda: asarray(np.ascontiguousarray(values), dtype=like.dtype, device=like.device))
        for batch in self._batches:
            t = Batched(batch, t)
        return t

    def split(self, gradient: Tensor) -> list[Tensor]:
        """Splits the gradient of all inputs, of shape (rows, elements), into the gradient of each input."""
        starts = [0, *self._ends]
        return [reshape(gradient[:, a:b], shape) for a, b, shape in zip(starts, self._ends, self.shapes)]


def _unknown(layout: _Layout, xs: Sequence[Tensor], slopes: Tensor) -> Tensor:
    """Records that the estimated slopes depend on the inputs, so that differentiating them raises; returns the slopes."""

    def pull(_: list[Any]) -> list[Any]:
        """Refused"""
        raise TapeError(
            f"black_box: a second derivative through {layout.name} was asked for, and only its first is estimated. Give "
            f"gradient= a function (g, x, y) in differentiable ops, or stop the gradient of the first derivative."
        )

    record(f"slopes of {layout.name}", pull, xs, [slopes], again="its slopes are estimates")
    return slopes
