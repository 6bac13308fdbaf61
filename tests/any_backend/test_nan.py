"""A NaN in the input is in the result, as in NumPy and PyTorch: no function hides it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import FLOATS


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 3, 40, 300, 5000])  # each length is selected by another algorithm
def test_topk_takes_nan_for_the_largest_number(n: int, dtype: str, largest: bool) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: there is no other library to compare with")
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
