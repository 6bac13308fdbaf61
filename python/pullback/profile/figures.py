"""Figures: what a group of launches cost together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..door import Launch


@dataclass(frozen=True)
class Figures:
    """Sums over launches. A multiply-add is two FLOPs; exp, log, tanh, sqrt and division are special ops, counted apart."""

    flops: int = 0  # algorithmic, by the textbook formula
    matmul_flops: int = 0  # the part in products
    executed_flops: int = 0  # what the kernels really did
    special_ops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0  # inside the launches, not between them
    launches: int = 0

    @staticmethod
    def of(launches: Iterable[Launch]) -> Figures:
        """The figures of these launches."""
        sums, nanoseconds, count = [0] * 6, 0, 0
        for launch in launches:
            sums[0] += launch.flops
            sums[1] += launch.matmul_flops
            sums[2] += launch.executed_flops
            sums[3] += launch.special_ops
            sums[4] += launch.bytes_read
            sums[5] += launch.bytes_written
            nanoseconds += launch.end_ns - launch.begin_ns
            count += 1
        return Figures(*sums, seconds=nanoseconds * 1e-9, launches=count)

    @property
    def bytes(self) -> int:
        """Read and written."""
        return self.bytes_read + self.bytes_written
