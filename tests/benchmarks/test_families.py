"""The families of the benchmark for a GPU can fail, they reach every kernel, and a failure says what differs and where.

What needs a device runs on the simulated one.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import ROOT, environment, simulated
from gpu_scripts import FOLDER, Scripts, imported
from pullback import backends
from pullback.backends import native
from pullback.launch import door
from pullback.tensors import gpu

pytestmark = pytest.mark.skipif(
    pb.cuda.is_available() and not simulated(), reason="what is tested here checks a GPU; it was tested without one"
)
needs_device = pytest.mark.skipif(not simulated(), reason="device cuda is not simulated: build with PULLBACK_CUDA=SIM")
needs_kernels = pytest.mark.skipif(bool(backends.why_not("cpu")), reason=f"no kernels: {backends.why_not('cpu')}")
LENGTH = 300

# Functions of the modules of kernels that launch no kernel. add_into launches one that is named "add".
NO_LAUNCHES = {
    "activations", "add_into", "advance_state", "array_type", "blas_config", "blas_core", "Buffer", "cache_use", "counts",
    "device_count", "driver_calls", "empty", "enter_scope", "facts_changed", "find_cublaslt", "forward", "free_memory_by", "label",
    "launches_elsewhere", "let_wait", "live_bytes", "memory", "memory_limit", "moment", "new_array", "passed",
    "register_arrays", "register_bfloat16", "register_tensors", "reset_peak", "scope", "scopes_by", "set_everywhere",
    "set_matmul_precision", "set_phase", "set_scope", "set_thread_count", "simulated", "simulator", "stream", "sum_pullback",
    "synchronize", "thread_count", "trim", "trim_cache", "update_counts", "update_plan", "upload", "usable_cpus", "use_device",
    "versions", "wait_for", "wait_for_all", "watch_calls", "why_not",
}
# Functions that no function of pullback calls, except in tests.
NOT_CALLED = {"nonzero_flat", "random_keys"}
# CUDA kernels that no family launches on the simulated device, and why.
NOT_LAUNCHED = {
    "count_pieces": "a part of nonzero_flat, which is not called",
    "scan_counts": "a part of nonzero_flat, which is not called",
    "write_positions": "a part of nonzero_flat, which is not called",
    "fill_strided": "all memory that ops fill is contiguous",
    "finish_elements": "it follows a product by cuBLASLt, which the simulator does not have",
}


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripts]:
    yield from imported(monkeypatch)


@pytest.fixture
def smoke(scripts: Scripts) -> Any:
    return scripts("smoke")


@pytest.fixture
def families(scripts: Scripts) -> Any:
    return scripts("families")


def run_script(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a script of the benchmark on the simulated device."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments, "--simulated"]
    return subprocess.run(command, env=environment(**variables), capture_output=True, text=True)


def rows_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def names() -> list[str]:
    """Returns the names of the families, for parametrize, without keeping their modules loaded."""
    sys.path.insert(0, str(FOLDER))
    before = set(sys.modules)
    try:
        return list(importlib.import_module("families").FAMILIES)
    finally:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in ("families", "training"):
                del sys.modules[name]
        sys.path.remove(str(FOLDER))


# ---- families can fail


def damaged(x: Any) -> Any:
    """Returns a copy of an array whose largest finite element is a little wrong."""
    x, size = x.copy(), np.abs(x.astype(np.float64))
    where = np.unravel_index(int(np.where(np.isfinite(size), size, -1).argmax()), x.shape)
    if x.dtype.kind in "iu":
        x[where] ^= 1
        return x
    x[where] = not x[where] if x.dtype.kind == "b" else (x[where] or x.dtype.type(1)) * 1.05
    return x


@needs_kernels
@pytest.mark.parametrize("name", names())
def test_a_wrong_element_of_any_result_is_told(name: str, smoke: Any, families: Any) -> None:
    wanted = smoke.results_on("cpu", name, LENGTH)
    errors = {case: found for case, found in wanted.items() if isinstance(found, str)}
    assert not errors
    assert list(smoke.wrong_results(wanted, wanted, families.tolerance(name))) == []
    for case, right in wanted.items():
        assert right, f"{case} has no results"
        for place, x in enumerate(right):
            if x.size == 0:
                assert case.endswith("no columns")
                continue
            if not np.isfinite(x.astype(np.float64)).any():
                continue  # the loss of a step that overflows
            there = {**wanted, case: [*right[:place], damaged(x), *right[place + 1 :]]}
            found = list(smoke.wrong_results({case: there[case]}, {case: right}, families.tolerance(name)))
            assert [(c, p, wrong["elements"]) for c, p, wrong in found] == [(case, place, 1)]


def test_families_in_the_mode_everywhere_require_the_last_bit(smoke: Any, families: Any) -> None:
    x = np.linspace(1, 2, 50, dtype=np.float32)
    y = x.copy()
    y[7] = np.nextafter(y[7], np.float32(3))
    assert list(smoke.wrong_results({"a": [y]}, {"a": [x]}, families.tolerance("conv"))) == []
    ((case, place, wrong),) = smoke.wrong_results({"a": [y]}, {"a": [x]}, families.tolerance("layers_everywhere"))
    assert (case, place, wrong["elements"], wrong["first"]) == ("a", 0, 1, [7])


@pytest.mark.parametrize(("x", "y"), [
    (np.float32([1, 2]), np.float32([1, np.nan])), (np.float32([1, np.inf]), np.float32([1, 3])), (np.int64([1]), np.int64([2])),
    (np.float32([1, 2]), np.float64([1, 2])), (np.float32([1, 2]), np.float32([[1, 2]])), (np.bool_([True]), np.bool_([False])),
    (np.float32([1, np.inf]), np.float32([1, -np.inf])),
], ids=["NaN", "infinity", "integers", "dtype", "shape", "bools", "sign of infinity"])
def test_other_kinds_of_wrong_results_are_told(x: Any, y: Any, smoke: Any) -> None:
    for factor in (1.0, 250.0, 0.0):
        assert len(list(smoke.wrong_results({"a": [y]}, {"a": [x]}, factor))) == 1
        assert list(smoke.wrong_results({"a": [x]}, {"a": [x.copy()]}, factor)) == []


def test_calls_that_fail_and_results_that_are_missing_are_told(smoke: Any) -> None:
    x = np.float32([1, 2])
    wanted = {"a": [x], "b": [x], "c": [x, x], "d": [x]}
    found = list(smoke.wrong_results({"a": "ValueError: no", "c": [x], "d": [x]}, wanted, 1.0))
    assert [(case, wrong["error"][:20]) for case, _, wrong in found] == [
        ("a", "ValueError: no"), ("b", "it was not reached"), ("c", "1 results, not 2"),
    ]


@needs_kernels
def test_an_eager_step_with_other_bits_than_the_captured_one_is_an_error(families: Any) -> None:
    x = pb.tensor([1.0, 2.0])
    families.captures.require_equal(["x"], [x], [pb.copy(x)], "a captured step")
    with pytest.raises(RuntimeError, match=r"a captured step has other bits than the eager step: x \[0\] float32\[2\]: 1 differ"):
        families.captures.require_equal(["x"], [x], [pb.tensor([1.0, 2.0000002])], "a captured step")


@needs_kernels
def test_a_loss_scaler_that_leaves_out_no_step_is_an_error(families: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = dict(families.FAMILIES["projection"](LENGTH))
    monkeypatch.setattr(pb.amp.LossScaler, "skipped", property(lambda self: pb.tensor(0)))
    with pytest.raises(RuntimeError, match="left out 0 steps of five"):
        calls["loss_scaler, five steps"]()


def test_a_family_whose_arguments_cannot_be_made_is_told(smoke: Any, families: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(n: int) -> Iterator[Any]:
        yield "a", lambda: pb.ones(3)
        yield "b", partial(pb.add, pb.ones(3), pb.ones(4) @ pb.ones(5))

    monkeypatch.setitem(families.FAMILIES, "planted", planted)
    got = smoke.results_on("cpu", "planted", LENGTH)
    assert [len(got["a"]), got["the arguments after a"][:19]] == [1, "ShapeError: matmul:"]
    found = list(smoke.wrong_results(got, {"a": got["a"], "b": got["a"]}, 1.0))
    assert [(case, wrong["error"][:18]) for case, _, wrong in found] == [
        ("the arguments after a", "ShapeError: matmul"), ("b", "it was not reached"),
    ]


PLANTED = """
import sys
sys.path.insert(0, {folder!r})
import families, pullback as pb, smoke
def planted(n):
    yield "right", lambda: pb.ones(3)
    yield "wrong", lambda: pb.ones((2, 3)) if pb.ones(1).device == "cpu" else pb.tensor([[1.0, 1.0, 1.0], [1.0, 1.5, 1.0]])
    yield "refused", lambda: pb.ones(3) if pb.ones(1).device == "cpu" else pb.ones(3) @ pb.ones(4)
    yield "later", lambda: pb.zeros(3)
