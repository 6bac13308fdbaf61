"""Verification: compares the ledger of a step with the GPU's hardware counters.

ncu reads the counters of a process that it has started. The program therefore runs a second time, from its beginning, under ncu:
the same command, with an environment variable that makes it count the step and then end. Pickling the step instead would fail for
every model in a closure, and would not restore an optimizer. The program repeats everything that it writes or downloads before
the step.

One launch of the ledger may run no CUDA kernel, one, or several. To match the two, the second run calls each native kernel
between two empty kernels named MARK, and takes a separate ledger of each call. The kernels between two marks in ncu's list then
belong to the launches between the same marks. Launches that lie together between two marks (those of a replay) are compared
together, and calls of the same kernels are summed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .. import variables
from ..backends import modes, native
from ..backends.autocast import autocast
from ..errors import PullbackError
from ..launch import door
from ..launch.door import Launch
from ..tensors import devices, gpu
from ..tensors.creation import ones
from . import ncu
from .figures import Figures
from .ncu import Counters, NoCountersError
from .session import Profile
from .table import as_text, grid
from .units import duration, quantity, three_digits

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable

MARK: Final = "pullback_mark"
KNOWN_SIZE: Final = 512  # n of the n × n products that calibrate the tensor cores' counter; no kernel pads this size
TENSOR_DTYPES: Final = ("bfloat16", "float16", "tf32")
COLUMNS: Final = ("\nkernel", "FLOPs\nledger", "\ncounted", "\nratio", "bytes\nledger", "\nDRAM", "time\nprofile", "\nncu")
_calls = 0  # how often verify() was called with a step


class Verified(NamedTuple):
    """The sums over calls that ran the same kernels, by the ledger and by the GPU's counters.

    Attributes:
        kernels: names of the ledger's kernels, each once; empty if the GPU ran kernels that belong to no launch.
        launches: the number of launches in the ledger.
        cuda_kernels: ncu's names of the CUDA kernels that ran.
        flops: the ledger's FLOPs, by the textbook formulas.
        matmul_flops: the part of flops in matrix products.
        executed_flops: the FLOPs that the kernels execute according to the ledger.
        special_ops: the ledger's special ops, which are in none of the FLOPs above.
        counted_flops: counted additions, multiplications and twice the multiply-adds, including those inside special ops and
            those of tensor cores.
        bytes_read, bytes_written: bytes by the ledger.
        dram_read, dram_written, l2_bytes: counted bytes.
        seconds: the time in the separate run with detail="kernel"; nan if that run made different launches.
        counted_seconds: the time by ncu.
    """

    kernels: tuple[str, ...]
    launches: int
    cuda_kernels: tuple[str, ...]
    flops: int
    matmul_flops: int
    executed_flops: int
    special_ops: int
    counted_flops: float
    bytes_read: int
    bytes_written: int
    dram_read: float
    dram_written: float
    l2_bytes: float
    seconds: float
    counted_seconds: float

    @property
    def ratio(self) -> float:
        """Counted FLOPs / executed FLOPs of the ledger; nan if the ledger has none. FLOPs inside special ops raise it above 1."""
        return self.counted_flops / self.executed_flops if self.executed_flops else math.nan


@dataclasses.dataclass(frozen=True)
class Verification:
    """The result of verify. It prints as a table.

    Attributes:
        rows: one Verified per set of kernels, in the order in which they ran first.
        tensor: the FLOPs of one count of the tensor cores by dtype, measured on a product of known size. It lacks the dtypes whose
            products do not use tensor cores.
    """

    rows: list[Verified]
    tensor: dict[str, float]

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def __repr__(self) -> str:
        return f"Verification({len(self.rows)} rows)"

    def __rich__(self) -> ConsoleRenderable:
        from rich.console import Group
        from rich.text import Text

        if not self.rows:
            return Text("no kernel ran on the GPU")
        strangers = any([not row.kernels for row in self.rows])
        note = [Text("\nin parentheses: CUDA kernels that no launch of the ledger tells of")] if strangers else []
        return Group(grid(COLUMNS, [_cells(row) for row in self.rows]), *note)


def _cells(row: Verified) -> tuple[str, ...]:
    known = lambda x, words: "" if math.isnan(x) else words(x)
    return (
        " + ".join(row.kernels) or f"({', '.join(row.cuda_kernels)})", quantity(row.executed_flops),
        known(row.counted_flops, quantity), known(row.ratio, three_digits), quantity(row.bytes_read + row.bytes_written),
        known(row.dram_read + row.dram_written, quantity), known(row.seconds, duration), known(row.counted_seconds, duration),
    )


# ---- this run


def verify(step: Callable[[], Any] | None) -> Verification:
    """Runs `step()` here, with timed launches, and once more under ncu, and compares launch by launch.

    This program is started again from its beginning, with the arguments of this run, and ends when it has counted the step. The
    part before the step should therefore be short, and may write its files twice. `pullback profile --verify script.py` does the
    same with a whole script. Launches of other threads cannot be distinguished.

    Raises NoCountersError (a PullbackError) without a GPU, without ncu, or without permission to read counters. Raises
    PullbackError if there is no step, if the program cannot be started again, or if it failed.
    """
    global _calls
    if step is None:
        raise PullbackError(
            "verify: a profile keeps figures, not what was run. Pass it again, as in prof.verify(lambda: train_step(x, y)), or "
            "run the script by: pullback profile --verify script.py"
        )
    _calls += 1
    if asked := variables.counting():
        if asked[0] == _calls:
            count(step, Path(asked[1]))
            raise SystemExit(0)
        step()
        return Verification([], {})
    check_gpu()
    if not hasattr(sys.modules["__main__"], "__file__") and "-c" not in sys.orig_argv:
        raise PullbackError("verify: an interactive session cannot be run a second time. Put it into a script.")
    with Profile(detail="kernel") as prof:
        step()
    return verified(prof, [sys.executable, *sys.orig_argv[1:]], _calls)


def check_gpu() -> None:
    """Raises NoCountersError if there is no GPU with counters, or no ncu."""
    if reason := devices.why_not("cuda"):
        raise NoCountersError(f"verify: the counters are a GPU's, and there is none: {reason}.")
    if gpu.need().simulated:
        raise NoCountersError("verify: the GPU is simulated here, and has no counters. Verify on a machine with an NVIDIA GPU.")
    if gpu.need().kernels is None:
        raise NoCountersError(f"verify: there are no CUDA kernels to verify: {gpu.need().why_no_kernels}.")
    ncu.find()


def verified(prof: Profile, command: Sequence[str], number: int) -> Verification:
    """Runs the command under ncu, and compares its counters with the profile. `number` is that of variables.counting."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ledger.json")
        counters = ncu.count(command, {**os.environ, "PULLBACK_COUNTING": f"{number}:{path}"})
        if not path.exists():
            raise PullbackError("verify: run again, the program ended before it came to what is verified. Give it the same input.")
        found = json.loads(path.read_text())
    calls = [[Launch(**launch) for launch in call] for call in found["calls"]]
    return compare(calls, counters, found["products"], {group.name: group.total for group in prof.by("kernel")})


