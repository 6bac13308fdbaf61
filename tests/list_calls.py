"""A call of every public function that takes arrays, in which tests replace an array by nested lists of tensors.

`CASES[name]` is (function, arrays). The functions of one array and no other argument are found in the namespaces.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import numpy as np

import pullback as pb
from pullback.nn import functional as F

RNG: Final = np.random.default_rng(11)
A, B = [RNG.permutation(np.linspace(0.15, 0.85, 6)).reshape(2, 3) + shift for shift in (0.0, 0.03)]
SQUARE: Final = np.array([[2.0, 0.3], [0.4, 1.5]])
IMAGE: Final = RNG.permutation(np.linspace(-1.0, 1.0, 16)).reshape(1, 1, 4, 4)
Case = tuple[Callable[..., Any], tuple[Any, ...]]

# Functions that read the values on the host, which have no derivative, and `nextafter`, which has none and no kernel.
WITHOUT_VALUES: Final = frozenset(
    ["argwhere", "nextafter", "nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values", "result_type"]
)

GIVEN: Final[dict[str, Case]] = {
    "astype": (lambda x: pb.astype(x, pb.float32), (A,)),
    "broadcast_to": (lambda x: pb.broadcast_to(x, (4, 2, 3)), (A,)),
    "expand_dims": (lambda x: pb.expand_dims(x, 0), (A,)),
    "full": (lambda x: pb.full((3, 2), x), (A[0, 0],)),
    "full_like": (lambda x, value: pb.full_like(x, value), (A, B[0, 0])),
    "linspace": (lambda a, b: pb.linspace(a, b, 4), (A[0, 0], B[0, 0])),
    "arange": (lambda a, b: pb.arange(a, 4.0, b), (A[0, 0], B[0, 0])),
    "pad": (lambda x: pb.pad(x, 1), (A,)),
    "pad value": (lambda x, value: pb.pad(x, 1, value=value), (A, B[0, 0])),
    "pad values": (lambda x, values: pb.pad(x, 1, constant_values=values), (A, SQUARE)),
    "clip": (pb.clip, (A, B - 0.1, B + 0.1)),
    "moveaxis": (lambda x: pb.moveaxis(x, 0, 1), (A,)),
    "swapaxes": (lambda x: pb.swapaxes(x, 0, 1), (A,)),
    "permute_dims": (lambda x: pb.permute_dims(x, (1, 0)), (A,)),
    "reshape": (lambda x: pb.reshape(x, (3, 2)), (A,)),
    "roll": (lambda x: pb.roll(x, 1), (A,)),
    "repeat": (lambda x: pb.repeat(x, 2, axis=1), (A,)),
    "split": (lambda x: pb.split(x, 3, axis=1), (A,)),
    "squeeze": (lambda x: pb.squeeze(x), (A[:1],)),
    "tile": (lambda x: pb.tile(x, (2, 1)), (A,)),
    "topk": (lambda x: pb.topk(x, 2).values, (A,)),
    "unfold": (lambda x: pb.unfold(x, 1, 2, 1), (A,)),
    "cummax": (lambda x: pb.cummax(x, 1).values, (A,)),
    "cummin": (lambda x: pb.cummin(x, 1).values, (A,)),
    "cumulative_sum": (lambda x: pb.cumulative_sum(x, axis=1), (A,)),
    "cumulative_prod": (lambda x: pb.cumulative_prod(x, axis=1), (A,)),
    "logcumsumexp": (lambda x: pb.logcumsumexp(x, axis=1), (A,)),
    "leaky_relu": (lambda x: pb.leaky_relu(x, 0.1), (A - 0.5,)),
    "diff": (pb.diff, (A,)),
    "diff with ends": (lambda x, a, b: pb.diff(x, prepend=a, append=b), (A, A[:, :1], B[:, :1])),
    "linear_recurrence": (pb.linear_recurrence, (A, B)),
    "where": (lambda a, b: pb.where(pb.tensor(A > 0.5), a, b), (A, B)),
    "searchsorted": (pb.searchsorted, (np.sort(A[0]), B[0])),
    "take": (lambda x: pb.take(x, [2, 0], axis=1), (A,)),
    "take_along_axis": (lambda x: pb.take_along_axis(x, pb.tensor([[1], [0]]), 1), (A,)),
    "concat": (lambda a, b: pb.concat([a, b]), (A, B)),
    "stack": (lambda a, b: pb.stack([a, b]), (A, B)),
    "broadcast_arrays": (lambda a, b: pb.broadcast_arrays(a, b), (A, B[:1])),
    "meshgrid": (lambda a, b: pb.meshgrid(a, b), (A[0], B[0])),
    "outer": (pb.outer, (A[0], B[1])),
    "einsum": (lambda a, b: pb.einsum("ij,kj->ik", a, b), (A, B)),
    "matmul": (pb.matmul, (A, B.T.copy())),
    "tensordot": (lambda a, b: pb.tensordot(a, b, axes=2), (A, B)),
    "operator @": (lambda a, b: pb.asarray(a) @ b, (A, B.T.copy())),
    "operator *": (lambda a, b: pb.asarray(a) * b, (A, B)),
    "operator -, reflected": (lambda a, b: a - pb.asarray(b), (A, B)),
    "operator **": (lambda a, b: pb.asarray(a) ** b, (A, B)),
    "at.set": (lambda x, v: pb.asarray(x).at[0].set(v), (A, B[0])),
    "at.add": (lambda x, v: pb.asarray(x).at[:, 1].add(v), (A, B[:, 0].copy())),
    "at.multiply": (lambda x, v: pb.asarray(x).at[1].multiply(v), (A, B[1])),
    "at.max": (lambda x, v: pb.asarray(x).at[1].max(v), (A, B[1])),
    "quantile": (lambda x, q: pb.quantile(x, q), (A, B[0])),
    "median": (pb.median, (A,)),
    "nanmean": (pb.nanmean, (A,)),
    "polygamma": (lambda x: pb.polygamma(1, x), (A,)),
    "erfinv": (pb.erfinv, (A,)),
    "acosh": (pb.acosh, (A + 1.0,)),
    "trapezoid": (pb.trapezoid, (A, np.cumsum(B[0]))),
    **{f"bitwise_{name}": (getattr(pb, f"bitwise_{name}"), (np.array([5, 6]), np.array([1, 2])))
       for name in ("and", "or", "xor", "left_shift", "right_shift")},
    "bitwise_invert": (pb.bitwise_invert, (np.array([5, 6]),)),
    "one_hot": (lambda x: pb.one_hot(x, 4), (np.array([2, 0]),)),
    **{f"segment_{name}": (lambda x, name=name: getattr(pb, f"segment_{name}")(x, [0, 1, 0], num_segments=2), (A.T.copy(),))
       for name in ("logsumexp", "max", "mean", "min", "softmax", "sum")},
    # linear algebra
    **{name: (getattr(pb.linalg, name), (SQUARE,))
       for name in ("det", "inv", "slogdet", "svdvals", "trace", "diagonal", "matrix_norm", "norm", "vector_norm", "pinv", "qr",
                    "matrix_rank")},
    "matrix_power": (lambda x: pb.linalg.matrix_power(x, 3), (SQUARE,)),
    "svd": (lambda x: pb.linalg.svd(x)[1], (SQUARE,)),
    **{name: (lambda x, name=name: getattr(pb.linalg, name)(pb.matmul(x, pb.matrix_transpose(pb.asarray(x)))), (SQUARE,))
       for name in ("cholesky", "eigvalsh")},
    "eigh": (lambda x: pb.linalg.eigh(pb.matmul(x, pb.matrix_transpose(pb.asarray(x))))[0], (SQUARE,)),
    "matrix_function": (lambda x: pb.linalg.matrix_function(x, pb.exp), (SQUARE,)),
    "solve": (pb.linalg.solve, (SQUARE, SQUARE.T.copy())),
    "solve_triangular": (lambda a, b: pb.linalg.solve_triangular(a, b, upper=False), (np.tril(SQUARE), SQUARE)),
    "lstsq": (lambda a, b: pb.linalg.lstsq(a, b)[0], (A.T.copy(), B.T.copy())),
    "cross": (pb.linalg.cross, (A, B)),
    # networks
    "linear": (F.linear, (A, B, B[:, 0].copy())),
    "bilinear": (F.bilinear, (A, B, RNG.normal(size=(2, 3, 3)), B[:, 0].copy())),
    "conv1d": (F.conv1d, (IMAGE[0], IMAGE.reshape(2, 4, 2), B[:, 0].copy())),
    "conv2d": (F.conv2d, (IMAGE, IMAGE[:, :, :2, :2].copy(), B[0, :1].copy())),
    "conv_transpose1d": (F.conv_transpose1d, (IMAGE[0], IMAGE.reshape(4, 2, 2), B[:, 0].copy())),
    "conv_transpose2d": (F.conv_transpose2d, (IMAGE, IMAGE[:, :, :2, :2].copy(), B[0, :1].copy())),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 2), (IMAGE[0],)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), (IMAGE,)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), (IMAGE[0],)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (IMAGE,)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 2), (IMAGE,)),
    "dropout": (lambda x: F.dropout(x, 0.5, training=False), (A,)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, w, b), (A, B[0], B[1])),
    "rms_norm": (lambda x, w: F.rms_norm(x, w), (A, B[0])),
    "group_norm": (lambda x, w, b: F.group_norm(x, 1, w, b), (A, B[0], B[1])),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (A, B[0], B[1])),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, None, None, w, b), (IMAGE, B[0, :1].copy(), B[1, :1].copy())),
    **{name: (getattr(F, name), (A, B)) for name in ("huber", "kl_div", "l1", "mse", "smooth_l1", "binary_cross_entropy",
                                                       "bce_with_logits")},
    "nll": (lambda x, w: F.nll(x, [1, 2], weight=w), (A, B[0])),
    "cross_entropy": (lambda x, w: F.cross_entropy(x, [1, 2], weight=w), (A, B[0])),
    "cross_entropy of shares": (F.cross_entropy, (A, B)),
    "rotary": (F.rotary, (IMAGE,)),
    "scaled_dot_product_attention": (F.scaled_dot_product_attention, (IMAGE, IMAGE[:, :, ::-1].copy(), IMAGE * 0.5)),
    "prelu": (F.prelu, (A - 0.5, B[0])),
    "cosine_similarity": (F.cosine_similarity, (A, B)),
    "normalize": (F.normalize, (A,)),
    "pairwise_distance": (F.pairwise_distance, (A, B)),
}


def arrays_of(function: Any) -> list[str]:
    """Returns the names of the function's parameters that take arrays."""
    return [p.name for p in inspect.signature(function).parameters.values() if "ArrayLike" in str(p.annotation)]


def public() -> dict[str, Any]:
    """Returns the public functions that take arrays, by name."""
    found = {}
    for space in (F, pb.linalg, pb):
        for name in dir(space):
            function = getattr(space, name)
            if inspect.isfunction(function) and arrays_of(function) and name not in WITHOUT_VALUES:
                found[name] = function
    return found


CASES: Final[dict[str, Case]] = {
    **{name: (f, (A, B)[: len(arrays_of(f))]) for name, f in public().items() if name not in GIVEN}, **GIVEN,
}
