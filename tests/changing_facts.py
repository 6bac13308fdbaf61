"""Parts of programs that read a fact: a value, where it is held, how code reads it, and what the loop changes between two calls.

A part is text. `$` stands for the number of the part, so that the names of two parts of a program differ. In changes, VALUE stands
for one of the part's values, and NUMBER for a number. The function of a program has a tensor `h` of three columns, which each part
replaces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from changing_holders import HOLDERS, Holder, blocks
from changing_positions import POSITIONS, Position

MODES: Final = ("plain", "steps", "tape", "vmap", "mixed")  # "mixed" takes turns between plain calls, tapes and vmap
NUMBERS: Final = ("0.5", "1.25", "2", "True", "1", "1.0", "0.3", "np.float32(0.3)", "np.float64(0.3)", "1.5")


@dataclass(frozen=True)
class Part:
    kind: str
    setup: str  # statements of the program's module
    body: str  # statements of its function
    changes: tuple[str, ...] = ()  # statements that the loop may run between two calls
    watch: tuple[str, ...] = ()  # expressions that are compared after each call
    may_raise: bool = False  # a CaptureError is allowed, because no replay could repeat the part
    modes: tuple[str, ...] = MODES  # how the program may be called
    arguments: tuple[str, ...] = ()  # names that are passed to the function
    values: tuple[str, ...] = ("1",)

    def numbered(self, n: int) -> Part:
        def text(line: str) -> str:
            return line.replace("$", str(n))

        lines = {name: tuple(map(text, getattr(self, name))) for name in ("changes", "watch", "arguments", "values")}
        return replace(self, setup=text(self.setup), body=text(self.body), **lines)

    def change(self, rng: Random) -> str:
        return rng.choice(self.changes).replace("VALUE", rng.choice(self.values)).replace("NUMBER", rng.choice(NUMBERS))


# ---- values: what is read. PATH stands for the expression that names the value.


@dataclass(frozen=True)
class Values:
    kind: str
    uses: tuple[str, ...]  # expressions of h and PATH
    values: tuple[str, ...]
    changes: tuple[str, ...] = ()  # in place
    watch: tuple[str, ...] = ()  # what is compared after each call


# The sections of a block are uses, values, changes and watched expressions, one a line.
VALUES: Final = tuple(
    Values(kind, *(tuple(lines.splitlines()) for lines in sections))
    for (kind, _), sections in blocks("""
