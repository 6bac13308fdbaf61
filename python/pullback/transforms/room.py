"""Refuses results that the memory of their device cannot hold, before they are computed piece by piece."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from ..errors import OutOfMemoryError
from ..launch import door
from ..tensors import devices
from ..tensors.tensor import Tensor

LEAST_BYTES: Final = 256 * 2**20  # smaller results are computed without a look at the memory


def memory_of(device: str) -> int:
    """Returns the bytes of memory of a device; of the host those that the process may use."""
    if device != "cpu":
        return devices.cuda.memory(device)["total"]
    if door.host_kernels is not None:
        return door.host_kernels.memory_limit()[0]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(title: str, what: str, nbytes: int, device: str, remedy: str) -> None:
    """Raises OutOfMemoryError if the device cannot hold these bytes. The system would end the process when it is full."""
    if nbytes > LEAST_BYTES and nbytes > (most := memory_of(device)):
        sizes = [f"{n / 2**30:,.1f} GiB" if n < 2**40 else f"{n / 2**40:,.1f} TiB" for n in (nbytes, most)]
        raise OutOfMemoryError(f'{title}: {what} would take {sizes[0]}, and "{device}" has {sizes[1]}. {remedy}')


def check_jacobian(title: str, targets: Sequence[Tensor], sources: Sequence[Tensor], copies: int) -> None:
    """Raises OutOfMemoryError if there is no room for `copies` of the Jacobian of all targets with respect to all sources."""
    rows, columns = sum([y.size for y in targets]), sum([x.size for x in sources])
    if not rows * columns:
        return
    nbytes = min(rows * sum([x.nbytes for x in sources]), columns * sum([y.nbytes for y in targets]))
    products = (
        "pb.hvp(f, x, v) multiplies it by a vector" if title == "hessian"
        else "pb.vjp multiplies it by a vector from the left, and pb.jvp from the right"
    )
    twice = ", with a copy that joins its parts," if copies > 1 else ""
    check_memory(
        title, f"a result of {rows:,} times {columns:,} numbers{twice}", copies * nbytes, sources[0].device,
        f"Differentiate fewer numbers at once, or do without the matrix: {products}. A smaller chunk does not help.",
    )


def check_chunk(title: str, chunk: int, bytes_each: int, device: str) -> None:
    """Raises OutOfMemoryError if there is no room for what a chunk of directions takes."""
    check_memory(title, f"chunk={chunk}", chunk * bytes_each, device, 'Give a smaller chunk, or chunk="auto".')
