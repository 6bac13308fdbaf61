"""Parts of programs with layers and optimizers, whose settings and identities the loop changes."""

from __future__ import annotations

from typing import Final

from changing_facts import MODES, Part
from changing_holders import blocks

UPDATES: Final = ("plain", "steps")  # a program that updates Parameters in place is called in these modes


def parts(text: str, modes: tuple[str, ...] = MODES, may_raise: bool = False) -> tuple[Part, ...]:
    """Reads a table. The sections of a block are setup, body, changes and watched expressions, one a line."""
    found = []
    for (kind, _), sections in blocks(text):
        setup, body, changes, watch, *_ = [*sections, "", ""]
        found.append(Part(kind, setup, body, tuple(changes.splitlines()), tuple(watch.splitlines()), may_raise, modes))
    return tuple(found)


LAYERS: Final = parts("""
== dropout
m$ = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh())
--
h = m$(h)
--
m$.eval()
m$.train()
m$[1].p = 0.25
m$[1].p = 0.0
m$[1].p = 0.5
m$[1].eval()
m$[1].training = False
m$[1] = nn.Dropout(0.75)
--
m$.parameters()
== dropout inside a Module
class M$(nn.Module):
    def __init__(self):
        self.drop, self.gain = nn.Dropout(0.5), 1.5
    def forward(self, h):
        return self.drop(h) * self.gain if self.training else h * 0.5
m$ = M$()
--
h = m$(h)
--
m$.eval()
m$.train()
m$.drop.p = 0.25
m$.drop = nn.Identity()
m$.drop = nn.Dropout(0.5)
m$.gain = NUMBER
== batch norm
m$ = nn.BatchNorm1d(3)
--
h = m$(h)
--
m$.eval()
m$.train()
m$.momentum = 0.5
m$.momentum = 0.1
m$.momentum = None
m$.eps = 0.1
m$.running_mean.assign(m$.running_mean * 0.5)
m$.weight.assign(m$.weight + 0.5)
m$ = nn.BatchNorm1d(3)
--
m$.state_dict()
m$.weight
== settings of layers
m$ = nn.Sequential(nn.LeakyReLU(0.1), nn.LayerNorm(3), nn.ELU(), nn.Softplus(), nn.GroupNorm(1, 3), nn.Hardtanh(), nn.Softmax(-1))
--
h = m$(h) + m$[0](h)
--
m$[0].negative_slope = NUMBER
m$[1].eps = 0.5
m$[2].alpha = NUMBER
m$[3].beta = 0.5
m$[4].eps = 0.25
m$[4].num_groups = 3
m$[5].max_val = 0.5
m$[6].axis = 0
m$[0] = nn.ReLU()
== a linear layer
m$ = nn.Linear(3, 3)
other$ = nn.Linear(3, 3)
--
h = m$(h)
--
m$.weight.assign(m$.weight * 0.5)
m$.weight = other$.weight
m$.weight = pb.Parameter(np.eye(3, dtype='float32'))
m$.bias = None
m$.bias = pb.Parameter(np.ones(3, 'float32'))
m$, other$ = other$, m$
m$.load_state_dict(nn.Linear(3, 3).state_dict())
m$.weight.trainable = not m$.weight.trainable
m$.trainable = True
--
m$.weight
== lists and dicts of layers
class M$(nn.Module):
    def __init__(self):
        self.layers, self.named = [nn.Linear(3, 3), nn.Tanh()], {'a': nn.Linear(3, 3)}
    def forward(self, h):
        for layer in self.layers:
            h = layer(h)
        for name, layer in self.named.items():
            h = layer(h)
        return h
m$ = M$()
--
h = m$(h)
--
m$.layers.append(nn.Sigmoid())
m$.layers[0] = nn.Linear(3, 3)
m$.layers[1] = nn.ReLU()
m$.layers.pop() if len(m$.layers) > 1 else None
m$.layers.reverse()
m$.layers = [nn.Linear(3, 3)]
m$.named['b'] = nn.Tanh()
m$.named['a'] = nn.Linear(3, 3)
m$.named = {'c': nn.ReLU()}
--
m$.state_dict()
== classes and methods replaced
class M$(nn.Module):
    def forward(self, h):
        return self.scale(h)
    def scale(self, h):
        return h * 2
class N$(M$):
    def scale(self, h):
        return h * 3
def plain$(self, h):
    return h * 0.5
def helper$(h):
    return h + 1
m$ = M$()
--
h = helper$(m$(h))
--
M$.scale = plain$
M$.forward = plain$
N$.scale = plain$
m$.__class__ = N$
m$.__class__ = M$
m$.scale = pb.tanh
m$ = N$()
helper$ = pb.tanh
def helper$(h): return h * 4
helper$ = M$()
== random numbers of pullback
generator$ = pb.random.Generator(3)
std$ = 1.5
--
h = h + pb.random.normal((3,)) * std$ + generator$.uniform((3,))
--
generator$ = pb.random.Generator(4)
generator$.seed(5)
generator$.load_state_dict(pb.random.Generator(6).state_dict())
std$ = NUMBER
--
generator$.state_dict()
== a precision
precision$ = 'bfloat16'
w$ = pb.Parameter(np.full((3, 3), 0.3, 'float32'))
--
with pb.amp.autocast(precision$):
    h = h @ w$
--
precision$ = 'float16'
precision$ = 'tf32'
precision$ = 'bfloat16'
w$.assign(w$ * 1.1)
--
w$
== a transform in the place of a layer
class M$(nn.Module):
    def __init__(self):
        self.block, self.gain = pb.checkpoint(nn.Linear(3, 3)), 1.5
    def forward(self, h):
        return self.block(h) * self.gain
m$ = M$()
--
h = m$(h)
--
m$.block = pb.checkpoint(nn.Linear(3, 3))
m$.block = nn.Tanh()
m$.gain = NUMBER
--
m$.state_dict()
== a functional call
m$ = nn.Linear(3, 3)
weights$ = m$.state_dict()
--
h = nn.functional_call(m$, weights$, h)
--
weights$['weight'] = weights$['weight'] * 0.5
weights$ = nn.Linear(3, 3).state_dict()
m$ = nn.Linear(3, 3)
== an embedding and attention
m$ = nn.Embedding(4, 3)
a$ = nn.MultiHeadAttention(4, num_heads=2)
--
h = h + m$(pb.astype(pb.clip(h[..., 0] * 2, 0, 3), 'int64')) + pb.mean(a$(pb.ones((1, 2, 4))))
--
m$.weight.assign(m$.weight * 0.5)
a$.causal = True
a$.num_heads = 1
a$.rotary = not a$.rotary
m$ = nn.Embedding(4, 3)
--
m$.weight
""")

