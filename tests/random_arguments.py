"""Random arguments for the public functions, and what a call of one may do."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np

import pullback as pb
from pullback.nn import functional as F

CALLS: Final = int(os.environ.get("PULLBACK_FUZZ_CALLS", "40"))  # per function
RANDOM: Final = [name for name in pb.random.__all__ if name not in ("Generator", "seed")]
HOMES: Final = ("pullback.ops.", "pullback.tensors.creation", "pullback.tensors.dtypes", "pullback.nn.")


def public() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {f"random.{name}": getattr(pb.random, name) for name in RANDOM}
    for prefix, module in (("", pb), ("linalg.", pb.linalg), ("nn.functional.", F)):
        for name in dir(module):
            if inspect.isfunction(f := getattr(module, name)) and inspect.unwrap(f).__globals__["__name__"].startswith(HOMES):
                found[prefix + name] = f
    return dict(sorted(found.items()))


FUNCTIONS: Final = public()

# ---- arguments

DTYPES: Final = ("bool", "int8", "int32", "int64", "uint8", "uint64", "float16", "bfloat16", "float32", "float64")
SHAPES: Final = ((), (0,), (1,), (3,), (4,), (2, 3), (3, 3), (3, 1), (0, 3), (3, 0), (2, 3, 4), (1, 1, 3), (65, 17), (2, 0, 3))
HUGE: Final = (2**53, 2**62, 2**63 - 1, -(2**63), 2**64, 10**30)
JUNK: Final[tuple[Any, ...]] = (
    None,
    "a",
    "sum",
    b"1",
    object(),
    {},
    {"a": 1},
    [],
    [[]],
    [[1], [1, 2]],
    [None],
    ["a"],
    ("a", 1),
    {1, 2},
    ...,
    slice(None),
    int,
    np.sum,
    1j,
    float("nan"),
    float("inf"),
    -1e308,
    1.5,
    True,
    np.float64(2.5),
    np.array("a"),
    np.array([None, 1]),
    np.datetime64("2020-01-01"),
    np.array([1j]),
    np.ones((1,) * 33),
    np.longdouble(1),
    np.zeros(2, [("a", int)]),
    range(3),
    iter([1, 2]),
    *HUGE,
)


def array(rng: np.random.Generator) -> Any:
    """Returns an array of random dtype, shape and strides, as a tensor, a NumPy array or a list."""
    dtype, shape = str(rng.choice(DTYPES)), SHAPES[rng.integers(len(SHAPES))]
    held = np.dtype("float32" if dtype == "bfloat16" else dtype)
    if dtype == "bool" and rng.random() < 0.3:
        x = rng.integers(0, 256, shape, np.uint8).view(bool) if shape else np.array(2, np.uint8).view(bool)
    elif held.kind == "f":
        x = rng.choice(
            [0.0, -0.0, 1.0, -2.5, 3.0, 0.5, 2.0**-10, 7.25] * 3 + [np.inf, -np.inf, np.nan, 6e4, -(2.0**-100)], shape
        )  # All are exact in float32, the dtype of lists, and none is subnormal, because float32 kernels flush those to 0.
        x = np.asarray(x).astype(held)
    else:
        x = np.asarray(rng.integers(0, 5, shape)).astype(held)
        if held.kind == "i" and rng.random() < 0.3:
            x = np.asarray(-x)
        if rng.random() < 0.1 and x.size:
            # The largest int32 would be a valid number of elements, of gigabytes; larger numbers are refused.
            x.reshape(-1)[0] = True if held.kind == "b" else np.iinfo(held).min if held == np.int32 else np.iinfo(held).max
    way = rng.integers(6)
    if way == 0 and x.ndim > 1:
        x = x.swapaxes(0, -1)
    elif way == 1 and x.ndim:
        x = x[::-1]
    elif way == 2 and x.ndim:
        x = np.repeat(x, 2, axis=-1)[..., ::-2]
    elif way == 3 and x.ndim:
        x = np.broadcast_to(x[:1], x.shape)
    if dtype == "bfloat16":
        return pb.tensor(x).astype("bfloat16")
    kind = rng.integers(8)
    return x if kind == 0 else x.tolist() if kind == 1 else pb.asarray(x) if kind < 5 else pb.tensor(x)


def whole(rng: np.random.Generator) -> Any:
    return int(rng.integers(-4, 6)) if rng.random() < 0.9 else rng.choice(np.array(HUGE, object))


def number(rng: np.random.Generator) -> Any:
    return rng.choice(np.array([0, 1, -1, 2, 0.5, -0.25, 1e-5, 3.0, 1e30, float("nan"), float("inf")], object))


def several(one: Callable[[np.random.Generator], Any]) -> Callable[[np.random.Generator], Any]:
    return lambda rng: one(rng) if rng.random() < 0.4 else tuple(one(rng) for _ in range(rng.integers(4)))


def of(*values: Any) -> Callable[[np.random.Generator], Any]:
    return lambda rng: values[rng.integers(len(values))]


dtypes = of(
    None, *DTYPES, pb.float32, pb.int64, pb.bool, np.float64, np.dtype("int16"), float, int, bool, "float31", "complex64", ">f4"
)
arrays = of(*[lambda rng, n=n: [array(rng)] * n if rng.random() < 0.7 else [array(rng) for _ in range(n)] for n in range(4)])
BY_NAME: Final[dict[str, Callable[[np.random.Generator], Any]]] = {
    "dtype": dtypes,
    "from_": dtypes,
    "to": dtypes,
    "kind": of("bool", "integral", "numeric", "real floating", ("bool", "a"), "a", pb.int8),
    "axis": several(whole),
    "axes": several(several(whole)),
    "source": several(whole),
    "destination": several(whole),
    "shift": several(whole),
    "shape": lambda rng: SHAPES[rng.integers(len(SHAPES))] if rng.random() < 0.5 else several(whole)(rng),
    "device": of(None, None, None, "cpu", "tpu", 3),
    "reduction": of("mean", "sum", "none", "avg"),
    "side": of("left", "right", "up"),
    "indexing": of("xy", "ij", "x"),
    "approximate": of("none", "tanh", "a"),
    "activation": of(None, "relu", "tanh", "gelu", "a"),
    "subscripts": of(
        "ij,jk->ik", "i,i->", "ij->ji", "...i,...i->...", "ii", "i->", "ij", "i->ij", "a,b,c", "", "->", "i1", "i..j", "ij,ij,ij->j"
    ),
    "ord": of(1, 2, -1, 0, "fro", "nuc", float("inf"), -float("inf"), 3, 2.5, "a"),
    "generator": of(None, None, pb.random.Generator(1), 3),
    "arrays": lambda rng: arrays(rng)(rng),
    "repeats": lambda rng: array(rng) if rng.random() < 0.3 else whole(rng),
    "repetitions": several(whole),
    "q": number,
    "mode": of("constant", "reflect", "symmetric", "edge", "wrap", "replicate", "a"),
    "method": of("linear", "lower", "higher", "midpoint", "nearest", "a"),
    "pad_width": lambda rng: several(several(whole))(rng),
    "sections": several(whole),
}
WHOLE: Final = "k n depth num n_rows n_cols num_segments offset ignore_index correction size axis1 axis2"
BY_NAME.update(dict.fromkeys(WHOLE.split(), whole))
FLAGS: Final = "keepdims copy descending stable include_initial endpoint largest equal_nan training log_target"
BY_NAME.update(dict.fromkeys(FLAGS.split(), of(True, False)))
NUMBERS: Final = (
    "start stop step fill_value rtol atol p mean std low high eps delta alpha beta threshold label_smoothing value "
    "nan posinf neginf"
)
BY_NAME.update(dict.fromkeys(NUMBERS.split(), number))


def argument(name: str, rng: np.random.Generator) -> Any:
    if rng.random() < 0.08:
        return JUNK[rng.integers(len(JUNK))]
    return BY_NAME.get(name, lambda rng: array(rng) if rng.random() < 0.85 else number(rng))(rng)


def call_of(f: Callable[..., Any], rng: np.random.Generator) -> tuple[list[Any], dict[str, Any]]:
    positional, named = [], {}
    same = array(rng)  # Equal arguments are more often accepted.
    left_out = False
    for name, parameter in inspect.signature(f).parameters.items():
        optional = parameter.default is not parameter.empty
        if parameter.kind is parameter.VAR_KEYWORD:  # keywords that are refused
            continue
        if left_out := left_out and parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        if optional and rng.random() < 0.6:
            left_out = parameter.kind is not parameter.KEYWORD_ONLY
            continue
        value = same if name not in BY_NAME and rng.random() < 0.5 else argument(name, rng)
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += (
                [argument("x", rng) for _ in range(rng.integers(4))] if rng.random() < 0.5 else [value] * int(rng.integers(4))
            )
        elif parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = value
        else:
            positional.append(value)
    return positional, named


# ---- outcomes

# Messages of Python's and NumPy's internal operations, which do not name the user's call.
INTERNAL: Final = re.compile(
    r"not supported between|unsupported operand|has no attribute|not subscriptable|unhashable|unpack|"
    r"incompatible function arguments|_cpu|is not iterable|cannot be interpreted as an integer|missing \d|"
    r"object of type|invalid literal"
)


def outcome(call: Callable[[], Any]) -> tuple[str | None, Any]:
    """Returns (None, the result), (None, None) if the call is refused with a clear message, or (the fault, None)."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.simplefilter("ignore", UserWarning)
        warnings.filterwarnings("ignore", "Data type alias 'a'", DeprecationWarning)
        try:
            return None, call()
        except (pb.PullbackError, TypeError, ValueError, IndexError, BufferError) as error:
            words = str(error)
            clear = len(re.findall(r"[a-z]{2,}", words)) >= 3 and not INTERNAL.search(words)
            return None if clear else f"{type(error).__name__}: {words[:300]}", None
        except BaseException as error:  # Any other exception is a fault.
            return f"{type(error).__name__}: {str(error)[:300]}", None
