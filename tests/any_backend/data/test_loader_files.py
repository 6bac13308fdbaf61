"""A Loader of memory-mapped files, or of arrays that stay on the host, has the batches of arrays in memory, read by a thread."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import environment, host
from pullback import nn
from pullback.data import Loader, prefetch, sources
from pullback.tensors import devices

ROWS = 22
X = np.random.default_rng(0).standard_normal((ROWS, 3, 5)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 9, ROWS)
LAYOUTS: dict[str, Any] = {
    "plain": X,
    "big-endian": X.astype(">f4"),
    "Fortran order": np.asfortranarray(X),
    "large rows": np.random.default_rng(2).standard_normal((ROWS, 600)),
    "bool": X > 0,
    "float16": X.astype(np.float16),
    "rows of nothing": X[:, :0],
    "one axis": Y.astype(np.uint8),
}


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, prefetch._Thread)]


def all_ended() -> bool:
    """True if no thread reads. A thread that a loop has waited for may still be in the last lines of Python's Thread."""
    for thread in threads():
        thread.join(5)
    return not threads()


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    gc.collect() if threads() else None
    assert all_ended()


def mapped(folder: Path, array: Any, name: str = "x") -> Any:
    np.save(folder / f"{name}.npy", array)
    return np.load(folder / f"{name}.npy", mmap_mode="r")


def bits(batch: Any) -> list[Any]:
    return [(str(t.dtype), t.shape, t.device, host(t).tobytes()) for t in (batch if isinstance(batch, tuple) else (batch,))]


def epochs(loader: Loader[Any], count: int = 2) -> list[Any]:
    return [bits(batch) for batch in [batch for _ in range(count) for batch in loader]]


# ---- the same batches


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_of_a_file_are_those_of_the_array(layout: str, shuffle: bool, tmp_path: Path) -> None:
    array = LAYOUTS[layout]
    x, y = mapped(tmp_path, array), mapped(tmp_path, Y, "y")
    for drop_last in (False, True):
        options: dict[str, Any] = {"shuffle": shuffle, "seed": 3, "drop_last": drop_last}
        wanted = epochs(Loader((array, Y), 5, **options))
        assert len(wanted) == (8 if drop_last else 10)
        for given in ((x, y), (x, Y), (Y, x), (tmp_path / "x.npy", str(tmp_path / "y.npy"))):
            for from_host in (None, True, False):
                got = epochs(Loader(given, 5, from_host=from_host, **options))
                assert (got if given[0] is not Y else [batch[::-1] for batch in got]) == wanted


@pytest.mark.parametrize("given", [X, pb.tensor(X, device="cpu"), X.tolist(), X[::-1].transpose(0, 2, 1), memoryview(X)], ids=type)
def test_arrays_in_memory_can_stay_on_the_host(given: Any) -> None:
    assert epochs(Loader(given, 4, from_host=True)) == epochs(Loader(given, 4))


def test_views_of_a_map_are_read_like_it(tmp_path: Path) -> None:
    x = mapped(tmp_path, X)
    for view in (lambda a: a[3:15], lambda a: np.asarray(a)[::-2], lambda a: a.transpose(1, 0, 2), lambda a: a.view(np.int32)):
        assert Loader(view(x), 4).reads_host
        assert epochs(Loader(view(x), 4)) == epochs(Loader(view(X), 4))
    for apart in (x + 1, x[[1, 2, 3, 4]], np.array(x)):
        assert not Loader(apart, 4).reads_host
    assert not Loader(x, 4, from_host=False).reads_host


def test_bfloat16_is_a_view_of_what_numpy_saves(tmp_path: Path) -> None:
    array = X.astype(ml_dtypes.bfloat16)
    x = mapped(tmp_path, array).view(ml_dtypes.bfloat16)
    assert Loader(x, 4).reads_host
    assert epochs(Loader(x, 4)) == epochs(Loader(array, 4))


def test_bytes_of_bools_that_are_neither_0_nor_1_become_true(tmp_path: Path) -> None:
    x = mapped(tmp_path, np.array([0, 1, 2, 255], np.uint8)).view(bool)
    ((batch),) = Loader(x, 4, shuffle=False)
    assert host(batch).view(np.uint8).tolist() == [0, 1, 1, 1]