OPTIMIZERS: Final = parts(
    """
== an optimizer's step
m$ = nn.Linear(3, 3)
opt$ = optim.SGD(m$.parameters(), lr=0.1, momentum=0.9)
saved$ = m$.state_dict()
--
with pb.GradientTape() as tape$:
    loss$ = pb.mean(pb.square(m$(h)))
opt$.step(tape$.gradient(loss$, opt$.parameters, unconnected='zero'))
h = h + loss$
--
opt$.lr = NUMBER
opt$.momentum = 0.5
opt$.momentum = 0.0
opt$.weight_decay = 0.1
opt$.nesterov = True
opt$.clip_norm = 0.1
opt$.clip_norm = None
opt$.lr = optim.schedules.Cosine(0.1, steps=5)
opt$ = optim.Adam(m$.parameters(), lr=0.01)
m$ = nn.Linear(3, 3); opt$ = optim.SGD(m$.parameters(), lr=0.05)
m$ = nn.Linear(3, 3)
m$.load_state_dict(saved$)
opt$.load_state_dict(opt$.state_dict())
--
m$.weight
(opt$.steps, opt$.lr)
[dict(opt$.slots(p)) for p in opt$.parameters]
== minimize
m$ = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
opt$ = optim.Adam(m$.parameters(), lr=0.05)
gain$ = 1.0
--
loss$ = opt$.minimize(lambda x: pb.mean(pb.square(m$(x))) * gain$, h)
h = h * loss$
--
opt$.betas = (0.5, 0.9)
opt$.betas = (0.9, 0.999)
opt$.eps = 0.1
opt$.lr = NUMBER
opt$.clip_norm = 0.5
gain$ = NUMBER
m$[0].weight.assign(m$[0].weight * 0.5)
m$[1] = nn.ReLU()
opt$ = optim.AdamW(m$.parameters(), lr=0.02, weight_decay=0.1)
opt$ = optim.Adam(m$[2].parameters(), lr=0.1)
m$[2].weight.constraint = optim.constraints.Box(-0.1, 0.1)
--
m$.parameters()
(opt$.steps, opt$.lr)
[dict(opt$.slots(p)) for p in opt$.parameters]
== a schedule
m$ = nn.Linear(3, 3)
rate$ = optim.schedules.Cosine(0.1, steps=6)
opt$ = optim.SGD(m$.parameters(), lr=rate$)
--
h = h + opt$.minimize(lambda: pb.mean(pb.square(m$(h))))
--
rate$.base = NUMBER
opt$.lr = optim.schedules.Exponential(0.1, 0.5)
opt$.lr = optim.schedules.Lambda(0.1, lambda k: 1.0 / (1 + k))
opt$.lr = NUMBER
--
m$.weight
(opt$.steps, opt$.lr)
== a rule by formula
sign$ = pb.sign
gain$ = 1.0
@optim.rule(slots=('m',), lr=0.1, beta=0.9)
def Rule$(p, g, m, h):
    m = h.beta * m + (1 - h.beta) * g * gain$
    return -h.lr * sign$(m), m
m$ = nn.Linear(3, 3)
opt$ = Rule$(m$.parameters())
--
h = h + opt$.minimize(lambda: pb.mean(pb.square(m$(h))))
--
gain$ = NUMBER
sign$ = pb.tanh
opt$.beta = 0.5
opt$.lr = NUMBER
opt$ = Rule$(m$.parameters(), lr=0.05)
--
m$.weight
[dict(opt$.slots(p)) for p in opt$.parameters]
== a constraint that is a function
m$ = nn.Linear(3, 3)
limit$ = 0.5
m$.weight.constraint = lambda w: pb.clip(w, -limit$, limit$)
opt$ = optim.SGD(m$.parameters(), lr=0.2)
--
h = h + opt$.minimize(lambda: pb.mean(pb.square(m$(h))))
--
limit$ = 0.25
limit$ = 0.1
limit$ = 0.5
m$.weight.constraint = None
m$.weight.constraint = optim.constraints.NonNegative()
m$.bias.constraint = lambda b: b * limit$
--
m$.parameters()
== a list of optimizers and a dict of models
models$ = {'a': nn.Linear(3, 3), 'b': nn.Linear(3, 3)}
opts$ = {name: optim.SGD(m.parameters(), lr=0.1) for name, m in models$.items()}
which$ = 'a'
--
for name$, model$ in models$.items():
    h = h + pb.mean(model$(h))
h = h + opts$[which$].minimize(lambda: pb.mean(pb.square(models$[which$](h))))
--
which$ = 'b' if which$ == 'a' else 'a'
which$ = 'b'
opts$['a'] = optim.Adam(models$['a'].parameters(), lr=0.1)
opts$['b'].lr = NUMBER
models$['a'] = nn.Linear(3, 3); opts$['a'] = optim.SGD(models$['a'].parameters(), lr=0.1)
models$['c'] = nn.Tanh()
--
[m.parameters() for m in models$.values()]
[o.steps for o in opts$.values()]
""",
    UPDATES,
)

ACCUMULATORS: Final = parts(
    """
== an accumulator
m$ = nn.Linear(3, 3)
opt$ = optim.SGD(m$.parameters(), lr=0.1)
acc$ = optim.Accumulator(opt$.parameters, every=2)
--
with pb.GradientTape() as tape$:
    loss$ = pb.mean(pb.square(m$(h)))
if acc$.add(tape$.gradient(loss$, opt$.parameters)):
    opt$.step(acc$.take())
h = h + loss$
--
opt$.lr = NUMBER
acc$ = optim.Accumulator(opt$.parameters, every=2)
--
m$.weight
(opt$.steps, opt$.lr)
""",
    ("plain",),
)
