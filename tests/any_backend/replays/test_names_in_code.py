"""The chains that a code object names are those that a reader finds in its source, and they do not depend on the Python version."""

from __future__ import annotations

import argparse
import ast
import asyncio.base_events
import dataclasses
import dis
import gc
import inspect
import tarfile
import textwrap
import typing
import weakref
from collections.abc import Iterator
from types import CodeType
from typing import Any

import pytest

from pullback.replays.facts.names import Chain, names_in

# Each case is the source of a function f, and its loads, stores and counters, written by hand. A global name is written g:H, a free
# name n:h, an argument as itself, and each item of an iterable as [*].
CASES: dict[str, tuple[str, str, str, str]] = {
    # loads
    "attributes": ("def f(self, cfg): return self.gamma * cfg.model.p", "self.gamma cfg.model.p", "", ""),
    "items": ("def f(d): return d['w'][0], d[True], d[1000], d[-1], d[b'x'], d[None], d['a', 2]",
              "d['w'][0] d[True] d[1000] d[-1] d[b'x'] d[None] d[('a',2)]", "", ""),
    "mixed": ("def f(model): return model.layers[0].p", "model.layers[0].p", "", ""),
    "globals": ("def f(): return H, cfg.p['x'], abs", "g:H g:cfg.p['x'] g:abs", "", ""),
    "two at once": ("def f(a, b): return g(a, b.c, b, a.d)", "g:g a b.c b a.d", "", ""),
    "two alone": ("def f(a, b): return a, b", "a b", "", ""),
    "longest at each place": ("def f(self): return self.a, self.a.b, self.a.b", "self.a self.a.b", "", ""),
    "method": ("def f(self, x): self.losses.append(x)", "self.losses.append x", "", ""),
    "method of an item": ("def f(d): d['log'].append(d['x'])", "d['log'].append d['x']", "", ""),
    "call ends a chain": ("def f(self): return self.make().p, self.make()['x']", "self.make", "", ""),
    "unknown subscript": ("def f(self, i): return self.w[i].p, self.w[i + 1]", "self.w i", "", ""),
    "attribute as subscript": ("def f(self): return self.w[self.i][0]", "self.w self.i", "", ""),
    "slice": ("def f(self): return self.w[1:2], self.w[:, 0], self.w[::2]", "self.w", "", ""),
    "other expressions": ("def f(self): return (self.a + self.b).c, (-self.d).e", "self.a self.b self.d", "", ""),
    "choice": ("def f(self):\n g((self.a if self.c else self.b).p)\n g(1)\n g(2)", "g:g self.a self.b self.c", "", ""),
    "and, or": ("def f(self):\n g((self.a or self.b).p, (self.c and self.d)['x'])\n g(1)\n g(2)",
        "g:g self.a self.b self.c self.d", "", ""),
    "comparisons": ("def f(self): return self.a < self.b.c < self.d['x'] < 3", "self.a self.b.c self.d['x']", "", ""),
    "f-string": ("def f(self): return f'{self.a.b!r:{self.w}} {H}'", "self.a.b self.w g:H", "", ""),
    "kinds of parameters": ("def f(a, /, b, *c, d=1, **e): return a.x, b.x, c[0], d.x, e['x']", "a.x b.x c[0] d.x e['x']", "", ""),
    "star arguments": ("def f(self, a, k): return g(*self.a, *a, **self.k, **k)", "g:g self.a a self.k k", "", ""),
    "async": ("async def f(self):\n async with self.lock: await self.a.run()\n async for x in self.s: g(x.p)",
              "self.lock self.a.run self.s g:g", "", ""),
    "generator": ("def f(self):\n yield self.a.b\n x = yield\n yield from self.c\n return x.p", "self.a.b self.c", "", ""),
    "assert": ("def f(self): assert self.ok, self.why.text", "self.ok self.why.text", "", ""),
    "super": ("class A:\n def f(self): return super().run(self), __class__.x", "g:super self", "", ""),
    "import": ("def f(self):\n import os.path as p\n from os import sep\n return p.join, sep.x, self.a",
               "i:os.path.join i:os.sep.x self.a", "", ""),
    "import of a package": ("def f():\n import a.b\n from .c import d\n return a.b.x, d.y", "i:a.b.x", "", ""),
    "many names": ("def f(self):\n x = 1\n" + "".join([f" self.u{k}\n" for k in range(300)]) + " for y in self.u299: y.a.b",
                   " ".join([f"self.u{k}" for k in range(300)]) + " self.u299[*].a.b", "", ""),
    # stores
    "store": ("def f(self, v): self.h = v", "self v", "self.h", ""),
    "stores below": ("def f(self, d): self.a.b = d['x']['y'] = 1", "self.a", "self.a.b d['x']['y']", ""),
    "unknown store": ("def f(self, i): self.w[i] = self.m().x = self.w[1:2] = 0", "self.w self.m i", "", ""),
    "delete": ("def f(self, d):\n global H\n del self.a.b, d['x'], H", "self.a", "self.a.b d['x'] g:H", ""),
    "tuple store": ("def f(self): self.a, self.b = self.b, self.a", "self self.a self.b", "self.a self.b", ""),
    "loop store": ("def f(self):\n for self.x in self.y: pass", "self self.y", "self.x", ""),
    "global store": ("def f():\n global H, K\n H = K", "g:K", "g:H", ""),
    "nonlocal store": ("def o():\n h = 1\n def f():\n  nonlocal h\n  h = 2\n return f", "", "n:h", ""),
    "parameter store": ("def f(x):\n x = x.y\n return x.z", "x.y x.z", "", ""),
    "local store": ("def f(x):\n y = 1\n y = y + 1\n del y", "", "", ""),
    "store of the sum": ("def f(self, x): self.total = self.total + x", "self self.total x", "self.total", ""),
    # aliases
    "alias": ("def f(self):\n c = self.cfg\n return c.p, c['x'], c", "self.cfg self.cfg.p self.cfg['x']", "", ""),
    "alias of an alias": ("def f(self):\n c = self.cfg\n m = c.model\n return m.p",
        "self.cfg self.cfg.model self.cfg.model.p", "", ""),
    "alias of a global": ("def f():\n c = H\n c.x = 1\n return c.p", "g:H g:H.p", "g:H.x", ""),
    "two stores": ("def f(self):\n c = self.a\n if c: c = self.b\n return c.p", "self.a self.b", "", ""),
    "loop over a list": ("def f(self):\n n = self.head\n while n: n = n.next", "self.head", "", ""),
    "alias of a choice": ("def f(self, k):\n c = self.a if k else self.b\n g(c.p)\n return c.q", "self.a self.b k g:g", "", ""),
    "constant getattr": ("def f(self, d): return getattr(self, 'a', 3), hasattr(d, 'b'), getattr(self, d)",
        "self.a d.b self d g:getattr g:hasattr", "", ""),
    "items of a dict": ("def f(self):\n for k, x in self.d.items(): x.p\n for y in self.d.values(): y.q",
        "self.d.items self.d.values self.d[*].p self.d[*].q", "", ""),
    "a list of a list": ("def f(self):\n for x in reversed(self.l): x.p\n for y in list(self.m): y.q",
        "self.l self.m self.l[*].p self.m[*].q g:reversed g:list", "", ""),
    "alias of a call": ("def f(self):\n c = self.a()\n return c.p", "self.a", "", ""),
    "tuple of aliases": ("def f(self):\n a, b = self.a, self.b\n return a.p, b.p", "self.a self.b self.a.p self.b.p", "", ""),
    "three aliases": ("def f(self):\n a, b, c = self.a, self.b, self.c\n return a.p, b.p, c.p",
                      "self.a self.b self.c self.a.p self.b.p self.c.p", "", ""),
    "chained assignment": ("def f(self):\n a = self.x = self.b\n return a.p", "self self.b self.b.p", "self.x", ""),
    "unpacked": ("def f(self):\n a, b = self.pair\n c, *d = self.rest\n return a.p, b.p, c.p, d.p", "self.pair self.rest", "", ""),
    "walrus": ("def f(self): return g((c := self.cfg).p, c.q)", "g:g self.cfg self.cfg.p self.cfg.q", "", ""),
    "walrus of a call": ("def f(self): return g((c := self.cfg()).p, c.q)", "g:g self.cfg", "", ""),
    "with": ("def f(self):\n with self.ctx as c, open(self.path): return c.p", "self.ctx self.path g:open", "", ""),
    "augmented alias": ("def f(self):\n c = self.n\n c += 1\n return c.p", "self.n", "", ""),
    "itself": ("def f():\n a = b.x\n b = a.y\n return a.z", "", "", ""),
    "except": ("def f(self):\n try: self.a.b()\n except self.E as e: return e.x, self.c\n finally: self.d.e()",
               "self.a.b self.E self.c self.d.e", "", ""),
    "match": ("def f(self):\n match self.mode:\n  case 'a': return self.a\n  case P(x=v): return v.y\n  case [p, *q]: return p.y\n"
              "  case {'k': k}: return k.y\n  case M.z: return 1\n return self.b", "self.mode self.a g:P g:M.z self.b", "", ""),
    # each
    "loop": ("def f(self):\n for x in self.layers: x.run(x.p['w'])",
        "self.layers self.layers[*].run self.layers[*].p['w']", "", ""),
    "loop of a loop": ("def f(self):\n for x in self.a:\n  for y in x.b: g(y)", "self.a self.a[*].b self.a[*].b[*] g:g", "", ""),
    "store in a loop": ("def f(self):\n for x in self.layers: x.h = 0", "self.layers self.layers[*]", "self.layers[*].h", ""),
    "two loops": ("def f(self):\n for x in self.a: x.p\n for x in self.b: x.p", "self.a self.b", "", ""),
    "loop over an alias": ("def f(self):\n s = self.a\n for x in s: x.p", "self.a self.a[*].p", "", ""),
    "loop over a call": ("def f(self):\n for x in self.a(): x.p", "self.a", "", ""),
    "loop over pairs": ("def f(self):\n for a, b in self.a: a.p, b.p", "self.a", "", ""),
    "enumerate": ("def f(self):\n for i, x in enumerate(self.a): x.p, i.p", "g:enumerate self.a self.a[*].p", "", ""),
    "zip": ("def f(self, b):\n for x, y in zip(self.a, b.c): x.p, y.p", "g:zip self.a b.c self.a[*].p b.c[*].p", "", ""),
    "zip of something": ("def f(self, i):\n for x, y in zip(self.a[i], self.b): x.p, y.p",
        "g:zip self.a i self.b self.b[*].p", "", ""),
    "zip of a call": ("def f(self, i):\n for x, y in zip(self.a(), self.b): x.p, y.p", "g:zip self.a self.b self.b[*].p", "", ""),
    "enumerate from 1": ("def f(self):\n for i, x in enumerate(self.a, 1): x.p", "g:enumerate self.a self.a[*].p", "", ""),
    "other function of two": ("def f(self):\n for i, x in both(self.a, self.b): x.p", "g:both self.a self.b", "", ""),
    "list": ("def f(self): return [x.p for x in self.a]", "self.a self.a[*].p", "", ""),
    "set and dict": ("def f(self): return {x.p for x in self.a}, {y.k: y.v for y in self.b}",
                     "self.a self.a[*].p self.b self.b[*].k self.b[*].v", "", ""),
    "generator expression": ("def f(self): return sum(x.p for x in self.a if x.q)", "g:sum self.a self.a[*].p self.a[*].q", "", ""),
    "list over a call": ("def f(self, a): return [x.p for x in self.a()], {x.p for x in a()}, sum(x.p for x in a.b())",
                         "g:sum self.a a a.b", "", ""),
    "list over an asynchronous iterator": ("async def f(self, x):\n"
                                         " g([x.p async for x in self.a], x.q)\n g([[y.z for y in x] async for x in self.b], x.r)",
                                         "g:g self.a x.q self.b x.r", "", ""),
    "list over zip": ("def f(a, b): return [x.p + y.q for x, y in zip(a, b)]", "g:zip a b a[*].p b[*].q", "", ""),
    "list twice": ("def f(self): return [x.p for x in self.a], [x.q for x in self.b]",
        "self.a self.a[*].p self.b self.b[*].q", "", ""),
    "list within a list": ("def f(self): return [[x.p for x in x.b] + x.q for x in self.a]",
                           "self.a self.a[*].b self.a[*].b[*].p self.a[*].q", "", ""),
    "two fors": ("def f(self): return [y.p for x in self.a for y in x.b if y.q]",
        "self.a self.a[*].b self.a[*].b[*].p self.a[*].b[*].q",
                 "", ""),
    "list that hides": ("def f(x):\n c = x.c\n y = [c.q for c in x.a]\n return c.p, y", "x.c x.a x.a[*].q x.c.p", "", ""),
    "list that hides a parameter": ("def f(x): return [x.q for x in x.a], x.p", "x.a x.a[*].q x.p", "", ""),
    "list that hides a free name": ("def o(h):\n def f(x): return [h.q for h in x.a], h.p\n return f",
        "x.a x.a[*].q n:h.p", "", ""),
    "list of functions": ("def f(x): return [lambda: y.p for y in x.a], [lambda: x.q for x in x.b]",
                          "x.a x.a[*].p x.b x.b[*].q", "", ""),
    "list that sees": ("def f(x, z): return [z.p + y.q for y in x.a]", "x.a x.a[*].q z.p", "", ""),
    "list after except": ("def f(self):\n try: self.t()\n except E: return [x.p for x in self.a]\n x = self.c\n return x.q",
                          "self.t g:E self.a self.a[*].p self.c self.c.q", "", ""),
    # functions that the code makes
    "free": ("def o(h, k):\n def f(): return h.p, k\n return f", "n:h.p n:k", "", ""),
    "function": ("def f(self):\n c = self.c\n def g(u): return u.a, self.b, c.d, H\n return g", "self.c self.b self.c.d", "", ""),
    "lambda": ("def f(self): return lambda x: self.p * x.q", "self.p", "", ""),
    "three deep": ("def o(h):\n def f(self):\n  k = self.k\n  def a():\n"
                   "   t = k.t\n   return lambda: (h.p, self.q, k.r, t.s)\n  return a\n return f",
                   "self.k self.k.t n:h.p self.q self.k.r self.k.t.s", "", ""),
    "unknown in a function": ("def f(self):\n c = self.c()\n return lambda: c.p", "self.c", "", ""),
    "store in a function": ("def o(h):\n def f(self):\n  c = self.c\n  def g():\n"
                            "   nonlocal h\n   h = 1\n   self.x = c.y = 2\n  return g\n return f",
                            "self.c self", "n:h self.x self.c.y", ""),
    "nonlocal alias": ("def f(self):\n c = self.c\n def g():\n  nonlocal c\n  c = 1\n return g, c.p", "self.c", "", ""),
    "class": ("def f(self):\n class A(self.base):\n  x = self.y\n  def g(s): return self.z\n return A", "self.base", "", ""),
    "decorator and default": ("def f(self):\n @self.wrap(self.w)\n def g(x=self.d, *, y=self.e): return x.p\n return g",
                              "self.wrap self.w self.d self.e", "", ""),
    "generator in a generator": ("def f(self, z): return ((y.p + x.q + z.r for y in x.b) for x in self.a)",
                                 "self.a self.a[*].b self.a[*].b[*].p self.a[*].q z.r", "", ""),
    # counters
    "counter": ("def f(self): self.n += 1", "self", "", "self.n"),
    "counters": ("def f(self, d, x):\n global N\n N += 1\n d['n'] += 1\n self.stats.n -= x\n d['a']['b'] |= 1",
                 "self.stats x", "", "g:N d['n'] self.stats.n d['a']['b']"),
    "free counter": ("def o():\n n = 0\n def f():\n  nonlocal n\n  n += 1\n return f", "", "", "n:n"),
    "counter by a choice": ("def f(self, k): self.n += self.a if k and self.b else [x.p for x in self.c]",
                            "self k self.a self.b self.c self.c[*].p", "", "self.n"),
    "counter of a name twice": ("def f(x):\n global N\n try: N += x.y(1)\n finally: N += x.z * 2", "x.y x.z", "", "g:N"),
    "counter of a name by a choice": ("def f(k):\n global N\n N += 1 if k else 2", "g:N k", "g:N", ""),
    "counter twice": ("def f(self):\n try: self.n += 1\n finally: self.m += 1\n self.n += 2", "self", "", "self.n self.m"),
    "counter of an alias": ("def f(self):\n s = self.s\n s.n += 1\n for x in s.a: x.n += 1", "self.s self.s.a self.s.a[*]", "",
                            "self.s.n self.s.a[*].n"),
    "counter in a function": ("def f(self):\n def g(): self.n += 1\n return g", "self", "", "self.n"),
    "counter that a function reads": ("def f(self):\n self.n += 1\n return lambda: self.n", "self self.n", "self.n", ""),
    "counter that is read": ("def f(self):\n self.n += 1\n g(self.n)", "self self.n g:g", "self.n", ""),
    "counter whose attribute is read": ("def f(self):\n self.n += 1\n g(self.n.x)", "self self.n self.n.x g:g", "self.n", ""),
    "counter that is set": ("def f(self, k):\n if k: self.n = 0\n self.n += 1", "self k self.n", "self.n", ""),
    "counter that is deleted": ("def f():\n global N\n N += 1\n del N", "g:N", "g:N", ""),
    "counter added to itself": ("def f(self):\n global N\n N += N\n self.n += self.n", "g:N self self.n", "g:N self.n", ""),
    "unknown counters": ("def f(self, i):\n self.w[i] += 1\n self.w[1:2] += 1\n self.m().n += 1\n i += 1",
        "self.w i self.m", "", ""),
    "read in order to write another": ("def f(self): self.a = self.n + 1", "self self.n", "self.a", ""),
}


