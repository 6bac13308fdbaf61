"""Recurrent layers and cells, with PyTorch's names, order of gates, and initial weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from ..autodiff.site import warn
from ..errors import PullbackError, ShapeError
from ..ops._shapes import flag, integer, probability
from ..ops.dropout import dropout as dropped
from ..ops.linear import linear
from ..ops.movement import concat, stack
from ..ops.operands import as_tensors
from ..ops.recurrent import gru, lstm, rnn
from ..ops.shape import expand_dims, squeeze, swapaxes
from ..tensors.creation import empty, zeros
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..typing import ArrayLike, DTypeLike
from . import init
from .layers import positive_lengths
from .module import Module
from .results import LSTMState, SequenceResult

Nonlinearity = Literal["tanh", "relu"]


class _Recurrent(Module):
    """What layers and cells share: the weights, the states, and the call of the op."""

    gates: ClassVar[int] = 1
    states: ClassVar[int] = 1  # h, or h and c
    input_size: int
    hidden_size: int
    bias: bool

    def _make_weights(self, suffix: str, inputs: int, dtype: DTypeLike | None, device: str | None) -> None:
        """Draws the weights and biases of one layer and direction from U(±1/sqrt(hidden_size)), and makes them attributes."""
        rows, bound = self.gates * self.hidden_size, 1 / math.sqrt(self.hidden_size)
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, inputs), "weight_hh": (rows, self.hidden_size)}
        if self.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            p = Parameter(empty(shapes[name], dtype=dtype, device=device)) if name in shapes else None
            setattr(self, f"{name}{suffix}", None if p is None else init.uniform(p, -bound, bound))

    def _weights(self, suffix: str) -> list[Any]:
        own = vars(self)
        return [own[f"{name}{suffix}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]

    def _run(self, x: Tensor, states: Sequence[Tensor], suffix: str, reverse: bool) -> Tensor:
        """Runs one layer in one direction on x (steps, batch, inputs). Returns what the op keeps, of which [0] is h."""
        weight_ih, weight_hh, bias_ih, bias_hh = self._weights(suffix)
        return self._steps(linear(x, weight_ih, bias_ih), states, weight_hh, bias_hh, reverse)

    def _steps(self, x: Tensor, states: Sequence[Tensor], weight: Any, bias: Any, reverse: bool) -> Tensor:
        raise NotImplementedError

    def _first(self) -> Parameter:
        """Returns the first weight of the states, whose dtype is that of the layer."""
        return vars(self)["weight_hh" if isinstance(self, _Cell) else "weight_hh_l0"]

    def _states(self, given: Any, shape: tuple[int, ...], words: str, x: Tensor) -> list[Tensor]:
        """Returns h, or h and c, as the user gave them or as zeros. Raises ShapeError, PullbackError."""
        name = type(self).__name__
        if given is None:
            return [zeros(shape, dtype=self._first().dtype, device=x.device)] * self.states
        if self.states == 2 and not (isinstance(given, (tuple, list)) and len(given) == 2):
            raise PullbackError(f"{name}: the state hx is a {type(given).__name__}; give a pair (h, c), or nothing for zeros.")
        if self.states == 1 and isinstance(given, (tuple, list)):
            raise PullbackError(f"{name}: the state hx is a {type(given).__name__}; give one tensor h, or nothing for zeros.")
        found = as_tensors(name, x, *(given if self.states == 2 else [given]))[1:]
        for letter, state in zip("hc", found):
            if state.shape != shape:
                raise ShapeError(f"{name}: {letter} has shape {state.shape}, but x {x.shape} needs {shape}: {words}.")
        return found

    def _check_features(self, x: Tensor, axes: tuple[int, int], words: str) -> None:
        name = type(self).__name__
        if x.ndim not in axes:
            raise ShapeError(f"{name}: x has shape {x.shape}; it must be {words}.")
        if x.shape[-1] != self.input_size:
            raise ShapeError(
                f"{name}: x {x.shape} has {x.shape[-1]} features, but input_size is {self.input_size}. "
                f"Make the layer nn.{name}({x.shape[-1]}, {self.hidden_size}), or give x another last axis."
            )


def _nonlinearity(layer: str, given: Any) -> bool:
    """Returns True for relu, False for tanh."""
    if not isinstance(given, str) or given not in ("tanh", "relu"):
        raise PullbackError(f'{layer}: nonlinearity is {given!r}; use "tanh" or "relu".')
    return bool(given == "relu")


# ---- how each kind runs its steps


class _Plain(_Recurrent):
    nonlinearity: str

    def _steps(self, x: Tensor, states: Sequence[Tensor], weight: Any, bias: Any, reverse: bool) -> Tensor:
        return rnn(x, states[0], weight, bias, reverse, _nonlinearity(type(self).__name__, self.nonlinearity))


class _Long(_Recurrent):
    gates, states = 4, 2

    def _steps(self, x: Tensor, states: Sequence[Tensor], weight: Any, bias: Any, reverse: bool) -> Tensor:
        return lstm(x, states[0], states[1], weight, bias, reverse)


class _Gated(_Recurrent):
    gates = 3

    def _steps(self, x: Tensor, states: Sequence[Tensor], weight: Any, bias: Any, reverse: bool) -> Tensor:
        return gru(x, states[0], weight, bias, reverse)


# ---- layers


class _Layers(_Recurrent):
    """Stacked layers over whole sequences, in one direction or two."""

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, *, dtype: DTypeLike | None = None, device: str | None = None,
    ) -> None:
        name = type(self).__name__
        sizes = positive_lengths(name, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        self.input_size, self.hidden_size, self.num_layers = sizes
        self.bias = flag(name, "bias", bias)
        self.batch_first = flag(name, "batch_first", batch_first)
        self.bidirectional = flag(name, "bidirectional", bidirectional)
        self.dropout = probability(name, "dropout", dropout)
        if dropout and self.num_layers == 1:
            warn(f"{name}: dropout={dropout} has no effect: it is applied between layers, and there is one.", UserWarning)
        for layer in range(self.num_layers):
            inputs = self.hidden_size * len(self._directions) if layer else self.input_size
            for direction in self._directions:
                self._make_weights(f"_l{layer}{direction}", inputs, dtype, device)

    @property
    def _directions(self) -> tuple[str, ...]:
        return ("", "_reverse") if self.bidirectional else ("",)

    def forward(self, x: ArrayLike, hx: Any = None) -> SequenceResult:
        """Runs all layers on sequences.

        Args:
            x: (steps, batch, input_size), or (batch, steps, input_size) if batch_first; (steps, input_size) is one sequence.
            hx: the states before the first step; zeros if it is left out. h, or for an LSTM the pair (h, c), of shape
                (num_layers * directions, batch, hidden_size), without the batch for one sequence.

        Returns: h of the last layer at every step, both directions side by side, in the layout of x; and the states after the last
        step, in the form of hx. Sequences of no steps have no h, and leave the states as they were.
        Raises: ShapeError, DTypeError, PullbackError.
        """
        x = as_tensors(type(self).__name__, x, self._first())[0]
        words = "(batch, steps, input_size)" if self.batch_first else "(steps, batch, input_size)"
        self._check_features(x, (2, 3), f"{words}, or (steps, input_size) for one sequence")
        alone, count = x.ndim == 2, self.num_layers * len(self._directions)
        batch = () if alone else (x.shape[0 if self.batch_first else 1],)
        axes = "(num_layers * directions, hidden_size)" if alone else "(num_layers * directions, batch, hidden_size)"
        states = self._states(hx, (count, *batch, self.hidden_size), axes, x)
        if alone:
            x, states = expand_dims(x, axis=1), [expand_dims(state, axis=1) for state in states]
        elif self.batch_first:
            x = swapaxes(x, 0, 1)
        y, last = self._all_layers(x, states)
        if alone:
            y, last = squeeze(y, axis=1), [squeeze(state, axis=1) for state in last]
        elif self.batch_first:
            y = swapaxes(y, 0, 1)
        return SequenceResult(y, LSTMState(*last) if self.states == 2 else last[0])

    def _all_layers(self, x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Returns h of the last layer at every step, and the last states of all layers and directions."""
        last: list[list[Tensor]] = []
        steps = x.shape[0]
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = dropped(x, self.dropout, self.training)
            outputs = []
            for reverse, direction in enumerate(self._directions):
                own = [state[len(last)] for state in states]
                kept = self._run(x, own, f"_l{layer}{direction}", bool(reverse))
                at = 0 if reverse else steps - 1
                last.append([kept[k, at] for k in range(self.states)] if steps else own)
                outputs.append(kept[0])
            x = outputs[0] if len(outputs) == 1 else concat(outputs, axis=-1)
        return x, [expand_dims(of_all[0]) if len(of_all) == 1 else stack(of_all) for of_all in zip(*last)]

    def extra_repr(self) -> str:
        shown = [f"{self.input_size}, {self.hidden_size}"]
        defaults = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        return ", ".join(shown + [f"{k}={vars(self)[k]}" for k, default in defaults.items() if vars(self)[k] != default])


