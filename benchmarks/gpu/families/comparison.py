"""Compares what a family computed on the device with what the CPU computed, and says where they differ."""

from __future__ import annotations

from typing import Any

import numpy as np

# The largest difference that is allowed, relative to the largest element of a result: sums may run in another order, and half
# precision is rounded once.
BY_DTYPE = {"float64": 1e-11, "float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


def allowed_for(dtype: Any, factor: float = 1.0) -> float:
    """Returns the difference that is allowed for a dtype, times a factor if the dtype is not of half precision. 0: equal bits."""
    return BY_DTYPE.get(str(dtype), 0.0) * (factor if factor == 0 or str(dtype) in ("float32", "float64") else 1.0)


def difference(got: Any, wanted: Any) -> float:
    """Returns the largest difference of two arrays over the largest element, or inf if shapes, dtypes or infinities differ."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return float("inf")
    if got.dtype.kind in "iub":
        return 0.0 if np.array_equal(got, wanted) else float("inf")
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return float("inf")
    a, b = a[finite], b[finite]
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) if a.size else 0.0


def unequal(got: Any, wanted: Any) -> Any:
    """Returns where the bits of two arrays of one shape and dtype differ. All NaNs are equal."""
    bits = np.dtype(f"u{got.dtype.itemsize}")
    differ = np.ascontiguousarray(got).view(bits) != np.ascontiguousarray(wanted).view(bits)
    if got.dtype.kind in "fV":
        differ &= ~(np.isnan(got.astype(np.float64)) & np.isnan(wanted.astype(np.float64)))
    return differ


def wrong_elements(got: Any, wanted: Any, allowed: float) -> Any:
    """Returns where two arrays of one shape and dtype differ by more than is allowed. 0: where their bits do."""
    if allowed == 0.0 or got.dtype.kind in "iub":
        return unequal(got, wanted)
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    largest = np.abs(b[finite]).max(initial=1e-30)
    with np.errstate(invalid="ignore"):
        return np.where(finite, ~(np.abs(a - b) <= allowed * largest), ~((a == b) | (np.isnan(a) & np.isnan(b))))


def compared(got: Any, wanted: Any, allowed: float) -> dict[str, Any] | None:
    """Returns None if two arrays agree, otherwise what is wrong: how many elements, the first one, and both values of it."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return {"got": f"{got.dtype}{list(got.shape)}", "wanted": f"{wanted.dtype}{list(wanted.shape)}"}
    shape = got.shape
    got, wanted = got.reshape(shape or 1), wanted.reshape(shape or 1)
    wrong = wrong_elements(got, wanted, allowed)
    if not wrong.any():
        return None
    first = tuple([int(i) for i in np.argwhere(wrong)[0]])
    last = tuple([int(i) for i in np.argwhere(wrong)[-1]])
    return {
        "of": f"{got.dtype}{list(shape)}", "elements": int(wrong.sum()), "first": list(first), "last": list(last),
        "got": str(got[first]), "wanted": str(wanted[first]), "difference": difference(got, wanted), "allowed": allowed,
    }


def as_line(case: str, part: int, found: dict[str, Any]) -> str:
    """Returns what compared() or an exception says about a result, as one line."""
    if "error" in found:
        return f"{case}: {found['error']}"
    if "of" not in found:
        return f"{case} [{part}]: {found['got']}, not {found['wanted']}"
    return (
        f"{case} [{part}] {found['of']}: {found['elements']} differ, from {found['first']} to {found['last']}; there "
        f"{found['got']}, not {found['wanted']}; relative to the largest {found['difference']:.2g}, allowed {found['allowed']:.2g}"
    )
