"""Parts of programs that no replay could repeat: state that a call carries to the next one, and random numbers of the host."""

from __future__ import annotations

from typing import Final

from changing_state import UPDATES, parts

CARRIED: Final = parts(
    """
== carried in an attribute
s$ = Scaler(pb.zeros(()))
--
h = h + s$.by
s$.by = pb.mean(h)
--
s$.by = pb.ones(())
--
s$.by
== carried in an attribute of a Module
class M$(nn.Module):
    def __init__(self):
        self.hidden = pb.zeros(3)
    def forward(self, h):
        self.hidden = pb.tanh(self.hidden + pb.mean(h, axis=0))
        return h + self.hidden
m$ = M$()
--
h = m$(h)
--
m$.hidden = pb.zeros(3)
--
m$.hidden
== a number carried in an attribute
s$ = Scaler(1.0)
--
s$.by = s$.by * 0.5 + 0.25
h = h * s$.by
--
s$.by = NUMBER
--
s$.by
== carried in an item of a list
state$ = [pb.zeros(3)]
--
state$[0] = state$[0] * 0.5 + h[0]
h = h + state$[0]
--
state$[0] = pb.ones(3)
--
state$
== carried in an item of a dict
state$ = {'h': 0.0}
--
h = h + state$['h']
state$['h'] = pb.sum(h)
--
state$['h'] = NUMBER
--
state$
== carried in a variable of a closure
def make$():
    last = 0.0
    def inner(h):
        nonlocal last
        h = h + last
        last = pb.mean(h)
        return h
    return inner, lambda: last
inner$, last$ = make$()
--
h = inner$(h)
--
inner$, last$ = make$()
--
last$()
== carried in a global
last$ = 0.0
--
global last$
h = h + last$
last$ = pb.mean(h)
--
last$ = NUMBER
--
last$
== a flag that flips
s$ = Scaler(True)
--
s$.by = not s$.by
h = h * 2 if s$.by else h - 1
--
s$.by = True
--
s$.by
== a history
history$ = []
--
history$.append(pb.mean(h))
h = h * 2
--
history$.clear()
--
history$
== a history in a deque
history$ = collections.deque(maxlen=2)
--
history$.append(h)
h = sum(pb.sum(kept) for kept in history$) + h
--
history$.clear()
--
list(history$)
== a result that is also held
s$ = Scaler(None)
--
h = h * 2
s$.by = h
--
s$.by = None
--
s$.by
== a default that is mutated
def helper$(h, memory=[]):
    memory.append(len(memory))
    return h * memory[-1]
--
h = helper$(h)
--
--
helper$.__defaults__
== a counter that is read
s$ = Scaler(0)
--
s$.by += 1
h = h * s$.by
--
s$.by = 0
--
s$.by
== an attribute of a function
def helper$(h):
    helper$.calls = getattr(helper$, 'calls', 0) + 1
    return h * helper$.calls
--
h = helper$(h)
--
helper$.calls = 0
--
helper$.calls
== an array written in place
a$ = np.zeros(3, 'float32')
--
a$[0] += 1
h = h + a$
--
a$[...] = 0
--
a$
== a queue
queue$ = [0.5, 1.5, 2.5, 3.5, 4.5, 5.5] * 20
--
h = h * queue$.pop(0)
--
queue$.append(NUMBER)
--
queue$
== a set that grows
seen$ = set()
--
seen$.add(len(seen$))
h = h * len(seen$)
--
seen$.clear()
--
seen$
== a generator that is resumed
def numbers():
    k = 0
    while True:
        k += 1
        yield k * 0.5
it$ = numbers()
--
h = h * next(it$)
--
it$ = numbers()
""",
    may_raise=True,
)

HOST: Final = parts("""
== random.Random
r$ = random.Random(3)
--
h = h * r$.random()
--
r$.seed(4)
== the global random
--
h = h * random.uniform(0.5, 1.5)
--
random.seed(4)
== a NumPy Generator
r$ = np.random.default_rng(3)
--
h = h + pb.asarray(r$.normal(size=3))
--
r$ = np.random.default_rng(4)
== the global NumPy generator
--
h = h * float(np.random.rand())
--
np.random.seed(4)
== a shuffle
r$ = random.Random(3)
order$ = [0, 1, 2]
--
r$.shuffle(order$)
h = pb.take(h, np.array(order$), axis=-1)
--
order$ = [0, 1, 2]
== a NumPy Generator made inside
seed$ = 3
--
h = h * float(np.random.default_rng(seed$).random())
--
seed$ = 4
seed$ = 3
== an optimizer made inside
m$ = nn.Linear(3, 3)
--
opt$ = optim.SGD(m$.parameters(), lr=0.1, momentum=0.9)
h = h + opt$.minimize(lambda: pb.mean(pb.square(m$(h))))
--
m$.weight.assign(m$.weight * 0.5)
--
m$.weight
== a schedule made inside
--
h = h * optim.schedules.Cosine(0.1, steps=10)(3)
== a generator of pullback made inside
--
h = h + pb.random.Generator(3).normal((3,))
""", UPDATES, may_raise=True)
