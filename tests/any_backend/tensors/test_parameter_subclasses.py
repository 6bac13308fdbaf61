"""Copies and pickles of subclasses of Parameter and Buffer have the class, what it adds, and memory of their own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn


class Decayed(pb.Parameter):
    decay = 0.5

    def __init__(self, shape: tuple[int, ...], rates: list[float]) -> None:
        values = np.arange(float(np.prod(shape)), dtype="float32").reshape(shape)
        super().__init__(values, constraint=pb.optim.constraints.NonNegative())
        self.rates = rates


class Slotted(pb.Parameter):
    __slots__ = ("__hidden", "rates")

    def __init__(self, shape: tuple[int, ...], rates: list[float]) -> None:
        super().__init__(np.ones(shape, "float32"), "weight", trainable=False)
        self.rates, self.__hidden = rates, 3

    def hidden(self) -> int:
        return self.__hidden


class Empty(Slotted):
    __slots__ = ()


class Counter(nn.Buffer):
    def __init__(self, shape: tuple[int, ...], rates: list[float]) -> None:
        super().__init__(np.zeros(shape, "int64"), "count")
        self.rates = rates


class Net(nn.Module):
    def __init__(self, kind: Any) -> None:
        self.w, self.again = (p := kind((2, 3), [1.0, 2.0])), [p]


WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "oldest pickle": lambda x: pickle.loads(pickle.dumps(x, protocol=2)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [Decayed, Slotted, Empty, Counter])
def test_a_copy_has_the_class_and_what_it_adds(kind: Any, way: str) -> None:
    p = kind((2, 3), [1.0, 2.0])
    q = WAYS[way](p)
    assert type(q) is kind
    assert (q.name, q.trainable, type(q.constraint), q.dtype) == (p.name, p.trainable, type(p.constraint), p.dtype)
    assert q.label() == p.label()
    assert q.rates == p.rates
    assert (q.rates is p.rates) == (way == "copy")
    assert not isinstance(q, Slotted) or q.hidden() == 3
    np.testing.assert_array_equal(host(q), host(p))
    q.assign(q + 1)
    assert (host(q) == host(p) + 1).all()


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
@pytest.mark.parametrize("kind", [Decayed, Slotted, Counter])
def test_a_network_with_them_is_copied(kind: Any, way: str) -> None:
    net = WAYS[way](Net(kind))
    assert type(net.w) is kind
    assert net.again[0] is net.w
    assert [*net.state_dict()] == ["w"]


def test_a_copy_that_refers_to_itself() -> None:
    p = Decayed((1,), [1.0])
    p.rates = p  # type: ignore[assignment]
    q = copy.deepcopy(p)
    assert q.rates is q
