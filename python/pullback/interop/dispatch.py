"""Makes NumPy's functions work on tensors: `np.sin(t)` is `pb.sin(t)`, recorded and differentiated.

A function is looked up in pullback's public namespace by NumPy's name, and its arguments are matched by NumPy's signature. The
tables below list the names that differ; `numpy_signatures.py` defines the functions whose arguments differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np

from ..autodiff.returned import report_store
from ..duck import has
from ..tensors.tensor import Tensor
from . import numpy_signatures

RENAMED: Final = {
    "absolute": "abs", "fabs": "abs", "power": "pow", "invert": "bitwise_invert", "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift", "rint": "round", "fix": "trunc", "conjugate": "positive", "amax": "max", "amin": "min",
    "cumsum": "cumulative_sum", "cumprod": "cumulative_prod", "radians": "deg2rad", "degrees": "rad2deg",
}
OPTIONS: Final = {"ddof": "correction"}
REDUCTIONS: Final = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all", "logical_or": "any",
}
SCANS: Final = {"add": "cumulative_sum", "multiply": "cumulative_prod", "logaddexp": "logcumsumexp"}
RUNNING: Final = {"maximum": "cummax", "minimum": "cummin"}  # return values and indices
# These functions return no tensor and have no derivative, so they receive the tensor's memory as a NumPy array.
FACTS: Final = frozenset({
    "allclose", "array2string", "array_equal", "array_equiv", "array_repr", "array_str", "can_cast", "copyto", "iscomplexobj",
    "isrealobj", "may_share_memory", "ndim", "result_type", "save", "savetxt", "savez", "savez_compressed", "shape",
    "shares_memory", "size",
})


def array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """Implements Tensor.__array_ufunc__: np.add(t, 1), array + t, np.add.reduce(t).

    Raises TypeError for a ufunc or method that pullback does not have.
    """
    if any([_foreign(x) for x in inputs]):
        return NotImplemented
    shown = f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
    if options.get("out") is not None:
        raise TypeError(
            f"{shown}: out= with a tensor is not supported: tensors are immutable, and an array would lose the gradient. Use the "
            f"result (a = a + t instead of a += t), or give NumPy an array: t.numpy()."
        )
    if method == "reduce" and ufunc.__name__ in REDUCTIONS:
        options = {"axis": inputs[1] if len(inputs) > 1 else 0, **options}
        return _call(shown, public(REDUCTIONS[ufunc.__name__]), inputs[:1], options)
    if method == "accumulate" and ufunc.__name__ in SCANS:
        return _call(shown, public(SCANS[ufunc.__name__]), inputs[:1], {"axis": 0, **options})
    if method == "accumulate" and ufunc.__name__ in RUNNING:
        return _call(shown, public(RUNNING[ufunc.__name__]), inputs[:1], {"axis": inputs[1] if inputs[1:] else 0, **options}).values
    if method == "__call__" and ufunc.__name__ == "divmod":
        return _call(shown, public("floor_divide"), inputs, options), _call(shown, public("remainder"), inputs, options)
    function = public(our_name(ufunc.__name__)) if method == "__call__" else None
    if function is None:
        raise TypeError(_unknown(shown))
    return _call(shown, function, inputs, options)


def array_function(self: Tensor, func: Any, types: Any, args: Any, options: Any) -> Any:
    """Implements Tensor.__array_function__: np.sum(t), np.concatenate([t, u]).

    Raises TypeError for a function that pullback does not have.
    """
    if any([not issubclass(kind, (Tensor, np.ndarray)) for kind in types]):
        return NotImplemented
    name, module = func.__name__, str(func.__module__)
    shown = f"np.{module.partition('.')[2]}.{name}" if module in ("numpy.linalg", "numpy.fft") else f"np.{name}"
    if name in FACTS:
        found = func(*_as_arrays(args), **_as_arrays(options))
        if name == "copyto":  # also by np.full
            report_store(args[0], args[1], "np.copyto")
        return found
    ours = module in ("numpy", "numpy.lib.stride_tricks") and name in numpy_signatures.__all__
    adapter = getattr(numpy_signatures, name) if ours else None
    if adapter is not None:
        return adapter(*args, **_given(shown, options))
    function = public(our_name(name), module)
    if function is None:
        raise TypeError(_unknown(shown))
    return _call(shown, function, *_translated(shown, func, function, args, options))


def our_name(name: str) -> str:
    """Returns pullback's name of a NumPy function, which is the array API's name: asin for arcsin."""
    return "a" + name[3:] if name.startswith("arc") else RENAMED.get(name, name)


def public(name: str, module: str = "numpy") -> Callable[..., Any] | None:
    """Returns pullback's public function of that name, from pb or, for module "numpy.linalg", from pb.linalg; None if missing."""
    import pullback

    namespace = pullback if module == "numpy" else getattr(pullback, module.rpartition(".")[2], None)
    found = getattr(namespace, name, None)
    return found if inspect.isfunction(found) and str(found.__module__).partition(".")[0] == "pullback" else None


