"""The text of random programs: parts, the function around them, and a script of calls with changes between them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from changing_caches import BUFFERS, CACHES, COUNTERS, MADE
from changing_carried import CARRIED, HOST
from changing_facts import MODES, fact
from changing_holders import blocks
from changing_state import ACCUMULATORS, LAYERS, OPTIMIZERS

TABLES: Final = (  # weights and tables; None stands for `fact`
    (8, None), (3, LAYERS), (2, OPTIMIZERS), (1, ACCUMULATORS), (1, BUFFERS), (2, MADE), (2, CACHES), (1, COUNTERS), (2, CARRIED),
    (1, HOST),
)
PRELUDE: Final = """
import collections, copy, dataclasses, enum, functools, gc, math, random, types
import numpy as np
import pullback as pb
from pullback import nn, optim

ACTIVATIONS = {'tanh': pb.tanh, 'sin': pb.sin, 'relu': pb.relu, 'sigmoid': pb.sigmoid}
fails = False

class Mode(enum.Enum):
    A = 1.5
    B = 2.5
    C = True

class Scaler:
    def __init__(self, by):
        self.by = by
    def apply(self, h):
        return h * self.by
    __call__ = apply

def scaled(h, by=1.5):
    return h * by

def composed(h, functions):
    for f in functions:
        h = f(h)
    return h

def repeated(h, n):
    for _ in range(n):
        h = pb.sin(h + 0.5)
    return h
"""
# Each form defines f, whose body is BODY. The sections are its text, and changes to what it reads itself.
FORMS: Final = {kind: (text, tuple("".join(changes).splitlines())) for (kind, _), (text, *changes) in blocks("""
== function
def f(ARGUMENTS):
    BODY
== closure
def make(offset):
    def f(ARGUMENTS):
        x = x + offset
        BODY
    def rebind(value):
        nonlocal offset
        offset = value
    return f, rebind
f, rebind = make(0.25)
--
rebind(0.5)
rebind(0.25)
== method
class Owner:
    gain = 1.5
    def step(self, ARGUMENTS):
        x = x * self.gain
        BODY
f = Owner().step
--
Owner.gain = 1.75
f.__self__.gain = 0.5
== Module
class Net(nn.Module):
    def __init__(self):
        self.gain = 1.5
    def forward(self, ARGUMENTS):
        x = x * self.gain if self.training else x
        BODY
f = Net()
--
f.gain = 1.75
f.eval()
f.train()
== callable object
class Owner:
    def __call__(self, ARGUMENTS):
        BODY
f = Owner()
== partial
def whole(gain, ARGUMENTS):
    x = x * gain
    BODY
f = functools.partial(whole, 0.5)
== default
def f(ARGUMENTS, gain=0.5):
    x = x * gain
    BODY