== number
h * PATH
h + PATH
PATH - h
pb.leaky_relu(h - 0.2, PATH)
pb.clip(h, -1.5, PATH)
pb.full_like(h, PATH) + h
(h * 2 if PATH > 0.75 else h - 1)
h * float(PATH)
h * math.sqrt(PATH)
h * (0.5 + PATH) ** 2
pb.astype(h * 4, 'int32') * PATH
--
0.5
1.25
2
True
1
1.0
0.3
np.float32(0.3)
np.float64(0.3)
1.5
== zero or NaN
h * math.copysign(2.0, PATH)
(h * 3 if PATH != PATH else h * 2)
h * PATH
--
0.0
-0.0
math.nan
0
== flag
(pb.tanh(h) if PATH else h * 2)
(h * 2 if PATH is True else h + 1)
(h if PATH is None else h * 3)
h * (2.0 if isinstance(PATH, bool) else 1.5)
--
True
False
None
1
0
''
'a'
1.0
== string
ACTIVATIONS[PATH](h)
getattr(pb, PATH)(h)
h * len(PATH)
(h * 2 if PATH == 'tanh' else h + 1)
--
'tanh'
'sin'
'relu'
'sigmoid'
== integer
pb.roll(h, PATH, axis=-1)
repeated(h, PATH)
h[..., PATH : PATH + 1] + h
--
0
1
2
True
== tuple
pb.sum(h, axis=PATH, keepdims=True) * 0.1 + h
h * (PATH[0] + 2)
--
(0,)
(1,)
(0, 1)
(-1,)
== nested tuple
h * PATH[1][0]
h * sum(PATH[1])
--
(0, (1, 2))
(0, (2, 1))
(0, (True, 2))
(1, (1.5,))
== enum
(h * 2 if PATH is Mode.A else h + 1)
h * PATH.value
--
Mode.A
Mode.B
Mode.C
== function
PATH(h)
--
pb.tanh
pb.sin
(lambda h: h * 2)
(lambda h: h * 3)
scaled
functools.partial(scaled, by=0.25)
Scaler(0.5)
Scaler(0.75).apply
== object
PATH(h)
PATH.apply(h)
h * PATH.by
--
Scaler(0.5)
Scaler(2.0)
Scaler(True)
--
PATH.by = NUMBER
== missing attribute
h * getattr(PATH, 'more', 2.0)
(h * 2 if hasattr(PATH, 'more') else h)
h * (PATH.by if not hasattr(PATH, 'more') else PATH.more)
--
Scaler(0.5)
Scaler(2.0)
--
PATH.more = NUMBER
hasattr(PATH, 'more') and delattr(PATH, 'more')
== tensor
h * PATH
h + PATH
pb.maximum(h, PATH)
--
pb.tensor(0.5)
pb.tensor([0.5, 1.0, 2.0])
pb.ones(3) * 0.25
== array
h * PATH
pb.asarray(PATH) + h
--
np.array([0.5, 1.0, 2.0], 'float32')
np.ones(3)
--
PATH[1] = NUMBER
PATH[...] = PATH * 1.5
== array read on the host
h * PATH[0]
h * float(PATH[1])
h * PATH.max()
h * float(PATH.sum())
--
np.array([0.5, 1.0, 2.0], 'float32')
np.ones(3)
--
PATH[0] = NUMBER
PATH[1] = NUMBER
PATH[...] = PATH * 1.5
== Parameter
h * PATH
h + PATH
--
pb.Parameter([0.5, 1.0, 2.0])
pb.Parameter(np.ones(3))
--
PATH.assign(PATH * 0.5)
PATH.trainable = not PATH.trainable
--
PATH
== layer
PATH(h)
--
nn.Linear(3, 3)
nn.Tanh()
nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Dropout(0.5))
nn.LayerNorm(3)
nn.BatchNorm1d(3)
--
PATH.eval()
PATH.train()
PATH.trainable = False
--
PATH.state_dict()
PATH.parameters()
== list
h * sum(PATH)
h * len(PATH)
h * PATH[-1]
h * PATH[0]
h * max(PATH)
functools.reduce(lambda a, b: a * b, PATH, h)
h + [w * 2 for w in PATH][0]
h * sum(w for w in PATH)
--
[0.5, 1.5]
[1, 2, 3]
[2.0]
--
PATH.append(NUMBER)
PATH[0] = NUMBER
PATH[-1] = NUMBER
PATH.insert(0, NUMBER)
PATH.reverse()
PATH[:] = [NUMBER]
== list of functions
composed(h, PATH)
--
[pb.tanh, scaled]
[pb.sin]
--
PATH.append(pb.sin)
PATH[0] = pb.tanh
PATH[0] = scaled
PATH.reverse()
PATH[:] = [pb.cos]
== list of objects
composed(h, PATH)
h * sum(s.by for s in PATH)
--
[Scaler(0.5), Scaler(2.0)]
[Scaler(1)]
--
PATH[0].by = NUMBER
PATH[-1].by = NUMBER
PATH.append(Scaler(NUMBER))
PATH[0] = Scaler(NUMBER)
== list of tensors
h * sum(PATH)
h * PATH[0]
--
[pb.tensor(0.5), pb.tensor(1.5)]
[pb.tensor(2.0)]
--
PATH[0] = pb.tensor(NUMBER)
PATH.append(pb.tensor(NUMBER))
== dict
h * sum(PATH.values())
h * PATH['a']
h * PATH.get('b', 2.0)
(h * 2 if 'b' in PATH else h)
h * len(PATH)
h * [*PATH.values()][0]
(h + 1 if [*PATH][0] == 'a' else h)
scaled(h, **{'by': PATH['a']})
--
{'a': 0.5}
{'a': 1.5, 'b': 2}
{'b': 0.5, 'a': 1.25}
--
PATH['b'] = NUMBER
PATH['a'] = NUMBER
PATH.pop('b', None)
PATH.update(c=NUMBER)
PATH['a'] = PATH.pop('a')
== ordered dict
h * [*PATH.values()][0]
functools.reduce(lambda h, w: h * w + 0.5, PATH.values(), h)
(h + 1 if next(reversed(PATH)) == 'a' else h)
composed(h, [lambda h, w=w: h * w + 0.25 for w in PATH.values()])
--
collections.OrderedDict(a=0.5, b=1.5)
collections.OrderedDict(a=1.5, b=2, c=True)
collections.OrderedDict(b=0.5, a=1.25)
--
PATH.move_to_end('a')
PATH.move_to_end('b', last=False)
PATH['a'] = NUMBER
== large list
h * PATH[70]
h * PATH[0]
h * (len(PATH) * 0.01)
--
[0.5 + 0.01 * k for k in range(100)]
--
PATH[70] = NUMBER
PATH[0] = NUMBER
PATH.append(NUMBER)
== large dict
h * PATH[70]
h * (len(PATH) * 0.01)
--
{k: 0.5 + 0.01 * k for k in range(100)}
--
PATH[70] = NUMBER
PATH[len(PATH)] = NUMBER
== set
h * len(PATH)
(h * 2 if 'b' in PATH else h)
--
{'a'}
{'a', 'b'}
--
PATH.add('b')
PATH.discard('b')
""")
)


# ---- parts


# What is refused as an argument, and so are sets.
UNHASHABLE: Final = ("namespace", "ordered dict", "module", "derived list", "class of a derived dict")
FUNCTIONS: Final = ("function", "object", "missing attribute", "layer")  # as class attributes they would become methods

# A Module refuses a layer or a Parameter in an object in which it would not find it.
HIDDEN: Final = ("layer", "Parameter")
HIDING: Final = ("dataclass", "frozen dataclass", "namespace")


def fits(values: Values, holder: Holder, position: Position) -> bool:
    if position.kind == "an argument":
        return holder.kind not in UNHASHABLE and values.kind not in ("set", "array read on the host")
    if values.kind in HIDDEN and position.kind in ("a forward", "a layer of a Sequential") and holder.kind in HIDING:
        return False
    of_a_class = "class " in holder.kind or holder.kind == "inherited attribute" or position.kind == "a class method"
    if "(" in holder.tail and values.kind.startswith("large"):  # no chain names the item
        return False
    return not (of_a_class and values.kind in FUNCTIONS)


def fact(rng: Random) -> Part:
    """Returns a part that reads one value from one holder in one position."""
    values, holder, position = rng.choice(VALUES), rng.choice(HOLDERS), rng.choice(POSITIONS)
    if not fits(values, holder, position):
        return fact(rng)
    path, initial = "s$" + holder.tail, rng.choice(values.values)
    use = rng.choice(values.uses).replace("PATH", position.root + holder.tail)
    in_place = tuple(change.replace("PATH", path) for change in values.changes)
    an_argument = position.kind == "an argument"
    return Part(
        kind=f"{values.kind} | {holder.kind} | {position.kind}",
        setup=f"{holder.make}\ns$ = new$({initial})\n{position.setup.replace('USE', use)}",
        body=position.body.replace("USE", use),
        changes=(*holder.sets, "s$ = new$(VALUE)", *in_place, *in_place, *position.changes),
        watch=tuple(expression.replace("PATH", path) for expression in values.watch),
        modes=("plain", "tape") if an_argument else MODES,
        arguments=("s$",) if an_argument else (),
        values=values.values,
    )
