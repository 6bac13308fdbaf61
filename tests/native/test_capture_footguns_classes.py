"""Classes that change between calls of a captured function: those of objects that it makes, and classes derived from others."""

from __future__ import annotations

import gc
import sys
import types
import warnings
from typing import Any

import pytest

import pullback as pb
from captured_step import needs_kernels, same
from footguns import X, follows

pytestmark = needs_kernels

PRELUDE = """
import abc, collections, copy, dataclasses, enum, functools, operator, types, typing
import numpy as np
import pullback as pb
from pullback import nn

class Inner:
    k = 2.0
class Base:
    k, table, items = 2.0, {"a": 2.0, "b": [3.0]}, [2.0, 3.0]
    w, inner = pb.tensor([1.0, 2.0, 3.0]), Inner()
    order = collections.OrderedDict(a=2.0, b=3.0)
    def act(self):
        return 2.0
    def of_class(self):
        return type(self).k + self.__class__.items[0]
    @property
    def p(self):
        return self.k
    @staticmethod
    def static(k=2.0):
        return k
    @classmethod
    def make(cls):
        return cls()
    @functools.cached_property
    def cached(self):
        return 2.0
    partial = functools.partialmethod(lambda self, k: k, 2.0)
    def by(self, x):
        return x * self.k
    __call__ = by
    def __mul__(self, x):
        return x * 2.0
    def __bool__(self):
        return True
class Sub(Base):
    pass
class Over(Base):
    k = 3.0
    def act(self):
        return super().act() + super().k
class Set(Base):
    def __init__(self, j=1.0):
        self.j = j
class Layer(nn.Module):
    slope, act = 2.0, staticmethod(pb.tanh)
    def __init__(self):
        self.inner = nn.Linear(3, 3)
    def forward(self, x):
        return self.act(self.inner(x)) * self.slope
@dataclasses.dataclass(frozen=True)
class State:
    v: object
    gain: float = dataclasses.field(default=0.5, init=False)
    GAMMA = 0.5
    def step(self):
        return State(self.v * self.GAMMA * self.gain)
class Point(typing.NamedTuple):
    a: object
    def twice(self):
        return self.a * 2.0
class Mode(enum.Enum):
    A = 1.5
    def by(self):
        return self.value * 2
class Slots:
    __slots__ = ("a",)
    k = 2.0
    def act(self):
        return self.k
class Meta(type):
    k = 2.0
    def act(cls):
        return cls.k
    def __call__(cls):
        return super().__call__()
class OfMeta(metaclass=Meta):
    a = 2.0
T = typing.TypeVar("T")
class Generic(typing.Generic[T]):
    k = 2.0
class Abstract(abc.ABC):
    k = 2.0
class Concrete(Abstract):
    def act(self):
        return self.k
class Match:
    __match_args__ = ("k",)
    k = 2.0
class Missing:
    def asked(self):
        return getattr(self, "k", 2.0)
class Stop(Exception):
    k = 2.0
def of(s):
    match s:
        case Match(k):
            return k
def stopped():
    try:
        raise Stop
    except Stop as stop:
        return stop.k
get, alias, partial = operator.attrgetter("k"), Generic[int], functools.partial(Sub)
over, settings, net, fields = Over(), Set(), Layer(), {"k": Sub}
"""