families.FAMILIES["planted"] = planted
sys.argv = ["smoke.py", "planted", "--simulated"]
smoke.main()
"""


@needs_device
def test_a_wrong_result_of_the_device_is_told_with_its_call_place_and_values() -> None:
    code = PLANTED.format(folder=str(FOLDER))
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    (row,) = rows_of(done)
    assert (row["name"], row["calls"], row["results"]) == ("planted", 4, 3)
    assert row["wrong"][0] == (
        "wrong [0] float32[2, 3]: 1 differ, from [1, 1] to [1, 1]; there 1.5, not 1.0; relative to the largest 0.5, allowed 2e-05"
    )
    assert row["wrong"][1].startswith("refused: ShapeError: matmul")
    assert done.stderr.startswith("planted: 2 results in 2 of 4 calls are wrong: wrong [0]")
    assert [line for line in done.stdout.splitlines() if line.startswith("planted: ")] == [
        f"planted: {case}" for case in ("right", "wrong", "refused", "later")
    ]


# ---- families reach every kernel


def functions(module: Any) -> set[str]:
    """Returns the functions of a module of kernels that launch one."""
    return {name for name in dir(module) if not name.startswith(("_", "ledger_", "plan_"))} - NO_LAUNCHES


def run_all(families: Any, chosen: list[str], length: int) -> tuple[set[str], set[str]]:
    """Runs families on the default device. Returns the launched kernels, and what ran in NumPy or CuPy in their place."""
    launched: set[str] = set()
    by_reference: set[str] = set()
    counted = door.run_counted

    def run_counted(name: str, run: Any, cost: Any) -> Any:
        by_reference.add(name)
        return counted(name, run, cost)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(door, "run_counted", run_counted)
        ledger = door.begin()
        for name in chosen:
            for _, call in families.FAMILIES[name](length):
                call()
        door.end(ledger)
    launched |= {key.kernel for key in ledger.sums}
    return launched - by_reference, by_reference


@needs_kernels
def test_every_kernel_that_pullback_calls_is_in_a_family(families: Any) -> None:
    with pb.use_device("cpu"):
        launched, _ = run_all(families, [*families.order_for_sanitizer(), "matrices"], LENGTH)
    assert functions(native.module) - launched == NOT_CALLED


def test_functions_that_are_listed_as_not_called_are_not_called() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "python").glob("**/*.py"))
    assert [name for name in NOT_CALLED if re.search(rf"\b{name}\b", text)] == []


def cuda_kernels() -> set[str]:
    """Returns the names of all CUDA kernels, from the sources."""
    bounds = r"(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s*)?"
    found = [re.findall(rf"__global__\s+void\s+{bounds}(\w+)\(", path.read_text()) for path in (ROOT / "csrc/cuda").glob("*.cu*")]
    return {name for names in found for name in names}


def name_of(symbol: str) -> str:
    """Returns the name of a function without its result, namespaces, template arguments and arguments."""
    text, depth = "", 0
    for character in symbol.removeprefix("void ").replace("(anonymous namespace)", "anonymous"):
        depth += (character == "<") - (character == ">")
        if depth == 0 and character == "(":
            break
        text += character if depth == 0 and character != ">" else ""
    return text.rpartition("::")[2]


RECORDING = """
import json, sys
sys.path[:0] = {paths}
import families, pullback as pb, sanitize, test_families
chosen = [name for name in families.order_for_sanitizer() if name != "large_products"]
with pb.use_device("cuda"):
    launched, by_reference = test_families.run_all(families, chosen, sanitize.LENGTH)
    pb.zeros(1).numpy()  # waits
