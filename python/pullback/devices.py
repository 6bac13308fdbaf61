"""Devices: where an array lives, moving it, and the default for new tensors."""

from __future__ import annotations

import importlib
import threading
from typing import Any, Final

import numpy as np

from .errors import DeviceError


class _Default(threading.local):
    device: str = "cpu"


_default: Final = _Default()


def default_device() -> str:
    """The device of new tensors in this thread: "cpu" unless `use_device` says otherwise."""
    return _default.device


class use_device:
    """`with pb.use_device("cuda"):` makes new tensors on that device, in this thread, while entered.

    Raises DeviceError, with the reason, where the device cannot be had.
    """

    def __init__(self, device: str) -> None:
        self.device = check_device(device)
        self._before: list[str] = []

    def __enter__(self) -> use_device:
        self._before.append(_default.device)
        _default.device = self.device
        return self

    def __exit__(self, *_: object) -> None:
        _default.device = self._before.pop()


def device_of(array: Any) -> str:
    """ "cpu" for a NumPy array, "cuda" (or "cuda:1", …) for a CuPy one."""
    if isinstance(array, np.ndarray):
        return "cpu"
    number = array.device.id
    return f"cuda:{number}" if number else "cuda"


def why_not(device: str) -> str | None:
    """None where the device can be used, otherwise the reason in a sentence."""
    if device == "cpu":
        return None
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        return f"CuPy cannot be imported ({error}); install it with: pip install 'pullback[cuda13]'"
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:  # CuPy raises its own classes, and they change between versions
        return f"CuPy finds no usable GPU: {error}"
    number = _number(device)
    return None if number < count else f"this machine has {count} GPU(s), numbered from 0"


def check_device(device: Any) -> str:
    """The device's name in the one form that tensors use. Raises DeviceError where there is no such device."""
    if not isinstance(device, str) or not (device == "cpu" or device.split(":")[0] == "cuda"):
        raise DeviceError(f'device {device!r} is not known. Use "cpu", "cuda" or "cuda:1".')
    if reason := why_not(device):
        raise DeviceError(f'device "{device}" cannot be used: {reason}. Use device="cpu", or mend the above.')
    if device == "cpu":
        return device
    return f"cuda:{_number(device)}" if _number(device) else "cuda"


def _number(device: str) -> int:
    _, _, number = device.partition(":")
    if number and not number.isdigit():
        raise DeviceError(f'device {device!r} is not known. Use "cpu", "cuda" or "cuda:1".')
    return int(number or 0)


def array_module(device: str) -> Any:
    """NumPy for "cpu", CuPy otherwise."""
    return np if device == "cpu" else importlib.import_module("cupy")


def move(array: Any, device: str) -> Any:
    """The array on `device`, the same object where it is there already."""
    here = device_of(array)
    if here == device:
        return array
    if device == "cpu":
        return array.get()
    cupy = importlib.import_module("cupy")
    with cupy.cuda.Device(_number(device)):
        return cupy.asarray(array)


class cuda:
    """What pullback knows of GPUs."""

    @staticmethod
    def is_available() -> bool:
        """True where device "cuda" can be used."""
        return why_not("cuda") is None

    @staticmethod
    def why_not() -> str | None:
        """The reason why device "cuda" cannot be used, None where it can."""
        return why_not("cuda")