def test_a_file_without_rows_has_no_batches(tmp_path: Path) -> None:
    x = mapped(tmp_path, X[:0])
    assert (len(Loader(x, 4)), [*Loader(x, 4)]) == (0, [])


def test_later_writes_to_a_map_do_not_change_batches_that_were_yielded(tmp_path: Path) -> None:
    mapped(tmp_path, np.zeros(8))
    x = np.load(tmp_path / "x.npy", mmap_mode="r+")
    for batch in Loader(x, 8, shuffle=False):
        x[:] = 1
        assert not host(batch).any()


def test_a_network_that_float64_files_make_wide_warns(tmp_path: Path) -> None:
    x, net = mapped(tmp_path, np.ones((4, 2))), nn.Linear(2, 1)
    for batch in Loader(x, 4):
        with pytest.warns(pb.PrecisionWarning, match="a NumPy array of dtype float64 was given"):
            net(batch)


def test_a_file_larger_than_the_memory_is_read_row_by_row(tmp_path: Path) -> None:
    if not (statm := Path("/proc/self/statm")).exists():
        pytest.skip("the system does not tell the resident memory in /proc/self/statm")
    rows, width = 1 << 15, 1 << 17  # 16 GiB of zeros, of which the disk holds nothing
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (rows, width))
    x[7] = 7
    del x
    resident = lambda: int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    loader, before = Loader((tmp_path / "x.npy", np.arange(rows)), 2), resident()
    for (a, row), _ in zip(loader, range(20)):
        assert host(a).any() == (7 in host(row))
    assert resident() - before < 200 << 20


# ---- positions


