"""Where the code of a program reads a value: a table of text, from which `changing_facts.py` makes parts of programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from changing_holders import blocks


@dataclass(frozen=True)
class Position:
    kind: str
    root: str  # the name of the holder where USE stands, the expression that reads the value
    setup: str
    body: str
    changes: tuple[str, ...]


# A title is the kind and the root, if that is not s$; the sections are setup, body and changes.
POSITIONS: Final = tuple(
    Position(kind, root or "s$", setup, body, tuple("".join(changes).splitlines()))
    for (kind, root), (setup, body, *changes) in blocks("""
== the function
--
h = USE
== an argument
--
h = USE
== a local name | s
--
s = s$
h = USE
== a helper
def helper$(h):
    return USE
--
h = helper$(h)
== a helper of a helper
def helper$(h):
    return USE
def outer$(h):
    return helper$(h)
--
h = outer$(h)
== a helper's argument | s
def helper$(h, s):
    return USE
--
h = helper$(h, s$)
== a helper's keywords | s
def helper$(h, s):
    return USE
--
h = helper$(h, **{'s': s$})
== a default | s
def helper$(h, s=s$):
    return USE
--
h = helper$(h)
--
helper$.__defaults__ = (new$(VALUE),)
== a keyword's default | s
def helper$(h, *, s=s$):
    return USE
--
h = helper$(h)
--
helper$.__kwdefaults__ = {'s': new$(VALUE)}
== a closure | s
def make$(s):
    def inner(h):
        return USE
    def rebind(v):
        nonlocal s
        s = v
    return inner, rebind
inner$, rebind$ = make$(s$)
--
h = inner$(h)
--
rebind$(new$(VALUE))
inner$, rebind$ = make$(new$(VALUE))
== a method | self.s
class M$:
    def __init__(self, s):
        self.s = s
    def apply(self, h):
        return USE
m$ = M$(s$)
--
h = m$.apply(h)
--
m$.s = new$(VALUE)
m$ = M$(new$(VALUE))
m$.s = s$
== a bound method | self.s
class M$:
    def __init__(self, s):
        self.s = s
    def apply(self, h):
        return USE
m$ = M$(s$)
apply$ = m$.apply
--
h = apply$(h)
--
m$.s = new$(VALUE)
m$ = M$(new$(VALUE))
m$.s = s$
apply$ = M$(new$(VALUE)).apply
== __call__ | self.s
class M$:
    def __init__(self, s):
        self.s = s
    def __call__(self, h):
        return USE
m$ = M$(s$)
--
h = m$(h)
--
m$.s = new$(VALUE)
m$ = M$(new$(VALUE))
m$.s = s$
== a forward | self.s
class M$(nn.Module):
    def __init__(self, s):
        self.s = s
    def forward(self, h):
        return USE
m$ = M$(s$)
--
h = m$(h)
--
m$.s = new$(VALUE)
m$ = M$(new$(VALUE))
m$.s = s$
== a layer of a Sequential | self.s
class M$(nn.Module):
    def __init__(self, s):
        self.s = s
    def forward(self, h):
        return USE
m$ = M$(s$)
net$ = nn.Sequential(m$, nn.Tanh())
--
h = net$(h)
--
m$.s = new$(VALUE)
net$[0] = M$(new$(VALUE))
== an inherited method | self.s
class M$:
    def __init__(self, s):
        self.s = s
    def apply(self, h):
        return USE
m$ = M$(s$)
class N$(M$):
    def apply(self, h):
        return super().apply(h)
m$ = N$(s$)
--
h = m$.apply(h)
--
m$.s = new$(VALUE)
m$ = N$(new$(VALUE))
== a user's property | m$.now
class M$:
    def __init__(self, s):
        self.s = s
    @property
    def now(self):
        return self.s
m$ = M$(s$)
--
h = USE
--
m$.s = new$(VALUE)
m$ = M$(new$(VALUE))
m$.s = s$
== a class method | cls.s
class M$:
    s = s$
    @classmethod
    def apply(cls, h):
        return USE
--
h = M$.apply(h)
--
M$.s = new$(VALUE)
== a static method
class M$:
    @staticmethod
    def apply(h):
        return USE
--
h = M$.apply(h)
== a list of functions
all$ = [lambda h: USE]
--
for g in all$:
    h = g(h)
--
all$.append(all$[0])
all$[0] = pb.tanh
== a partial | s
part$ = functools.partial(lambda h, s: USE, s=s$)
--
h = part$(h)
--
part$ = functools.partial(part$.func, s=new$(VALUE))
== a nested function
--
def inner(h):
    return USE
h = inner(h)
== a nested closure | s
--
s = s$
def inner(h):
    return USE
h = inner(h)
== a loop | s
all$ = [s$]
--
for s in all$:
    h = USE
--
all$[0] = new$(VALUE)
all$.append(new$(VALUE))
all$[0] = s$
== a loop over items | s
all$ = {'a': s$}
--
for _, s in all$.items():
    h = USE
--
all$['a'] = new$(VALUE)
all$['b'] = new$(VALUE)
== an enumeration | s
all$ = (s$, s$)
--
for i, s in enumerate(all$):
    h = USE + i
--
all$ = (new$(VALUE), s$)
== a comprehension
--
h = [USE for h in [h]][0]
== a generator
def each$(h):
    yield USE
--
for h in each$(h):
    pass
== a decorated helper
def logged$(g):
    @functools.wraps(g)
    def wrapped(*args):
        return g(*args)
    return wrapped
@logged$
def helper$(h):
    return USE
--
h = helper$(h)
== a captured helper
def helper$(h):
    return USE
helper$ = capture(helper$)
--
h = helper$(h)
== a checkpoint
def helper$(h):
    return USE
--
h = pb.checkpoint(helper$)(h)
== a vmap | s
def helper$(h, s):
    return USE
--
h = pb.vmap(lambda h: helper$(h[None], s$)[0])(h)
== a grad
def helper$(h):
    return USE
--
h = h + pb.grad(lambda h: pb.sum(pb.sin(h) * helper$(h)))(h)
== a tape
--
with pb.GradientTape() as tape:
    tape.watch(h)
    y = pb.sum(pb.sin(h) * (USE))
h = h + tape.gradient(y, h)
== a custom gradient
@pb.custom_gradient
def helper$(h):
    return USE, lambda g: g * 0.5
--
h = helper$(h)
== a pullback
def backward$(h):
    return USE
@pb.custom_gradient
def helper$(h):
    return h * 1.5, lambda g: backward$(g)
--
h = helper$(h)
== a pullback under a tape
def backward$(h):
    return USE
@pb.custom_gradient
def helper$(h):
    return h * 1.5, lambda g: backward$(g)
--
with pb.GradientTape() as tape:
    tape.watch(h)
    y = pb.sum(helper$(h))
h = h + tape.gradient(y, h)
== a scan
--
h = pb.scan(lambda c, h: (c + 1.0, USE), pb.zeros(()), h)[1]
== an exception handler
--
try:
    raise KeyError('a')
except KeyError:
    h = USE
""")
)
