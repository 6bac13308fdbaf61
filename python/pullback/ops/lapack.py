"""References of the factorisations: NumPy's or CuPy's linalg on batches of matrices, with errors that name the matrix at fault.

A library reports only that some matrix of a batch has failed. The functions here then look at the matrices one by one, on the host.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator
from typing import Any, Final

import numpy as np

from ..launch.refusal import CALLERS, NOT_FINITE, NOT_POSITIVE, SINGULAR, ZERO_ON_DIAGONAL, bad_matrix

FROM_LAPACK: Final = "LAPACK or cuSOLVER computes it, and its rounding depends on the library and the machine"
SMALL_ON_CPU: Final = f"if a matrix has more than 32 rows or is on a GPU, {FROM_LAPACK}"


def caller(name: str) -> int:
    """Returns the parameter that makes errors of `solve`, `pinv` and `svdvals` name one of CALLERS. 0 and 1 mean their own name."""
    return 2 + CALLERS.index(name)


@contextlib.contextmanager
def failures(xp: Any) -> Generator[None]:
    """Makes CuPy raise LinAlgError where NumPy does. By default it does not look at cuSOLVER's status."""
    if xp.__name__ != "cupy":
        yield
        return
    with importlib.import_module("cupyx").errstate(linalg="raise"):
        yield


def on_host(a: Any) -> Any:
    return a.get() if hasattr(a, "get") else np.asarray(a)


def mT(a: Any) -> Any:
    return a.swapaxes(-1, -2)


def symmetric(a: Any) -> Any:
    """Returns the symmetric part of each matrix, which is the matrix itself, bit for bit, if that is symmetric."""
    return 0.5 * a + 0.5 * mT(a)


def require_finite(xp: Any, name: str, a: Any, caller: int = 0) -> None:
    """Raises LinAlgError if a matrix has an element that is NaN or infinite, with which an iteration would not converge."""
    if a.size and not bool(xp.isfinite(a).all()):
        place = next(place for place in np.ndindex(a.shape[:-2]) if not np.isfinite(on_host(a[place])).all())
        raise bad_matrix(name, NOT_FINITE, place, caller=caller)


# ---- Cholesky


def cholesky(xp: Any, x: Any) -> Any:
    """Returns the lower Cholesky factors of the symmetric parts. Raises LinAlgError if one is not positive definite."""
    a = symmetric(x)
    require_finite(xp, "cholesky", a)
    try:
        with failures(xp):
            return xp.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        place, minor = next(
            (place, minor) for place in np.ndindex(a.shape[:-2]) if (minor := _first_bad_minor(on_host(a[place]))) is not None
        )
    raise bad_matrix("cholesky", NOT_POSITIVE, place, minor)


def _first_bad_minor(a: Any) -> int | None:
    """Returns the size of the smallest leading block that has no Cholesky factor, or None if the matrix has one."""

    def factored(size: int) -> bool:
        try:
            np.linalg.cholesky(a[:size, :size])
        except np.linalg.LinAlgError:
            return False
        return True

    good, bad = 0, len(a)
    if factored(bad):
        return None
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if factored(middle) else (good, middle)
    return bad


# ---- linear systems


def solve_triangular(xp: Any, a: Any, b: Any, upper: Any, unit: Any, strict: Any) -> Any:
    """Returns a⁻¹ b, reading one triangle of a. LU with pivoting leaves an upper triangle as it is, so this is back substitution.

    If a diagonal element is zero, raises LinAlgError or, if not `strict`, returns NaN for that matrix.
    """
    one = xp.eye(a.shape[-1], dtype=bool)
    a = xp.triu(a) if upper else xp.tril(a)
    if unit:
        a = xp.where(one, xp.ones((), a.dtype), a)
    zero = a.diagonal(axis1=-2, axis2=-1) == 0
    if strict and bool(zero.any()):
        *place, row = map(int, np.argwhere(on_host(zero))[0])
        raise bad_matrix("solve_triangular", ZERO_ON_DIAGONAL, tuple(place), row)
    return _solved(xp, a, b) if upper else _solved(xp, a[..., ::-1, ::-1], b[..., ::-1, :])[..., ::-1, :]


def solve(xp: Any, a: Any, b: Any, strict: Any) -> Any:
    """Returns a⁻¹ b by LU with partial pivoting. If a is singular, raises LinAlgError or, if `strict` is 0, returns NaN.

    strict: see `caller`.
    """
    if not strict:
        return _solved(xp, a, b)
    try:
        with failures(xp):
            return xp.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        place = next((place for place in np.ndindex(a.shape[:-2]) if _is_singular(a[place])), ())
    raise bad_matrix("solve", SINGULAR, place, caller=strict)


def _solved(xp: Any, a: Any, b: Any) -> Any:
    """Returns a⁻¹ b, with NaN for matrices that are singular."""
    try:
        with failures(xp):
            return xp.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        bad = np.zeros(a.shape[:-2], bool)
        for place in np.ndindex(a.shape[:-2]):
            bad[place] = _is_singular(a[place])
        bad = xp.asarray(bad)[..., None, None]
        y = xp.linalg.solve(xp.where(bad, xp.eye(a.shape[-1], dtype=a.dtype), a), b)
        return xp.where(bad, xp.full((), xp.nan, y.dtype), y)


