"""A tensor's memory for other libraries: NumPy's arrays, DLPack capsules, the CUDA array interface.

Memory that can change in place, a Parameter's, goes out as a copy, unless the caller asks for the memory itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DeviceError
from . import capsules, devices
from .escape import report_escape

if TYPE_CHECKING:
    from .tensor import Tensor


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A view that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view


def as_numpy(t: Tensor, dtype: Any, copy: bool | None) -> np.ndarray[Any, Any]:
    """What `np.asarray(t, dtype, copy=copy)` gives."""
    array = t.array
    if not devices.on_host(array):
        raise DeviceError(f'np.asarray: the tensor is on "{t.device}". Use t.numpy(), which copies it to the host.')
    report_escape(t, "np.asarray()")
    other = dtype is not None and np.dtype(dtype) != array.dtype
    if other and copy is False:
        raise ValueError(f"np.asarray: {array.dtype} to {dtype} needs a copy, but copy=False was asked for.")
    if other or copy or (copy is None and t.storage is not None):
        return np.array(array, dtype=dtype)
    return read_only(array)


def as_dlpack(t: Tensor, stream: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
    """What `t.__dlpack__(…)` gives."""
    array = t.array
    _check(t, stream, max_version, dl_device, copy)
    report_escape(t, "__dlpack__()")
    here = array.__dlpack_device__()
    if dl_device is not None and tuple(dl_device) != tuple(here):  # the host's: nothing else passes the check
        array, copy = devices.move(array, "cpu"), True
    elif copy or (copy is None and t.storage is not None):
        array, copy = devices.copied(array), True
    if devices.on_host(array):
        shared = max_version is not None and tuple(max_version) >= (1, 0) and not copy  # from 1.0 on a consumer can be told
        return capsules.exported(read_only(array) if shared else array, max_version=max_version)
    with devices.working(t.device):  # the consumer's stream then waits for what was launched
        return capsules.exported(devices.lent(array, stream), stream=stream, max_version=max_version)


def _check(t: Tensor, stream: Any, max_version: Any, dl_device: Any, copy: Any) -> None:
    """Raises TypeError, ValueError, BufferError for arguments that are not the array API's."""
    if stream is not None and (type(stream) is not int or stream < -1):
        raise TypeError(f"__dlpack__: stream={stream!r}; it must be None, or the number of a stream (-1: do not synchronize).")
    if stream not in (None, -1) and devices.on_host(t.array):
        raise ValueError(f'__dlpack__: stream={stream}, but the tensor is on "cpu", which has no streams. Leave it out.')
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
    """Returns what `t.__cuda_array_interface__` gives. Raises AttributeError for a tensor on the host.

    The consumer keeps the tensor, and nothing else, for as long as it uses the memory. So a view of a Parameter holds a copy from
    now on.
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
