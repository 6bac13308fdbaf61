"""Random calls of the public functions. Each returns NumPy's result or raises an error with a clear message."""

from __future__ import annotations

import inspect
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

import pullback as pb
from conftest import INTEGERS, ROOT
from pullback.nn import functional as F
from pullback.tree import flatten

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


def shown(name: str, positional: list[Any], named: dict[str, Any]) -> str:
    def text(x: Any) -> str:
        if isinstance(x, pb.Tensor):
            return f"tensor({x.numpy().tolist()}, {x.dtype})" if x.size < 20 else f"tensor of {x.shape}, {x.dtype}"
        return (
            f"array({x.tolist()}, {x.dtype}, strides {x.strides})" if isinstance(x, np.ndarray) and x.size < 20 else repr(x)[:200]
        )

    return f"{name}({', '.join([text(x) for x in positional] + [f'{key}={text(x)}' for key, x in named.items()])})"


def on_host(x: Any) -> Any:
    if isinstance(x, pb.Tensor):
        return x.numpy()
    if isinstance(x, np.ndarray) and x.dtype == bool:
        return x.view(np.uint8) != 0  # NumPy's functions disagree about a bool whose byte is 2.
    return type(x)(map(on_host, x)) if type(x) in (list, tuple) else x


def fault_of(name: str, f: Callable[..., Any], positional: list[Any], named: dict[str, Any]) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.simplefilter("ignore", UserWarning)
        warnings.filterwarnings("ignore", "Data type alias 'a'", DeprecationWarning)
        try:
            result = f(*positional, **named)
        except (pb.PullbackError, TypeError, ValueError, IndexError, BufferError) as error:
            words = str(error)
            if len(re.findall(r"[a-z]{2,}", words)) < 3 or INTERNAL.search(words):
                return f"{type(error).__name__}: {words[:300]}"
            return None
        except BaseException as error:  # Any other exception is a fault.
            return f"{type(error).__name__}: {str(error)[:300]}"
    return value_fault(name, result, positional, named)


# Functions whose order, values or arguments differ from those of NumPy's function of the same name.
UNLIKE: Final = {
    "arange", "argsort", "asarray", "empty", "empty_like", "full_like", "nan_to_num", "searchsorted", "tensor", "unique_values",
    "linalg.cholesky", "linalg.eigvalsh", "linalg.pinv",  # NumPy reads one triangle, and counts other singular values as zero.
}  # fmt: skip


def known_difference(name: str, positional: list[Any], named: dict[str, Any]) -> bool:
    """True if NumPy's result for these arguments is not the one that the array API and C require."""
    given = [*positional, *named.values()]
    if any([isinstance(x, Iterator) for x in given]):  # The first call has exhausted it.
        return True
    if any([isinstance(x, float) and 3.5e38 < abs(x) < np.inf for x in given]):  # It becomes infinity in float32.
        return True
    if name in ("pow", "power", "float_power") and any([isinstance(x, (int, float)) and x == 0.5 for x in given]):
        return True  # NumPy computes the square root, which differs at -0.0 and -inf.
    if name == "matrix_rank" and any([np.asarray(on_host(x)).dtype.kind in "iu" for x in positional[:1]]):
        return True  # Here integers become float32, in which more singular values count as zero.
    # C leaves open what a float outside the range of an integer dtype becomes. NumPy's result depends on the processor.
    limits = [np.iinfo(x) for x in given if x is int or (isinstance(x, (str, np.dtype)) and str(x) in INTEGERS)]
    if not all([((x >= limit.min) & (x <= limit.max)).all() for limit in limits for x in floats_of(given)]):
        return True
    return name == "floor_divide" and not all([np.isfinite(x).all() for x in floats_of(given)])  # For infinities it is Python's.


def floats_of(given: list[Any]) -> list[Any]:
    """Returns the floating-point numbers among the arguments, as arrays of float64."""
    arrays = [np.asarray(on_host(x)) for x in flatten(given)[0] if isinstance(x, (pb.Tensor, np.ndarray, float))]
    return [x.astype(np.float64) for x in arrays if x.dtype.kind == "f"]


# Functions of an array without elements: NumPy's nan functions forget the shape of q, and its variance can be 0 instead of NaN.
UNLIKE_OF_NOTHING: Final = {"var", "std", "nanquantile", "nanpercentile"}
# Functions that interpolate. NumPy multiplies an infinity by a weight of 0, or subtracts it from itself. The NaN that results is
# one of its known bugs (numpy/numpy#21091). Here the quantile 0 is the minimum, and the quantile 0.5 is the result of np.median.
INTERPOLATED: Final = {"quantile", "percentile", "nanquantile", "nanpercentile"}


