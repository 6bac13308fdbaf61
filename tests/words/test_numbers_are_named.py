"""Numbers, flags and probabilities that a function cannot take are refused by the name of the function and the argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn
from refused import refusal

F: Any = nn.functional
NN: Any = nn
PB: Any = pb
X, STEPS, HEADS = pb.ones((2, 3)), pb.ones((4, 2, 3)), pb.ones((2, 4, 8))
SDPA = F.scaled_dot_product_attention
TORCHS = NN.MultiheadAttention(8, 2)
INTS = pb.tensor([1, 2])
WEIGHTS = [pb.Parameter([1.0, 2.0])]

NUMBERS: dict[str, Callable[[Any], Any]] = {
    "scaled_dot_product_attention: dropout_p": lambda bad: SDPA(HEADS, HEADS, HEADS, dropout_p=bad),
    "scaled_dot_product_attention: is_causal": lambda bad: SDPA(HEADS, HEADS, HEADS, is_causal=bad),
    "scaled_dot_product_attention: scale": lambda bad: SDPA(HEADS, HEADS, HEADS, scale=[bad]),
    "rotary: base": lambda bad: F.rotary(HEADS, base=bad),
    "rotary: interleaved": lambda bad: F.rotary(HEADS, interleaved=bad),
    "rotary: dims": lambda bad: F.rotary(HEADS, dims=[bad]),
    "layer_norm: eps": lambda bad: F.layer_norm(X, eps=bad),
    "cross_entropy: ignore_index": lambda bad: F.cross_entropy(X, pb.tensor([0, 1]), ignore_index=[bad]),
    "nll: ignore_index": lambda bad: F.nll(X, pb.tensor([0, 1]), ignore_index=[bad]),
    "mse: reduction": lambda bad: F.mse(X, X, reduction=bad),
    "dropout: training": lambda bad: F.dropout(X, 0.5, bad),
    "RNN: nonlinearity": lambda bad: NN.RNN(3, 5, nonlinearity=bad),
    "GRU: bidirectional": lambda bad: NN.GRU(3, 5, bidirectional=bad),
    "GRU: dropout": lambda bad: NN.GRU(3, 5, dropout=bad),
    "LSTM: hidden_size": lambda bad: NN.LSTM(3, bad),
    "LSTM: proj_size": lambda bad: NN.LSTM(3, 5, proj_size=bad),
    "LRU: r_min": lambda bad: NN.LRU(3, 5, r_min=bad),
    "MultiHeadAttention: rotary": lambda bad: NN.MultiHeadAttention(8, 2, rotary=bad),
    "MultiHeadAttention: num_heads": lambda bad: NN.MultiHeadAttention(8, bad),
    "MultiheadAttention: need_weights": lambda bad: TORCHS(HEADS, HEADS, HEADS, need_weights=bad),
    "Conv2d: padding_mode": lambda bad: NN.Conv2d(3, 4, 3, padding_mode=bad),
    "Flatten: start_axis": lambda bad: NN.Flatten(bad),
    "linear_recurrence: axis": lambda bad: PB.linear_recurrence(STEPS, STEPS, bad),
    "linear_recurrence: reverse": lambda bad: PB.linear_recurrence(STEPS, STEPS, reverse=bad),
    "associative_scan: axis": lambda bad: PB.associative_scan(pb.add, STEPS, bad),
    "associative_scan: reverse": lambda bad: PB.associative_scan(pb.add, STEPS, reverse=bad),
    "scan: reverse": lambda bad: PB.scan(lambda c, x: (c, x), X, STEPS, reverse=bad),
    "scan: checkpoint": lambda bad: PB.scan(lambda c, x: (c, x), X, STEPS, checkpoint=bad),
    "scan: length": lambda bad: PB.scan(lambda c, x: (c, x), X, STEPS, length=[bad]),
}
BAD: tuple[Any, ...] = ("a", "1", None, pb.ones(()), pb.ones(3), math.nan, [1.0], {}, 1j)


@pytest.mark.parametrize("words", NUMBERS)
def test_a_value_that_is_no_number_or_flag_is_refused_by_name(words: str) -> None:
    for bad in BAD:
        with pytest.raises(pb.PullbackError) as caught:
            NUMBERS[words](bad)
        assert str(caught.value).startswith(words)


BOOLS: dict[str, Callable[[Any], Any]] = {
    "scaled_dot_product_attention: dropout_p": lambda true: SDPA(HEADS, HEADS, HEADS, None, true),
    "dropout: p": lambda true: F.dropout(X, true, False),
    "Dropout: p": lambda true: NN.Dropout(true),
    "GRU: dropout": lambda true: NN.GRU(3, 5, 2, dropout=true),
    "GRU: num_layers": lambda true: NN.GRU(4, 6, true),
    "Linear: out_features": lambda true: NN.Linear(4, true),
    "MultiHeadAttention: num_kv_heads": lambda true: NN.MultiHeadAttention(8, 2, true),
}


@pytest.mark.parametrize("words", BOOLS)
def test_a_bool_is_neither_a_probability_nor_a_length(words: str) -> None:
    for true in (True, np.bool_(True)):
        text = refusal(lambda true=true: BOOLS[words](true))
        assert text.startswith(f"{words}={true!r} ")
        assert "is not a probability" in text or "must be an integer of 1 or more" in text


def test_a_number_that_is_a_tensor_is_refused_because_it_would_lose_its_gradient() -> None:
    text = refusal(lambda: SDPA(HEADS, HEADS, HEADS, scale=pb.Parameter(1.0)))
    assert text.startswith("scaled_dot_product_attention: scale is a Parameter, and no gradient passes to it")
    assert "Multiply the query by it" in text
    assert np.isnan(host(F.threshold(-X, 0.0, math.nan))).all()  # where NaN may be meant
