"""Layers whose state follows a linear recurrence, so that all steps of a sequence are computed at once: MinGRU and LRU."""

from __future__ import annotations

import math
from typing import Any

from ..errors import PullbackError, ShapeError
from ..ops._shapes import flag, real
from ..ops.by_name import reshaped, spread
from ..ops.elementwise import cos, exp, expm1, log, maximum, sigmoid, sin
from ..ops.linalg import matmul
from ..ops.linear import linear
from ..ops.linear_recurrence import linear_recurrence
from ..ops.movement import concat
from ..ops.operands import as_tensors
from ..ops.shape import expand_dims, matrix_transpose, part_of, split
from ..tensors.creation import empty, zeros
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..transforms.associative_scan import associative_scan
from ..typing import ArrayLike, DTypeLike
from . import init
from .layers import Linear, positive_lengths
from .module import Module
from .results import LRUState, SequenceResult


class _Sequences(Module):
    """What both layers share: the layout of sequences, and the checks of x and the state."""

    input_size: int
    batch_first: bool

    def _read(self, x: ArrayLike, weight: Tensor) -> tuple[Tensor, int]:
        """Returns x, whose lists of numbers take the dtype of the weight, and the axis of its steps. Raises ShapeError."""
        name = type(self).__name__
        x, _ = as_tensors(name, x, weight)
        if x.ndim not in (2, 3):
            words = "(batch, steps, input_size)" if self.batch_first else "(steps, batch, input_size)"
            raise ShapeError(f"{name}: x has shape {x.shape}; it must be {words}, or (steps, input_size) for one sequence.")
        if x.shape[-1] != self.input_size:
            raise ShapeError(f"{name}: x {x.shape} has {x.shape[-1]} features, but input_size is {self.input_size}.")
        return x, int(self.batch_first and x.ndim == 3)

    def _check_state(self, state: Any, x: Tensor, axis: int, size: int) -> Tensor:
        """Returns a given state as a tensor. Raises ShapeError."""
        _, state = as_tensors(type(self).__name__, x, state)
        wanted = (*x.shape[:axis], *x.shape[axis + 1 : -1], size)
        if state.shape != wanted:
            raise ShapeError(f"{type(self).__name__}: the state h has shape {state.shape}, but x {x.shape} needs {wanted}.")
        return state


def _last(states: Tensor, axis: int, before: Tensor | None) -> Tensor:
    """Returns the last of the states along the axis; without steps it is the one before, where None means zeros."""
    if states.shape[axis]:
        return part_of(states, axis, -1)
    if before is not None:
        return before
    return zeros((*states.shape[:axis], *states.shape[axis + 1 :]), dtype=states.dtype, device=states.device)