# ---- the run under ncu


def count(step: Callable[[], Any], path: Path) -> None:
    """Runs products of known size and then the step, both between marks, and writes their ledger to the file."""
    square = lambda dtype: ones((KNOWN_SIZE, KNOWN_SIZE), dtype="float32" if dtype == "tf32" else dtype, device="cuda")
    factors = {dtype: square(dtype) for dtype in TENSOR_DTYPES if modes.allows(dtype)}
    cuda = gpu.need().xp.cuda
    empty = gpu.need().xp.RawKernel(f'extern "C" __global__ void {MARK}() {{}}', MARK)
    stream = gpu.need().stream(0)

    def launch_mark() -> None:
        with stream:
            empty((1,), (1,), ())

    cuda.runtime.profilerStart()
    with Marked(launch_mark) as marked:
        products = {dtype: _known_product(marked, dtype, factor) for dtype, factor in factors.items()}
        step()
    devices.cuda.synchronize()
    cuda.runtime.profilerStop()
    calls = [[dataclasses.asdict(launch) for launch in call] for call in marked.calls]
    path.write_text(json.dumps({"calls": calls, "products": products}))


def _known_product(marked: Marked, dtype: str, factor: Any) -> tuple[int, int]:
    """Runs one product. Returns the number of its first call, and the number after that of its last call."""
    first = marked.mark()
    with autocast("tf32" if dtype == "tf32" else "float32"):
        _ = factor @ factor
    return first, marked.mark()