class RNN(_Layers, _Plain):
    """h = tanh(weight_ih @ x + bias_ih + weight_hh @ h + bias_hh) at each step of a sequence, or relu instead of tanh.

    Args:
        input_size, hidden_size: the number of features of x and of h.
        num_layers: the number of layers, each of which reads the h of the layer below.
        nonlinearity: "tanh" or "relu".
        bias: False leaves out the biases.
        batch_first: the axes of x and of the output are (batch, steps, features) instead of (steps, batch, features).
        dropout: the probability with which elements are set to zero between layers in training.
        bidirectional: each layer also runs from the last step to the first, with separate weights.

    Weights have the names, the layout and the initial values of torch.nn.RNN: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0,
    weight_ih_l0_reverse, …, drawn from U(±1/sqrt(hidden_size)). All steps of a layer and direction are one launch.

    >>> y, h = nn.RNN(4, 8)(pb.ones((6, 2, 4)))
    >>> y.shape, h.shape
    ((6, 2, 8), (1, 2, 8))
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: Nonlinearity = "tanh", bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *, dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        _nonlinearity("RNN", nonlinearity)
        self.nonlinearity = nonlinearity
        options: dict[str, Any] = {"dtype": dtype, "device": device}
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, **options)


class LSTM(_Layers, _Long):
    """A long short-term memory (Hochreiter & Schmidhuber 1997): at each step of a sequence

        i, f, o = sigmoid(…), g = tanh(…), each of weight_ih @ x + bias_ih + weight_hh @ h + bias_hh
        c = f * c + i * g
        h = o * tanh(c)

    The weights of the gates follow one another in the order i, f, g, o. The arguments are those of `RNN` without the nonlinearity.

    >>> y, (h, c) = nn.LSTM(4, 8)(pb.ones((6, 2, 4)))
    >>> y.shape, h.shape, c.shape
    ((6, 2, 8), (1, 2, 8), (1, 2, 8))
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, *, dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        if integer("LSTM", "proj_size", proj_size) != 0:
            raise PullbackError(
                f"LSTM: proj_size={proj_size!r} is not supported: h has hidden_size features. Leave proj_size out, and project "
                f"the output of each layer with nn.Linear({hidden_size!r}, {proj_size!r}, bias=False). With PyTorch's weights, its "
                f"weight is weight_hr, and that of the LSTM is weight_hh @ weight_hr instead of weight_hh."
            )
        options: dict[str, Any] = {"dtype": dtype, "device": device}
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, **options)


