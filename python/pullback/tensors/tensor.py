"""Tensor: an array with operators and a repr.

Operators and array methods are ops; `ops/operators.py` attaches them, so that this file does not import ops.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from ..errors import DTypeError, ShapeError
from ..interop.gate import ungated
from ..interop.unknown_names import Hinting
from ..interop.wrong_calls import argument_named
from ..launch import capturing
from ..typing import DTypeLike
from . import devices, dtypes, exchange
from .attached import attached
from .escape import report_escape

if TYPE_CHECKING:
    from .methods import Methods
else:
    Methods = object  # ops/operators.py attaches what type checkers read in methods.pyi

_ARRAYS: Final[set[type]] = {np.ndarray}  # accepted classes of `array`; the class of GPU arrays is added with the first one


class Tensor(Methods, metaclass=Hinting):
    """An immutable array of one dtype on one device, made by `pb.tensor` and `pb.asarray`.

    `array` holds the elements: a NumPy array on the CPU, a CuPy array on a GPU. `serial` identifies the value to tapes (0 until
    a tape watches it). `storage` is the Storage of a Parameter or of a view of one, whose memory can change in place, otherwise
    None.
    """

    __slots__ = ("__weakref__", "array", "serial", "storage")
    __array_priority__ = 1000  # so that `array + tensor` calls Tensor.__radd__

    @ungated
    def __init__(self, array: Any) -> None:
        if array.__class__ not in _ARRAYS:
            _check_array(array)
        self.array = array
        self.serial = 0
        self.storage: Any = None  # a Storage if the memory can change in place
        if capturing.running:
            capturing.note(self)

    # ---- attributes

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    @property
    def device(self) -> str:
        return devices.device_of(self.array)

    @property
    def ndim(self) -> int:
        return self.array.ndim

    @property
    def size(self) -> int:
        return int(self.array.size)

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    @property
    def itemsize(self) -> int:
        return int(self.array.itemsize)

    # ---- values outside pullback

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns a copy as a NumPy array, from any device. Gradients stop here. Raises CaptureError in a captured function."""
        read = lambda: np.array(self.array) if devices.on_host(self.array) else devices.move(self.array, "cpu")
        return report_escape(self, "numpy()", read)

    def item(self, *index: NoReturn) -> Any:
        """Returns the only element as a Python number. Gradients stop here.

        Raises ShapeError if the tensor does not have exactly one element, CaptureError in a captured function.
        """
        if index:
            raise TypeError(f"item() takes no index: write t[{', '.join(map(repr, index))}].item().")
        if self.array.size != 1:
            raise ShapeError(f"item(): the tensor has shape {self.shape}, not one element. Index it first, or use numpy().")
        return report_escape(self, "item()", self._number)

    def tolist(self) -> Any:
        return report_escape(self, "tolist()", lambda: devices.move(self.array, "cpu").tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Returns a read-only NumPy array over the same memory; for a Parameter or a view of one a copy, unless copy=False."""
        return exchange.as_numpy(self, dtype, copy)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        import pullback

        return pullback

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
        """Returns a DLPack capsule of the same memory; for a Parameter or a view of one it holds a copy, unless copy=False.

        Since version 1.0 the capsule marks shared memory as read-only. PyTorch ignores the mark: a write to its tensor changes
        the pullback tensor, and no tape notices. The arguments are those of the array API.

        Raises: TypeError, ValueError for invalid arguments; BufferError if the tensor cannot be exported as requested.
        """
        return exchange.as_dlpack(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return exchange.as_cuda_interface(self)

    # ---- moving

    def to(self, target: DTypeLike) -> Tensor:
        """Returns the tensor on a device (`"cuda"`) or in a dtype (`pb.float64`). Tapes record it, so gradients flow back.

        Raises DeviceError or DTypeError if the target is not known or cannot be used.
        """
        return attached.to(self, target)

    def to_device(self, device: str, /, *, stream: Any = None) -> Tensor:
        return self.to(device)

    # ---- Python's protocols

    def __bool__(self) -> bool:
        return bool(self._one("bool()"))

    def __int__(self) -> int:
        return int(self._one("int()"))

    def __float__(self) -> float:
        return float(self._one("float()"))

    def __complex__(self) -> complex:
        return complex(self._one("complex()"))

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise DTypeError(
                f"{argument_named(self)}a tensor of dtype {self.dtype} cannot be an index; only one integer element can."
            )
        return int(self._one("index"))

    def _one(self, what: str) -> Any:
        if self.array.size != 1:
            raise ShapeError(
                f"{argument_named(self)}{what}: the tensor has shape {self.shape}; only one element has a truth value or a Python "
                f"number. Reduce it first, with pb.all, pb.any, pb.sum..."
            )
        return report_escape(self, what, self._number)

    def _number(self) -> Any:
        return devices.move(self.array, "cpu").item()

    def __len__(self) -> int:
        if not self.array.ndim:
            raise TypeError("len() of a 0-d tensor, which has no axes; t.size counts its elements")
        return len(self.array)

    def __iter__(self) -> Iterator[Tensor]:
        if not self.array.ndim:
            raise TypeError("iteration over a 0-d tensor; use t.item() for its value")
        return (self[i] for i in range(len(self.array)))

    def __contains__(self, value: object) -> bool:
        report_escape(self, "in")
        return bool((devices.move(self.array, "cpu") == (value.array if isinstance(value, Tensor) else value)).any())

    __hash__ = object.__hash__

    if not TYPE_CHECKING:  # to type checkers it is an error

        def __setitem__(self, index: Any, value: Any) -> None:
            raise TypeError(
                "tensors are immutable, so that a tape can trust what it kept: write t = t.at[index].set(value) "
                "(or .add, .max, .min), or p.assign(value) for a whole Parameter."
            )

    def __repr__(self) -> str:
        report_escape(self, "repr()")
        body = np.array2string(devices.move(self.array, "cpu"), separator=", ", prefix="tensor(")
        notes = "" if self.size or self.shape == (0,) else f", shape={self.shape}"  # the brackets alone do not tell it
        notes += "" if self.dtype in (dtypes.DEFAULT, dtypes.int64, dtypes.bool_) else f", dtype={self.dtype}"
        if self.device != "cpu":
            notes += f', device="{self.device}"'
        return f"{self._title()}({body}{notes})"

    def _title(self) -> str:
        return "tensor"

    def __format__(self, spec: str) -> str:
        report_escape(self, "formatting")
        return format(devices.move(self.array, "cpu").item(), spec) if spec and self.array.size == 1 else repr(self)

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: Any) -> Tensor:
        memo[id(self)] = copy = copied(self.array)
        return copy

    def __reduce__(self) -> Any:
        return attached.reduced(self)


def copied(array: Any) -> Tensor:
    """Returns a tensor with a copy of an array. Inside a captured function every replay makes the copy anew."""
    if capturing.thread.recording is None:
        return Tensor(devices.copied(array))
    return attached.converted(Tensor(array), None, None, True)


def _check_array(array: Any) -> None:
    """Raises TypeError if a tensor cannot hold `array`, which is neither a NumPy array nor a GPU array."""
    if not devices.on_device(array):
        raise TypeError(
            f"Tensor: a {type(array).__name__} was given, and this class takes nothing but the array that becomes its storage. Use "
            f"pb.tensor(x), which copies, or pb.asarray(x), which shares memory where it can."
        )
    _ARRAYS.add(array.__class__)