class Marked:
    """Launches a mark before and after every GPU kernel that Python calls inside the `with` statement.

    Code that looked a kernel up before the statement (an optimizer, a replay) calls it without marks, so that its launches lie
    between the marks of other calls.

    Attributes:
        calls: the launches before the first mark, then those between each two marks, and at the end those after the last mark.
    """

    def __init__(self, launch_mark: Callable[[], None]) -> None:
        self.calls: list[list[Launch]] = []
        self._launch_mark = launch_mark
        self._gpu = gpu.need()
        self._kernels = self._gpu.kernels
        self._ledger = door.Ledger()

    def __enter__(self) -> Marked:
        functions = {name: value for name, value in vars(self._kernels).items() if callable(value) and not isinstance(value, type)}
        marked = {name: self._marking(function) for name, function in functions.items()}
        self._send(marked)
        self._gpu.kernels = SimpleNamespace(**{**vars(self._kernels), **marked})
        self._ledger = door.begin("kernel")
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append(door.end(self._ledger).launches)
        self._gpu.kernels = self._kernels
        self._send(vars(self._kernels))

    def mark(self) -> int:
        """Launches a mark. Returns the number of the call that begins there."""
        self.calls.append(door.end(self._ledger).launches)
        self._launch_mark()
        self._ledger = door.begin("kernel")
        return len(self.calls)

    def _marking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.mark()
            try:
                return function(*arguments, **options)
            finally:
                self.mark()

        return call

    def _send(self, functions: Mapping[str, Any]) -> None:
        """Makes the CPU's kernels forward calls with GPU arrays to these functions."""
        for name, function in functions.items():
            if native.module is not None and hasattr(native.module, name):
                native.module.forward(name, function, self._kernels.array_type)


# ---- comparing


def compare(
    calls: Sequence[Sequence[Launch]],
    counters: Sequence[Counters],
    products: Mapping[str, tuple[int, int]],
    profiled: Mapping[str, Figures],
) -> Verification:
    """Compares the ledger's calls with the counters between the same marks.

    Calls that ran no CUDA kernel (on the CPU, or copies) are left out.

    Args:
        calls: the ledger's launches between the marks.
        counters: the counters of all CUDA kernels, the marks included, in order.
        products: by dtype, the first call and the call after the last of the product of KNOWN_SIZE. The step begins after these.
        profiled: figures with times by kernel, from a different run of the step.

    Raises PullbackError if the counters and the ledger differ in the number of marks.
    """
    parts = _between_marks(counters)
    if len(parts) != len(calls):
        raise PullbackError(
            f"verify: ncu saw {len(parts) - 1} marks, the ledger {len(calls) - 1}. Does another thread use the GPU? Verify a step "
            f"that runs alone."
        )
    tensor = {}
    for dtype, (first, end) in products.items():
        if counted := sum([x.tensor for part in parts[first:end] for x in part]):
            tensor[dtype] = 2 * KNOWN_SIZE**3 / counted
    begin = max([end for _, end in products.values()], default=0)
    alike: dict[tuple[str, ...], list[tuple[Sequence[Launch], Sequence[Counters]]]] = {}
    for call, part in zip(calls[begin:], parts[begin:]):
        if part:
            alike.setdefault(tuple(dict.fromkeys([launch.kernel for launch in call])), []).append((call, part))
    return Verification([_row(kernels, pairs, tensor, profiled) for kernels, pairs in alike.items()], tensor)


def _between_marks(counters: Sequence[Counters]) -> list[list[Counters]]:
    parts: list[list[Counters]] = [[]]
    for x in counters:
        if x.name.startswith(MARK):
            parts.append([])
        else:
            parts[-1].append(x)
    return parts


def _row(
    kernels: tuple[str, ...],
    pairs: Sequence[tuple[Sequence[Launch], Sequence[Counters]]],
    tensor: Mapping[str, float],
    profiled: Mapping[str, Figures],
) -> Verified:
    launches = [launch for call, _ in pairs for launch in call]
    counted = [x for _, part in pairs for x in part]
    ran = Counter([launch.kernel for launch in launches])
    same = all([name in profiled and profiled[name].launches == times for name, times in ran.items()])
    ledger = lambda figure: sum([getattr(launch, figure) for launch in launches])
    found = lambda figure: math.fsum([getattr(x, figure) for x in counted])
    return Verified(
        kernels, len(launches), ncu.names_of(counted),
        ledger("flops"), ledger("matmul_flops"), ledger("executed_flops"), ledger("special_ops"),
        found("flops") + math.fsum([_tensor_flops(call, part, tensor) for call, part in pairs]),
        ledger("bytes_read"), ledger("bytes_written"), found("dram_read"), found("dram_written"), found("l2_bytes"),
        math.fsum([profiled[name].seconds for name in kernels]) if same and kernels else math.nan, found("seconds"),
    )


def _tensor_flops(call: Sequence[Launch], part: Sequence[Counters], tensor: Mapping[str, float]) -> float:
    """Returns the FLOPs of the tensor cores in a call; nan if its products have several dtypes or one that was not measured."""
    counts = math.fsum([x.tensor for x in part])
    dtypes = {launch.dtype for launch in call if launch.matmul_flops}
    if not counts or math.isnan(counts):
        return 0.0
    return counts * tensor.get(dtypes.pop(), math.nan) if len(dtypes) == 1 else math.nan
