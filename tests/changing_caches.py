"""Parts of programs that leave something behind and are right: Buffers, state made inside, caches and counters."""

from __future__ import annotations

from typing import Final

from changing_state import UPDATES, parts

IN_PLACE: Final = ("plain", "steps", "tape")

BUFFERS: Final = parts("""
== a Buffer with assign
b$ = nn.Buffer(np.zeros((), 'float32'))
--
b$.assign(b$ * 0.5 + pb.mean(h))
h = h + b$
--
b$.assign(NUMBER)
b$ = nn.Buffer(np.ones((), 'float32'))
--
b$
== a Buffer of a Module
class M$(nn.Module):
    def __init__(self):
        self.mean, self.rate = nn.Buffer(np.zeros(3, 'float32')), 0.5
    def forward(self, h):
        if self.training:
            self.mean.assign(self.mean + self.rate * (pb.mean(h, axis=0) - self.mean))
        return h - self.mean
m$ = M$()
--
h = m$(h)
--
m$.eval()
m$.train()
m$.rate = NUMBER
m$.mean.assign(pb.ones(3))
m$.mean = nn.Buffer(np.ones(3, 'float32'))
--
m$.mean
== a Parameter that the function assigns
p$ = pb.Parameter(np.ones(3, 'float32'))
--
y$ = h * p$
p$.assign(p$ * 0.75 + 0.1)
h = y$ + pb.stop_gradient(p$)
--
p$.assign(p$ * NUMBER)
p$ = pb.Parameter(np.full(3, 0.5, 'float32'))
--
p$
== a Buffer that another captured function assigns
b$ = nn.Buffer(np.zeros((), 'float32'))
s$ = Scaler(1.5)
def update$(h):
    b$.assign(b$ + pb.mean(h) * s$.by)
    return h * 1.0
update$ = capture(update$)
--
h = h + b$ * s$.by
--
update$(pb.ones((2, 3)))
update$(pb.ones((1, 3)))
s$.by = NUMBER
--
b$
== a step that the caller takes
p$ = pb.Parameter(np.zeros((), 'float32'))
--
h = h + p$ * 0.25
--
p$.assign(p$ + 1)
--
p$
""", IN_PLACE)

MADE: Final = parts("""
== a Parameter made inside
--
p$ = pb.Parameter(np.full(3, 0.5, 'float32'))
with pb.GradientTape() as tape$:
    y$ = pb.sum(pb.square(h * p$))
p$.assign(p$ - 0.1 * pb.stop_gradient(tape$.gradient(y$, p$)))
h = h * p$
== a Buffer made inside
--
b$ = nn.Buffer(np.zeros((), 'float32'))
for i$ in range(3):
    b$.assign(b$ + pb.mean(h) * i$)
h = h + b$
== a copy of a Module
m$ = nn.Linear(3, 3)
rate$ = 0.1
--
fast$ = copy.deepcopy(m$)
for _ in range(2):
    with pb.GradientTape() as tape$:
        y$ = pb.mean(pb.square(fast$(h)))
    for p$, g$ in zip(fast$.parameters(), tape$.gradient(y$, fast$.parameters())):
        p$.assign(p$ - rate$ * pb.stop_gradient(g$))
h = h + fast$(h)
--
m$.weight.assign(m$.weight * 0.5)
rate$ = NUMBER
m$ = nn.Linear(3, 3)
--
m$.weight
== a layer made inside
--
h = nn.Linear(3, 3)(h)
--
pb.random.seed(5)
== a list and a dict made inside
scale$ = 0.5
--
found$ = []
for i$ in range(3):
    found$.append(h * i$ * scale$)
by_name$ = dict(zip("abc", found$))
by_name$['a'] = by_name$['b'] + 1
h = sum(by_name$.values()) + found$.pop()
--
scale$ = NUMBER
== an object made inside
scale$ = 0.5
--
s$ = Scaler(scale$)
s$.by = s$.by * 2
s$.kept = h
h = s$.apply(s$.kept) + s$.by
--
scale$ = NUMBER
""", UPDATES)

CACHES: Final = parts("""
== functools.cache
@functools.cache
def table$(n):
    return pb.arange(n, dtype='float32')
--
h = h + table$(h.shape[-1])
--
table$(5)
== lru_cache of a method
class T$:
    def __init__(self, by):
        self.by = by
    @functools.lru_cache(maxsize=4)
    def table(self, n):
        return np.arange(n, dtype='float32') * self.by
t$ = T$(0.5)
--
h = h + t$.table(h.shape[-1])
--
t$ = T$(NUMBER)
T$.table.cache_clear()
== a memo in a dict
memo$ = {}
def table$(shape):
    if shape not in memo$:
        memo$[shape] = pb.ones(shape) * 0.5
    return memo$[shape]
--
h = h + table$(h.shape)
--
memo$.clear()
memo$[2, 3] = pb.ones((2, 3)) * 3
== setdefault
memo$ = {}
--
h = h * memo$.setdefault(h.shape, pb.tensor([0.5, 1.0, 2.0]))
--
memo$.clear()
memo$ = {}
== a lazily made table
class M$(nn.Module):
    def __init__(self):
        self.table = None
    def forward(self, h):
        if self.table is None:
            self.table = pb.linspace(0.0, 1.0, 3)
        return h + self.table
m$ = M$()
--
h = m$(h)
--
m$.table = None
m$.table = pb.ones(3)
m$ = M$()
--
m$.table
== a lazily made layer
class M$(nn.Module):
    layer = None
    def forward(self, h):
        if self.layer is None:
            self.layer = nn.Linear(h.shape[-1], 3)
        return self.layer(h)
m$ = M$()
--
h = m$(h)
--
m$.layer = None
m$ = M$()
--
m$.parameters()
== a lazily made global
table$ = None
--
global table$
if table$ is None:
    table$ = pb.arange(3, dtype='float32')
h = h + table$
--
table$ = None
table$ = pb.ones(3)
--
table$
== a lazily made number
s$ = Scaler(None)
--
if s$.by is None:
    s$.by = 0.5
h = h * s$.by
--
s$.by = None
s$.by = NUMBER
--
s$.by
== cached_property
class T$:
    by = 2.0
    @functools.cached_property
    def table(self):
        return pb.arange(3, dtype='float32') * self.by
t$ = T$()
--
h = h + t$.table
--
t$ = T$()
T$.by = NUMBER
t$.__dict__.pop('table', None)
""")

COUNTERS: Final = parts("""
== a counter of calls
s$ = Scaler(0.5)
s$.calls = 0
--
s$.calls += 1
h = h * s$.by
--
s$.by = NUMBER
s$.calls = 0
== a counter of a Module
class M$(nn.Module):
    def __init__(self):
        self.calls = 0
    def forward(self, h):
        self.calls += 1
        return h * 2
m$ = M$()
--
h = m$(h)
--
m$.calls = 0
== a global counter
calls$ = 0
--
global calls$
calls$ += 1
h = pb.sin(h)
--
calls$ = 0
== a log of the caller
log$ = []
best$ = 0.0
by$ = 0.5
--
h = h * by$
--
log$.append(NUMBER)
best$ = NUMBER
by$ = NUMBER
--
(log$, best$)
== a counter of the caller in an object that is read
s$ = Scaler(0.5)
s$.step = 0
--
h = h * s$.by
--
s$.step += 1
s$.by = NUMBER
--
s$.step
""")