class MinGRU(_Sequences):
    """A GRU whose gate and candidate depend on x alone: h_t = (1 - z_t) h_{t-1} + z_t c_t with z = sigmoid(W_z x), c = W_c x.

    Args:
        input_size, hidden_size: the number of features of x and of h.
        bias: False leaves out the biases.
        batch_first: the axes of x and of the output are (batch, steps, features) instead of (steps, batch, features).

    `linear`, an nn.Linear, computes the input of the gates z and the candidates c, one above the other. All steps are one launch of
    `pb.linear_recurrence`. Source: Feng et al., "Were RNNs all we needed?" (2024).

    >>> y, h = nn.MinGRU(4, 8)(pb.ones((6, 2, 4)))
    >>> y.shape, h.shape
    ((6, 2, 8), (2, 8))
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, batch_first: bool = False,
        *, dtype: DTypeLike | None = None, device: str | None = None,
    ) -> None:
        self.input_size, self.hidden_size = positive_lengths("MinGRU", input_size=input_size, hidden_size=hidden_size)
        self.batch_first = flag("MinGRU", "batch_first", batch_first)
        self.linear = Linear(self.input_size, 2 * self.hidden_size, bias=flag("MinGRU", "bias", bias), dtype=dtype, device=device)

    def forward(self, x: ArrayLike, h: ArrayLike | None = None) -> SequenceResult:
        """Runs the layer on sequences.

        Args:
            x: (steps, batch, input_size), or (batch, steps, input_size) if batch_first; (steps, input_size) is one sequence.
            h: (batch, hidden_size), the state before the first step, without the batch for one sequence; None means zeros.

        Returns: h at every step, in the layout of x, and the h of the last step, which is `h` if there are no steps.
        Raises: ShapeError, DTypeError.
        """
        x, axis = self._read(x, self.linear.weight)
        before = None if h is None else self._check_state(h, x, axis, self.hidden_size)
        gates, candidates = split(self.linear(x), 2, axis=-1)
        y = linear_recurrence(sigmoid(-gates), sigmoid(gates) * candidates, axis, initial=before)
        return SequenceResult(y, _last(y, axis, before))

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, batch_first={self.batch_first}"


class LRU(_Sequences):
    """A linear recurrent unit: h_t = λ h_{t-1} + exp(gamma_log) B x_t with complex λ in the unit disc, y_t = Re(C h_t) + D x_t.

    Args:
        input_size: the number of features of x and of y.
        hidden_size: the number of complex numbers in h.
        r_min, r_max: the absolute values of the initial λ lie between these, uniform over the area.
        max_phase: the angles of the initial λ lie between 0 and this.
        batch_first: the axes of x and of y are (batch, steps, features) instead of (steps, batch, features).

    The Parameters are nu_log, theta_log, gamma_log, B_re, B_im, C_re, C_im and D, with |λ| = exp(-exp(nu_log)), so that it never
    exceeds 1, and the angle exp(theta_log). All steps are one `pb.associative_scan`.
    Source: Orvieto et al., "Resurrecting recurrent neural networks for long sequences" (2023).

    >>> y, h = nn.LRU(4, 8)(pb.ones((6, 2, 4)))
    >>> y.shape
    (6, 2, 4)
    """

    def __init__(
        self, input_size: int, hidden_size: int, r_min: float = 0.0, r_max: float = 1.0, max_phase: float = 2 * math.pi,
        batch_first: bool = False, *, dtype: DTypeLike | None = None, device: str | None = None,
    ) -> None:
        n, m = self.input_size, self.hidden_size = positive_lengths("LRU", input_size=input_size, hidden_size=hidden_size)
        r_min, r_max = real("LRU", "r_min", r_min), real("LRU", "r_max", r_max)
        max_phase = real("LRU", "max_phase", max_phase)
        if not (0 <= r_min < r_max <= 1 and max_phase > 0):
            raise PullbackError(
                f"LRU: r_min={r_min!r}, r_max={r_max!r}, max_phase={max_phase!r} must satisfy 0 <= r_min < r_max <= 1 and "
                f"max_phase > 0."
            )
        self.batch_first = flag("LRU", "batch_first", batch_first)

        def made(*shape: int) -> Parameter:
            return Parameter(empty(shape, dtype=dtype, device=device))

        least = 1e-4  # the squared absolute values stay away from 0 and 1, where nu_log would be infinite
        self.nu_log = init.uniform(made(m), max(r_min**2, least), min(r_max**2, 1 - least))
        self.nu_log.assign(log(-0.5 * log(self.nu_log)))
        self.theta_log = init.uniform(made(m), 0.0, max_phase)
        self.theta_log.assign(log(maximum(self.theta_log, least)))
        self.gamma_log = made(m)
        self.gamma_log.assign(0.5 * log(-expm1(-2 * exp(self.nu_log))))
        self.B_re, self.B_im = [init.normal(made(m, n), std=math.sqrt(0.5 / n)) for _ in range(2)]
        self.C_re, self.C_im = [init.normal(made(n, m), std=math.sqrt(1 / m)) for _ in range(2)]
        self.D = init.normal(made(n))

    def forward(self, x: ArrayLike, h: Any = None) -> SequenceResult:
        """Runs the layer on sequences.

        Args:
            x: (steps, batch, input_size), or (batch, steps, input_size) if batch_first; (steps, input_size) is one sequence.
            h: the real and the imaginary part of the state before the first step, each of shape (batch, hidden_size), without the
                batch for one sequence; None means zeros.

        Returns: y in the layout of x, and the two parts of the h of the last step, which are `h` if there are no steps.
        Raises: ShapeError, DTypeError, PullbackError.
        """
        x, axis = self._read(x, self.D)
        radius, angle = exp(-exp(self.nu_log)), exp(self.theta_log)
        a = radius * cos(angle), radius * sin(angle)
        scale = expand_dims(exp(self.gamma_log), axis=1)
        b = linear(x, self.B_re * scale), linear(x, self.B_im * scale)
        before: list[Any] = [None, None]
        if h is not None:
            if not (isinstance(h, (tuple, list)) and len(h) == 2):
                raise PullbackError(f"LRU: the state h is a {type(h).__name__}; give the pair of its real and imaginary parts.")
            before = [self._check_state(part, x, axis, self.hidden_size) for part in h]
            b = self._begun(a, b, [expand_dims(part, axis=axis) for part in before], axis) if x.shape[axis] else b
        steps = tuple([x.shape[i] if i == axis else 1 for i in range(x.ndim - 1)])
        powers = [reshaped(spread(part, x.shape[axis]), (*steps, self.hidden_size)) for part in a]
        *_, re, im = associative_scan(_combined, (*powers, *b), axis=axis)
        y = matmul(re, matrix_transpose(self.C_re)) - matmul(im, matrix_transpose(self.C_im)) + self.D * x
        return SequenceResult(y, LRUState(_last(re, axis, before[0]), _last(im, axis, before[1])))

    @staticmethod
    def _begun(a: Any, b: Any, h: Any, axis: int) -> tuple[Tensor, Tensor]:
        """Returns b with a h added at the first step."""
        added = a[0] * h[0] - a[1] * h[1], a[0] * h[1] + a[1] * h[0]
        parts = [(part_of(x, axis, slice(0, 1)) + y, part_of(x, axis, slice(1, None))) for x, y in zip(b, added)]
        return concat(parts[0], axis=axis), concat(parts[1], axis=axis)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, batch_first={self.batch_first}"


def _combined(first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Composes the maps h -> a h + b of the first and the second steps. The a have no batch, because they do not depend on x."""
    (ar, ai, br, bi), (cr, ci, dr, di) = first, second
    return cr * ar - ci * ai, cr * ai + ci * ar, cr * br - ci * bi + dr, cr * bi + ci * br + di


__all__ = ["LRU", "MinGRU"]
