"""Prints for each trap of compiled functions whether pb.capture, torch.compile and jax.jit are right, raise, warn, or are silent.

A trap is a function that is called four times, with a change before each call but the first. It runs plainly and compiled, from the
same beginning:

- "right": the results, and what the program can see afterwards, are those of the plain function;
- "told": an error was raised, and everything before it was right;
- "warned": something else came, with a warning;
- "silent": something else came.

torch.compile runs with backend="eager", which needs no compiler. Other arguments than tensors are static arguments of jax.jit.

    python benchmarks/footguns.py [a part of a name]
"""

import contextlib
import io
import logging
import re
import sys
import warnings

import numpy as np

# The sections of a trap are its beginning, which defines f, the change, what is seen afterwards, and the second argument of call k.
TRAPS = """
== a global that is rebound
gain = 2.0
def f(x): return x * gain
--
gain = float(k)
== a closure variable that is rebound
def make(gain):
    def rebind(value):
        nonlocal gain
        gain = value
    return lambda x: x * gain, rebind
f, rebind = make(2.0)
--
rebind(float(k))
== a default that is replaced
def helper(x, gain=2.0): return x * gain
def f(x): return helper(x)
--
helper.__defaults__ = (float(k),)
== an attribute of an object
s = Object(2.0)
def f(x): return x * s.p
--
s.p = float(k)
== an attribute that is set through vars
s = Object(2.0)
def f(x): return x * s.p
--
vars(s)['p'] = float(k)
== an attribute of an argument
s = Object(2.0)
def f(x, s): return x * s.p
--
s.p = float(k)
--
--
s
== an equal argument with another attribute
class Alike(Object):
    def __eq__(self, other): return isinstance(other, Alike)
    def __hash__(self): return 0
def f(x, s): return x * s.p
--
--
--
Alike(float(k))
== True, 1 and 1.0 as arguments
def f(x, v): return x * 2 if v is True else x * 3 if type(v) is int else x * 5
--
--
--
(True, 1, 1.0, True)[k]
== an item of a dict
d = {'w': [2.0]}
def f(x): return x * d['w'][0]
--
d['w'][0] = float(k)
== a list that grows
gains = [2.0]
def f(x): return x * sum(gains)
--
gains.append(float(k))
== contents of a large list
gains = [1.0] * 500
def f(x): return x * sum(gains)
--
gains[100] = float(k)
== an array that the caller writes to
a = np.ones(3, 'float32')
def f(x): return x * xp.asarray(a)
--
a[0] = k
== a number of an array
a = np.ones(3, 'float32')
def f(x): return x * float(a[0])
--
a[0] = k
== a helper that is replaced
def helper(x): return x * 2
def f(x): return helper(x)
--
def helper(x): return x * 3
== an environment variable
os.environ['FOOTGUN'] = '2.0'
def f(x): return x * float(os.environ['FOOTGUN'])
--
os.environ['FOOTGUN'] = str(k)
== the time
end = time.perf_counter() + 1.0
def f(x): return x * (2.0 if time.perf_counter() > end else 3.0)
--
time.sleep(0.4)
== a hidden state in an attribute
s = Object(0.0)
def f(x):
    s.p = xp.tanh(x + s.p)
    return s.p * 2
--
--
np.asarray(s.p).tobytes()
== a history of results
history = []
def f(x):
    history.append(x.sum())
    return x * 2
--
--
[float(h) for h in history]
== a counter that is read
n = 0
def f(x):
    global n
    n += 1
    return x * n
--
--
n
== a counter that is not read
s = Object(0)
def f(x):
    s.p += 1
    return x * 2
--
--
s.p
== a default that is mutated
def f(x, memory=[]):
    memory.append(1)
    return x * len(memory)
== an iterator
numbers = itertools.count(2)
def f(x): return x * next(numbers)
== a cached table
@functools.cache
def table(): return xp.asarray(np.arange(3, dtype='float32')) * 2
def f(x, n): return x[:n] + table()
--
--
--
(2, 2, 3, 2)[k]
== a print
def f(x): return [print('called'), x * 2][1]
== random
random.seed(1)
def f(x): return x * random.random()
== a NumPy Generator
rng = np.random.default_rng(1)
def f(x): return x * float(rng.random())
== a branch on a value
def f(x): return x * 2 if x.sum() > 0 else x * 3
"""
PRELUDE = """
import functools, itertools, os, random, time
import numpy as np
class Object:
    def __init__(self, p): self.p = p
"""


def libraries():
    """Returns (name, module, tensor(array), compiled(f, has a static argument)) of each library that is installed."""
    found = []
    with contextlib.suppress(ImportError):
        import pullback as pb

        found.append(("pb.capture", pb, pb.tensor, lambda f, static: pb.capture(f)))
    with contextlib.suppress(ImportError):
        import torch

        logging.getLogger("torch").setLevel(logging.ERROR)  # graph breaks are no warnings about results
        found.append(("torch.compile", torch, torch.tensor, lambda f, static: torch.compile(f, backend="eager")))
    with contextlib.suppress(ImportError):
        import jax

        found.append(("jax.jit", jax.numpy, jax.numpy.asarray, lambda f, static: jax.jit(f, static_argnums=(1,) * static)))
    return found


def results(sections, xp, tensor, compiled):
    """Yields what each call gives and what can be seen after it, or the error, which ends the run."""
    beginning, change, seen, argument = sections
    names = {"xp": xp, "__name__": "trap"}
    exec(PRELUDE + beginning, names)
    f = compiled(names["f"], bool(argument))
    for k in range(4):
        x = tensor(np.array([[0.5, -1.25, 2.0], [1.5, 0.25, -0.75], [1.0, 1.0, 1.0]], "float32") * (-1) ** (k // 2))
        names["k"] = k
        exec(change if k else "", names)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                result = np.asarray(f(x, *([eval(argument, names)] if argument else [])))
                yield result.tobytes(), eval(seen or "None", names), printed.getvalue()
            except Exception as error:
                yield error
                return


def verdict(sections, xp, tensor, compiled):
    wanted = list(results(sections, xp, tensor, lambda f, static: f))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for got, expected in zip(results(sections, xp, tensor, compiled), wanted):
            if isinstance(got, Exception):
                return "told"
            if got != expected:
                return "warned" if heard else "silent"
    return "right"


def main():
    found = libraries()
    print(f"{'':42}" + "".join(f"{name:15}" for name, *_ in found))
    for block in re.split(r"^== ", TRAPS, flags=re.MULTILINE)[1:]:
        name, _, text = block.partition("\n")
        sections = [section.strip() for section in re.split(r"^--$", text, flags=re.MULTILINE)]
        if len(sys.argv) < 2 or sys.argv[1] in name:
            verdicts = [verdict([*sections, "", "", ""][:4], *library) for _, *library in found]
            print(f"{name:42}" + "".join(f"{found:15}" for found in verdicts), flush=True)


if __name__ == "__main__":
    main()
