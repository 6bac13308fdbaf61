"""Verification: the ledger of a step against the GPU's hardware counters.

ncu reads counters of a process that it has started, so the program runs a second time, from its beginning, under ncu: the same
command, with a variable in its environment that makes it count the step and then end. Pickling the step instead would fail for
every model in a closure, and rebuild no optimizer. What the program writes or downloads before the step, it does twice.

A launch of the ledger is no, one or several CUDA kernels. To know which, the second run calls each native kernel between two
empty kernels, MARK, and takes the ledger of each call apart: what lies between two marks in ncu's list is what the ledger has
between them. What lies there together (the launches of a replay) is compared together, and what is alike is summed up.
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

from .. import amp, config
from ..backends import native
from ..errors import PullbackError
from ..launch import door
from ..launch.door import Launch
from ..tensors import devices, gpu
from ..tensors.creation import ones
from . import ncu
from .figures import Figures
from .ncu import Counters, NoCountersError
from .session import Profile
from .table import as_text, duration, grid, quantity, three_digits

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable

MARK: Final = "pullback_mark"
KNOWN_SIZE: Final = 512  # of the products that tell what one count of the tensor cores is; no kernel of ours pads it
TENSOR_DTYPES: Final = ("bfloat16", "float16", "tf32")
COLUMNS: Final = ("\nkernel", "FLOPs\nledger", "\ncounted", "\nratio", "bytes\nledger", "\nDRAM", "time\nprofile", "\nncu")
_calls = 0


class Verified(NamedTuple):
    """Calls that ran the same kernels, as the ledger has them and as the GPU counted them.

    Attributes:
        kernels: of the ledger, each once; none where the GPU ran what no launch tells of.
        cuda_kernels: what ncu calls those that ran.
        flops: by the formula; matmul_flops: those in products; executed_flops: what the kernels do, by the ledger; special_ops:
            which are in none of these.
        counted_flops: adds, multiplies and twice multiply-adds, those inside of special ops too; with those of tensor cores.
        bytes_read, bytes_written: by the ledger. dram_read, dram_written, l2_bytes: counted.
        seconds: in a run of its own with detail="kernel", nan where it was not the same launches; counted_seconds: by ncu.
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
        """Counted FLOPs / executed ones of the ledger; nan where it has none. What special ops are inside makes it more than 1."""
        return self.counted_flops / self.executed_flops if self.executed_flops else math.nan


@dataclasses.dataclass(frozen=True)
class Verification:
    """What verify found; printed, a table.

    Attributes:
        rows: in the order in which they ran first.
        tensor: FLOPs of one count of the tensor cores by dtype, from a product of known size; none for what does not use them.
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
    )  # fmt: skip


# ---- this run


def verify(step: Callable[[], Any] | None) -> Verification:
    """Runs `step()` here, with timed launches, and once more under ncu, and compares launch by launch.

    This program is started again from its beginning, with the arguments of this run, and ends when it has come here and counted
    the step: it should not take long before, and may write its files twice. `pullback profile --verify script.py` does the same
    with a whole script. Launches of other threads are not told apart.

    Raises NoCountersError (a PullbackError): no GPU, no ncu, no permission to read counters. PullbackError: no step, no program
    that can be started again, or one that failed.
    """
    global _calls
    if step is None:
        raise PullbackError(
            "verify: a profile keeps figures, not what was run. Pass it again, as in prof.verify(lambda: train_step(x, y)), or "
            "run the script by: pullback profile --verify script.py"
        )
    _calls += 1
    if asked := config.counting():
        if asked[0] == _calls:
            count(step, Path(asked[1]))
            raise SystemExit(0)
        step()
        return Verification([], {})
    check_gpu()
    if not hasattr(sys.modules["__main__"], "__file__") and "-c" not in sys.orig_argv:
        raise PullbackError("verify: what is typed in cannot be started again. Put it into a script.")
    with Profile(detail="kernel") as prof:
        step()
    return verified(prof, [sys.executable, *sys.orig_argv[1:]], _calls)


def check_gpu() -> None:
    """Raises NoCountersError where there is no GPU with counters, or no ncu."""
    if reason := devices.why_not("cuda"):
        raise NoCountersError(f"verify: the counters are a GPU's, and there is none: {reason}.")
    if gpu.need().simulated:
        raise NoCountersError("verify: the GPU is simulated here, and has no counters. Verify on a machine with an NVIDIA GPU.")
    if gpu.need().kernels is None:
        raise NoCountersError(f"verify: there are no CUDA kernels to verify: {gpu.need().why_no_kernels}.")
    ncu.find()


def verified(prof: Profile, command: Sequence[str], number: int) -> Verification:
    """The profile's step, run again by the command under ncu. `number`: as in config.counting."""
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
    """Runs products of known size and then the step between marks, and writes their ledger to the file."""
    square = lambda dtype: ones((KNOWN_SIZE, KNOWN_SIZE), dtype="float32" if dtype == "tf32" else dtype, device="cuda")
    factors = {dtype: square(dtype) for dtype in TENSOR_DTYPES}
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
    """The calls that one product makes: the first, and the one after the last."""
    first = marked.mark()
    with amp.autocast("tf32" if dtype == "tf32" else "float32"):
        _ = factor @ factor
    return first, marked.mark()


class Marked:
    """While entered, GPU kernels that are called from Python have a mark before and after them, and `calls` the ledger between each
    two: first what is before the first mark, last what is after the last.

    What has looked a kernel up before (an optimizer, a replay) calls it without marks, between those of others.
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
        """Launches a mark; returns the number of the call that begins."""
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
        """Calls of the CPU's kernels with a GPU's arrays go there."""
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
    """The ledger's calls beside what ncu counted between the marks; those that ran no CUDA kernel (on the CPU, or copies) are left
    out.

    Args:
        products: by dtype, which of the calls are a product of KNOWN_SIZE; the step begins after them.
        profiled: figures with times by kernel, of another run of the step.

    Raises PullbackError where the marks are not as many as the ledger has.
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
    )  # fmt: skip


def _tensor_flops(call: Sequence[Launch], part: Sequence[Counters], tensor: Mapping[str, float]) -> float:
    """What the tensor cores did in a call, in FLOPs; nan where the products are of a dtype that was not measured, or of several."""
    counts = math.fsum([x.tensor for x in part])
    dtypes = {launch.dtype for launch in call if launch.matmul_flops}
    if not counts or math.isnan(counts):
        return 0.0
    return counts * tensor.get(dtypes.pop(), math.nan) if len(dtypes) == 1 else math.nan
