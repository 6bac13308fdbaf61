"""Random calls of the public functions. Each returns NumPy's result or raises an error with a clear message."""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

import pullback as pb
from conftest import INTEGERS, ROOT
from pullback.tree import flatten
from random_arguments import CALLS, DTYPES, FUNCTIONS, call_of, outcome

# ---- outcomes


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
    fault, result = outcome(lambda: f(*positional, **named))
    return fault or value_fault(name, result, positional, named)


# Functions whose order, values or arguments differ from those of NumPy's function of the same name.
UNLIKE: Final = {
    "arange", "argsort", "asarray", "empty", "empty_like", "full_like", "nan_to_num", "searchsorted", "tensor", "unique_values",
    "linalg.cholesky", "linalg.eigvalsh", "linalg.pinv",  # NumPy reads one triangle, and counts other singular values as zero.
}


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
}


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
