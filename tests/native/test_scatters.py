"""Scatters of few and of many updates: every target receives its updates in the order of the indices, on every device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host, simulated
from pullback.autodiff.tape import Tape
from pullback.ops.gather import scatter_add

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not pb.cuda.is_available(), reason=str(pb.cuda.why_not())))]
# Up to this many updates of one target are combined one after the other on every device. A GPU combines more in chunks of this
# size.
IN_ORDER = 256
# A target's float32 updates are added up in blocks of this size, and the blocks in float64.
BLOCK = 32

# (updates, targets, columns). The kernels differ: one block, ranks, or a sort. Updates hit all targets, few targets or one
# target.
CASES = [(1, 1, 1), (64, 1000, 12), (256, 3, 5), (257, 300, 4), (3000, 40, 3), (5000, 70000, 1), (9000, 9000, 2), (700, 1, 6)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with pb.use_device(request.param):
        yield request.param


def updates_for(case: tuple[int, int, int], dtype: Any) -> tuple[Any, Any]:
    n, targets, columns = case
    rng = np.random.default_rng(n)
    values = rng.standard_normal((n, columns)) if np.dtype(dtype).kind == "f" else rng.integers(0, 100, (n, columns))
    return values.astype(dtype), rng.integers(-targets, targets, n)


def in_order(case: tuple[int, int, int], values: Any, indices: Any) -> Any:
    """Adds up each target's updates in order: in float32 in blocks, whose sums are added up in float64."""
    in_blocks, targets = values.dtype in (np.float16, np.float32), indices % case[1]
    rows = values.astype(np.float32) if in_blocks else values
    y = np.zeros((case[1], case[2]), rows.dtype)
    for target in np.unique(targets):
        own = rows[targets == target]
        size = BLOCK if in_blocks else len(own)
        sums = [np.add.accumulate(own[i : i + size], axis=0, dtype=own.dtype)[-1] for i in range(0, len(own), size)]
        y[target] = np.add.accumulate(np.stack(sums).astype(np.float64 if in_blocks else own.dtype), axis=0)[-1]
    return y.astype(values.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "uint64"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sums_are_in_order(device: str, case: tuple[int, int, int], dtype: str) -> None:
    values, indices = updates_for(case, dtype)
    wanted = in_order(case, values, indices)
    y = host(scatter_add(pb.asarray(values), pb.asarray(indices), wanted.shape, 0))
    hits = np.bincount(indices % case[1], minlength=case[1])
    exact = hits <= IN_ORDER if values.dtype.kind == "f" else hits >= 0
    assert y[exact].tobytes() == wanted[exact].tobytes()
    tolerance = {2: 2e-3, 4: 1e-6, 8: 1e-14, 1: 0}[values.dtype.itemsize]
    error = np.abs(y.astype(np.float64) - wanted.astype(np.float64))[~exact]
    assert np.all(error <= tolerance * np.sqrt(case[0]) * 4)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_last_write_stays(device: str, case: tuple[int, int, int]) -> None:
    values, indices = updates_for(case, "float32")
    wanted = np.zeros((case[1], case[2]), np.float32)
    wanted[indices] = values
    assert np.array_equal(host(pb.zeros(wanted.shape).at[pb.asarray(indices)].set(values)), wanted)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_nan_wins(device: str, case: tuple[int, int, int]) -> None:
    values, indices = updates_for(case, "float32")
    values[:: case[0] // 3 + 1] = np.nan
    wanted = np.zeros((case[1], case[2]), np.float32)
    np.maximum.at(wanted, indices, values)
    assert np.array_equal(host(pb.zeros(wanted.shape).at[pb.asarray(indices)].max(values)), wanted, equal_nan=True)


@pytest.mark.parametrize("length", [1, 20, 33, 900, 1500])
def test_each_column_has_its_own_indices(device: str, length: int) -> None:
    rng = np.random.default_rng(length)
    values, indices = rng.standard_normal((3, length, 4)), rng.integers(0, 50, (3, length, 4))
    x = pb.zeros((3, 50, 4), dtype="float64")
    with Tape() as tape:
        tape.watch(x)
        y = pb.take_along_axis(x, pb.asarray(indices), axis=1)
    wanted = np.zeros(x.shape)
    grid = np.ogrid[:3, :length, :4]
    np.add.at(wanted, (grid[0], indices, grid[2]), values)
    assert host(tape.gradient(y, x, output_gradients=pb.asarray(values))).tobytes() == wanted.tobytes()


@pytest.mark.skipif(not simulated(), reason="schedules are those of the simulated device")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_schedule_changes_a_bit(case: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    values, indices = updates_for(case, "float32")
    results = set()
    with pb.use_device("cuda"):
        for seed in range(6):
            monkeypatch.setenv("CUDASIM_SEED", str(seed))
            y = pb.zeros((case[1], case[2])).at[pb.asarray(indices)]
            results.add(b"".join(host(z).tobytes() for z in (y.add(values), y.min(values), y.set(values))))
    assert len(results) == 1
