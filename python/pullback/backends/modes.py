"""The two settings on which the bits of a product depend, passed on to every kernel module.

They are the precision to which a thread rounds the factors (`amp.autocast`), and the reproducibility of the process (`pb.config`).
"""

from __future__ import annotations

import os
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
_lock: Final = threading.RLock()  # held while the mode changes; reentrant, because a signal handler may set it

_holders: Final[set[object]] = set()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_holders.clear)  # the other threads do not exist in a forked process
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def _modules() -> list[Any]:
    return [kernels for kernels in (native.module, *_of_gpu) if kernels is not None]


def precision() -> Precision:
    """Returns the precision to which products in this thread round their factors now."""
    return _thread.precision


def set_precision(name: Precision) -> None:
    """Sets the precision of products in this thread."""
    global used
    used = used or name != "float32"
    _thread.precision = name
    for kernels in _modules():
        kernels.set_matmul_precision(PRECISIONS.index(name))


def switch(name: Precision) -> None:
    """Sets the precision of products in this thread, unless it is set already."""
    if _thread.precision != name:
        set_precision(name)


def mode() -> Mode:
    """Returns "machine" or "everywhere"."""
    return _mode


def set_mode(name: Mode) -> bool:
    """Sets the mode of the process, for all threads. While a thread runs a captured function, changes nothing and returns False."""
    global _mode
    with _lock:
        if _holders:
            return False
        if any([kernels.set_everywhere(name == "everywhere") is False for kernels in _modules()]):  # a replay runs
            for kernels in _modules():  # those that have taken it
                kernels.set_everywhere(_mode == "everywhere")
            return False
        _mode = name
        return True


def hold(holder: object) -> None:
    """Keeps all threads from setting the mode until `release` is called for this object."""
    with _lock:
        _holders.add(holder)


def release(holder: object) -> None:
    """Ends what `hold` began. A second call does nothing."""
    _holders.discard(holder)


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
