"""Traps of captured functions: what the code reads by way of imports, partial functions, getters and wrappers of containers."""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
import sys
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same
from footguns import Settings, X, follows, told
from pullback import nn

pytestmark = needs_kernels


def test_the_elements_of_an_array_that_a_name_bound_twice_stands_for() -> None:
    both = (Settings(np.ones(3)), Settings(np.full(3, 2.0)))

    def f(x: Any) -> Any:
        s = both[1]
        x = x + s.p
        for i, s in enumerate(both):
            x = x * s.p.max() + i
        return x

    def scale() -> None:
        both[0].p[...] = both[0].p * 1.5

    follows(f, scale, scale)


@pytest.fixture
def settings_module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module, below = types.ModuleType("gains"), types.ModuleType("gains.below")
    vars(module).update(p=2.0, below=below)
    vars(below).update(q=3.0)
    monkeypatch.setitem(sys.modules, "gains", module)
    monkeypatch.setitem(sys.modules, "gains.below", below)
    return module


def test_a_module_that_the_function_imports(settings_module: Any) -> None:
    def attribute(x: Any) -> Any:
        import gains

        return x * gains.p

    def name(x: Any) -> Any:
        from gains import p

        return x * p

    def dotted(x: Any) -> Any:
        import gains.below

        return x * gains.below.q

    def renamed(x: Any) -> Any:
        import gains.below as settings

        return x * settings.q

    for f in (attribute, name):
        follows(f, lambda: setattr(settings_module, "p", 5.0), lambda: setattr(settings_module, "p", 2.0))
    for f in (dotted, renamed):
        follows(f, lambda: setattr(settings_module.below, "q", 5.0), lambda: setattr(settings_module.below, "q", 3.0))


def test_a_module_that_is_replaced(settings_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any) -> Any:
        import gains

        return x * gains.p

    other = types.ModuleType("gains")
    vars(other).update(p=7.0)
    follows(f, lambda: monkeypatch.setitem(sys.modules, "gains", other))


def test_a_module_that_the_first_call_loads(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loaded_late.py").write_text("p = 2.0")
    monkeypatch.syspath_prepend(str(tmp_path))

    def f(x: Any) -> Any:
        import loaded_late

        return x * loaded_late.p

    try:
        follows(f, lambda: setattr(sys.modules["loaded_late"], "p", 3.0))
    finally:
        sys.modules.pop("loaded_late", None)


def test_arguments_of_a_partial_function() -> None:
    def scaled(*factors: Any, by: float) -> Any:
        return functools.reduce(operator.mul, factors) * by

    part, inner, itself = functools.partial(scaled, by=2.0), functools.partial(scaled, by=2.0), functools.partial(scaled, by=2.0)
    outer = functools.partial(lambda f, x: f(x), inner)
    follows(lambda x: part(x), lambda: part.keywords.update(by=3.0))
    follows(lambda x: outer(x), lambda: inner.keywords.update(by=3.0))
    follows(itself, lambda: itself.keywords.update(by=3.0))


def test_attributes_that_a_getter_or_a_dataclass_names() -> None:
    @dataclasses.dataclass
    class Gains:
        p: float

    cfg, gains, get = Settings(2.0), Gains(2.0), operator.attrgetter("p")
    follows(lambda x: x * get(cfg), lambda: setattr(cfg, "p", 3.0))
    follows(lambda x: x * operator.attrgetter("p")(cfg), lambda: setattr(cfg, "p", 4.0))
    follows(lambda x: x * dataclasses.asdict(gains)["p"], lambda: setattr(gains, "p", 3.0))
    follows(lambda x: x * dataclasses.astuple(gains)[0], lambda: setattr(gains, "p", 4.0))


class Ordered(collections.OrderedDict[str, float]):
    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a comparison runs a method of the user's")


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, collections.defaultdict, collections.UserDict, Ordered])
def test_the_order_of_a_dict(kind: Any) -> None:
    gains = kind()
    gains.update(a=2.0, b=3.0)
    shown, values, settings = types.MappingProxyType(gains), gains.values(), Settings([gains])

    def turn() -> None:
        gains["a"] = gains.pop("a")

    def move() -> None:
        gains.move_to_end("a") if isinstance(gains, collections.OrderedDict) else turn()

    def composed(x: Any, gains: Iterable[float]) -> Any:
        return functools.reduce(lambda h, g: h * g + 1, gains, x)

    follows(lambda x: composed(x, gains.values()), turn, turn, move)
    follows(lambda x: composed(x, settings.p[0].values()), turn, turn, move)
    follows(lambda x: composed(x, shown.values()), turn, turn, move)
    follows(lambda x: composed(x, values), turn, turn, move)


class Queue(collections.deque[float]):
    pass


def test_items_of_a_queue_of_a_derived_class() -> None:
    gains = Queue([2.0, 3.0])
    follows(lambda x: functools.reduce(lambda h, g: h * g + 1, gains, x), lambda: gains.rotate(1), lambda: gains.append(2.0))


