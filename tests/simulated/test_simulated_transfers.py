"""Batches that are copied to a GPU while it computes, and numbers that are copied back.

Streams work as late as CUDA allows. A missing wait, pinned memory that is written again too early, or GPU memory that is reused too
early therefore gives wrong numbers every time.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import simulated
from interrupted import interrupted_after
from pullback.data import Loader, prefetch
from pullback.tensors import gpu, leases, transfers


def _why_not() -> str:
    if not simulated() or gpu.need().kernels is None:
        return "device cuda is not simulated: build with PULLBACK_CUDA=SIM"
    if os.environ.get("PULLBACK_CUDA_SYNC", "0") not in ("", "0"):
        return "every kernel is waited for (PULLBACK_CUDA_SYNC), so that no race can show"
    return ""


pytestmark = pytest.mark.skipif(bool(_why_not()), reason=_why_not())
X = np.random.default_rng(0).standard_normal((64, 50)).astype(np.float32)


@pytest.fixture(params=["copies", "kernels", "both", "neither"], autouse=True)
def late(request: pytest.FixtureRequest) -> Iterator[str]:
    """Makes the stream of copies late, pullback's stream, or both."""
    found = gpu.need()
    streams = {"copies": found.copy_stream(0), "kernels": found.stream_address(0)}
    names = [name for name in streams if request.param in (name, "both")]
    for name in names:
        found.kernels.simulator.make_late(streams[name], True)
    with pb.use_device("cuda"):
        yield request.param
    for name in names:
        found.kernels.simulator.make_late(streams[name], False)
    leases.settle(wait=True)


def mapped(folder: Path) -> Any:
    np.save(folder / "x.npy", X)
    return np.load(folder / "x.npy", mmap_mode="r")


def test_the_copies_really_are_late(late: str) -> None:
    uploads = transfers.Uploads(0)
    held = uploads.pinned(X.nbytes).view(np.float32)
    held[:] = 1
    array = uploads.upload(held)
    moment = uploads.moment()
    assert uploads.passed(moment) == (late in ("kernels", "neither"))
    held[:] = 2
    uploads.wait()
    assert array.view(np.ndarray)[0] == (2 if late in ("copies", "both") else 1)
    assert late in ("kernels", "neither") or uploads.passed(moment)


def test_kernels_read_batches_that_have_arrived(tmp_path: Path) -> None:
    loader, wanted = Loader(mapped(tmp_path), 4), Loader(X, 4, device="cpu")
    for _ in range(2):
        sums = [pb.sum(batch * 2, axis=1) for batch in loader]
        for got, batch in zip(sums, wanted, strict=True):
            np.testing.assert_array_equal(got.numpy(), pb.sum(batch * 2, axis=1).numpy())


def test_batches_that_are_kept_stay_as_they_are(tmp_path: Path) -> None:
    loader, wanted = Loader(mapped(tmp_path), 4), [batch.numpy() for batch in Loader(X, 4, device="cpu")]
    for got, right in zip([*loader], wanted, strict=True):
        np.testing.assert_array_equal(got.numpy(), right)


def test_memory_of_a_batch_is_reused_only_after_its_last_reader(tmp_path: Path) -> None:
    loader, wanted = Loader(mapped(tmp_path), 4), [batch.numpy() for batch in Loader(X, 4, device="cpu")]
    results = []
    for batch in loader:
        for _ in range(3):
            batch = batch + 1  # the batch is dropped while kernels that read it are still to run
        results.append(batch)
    for got, right in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(got.numpy(), right + np.float32(1) + np.float32(1) + np.float32(1))


def test_a_loop_that_is_left_early_keeps_the_batch_and_the_next_loop_its_pinned_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: list[Any] = []
    made: list[Any] = []

    class Lent:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __del__(self) -> None:
            free.append(self.array)

    def pinned(nbytes: int, number: int) -> np.ndarray[Any, Any]:
        """A pool that hands out again at once what was dropped, as CuPy's does."""
        from pullback.tensors.simulated import owned_memory  # only simulator builds have it

        if not free:
            made.append(allocate(nbytes, number))
            free.append(made[-1])
        array = free.pop()
        return np.ndarray(nbytes, np.uint8, owned_memory(array.ctypes.data, nbytes, Lent(array)))

    allocate = gpu.need().pinned
    monkeypatch.setattr(gpu.need(), "pinned", pinned)
    loader, wanted, kept = Loader(mapped(tmp_path), 4), Loader(X, 4, device="cpu"), []
    for _ in range(4):
        for batch in loader:
            kept.append(batch + 0)
            break
    assert len(made) == prefetch.AHEAD + prefetch.FLYING
    for got in kept:
        for right in wanted:
            np.testing.assert_array_equal(got.numpy(), right.numpy())
            break


