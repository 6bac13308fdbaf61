"""check_gradients, which compares derivatives by the tape with finite differences in float64."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .autodiff.tape import Tape
from .errors import GradientCheckError, TapeError, ZeroGradientWarning
from .ops import elementwise, reduce
from .report.differences import EPSILON, LEVELS, derivative, directions
from .tensors import devices, dtypes
from .tensors.creation import asarray
from .tensors.tensor import Tensor
from .tree import flatten, unflatten

DIRECTIONS = 8  # random directions along which an argument of many elements is checked

Scalar = Callable[[list[Tensor]], Tensor]


def check_gradients(
    f: Callable[..., Any], args: Any, order: int = 2, *, rtol: float = 1e-6, step: float = 1e-2, seed: int = 0
) -> float:
    """Compares the derivatives of `f(*args)` by nested tapes, up to `order`, with central differences.

    Args:
        f: a function of tensors that returns a tensor, or nested lists, tuples and dicts of tensors.
        args: the arguments of f, in any nesting. Floating-point tensors and arrays are checked, in float64; other arguments are
            passed unchanged.
        order: 1 checks gradients, 2 also the derivative of the gradient, and so on.
        rtol: the allowed error, relative to the largest derivative with respect to the same argument.
        step: the largest distance at which `f` is evaluated, relative to max(1, |x|).
        seed: the seed of the random directions, and of the random weights that sum a result that is not a scalar.

    Returns: the largest relative error.
    Raises: GradientCheckError (also an AssertionError), naming the argument, the index and both values.
    Source: Ridders 1982, "Accurate computation of F'(x)".
    """
    leaves, spec = flatten(tuple(args) if isinstance(args, (tuple, list)) else (args,))
    free = [i for i, leaf in enumerate(leaves) if _is_real(leaf)]
    if not free:
        raise TapeError("check_gradients: no argument is a floating-point tensor or array. Use pb.tensor(..., dtype=pb.float64).")
    points = [np.array(_array(leaves[i]), dtype=np.float64) for i in free]
    names = _names(args, leaves)

    def call(xs: list[Tensor]) -> Any:
        values = list(leaves)
        for i, x in zip(free, xs):
            values[i] = x
        return f(*unflatten(spec, values))

    rng, function, worst = np.random.default_rng(seed), call, 0.0
    place = next((leaf.device for leaf in leaves if isinstance(leaf, Tensor)), devices.default_device())
    with devices.use_device(place):
        for k in range(1, order + 1):
            scalar = _weighted(function, points, rng)
            worst = max(worst, _compare(scalar, points, [names[i] for i in free], rng, f"order {k}", rtol, step))
            function = _gradients_of(scalar)
    return worst


def _is_real(x: Any) -> bool:
    return isinstance(x, (Tensor, np.ndarray)) and dtypes.is_float(x.dtype)


def _array(x: Any) -> Any:
    return x.numpy() if isinstance(x, Tensor) else x


def _names(args: Any, leaves: Sequence[Any]) -> list[str]:
    """Returns the name of each leaf in messages: "argument 1", or "argument 1, leaf 0" inside a structure."""
    names: list[str] = []
    for i, arg in enumerate(args if isinstance(args, (tuple, list)) else (args,)):
        count = len(flatten(arg)[0])
        names += [f"argument {i}" if count == 1 else f"argument {i}, leaf {k}" for k in range(count)]
    return names if len(names) == len(leaves) else [f"argument {i}" for i in range(len(leaves))]


def _weighted(function: Callable[[list[Tensor]], Any], points: list[Any], rng: Any) -> Scalar:
    """Returns the function's results as a sum with random weights of magnitude 0.5 to 1.5.

    Every element then counts, and errors in different elements do not cancel.
    """
    outputs = [y for y in flatten(function([asarray(p) for p in points]))[0] if _is_real(y)]
    if not outputs:
        raise TapeError("check_gradients: f returned no floating-point tensor, so there is nothing to differentiate.")
    weights = [asarray(rng.uniform(0.5, 1.5, y.shape) * rng.choice([-1.0, 1.0], y.shape)) for y in outputs]

    def scalar(xs: list[Tensor]) -> Tensor:
        total: Any = 0.0
        for y, w in zip([y for y in flatten(function(xs))[0] if _is_real(y)], weights):
            total = elementwise.add(total, reduce.sum(elementwise.multiply(y, w)))
        return total

    return scalar


def _gradients_of(scalar: Scalar) -> Callable[[list[Tensor]], list[Tensor]]:
    def gradients(xs: list[Tensor]) -> list[Tensor]:
        with Tape(watch_parameters=False) as tape:
            tape.watch(xs)
            y = scalar(xs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ZeroGradientWarning)  # The finite differences check whether zero is right.
            return tape.gradient(y, xs, unconnected="zero")

    return gradients


def _compare(scalar: Scalar, points: list[Any], names: list[str], rng: Any, order: str, rtol: float, step: float) -> float:
    gradients = [g.numpy() for g in _gradients_of(scalar)([asarray(p) for p in points])]
    size = abs(scalar([asarray(p) for p in points]).item())
    worst = 0.0
    for i, (point, gradient) in enumerate(zip(points, gradients)):
        pairs: list[tuple[str, float, float, float]] = []
        for where, direction in directions(point, rng, DIRECTIONS):

            def along(t: float, i: int = i, direction: Any = direction) -> float:
                moved = [p + t * direction if k == i else p for k, p in enumerate(points)]
                return scalar([asarray(p) for p in moved]).item()

            h = step * max(1.0, float(np.abs(point).max(where=direction != 0, initial=0.0)))
            pairs.append((where, float((gradient * direction).sum()), float(derivative(along, h).value), h))
        scale = max([max(abs(ours), abs(theirs)) for _, ours, theirs, _ in pairs], default=0.0)
        for where, ours, theirs, h in pairs:
            noise = 10 * EPSILON * (1 + size) / (h / 2**LEVELS)
            if not abs(ours - theirs) <= rtol * scale + noise:
                raise GradientCheckError(
                    f"check_gradients: {order}, {names[i]}, {where}: the tape says {ours!r}, finite differences say "
                    f"{theirs!r} (they may differ by {rtol * scale + noise:.1e}). Either a pullback is wrong, or f has a "
                    f"kink within {h:g} of this point: move the point, or pass a smaller step=."
                )
            worst = max(worst, abs(ours - theirs) / scale if scale > noise else 0.0)
    return worst
