"""Reads the bounds of a minimisation, in the forms that SciPy and users of trees write them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ShapeError
from ..tensors.tensor import Tensor
from ..tree import with_nones
from .unknowns import Unknowns

FORMS = (
    "Give (lower, upper), each a number, None, an array or the structure of the parameters; or, for one vector, a list of tuples "
    "(lower, upper), one for each element."
)


def read_bounds(bounds: Any, unknowns: Unknowns, what: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the flat lower and upper bounds in float64, or None if there are none. Raises ShapeError or ValueError."""
    if bounds is None:
        return None
    if hasattr(bounds, "lb") and hasattr(bounds, "ub"):  # scipy.optimize.Bounds
        bounds = (bounds.lb, bounds.ub)
    if not isinstance(bounds, (tuple, list)):
        raise ShapeError(f"{what}: bounds is a {type(bounds).__name__}. {FORMS}")
    if _are_pairs(bounds, unknowns):
        lower = np.array([-np.inf if low is None else low for low, _ in bounds], np.float64)
        upper = np.array([np.inf if high is None else high for _, high in bounds], np.float64)
    elif len(bounds) == 2:
        lower, upper = [_flat(side, unknowns, what, sign) for side, sign in zip(bounds, (-1, 1))]
    else:
        raise ShapeError(f"{what}: bounds has {len(bounds)} entries for {unknowns.size} unknowns. {FORMS}")
    _check(lower, upper, what)
    return (lower, upper) if np.isfinite(lower).any() or np.isfinite(upper).any() else None


def _are_pairs(bounds: Any, unknowns: Unknowns) -> bool:
    """True for a pair of numbers (or None) per element of one vector, as SciPy's minimize takes bounds.

    For two elements, a tuple of two lists is (lower, upper), as SciPy's least_squares takes bounds.
    """
    if isinstance(bounds, tuple) and unknowns.size == 2 and all([isinstance(side, list) for side in bounds]):
        return False
    return len(bounds) == unknowns.size and all(
        [isinstance(pair, (tuple, list)) and len(pair) == 2 and all([x is None or np.isscalar(x) for x in pair]) for pair in bounds]
    )


def _flat(side: Any, unknowns: Unknowns, what: str, sign: int) -> np.ndarray:
    """Returns one side of the bounds as a flat vector. None means no bound."""
    name = "lower" if sign < 0 else "upper"
    if side is None:
        return np.full(unknowns.size, sign * np.inf)
    whole = not isinstance(side, (list, tuple, dict))
    if len(unknowns.slots) == 1 and not isinstance(side, dict):
        whole, side = True, _without_nones(side, sign)
    entries = [side] * len(unknowns.slots) if whole else with_nones(side)
    if len(entries) != len(unknowns.slots):
        raise ShapeError(f"{what}: {name} bounds for {len(entries)} tensors, but there are {len(unknowns.slots)}. {FORMS}")
    found: list[np.ndarray] = []
    for i, (entry, shape) in enumerate(zip(entries, unknowns.shapes)):
        value = np.asarray(entry.numpy() if isinstance(entry, Tensor) else sign * np.inf if entry is None else entry, np.float64)
        try:
            found.append(np.broadcast_to(value, shape).ravel())
        except ValueError:
            raise ShapeError(
                f"{what}: the {name} bounds of parameter {i} have shape {value.shape}, which does not broadcast to its shape "
                f"{shape}. {FORMS}"
            ) from None
    return np.concatenate(found)


def _without_nones(side: Any, sign: int) -> Any:
    return [sign * np.inf if x is None else x for x in side] if isinstance(side, (list, tuple)) else side


def _check(lower: np.ndarray, upper: np.ndarray, what: str) -> None:
    for name, side in (("lower", lower), ("upper", upper)):
        if np.isnan(side).any():
            raise ValueError(
                f"{what}: the {name} bound of element {np.isnan(side).argmax()} is NaN. Use None or infinity for none."
            )
    crossed = lower > upper
    if crossed.any():
        i = crossed.argmax()
        raise ValueError(
            f"{what}: the bounds of element {i} cross: the lower one is {lower[i]:g} and the upper one {upper[i]:g}. Exchange them."
        )