def text(chain: Chain) -> str:
    """Returns a chain as it is written in the table."""
    prefix = {"global": "g:", "free": "n:", "argument": "", "import": "i:"}[chain.root]
    steps = {"attr": ".{}", "item": "[{!r}]", "each": "[*]"}
    return (prefix + chain.name + "".join([steps[kind].format(key) for kind, key in chain.steps])).replace(" ", "")


def codes(code: CodeType) -> Iterator[CodeType]:
    """Returns a code object and all within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def code_of(source: str) -> CodeType:
    """Returns the code object of the function f of a source."""
    return next(code for code in codes(compile(textwrap.dedent(source), "source", "exec")) if code.co_name == "f")


def in_opcodes_of_3_14(code: CodeType, plain: Any = dis.get_instructions) -> Iterator[Any]:
    """Returns the instructions with which CPython 3.14 loads and stores variables, small integers and items."""
    pairs = {
        "LOAD LOAD": "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
        "STORE STORE": "STORE_FAST_STORE_FAST",
        "STORE LOAD": "STORE_FAST_LOAD_FAST",
    }
    instructions = list(plain(code))
    while instructions:
        i = instructions.pop(0)
        pair = " ".join([x.opname[:-5] for x in (i, *instructions[:1]) if x.opname in ("LOAD_FAST", "STORE_FAST")])
        if pair in pairs and not instructions[0].is_jump_target:
            yield i._replace(opname=pairs[pair], argval=(i.argval, instructions.pop(0).argval))
        elif i.opname == "BINARY_SUBSCR":
            yield i._replace(opname="BINARY_OP", argrepr="[]")
        elif i.opname == "LOAD_CONST" and type(i.argval) is int and 0 <= i.argval < 256:
            yield i._replace(opname="LOAD_SMALL_INT")
        else:
            yield i._replace(opname="LOAD_FAST_BORROW") if i.opname == "LOAD_FAST" else i


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("opcodes", ["own", "3.14"])
def test_the_names_of_a_function_are_those_in_its_source(name: str, opcodes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, *wanted = CASES[name]
    if opcodes == "3.14":
        monkeypatch.setattr(dis, "get_instructions", in_opcodes_of_3_14)
    loads, stores, counters, *_ = names_in(code_of(source))
    found = [{text(chain) for chain in chains} for chains in (loads, stores, counters)]
    assert found == [set(chains.split()) for chains in wanted]


def test_the_names_of_a_code_object_are_kept_as_long_as_it_lives() -> None:
    code = code_of("def f(self): return self.kept")
    assert names_in(code) is names_in(code)
    alive = weakref.ref(code)
    del code
    gc.collect()
    assert alive() is None


def test_the_names_of_long_programs_are_found_too() -> None:
    """The function has more instructions than fit a jump's byte, and more aliases of aliases than Python nests calls."""
    aliases = "".join([f" if self.k: g()\n a{k + 1} = a{k}.x\n" for k in range(300)])
    source = f"def f(self):\n a0 = self\n{aliases} return a300.y"
    loads = {(chain.name, len(chain.steps)) for chain in names_in(code_of(source)).loads}
    assert loads == {("g", 0), ("self", 0), ("self", 301), *[("self", k) for k in range(1, 301)]}


@pytest.mark.parametrize("module", [argparse, ast, asyncio.base_events, dataclasses, inspect, tarfile, typing])
def test_every_code_object_has_names(module: Any) -> None:
    for code in codes(compile(inspect.getsource(module), "source", "exec")):
        for chain in frozenset[Chain]().union(*names_in(code)[:3]):
            arguments, star, stars = inspect.getargs(code)
            known = {"free": code.co_freevars, "global": code.co_names, "argument": (*arguments, star, stars)}
            known["import"] = [*code.co_names, *[name.partition(".")[0] for name in code.co_names]]
            assert chain.name in known[chain.root], (code, chain)
            assert {step.kind for step in chain.steps} <= {"attr", "item", "each"}
