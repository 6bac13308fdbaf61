"""Finds and runs NVIDIA's Nsight Compute (`ncu`), selects the metrics that it collects, and parses its output."""

from __future__ import annotations

import csv
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ..errors import PullbackError

Metrics = Mapping[str, float]  # the weight of each metric in a sum, by the metric's name without its ending .sum

# FLOPs of one executed thread instruction: a multiply-add is two, and instructions on halves (h) process two elements at once.
_OPERATIONS: Final = {"add": 1, "mul": 1, "fma": 2}
_WIDTHS: Final = {"f": 1, "d": 1, "h": 2}
_TENSOR: Final = "sm__ops_path_tensor_src_"
_PIPE: Final = "sm__inst_executed_pipe_tensor"

# The metrics of each quantity. GPUs and versions of ncu name metrics differently, so the first alternative that exists is used.
ROLES: Final[dict[str, Sequence[Metrics]]] = {
    "flops": [
        {
            f"sm__sass_thread_inst_executed_op_{kind}{operation}_pred_on": width * flops
            for kind, width in _WIDTHS.items()
            for operation, flops in _OPERATIONS.items()
        }
    ],
    "tensor": [
        dict.fromkeys([f"{_TENSOR}{source}_dst_fp32" for source in ("bf16", "fp16", "tf32")], 1),
        {_PIPE: 1},
        {f"{_PIPE}_op_hmma": 1, f"{_PIPE}_op_gmma": 1},
        {f"{_PIPE}_op_hmma": 1},
    ],
    "dram_read": [{"dram__bytes_read": 1}, {"dram__bytes_op_read": 1}],
    "dram_written": [{"dram__bytes_write": 1}, {"dram__bytes_op_write": 1}],
    "l2_bytes": [{"lts__t_bytes": 1}],
    "seconds": [{"gpu__time_duration": 1}],
}

_THOUSANDS: Final = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
UNITS: Final = {
    **{prefix + unit: size for prefix, size in _THOUSANDS.items() for unit in ("byte", "inst", "")},
    **dict(zip(("nsecond", "usecond", "msecond", "second"), (1e-9, 1e-6, 1e-3, 1))),
    **dict(zip(("ns", "us", "ms", "s"), (1e-9, 1e-6, 1e-3, 1))),
}


class Counters(NamedTuple):
    """The hardware counters of one CUDA kernel; nan for counters that this GPU lacks.

    Attributes:
        name: the name of the CUDA kernel.
        flops: additions, multiplications and twice the multiply-adds outside tensor cores, of threads that were not masked out.
        tensor: operations or instructions of tensor cores, whichever this GPU counts.
        dram_read, dram_written: bytes read from and written to DRAM.
        l2_bytes: bytes that pass between the L2 cache and its clients (the L1 caches and other units).
        seconds: the duration of the kernel.
    """

    name: str
    flops: float
    tensor: float
    dram_read: float
    dram_written: float
    l2_bytes: float
    seconds: float


class NoCountersError(PullbackError):
    """Raised if this machine has no hardware counters, or if this user may not read them."""


def find() -> str:
    """Returns the path of ncu. Raises NoCountersError if it is not installed."""
    places = [*Path("/usr/local").glob("cuda*/bin/ncu"), *Path("/opt/nvidia/nsight-compute").glob("*/ncu")]
    found = shutil.which("ncu") or max(map(str, places), default=None)
    if found is None:
        raise NoCountersError(
            "verify: ncu was not found; it reads the GPU's counters. Install NVIDIA Nsight Compute (it comes with the CUDA "
            "toolkit), or put its folder on PATH."
        )
    return found