# The function of x, and what changes between its calls.
MADE = {
    "attribute": ("x * Base().k", "Base.k = 5.0"),
    "inherited attribute": ("x * Sub().k", "Base.k = 5.0", "Sub.k = 6.0"),
    "inherited method": ("x * Sub().act()", "Base.act = lambda self: 5.0", "Sub.act = lambda self: 6.0"),
    "other base": ("x * Sub().k", "class Other(Base): k = 5.0\nSub.__bases__ = (Other,)"),
    "super": ("x * Over().act()", "Base.act = lambda self: 5.0", "Base.k = 6.0"),
    "super of an outer object": ("x * over.act()", "Base.k = 6.0"),
    "property": ("x * Sub().p", "Base.k = 5.0", "Sub.p = property(lambda self: 6.0)"),
    "cached property": ("x * Sub().cached", "Sub.cached = 5.0"),
    "static method": ("x * Sub().static()", "Base.static.__defaults__ = (5.0,)", "Base.static = staticmethod(lambda: 6.0)"),
    "class method": ("x * Sub.make().k", "Sub.k = 5.0", "Sub.make = classmethod(lambda cls: Over())"),
    "partial method": ("x * Sub().partial()", "Sub.partial = functools.partialmethod(lambda self, k: k, 5.0)"),
    "alias of a method": ("Sub()(x)", "Sub.k = 5.0", "Sub.__call__ = lambda self, x: x * 6.0"),
    "operator": ("Sub() * x", "Sub.__mul__ = lambda self, x: x * 5.0"),
    "truth": ("x * 2 if Sub() else x", "Sub.__bool__ = lambda self: False"),
    "by its class": ("x * Sub().of_class()", "Sub.k = 5.0", "Sub.items = [6.0]"),
    "type": ("x * type(Sub()).k", "Sub.k = 5.0"),
    "tensor": ("x * Sub().w", "Base.w = pb.ones(3)"),
    "list": ("x * sum(k for k in Sub().items)", "Base.items.append(5.0)", "Base.items[0] = 6.0", "Sub.items = [7.0]"),
    "dict": ("x * Sub().table['a']", "Base.table['a'] = 5.0", "Sub.table = {'a': 6.0}"),
    "nested items": ("x * Sub().table['b'][0]", "Base.table['b'][0] = 5.0"),
    "order of a dict": ("functools.reduce(lambda h, k: h * k + 1, Sub().order.values(), x)", "Base.order.move_to_end('a')"),
    "object": ("x * Sub().inner.k", "Base.inner.k = 5.0", "Base.inner = Inner()", "Inner.k = 6.0"),
    "after __init__": ("x * Set().k * Set().j", "Set.k = 5.0", "Set.__init__.__defaults__ = (6.0,)"),
    "__init__": ("x * Set().j", "def init(self): self.j = 5.0\nSet.__init__ = init"),
    "layer": ("Layer().act(x) * Layer().slope", "Layer.slope = 5.0", "Layer.act = staticmethod(pb.relu)"),
    "copy of a layer": ("copy.deepcopy(net)(x)", "Layer.slope = 5.0", "Layer.act = staticmethod(pb.relu)"),
    "layer with other weights": ("nn.functional_call(net, net.state_dict(), x)", "Layer.slope = 5.0"),
    "copy of settings": ("x * copy.copy(settings).k", "Base.k = 5.0", "settings.k = 6.0"),
    "dataclass": ("State(x).step().v", "State.GAMMA = 5.0", "State.gain = 6.0", "State.step = lambda self: State(self.v * 7.0)"),
    "replaced dataclass": ("dataclasses.replace(State(1.0), v=x).step().v", "State.GAMMA = 5.0"),
    "named tuple": ("Point(x).twice()", "Point.twice = lambda self: self.a * 5.0", "Point.a = property(lambda self: pb.ones(3))"),
    "enum": ("x * Mode(1.5).by()", "Mode.by = lambda self: 5.0"),
    "slots": ("x * Slots().act()", "Slots.k = 5.0", "Slots.act = lambda self: 6.0"),
    "metaclass": ("x * OfMeta.k", "Meta.k = 5.0", "OfMeta.k = 6.0"),
    "method of a metaclass": ("x * OfMeta.act()", "Meta.k = 5.0", "Meta.act = lambda cls: 6.0"),
    "call of a metaclass": ("x * OfMeta().a", "OfMeta.a = 5.0", "Meta.__call__ = lambda cls: types.SimpleNamespace(a=6.0)"),
    "generic alias": ("x * Generic[int]().k", "Generic.k = 5.0"),
    "stored alias": ("x * alias().k * alias.k", "Generic.k = 5.0"),
    "abstract class": ("x * Concrete().act()", "Abstract.k = 5.0"),
    "class in a dict": ("x * fields['k']().k", "Sub.k = 5.0"),
    "class in a partial": ("x * partial().k", "Sub.k = 5.0"),
    "getter": ("x * get(Sub())", "Sub.k = 5.0"),
    "pattern": ("x * of(Match())", "Match.k = 5.0"),
    "exception": ("x * stopped()", "Stop.k = 5.0"),
    "missing attribute": ("x * getattr(Missing(), 'k', 2.0)", "Missing.k = 5.0"),
    "missing attribute of self": ("x * Missing().asked()", "Missing.k = 5.0"),
    "attribute by a computed name": ("x * getattr(Sub(), 'K'.lower())", "Sub.k = 5.0"),
    "in the dict of the class": ("x * vars(Base)['k'] * Base.__dict__['k']", "Base.k = 5.0"),
    "base of a class made inside": ("x * type('Made', (Base,), {})().k", "Base.k = 5.0"),
}

