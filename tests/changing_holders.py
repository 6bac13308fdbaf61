"""Where a program holds a value: a table of text, from which `changing_facts.py` makes parts of programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


def blocks(text: str) -> Iterator[tuple[tuple[str, str], list[str]]]:
    """Yields ((kind, what is after the bar), sections) of each block. A line "== kind | …" begins a block, "--" a section."""
    for block in re.split(r"^== ", text, flags=re.MULTILINE)[1:]:
        title, _, text_of_block = block.partition("\n")
        kind, _, option = title.partition(" | ")
        yield (kind, option), [section.strip("\n") for section in re.split(r"^--\n", text_of_block, flags=re.MULTILINE)]


@dataclass(frozen=True)
class Holder:
    kind: str
    tail: str  # leads from the holder to the value
    make: str  # statements that define new$(v), which makes a holder of the value v
    sets: tuple[str, ...]  # changes that set another value


# A title is the kind and the tail; the sections are `make` and `sets`.
HOLDERS: Final = tuple(
    Holder(kind, tail, make, tuple("".join(sets).splitlines()) or (f"s${tail} = VALUE",))
    for (kind, tail), (make, *sets) in blocks("""
== variable
def new$(v):
    return v
== object | .p
class S$:
    def __init__(self, p):
        self.p = p
new$ = S$
== slots | .p
class S$:
    __slots__ = ('p',)
    def __init__(self, p):
        self.p = p
new$ = S$
== dataclass | .p
@dataclasses.dataclass(eq=False)
class S$:
    p: object
new$ = S$
== frozen dataclass | .p
@dataclasses.dataclass(frozen=True, eq=False)
class S$:
    p: object
new$ = S$
--
s$ = new$(VALUE)
== namespace | .p
def new$(v):
    return types.SimpleNamespace(p=v)
== dict item | ['p']
def new$(v):
    return {'p': v}
== list item | [0]
def new$(v):
    return [v, 0]
== tuple item | [1]
def new$(v):
    return (0, v)
--
s$ = new$(VALUE)
== ordered dict | ['p']
def new$(v):
    return collections.OrderedDict(p=v)
== nested attribute | .p.p
class S$:
    def __init__(self, p):
        self.p = p
def new$(v):
    return S$(S$(v))
--
s$.p.p = VALUE
s$.p = S$(VALUE)
== nested items | ['w'][0]
def new$(v):
    return {'w': [v]}
--
s$['w'][0] = VALUE
s$['w'] = [VALUE]
== attributes and items | .p[1]['p']
class S$:
    def __init__(self, p):
        self.p = p
def new$(v):
    return S$([0, {'p': v}])
--
s$.p[1]['p'] = VALUE
s$.p[1] = {'p': VALUE}
s$.p = [1, {'p': VALUE}]
== class attribute | .p
class S$:
    pass
def new$(v):
    S$.p = v
    return S$()
--
S$.p = VALUE
s$.p = VALUE
== inherited attribute | .p
class B$:
    p = None
class S$(B$):
    pass
def new$(v):
    B$.p = v
    return S$()
--
B$.p = VALUE
S$.p = VALUE
s$.p = VALUE
== class of made objects | ().p
def new$(v):
    class S$:
        p = v
    return S$
--
s$.p = VALUE
== base class of made objects | (1).get()
class B$:
    p = None
    def __init__(self, k):
        self.k = k
    def get(self):
        return type(self).p if self.k else None
class S$(B$):
    pass
def new$(v):
    B$.p = v
    return S$
--
B$.p = VALUE
S$.p = VALUE
S$.get = lambda self: B$.p
== class of made dataclasses | .make().p
@dataclasses.dataclass
class S$:
    k: int = 1
    @classmethod
    def make(cls):
        return dataclasses.replace(cls(), k=2)
def new$(v):
    S$.p = v
    return S$
--
s$.p = VALUE
== class of a copy | .copied().p
class S$(nn.Module):
    def copied(self):
        return copy.deepcopy(self)
def new$(v):
    S$.p = v
    return S$()
--
S$.p = VALUE
== derived list | .p
class S$(list):
    pass
def new$(v):
    s = S$()
    s.p = v
    return s
== class of a derived dict | .p
class S$(dict):
    pass
def new$(v):
    S$.p = v
    return S$(q=v)
--
S$.p = VALUE
s$.p = VALUE
== property | .p
class S$:
    def __init__(self, p):
        self._p = p
    @property
    def p(self):
        return self._p
new$ = S$
--
s$._p = VALUE
== module | .p
def new$(v):
    m = types.ModuleType('settings')
    m.p = v
    return m
== Module attribute | .p
class S$(nn.Module):
    def __init__(self, p):
        self.p = p
new$ = S$
== attribute of an inner Module | .p.p
class S$(nn.Module):
    def __init__(self, p):
        self.p = p
def new$(v):
    return S$(S$(v))
--
s$.p.p = VALUE
s$.p = S$(VALUE)
""")
)
