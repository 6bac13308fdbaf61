"""Objects whose `__getattr__` looks items up or makes them are told from tensors, Modules and arrays, and are not changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn


class AttrDict(dict[str, Any]):
    __getattr__ = dict.__getitem__


class Making(dict[str, Any]):
    """Makes what it lacks."""

    def __getattr__(self, name: str) -> Any:
        return self.setdefault(name, Making())


class Plain(dict[str, Any]):
    pass


class Settings:
    """Looks attributes up in a dict, and raises KeyError."""

    def __init__(self, **items: Any) -> None:
        self.__dict__.update(items=items)

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["items"][name]

    def __getitem__(self, name: str) -> Any:
        return self.__dict__["items"][name]


class Net(nn.Module):
    def __init__(self, settings: Any) -> None:
        self.settings, self.layer = settings, nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.layer(x) * self.settings["rate"]


KINDS = [AttrDict, Making, Settings]
X = pb.tensor([1.0, 2.0])
WORKING: dict[str, Callable[[Any], Any]] = {
    "a module": lambda c: Net(c)(X) / Net(c).eval().train()(X) * len(Net(c).state_dict()),
    "a captured module": lambda c: (lambda f: f(X) + f(X))(pb.capture(Net(c))) * 0,
    "capture": lambda c: (lambda f: f(X, c) + f(X, c))(pb.capture(lambda x, c: x * c["rate"])),
    "capture, first argument": lambda c: pb.capture(lambda c, x: x * c["rate"])(c, X),
    "grad": lambda c: pb.grad(lambda x, c: pb.sum(x * c["rate"]))(X, c),
    "checkpoint": lambda c: pb.grad(lambda x: pb.sum(pb.checkpoint(lambda x, c: x * c["rate"])(x, c)))(X),
    "a list in a module": lambda c: Net([c]).layer.weight * 0,
}
REFUSED: dict[str, Callable[[Any], Any]] = {
    "tensor": pb.tensor, "sum": pb.sum, "operator": lambda c: X + c, "layer": lambda c: nn.Linear(2, 2)(c),
    "loss": lambda c: nn.mse(X, c), "grad": lambda c: pb.grad(pb.sum)(c), "jvp": lambda c: pb.jvp(pb.sum, (c,), (c,)),
    "vmap": lambda c: pb.vmap(lambda x: x)(c), "hash": pb.hash, "index": lambda c: X[c], "write": lambda c: X.at[c].set(1.0),
    "sequence": lambda c: nn.Sequential(c), "axis": lambda c: pb.sum(X, axis=c), "gradients": lambda c: sgd().step(c),
    "watch": lambda c: pb.GradientTape().watch(c), "target": lambda c: pb.GradientTape().gradient(c, c),
    "loss of minimize": lambda c: sgd().minimize(lambda: c), "parameters": pb.optim.SGD,
    "rows": lambda c: pb.data.Loader(c, batch_size=1),
    "in a list": lambda c: pb.tensor([1.0, c]), "state": lambda c: nn.Linear(2, 2).load_state_dict(c),
}


def sgd() -> Any:
    return pb.optim.SGD([pb.Parameter([1.0])])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WORKING)
def test_what_takes_any_object_takes_these(name: str, kind: Any) -> None:
    settings = kind(rate=0.5)
    pb.random.seed(0)
    found = WORKING[name](settings)
    pb.random.seed(0)
    np.testing.assert_array_equal(found.numpy(), WORKING[name](Plain(rate=0.5)).numpy())
    assert not isinstance(settings, dict) or list(settings) == ["rate"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_takes_tensors_refuses_them_in_our_words(name: str, kind: Any) -> None:
    with pytest.raises((pb.PullbackError, IndexError)) as told:
        REFUSED[name](kind(rate=0.5))
    assert "__array" not in str(told.value)
