"""Attributes of a Module in which its layers would not be found, and that would not freeze it, are refused."""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn


@dataclasses.dataclass
class Parts:
    layer: Any
    size: int = 2


CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "deque": lambda x: collections.deque([x]),
    "UserList": lambda x: collections.UserList([x]),
    "UserDict": lambda x: collections.UserDict(a=x),
    "ChainMap": lambda x: collections.ChainMap({"a": x}),
    "mappingproxy": lambda x: types.MappingProxyType({"a": x}),
    "dict_values": lambda x: {"a": x}.values(),
    "dict_items": lambda x: {"a": x}.items(),
    "dict_keys": lambda x: {x: "a"}.keys(),
    "SimpleNamespace": lambda x: types.SimpleNamespace(a=x),
    "Parts": Parts,
    "ndarray": lambda x: np.array([x, None], object),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_containers_in_which_layers_are_not_found_are_refused(kind: str) -> None:
    net: Any = nn.Module()
    make = CONTAINERS[kind]
    weight, layer = pb.Parameter([1.0]), nn.Linear(2, 2)
    for held in (layer, weight, pb.checkpoint(layer), [layer], {"b": (weight,)}):
        if kind == "dict_keys" and type(held).__hash__ is None:
            continue
        for value in (make(held), [make(held)], {"c": make(held)}):
            with pytest.raises(
                pb.PullbackError, match=r"Module\.parts: .*neither trained nor saved. Put them in a list, a tuple or a"
            ):
                net.parts = value
    around = types.SimpleNamespace(size=3)
    around.itself = around
    for plain in (make("a"), around, [around], make((1, 2.0)), nn.Sequential(nn.Linear(2, 2)), [nn.Linear(2, 2)]):
        net.parts = plain


def test_requires_grad_of_a_module_is_refused() -> None:
    net: Any = nn.Sequential(nn.Linear(2, 2))
    for value in (False, True):
        with pytest.raises(pb.PullbackError, match=r"Linear\.requires_grad would freeze nothing. Set net.trainable = False"):
            net[0].requires_grad = value

    class Own(nn.Module):
        requires_grad = True

    own: Any = Own()
    own.requires_grad = False
    assert not own.requires_grad