def _is_singular(a: Any) -> bool:
    try:
        np.linalg.inv(on_host(a))
    except np.linalg.LinAlgError:
        return True
    return False


# ---- determinants


def slogdet(xp: Any, x: Any) -> Any:
    """Returns the sign and the logarithm of the absolute determinant along a new last axis."""
    return xp.stack(xp.linalg.slogdet(x), -1)


def cofactors(xp: Any, x: Any) -> Any:
    """Returns the matrices of cofactors.

    With x = u diag(s) v they are det(u v) u diag(p) v, where p_i is the product of all s but s_i.
    """
    u, s, v = svd_where_finite(xp, x)
    ones = xp.ones_like(s[..., :1])
    before = xp.cumprod(xp.concatenate([ones, s[..., :-1]], -1), -1)
    after = xp.cumprod(xp.concatenate([ones, s[..., :0:-1]], -1), -1)[..., ::-1]
    sign = xp.where(xp.linalg.det(u) * xp.linalg.det(v) < 0, -ones[..., 0], ones[..., 0])[..., None, None]
    return sign * ((u * (before * after)[..., None, :]) @ v) if s.shape[-1] else xp.zeros_like(x)


def svd_where_finite(xp: Any, x: Any) -> tuple[Any, Any, Any]:
    """Returns the thin singular value decompositions, with NaN for matrices that have an element that is NaN or infinite."""
    good = xp.isfinite(x).all((-2, -1))[..., None, None]
    u, s, v = xp.linalg.svd(xp.where(good, x, xp.zeros((), x.dtype)), full_matrices=False)
    nan = xp.full((), xp.nan, x.dtype)
    return xp.where(good, u, nan), xp.where(good[..., 0], s, nan), xp.where(good, v, nan)


# ---- results packed into one array


def _with_mark(xp: Any, values: Any, *below: Any) -> Any:
    """Returns a row of zeros, the values as a row, and what belongs below."""
    row = values[..., None, :]
    return xp.concatenate([xp.zeros_like(row), row, *below], -2)


def eigh(xp: Any, x: Any) -> Any:
    """Returns a row of zeros, the eigenvalues of the symmetric parts, and the eigenvectors below."""
    a = symmetric(x)
    require_finite(xp, "eigh", a)
    with failures(xp):
        w, v = xp.linalg.eigh(a)
    return _with_mark(xp, w, v)


def eigvalsh(xp: Any, x: Any) -> Any:
    """Returns a row of zeros and the eigenvalues of the symmetric parts."""
    a = symmetric(x)
    require_finite(xp, "eigvalsh", a)
    with failures(xp):
        return _with_mark(xp, xp.linalg.eigvalsh(a))


def svd(xp: Any, x: Any, full: Any) -> Any:
    """Returns a row of zeros, the singular values as a row, u and v, one above the other; zeros fill the rows that are shorter."""
    require_finite(xp, "svd", x)
    with failures(xp):
        u, s, v = xp.linalg.svd(x, full_matrices=bool(full))
    parts = [s[..., None, :], u, mT(v)]
    columns = max(part.shape[-1] for part in parts)
    y = xp.zeros((*x.shape[:-2], 1 + sum(part.shape[-2] for part in parts), columns), x.dtype)
    row = 1
    for part in parts:
        y[..., row : row + part.shape[-2], : part.shape[-1]] = part
        row += part.shape[-2]
    return y


def svdvals(xp: Any, x: Any, called: Any) -> Any:
    """Returns a row of zeros and the singular values. called: see `caller`."""
    require_finite(xp, "svdvals", x, called)
    with failures(xp):
        return _with_mark(xp, xp.linalg.svd(x, compute_uv=False))


def qr(xp: Any, x: Any, complete: Any) -> Any:
    """Returns q, and below it the transposed r."""
    with failures(xp):
        q, r = xp.linalg.qr(x, mode="complete" if complete else "reduced")
    return xp.concatenate([q, mT(r)], -2)


def pinv(xp: Any, x: Any, rtol: Any, values: Any) -> Any:
    """Returns the pseudo-inverses; singular values of at most rtol times the largest count as zero.

    values: below each, one row with the singular values, filled with zeros, unless it is 0; see `caller`.
    """
    require_finite(xp, "pinv", x, values)
    with failures(xp):
        u, s, v = xp.linalg.svd(x, full_matrices=False)
    kept = s > rtol[..., None] * s.max(-1, initial=0)[..., None]
    one, zero = xp.ones((), s.dtype), xp.zeros((), s.dtype)
    y = mT(v) @ mT(xp.where(kept[..., None, :], u / xp.where(kept, s, one)[..., None, :], zero))
    if not values:
        return y
    row = xp.concatenate([s, xp.zeros((*s.shape[:-1], x.shape[-2] - s.shape[-1]), s.dtype)], -1)
    return xp.concatenate([y, row[..., None, :]], -2)
