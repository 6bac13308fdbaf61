"""Named tuples that layers with several results return. An op that takes one array refuses them, and would stack a plain tuple."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..tensors.tensor import Tensor


class SequenceResult(NamedTuple):
    """What a recurrent layer returns: its output at every step, and the state after the last step."""

    output: Tensor
    state: Any


class LSTMState(NamedTuple):
    """The state of an LSTM: its output h and its cell c."""

    h: Tensor
    c: Tensor


class LRUState(NamedTuple):
    """The complex state of an LRU: its real and its imaginary part."""

    real: Tensor
    imag: Tensor


class AttentionResult(NamedTuple):
    """What MultiheadAttention returns: its output, and the weights or None."""

    output: Tensor
    weights: Tensor | None


class PoolResult(NamedTuple):
    """What a maximum pool with return_indices returns: the maxima, and their positions."""

    values: Tensor
    indices: Tensor
