"""The roofline: bounds and shares follow the textbook model at known peaks. Peaks are measured once and then read from a file."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import simulated
from pullback import variables
from pullback.backends import modes
from pullback.profiling import Figures, Row, peaks
from pullback.profiling.peaks import Peaks
from pullback.profiling.roofline import roofline

# 100 FLOP/s in products (50 in float64), 10 FLOP/s in other arithmetic, 20 bytes/s, 0.1 s per launch.
BEST = Peaks("a device", "1", "slow", 2, {"float32": 100.0, "float64": 50.0}, 10.0, 20.0, 0.1)


def row(kernel: str, dtype: str = "float32", **figures: Any) -> Row:
    return Row(kernel, kernel, "", "", 0, dtype, "forward", True, Figures(**{"launches": 1, **figures}))


def profile(*rows: Row, kernel_seconds: float | None = None) -> Any:
    seconds = math.fsum([row.figures.seconds for row in rows])
    return SimpleNamespace(rows=list(rows), kernel_seconds=seconds if kernel_seconds is None else kernel_seconds)


def reached(*rows: Row) -> Any:
    return roofline(profile(*rows), best=BEST).rows


# ---- the model


def test_a_product_is_bound_by_the_rate_of_its_dtype() -> None:
    figures = {"fmas": 500, "matmul_flops": 1000, "bytes_read": 40, "bytes_written": 10, "seconds": 25.0}
    single, double = reached(row("matmul", **figures), row("matmul", "float64", **figures))
    assert (single.flops, single.bytes, single.intensity) == (1000, 50, 20.0)
    assert (single.flops_per_second, single.bytes_per_second) == (40.0, 2.0)
    assert (single.bound, single.share) == ("compute", pytest.approx(0.4))  # 10 s at the peak, out of 25 s
    assert (double.dtype, double.bound, double.share) == ("float64", "compute", pytest.approx(0.8))


def test_other_arithmetic_has_another_peak_than_products() -> None:
    figures = {"adds": 100, "bytes_read": 40, "seconds": 20.0}
    (alone,) = reached(row("add", **figures))
    assert (alone.bound, alone.share) == ("compute", pytest.approx(0.5))
    (both,) = reached(row("linear", fmas=500, matmul_flops=1000, **figures))
    assert (both.bound, both.share) == ("compute", pytest.approx(1.0))


def test_what_moves_more_than_it_computes_is_bound_by_memory() -> None:
    (found,) = reached(row("add", adds=10, bytes_read=400, bytes_written=200, seconds=40.0))
    assert (found.bound, found.share, found.intensity) == ("memory", pytest.approx(0.75), pytest.approx(1 / 60))


def test_a_kernel_without_flops_is_bound_by_memory_or_launch() -> None:
    large, small = reached(
        row("copy", bytes_read=200, bytes_written=200, seconds=21.0), row("fill", bytes_written=1, special_ops=0, seconds=1.0)
    )
    assert (large.bound, small.bound) == ("memory", "launch")
    assert (large.flops_per_second, large.intensity) == (0.0, 0.0)


def test_a_launch_is_what_binds_where_its_work_takes_less() -> None:
    work = {"adds": 10, "bytes_read": 10, "seconds": 30.0}  # 1 s at the peaks
    (few,) = reached(row("add", launches=9, **work))
    (many,) = reached(row("add", launches=11, **work))
    assert (few.bound, many.bound) == ("compute", "launch")


def test_launches_of_a_kernel_are_summed_up_and_the_slowest_comes_first() -> None:
    found = reached(
        row("add", adds=1, seconds=1.0), row("tanh", special_ops=7, bytes_read=8, seconds=3.0), row("add", adds=2, seconds=1.5)
    )
    assert [(x.kernel, x.launches, x.flops, x.special_ops, x.seconds) for x in found] == [
        ("tanh", 1, 0, 7, 3.0),
        ("add", 2, 3, 0, 2.5),
    ]


def test_a_product_of_a_dtype_that_was_not_measured_is_held_against_float32() -> None:
    (found,) = reached(row("matmul", "bfloat16", fmas=500, matmul_flops=1000, seconds=20.0))
    assert found.share == pytest.approx(0.5)


@pytest.mark.parametrize("seconds", [math.nan, 0.0], ids=["nothing was timed", "launches were not timed"])
def test_without_times_it_says_what_to_do(seconds: float) -> None:
    with pytest.raises(pb.PullbackError, match=r'pb\.profile\(detail="kernel"\)'):
        roofline(profile(row("add", adds=1), kernel_seconds=seconds), best=BEST)


def test_it_prints_as_a_table_of_80_columns() -> None:
    figures = {"fmas": 500_000, "matmul_flops": 10**6, "bytes_read": 4000, "seconds": 2e4}
    rows = row("matmul", **figures), row("matmul", "float64", **figures), row("add", adds=1)
    lines = str(roofline(profile(*rows), best=BEST)).split("\n")
    assert max(map(len, lines)) <= 80
    assert lines[2].split() == ["matmul", "float32", "1", "250", "50", "0.20", "20000", "s", "compute", "50%"]
    assert lines[4].split()[:2] == ["add", "1"]
    assert "products: float32 100 FLOP/s, float64 50 FLOP/s" in lines
    assert str(roofline(profile(), best=BEST)) == "nothing ran in this profile"


def test_bounds_of_a_real_profile_are_the_known_ones(native: None, on_cpu: None) -> None:
    a, x, one = pb.ones((512, 512)), pb.ones(2**24), pb.ones(1)
    with pb.profile() as prof:
        a @ a
        pb.negative(x)
        pb.add(one, one)
    best = Peaks("a processor", "1", "x86-64-v3", 2, {"float32": 2e11, "float64": 1e11}, 4e10, 4e10, 5e-7)
    found = {x.kernel: x for x in roofline(prof, best=best).rows}
    assert {name: x.bound for name, x in found.items()} == {"matmul": "compute", "negative": "memory", "add": "launch"}
    assert found["matmul"].flops == 2 * 512**3
    assert found["negative"].bytes == 2 * 4 * 2**24
    assert sum([x.seconds for x in found.values()]) == pytest.approx(prof.kernel_seconds)


def test_a_profile_has_it(cache: Path, on_cpu: None) -> None:
    with pb.profile() as prof:
        pb.ones(3)
    found = prof.roofline()
    assert [(x.launches, x.bytes) for x in found.rows] == [(1, 12)]
    assert found.peaks == peaks.peaks("cpu")


# ---- the peaks


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provides an empty folder for the peaks, and a measurement that takes a moment."""
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(peaks, "SECONDS", 1e-4)
    monkeypatch.setattr(peaks, "LARGE", 2**20)
    return tmp_path / "cache"


