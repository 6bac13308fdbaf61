"""The functions that are composed of ops: for each a call, the function that gives the right values, and arguments.

The arguments avoid kinks and ties, so that every derivative exists. `CASES[name]` is (ours, theirs, arrays).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.special

import pullback as pb
from pullback.nn import functional as F

RNG: Final = np.random.default_rng(7)
A, B = [RNG.permutation(np.linspace(-3.1, 3.3, 12)).reshape(3, 4) + shift for shift in (0.0, 0.03)]
GAPS = A.copy()
GAPS[0, 1] = GAPS[2, 2] = GAPS[2, 0] = np.nan
CUBE = RNG.permutation(np.linspace(-2.0, 2.0, 24)).reshape(2, 3, 4)
POSITIVE = np.abs(A) + 0.2
SHARES = RNG.permutation(np.linspace(0.03, 0.97, 12)).reshape(3, 4)
STEP = np.cumsum(POSITIVE[0])


class Case(NamedTuple):
    """One function: `ours` on tensors, `theirs` on arrays, and the arrays."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    arrays: tuple[Any, ...]


def numpys(name: str, *arrays: Any, ours: str | None = None, **options: Any) -> Case:
    """Returns a case whose function has NumPy's name, or `ours`, and NumPy's options."""
    of_pb, of_np = getattr(pb, ours or name), getattr(np, name)
    return Case(lambda *xs: of_pb(*xs, **options), lambda *xs: of_np(*xs, **options), arrays)


def unfolded(x: Any) -> Any:
    return np.lib.stride_tricks.sliding_window_view(x, 3, axis=1)[:, ::2]


def cosine(a: Any, b: Any) -> Any:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def log_sums(x: Any) -> Any:
    return np.stack([scipy.special.logsumexp(x[:, : k + 1], axis=1) for k in range(x.shape[1])], axis=1)