class GRU(_Layers, _Gated):
    """Gated recurrent units (Cho et al. 2014): at each step of a sequence

        r, z = sigmoid(weight_ih @ x + bias_ih + weight_hh @ h + bias_hh)
        n = tanh(weight_ih @ x + bias_ih + r * (weight_hh @ h + bias_hh))
        h = (1 - z) * n + z * h

    The weights of the gates follow one another in the order r, z, n. The arguments are those of `RNN` without the nonlinearity.

    >>> y, h = nn.GRU(4, 8)(pb.ones((6, 2, 4)))
    >>> y.shape, h.shape
    ((6, 2, 8), (1, 2, 8))
    """


# ---- cells


class _Cell(_Recurrent):
    """One step, of one layer."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, *, dtype: DTypeLike | None = None, device: str | None = None
    ) -> None:
        name = type(self).__name__
        self.input_size, self.hidden_size = positive_lengths(name, input_size=input_size, hidden_size=hidden_size)
        self.bias = flag(name, "bias", bias)
        self._make_weights("", self.input_size, dtype, device)

    def forward(self, x: ArrayLike, hx: Any = None) -> Any:
        """Runs one step.

        Args:
            x: (batch, input_size) or (input_size,).
            hx: the state before the step; zeros if it is left out. h, or for an LSTMCell the pair (h, c), of shape
                (batch, hidden_size) or (hidden_size,).

        Returns: the state after the step, in the form of hx. Raises: ShapeError, DTypeError, PullbackError.
        """
        x = as_tensors(type(self).__name__, x, self._first())[0]
        self._check_features(x, (1, 2), "(batch, input_size), or (input_size,) for one example")
        alone = x.ndim == 1
        axes = "(hidden_size,)" if alone else "(batch, hidden_size)"
        states = self._states(hx, (*x.shape[:-1], self.hidden_size), axes, x)
        x = expand_dims(x, axis=(0, 1) if alone else 0)
        kept = self._run(x, [expand_dims(state) for state in states] if alone else states, "", False)
        key: tuple[int, ...] = (0, 0) if alone else (0,)
        return LSTMState(kept[(0, *key)], kept[(1, *key)]) if self.states == 2 else kept[(0, *key)]

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(_Cell, _Plain):
    """One step of `RNN`: h = tanh(weight_ih @ x + bias_ih + weight_hh @ h + bias_hh), or relu instead of tanh.

    Weights have the names, the layout and the initial values of torch.nn.RNNCell.
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: Nonlinearity = "tanh", *,
        dtype: DTypeLike | None = None, device: str | None = None,
    ) -> None:
        _nonlinearity("RNNCell", nonlinearity)
        self.nonlinearity = nonlinearity
        super().__init__(input_size, hidden_size, bias, dtype=dtype, device=device)


class LSTMCell(_Cell, _Long):
    """One step of `LSTM`: maps x and (h, c) to the next (h, c)."""


class GRUCell(_Cell, _Gated):
    """One step of `GRU`: maps x and h to the next h.

    >>> nn.GRUCell(4, 8)(pb.ones((2, 4)), pb.zeros((2, 8))).shape
    (2, 8)
    """