def test_captured_steps_take_batches_that_have_arrived(tmp_path: Path) -> None:
    step = pb.capture(lambda x: pb.sum(x * x, axis=1), steps=2)
    loader, wanted = Loader(mapped(tmp_path), 8), Loader(X, 8, device="cpu")
    got = [step(loader) for _ in range(6)]
    with pb.use_device("cpu"):
        for y in got:
            (x,) = wanted.gather(wanted.next_rows(2))
            np.testing.assert_array_equal(y.numpy(), pb.stack([pb.sum(a * a, axis=1) for a in x]).numpy())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ctrl-C in a finalizer is lost
def test_epochs_that_are_interrupted_anywhere_leave_nothing_that_slows_down_or_spoils_later_ones(tmp_path: Path) -> None:
    loader, wanted = (
        Loader(mapped(tmp_path), 8, shuffle=False),
        [batch.numpy() for batch in Loader(X, 8, shuffle=False, device="cpu")],
    )
    leases.settle(wait=True)
    lines = 0
    while True:
        kept: list[Any] = []
        more = interrupted_after(lines, lambda kept=kept: kept.extend(loader))
        for got, right in zip(kept, wanted):
            np.testing.assert_array_equal(got.numpy(), right)
        lines += 5
        if not more:
            break
        assert lines < 4000, "each interrupt leaves memory behind, at which later epochs look again and again"
    assert len(kept) == len(wanted)
    assert len(leases._pending) + len(leases._unknown) <= leases.MOST + 2 * len(wanted)


def test_a_full_gpu_is_told_in_the_batchs_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, landing, calls = Loader(mapped(tmp_path), 16, shuffle=False), gpu.need().landing, []

    def full(shape: Any, dtype: Any, number: int) -> Any:
        calls.append(shape)
        if 3 <= len(calls) <= 3 + more:
            raise MemoryError("no room")
        return landing(shape, dtype, number)

    take = prefetch.Reader.take
    monkeypatch.setattr(prefetch.Reader, "take", lambda self, wait=True: take(self))  # the thread has always read the next batch
    monkeypatch.setattr(gpu.need(), "landing", full)
    more = 1  # both attempts to send the third batch ahead fail, and the attempt in its turn does not
    assert np.array_equal(np.concatenate([batch.numpy() for batch in loader]), X)
    calls.clear()
    more, seen = 10, []
    with pytest.raises(pb.OutOfMemoryError, match=r"a batch of shape \(16, 50\) does not fit on the GPU"):
        seen.extend(loader)
    assert len(seen) == 2
    for thread in threading.enumerate():
        if thread.name == "pullback-loader":
            thread.join(5)
            assert not thread.is_alive()


def test_a_number_comes_back_when_it_is_complete(late: str) -> None:
    loss = pb.sum(pb.tensor(X))
    download = transfers.Download(loss.array)
    if late in ("kernels", "both"):
        assert download.value() is None
        pb.cuda.synchronize()
    value = download.value()
    assert value is not None
    assert value.tobytes() == loss.numpy().tobytes()
    assert download.done()


def test_a_bar_shows_what_the_gpu_has_computed_and_does_not_wait(late: str) -> None:
    text = io.StringIO()
    bar, losses = pb.data.progress(range(5), file=text, mininterval=0), []
    for i in bar:
        losses.append(pb.sum(pb.tensor(X[:1]) * 0) + i)
        bar.update(loss=losses[-1])
        if i == 3:
            pb.cuda.synchronize()
    shown = re.findall(r"loss=(\d)", text.getvalue())
    if late in ("kernels", "both"):
        assert shown == ["0", "0", "0"]  # after the steps 3 and 4, and at the end; the copy of number 3 has not run
    else:
        assert shown == ["0", "1", "2", "3", "4", "4"]
