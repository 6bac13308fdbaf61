"""The roofline model: compares the rates of each kernel with the device's peaks, and finds what bounds the kernel."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ..errors import PullbackError
from .figures import Figures, total
from .peaks import Peaks, peaks
from .table import as_text, grid
from .units import duration, quantity, three_digits

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable

    from .session import Profile

COLUMNS: Final = ("kernel", "launches", "FLOP/B", "FLOP/s", "B/s", "time", "bound", "roof")


class KernelRates(NamedTuple):
    """The work and the rates of all launches of one kernel in one dtype.

    Attributes:
        launches: the number of launches.
        flops, special_ops, bytes: sums over the launches; bytes are those read and written.
        seconds: the time inside the launches.
        intensity: FLOP per byte; inf if the kernel computes but moves no bytes.
        flops_per_second, bytes_per_second: 0 if the measured time is 0.
        bound: "compute" or "memory", whichever would take longer at its peak rate; "launch" if both would take less than
            launches * launch_seconds.
        share: the time at the peak rates divided by the measured time. More than 1 means that operands were in a cache.
    """

    kernel: str
    dtype: str
    launches: int
    flops: int
    special_ops: int
    bytes: int
    seconds: float
    intensity: float
    flops_per_second: float
    bytes_per_second: float
    bound: str
    share: float


@dataclass(frozen=True)
class Roofline:
    """The result of roofline. It prints as a table.

    Attributes:
        rows: the kernels, those that took longest first.
        peaks: the peaks of the device.
    """

    rows: list[KernelRates]
    peaks: Peaks

    def __str__(self) -> str:
        return as_text(self.__rich__(), whole_words=True)

    def __repr__(self) -> str:
        return f"Roofline({len(self.rows)} kernels, {self.peaks.device})"

    def __rich__(self) -> ConsoleRenderable:
        from rich.console import Group
        from rich.text import Text

        if not self.rows:
            return Text("nothing ran in this profile")
        best = self.peaks
        products = ", ".join([f"{dtype} {quantity(rate, 'FLOP/s')}" for dtype, rate in best.products.items()])
        facts = [
            f"{best.device}, {best.kernels}" + (f", {best.threads} threads" if best.threads else ""),
            f"products: {products}",
            f"other arithmetic: {quantity(best.elementwise, 'FLOP/s')}; copy: {quantity(best.bytes_per_second, 'B/s')}; "
            f"launch: {duration(best.launch_seconds)}",
        ]
        often = Counter([row.kernel for row in self.rows])
        names = [f"{row.kernel} {row.dtype}" if often[row.kernel] > 1 else row.kernel for row in self.rows]
        cells = [_cells(name, row) for name, row in zip(names, self.rows)]
        return Group(grid(COLUMNS, cells, gap=1, names=max(map(len, names))), Text(), *[Text(fact) for fact in facts])


def _cells(name: str, row: KernelRates) -> tuple[str, ...]:
    return (
        name, str(row.launches), three_digits(row.intensity), quantity(row.flops_per_second), quantity(row.bytes_per_second),
        duration(row.seconds), row.bound, f"{row.share:.0%}",
    )


def roofline(prof: Profile, *, device: str | None = None, best: Peaks | None = None) -> Roofline:
    """Compares each kernel of the profile with the peaks of a device.

    The time at the peaks is the time of the FLOPs (matrix products at the rate of their dtype, other FLOPs at the elementwise
    rate) or the time of the bytes, whichever is longer. It ignores special ops. A kernel without FLOPs is bound by memory or
    launch.

    Args:
        device: the device that the profile ran on; the default device if it is None.
        best: peaks to use instead of those measured on this device.

    Raises PullbackError if launches were not timed, or the device has no peaks (see peaks).
    """
    if prof.rows and not prof.kernel_seconds > 0:
        raise PullbackError('roofline: the launches of this profile were not timed. Profile with pb.profile(detail="kernel").')
    groups: dict[tuple[str, str], list[Figures]] = {}
    for row in prof.rows:
        groups.setdefault((row.kernel, row.dtype), []).append(row.figures)
    best = best or peaks(device)
    rows = [_rates(kernel, dtype, figures, best) for (kernel, dtype), figures in groups.items()]
    return Roofline(sorted(rows, key=lambda row: -row.seconds), best)


def _rates(kernel: str, dtype: str, parts: Iterable[Figures], best: Peaks) -> KernelRates:
    f = total(parts)
    computing = f.matmul_flops / best.rate(dtype) + (f.flops - f.matmul_flops) / best.elementwise
    moving = f.bytes / best.bytes_per_second
    at_peaks = max(computing, moving)
    bound = "launch" if at_peaks < f.launches * best.launch_seconds else "compute" if computing > moving else "memory"
    rate = lambda amount: amount / f.seconds if f.seconds else 0.0
    return KernelRates(
        kernel, dtype, f.launches, f.flops, f.special_ops, f.bytes, f.seconds,
        intensity=f.flops / f.bytes if f.bytes else math.inf if f.flops else 0.0,
        flops_per_second=rate(f.flops), bytes_per_second=rate(f.bytes), bound=bound, share=rate(at_peaks),
    )
