"""debug_nans and ops whose optional inputs are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn
from pullback.nn import functional as F

HUGE = np.array([[1e30, -1e30, 1.0, 2.0], [2e30, 1e30, 2.0, 3.0]], np.float32)
CALLS: dict[str, Callable[[Any], Any]] = {
    "layer_norm": lambda x: F.layer_norm(x * 1.5),
    "linear": lambda x: F.linear(x * 1e10, pb.ones((3, 4))),
    "conv1d": lambda x: F.conv1d(x[:, None] * 1e10, pb.ones((1, 1, 2))),
    "conv2d": lambda x: F.conv2d(x[:, None, None] * 1e10, pb.ones((1, 1, 1, 2))),
    "batch_norm": nn.BatchNorm1d(4, affine=False),
    "group_norm": lambda x: F.group_norm(x * 1e10, 2),
    "bilinear": lambda x: F.bilinear(x, x, pb.ones((2, 4, 4))),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_first_nan_is_named_where_an_optional_input_is_left_out(name: str) -> None:
    x = pb.tensor(HUGE)
    with pb.debug_nans():
        CALLS[name](x * 1e-30)
    with pb.debug_nans(), pytest.raises(pb.NonFiniteError, match=r"made the first (nan|inf|-inf), at index .*test_debug_nans"):
        CALLS[name](x * 1e8)
