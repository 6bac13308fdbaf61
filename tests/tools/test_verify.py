"""Verification: ncu's tables are read in NVIDIA's format, and the counts are matched with the launches that they belong to."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import simulated
from ncu_text import ARITHMETIC, METRICS, QUERY, ROLES, SASS, UNITS, table
from pullback import nn, optim
from pullback.launch import door
from pullback.launch.door import Launch
from pullback.profiling import Figures, Profile, ncu, verify
from pullback.profiling.ncu import Counters
from pullback.tensors import gpu

# ---- reading


def test_flops_are_thread_instructions_with_a_multiply_add_as_two_and_halves_in_pairs() -> None:
    counts = {f"{SASS}{op}_pred_on.sum": str(10**i) for i, op in enumerate(["fadd", "fmul", "ffma", "dadd", "dmul", "dfma"])}
    halves = {f"{SASS}{op}_pred_on.sum": str(10**i) for i, op in enumerate(["hadd", "hmul", "hfma"])}
    single, half = ncu.parse(table(("k", counts), ("h", halves)), ROLES)
    assert single.flops == 1 + 10 + 200 + 1000 + 10_000 + 200_000
    assert half.flops == 2 * (1 + 10 + 200)


def test_bytes_and_times_are_read_with_their_units() -> None:
    values = {
        "dram__bytes_read.sum": "1,234,567", "dram__bytes_write.sum": "12.5", "lts__t_bytes.sum": "2000",
        "gpu__time_duration.sum": "1,500", "sm__inst_executed_pipe_tensor.sum": "77",
    }
    (base,) = ncu.parse(table(("k(float*, int)", values)), ROLES)
    assert base == Counters("k(float*, int)", 0.0, 77.0, 1_234_567.0, 12.5, 2000.0, pytest.approx(1.5e-6))
    scaled = UNITS | {"dram": "Kbyte", "gpu_": "usecond"}
    (found,) = ncu.parse(table(("k", values), units=scaled), ROLES)
    assert (found.dram_written, found.seconds) == (12_500.0, pytest.approx(1.5e-3))


def test_names_with_commas_and_quotes_are_whole() -> None:
    name = 'void pb::(anonymous namespace)::map_packs<pb::"x", float, 4>(long, float *)'
    (found,) = ncu.parse(table((name, {})), ROLES)
    assert found.name == name
    assert ncu.names_of([found, found]) == ("pb::map_packs",)


def test_what_was_not_counted_is_nan() -> None:
    (found,) = ncu.parse(table(("k", {"dram__bytes_read.sum": "n/a", "lts__t_bytes.sum": "(!) nan"})), ROLES)
    assert math.isnan(found.dram_read)
    assert math.isnan(found.l2_bytes)
    (without,) = ncu.parse(table(("k", {})), {**ROLES, "tensor": {}})
    assert math.isnan(without.tensor)


@pytest.mark.parametrize("text", ["", "==PROF== Connected to process 1 (x)\n==WARNING== No kernels were profiled.\n"])
def test_no_kernels_are_none(text: str) -> None:
    assert ncu.parse(text, ROLES) == []


def test_a_unit_that_is_not_known_is_told() -> None:
    with pytest.raises(pb.PullbackError, match="furlong"):
        ncu.parse(table(("k", {}), units=UNITS | {"gpu_": "furlong"}), ROLES)


# ---- the metrics that are requested


def test_metrics_are_asked_for_by_the_names_that_this_gpu_has() -> None:
    assert sorted(ROLES["flops"]) == sorted(ARITHMETIC)
    assert (list(ROLES["tensor"]), list(ROLES["dram_read"])) == (["sm__inst_executed_pipe_tensor"], ["dram__bytes_read"])
    newer = QUERY.replace("dram__bytes_", "dram__bytes_op_").replace("pipe_tensor ", "pipe_tensor_op_hmma ")
    assert (list(ncu.roles_of(newer)["tensor"]), list(ncu.roles_of(newer)["dram_written"])) == (
        ["sm__inst_executed_pipe_tensor_op_hmma"],
        ["dram__bytes_op_write"],
    )
    paths = [f"sm__ops_path_tensor_src_{source}_dst_fp32" for source in ("bf16", "fp16", "tf32")]
    assert list(ncu.roles_of("\n".join([QUERY, *paths]))["tensor"]) == paths


def test_an_ncu_that_cannot_count_arithmetic_is_refused() -> None:
    with pytest.raises(pb.PullbackError, match="query-metrics"):
        ncu.roles_of("\n".join([line for line in QUERY.splitlines() if "ffma" not in line]))


@pytest.mark.parametrize(
    ("status", "said", "words"),
    [
        (1, "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the "
            "target device 0.", "NVreg_RestrictProfilingToAdminUsers=0"),
        (0, "==ERROR== Failed to find metric x.sum", "Failed to find metric x.sum"),
        (7, "Traceback (most recent call last):\nValueError: no data", "(?s)status 7.*ValueError: no data"),
    ],
)
def test_what_failed_is_told_with_a_remedy(status: int, said: str, words: str) -> None:
    with pytest.raises(pb.PullbackError, match=words):
        ncu.check(status, said)


def test_no_ncu_is_told_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(()))
    with pytest.raises(pb.PullbackError, match="Install NVIDIA Nsight Compute"):
        ncu.find()


# ---- matching counts with launches


def launch(kernel: str, dtype: str = "float32", **figures: int) -> Launch:
    return Launch(**{**dict.fromkeys(Launch.__dataclass_fields__, 0), "kernel": kernel, "dtype": dtype, "known": True, **figures})


def counted(name: str, flops: float = 0.0, tensor: float = 0.0, seconds: float = 1e-6) -> Counters:
    return Counters(name, flops, tensor, 100.0, 50.0, 400.0, seconds)


MARK = counted(verify.MARK)


def test_what_lies_between_two_marks_belongs_together() -> None:
    add = launch("add", adds=64, executed_flops=64, bytes_read=512, bytes_written=256)
    total = launch("sum", adds=63, executed_flops=63, bytes_read=256, bytes_written=4)
    calls = [[], [add], [], [total], [add], []]
    counters = [MARK, counted("add_kernel", 64.0), MARK, MARK, counted("fold_parts", 60.0), counted("fold_rest", 10.0), MARK]
    counters += [counted("add_kernel", 66.0), MARK]
    profiled = {"add": Figures(seconds=3e-6, launches=2), "sum": Figures(seconds=4e-6, launches=2)}
    found = verify.compare(calls, counters, {}, profiled).rows
    assert [(x.kernels, x.cuda_kernels, x.launches) for x in found] == [
        (("add",), ("add_kernel",), 2),
        (("sum",), ("fold_parts", "fold_rest"), 1),
    ]
    assert [(x.executed_flops, x.counted_flops, x.bytes_read, x.bytes_written) for x in found] == [
        (128, 130.0, 1024, 512),
        (63, 70.0, 256, 4),
    ]
    assert found[0].ratio == pytest.approx(130 / 128)
    assert [(x.dram_read, x.dram_written, x.l2_bytes) for x in found] == [(200.0, 100.0, 800.0), (200.0, 100.0, 800.0)]
    assert [x.counted_seconds for x in found] == [pytest.approx(2e-6)] * 2
    assert found[0].seconds == 3e-6
    assert math.isnan(found[1].seconds)  # the other run had two launches


def test_launches_of_one_call_are_compared_together() -> None:
    calls = [[], [launch("linear", executed_flops=10), launch("adam_step", executed_flops=5), launch("linear", executed_flops=10)]]
    (found,) = verify.compare(calls, [MARK, counted("a", 9.0), counted("b", 6.0), counted("c", 10.0)], {}, {}).rows
    assert (found.kernels, found.launches, found.executed_flops, found.counted_flops) == (("linear", "adam_step"), 3, 25, 25.0)


def test_kernels_that_no_launch_tells_of_are_shown() -> None:
    found = verify.compare([[], []], [MARK, counted("void stranger<int>(int)", 8.0)], {}, {})
    assert [(x.kernels, x.launches, x.counted_flops) for x in found.rows] == [((), 0, 8.0)]
    assert "(stranger)" in str(found)
    assert "no launch of the ledger" in str(found)


def test_what_did_not_run_on_the_gpu_is_left_out() -> None:
    calls = [[], [launch("add", executed_flops=4)], [launch("take", bytes_read=8)]]
    assert [x.kernels for x in verify.compare(calls, [MARK, counted("k", 4.0), MARK], {}, {}).rows] == [("add",)]


def test_marks_that_are_missing_are_an_error() -> None:
    with pytest.raises(pb.PullbackError, match="saw 1 marks, the ledger 2"):
        verify.compare([[], [], []], [MARK], {}, {})


def test_a_product_of_known_size_tells_what_tensor_cores_count() -> None:
    known = 2 * verify.KNOWN_SIZE**3
    product = launch("matmul", "bfloat16", matmul_flops=known, executed_flops=known)
    used = launch("matmul", "bfloat16", matmul_flops=8192, executed_flops=16384)
    unknown = launch("matmul", "float16", matmul_flops=8192, executed_flops=16384)
    calls = [[], [product], [used], [unknown]]
    counters = [MARK, counted("mma", tensor=known / 4096), MARK, counted("mma", flops=3.0, tensor=4.0)]
    counters += [MARK, counted("mma", tensor=4.0)]
    found = verify.compare(calls, counters, {"bfloat16": (1, 2)}, {})
    assert found.tensor == {"bfloat16": 4096.0}
    assert found.rows[0].launches == 2
    assert math.isnan(found.rows[0].counted_flops)  # FLOPs of a dtype whose FLOPs per instruction are not known
    (alone,) = verify.compare(calls[:3], counters[:4], {"bfloat16": (1, 2)}, {}).rows
    assert (alone.counted_flops, alone.launches) == (3 + 4 * 4096, 1)


def test_it_prints_as_a_table() -> None:
    text = str(verify.compare([[], [launch("add", adds=1000, executed_flops=1000)]], [MARK, counted("k", 1100.0)], {}, {}))
    row = next(line for line in text.splitlines() if line.startswith("add"))
    assert row.split() == ["add", "1.00", "k", "1.10", "k", "1.10", "0", "150", "1.00", "us"]
    assert str(verify.Verification([], {})) == "no kernel ran on the GPU"


# ---- the run under ncu


def test_each_call_of_a_kernel_has_a_mark_before_and_after_and_a_ledger_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(x: int) -> int:
        return door.run_counted("tanh", lambda: x + 1, lambda _: {"adds": x})

    sent: dict[str, Any] = {}
    module = SimpleNamespace(tanh=None, forward=lambda name, function, type: sent.__setitem__(name, function))
    fake = SimpleNamespace(kernels=SimpleNamespace(tanh=kernel, array_type=list, simulated=False))
    kernels = fake.kernels
    monkeypatch.setattr(verify.gpu, "need", lambda: fake)
    monkeypatch.setattr(verify.native, "module", module)
    marks: list[int] = []
    with verify.Marked(lambda: marks.append(len(marks))) as marked:
        assert sent["tanh"](3) == 4
        kernel(4)  # a kernel that was looked up before
        assert fake.kernels.tanh(x=5) == 6
    assert [[(x.kernel, x.adds) for x in call] for call in marked.calls] == [[], [("tanh", 3)], [("tanh", 4)], [("tanh", 5)], []]
    assert len(marks) == len(marked.calls) - 1
    assert (fake.kernels, sent["tanh"], door.state.ledger) == (kernels, kernel, None)


def test_a_step_on_the_gpu_is_taken_apart_kernel_by_kernel(native: None) -> None:
    if not simulated():
        pytest.skip("there is no simulated GPU: it is built by make simulate")
    with pb.use_device("cuda"):
        net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
        opt = optim.SGD(net.parameters(), lr=0.1)
        x, y = pb.tensor(np.ones((6, 8), np.float32)), pb.tensor(np.arange(6) % 3)
        step = lambda: opt.minimize(lambda: nn.cross_entropy(net(x), y))
        step()
        with pb.profile() as prof:
            step()
        with verify.Marked(lambda: None) as marked:
            step()
        assert max(map(len, marked.calls)) == 1
        assert [x.kernel for call in marked.calls for x in call] == [x.kernel for x in prof.launches]
        with pb.profile() as after:
            step()
        assert [x.kernel for x in after.launches] == [x.kernel for x in prof.launches]


def test_the_counted_run_writes_the_ledger_of_each_call(native: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fakes the parts of CuPy that the simulated device lacks: kernels from source text, streams, and the profiler's switch."""
    if not simulated():
        pytest.skip("there is no simulated GPU: it is built by make simulate")
    told: list[str] = []
    runtime = SimpleNamespace(profilerStart=lambda: told.append("start"), profilerStop=lambda: told.append("stop"))
    here = lambda *_: contextlib.nullcontext()
    fakes = {
        "cuda": SimpleNamespace(runtime=runtime, Device=here, ExternalStream=here),
        "RawKernel": lambda source, name: lambda blocks, threads, arguments: told.append(name),
    }
    device = gpu.need()
    monkeypatch.setattr(device, "xp", SimpleNamespace(**{**vars(device.xp), **fakes}))
    monkeypatch.setattr(device, "_streams", {})
    monkeypatch.setattr(verify, "KNOWN_SIZE", 16)
    x = pb.ones((4, 4), device="cuda")
    verify.count(lambda: x @ x + x, tmp_path / "ledger")
    found = json.loads((tmp_path / "ledger").read_text())
    assert (told[0], told[-1], set(told[1:-1])) == ("start", "stop", {verify.MARK})
    assert len(found["calls"]) == len(told) - 1
    for dtype, (first, end) in found["products"].items():
        ((product,),) = [call for call in found["calls"][first:end] if call]
        assert (product["matmul_flops"], product["dtype"]) == (2 * 16**3, dtype)
    begin = max([end for _, end in found["products"].values()])
    assert [x["kernel"] for call in found["calls"][begin:] for x in call] == ["matmul", "add"]


