"""Modules inside modules, lists and dicts: each Parameter is found, named by its path, saved and loaded."""

from __future__ import annotations

from typing import Any

import numpy as np

import pullback as pb
from conftest import host
from pullback import nn


class Nest(nn.Module):
    """Parameters and layers, alone and in lists, tuples and dicts of them."""

    def __init__(self) -> None:
        self.alone = pb.Parameter([1.0])
        self.several = [pb.Parameter([2.0]), {"deep": (pb.Parameter([3.0]), "text", None)}]
        self.named = {"a": pb.Parameter([4.0]), "layer": nn.Linear(2, 1, bias=False)}
        self.layers = [nn.Sequential(nn.Linear(1, 1, bias=False))]
        self.number = 5.0


PATHS = ["alone", "several.0", "several.1.deep.0", "named.a", "named.layer.weight", "layers.0.0.weight"]


def test_parameters_in_lists_and_dicts_are_found_and_named_by_their_path() -> None:
    net = Nest()
    assert [name for name, _ in net.named_parameters()] == PATHS
    assert sorted(net.state_dict()) == sorted(PATHS)
    assert len(net.parameters()) == 6
    assert net.parameters()[0] is net.alone


class _Array:
    """What a library's array is that has only NumPy's protocol."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._array


def test_a_state_may_be_of_tensors_or_of_arrays_of_any_library() -> None:
    net = Nest()
    state = {name: np.full(p.shape, k + 0.5, np.float32) for k, (name, p) in enumerate(net.named_parameters())}
    for wrap in (pb.tensor, np.asarray, _Array):
        other = Nest()
        other.load_state_dict({name: wrap(x) for name, x in state.items()})
        for name, p in other.named_parameters():
            np.testing.assert_array_equal(host(p), state[name])