def test_items_of_wrapped_containers() -> None:
    user, chain, listed = collections.UserDict(p=2.0), collections.ChainMap({}, {"p": 2.0}), collections.UserList([2.0])
    follows(lambda x: x * user["p"], lambda: user.update(p=3.0))
    follows(lambda x: x * chain["p"], lambda: chain.maps[1].update(p=3.0), lambda: chain.update(p=4.0), chain.clear)
    follows(lambda x: x * listed[0], lambda: listed.__setitem__(0, 3.0))
    follows(lambda x: x * sum(listed), lambda: listed.append(3.0))


def test_layers_in_a_dict_or_a_list_that_only_parameters_tells() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.first, self.named, self.listed = nn.Linear(3, 3), {"a": nn.Linear(3, 3)}, [nn.Linear(3, 3)]

    net = Net()
    follows(
        lambda x: x * sum((pb.sum(p) for p in net.parameters()), start=pb.zeros(())),
        lambda: net.named.update(b=nn.Linear(3, 3)),
        lambda: net.listed.append(nn.Linear(3, 3)),
        lambda: net.named.pop("a"),
        net.listed.clear,
    )


def test_a_state_that_a_generator_loads_is_refused() -> None:
    generator = pb.random.Generator(3)
    state = generator.state_dict()

    def f(x: Any) -> Any:
        generator.load_state_dict(state)
        return x + generator.normal((3,))

    assert "loading a generator's state" in told(f, lambda _: f(X))


# ---- attributes that are set by other ways than a chain of names


def first_of(objects: list[Any]) -> Any:
    return objects[0]


def by_result(x: Any, objects: list[Any]) -> Any:
    first_of(objects).p = 7.0
    return x * 2


def by_setattr(x: Any, objects: list[Any]) -> Any:
    setattr(objects[0], "p", 7.0)  # noqa: B010
    return x * 2


def by_setattr_of_a_result(x: Any, objects: list[Any]) -> Any:
    setattr(first_of(objects), "p", 7.0)  # noqa: B010
    return x * 2


def by_a_name_that_is_computed(x: Any, objects: list[Any]) -> Any:
    for name in ("p", "q"):
        setattr(objects[0], name, 7.0)
    return x * 2


def by_setattr_of_object(x: Any, objects: list[Any]) -> Any:
    object.__setattr__(objects[0], "p", 7.0)
    return x * 2


def by_dict(x: Any, objects: list[Any]) -> Any:
    objects[0].__dict__["p"] = 7.0
    return x * 2


def by_vars(x: Any, objects: list[Any]) -> Any:
    vars(objects[0]).update(p=7.0)
    return x * 2


def by_delattr(x: Any, objects: list[Any]) -> Any:
    if hasattr(objects[0], "p"):
        delattr(objects[0], "p")
    return x * 2


SETS = [
    by_result, by_setattr, by_setattr_of_a_result, by_a_name_that_is_computed, by_setattr_of_object, by_dict, by_vars, by_delattr,
]


@pytest.mark.parametrize("sets", SETS, ids=lambda sets: sets.__name__)
def test_an_attribute_that_is_set_by_another_way_than_a_chain_is_left_behind(sets: Any) -> None:
    """Each call finds the attribute as it was made outside, and has to set it again."""
    objects = [Settings(1.0)]
    captured = pb.capture(lambda x: sets(x, objects))

    def found(f: Any) -> Any:
        objects[0].p = 1.0
        same(f(X), X * 2)
        return getattr(objects[0], "p", None)

    eager = found(lambda x: sets(x, objects))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each call is a recording
        for _ in range(3):
            assert found(captured) == eager


def test_an_attribute_that_is_set_to_what_it_is_leaves_nothing_behind() -> None:
    objects = [Settings(7.0)]
    for sets in SETS[:-1]:
        objects[0].q = 7.0
        assert follows(lambda x, sets=sets: sets(x, objects)).stats().captures == 1


def test_an_attribute_that_is_read_in_the_dict_of_its_object() -> None:
    settings = Settings(2.0)
    by_name = lambda x: x * settings.__dict__["p"]
    for read in (by_name, lambda x: x * vars(settings)["p"], lambda x: x * sum(vars(settings).values())):
        settings.p = 2.0
        assert follows(read, lambda: setattr(settings, "p", 3.0)).stats().captures == 2


def by_getattr(x: Any, objects: list[Any]) -> Any:
    return x * getattr(first_of(objects), "p")  # noqa: B009


def by_attrgetter(x: Any, objects: list[Any]) -> Any:
    return x * operator.attrgetter("p")(first_of(objects))


def by_attrgetter_of_each(x: Any, objects: list[Any]) -> Any:
    return x * sum(map(operator.attrgetter("p"), objects))


def by_pattern(x: Any, objects: list[Any]) -> Any:
    match first_of(objects):
        case Settings(p=float(gain)):
            return x * gain
    return x


@pytest.mark.parametrize("read", [by_getattr, by_attrgetter, by_attrgetter_of_each, by_pattern], ids=lambda read: read.__name__)
def test_an_attribute_of_a_result_that_is_read_by_its_name(read: Any) -> None:
    objects = [Settings(2.0), Settings(1.0)]
    assert follows(lambda x: read(x, objects), lambda: setattr(objects[0], "p", 3.0)).stats().captures == 2