@pytest.mark.parametrize("stop", range(7))
def test_positions_count_yielded_batches_and_not_those_that_were_read(stop: int, tmp_path: Path) -> None:
    def stream(loader: Loader[Any]) -> Iterator[Any]:
        for _ in range(3):
            for batch in loader:
                yield bits(batch)

    x = mapped(tmp_path, X)
    whole, first, again = [*stream(Loader(X, 8))], Loader(x, 8, seed=0), Loader(x, 8, seed=5)
    source = stream(first)
    begun = [next(source) for _ in range(stop)]
    again.load_state_dict(first.state_dict())
    assert (begun + [*stream(again)])[: len(whole)] == whole
    assert first.epoch == (stop // 3 if stop else 0)


def test_two_iterations_at_once_are_two_epochs(tmp_path: Path) -> None:
    x = mapped(tmp_path, X)
    both, wanted = Loader(x, 4), Loader(X, 4)
    pairs = [(bits(a), bits(b)) for a, b in zip(both, both)]
    assert [list(epoch) for epoch in zip(*pairs)] == [epochs(wanted, 1), epochs(wanted, 1)]


def test_a_loop_that_is_left_early_ends_its_thread(tmp_path: Path) -> None:
    loader = Loader(mapped(tmp_path, X), 4)
    for _ in loader:
        assert len(threads()) == 1
        break
    assert all_ended()
    with pytest.raises(ZeroDivisionError):
        [1 // 0 for _ in loader]
    kept = iter(loader)
    next(kept)
    assert loader.state_dict().items() >= {"epoch": 2, "batches": 1, "seed": 0}.items()
    del kept


def test_an_error_of_the_thread_is_raised_at_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, loader = sources.Source.read, Loader(mapped(tmp_path, X), 4, shuffle=False)

    def fails(self: Any, rows: Any, to: Any) -> None:
        if rows.start == 8:
            raise kind("the disk is gone")
        read(self, rows, to)

    monkeypatch.setattr(sources.Source, "read", fails)
    for kind, wanted in ((OSError, pb.PullbackError), (MemoryError, pb.OutOfMemoryError)):
        seen = []
        with pytest.raises(
            wanted, match=rf"batch 2 of the epoch could not be read \({kind.__name__}: the disk is gone\)"
        ) as caught:
            seen.extend(loader)
        assert type(caught.value.__cause__) is kind
        assert loader.state_dict()["batches"] == 2
        assert all_ended()


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_the_loop_and_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = threading.Event()

    def stuck(*_: Any) -> None:
        began.set()
        assert end.wait(10)

    def interrupt() -> None:
        assert began.wait(10)
        signal.raise_signal(signal.SIGINT)
        end.set()

    end, loader = threading.Event(), Loader(mapped(tmp_path, X), 4)
    monkeypatch.setattr(sources.Source, "read", stuck)
    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        next(iter(loader))
    other.join()
    monkeypatch.undo()
    assert epochs(loader, 1) == epochs(Loader(X, 4), 2)[len(loader) :]


def test_where_no_thread_can_start_the_loop_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", cannot)
    x = mapped(tmp_path, X)
    assert epochs(Loader(x, 4)) == epochs(Loader(X, 4))
    loader = Loader(x, 4, shuffle=False)
    monkeypatch.setattr(sources.Source, "read", lambda *_: 1 // 0)
    with pytest.raises(pb.PullbackError, match="batch 0 of the epoch could not be read"):
        list(loader)


LEFT_OPEN = """
import os, sys
import numpy as np
import pullback as pb
x = np.load(sys.argv[1], mmap_mode="r")
loader, other = pb.data.Loader(x, 4), pb.data.Loader(np.array(x), 4)
batches, wanted = iter(loader), iter(other)
assert next(batches).tolist() == next(wanted).tolist()
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
rest = [batch.tolist() for batch in batches]
assert rest == [batch.tolist() for batch in wanted], "the rest of the epoch"
open_ones = [iter(loader) for _ in range(2)]
print([next(batch).shape for batch in open_ones])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_reads_on_and_open_loops_do_not_keep_a_program_from_ending(tmp_path: Path) -> None:
    mapped(tmp_path, X)
    run = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", LEFT_OPEN, str(tmp_path / "x.npy")]
    done = subprocess.run(run, env=environment(PULLBACK_DEVICE="cpu"), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["[(4, 3, 5), (4, 3, 5)]"] * 2


# ---- captured functions


def rows_of(loader: Loader[Any], steps: int | None, calls: int) -> list[Any]:
    step = pb.capture(lambda x, y: (x * 2, y), steps=steps)
    return [(*[host(t).tobytes() for t in step(loader)], loader.state_dict()) for _ in range(calls)]


@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_captured_function_takes_the_same_batches(steps: int | None, shuffle: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "drop_last": True}
    wanted = rows_of(Loader((X, Y), 4, **options), steps, 12)
    for given in ((mapped(tmp_path, X), Y), (mapped(tmp_path, X), mapped(tmp_path, Y, "y"))):
        loader = Loader(given, 4, **options)
        assert rows_of(loader, steps, 12) == wanted
        assert len(threads()) <= 1
        del loader


def test_batches_for_a_captured_function_follow_the_position(tmp_path: Path) -> None:
    loaders = [Loader((given, Y), 4, drop_last=True) for given in (X, mapped(tmp_path, X))]
    seen: list[Any] = [[], []]
    for loader, found in zip(loaders, seen):
        for _ in range(3):
            found.append(bits(loader.next_batches()))
            found.append(host(loader.next_rows()).tolist())
            for batch in loader:
                found.append(bits(batch))
                break
            loader.load_state_dict({"epoch": 1, "batches": 3, "seed": 8})
            found.append(bits(loader.next_batches(4)))
            found.append(bits(loader.gather(loader.next_rows(2))))
        found.append(bits(pickle.loads(pickle.dumps(loader)).next_batches()))
        found.append(bits(copy.deepcopy(loader).next_batches()))
    assert seen[0] == seen[1]
    with pytest.raises(pb.PullbackError, match=r"Pass drop_last=True"):
        Loader(mapped(tmp_path, X), 4).next_batches()


def test_an_error_in_a_captured_functions_batches_leaves_the_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, wanted = [Loader(given, 4, drop_last=True) for given in (mapped(tmp_path, X), X)]
    read, calls = sources.Source.read, itertools.count()
    with monkeypatch.context() as broken:
        broken.setattr(sources.Source, "read", lambda *args: read(*args) if next(calls) < 3 else 1 // 0)
        assert [bits(loader.next_batches()) for _ in range(3)] == [bits(wanted.next_batches()) for _ in range(3)]
        with pytest.raises(pb.PullbackError, match=r"batch 3 of the epoch could not be read \(ZeroDivisionError"):
            loader.next_batches()
    assert loader.state_dict() == wanted.state_dict()
    assert bits(loader.next_batches()) == bits(wanted.next_batches())


@needs_kernels
def test_rows_of_a_file_are_not_gathered_by_kernels_of_a_gpu(tmp_path: Path) -> None:
    loader = Loader((mapped(tmp_path, X), Y), 4)
    rows = pb.tensor([[3, 1], [-1, 3]])
    x, y = loader.gather(rows)
    assert host(x).tobytes() == X[host(rows)].tobytes()
    assert host(y).tobytes() == Y[host(rows)].tobytes()
    step = pb.capture(lambda rows: loader.gather(rows))
    if devices.default_device() == "cpu":  # a kernel reads the map itself
        assert host(step(rows)[0]).tobytes() == X[host(rows)].tobytes()
        return
    with pytest.raises(pb.CaptureError, match=r"step\(loader\)"):
        step(rows)


@needs_kernels
def test_a_captured_function_has_no_loop_over_a_file(tmp_path: Path) -> None:
    loader = Loader(mapped(tmp_path, X), 4, shuffle=False)
    with pytest.raises(pb.CaptureError, match=r"taking batches of a Loader.*step\(loader\)"):
        pb.capture(lambda x: [x + batch for batch in loader])(pb.ones(()))


# ---- what cannot be read


@pytest.mark.parametrize(
    ("array", "error", "words"),
    [
        (np.zeros(3, [("a", "f4"), ("b", "i4")]), pb.DTypeError, r"fields as arrays: Loader\(\(x\['a'\], \.\.\.\), batch_size"),
        (np.zeros(3, complex), pb.DTypeError, "complex128 is not supported"),
        (np.zeros(3, "M8[s]"), pb.DTypeError, "datetime64"),
        (np.zeros(3, "V2"), pb.DTypeError, r"V2 is not supported.*array\.view\(ml_dtypes\.bfloat16\)"),
        (np.float32(3), pb.ShapeError, "0-d"),
        (np.zeros(4), pb.ShapeError, r"\[4, 3\]"),
    ],
)
def test_files_of_other_dtypes_and_shapes_are_refused(array: Any, error: Any, words: str, tmp_path: Path) -> None:
    x = mapped(tmp_path, array)
    for given in (x, tmp_path / "x.npy"):
        with pytest.raises(error, match=words):
            Loader((given, np.zeros(3)), 2)


def test_paths_that_are_no_npy_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", np.zeros(3))
    np.save(tmp_path / "objects.npy", np.array([{}, 1], object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("1, 2, 3")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.save(tmp_path / "whole.npy", np.zeros(1000))
    (tmp_path / "short.npy").write_bytes((tmp_path / "whole.npy").read_bytes()[:-8])
    for name, error, words in (
        ("x.npz", pb.FileFormatError, "npz archive, which cannot be mapped"),
        ("objects.npy", pb.DTypeError, "Python objects"),
        ("text.npy", pb.FileFormatError, r"not a whole \.npy file\. Write"),  # without NumPy's advice to unpickle it
        ("empty.npy", pb.FileFormatError, "is empty"),
        ("short.npy", pb.FileFormatError, "not a whole .npy file"),
        ("none.npy", FileNotFoundError, "no such file"),
    ):
        with pytest.raises(error, match=words):
            Loader(str(tmp_path / name), 2)
    with pytest.raises(IsADirectoryError, match="Loader: this is a directory"):
        Loader((tmp_path,), 2)


def test_arrays_of_a_gpu_do_not_come_from_the_host() -> None:
    with pytest.raises(pb.DTypeError, match="from_host=1 must be True or False"):
        Loader(X, 2, from_host=1)  # type: ignore[arg-type]
    if pb.cuda.is_available():
        with pytest.raises(pb.PullbackError, match="one is on a GPU"):
            Loader(pb.tensor(X, device="cuda"), 2, from_host=True)
