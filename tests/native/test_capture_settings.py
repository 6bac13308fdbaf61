"""A setting of a layer that is changed after the recording takes effect, or raises, as it does in the eager layer."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from pullback import nn

pytestmark = needs_kernels


def floats(*shape: int) -> Any:
    return pb.tensor(np.random.default_rng(0).standard_normal(shape), dtype=pb.float32)


IMAGES, ROWS, SERIES = floats(2, 4, 6, 6), floats(3, 4), floats(2, 5, 4)
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "Linear": (lambda: nn.Linear(4, 3), (ROWS,)),
    "Bilinear": (lambda: nn.Bilinear(4, 4, 2), (ROWS, ROWS)),
    "Embedding": (lambda: nn.Embedding(7, 3, padding_idx=2), (pb.tensor([1, 2, 3]),)),
    "Conv1d": (lambda: nn.Conv1d(4, 4, 3, padding=1), (floats(2, 4, 6),)),
    "Conv2d": (lambda: nn.Conv2d(4, 4, 3, padding=1), (IMAGES,)),
    "Dropout": (lambda: nn.Dropout(0.5), (ROWS,)),
    "LeakyReLU": (lambda: nn.LeakyReLU(0.1), (ROWS,)),
    "ELU": (lambda: nn.ELU(0.5), (ROWS,)),
    "CELU": (lambda: nn.CELU(0.5), (ROWS,)),
    "Softplus": (lambda: nn.Softplus(2.0), (ROWS,)),
    "Threshold": (lambda: nn.Threshold(0.1, 3.0), (ROWS,)),
    "Hardtanh": (lambda: nn.Hardtanh(-0.5, 0.5), (ROWS,)),
    "Softshrink": (lambda: nn.Softshrink(0.2), (ROWS,)),
    "GELU": (lambda: nn.GELU(), (ROWS,)),
    "PReLU": (lambda: nn.PReLU(), (ROWS,)),
    "GLU": (lambda: nn.GLU(), (ROWS,)),
    "Softmax": (lambda: nn.Softmax(axis=-1), (ROWS,)),
    "LayerNorm": (lambda: nn.LayerNorm(4), (ROWS,)),
    "RMSNorm": (lambda: nn.RMSNorm(4), (ROWS,)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), (ROWS,)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), (IMAGES,)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (IMAGES,)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4), (IMAGES,)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (IMAGES,)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), (IMAGES,)),
    "Flatten": (lambda: nn.Flatten(), (IMAGES,)),
    "RNN": (lambda: nn.RNN(4, 3), (SERIES,)),
    "GRU": (lambda: nn.GRU(4, 3), (SERIES,)),
    "LSTM": (lambda: nn.LSTM(4, 3), (SERIES,)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2), (SERIES, SERIES, SERIES)),
    "Sequential": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (ROWS,)),
    "CosineSimilarity": (lambda: nn.CosineSimilarity(), (ROWS, ROWS + 1)),
    "CrossEntropyLoss": (lambda: nn.CrossEntropyLoss(), (ROWS, pb.tensor([0, 1, 2]))),
    "HuberLoss": (lambda: nn.HuberLoss(), (ROWS, ROWS + 1)),
}


def others(value: Any) -> list[Any]:
    """Returns values that a setting may be given instead."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, float):
        return [0.0, value * 0.5, value + 0.25]
    if isinstance(value, int):
        return [value + 1, 1, 2]
    if isinstance(value, str):
        return ["sum", "none", "mean", "tanh", "relu", "zeros"]
    if isinstance(value, tuple) and value and all([isinstance(x, int) for x in value]):
        return [(1,) * len(value), (2,) * len(value)]
    if isinstance(value, dict):
        return [{key: other for key, x in value.items() for other in others(x)[:1]}]
    return [None, 0.5] if value is None else []


def outcome(function: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """Returns the bytes of the results, or "error"."""
    pb.random.seed(3)
    try:
        return [x.numpy().tobytes() for x in pb.tree.flatten(function(*inputs))[0] if isinstance(x, pb.Tensor)]
    except Exception:
        return "error"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in LAYERS if hasattr(nn, name)])
def test_a_changed_setting_has_the_effect_that_it_has_in_the_eager_layer(name: str) -> None:
    make, inputs = LAYERS[name]
    pb.random.seed(0)
    layer, compared = make(), 0
    start = {key: value for key, value in vars(layer).items() if not key.startswith("__")}
    for setting, value in start.items():
        for other in others(value):
            eager, seen = copy.deepcopy(layer), copy.deepcopy(layer)
            captured = pb.capture(seen)
            assert outcome(captured, inputs) == outcome(eager, inputs)
            for now in (other, value):
                for changed in (eager, seen):
                    with contextlib.suppress(pb.PullbackError):  # what takes no such value
                        setattr(changed, setting, now)
                assert outcome(captured, inputs) == outcome(eager, inputs), f"{setting} = {now!r}"
                compared += 1
    assert compared or name in ("PReLU", "Sequential")
