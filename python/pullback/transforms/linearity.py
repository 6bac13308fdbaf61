"""Checks that a user's pullback is linear in the cotangent, because forward mode transposes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ..autodiff.batching import Batch, Batched, whole
from ..autodiff.kept import Heard
from ..autodiff.listeners import listeners
from ..autodiff.tape import Tape
from ..errors import TapeError
from ..launch import capturing
from ..tensors import devices, dtypes
from ..tensors.creation import asarray
from ..tensors.tensor import Tensor

Pull = Callable[[list[Any]], Sequence[Any]]

RTOL: Final = 0.02  # the allowed difference relative to the largest element: bfloat16 has three digits
SMALLEST: Final = 1e-30  # a gradient below it, at cotangents of about 1, is rounded too coarsely to tell
SCALES: Final = 20, 5  # exponents of 2 that a cotangent is scaled by, up and down; the second is for float16


class Transposing(Tape):
    """A tape that records a pullback in order to transpose it."""

    def __init__(self, *, persistent: bool = False) -> None:
        super().__init__(persistent=persistent, watch_parameters=False)


def refuse_nonlinear(rule: str, name: str, pull: Pull, cotangents: Sequence[Any]) -> None:
    """Raises TapeError if these cotangents come from forward mode, which transposes the pullback, and the pullback is not linear.

    It runs the pullback at five other cotangents: two, their difference, and one of them scaled up and down. No listener but
    batches receives these ops. In a captured function on a GPU nothing can be read, so there is no check.
    """
    if not any([isinstance(tape, Transposing) and _reaches(tape, cotangents) for tape in listeners.stack]):
        return
    if capturing.thread.recording is not None and not all([g is None or g.device == "cpu" for g in cotangents]):
        return
    with Heard(tuple([listener for listener in listeners.stack if isinstance(listener, Batch)])):
        what = _difference(pull, cotangents)
    if what is not None:
        raise TapeError(
            f"{rule}: the pullback of {name} is not linear in the cotangent: {what}. Forward mode (jvp, linearize, hvp, hessian) "
            f'transposes the pullback, so it must be linear. Use reverse mode: pb.grad, pb.vjp, or pb.jacobian with mode="reverse".'
        )


def _reaches(tape: Transposing, cotangents: Sequence[Any]) -> bool:
    for g in cotangents:
        while isinstance(g, Tensor):
            if tape.knows(g):
                return True
            g = g.value if isinstance(g, Batched) else None
    return False


def _difference(pull: Pull, cotangents: Sequence[Any]) -> str | None:
    """Returns in words how the pullback differs from a linear function, or None if it does not."""
    u, v = [_waves(g, 1.0) for g in cotangents], [_waves(g, 2.0**0.5) for g in cotangents]

    def at(given: Sequence[Any]) -> list[Any]:
        wrapped = [None if g is None else asarray(x, dtype=g.dtype, device=g.device) for g, x in zip(cotangents, given)]
        return [_numbers(gx) for gx in pull(wrapped)]

    first, second = at(u), at(v)
    half = any([g is not None and g.dtype == dtypes.float16 for g in cotangents])
    for factor in (2.0 ** SCALES[half], 0.5 ** SCALES[half]):
        if not _alike(at([x * factor for x in u]), [a * factor for a in first]):
            return f"for a cotangent {factor:.2g} times as large it does not return a gradient {factor:.2g} times as large"
    if not _alike(at([x - y for x, y in zip(u, v)]), [a - b for a, b in zip(first, second)]):
        return "for the difference of two cotangents it does not return the difference of their gradients"
    return None


def _waves(g: Tensor | None, rate: float) -> Any:
    """Returns numbers of both signs and several magnitudes, in the shape of a cotangent; 0 in the place of one that is missing."""
    return np.cos(rate * np.arange(1.0, g.size + 1)).reshape(g.shape) if g is not None else np.zeros(())


def _numbers(gx: Tensor | None) -> Any:
    """Returns a gradient, of all examples if it is that of one in a batch, as float64 numbers; 0 for one that is missing."""
    return np.zeros(()) if gx is None else devices.move(whole(gx).array, "cpu").astype(np.float64)


def _alike(found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    return all([_close(a, b) for a, b in zip(found, wanted)])


def _close(a: Any, b: Any) -> bool:
    a, b = np.broadcast_arrays(a, b)
    finite = np.isfinite(a) & np.isfinite(b)  # a number that overflows decides nothing
    a, b = a[finite], b[finite]
    return bool((np.abs(a - b) <= RTOL * np.abs(b).max(initial=SMALLEST)).all())
