"""Captured functions are pickled and copied without their recordings."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from pullback import nn

pytestmark = needs_kernels


@pb.capture
def squares(x: Any) -> Any:
    return pb.sum(x * x)


class Model(nn.Module):
    def __init__(self) -> None:
        self.weight = pb.Parameter([1.0, 2.0])
        self.run = pb.capture(self.body, fusion="none")

    def body(self, x: Any) -> Any:
        return pb.sum(x * self.weight)


def pickled(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickled])
def test_a_function_of_a_module_stays_the_same_object(duplicate: Any) -> None:
    assert duplicate(squares) is squares


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_a_captured_method_in_a_copied_model_uses_the_copy(duplicate: Any) -> None:
    model, x = Model(), pb.ones(2)
    pb.grad(model.run)(x)
    other = duplicate(model)
    other.weight.assign(other.weight * 3)
    assert np.array_equal(pb.grad(other.run)(x).numpy(), [3.0, 6.0])
    assert np.array_equal(pb.grad(model.run)(x).numpy(), [1.0, 2.0])
    assert "fusion='none'" in repr(other.run)
