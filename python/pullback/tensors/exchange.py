"""Gives a tensor's memory to other libraries: as NumPy arrays, DLPack capsules, or by the CUDA array interface.

A Parameter's memory can change in place, so other libraries get a copy of it unless the caller passes copy=False.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ArgumentError, DeviceError
from . import capsules, devices
from .escape import report_escape

if TYPE_CHECKING:
    from .tensor import Tensor


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns a read-only view."""
    view = array.view()
    view.flags.writeable = False
    return view


def as_numpy(t: Tensor, dtype: Any, copy: bool | None) -> np.ndarray[Any, Any]:
    """Returns the result of `np.asarray(t, dtype, copy=copy)`. Raises DeviceError, or ValueError if copy=False cannot be met."""
    array = t.array
    if not devices.on_host(array):
        raise DeviceError(f'np.asarray: the tensor is on "{t.device}". Use t.numpy(), which copies it to the host.')
    other = dtype is not None and np.dtype(dtype) != array.dtype
    copies = other or copy or (copy is None and t.storage is not None)
    read = lambda: np.array(array, dtype=dtype) if copies else read_only(array)
    if not (other and copy is False):
        return report_escape(t, "np.asarray()", read)
    report_escape(t, "np.asarray()")
    raise ArgumentError(f"np.asarray: {array.dtype} to {dtype} needs a copy, but copy=False was asked for.")


def as_dlpack(t: Tensor, stream: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
    """Returns the result of `t.__dlpack__(…)`."""
    array = t.array
    _check(t, stream, max_version, dl_device, copy)
    report_escape(t, "__dlpack__()")
    here = array.__dlpack_device__()
    if dl_device is not None and tuple(dl_device) != tuple(here):  # dl_device is the host: _check lets nothing else pass
        array, copy = devices.move(array, "cpu"), True
    elif copy or (copy is None and t.storage is not None):
        array, copy = devices.copied(array), True
    if devices.on_host(array):
        shared = max_version is not None and tuple(max_version) >= (1, 0) and not copy  # 1.0 has a read-only flag
        return capsules.exported(read_only(array) if shared else array, max_version=max_version)
    with devices.working(t.device):  # the consumer's stream then waits for pullback's work
        return capsules.exported(devices.lent(array, stream), stream=stream, max_version=max_version)


def _check(t: Tensor, stream: Any, max_version: Any, dl_device: Any, copy: Any) -> None:
    """Raises TypeError, ValueError or BufferError for arguments that the array API does not allow or that cannot be met."""
    if stream is not None and (type(stream) is not int or stream < -1):
        raise TypeError(f"__dlpack__: stream={stream!r}; it must be None, or the number of a stream (-1: do not synchronize).")
    if stream not in (None, -1) and devices.on_host(t.array):
        raise ArgumentError(f'__dlpack__: stream={stream}, but the tensor is on "cpu", which has no streams. Leave it out.')
    if max_version is not None and not _is_pair(max_version):
        raise TypeError(f"__dlpack__: max_version={max_version!r}; it must be None or (major, minor), as (1, 0).")
    if copy not in (None, True, False):
        raise TypeError(f"__dlpack__: copy={copy!r}; it must be None, True or False.")
    if dl_device is None or (_is_pair(dl_device) and tuple(dl_device) == tuple(t.array.__dlpack_device__())):
        return
    if not _is_pair(dl_device):
        raise TypeError(f"__dlpack__: dl_device={dl_device!r}; it must be None or (device type, number), as (1, 0) for the host.")
    if tuple(dl_device) != (devices.KDL_CPU, 0):
        raise BufferError(f'__dlpack__: the tensor is on "{t.device}", not on DLPack device {tuple(dl_device)}. Move it by t.to().')
    if copy is False:
        raise BufferError(f'__dlpack__: the tensor is on "{t.device}"; on the host it is a copy, but copy=False was asked for.')


def _is_pair(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) == 2 and all([isinstance(n, (int, np.integer)) for n in x])


def check_on_gpu(t: Tensor) -> None:
    """Raises AttributeError for a tensor on the host, which has no CUDA array interface."""
    if devices.on_host(t.array):
        raise AttributeError('__cuda_array_interface__: the tensor is on "cpu"; t.to("cuda") moves it.')


def as_cuda_interface(t: Tensor) -> dict[str, Any]:
    """Returns the value of `t.__cuda_array_interface__`. Raises AttributeError for a tensor on the host.

    While the consumer uses the memory, it keeps only the tensor alive. So a view of a Parameter gets its own copy of the memory
    here, and holds it from then on.
    """
    array = t.array
    check_on_gpu(t)
    report_escape(t, "__cuda_array_interface__")
    if t.storage is not None:
        array = devices.copied(array)
        t.storage.drop_view(t)
    t.array = array = devices.lent(array, -1)
    with devices.working(t.device):
        return array.__cuda_array_interface__