print(json.dumps([sorted(launched), sorted(by_reference)]))
"""


@needs_device
def test_the_sanitizer_reaches_every_kernel_and_nothing_that_cupy_runs(tmp_path: Path) -> None:
    """At the length of a GPU, because other kernels serve short arrays. Large products have no kernel of their own."""
    code = RECORDING.format(paths=[str(FOLDER), str(ROOT / "tests"), str(ROOT / "tests" / "benchmarks")])
    variables = environment(CUDASIM_KERNELS=str(tmp_path / "kernels"))
    done = subprocess.run([sys.executable, "-c", code], env=variables, check=True, stdout=subprocess.PIPE, text=True)
    launched, by_reference = json.loads(done.stdout.splitlines()[-1])
    assert by_reference == []
    assert functions(gpu.need().kernels) - set(launched) == NOT_CALLED
    reached = {name_of(line) for line in (tmp_path / "kernels").read_text().splitlines()}
    assert len(cuda_kernels()) > 80
    assert cuda_kernels() - reached == set(NOT_LAUNCHED)


# ---- the sanitizer's script


@needs_device
def test_families_run_in_the_given_order_with_a_row_before_and_after_each() -> None:
    done = run_script("sanitize", "--families", "pools,radix_sort")
    assert done.returncode == 0, done.stderr
    assert [(row["name"], "begins" in row) for row in rows_of(done)] == [
        ("pools", True), ("pools", False), ("radix_sort", True), ("radix_sort", False),
    ]
    assert all(row["results"] > 2 for row in rows_of(done) if "begins" not in row)


@needs_device
def test_a_family_that_there_is_not_is_named() -> None:
    done = run_script("sanitize", "--families", "pools,polls")
    assert done.returncode == 1
    assert "no family is called polls. There are: radix_sort, attention" in done.stderr


@needs_device
def test_a_call_that_fails_is_named_and_later_ones_run() -> None:
    code = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
import families, pullback as pb, sanitize
def planted(n):
    yield "refused", lambda: pb.ones(3) @ pb.ones(4)
    yield "later", lambda: pb.ones(3)
families.FAMILIES["planted"] = planted
sys.argv = ["sanitize.py", "--families", "planted,pools", "--simulated"]
sanitize.main()
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("1 calls failed; the first: planted: refused: ShapeError: matmul")
    assert [row["name"] for row in rows_of(done) if "begins" not in row] == ["planted", "pools"]
    assert rows_of(done)[1]["results"] == 1


def test_the_sanitizer_begins_with_what_could_hang_and_leaves_out_other_libraries(families: Any) -> None:
    order = families.order_for_sanitizer()
    assert order[0] == next(iter(families.FAMILIES)) == "radix_sort"
    assert len(set(order)) == len(order)
    others = set(families.FAMILIES) - set(order)
    assert {name for name in others if not name.endswith(families.EVERYWHERE)} == set(families.LIBRARIES)


@needs_device
def test_weights_trained_on_the_device_have_the_bits_of_the_cpu() -> None:
    found = [
        {row["network"]: (row["sha256"], row["after_one_step"]) for row in rows_of(run_script("weights", device))}
        for device in ("cpu", "cuda")
    ]
    assert len(found[0]) == 10
    assert found[0] == found[1]


@needs_device
def test_the_soak_runs_every_case() -> None:
    done = run_script("soak", "--seconds", "6", CUDASIM_SEED=os.environ.get("CUDASIM_SEED", "0"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert set(rows_of(done)[-1]["cases"]) == {
        "sort", "select", "scatter", "reduce", "conv", "attention", "recurrent", "update",
    }
