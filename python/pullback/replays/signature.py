"""Signatures: the key that decides which recording serves a call, computed from the leaves of the arguments."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backends import modes
from ..duck import has
from ..errors import CaptureError
from ..tensors import devices
from ..tensors.creation import asarray
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..tensors.views import OutsideView, StaleView
from .facts.lookup import is_of_library


def signature(leaves: Sequence[Any], arrays: Sequence[Any], spec: Any, order: Any = ()) -> Any:
    """Returns the key of a call.

    It consists of the shapes, dtypes, layouts and devices of tensors, the values of the other leaves, the structure of the
    arguments, the default device, the autocast precision and `pb.config.reproducible`.
    """
    shapes = [(a.shape, a.dtype.num, a.strides, devices.device_of(a)) for a in arrays]
    fixed = [None if x.__class__ is Tensor else _fixed(x) for x in leaves]
    return (tuple(shapes), tuple(fixed), spec, devices.default_device(), modes.rounding(), order)


def with_mode(key: Any) -> Any:
    """Returns a signature with the present precision and mode."""
    return (*key[:4], modes.rounding(), key[5])


def order_of(tree: Any) -> Any:
    """Returns the order of the keys of all dicts in the arguments, which the structure of optree does not tell."""
    if isinstance(tree, dict):
        return tuple(tree), tuple([order_of(x) for x in tree.values()])
    return tuple([order_of(x) for x in tree]) if isinstance(tree, (list, tuple)) else ()


def as_leaf(x: Any) -> Any:
    """Returns an argument leaf as capture treats it: arrays become tensors, and views plain tensors. Raises CaptureError."""
    if x.__class__ is Tensor or isinstance(x, Parameter):
        return x
    if isinstance(x, (OutsideView, StaleView)):
        _ = x.array  # raises for a stale view, and turns an outside view into a plain tensor
        return x
    if isinstance(x, Tensor):
        raise CaptureError(
            "capture: an argument is one example of a batch (under vmap, or the like). Capture the function around the transform."
        )
    return asarray(x) if is_array(x) else x


def is_array(x: Any) -> bool:
    """True for an array of NumPy or of another library, and not for a tensor."""
    return not isinstance(x, Tensor) and (isinstance(x, np.ndarray) or any([has(x, protocol) for protocol in _ARRAYS]))


_ARRAYS = ("__dlpack__", "__cuda_array_interface__")  # attributes of arrays of other libraries


def apart(array: Any) -> Any:
    """Returns a copy with the same layout on the CPU, contiguous on a GPU. Its memory is not shared with any other tensor."""
    return array.copy(order="K") if devices.on_host(array) else devices.copied(array)


def _fixed(x: Any) -> Any:
    """Returns the part of the key for an argument that is not a plain tensor. Raises CaptureError for an iterator."""
    if isinstance(x, Parameter):
        return _Same(x)
    if hasattr(type(x), "__next__"):
        raise CaptureError(f"capture: an argument is a {type(x).__name__}, which can be run once. Pass its items: f(next(it)).")
    try:
        hash(x)
    except TypeError:  # it is compared by identity, and its attributes and items are facts
        return (set, exact(frozenset(x))) if type(x) is set else _Same(x)
    return exact(x)


def exact(x: Any) -> Any:
    """Returns a key that is equal for two values if they have the same type and the same bits.

    Python's `==` is not enough: it treats 0.0 and -0.0, or 1 and True, as equal, although a function can tell them apart, and it
    treats a NaN as different from itself, although a function cannot.
    """
    if isinstance(x, np.generic):
        return type(x), x.dtype, x.tobytes()
    if isinstance(x, complex):
        return type(x), exact(x.real), exact(x.imag)
    if isinstance(x, float):
        return type(x), struct.pack("d", x)
    if isinstance(x, frozenset):
        return type(x), frozenset([exact(item) for item in x])
    if isinstance(x, tuple):
        return type(x), tuple([exact(item) for item in x])
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return x, tuple([exact(getattr(x, field.name)) for field in dataclasses.fields(x)])
    if type(x).__eq__ is not object.__eq__ and not is_of_library(type(x)):
        try:  # what it compares may not be all that the function reads
            parts = tuple([(name, exact(value)) for name, value in vars(x).items()])
            hash(parts)
        except TypeError:
            return _Same(x)
        return type(x), x, parts
    return type(x), x


class _Same:
    """A key that is equal only to a key of the identical object."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.x is self.x

    def __hash__(self) -> int:
        return id(self.x)

    def __repr__(self) -> str:
        return self.x.label() if isinstance(self.x, Parameter) else f"this {type(self.x).__name__}"


def difference(before: Any, now: Any) -> str:
    """Returns the first difference between two signatures, in words."""
    if before == now:
        return "the recordings of a signature keep becoming invalid"
    for i, (a, b) in enumerate(zip(before[0], now[0])):
        if a != b:
            how = f"had shape {a[0]}, then {b[0]}" if a[0] != b[0] else "changed its dtype, layout or device"
            return f"tensor {i} of the arguments {how}"
    for i, (a, b) in enumerate(zip(before[1], now[1])):
        if a != b:
            return f"argument leaf {i} was {_shown(a)}, then {_shown(b)}"
    return "the structure of the arguments, the default device, the precision or pb.config.reproducible keeps changing"


def changed_float(before: Any, now: Any) -> str | None:
    """Returns the new value of the float, as text, in which alone two signatures differ. Otherwise returns None."""
    if before is None or before[0] != now[0] or before[2:] != now[2:]:
        return None
    different = [(a, b) for a, b in zip(before[1], now[1]) if a != b]
    return _shown(different[0][1]) if len(different) == 1 and all(map(_is_float, different[0])) else None


def _is_float(part: Any) -> bool:
    """True if this part of a signature is that of a Python float, or of a NumPy one."""
    return isinstance(part, tuple) and isinstance(part[0], type) and issubclass(part[0], (float, np.floating))


def _shown(part: Any) -> str:
    """Returns the value that a part of a signature was made from (see `exact`) as text."""
    if part is None:
        return "a tensor"
    if not isinstance(part, tuple):
        return repr(part)
    kind, *rest = part
    if not isinstance(kind, type):  # a dataclass
        return repr(kind)
    if issubclass(kind, np.generic):
        return repr(np.frombuffer(rest[1], rest[0])[0])
    if issubclass(kind, complex):
        return f"({_shown(rest[0])}, {_shown(rest[1])})"
    if issubclass(kind, float):
        return repr(struct.unpack("d", rest[0])[0])
    if issubclass(kind, (tuple, frozenset)):
        return f"({', '.join([_shown(item) for item in rest[0]])})"
    return repr(rest[0])