# What an object of a class that is derived from another one is made by.
DERIVED = {
    "list": "C([1.0])", "dict": "C(a=1.0)", "collections.OrderedDict": "C(a=1.0)", "collections.defaultdict": "C()",
    "tuple": "C((1.0,))", "collections.namedtuple('P', 'a b')": "C(1.0, 2.0)", "set": "C([1])", "frozenset": "C([1])",
    "collections.deque": "C([1])", "collections.UserDict": "C()", "str": "C('abc')", "bytes": "C(b'ab')", "int": "C(3)",
    "float": "C(3.0)", "complex": "C(3j)", "np.float32": "C(2.0)", "np.ndarray": "np.ones(2).view(C)", "nn.Buffer": "C([1.0, 2.0])",
    "pb.Parameter": "C([1.0, 2.0])", "Exception": "C()", "functools.partial": "C(pb.tanh)",
}  # fmt: skip
READ = {
    "global": "x * c.k * c.j", "below an attribute": "x * holder.c.k * holder.c.j", "method": "x * c.by(2.0)",
    "argument": "of_argument(c, x)", "loop": "sum(x * y.k * y.j for y in [c, c])",
}  # fmt: skip


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    module = types.ModuleType("program")
    monkeypatch.setitem(sys.modules, "program", module)
    exec(PRELUDE, vars(module))
    return vars(module)


def followed(module: dict[str, Any], expression: str, *changes: str) -> None:
    f = follows(eval(f"lambda x: {expression}", module), *[lambda change=change: exec(change, module) for change in changes])
    assert f.stats().captures <= 1 + len(changes)


@pytest.mark.parametrize("name", MADE)
def test_classes_of_objects_that_the_function_makes(name: str, module: dict[str, Any]) -> None:
    followed(module, *MADE[name])


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("base", DERIVED)
def test_objects_of_classes_that_are_derived_from_others(base: str, read: str, module: dict[str, Any]) -> None:
    exec(f"""
class C({base}):
    k = 2.0
    def by(self, h):
        return self.k * self.j * h
c = {DERIVED[base]}
c.j = 3.0
holder = types.SimpleNamespace(c=c)
def of_argument(y, x):
    return x * y.k * y.j
""", module)
    followed(module, READ[read], "C.k = 5.0", "c.j = 6.0", "c.k = 7.0", f"c = holder.c = {DERIVED[base]}; c.j = 8.0")


@pytest.mark.parametrize("body", [
    "k = [2.0]", "def __init__(self): self.k = [2.0]",
    "@property\n    def k(self): return [self.two()]\n    def two(self, k=2.0): return k",
])
def test_a_class_that_the_function_makes_is_no_change(body: str, module: dict[str, Any]) -> None:
    exec(f"""
def first(c):
    return c.k[0]
def f(x):
    class C:
        {body.replace("    ", "        ")}
    return x * C().k[0] * first(C())
""", module)
    f = pb.capture(module["f"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the third recording for the same fact warns
        for _ in range(4):
            same(f(X), X * 4)
            gc.collect()


@pytest.mark.parametrize("kind", ["@dataclasses.dataclass(frozen=True)\nclass Cfg", "class Cfg"])
def test_the_class_of_an_argument_that_is_compared_by_its_value(kind: str, module: dict[str, Any]) -> None:
    exec(f"""
{kind}:
    g: float = 1.0
    k = 2.0
    def by(self, x):
        return x * self.k
    def __eq__(self, other):
        return type(other) is Cfg
    def __hash__(self):
        return 1
""", module)
    cfg = module["Cfg"]
    for f in (lambda x, cfg: x * cfg.k, lambda x, cfg: cfg.by(x), lambda x, cfg: x * getattr(cfg, "k", 0.0)):
        captured = pb.capture(f)
        for cfg.k in (2.0, 2.0, 5.0, 2.0):
            gc.collect()
            same(captured(X, cfg()), f(X, cfg()))
        assert captured.stats().captures == 2


def test_the_name_and_the_version_of_a_parameter() -> None:
    p = pb.Parameter([1.0, 2.0, 3.0])
    follows(lambda x: x * len(p.name or ""), lambda: setattr(p, "name", "abc"))
    follows(lambda x: x * len({q.name: q for q in [p]}.popitem()[0] or ''), lambda: setattr(p, "name", "abcd"))
    follows(lambda x: x * p.version, lambda: p.assign(p + 1))

    def f(x: Any) -> Any:
        p.assign(p + x[0])
        return x * p.version

    captured = pb.capture(f)
    captured(X)
    with pytest.raises(pb.CaptureError, match=r"leaves p\.version of f changed"):
        captured(X)
