"""A NaN in the input is in the result, as in NumPy and PyTorch: no function hides it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import FLOATS
from pullback.nn import functional as F

torch: Any = pytest.importorskip("torch", reason="torch is not installed: there is no other library to compare with")


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 3, 40, 300, 5000])  # each length is selected by another algorithm
def test_topk_takes_nan_for_the_largest_number(n: int, dtype: str, largest: bool) -> None:
    rng = np.random.default_rng(n)
    x = np.where(rng.random((3, n)) < 0.1, np.nan, rng.permutation(3 * n).reshape(3, n) / 64 - 2)  # exact in every dtype if few
    x[0, 0] = x[1, -1] = np.nan
    mine, theirs = pb.tensor(x).astype(dtype), torch.tensor(x).to(getattr(torch, dtype))
    for k in {1, n // 2, n}:
        wanted = theirs.topk(k, largest=largest).values.double().numpy()
        for axis, at in ((1, mine), (0, pb.tensor(mine.numpy().T))):
            values, indices = pb.topk(at, k, axis=axis, largest=largest)
            got = values.astype("float64").numpy()
            np.testing.assert_array_equal(got if axis else got.T, wanted)
            picked = np.take_along_axis(at.astype("float64").numpy(), indices.numpy(), axis)
            np.testing.assert_array_equal(picked, got)


def test_topk_of_batches_and_replays_has_nan_first() -> None:
    x = pb.tensor([[1.0, np.nan, 3.0], [np.nan, 2.0, np.nan]])
    for f in (lambda x: pb.topk(x, 2), pb.vmap(lambda x: pb.topk(x, 2)), pb.capture(lambda x: pb.topk(x, 2))):
        for _ in range(2):
            np.testing.assert_array_equal(f(x).values.numpy(), [[np.nan, 3.0], [np.nan, np.nan]])
            np.testing.assert_array_equal(f(x).indices.numpy(), [[1, 2], [0, 2]])
    gradient: Any = pb.grad(lambda x: pb.sum(pb.topk(x, 2).values * pb.tensor([2.0, 5.0])))(x)
    np.testing.assert_array_equal(gradient.numpy(), [[0.0, 2.0, 5.0], [2.0, 0.0, 5.0]])


# ---- every function that could pass NaN over

NUMBERS = np.array([0.3, -0.7, 1.9, 0.2, -2.2, 0.8], np.float32)
POSITIONS = [(0,), (3,), (5,), (1, 4), (0, 1, 2, 3, 4, 5)]
IDS = np.array([0, 0, 1, 1, 1, 0])
HALF = np.full(6, 0.5, np.float32)
UNCAPTURED = ("unique_values",)  # its shape depends on values, so that captured functions refuse it, and vmap has no rule


def of_torch(f: Callable[..., Any], *more: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda x: f(torch.tensor(x), *[torch.tensor(a) if isinstance(a, np.ndarray) else a for a in more], **options).numpy()


def of_segments(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: np.array([f(x[IDS == 0]), f(x[IDS == 1])])


def others(x: Any) -> pb.Tensor:
    return pb.tensor(HALF).astype(x.dtype)


def at_ids(name: str) -> Callable[[Any], Any]:
    return lambda x: getattr(pb.zeros(2, dtype=x.dtype).at[pb.tensor(IDS)], name)(x)


TF, LINE = torch.nn.functional, np.array([0.0, 1.0, 2.0], np.float32)
PAIRS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    **{
        name: (getattr(pb, name), getattr(np, name))
        for name in (
            "sum", "prod", "mean", "max", "min", "var", "std", "median", "argmax", "argmin", "sort", "argsort",
            "any", "all", "count_nonzero", "trapezoid", "diff", "sign", "round", "square", "abs", "isnan", "isfinite", "nansum",
            "nanmax", "nanmean", "nanmin",
        )
    },
    "quantile": (lambda x: pb.quantile(x, 0.3), lambda x: np.quantile(x, 0.3)),
    "percentile": (lambda x: pb.percentile(x, 99), lambda x: np.percentile(x, 99)),
    "cumulative_sum": (pb.cumulative_sum, np.cumsum), "cumulative_prod": (pb.cumulative_prod, np.cumprod),
    "cummax": (lambda x: pb.cummax(x)[0], np.maximum.accumulate),
    "cummin": (lambda x: pb.cummin(x)[0], np.minimum.accumulate),
    "cummax's indices": (lambda x: pb.cummax(x)[1], lambda x: torch.cummax(torch.tensor(x), 0)[1].numpy()),
    "logcumsumexp": (pb.logcumsumexp, of_torch(torch.logcumsumexp, 0)),
    "logsumexp": (pb.logsumexp, of_torch(torch.logsumexp, 0)),
    "softmax": (pb.softmax, of_torch(torch.softmax, 0)),
    "log_softmax": (pb.log_softmax, of_torch(torch.log_softmax, 0)),
    "clip": (lambda x: pb.clip(x, -1, 1), lambda x: np.clip(x, -1, 1)),
    "clip to NaN": (lambda x: pb.clip(others(x), x, 2), lambda x: np.clip(HALF, x, 2)),
    "clip below NaN": (lambda x: pb.clip(others(x), -2, x), lambda x: np.clip(HALF, -2, x)),
    "maximum": (lambda x: pb.maximum(x, 0.5), lambda x: np.maximum(x, 0.5)),
    "maximum of two": (lambda x: pb.maximum(others(x), x), lambda x: np.maximum(HALF, x)),
    "minimum": (lambda x: pb.minimum(x, 0.5), lambda x: np.minimum(x, 0.5)),
    "minimum of two": (lambda x: pb.minimum(others(x), x), lambda x: np.minimum(HALF, x)),
    "fmax": (lambda x: pb.fmax(x, 0), lambda x: np.fmax(x, 0)),
    "heaviside": (lambda x: pb.heaviside(x, 0.5), lambda x: np.heaviside(x, 0.5)),
    **{
        name: (getattr(F, name), of_torch(getattr(TF, name)))
        for name in (
            "relu", "relu6", "elu", "selu", "celu", "gelu", "silu", "mish", "hardtanh", "hardswish", "hardsigmoid", "softplus",
            "softsign", "leaky_relu", "logsigmoid", "tanhshrink", "softshrink", "hardshrink",
        )
        if hasattr(F, name)
    },
    "max_pool1d": (lambda x: F.max_pool1d(pb.reshape(x, (1, 1, 6)), 2), lambda x: of_torch(TF.max_pool1d, 2)(x.reshape(1, 1, 6))),
    "avg_pool1d": (lambda x: F.avg_pool1d(pb.reshape(x, (1, 1, 6)), 2), lambda x: of_torch(TF.avg_pool1d, 2)(x.reshape(1, 1, 6))),
    "max_pool2d": (lambda x: F.max_pool2d(pb.reshape(x, (1, 2, 3)), (2, 1)),
                   lambda x: of_torch(TF.max_pool2d, (2, 1))(x.reshape(1, 2, 3))),
    **{
        f"segment_{name}": (lambda x, name=name: getattr(pb, f"segment_{name}")(x, pb.tensor(IDS), 2), of_segments(f))
        for name, f in {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min,
                        "logsumexp": lambda x: np.log(np.exp(x).sum())}.items()
    },
    "segment_softmax": (lambda x: pb.segment_softmax(x, pb.tensor(IDS), 2), lambda x: np.exp(x) / of_segments(
        lambda part: np.exp(part).sum())(x)[IDS]),
    "at.max": (at_ids("max"), of_segments(lambda x: np.maximum(0, x.max()))),
    "at.min": (at_ids("min"), of_segments(lambda x: np.minimum(0, x.min()))),
    "at.add": (at_ids("add"), of_segments(np.sum)),
    **{
        f"vector norm {ord}": (lambda x, ord=ord: pb.linalg.vector_norm(x, ord=ord), lambda x, ord=ord: np.linalg.norm(x, ord=ord))
        for ord in (0, 0.5, 1, 2, 3, np.inf, -np.inf)
    },
    **{
        f"matrix norm {ord}": (lambda x, ord=ord: pb.linalg.matrix_norm(pb.reshape(x, (2, 3)), ord=ord),
                               lambda x, ord=ord: np.linalg.norm(x.reshape(2, 3), ord=ord))
        for ord in (1, -1, np.inf, -np.inf, "fro")
    },
    "unique_values": (pb.unique_values, lambda x: np.unique(x, equal_nan=False)),
    "searchsorted": (lambda x: pb.searchsorted(pb.tensor(LINE).astype(x.dtype), x), lambda x: np.searchsorted(LINE, x)),
    **{
        f"searchsorted of each, {side}": (lambda x, side=side: pb.searchsorted(pb.sort(x), x, side=side),
                                          lambda x, side=side: np.searchsorted(np.sort(x), x, side=side))
        for side in ("left", "right")
    },
    "sort, descending": (lambda x: pb.sort(x, descending=True), lambda x: np.sort(-x) * -1),
    "argsort, descending": (lambda x: pb.argsort(x, descending=True), lambda x: np.argsort(-x, kind="stable")),
    "topk": (lambda x: pb.topk(x, 3).indices, lambda x: np.argsort(np.where(np.isnan(x), -np.inf, -x), kind="stable")[:3]),
    "topk, smallest": (lambda x: pb.topk(x, 3, largest=False).indices, lambda x: np.argsort(x, kind="stable")[:3]),
    "searchsorted next to NaN": (
        lambda x: pb.searchsorted(pb.tensor([0.0, 1.0, 2.0, np.nan]).astype(x.dtype), x, side="right"),
        lambda x: np.searchsorted(np.array([*LINE, np.nan]), x, side="right"),
    ),
    **{
        name: (lambda x, name=name: getattr(F, name)(x, others(x)), of_torch(getattr(TF, theirs), HALF))
        for name, theirs in {"mse": "mse_loss", "l1": "l1_loss", "huber": "huber_loss", "smooth_l1": "smooth_l1_loss",
                             "bce_with_logits": "binary_cross_entropy_with_logits"}.items()
    },
    "cross_entropy": (
        lambda x: F.cross_entropy(pb.reshape(x, (2, 3)), pb.tensor([0, 1]), reduction="none"),
        lambda x: of_torch(TF.cross_entropy, np.array([0, 1]), reduction="none")(x.reshape(2, 3)),
    ),
    "layer_norm": (F.layer_norm, of_torch(TF.layer_norm, (6,))),
    "rms_norm": (F.rms_norm, of_torch(TF.rms_norm, (6,))),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", PAIRS)
def test_nan_is_where_other_libraries_have_it(name: str) -> None:
    mine, theirs = PAIRS[name]
    captured, each = pb.capture(mine), pb.vmap(mine)
    for places in POSITIONS:
        numbers = NUMBERS.copy()
        numbers[list(places)] = np.nan
        wanted = np.asarray(theirs(numbers))
        for dtype in FLOATS:
            x = pb.tensor(numbers).astype(dtype)
            results = [mine(x)] if name in UNCAPTURED else [mine(x), captured(x), captured(x), each(pb.stack([x, x]))[1]]
            for got in results:
                np.testing.assert_allclose(got.astype("float64").numpy(), wanted, rtol=0.03, atol=0.03)
