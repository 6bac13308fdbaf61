"""Functions outside of pullback (hardware, simulators) as part of a network: their derivatives are estimated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .. import devices
from ..creation import asarray
from ..errors import PullbackError, ShapeError, TapeError
from ..operand import as_tensor
from ..ops import random
from ..ops.elementwise import multiply
from ..ops.reduce import sum
from ..ops.shape import matrix_transpose, reshape
from ..tensor import Tensor
from .calls import called, is_real, record, silently
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
    with batch=False each in one of its own. With "rows" every one of these counts B evaluations. `stats` of the result counts.

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
        y = asarray(values.reshape(shape), dtype=xs[0].dtype, device=xs[0].device)
        if self._gradient == "surrogate":
            layout = layout.of_pairs(xs, shape)
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
        if self._gradient == "surrogate":
            slopes = _constant(self._surrogate.slopes(), xs, g, layout)
            return reshape(g, (layout.rows, -1)) @ matrix_transpose(slopes)
        directions = self._directions(layout)
        base, offsets = layout.joined(xs), self._step * directions
        points = np.concatenate([base + offsets, base - offsets])
        values, shape = self._evaluate(layout, points, forward=False)
        if shape != g.shape:
            raise ShapeError(f"black_box: {layout.name} returned shape {g.shape} for x, and {shape} for x moved by {self._step}.")
        above, below = np.split(values, 2)
        slopes = _constant((above - below) / (2 * self._step), xs, g, layout)
        along = sum(multiply(slopes, reshape(g, (layout.rows, -1))), axis=-1)  # (directions, rows)
        if self._gradient == "central":
            return matrix_transpose(along)
        weights = asarray(directions / self._samples, dtype=g.dtype, device=g.device)
        return sum(weights * reshape(along, (*along.shape, 1)), axis=0)

    def _directions(self, layout: _Layout) -> Any:
        """(directions, rows or 1, elements): along each element, or of random signs."""
        if self._gradient == "central":
            return np.eye(layout.elements)[:, None, :]
        return self._generator.bernoulli((self._samples, layout.rows, layout.elements)).numpy() * 2.0 - 1.0

    def _evaluate(self, layout: _Layout, points: Any, *, forward: bool) -> tuple[Any, tuple[int, ...]]:
        """F at points of shape (N, rows, elements): its values, of shape (N, rows, elements of y), and the shape of one y."""
        count = len(points)
        inputs = layout.arrays(points)
        if self._batch is False:
            results = [np.asarray(self._call(count=1, forward=forward, xs=[x[i] for x in inputs])) for i in range(count)]
            result = np.stack(results)
        elif self._batch == "rows":
            flat = [x.reshape(-1, *x.shape[2:]) for x in inputs]
            result = self._call(count=count * layout.rows, forward=forward, xs=flat)
            result = _with_leading(layout, result, len(flat[0]), self._batch).reshape(count, layout.rows, *result.shape[1:])
        else:
            result = self._call(count=count, forward=forward, xs=inputs)
            result = _with_leading(layout, result, count, self._batch)
        return result.reshape(count, layout.rows, -1), result.shape[1:]

    def _call(self, *, count: int, forward: bool, xs: Sequence[Any]) -> Any:
        self.stats.calls += 1
        self.stats.evaluations += count
        self.stats.forward_calls += forward
        self.stats.backward_calls += not forward
        return np.asarray(silently((), lambda: self.function(*xs)), dtype=np.float64)


class _Layout:
    """How the inputs lie beside each other in one array of shape (rows, elements); rows is 1 where they are not counted.

    Raises PullbackError, ShapeError for inputs that cannot be perturbed together.
    """

    def __init__(self, name: str, xs: Sequence[Tensor], *, rows: bool) -> None:
        if not xs or not all([is_real(x) for x in xs]):
            raise PullbackError(
                f"black_box: {name} takes one or more floating-point tensors, and was called with "
                f"{', '.join([f'{x.dtype} {x.shape}' for x in xs]) or 'nothing'}. Bind other arguments before: "
                f"pb.black_box(lambda x: F(x, mode)); convert integers with .astype(pb.float32)."
            )
        self.name = name
        self.shapes = [x.shape for x in xs]
        if rows and (not all(self.shapes) or len({shape[0] for shape in self.shapes}) > 1):
            raise ShapeError(f'black_box: with batch="rows" the inputs of {name} need equally many rows; they have {self.shapes}.')
        self.rows = self.shapes[0][0] if rows else 1
        self.ends = np.cumsum([x.size // self.rows for x in xs]).tolist()
        self.elements = self.ends[-1]

    def of_pairs(self, xs: Sequence[Tensor], y: tuple[int, ...]) -> _Layout:
        """With the rows that are pairs of input and output to a surrogate: those of x, where all inputs and y have as many."""
        if self.rows > 1 or not all([len(shape) > 1 for shape in self.shapes]):
            return self
        return _Layout(self.name, xs, rows=len({shape[0] for shape in self.shapes} | set(y[:1] or (None,))) == 1)

    def joined(self, xs: Sequence[Tensor]) -> Any:
        """The inputs beside each other, as float64 on the host."""
        return np.concatenate([devices.move(x.array, "cpu").astype(np.float64).reshape(self.rows, -1) for x in xs], axis=1)

    def split(self, gradient: Tensor) -> list[Tensor]:
        """The gradient of each input, from that of all, of shape (rows, elements)."""
        starts = [0, *self.ends]
        return [reshape(gradient[:, a:b], shape) for a, b, shape in zip(starts, self.ends, self.shapes)]

    def arrays(self, points: Any) -> list[Any]:
        """For each input the array of all its points: shape (points, *shape of the input)."""
        parts = np.split(points, self.ends[:-1], axis=2)
        return [np.ascontiguousarray(part.reshape(len(points), *shape)) for part, shape in zip(parts, self.shapes)]


def _with_leading(layout: _Layout, result: Any, count: int, batch: Any) -> Any:
    if result.ndim and len(result) == count:
        return result
    raise ShapeError(
        f"black_box: with batch={batch!r} {layout.name} was given {count} inputs along the first axis and returned shape "
        f"{result.shape}; it must return {count} outputs along the first axis. Say batch=False if it takes one input at a time."
    )


def _constant(slopes: Any, xs: Sequence[Tensor], g: Tensor, layout: _Layout) -> Tensor:
    """Estimated slopes as a tensor that depends on the inputs, in a way that nobody knows."""
    d = asarray(slopes, dtype=g.dtype, device=g.device)

    def pull(_: list[Any]) -> list[Any]:
        """Refused"""
        raise TapeError(
            f"black_box: a second derivative through {layout.name} was asked for, and only its first is estimated. Give "
            f"gradient= a function (g, x, y) in differentiable ops, or stop the gradient of the first derivative."
        )

    record(f"slopes of {layout.name}", pull, xs, [d])
    return d