CASES: Final[dict[str, Case]] = {
    # extremes, remainders, logarithms, angles
    **{name: numpys(name, A, B) for name in ("fmax", "fmin", "fmod")},
    "heaviside": Case(
        lambda h: pb.heaviside(pb.tensor(np.round(A), dtype=h.dtype), h), lambda h: np.heaviside(np.round(A), h), (B,)
    ),
    "xlogy": Case(pb.xlogy, scipy.special.xlogy, (A, POSITIVE)),
    "xlog1py": Case(pb.xlog1py, scipy.special.xlog1py, (A, POSITIVE - 0.9)),
    "logit": Case(pb.logit, scipy.special.logit, (SHARES,)),
    "logit eps": Case(lambda x: pb.logit(x, 0.25), lambda x: scipy.special.logit(np.clip(x, 0.25, 0.75)), (SHARES,)),
    **{name: numpys(name, A) for name in ("sinc", "deg2rad", "rad2deg")},
    "sinc near 0": numpys("sinc", A / 30),
    **{f"polygamma {n}": Case(lambda x, n=n: pb.polygamma(n, x), lambda x, n=n: scipy.special.polygamma(n, x), (POSITIVE + 0.5,))
       for n in range(4)},
    "polygamma below 0": Case(lambda x: pb.polygamma(3, x), lambda x: scipy.special.polygamma(3, x), (-0.6 * SHARES - 1.2,)),
    "lgamma below 0": Case(pb.lgamma, scipy.special.gammaln, (-0.6 * SHARES - 1.2,)),
    "digamma below 0": Case(pb.digamma, scipy.special.digamma, (-0.6 * SHARES - 1.2,)),
    # reductions without NaN
    **{f"{name} {axis}": numpys(name, GAPS, axis=axis)
       for name in ("nansum", "nanprod", "nanmean", "nanmax", "nanmin", "nanvar", "nanstd", "nanmedian") for axis in (None, 0)},
    **{name: numpys(name, GAPS, axis=1) for name in ("nancumsum", "nancumprod")},
    "nanvar ddof": numpys("nanvar", GAPS, axis=1, ddof=1, keepdims=True),
    "nanquantile": Case(lambda x: pb.nanquantile(x, [0.1, 0.75], 1), lambda x: np.nanquantile(x, [0.1, 0.75], 1), (GAPS,)),
    # quantiles
    **{f"quantile {way}": Case(lambda x, way=way: pb.quantile(x, [0.15, 0.7], 1, method=way),
                               lambda x, way=way: np.quantile(x, [0.15, 0.7], 1, method=way), (A,))
       for way in ("linear", "lower", "higher", "midpoint", "nearest")},
    "quantile of q": Case(lambda x, q: pb.quantile(x, q, axis=0), lambda x, q: np.quantile(x, q, axis=0), (A, SHARES[0])),
    "percentile": Case(lambda x: pb.percentile(x, 30.0), lambda x: np.percentile(x, 30.0), (A,)),
    "median": numpys("median", CUBE, axis=(0, 2)),
    # along an axis
    "trapezoid": numpys("trapezoid", A, STEP),
    "trapezoid dx": numpys("trapezoid", A, dx=0.3, axis=0),
    "cummax": Case(lambda x: pb.cummax(x, 1).values, lambda x: np.maximum.accumulate(x, 1), (A,)),
    "cummin": Case(lambda x: pb.cummin(x, 0).values, lambda x: np.minimum.accumulate(x, 0), (A,)),
    "logcumsumexp": Case(lambda x: pb.logcumsumexp(x, 1), log_sums, (A,)),
    "unfold": Case(lambda x: pb.unfold(x, 1, 3, 2), unfolded, (CUBE.reshape(3, 8),)),
    **{f"pad {mode}": Case(*[lambda x, pad=pad, mode=mode: pad(x, ((1, 2), (3, 0)), mode) for pad in (pb.pad, np.pad)], (A,))
       for mode in ("constant", "reflect", "symmetric", "edge", "wrap")},
    "pad values": Case(*[lambda x, pad=pad: pad(x, 1, constant_values=((1, 2), (3, 4))) for pad in (pb.pad, np.pad)], (A,)),
    # matrices
    "diag of a vector": numpys("diag", A[0], k=-1),
    "diag": numpys("diag", A, k=1),
    "diagonal": numpys("diagonal", CUBE, offset=1, axis1=2, axis2=0),
    "trace": numpys("trace", CUBE, offset=-1, axis1=1, axis2=2),
    **{f"rot90 {k}": numpys("rot90", CUBE, k=k, axes=(2, 0)) for k in range(4)},
    "kron": numpys("kron", A, CUBE),
    "inner": numpys("inner", A, CUBE),
    "tensordot": Case(lambda a, b: pb.tensordot(a, b, axes=(0, 1)), lambda a, b: np.tensordot(a, b, axes=(0, 1)), (A, CUBE)),
    # functions of networks that are not activations
    "normalize": Case(F.normalize, lambda x: x / np.linalg.norm(x, axis=1, keepdims=True), (A,)),
    "cosine_similarity": Case(F.cosine_similarity, cosine, (A, B)),
    "pairwise_distance": Case(F.pairwise_distance, lambda a, b: np.linalg.norm(a - b + 1e-6, axis=-1), (A, B)),
    "prelu": Case(F.prelu, lambda x, w: np.where(x > 0, x, w * x), (A, SHARES[0])),
    "smooth_l1": Case(lambda x, z: F.smooth_l1(x, z, beta=0.7, reduction="none"),
                      lambda x, z: np.where(abs(x - z) < 0.7, (x - z) ** 2 / 1.4, abs(x - z) - 0.35), (A, POSITIVE)),
    "binary_cross_entropy": Case(F.binary_cross_entropy,
                                 lambda p, z: -(z * np.log(p) + (1 - z) * np.log(1 - p)).mean(), (SHARES, SHARES[::-1].copy())),
}
