"""The two settings on which the bits of a product depend, passed on to every kernel module.

They are the precision to which a thread rounds the factors (`amp.autocast`), and the reproducibility of the process (`pb.config`).
"""

from __future__ import annotations

import threading
from typing import Any, Final, Literal, get_args

from ..tensors import gpu
from ..variables import Mode
from . import native

Precision = Literal["float32", "tf32", "bfloat16", "float16"]
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)  # The kernels receive a precision as its index here.


class _Thread(threading.local):
    precision: Precision = "float32"


_thread: Final = _Thread()
used = False  # True once a thread has asked for another precision than float32; until then, nobody needs to look
_mode: Mode = "machine"
_of_gpu: Final[list[Any]] = []  # the CUDA kernels, once they are loaded


def precision() -> Precision:
    """Returns the precision to which products in this thread round their factors now."""
    return _thread.precision


def set_precision(name: Precision) -> None:
    """Sets the precision of products in this thread."""
    global used
    used = used or name != "float32"
    _thread.precision = name
    for kernels in (native.module, *_of_gpu):
        if kernels is not None:
            kernels.set_matmul_precision(PRECISIONS.index(name))


def switch(name: Precision) -> None:
    """Sets the precision of products in this thread, unless it is set already."""
    if _thread.precision != name:
        set_precision(name)


def mode() -> Mode:
    """Returns "machine" or "everywhere"."""
    return _mode


def set_mode(name: Mode) -> None:
    """Sets the mode of the process, for all threads."""
    global _mode
    _mode = name
    for kernels in (native.module, *_of_gpu):
        if kernels is not None:
            kernels.set_everywhere(name == "everywhere")


def replaying() -> bool:
    """True if a thread runs a replay now."""
    return any([kernels.plans_running() for kernels in (native.module, *_of_gpu) if kernels is not None])


def allows(name: str) -> bool:
    """True if products may round their factors to this dtype or precision now. "everywhere" excludes tf32, which only GPUs have."""
    return name != "tf32" or _mode == "machine"


def rounding() -> tuple[str, str]:
    """Returns this thread's precision and the mode. A recording is replayed only under those that it was made under."""
    return _thread.precision, _mode


def _connect(kernels: Any) -> None:
    _of_gpu.append(kernels)
    kernels.set_matmul_precision(PRECISIONS.index(_thread.precision))
    kernels.set_everywhere(_mode == "everywhere")


gpu.when_loaded(_connect)
