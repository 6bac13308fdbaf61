"""Reads the bounds of a minimisation, in the forms that SciPy and users of trees write them."""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np

from ..duck import has
from ..errors import ArgumentError, ShapeError
from ..tensors.tensor import Tensor
from ..tree import unflatten, with_nones
from .arguments import real_array
from .unknowns import Unknowns

FORMS = (
    "Give (lower, upper), each a number, None, an array or the structure of the parameters; or, for one vector, a list of pairs "
    "(lower, upper), one for each element."
)
PAIRS_HINT = (
    "If these are pairs (min, max), one for each element, as minimize takes bounds: here bounds are (lower, upper), which "
    "tuple(zip(*pairs)) makes of pairs, with -inf and inf in place of None."
)


def read_bounds(bounds: Any, unknowns: Unknowns, solver: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the flat lower and upper bounds in float64, or None if there are none. Raises ShapeError or ArgumentError."""
    if bounds is None:
        return None
    if has(bounds, "lb") and has(bounds, "ub"):  # scipy.optimize.Bounds
        bounds = (bounds.lb, bounds.ub)
    if isinstance(bounds, (np.ndarray, Tensor)) and bounds.ndim:
        bounds = np.asarray(bounds.numpy() if isinstance(bounds, Tensor) else bounds).tolist()
    if not isinstance(bounds, (tuple, list)):
        raise ShapeError(f"{solver}: bounds is a {type(bounds).__name__}. {FORMS}")
    if len(bounds) == unknowns.size and looks_like_pairs(bounds):
        _refuse_ambiguous(bounds, unknowns, solver)
        sides = [filled(side, sign * np.inf) for side, sign in zip(zip(*bounds), (-1, 1))]
        lower, upper = [real_array(solver, "bounds", side) for side in sides]
    elif len(bounds) == 2:
        lower, upper = [_flat(side, unknowns, solver, sign) for side, sign in zip(bounds, (-1, 1))]
    else:
        raise ShapeError(f"{solver}: bounds has {len(bounds)} entries for {unknowns.size} unknowns. {FORMS}")
    _check(lower, upper, solver)
    return (lower, upper) if np.isfinite(lower).any() or np.isfinite(upper).any() else None


def looks_like_pairs(bounds: Any) -> bool:
    """True for a sequence of pairs of numbers or None, whatever sequences they are. Two arrays are a lower and an upper side."""
    if isinstance(bounds, (np.ndarray, Tensor)):
        return bounds.ndim == 2 and bounds.shape[1] == 2
    kinds = (tuple, list) if len(bounds) == 2 else (tuple, list, np.ndarray)
    return len(bounds) > 0 and all(
        [isinstance(pair, kinds) and len(pair) == 2 and all([x is None or np.isscalar(x) for x in pair]) for pair in bounds]
    )


def pairs_hint(bounds: Any, size: int) -> str:
    """Returns a hint, after a space, for pairs where (lower, upper) are wanted, or nothing."""
    return f" {PAIRS_HINT}" if len(bounds) == size and looks_like_pairs(bounds) else ""


def _refuse_ambiguous(pairs: Any, unknowns: Unknowns, solver: str) -> None:
    """Raises ArgumentError for two pairs of numbers for two unknowns, which may as well be the lower and the upper side.

    SciPy's minimize reads them as pairs, and its least_squares as sides. Only pairs have a None.
    """
    if unknowns.size == 2 and all([x is not None for pair in pairs for x in pair]):
        raise ambiguous(pairs, len(unknowns.slots), solver)


def ambiguous(pairs: Any, tensors: int, solver: str) -> ArgumentError:
    """Returns the error for two pairs that could be the bounds of each of two unknowns, or two sides. tensors: holding the two."""

    def spelled(lower: Any, upper: Any) -> str:
        sides = [f"np.array([{a}, {b}])" if tensors == 1 else f"[np.array({a}), np.array({b})]" for a, b in (lower, upper)]
        return f"bounds=({', '.join(sides)})"

    return ArgumentError(
        f"{solver}: bounds={pairs!r} is ambiguous for two unknowns: a pair (min, max) for each of them, as in SciPy's minimize, or "
        f"(lower, upper), as in its least_squares. Write {spelled(*zip(*pairs))} for the pairs, or {spelled(*pairs)} for "
        f"(lower, upper); or give scipy.optimize.Bounds(lower, upper)."
    )


def _flat(side: Any, unknowns: Unknowns, solver: str, sign: int) -> np.ndarray:
    """Returns one side of the bounds as a flat vector. None means no bound."""
    name = "lower" if sign < 0 else "upper"
    if side is None:
        return np.full(unknowns.size, sign * np.inf)
    whole = not isinstance(side, (list, tuple, dict))
    if len(unknowns.slots) == 1 and not isinstance(side, dict):
        whole = True
    entries = [side] * len(unknowns.slots) if whole else _entries(side, unknowns)
    if len(entries) != len(unknowns.slots):
        raise ShapeError(
            f"{solver}: the {name} bounds {reprlib.repr(side)} do not fit the {len(unknowns.slots)} tensors of params. {FORMS}"
        )
    found: list[np.ndarray] = []
    for i, (entry, shape) in enumerate(zip(entries, unknowns.shapes)):
        value = real_array(solver, "bounds", filled(entry, sign * np.inf))
        try:
            found.append(np.broadcast_to(value, shape).ravel())
        except ValueError:
            raise ShapeError(
                f"{solver}: the {name} bounds of parameter {i} have shape {value.shape}, which does not broadcast to its shape "
                f"{shape}. {FORMS}"
            ) from None
    return np.concatenate(found)


def _entries(side: Any, unknowns: Unknowns) -> list[Any]:
    """Returns the part of a side, which is a list, a tuple or a dict, for each unknown. If it has another structure than the
    parameters, returns its entries, or nothing if it is a dict."""
    held = prefix(unflatten(unknowns.spec, list(range(len(unknowns.held)))), side)
    if len(held) == len(unknowns.held):
        return [entry for entry, x in zip(held, unknowns.held) if x.trainable]
    return [] if isinstance(side, dict) else with_nones(side)


def filled(side: Any, value: float) -> Any:
    """Returns the bounds of one tensor with a number in place of each None."""
    if side is None:
        return value
    return [filled(x, value) for x in side] if isinstance(side, (list, tuple)) else side


def prefix(tree: Any, given: Any) -> list[Any]:
    """Returns the part of `given` that stands at the place of each leaf of nested lists, tuples and dicts, whose leaves are 0, 1, …

    Returns fewer parts if `given` has another structure.
    """
    parts = dict(_placed(tree, given))
    return [parts[i] for i in sorted(parts)]


def _placed(tree: Any, given: Any) -> list[tuple[int, Any]]:
    if isinstance(tree, dict) and isinstance(given, dict) and tree.keys() == given.keys():
        return [part for key in tree for part in _placed(tree[key], given[key])]
    if isinstance(tree, (list, tuple)) and isinstance(given, (list, tuple)) and len(tree) == len(given):
        return [part for x, y in zip(tree, given) for part in _placed(x, y)]
    return [(tree, given)] if isinstance(tree, int) else []


def _check(lower: np.ndarray, upper: np.ndarray, solver: str) -> None:
    for name, side in (("lower", lower), ("upper", upper)):
        if np.isnan(side).any():
            raise ArgumentError(
                f"{solver}: the {name} bound of element {np.isnan(side).argmax()} is NaN. Use None or infinity for none."
            )
    crossed = lower > upper
    if crossed.any():
        i = crossed.argmax()
        raise ArgumentError(
            f"{solver}: the bounds of element {i} cross: the lower one is {lower[i]:g} and the upper one {upper[i]:g}. "
            f"Exchange them."
        )