--
f.__defaults__ = (0.75,)
""")}
END: Final = -1  # the number of what belongs to no part
RESULTS: Final = ("h", "(h, pb.sum(h))", "{'h': h, 'all': [pb.mean(h), h[..., 0]]}")


@dataclass(frozen=True)
class Call:
    """A call of a script: what changes before it, and how the function is called."""

    number: int  # of its data
    changes: tuple[tuple[int, str], ...]  # (number of the part, statement); END for changes that belong to no part
    rows: int
    dtype: str
    kind: str = "tensor"  # or "array"
    how: str = "plain"  # in the mode "mixed"
    thread: bool = False
    autocast: bool = False

    def without_changes(self) -> Call:
        return replace(self, changes=())


class Program:
    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        tables = rng.choices([table for _, table in TABLES], [weight for weight, _ in TABLES], k=rng.choice((1, 1, 2, 2, 3, 4)))
        self.seed, self.parts = seed, []  # parts with their numbers
        for n, table in enumerate(tables):
            part = fact(rng) if table is None or (self.may_raise and table in (CARRIED, HOST)) else rng.choice(table)
            self.parts.append((n, part.numbered(n)))
        self.form, self.result = rng.choice((*FORMS, "function", "function")), rng.choice(RESULTS)
        self.fails_at = rng.choice([*range(len(tables)), END]) if rng.random() < 0.1 else None  # before this part
        self.script = list(self.calls(rng))

    def calls(self, rng: random.Random) -> Iterator[Call]:
        rows, dtype = 2, rng.choice(("float32", "float32", "float64"))
        for k in range(rng.randint(6, 10)):
            rows = rng.choice((2, 4)) if rng.random() < 0.15 else rows
            dtype = rng.choice(("float32", "float64")) if rng.random() < 0.1 else dtype
            changing = [(n, part) for n, part in self.parts if part.changes and (rng.random() < 0.4) and k > 0]
            changes = [(n, part.change(rng)) for n, part in changing for _ in range(rng.choice((1, 1, 2)))]
            if (of_form := FORMS[self.form][1]) and k > 0 and rng.random() < 0.03:
                changes.append((END, rng.choice(of_form)))
            if self.fails_at is not None:
                changes.append((END, f"fails = {rng.random() < 0.25}"))
            if rng.random() < 0.05:
                changes.append((END, f"pb.random.seed({k})"))
            if rng.random() < 0.05:
                changes.append((END, "gc.collect()"))
            kind, how = rng.choice(("tensor", "tensor", "array")), rng.choice(("plain", "tape", "vmap"))
            yield Call(k, tuple(changes), rows, dtype, kind, how, rng.random() < 0.1, rng.random() < 0.05)

    @property
    def may_raise(self) -> bool:
        return any(part.may_raise for _, part in self.parts)

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(mode for mode in MODES if all(mode in part.modes for _, part in self.parts))

    @property
    def kinds(self) -> list[str]:
        return [part.kind for _, part in self.parts] or [f"no part, {self.form}"]

    def source(self) -> str:
        setup = "\n".join(part.setup for _, part in self.parts)
        arguments = [name for _, part in self.parts for name in part.arguments]
        lines = ["h = x * 1.0"]
        for n, body in [*((n, part.body) for n, part in self.parts), (END, "")]:
            lines += ["if fails:", "    raise ValueError('fails')"] * (n == self.fails_at)
            lines += body.splitlines()
        lines.append(f"return {self.result}")
        text = FORMS[self.form][0].replace("ARGUMENTS", ", ".join(["x", *arguments]))
        indent = text.partition("BODY")[0].rpartition("\n")[2]
        whole = f"\n{indent}".join(lines)
        return f"{setup}\n{text.replace('BODY', whole)}\n"

    def __str__(self) -> str:
        lines = []
        for k, call in enumerate(self.script):
            lines += [change for _, change in call.changes]
            how = f"{call.kind}, {call.how}{', in a thread' * call.thread}{', under autocast' * call.autocast}"
            lines.append(f"# call {k}: {call.rows} rows of {call.dtype}, {how}")
        return self.source() + "\n" + "\n".join(lines)

    def with_fewer_parts(self) -> Iterator[Program]:
        """Yields programs that lack one part."""
        for n, _ in self.parts:
            script = [replace(call, changes=tuple(change for change in call.changes if change[0] != n)) for call in self.script]
            fails_at = END if self.fails_at == n else self.fails_at
            yield self.variant(parts=[part for part in self.parts if part[0] != n], script=script, fails_at=fails_at)
        if self.fails_at is not None:
            yield self.variant(fails_at=None)

    def smaller(self) -> Iterator[Program]:
        """Yields programs that lack one part, one call or one change."""
        yield from self.with_fewer_parts()
        for k in range(len(self.script) * (len(self.script) > 1)):
            yield self.variant(script=self.script[:k] + self.script[k + 1 :])
        for k, call in enumerate(self.script):
            simpler = [replace(call, changes=call.changes[:j] + call.changes[j + 1 :]) for j in range(len(call.changes))]
            simpler.append(replace(call, rows=2, kind="tensor", thread=False, autocast=False))
            for less in simpler:
                if less != call:
                    yield self.variant(script=[*self.script[:k], less, *self.script[k + 1 :]])

    def variant(self, **changed: Any) -> Program:
        program = object.__new__(Program)
        vars(program).update(vars(self), **changed)
        return program
