"""Modules inside modules, lists and dicts: each Parameter is found, named by its path, saved and loaded."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

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


def set_to(place: str, value: Any) -> Any:
    """A function that changes a Nest by one statement."""
    return lambda net: exec(f"net.{place} = value", {"net": net, "value": value})


@pytest.mark.parametrize("value", [pb.tensor([9.0]), np.ones(1), 9.0], ids=["tensor", "array", "number"])
@pytest.mark.parametrize("place", ["alone", "several", "several[0]", "several[1]['deep']", "named['a']", "named"])
@pytest.mark.parametrize("ask", [nn.Module.parameters, nn.Module.state_dict, lambda net: net.load_state_dict({}, strict=False)])
def test_a_parameter_that_something_else_took_the_place_of_is_not_lost_in_silence(ask: Any, place: str, value: Any) -> None:
    net = Nest()
    words = r"(?s)Nest\.(alone|several|named).* neither trained nor saved.*pb\.Parameter\(value\)"
    with pytest.raises(pb.PullbackError, match=words):
        ask(set_to(place, value)(net) or net)


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (set_to("several[0]", pb.Parameter([9.0])), 6),
        (set_to("several[0]", None), 5),
        (set_to("several", None), 4),
        (set_to("several[0]", nn.Linear(1, 1)), 7),
        (lambda net: net.several.insert(0, pb.ones(1)), 6),
        (lambda net: net.several.reverse(), 6),
        (lambda net: net.several.append(pb.Parameter([1.0])), 7),
        (lambda net: net.several.pop(), 5),
        (lambda net: [delattr(net, "several"), setattr(net, "several", [pb.ones(1), 2.0])], 4),
    ],
)
def test_parameters_in_a_list_may_come_and_go(change: Any, count: int) -> None:
    net = Nest()
    change(net)
    assert len(net.parameters()) == len(net.state_dict()) == count


def test_a_parameter_that_came_into_a_list_later_and_one_of_a_copy_are_not_lost_either() -> None:
    net = Nest()
    net.several.append(pb.Parameter([1.0]))
    assert len(net.parameters()) == 7
    for of in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        of.several[2] = pb.ones(1)
        with pytest.raises(pb.PullbackError, match=r"Nest\.several\.2 held a Parameter, and a Tensor"):
            of.parameters()
