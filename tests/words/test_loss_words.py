"""Errors of losses and of what is given to them say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn
from refused import refusal

X, Q = pb.ones((4, 3)), np.full((4, 3), 1 / 3, np.float32)
PB: Any = pb
CASES: dict[str, Callable[[], Any]] = {
    "cross_entropy: ignore_index is for class numbers": lambda: nn.cross_entropy(X, Q, ignore_index=1),
    "bce_with_logits: pos_weight has shape (2,), which does not broadcast to the input's, (4, 3).": (
        lambda: nn.bce_with_logits(X, Q, pos_weight=[1.0, 2.0])
    ),
    "bce_with_logits: weight has shape (4,)": lambda: nn.bce_with_logits(X, Q, weight=np.ones(4)),
    "bce_with_logits: weight has shape (2, 4, 3)": lambda: nn.bce_with_logits(X, Q, weight=np.ones((2, 4, 3))),
    "binary_cross_entropy: weight has shape (4,)": lambda: nn.binary_cross_entropy(Q, Q, weight=np.ones(4)),
    "permutation: x is one number of dtype float32, and not rows.": lambda: PB.random.permutation(5.0),
    "permutation: x is one number of dtype int64, and not rows.": lambda: PB.random.permutation(pb.tensor(5)),
    "tensor: obj: None is not made of numbers": lambda: PB.tensor([pb.tensor(1.0), None]),
    "Linear: x: None is not made of numbers": lambda: nn.Linear(3, 1)([X, None]),
}


@pytest.mark.parametrize("words", CASES)
def test_the_message_begins_with_what_was_asked(words: str) -> None:
    assert refusal(CASES[words]).startswith(words)


@pytest.mark.parametrize("loss", [nn.cross_entropy, nn.nll])
@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 7, 7, 3)])
def test_classes_in_the_last_axis_are_moved(loss: Any, shape: Any) -> None:
    x, labels = pb.log_softmax(pb.ones(shape)), np.zeros(shape[:-1], int)
    assert "pb.moveaxis(x, -1, 1)" in refusal(lambda: loss(x, labels))
    assert loss(pb.moveaxis(x, -1, 1), labels).item() == pytest.approx(np.log(3), rel=1e-6)