@pytest.fixture
def measured(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replaces the measurement by fixed peaks, and returns the list of its calls."""
    times: list[Any] = []

    def measure(device: str, key: dict[str, Any]) -> Peaks:
        times.append(device)
        return Peaks(**key, products={"float32": 4.0}, elementwise=3.0, bytes_per_second=2.0, launch_seconds=1.0)

    monkeypatch.setattr(peaks, "_measure", measure)
    return times


def test_peaks_are_measured_and_written(cache: Path) -> None:
    found = peaks.peaks("cpu")
    assert set(found.products) == {"float32", "float64"}
    for number in (*found.products.values(), found.elementwise, found.bytes_per_second, found.launch_seconds):
        assert 0 < number < math.inf
    assert found.flops_per_second == max(found.elementwise, *found.products.values())
    (file,) = cache.iterdir()
    assert Peaks(**json.loads(file.read_text())) == found


def test_peaks_are_measured_once(measured: list[Any], cache: Path, on_cpu: None) -> None:
    first = peaks.peaks("cpu")
    assert peaks.peaks("cpu") == first == peaks.peaks()
    assert measured == ["cpu"]
    peaks.peaks("cpu", again=True)
    assert measured == ["cpu", "cpu"]
    assert [file.name[0] for file in cache.iterdir()] == ["p"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '"cpu"', "null", '{"device": "x"}', "half", "no products", "zero", "words", "another version", "deep",
     "huge", "numbers as text"],
)
def test_a_damaged_file_is_measured_anew(text: str, measured: list[Any], cache: Path) -> None:
    right = peaks.peaks("cpu")
    (file,) = cache.iterdir()
    whole = json.loads(file.read_text())
    damaged = {
        "half": file.read_text()[: len(file.read_text()) // 2],
        "no products": json.dumps({**whole, "products": {}}),
        "zero": json.dumps({**whole, "bytes_per_second": 0}),
        "words": json.dumps({**whole, "elementwise": "fast"}),
        "deep": "[" * 200_000,
        "huge": json.dumps({**whole, "bytes_per_second": 10**400}),
        "numbers as text": json.dumps({**whole, "bytes_per_second": "1e9"}),
        "another version": json.dumps({**whole, "version": "0.0.0"}),
    }
    file.write_text(damaged.get(text, text))
    assert peaks.peaks("cpu") == right
    assert len(measured) == 2
    assert json.loads(file.read_text()) == whole


@pytest.mark.parametrize("what", ["device", "version", "kernels", "threads"])
def test_what_peaks_depend_on_has_a_file_of_its_own(
    what: str, measured: list[Any], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks.peaks("cpu")
    key = peaks._key("cpu")
    monkeypatch.setattr(peaks, "_key", lambda device: {**key, what: 64 if what == "threads" else "another"})
    assert getattr(peaks.peaks("cpu"), what) in (64, "another")
    assert (len(measured), len(list(cache.iterdir()))) == (2, 2)


def test_each_mode_has_a_file_of_its_own(measured: list[Any], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other kernels compute products under "everywhere", and none of them rounds to tf32."""
    assert " " not in peaks.peaks("cpu").kernels
    assert modes.allows("tf32")
    monkeypatch.setattr(modes, "_mode", "everywhere")
    assert [modes.allows(dtype) for dtype in peaks.PRODUCTS["cuda"]] == [True, True, False, True, True]
    if peaks.native.module is not None:
        assert peaks.peaks("cpu").kernels.endswith(" everywhere")
        assert (len(measured), len(list(cache.iterdir()))) == (2, 2)


def test_a_disk_that_fails_leaves_nothing_half_written(measured: list[Any], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", fail)
    assert peaks.peaks("cpu").elementwise == 3.0
    assert list(cache.iterdir()) == []


def test_without_a_place_to_write_to_they_are_measured_each_time(
    measured: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert peaks.peaks("cpu") == peaks.peaks("cpu")
    assert len(measured) == 2


def test_measuring_is_not_charged_to_who_asks(cache: Path) -> None:
    w = pb.Parameter(np.ones(3, np.float32))
    with pb.profile() as prof, pb.amp.autocast("bfloat16"), pb.GradientTape() as tape:
        loss = pb.sum(w * w)
        before = len(tape.nodes)
        peaks.peaks("cpu")
        assert len(tape.nodes) == before
        assert modes.precision() == "bfloat16"
    assert prof.forward.launches == 2
    np.testing.assert_array_equal(tape.gradient(loss, w).numpy(), 2 * np.ones(3))


def test_a_simulated_gpu_has_no_peaks(measured: list[Any]) -> None:
    if not simulated():
        pytest.skip("there is no simulated GPU: it is built by make simulate")
    with pytest.raises(pb.PullbackError, match="simulated"):
        peaks.peaks("cuda")
    assert measured == []


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({"PULLBACK_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/pullback"),
        # the XDG specification says that relative paths must be ignored
        ({"XDG_CACHE_HOME": "relative"}, "/home/c/.cache/pullback"),
        ({}, "/home/c/.cache/pullback"),
    ],
)
def test_the_cache_folder_is_where_users_expect_it(given: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PULLBACK_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/c", **given}.items():
        monkeypatch.setenv(name, value)
    assert Path(variables.cache_dir()) == Path(folder)


def test_without_kernels_the_file_is_named_for_numpy(measured: list[Any], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks.native, "module", None)
    peaks.peaks("cpu")
    (file,) = cache.iterdir()
    assert file.name.endswith("-numpy-0.json")


def test_what_is_timed_is_the_work_that_the_figure_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what ends the work of the device, which is timed with it."""
    timed: list[tuple[int, int]] = []
    finished: list[None] = []

    def time_it(run: Any, finish: Any) -> float:
        with pb.profile() as prof:
            run()
        finish()
        timed.append((prof.total.launches, prof.total.bytes_written))
        return 0.5

    monkeypatch.setattr(peaks, "_median_seconds", time_it)
    assert peaks._launch(lambda: finished.append(None)) == 0.5
    assert peaks._copy(lambda: finished.append(None)) == 2 * 2 * timed[1][1]  # read and written, in half a second
    assert [launches for launches, _ in timed] == [1, 1]
    assert len(finished) == 2