def _foreign(x: Any) -> bool:
    """True if x is an array of another library, which may handle the ufunc itself."""
    ours = isinstance(x, (Tensor, np.ndarray, np.generic)) or has(x, "__cuda_array_interface__")
    return not ours and has(x, "__array_ufunc__")


def _as_arrays(tree: Any) -> Any:
    """Returns the arguments with every tensor replaced by a NumPy array."""
    if isinstance(tree, Tensor):
        return np.asarray(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)([_as_arrays(x) for x in tree])
    if isinstance(tree, dict):
        return {key: _as_arrays(x) for key, x in tree.items()}
    return tree


def _unknown(shown: str) -> str:
    return (
        f"{shown}: pullback has no such function, and NumPy's would lose the gradient. Use pb.* functions (dir(pb) lists them), or "
        f"leave on purpose: {shown}(t.numpy(), ...)."
    )


def _given(shown: str, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options without NumPy's placeholders for missing values. Raises TypeError for where= and out=."""
    given = {k: v for k, v in options.items() if v is not np._NoValue}  # type: ignore[attr-defined]
    for name, instead in (("out", "use the result"), ("where", "choose with pb.where")):
        if given.get(name) is not None and given[name] is not True:
            raise TypeError(f"{shown}: {name}= with a tensor is not supported; {instead}, or give NumPy an array: t.numpy().")
    given.pop("where", None)
    return given


def _call(shown: str, function: Callable[..., Any] | None, inputs: Any, options: dict[str, Any]) -> Any:
    if function is None:
        raise TypeError(_unknown(shown))
    known = _parameters(function)
    harmless = {"casting": "same_kind", "order": "K", "subok": True}
    given = {k: v for k, v in _given(shown, options).items() if k in known or not (v is None or harmless.get(k) == v)}
    for name in given:
        if name not in known:
            raise TypeError(
                f"{shown}: {name}= with a tensor is not supported: pb.{function.__name__} takes ({', '.join(known)}). "
                f"Leave it out, or give NumPy an array: t.numpy()."
            )
    return function(*inputs, **given)


@cache
def _parameters(function: Callable[..., Any]) -> dict[str, Any]:
    found = inspect.signature(function).parameters
    return {name: p for name, p in found.items() if p.kind is not p.VAR_KEYWORD}


def _translated(shown: str, func: Any, function: Any, args: Any, options: Any) -> tuple[list[Any], dict[str, Any]]:
    """Returns NumPy's arguments as positional and named arguments of pullback's function.

    Required arguments go by position, other arguments by name. An argument that pullback's function does not have is left out if
    it has NumPy's default.
    """
    signature = _signature(func)
    bound = signature.bind(*args, **options)
    ours = _parameters(function)
    required = [p for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
    places = [p for p in ours.values() if p.kind is p.POSITIONAL_ONLY] + required
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for position, (name, value) in enumerate(bound.arguments.items()):
        default = signature.parameters[name].default
        name = OPTIONS.get(name, name)
        if position < len(places) and position == len(positional):
            positional.append(value)
        elif name in ours:
            named[name] = value
        elif not (value is default or (not has(value, "shape") and value == default)):
            named[name] = value  # _call raises an error that explains it
    return positional, named


@cache
def _signature(func: Any) -> inspect.Signature:
    return inspect.signature(func)


def attach() -> None:
    """Adds NumPy's protocols to Tensor, and the methods whose function has NumPy's meaning and not that of `pb`."""
    for name, protocol in (("__array_ufunc__", array_ufunc), ("__array_function__", array_function)):
        setattr(Tensor, name, protocol)
    for name in ("cumprod", "cumsum", "dot", "ravel", "take"):
        setattr(Tensor, name, getattr(numpy_signatures, name))
