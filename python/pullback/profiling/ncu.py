"""NVIDIA's Nsight Compute (`ncu`): how it is found and started, what it is asked to count, and how what it writes is read."""

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

Metrics = Mapping[str, float]  # names without their ending .sum, and what one of each counts for

# Thread instructions that were executed. A multiply-add is two; instructions on halves work on two at once.
_OPERATIONS: Final = {"add": 1, "mul": 1, "fma": 2}
_WIDTHS: Final = {"f": 1, "d": 1, "h": 2}
_TENSOR: Final = "sm__ops_path_tensor_src_"
_PIPE: Final = "sm__inst_executed_pipe_tensor"

# What is wanted, each in the ways in which GPUs and versions of ncu call it; the first that is there is taken.
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
    """What the GPU counted of one CUDA kernel; nan where this GPU has no such counter.

    Attributes:
        name: of the CUDA kernel.
        flops: adds, multiplies and twice multiply-adds outside tensor cores, of threads that were not masked out.
        tensor: operations or instructions of tensor cores, whichever this GPU counts.
        dram_read, dram_written: bytes. l2_bytes: between the level-2 cache and what is before it. seconds: of the kernel.
    """

    name: str
    flops: float
    tensor: float
    dram_read: float
    dram_written: float
    l2_bytes: float
    seconds: float


class NoCountersError(PullbackError):
    """This machine has no hardware counters to read, or keeps them from this user."""


def find() -> str:
    """The path of ncu. Raises NoCountersError where there is none."""
    places = [*Path("/usr/local").glob("cuda*/bin/ncu"), *Path("/opt/nvidia/nsight-compute").glob("*/ncu")]
    found = shutil.which("ncu") or max(map(str, places), default=None)
    if found is None:
        raise NoCountersError(
            "verify: ncu was not found; it reads the GPU's counters. Install NVIDIA Nsight Compute (it comes with the CUDA "
            "toolkit), or put its folder on PATH."
        )
    return found


def roles_of(query: str) -> dict[str, Metrics]:
    """The metrics to ask for, from what `ncu --query-metrics` printed. Raises PullbackError where it knows no arithmetic."""
    known = {line.split()[0] for line in query.splitlines() if line.strip()}
    taken = {role: next((way for way in ways if known >= set(way)), {}) for role, ways in ROLES.items()}
    if not taken["flops"] or not taken["seconds"]:
        raise PullbackError(
            "verify: this ncu knows no counters of floating-point instructions for this GPU (ncu --query-metrics). Take the "
            "version of ncu that came with the driver's CUDA."
        )
    return taken


def count(command: Sequence[str], environment: Mapping[str, str]) -> list[Counters]:
    """Runs the command under ncu, which counts each CUDA kernel between cudaProfilerStart and Stop, in order.

    ncu runs each kernel several times with the caches flushed before, so times are those of cold caches. Raises NoCountersError,
    and PullbackError for a command that failed, with what it said.
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
    """Raises PullbackError where ncu, or the command that it ran, failed; NoCountersError for want of permission."""
    if "ERR_NVGPUCTRPERM" in said:
        raise NoCountersError(
            "verify: the driver keeps this GPU's counters to administrators (ERR_NVGPUCTRPERM). Run as root, in a container with "
            "--cap-add=SYS_ADMIN, or load the driver with NVreg_RestrictProfilingToAdminUsers=0."
        )
    told = [line for line in said.splitlines() if line.strip() and not line.startswith(('"', "==PROF=="))]
    if status != 0 or any([line.startswith("==ERROR==") for line in told]):
        raise PullbackError(
            f"verify: the run under ncu failed with status {status}. Does the program run without it? The last that was said:\n"
            + "\n".join(told[-20:])
        )


def parse(text: str, roles: Mapping[str, Metrics]) -> list[Counters]:
    """What `ncu --csv --page raw` wrote: lines of its own, a line with the columns, one with their units, then one a kernel."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    columns, *rows = list(csv.reader([line for line in lines[begin:] if line.startswith('"')])) or [[]]
    if not rows:
        return []
    units, *kernels = [dict(zip(columns, row)) for row in rows]
    return [Counters(kernel["Kernel Name"], *[_sum(kernel, units, roles[role]) for role in ROLES]) for kernel in kernels]


def _sum(kernel: Mapping[str, str], units: Mapping[str, str], metrics: Metrics) -> float:
    """The metrics of one role together, in bytes or seconds or numbers."""
    if not metrics:
        return math.nan
    return math.fsum([_value(kernel, units, f"{name}.sum") * weight for name, weight in metrics.items()])


def _value(kernel: Mapping[str, str], units: Mapping[str, str], column: str) -> float:
    try:
        return float(kernel[column].replace(",", "")) * UNITS[units[column]]
    except KeyError as error:
        raise PullbackError(f"verify: ncu's table has no column or unit {error}. Take another version of ncu.") from None
    except ValueError:  # "n/a", "(!) nan": not counted for this kernel
        return math.nan


def names_of(counters: Collection[Counters]) -> tuple[str, ...]:
    """The names of the CUDA kernels, each once, without template arguments and parameters."""
    whole = [x.name.replace("(anonymous namespace)::", "").removeprefix("void ") for x in counters]
    return tuple(dict.fromkeys([name.partition("(")[0].partition("<")[0] for name in whole]))