FAKE_NCU = f"""#!{sys.executable}
import json, os, sys
if "--query-metrics" in sys.argv:
    print(open(os.environ["FAKE"] + "/query").read())
else:
    json.dump([sys.argv, os.environ["PULLBACK_COUNTING"]], open(os.environ["FAKE"] + "/started", "w"))
    log = sys.argv[sys.argv.index("--log-file") + 1]
    open(log, "w").write(open(os.environ["FAKE"] + "/table").read())
    if os.path.exists(os.environ["FAKE"] + "/ledger"):
        number, _, path = os.environ["PULLBACK_COUNTING"].partition(":")
        open(path, "w").write(open(os.environ["FAKE"] + "/ledger").read())
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fakes the parts of a GPU that verify uses, and an ncu that returns the files in its folder."""
    (tmp_path / "ncu").write_text(FAKE_NCU)
    (tmp_path / "ncu").chmod(0o755)
    (tmp_path / "query").write_text(QUERY)
    monkeypatch.setenv("FAKE", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(verify.devices, "why_not", lambda device: None)
    monkeypatch.setattr(verify.gpu, "need", lambda: SimpleNamespace(simulated=False, kernels=object()))
    monkeypatch.setattr(verify, "_calls", 0)
    return tmp_path


def write_run(folder: Path, calls: Sequence[Sequence[Launch]], *kernels: tuple[str, dict[str, str]]) -> None:
    (folder / "table").write_text(table(*kernels))
    (folder / "ledger").write_text(json.dumps({"calls": [[asdict(x) for x in call] for call in calls], "products": {}}))


def test_the_program_is_started_again_under_ncu_and_compared(fake: Path) -> None:
    product = launch("matmul", fmas=32, matmul_flops=64, executed_flops=64, bytes_read=128, bytes_written=64)
    values = {f"{SASS}ffma_pred_on.sum": "32", "gpu__time_duration.sum": "2000", "dram__bytes_read.sum": "128"}
    write_run(fake, [[], [product], []], (verify.MARK, {}), ("void multiply_plain<float>(float*)", values), (verify.MARK, {}))
    a = pb.ones((4, 4), device="cpu")
    (row,) = verify.verify(lambda: a @ a).rows
    assert (row.kernels, row.executed_flops, row.counted_flops, row.dram_read) == (("matmul",), 64, 64.0, 128.0)
    assert row.counted_seconds == pytest.approx(2e-6)
    assert row.seconds > 0
    command, counting = json.loads((fake / "started").read_text())
    assert command[command.index("--clock-control") + 1] == "none"
    assert command[command.index("--profile-from-start") + 1] == "off"
    assert set(command[command.index("--metrics") + 1].split(",")) == set(METRICS)
    assert command[command.index("--metrics") + 2 :] == [sys.executable, *sys.orig_argv[1:]]
    assert counting.partition(":")[0] == "1"


def test_a_program_that_ends_before_it_comes_to_the_step_is_told(fake: Path) -> None:
    (fake / "table").write_text("==WARNING== No kernels were profiled.\n")
    with pytest.raises(pb.PullbackError, match="ended before"):
        verify.verify(lambda: None)


def test_under_ncu_the_call_that_is_meant_counts_and_ends_the_program(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setenv("PULLBACK_COUNTING", f"2:{fake / 'out'}")
    monkeypatch.setattr(verify, "count", lambda step, path: ran.append((step(), path)))
    assert verify.verify(lambda: ran.append("first")).rows == []
    with pytest.raises(SystemExit) as ended:
        verify.verify(lambda: "second")
    assert ended.value.code == 0
    assert ran == ["first", ("second", fake / "out")]


def test_verify_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pb.PullbackError, match=r"pullback profile --verify"):
        verify.verify(None)
    monkeypatch.setattr(verify.devices, "why_not", lambda device: "this machine has no NVIDIA GPU")
    with pytest.raises(pb.PullbackError, match="no NVIDIA GPU"):
        verify.verify(lambda: None)
    monkeypatch.setattr(verify.devices, "why_not", lambda device: None)
    monkeypatch.setattr(verify.gpu, "need", lambda: SimpleNamespace(simulated=True))
    with pytest.raises(pb.PullbackError, match="simulated"):
        verify.verify(lambda: None)


def test_what_is_typed_in_cannot_be_started_again(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace())
    monkeypatch.setattr(sys, "orig_argv", ["python3"])
    with pytest.raises(pb.PullbackError, match="Put it into a script"):
        verify.verify(lambda: None)


def test_the_command_verifies_the_whole_script(
    fake: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from pullback import cli

    write_run(fake, [[], [launch("add", adds=3, executed_flops=3)], []], (verify.MARK, {}), ("k", {}), (verify.MARK, {}))
    monkeypatch.chdir(fake)
    (fake / "script.py").write_text("import pullback as pb\nx = pb.ones(3, device='cpu')\nprint(x + x)\n")
    assert cli.main(["profile", "--verify", "script.py", "a"]) == 0
    out, err = capfd.readouterr()
    assert "2." in out
    assert err.index("total") < err.index("ledger")
    command, counting = json.loads((fake / "started").read_text())
    assert command[-6:] == [sys.executable, "-m", "pullback", "profile", "script.py", "a"]
    assert counting.partition(":")[0] == "0"


def test_a_profile_has_it() -> None:
    with pytest.raises(pb.PullbackError, match="a profile keeps figures, not what was run"):
        Profile().verify()


def test_a_run_under_ncu_that_failed_is_told_and_not_read(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(fake, [[]], (verify.MARK, {}))
    done = subprocess.CompletedProcess([], 7, "", "ValueError: no data")
    query = subprocess.CompletedProcess([], 0, QUERY, "")
    monkeypatch.setattr(ncu.subprocess, "run", lambda command, **options: query if "--query-metrics" in command else done)
    with pytest.raises(pb.PullbackError, match=r"(?s)status 7.*ValueError: no data"):
        ncu.count([sys.executable, "-c", "pass"], {})