def roles_of(query: str) -> dict[str, Metrics]:
    """Selects the metrics of each role from the output of `ncu --query-metrics`.

    Raises PullbackError if no floating-point counters or no times are available.
    """
    known = {line.split()[0] for line in query.splitlines() if line.strip()}
    taken = {role: next((way for way in ways if known >= set(way)), {}) for role, ways in ROLES.items()}
    if not taken["flops"] or not taken["seconds"]:
        raise PullbackError(
            "verify: this ncu knows no counters of floating-point instructions for this GPU (ncu --query-metrics). Take the "
            "version of ncu that came with the driver's CUDA."
        )
    return taken


def count(command: Sequence[str], environment: Mapping[str, str]) -> list[Counters]:
    """Runs the command under ncu, and returns the counters of each CUDA kernel between cudaProfilerStart and Stop, in order.

    ncu runs each kernel several times and flushes the caches before each run, so the times are those of cold caches. Raises
    NoCountersError, and PullbackError with the end of the output if the command failed.
    """
    ncu = find()
    roles = roles_of(_said(subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, errors="replace")))
    names = [f"{name}.sum" for way in roles.values() for name in way]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "counters.csv")
        options = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--profile-from-start", "off"]
        started = [ncu, *options, "--log-file", os.fspath(log), "--metrics", ",".join(names), *command]
        done = subprocess.run(started, env=dict(environment), capture_output=True, text=True, errors="replace")
        text = log.read_text(errors="replace") if log.exists() else ""
    check(done.returncode, text + _said(done))
    return parse(text, roles)


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout + done.stderr


def check(status: int, said: str) -> None:
    """Raises PullbackError if ncu or the command that it ran failed, and NoCountersError if permission is missing."""
    if "ERR_NVGPUCTRPERM" in said:
        raise NoCountersError(
            "verify: the driver keeps this GPU's counters to administrators (ERR_NVGPUCTRPERM). Run as root, in a container with "
            "--cap-add=SYS_ADMIN, or load the driver with NVreg_RestrictProfilingToAdminUsers=0."
        )
    told = [line for line in said.splitlines() if line.strip() and not line.startswith(('"', "==PROF=="))]
    if status != 0 or any([line.startswith("==ERROR==") for line in told]):
        raise PullbackError(
            f"verify: the run under ncu failed with status {status}. Does the program run without it? Its last output:\n"
            + "\n".join(told[-20:])
        )


def parse(text: str, roles: Mapping[str, Metrics]) -> list[Counters]:
    """Parses the output of `ncu --csv --page raw`.

    It consists of ncu's log lines, a line with the column names, a line with their units, and then one line per kernel.
    """
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    columns, *rows = list(csv.reader([line for line in lines[begin:] if line.startswith('"')])) or [[]]
    if not rows:
        return []
    units, *kernels = [dict(zip(columns, row)) for row in rows]
    return [Counters(kernel["Kernel Name"], *[_sum(kernel, units, roles[role]) for role in ROLES]) for kernel in kernels]


def _sum(kernel: Mapping[str, str], units: Mapping[str, str], metrics: Metrics) -> float:
    """Returns the weighted sum of one role's metrics, in bytes, seconds or counts; nan if the role has no metrics."""
    if not metrics:
        return math.nan
    return math.fsum([_value(kernel, units, f"{name}.sum") * weight for name, weight in metrics.items()])


def _value(kernel: Mapping[str, str], units: Mapping[str, str], column: str) -> float:
    try:
        return float(kernel[column].replace(",", "")) * UNITS[units[column]]
    except KeyError as error:
        raise PullbackError(f"verify: ncu's table has no column or unit {error}. Take another version of ncu.") from None
    except ValueError:  # "n/a" and "(!) nan" mean that the metric was not counted for this kernel.
        return math.nan


def names_of(counters: Collection[Counters]) -> tuple[str, ...]:
    """Returns the names of the CUDA kernels, each once, without template arguments and parameters."""
    whole = [x.name.replace("(anonymous namespace)::", "").removeprefix("void ") for x in counters]
    return tuple(dict.fromkeys([name.partition("(")[0].partition("<")[0] for name in whole]))