def value_fault(name: str, result: Any, positional: list[Any], named: dict[str, Any]) -> str | None:
    """Returns how the result differs from that of NumPy's function of the same name, or None.

    Returns None also if NumPy has no such function or refuses these arguments.
    """
    definition = getattr(np.linalg if name.startswith("linalg.") else np, name.rsplit(".", 1)[-1], None)
    taken = [x for x in (*positional, *named.values()) if isinstance(x, (pb.Tensor, np.ndarray))]
    if definition is None or name in UNLIKE or name.startswith(("random.", "nn.")) or not isinstance(result, pb.Tensor):
        return None
    if known_difference(name.rsplit(".", 1)[-1], positional, named):
        return None
    if result.size > 10**6 or any(isinstance(x, int) and abs(x) > 2**40 for x in (*positional, *named.values())):
        return None  # The result may be a view of few numbers, and NumPy might start to enumerate all of them.
    if (
        any(x.dtype not in (np.float32, np.float64, np.int32, np.int64, np.bool_) for x in taken)
        or len({x.dtype for x in taken}) > 1
    ):
        return None  # Mixed dtypes are promoted by the array API's rules, from which NumPy's differ.
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            wanted = np.asarray(
                definition(*map(on_host, positional), **{key: on_host(x) for key, x in named.items() if key != "device"})
            )
        except Exception:  # NumPy refuses more arguments.
            return None
    got = result.numpy()
    if got.dtype != wanted.dtype or got.dtype.itemsize == 2 or (name in UNLIKE_OF_NOTHING and any(not x.size for x in taken)):
        return None
    if got.shape != wanted.shape:
        return f"a result of shape {got.shape}, NumPy's {wanted.shape}"
    if name in INTERPOLATED and any([np.isinf(x).any() for x in floats_of([*positional, *named.values()])]):
        wanted = np.where(np.isnan(wanted), got, wanted)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if got.dtype == np.float32 else {"rtol": 1e-9, "atol": 1e-12}
    agrees = np.allclose(got, wanted, equal_nan=True, **tolerance) if got.dtype.kind == "f" else (got == wanted).all()
    if not agrees:
        return f"{got.tolist() if got.size < 20 else got}, NumPy's {wanted.tolist() if wanted.size < 20 else wanted}"
    return None


# The functions whose results are views of a Parameter among their arguments, as README.md lists them.
VIEWS: Final = {
    "asarray", "astype", "broadcast_arrays", "broadcast_to", "expand_dims", "flip", "from_dlpack", "linalg.matrix_transpose",
    "matrix_transpose", "meshgrid", "moveaxis", "permute_dims", "reshape", "rot90", "split", "squeeze", "swapaxes", "transpose",
    "unfold", "unstack",
}  # fmt: skip


def parameters_of(x: Any, made: dict[int, Any]) -> Any:
    """Returns the argument with its arrays and tensors replaced by Parameters; equal objects become one Parameter."""
    if isinstance(x, list):
        return [parameters_of(y, made) for y in x]
    if isinstance(x, pb.Tensor) or (isinstance(x, np.ndarray) and str(x.dtype) in DTYPES):
        made.setdefault(id(x), (x, pb.Parameter(x, trainable=False)))
        return made[id(x)][1]
    return x


@pytest.mark.parametrize("name", FUNCTIONS)
def test_only_what_is_called_a_view_is_one(name: str) -> None:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    views = []
    for _ in range(CALLS):
        positional, named = call_of(FUNCTIONS[name], rng)
        made: dict[int, Any] = {}
        positional, named = parameters_of(positional, made), {key: parameters_of(x, made) for key, x in named.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result = FUNCTIONS[name](*positional, **named)
            except Exception:  # Other tests check if the error is right.
                continue
        if any([isinstance(y, pb.Tensor) and y.storage is not None for y in flatten(result)[0]]):
            views.append(shown(name, positional, named))
    assert name in VIEWS or not views, "\n".join(views[:20])
    assert views or name not in VIEWS - {"astype"}, "no call returned a view"


def test_the_views_are_those_that_the_readme_lists() -> None:
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("the source tree is not here: an installed package")
    listed = readme.read_text().partition("are views: ")[2].partition("Every other function")[0]
    names = set(re.findall(r"\b[a-z_]{3,}\d*(?=`|\(copy)", listed)) - {"flatten"}  # flatten is reshape
    assert names == {name for name in VIEWS if "." not in name}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_random_call_returns_or_refuses_in_words(name: str) -> None:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    faults = []
    for _ in range(CALLS):
        positional, named = call_of(FUNCTIONS[name], rng)
        if fault := fault_of(name, FUNCTIONS[name], positional, named):
            faults.append(f"{shown(name, positional, named)}: {fault}")
    assert not faults, "\n".join(faults[:20])
