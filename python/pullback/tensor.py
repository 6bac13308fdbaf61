"""Tensor: an array with operators and a repr. Parameter: one that is updated in place.

Operators and array methods are ops; `ops/operators.py` attaches them, so that this file knows no op.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from . import capturing, devices, dtypes
from .errors import DeviceError, DTypeError, ShapeError

new_serial: Final = itertools.count(1).__next__


class Storage:
    """What a Parameter and its views share: the memory's version, and a number for where it is placed.

    `version` grows with every change in place, `placement` when the Parameter moves to other memory.
    """

    __slots__ = ("name", "placement", "version")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.version = 0
        self.placement = 0

    def changed(self) -> None:
        """The memory has other values from now on; a replay changes it, too."""
        self.version += 1
        if capturing.thread.recording is not None:
            capturing.thread.recording.grows(self)


class Tensor:
    """An immutable array of one dtype on one device; `pb.tensor` and `pb.asarray` make one.

    `array` is the storage: a NumPy array on the CPU, a CuPy array on a GPU. `serial` is the value's identity for tapes
    (0 until one watches it), `storage` is set where the memory can change in place.
    """

    __slots__ = ("__weakref__", "array", "serial", "storage")
    __array_priority__ = 1000  # NumPy leaves `array + tensor` to us

    if TYPE_CHECKING:  # attached by ops/operators.py
        T: Tensor
        mT: Tensor
        at: Any
        __getitem__: Callable[..., Tensor]
        __add__: Callable[..., Tensor]
        __radd__: Callable[..., Tensor]
        __sub__: Callable[..., Tensor]
        __rsub__: Callable[..., Tensor]
        __mul__: Callable[..., Tensor]
        __rmul__: Callable[..., Tensor]
        __truediv__: Callable[..., Tensor]
        __rtruediv__: Callable[..., Tensor]
        __floordiv__: Callable[..., Tensor]
        __rfloordiv__: Callable[..., Tensor]
        __mod__: Callable[..., Tensor]
        __rmod__: Callable[..., Tensor]
        __pow__: Callable[..., Tensor]
        __rpow__: Callable[..., Tensor]
        __matmul__: Callable[..., Tensor]
        __rmatmul__: Callable[..., Tensor]
        __and__: Callable[..., Tensor]
        __rand__: Callable[..., Tensor]
        __or__: Callable[..., Tensor]
        __ror__: Callable[..., Tensor]
        __xor__: Callable[..., Tensor]
        __rxor__: Callable[..., Tensor]
        __lshift__: Callable[..., Tensor]
        __rlshift__: Callable[..., Tensor]
        __rshift__: Callable[..., Tensor]
        __rrshift__: Callable[..., Tensor]
        __lt__: Callable[..., Tensor]
        __le__: Callable[..., Tensor]
        __gt__: Callable[..., Tensor]
        __ge__: Callable[..., Tensor]
        __neg__: Callable[..., Tensor]
        __pos__: Callable[..., Tensor]
        __abs__: Callable[..., Tensor]
        __invert__: Callable[..., Tensor]
        astype: Callable[..., Tensor]
        sum: Callable[..., Tensor]
        mean: Callable[..., Tensor]
        max: Callable[..., Tensor]
        min: Callable[..., Tensor]
        prod: Callable[..., Tensor]
        std: Callable[..., Tensor]
        var: Callable[..., Tensor]
        all: Callable[..., Tensor]
        any: Callable[..., Tensor]
        argmax: Callable[..., Tensor]
        argmin: Callable[..., Tensor]
        reshape: Callable[..., Tensor]
        transpose: Callable[..., Tensor]

    def __init__(self, array: Any) -> None:
        self.array = array
        self.serial = 0
        self.storage: Any = None  # a Storage, where the memory can change in place

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

    # ---- out of pullback

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy as a NumPy array, from any device, recorded or not. Gradients stop here."""
        leave(self, "numpy()")
        return devices.move(self.array, "cpu") if not devices.on_host(self.array) else np.array(self.array)

    def item(self) -> Any:
        """The one element as a Python number. Raises ShapeError for more than one. Gradients stop here."""
        if self.array.size != 1:
            raise ShapeError(f"item(): the tensor has shape {self.shape}, not one element. Index it first, or use numpy().")
        leave(self, "item()")
        return devices.move(self.array, "cpu").item()

    def tolist(self) -> Any:
        leave(self, "tolist()")
        return devices.move(self.array, "cpu").tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if not devices.on_host(self.array):
            raise DeviceError(f'np.asarray: the tensor is on "{self.device}". Use t.numpy(), which copies it to the host.')
        leave(self, "np.asarray()")
        if copy or (dtype is not None and np.dtype(dtype) != self.dtype):
            if copy is False:
                raise ValueError(f"np.asarray: {self.dtype} to {dtype} needs a copy, but copy=False was asked for.")
            return np.array(self.array, dtype=dtype)
        return read_only(self.array)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        import pullback

        return pullback

    def __dlpack__(self, **options: Any) -> Any:
        leave(self, "__dlpack__()")
        version = options.get("max_version")
        if version is not None and version >= (1, 0) and devices.on_host(self.array):
            return read_only(self.array).__dlpack__(**options)  # from DLPack 1.0 on a consumer can be told
        if devices.on_host(self.array):
            return self.array.__dlpack__(**options)
        with devices.working(self.device):  # the consumer's stream then waits for what was launched
            return devices.lent(self.array, options.get("stream")).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        leave(self, "__cuda_array_interface__")
        if devices.on_host(self.array):
            raise AttributeError('__cuda_array_interface__: the tensor is on "cpu"; t.to("cuda") moves it.')
        self.array = devices.lent(self.array, -1)  # the consumer keeps this tensor, not the array
        with devices.working(self.device):
            return self.array.__cuda_array_interface__

    # ---- moving

    def to(self, target: Any) -> Tensor:
        """The tensor on a device (`"cuda"`) or of a dtype (`pb.float64`); recorded, so gradients come back."""
        if isinstance(target, str) and target.split(":")[0] in ("cpu", "cuda"):
            from .ops.shape import to_device

            return to_device(self, target)
        return self.astype(target)

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
            raise DTypeError(f"a tensor of dtype {self.dtype} cannot be an index; only one integer element can.")
        return int(self._one("index"))

    def _one(self, what: str) -> Any:
        if self.array.size != 1:
            raise ShapeError(
                f"{what}: the tensor has shape {self.shape}; only one element has a truth value or a Python number. "
                f"Reduce it first, with pb.all, pb.any, pb.sum…"
            )
        leave(self, what)
        return devices.move(self.array, "cpu").item()

    def __len__(self) -> int:
        if not self.array.ndim:
            raise TypeError("len() of a 0-d tensor")
        return len(self.array)

    def __iter__(self) -> Iterator[Tensor]:
        if not self.array.ndim:
            raise TypeError("iteration over a 0-d tensor; use t.item() for its value")
        return (self[i] for i in range(len(self.array)))

    def __contains__(self, value: Any) -> bool:
        leave(self, "in")
        return bool((devices.move(self.array, "cpu") == (value.array if isinstance(value, Tensor) else value)).any())

    __hash__ = object.__hash__

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            "tensors are immutable, so that a tape can trust what it kept: write t = t.at[index].set(value) "
            "(or .add, .max, .min), or p.assign(value) for a whole Parameter."
        )

    def __repr__(self) -> str:
        leave(self, "repr()")
        body = np.array2string(devices.move(self.array, "cpu"), separator=", ", prefix="tensor(")
        notes = "" if self.dtype in (dtypes.DEFAULT, dtypes.int64, dtypes.bool_) else f", dtype={self.dtype}"
        if self.device != "cpu":
            notes += f', device="{self.device}"'
        return f"{self._title()}({body}{notes})"

    def _title(self) -> str:
        return "tensor"

    def __format__(self, spec: str) -> str:
        leave(self, "formatting")
        return format(devices.move(self.array, "cpu").item(), spec) if spec and self.array.size == 1 else repr(self)

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: Any) -> Tensor:
        memo[id(self)] = copy = Tensor(devices.copied(self.array))
        return copy

    def __reduce__(self) -> Any:
        raise TypeError("tensors are not pickled: use pb.save and pb.load, which never run code.")


class Parameter(Tensor):
    """A tensor that optimizers update in place, and that tapes watch by themselves.

    Args:
        obj: the value; always copied.
        name: for messages and state dictionaries; a Module gives one where there is none.
        trainable: False keeps tapes from watching it and optimizers from updating it.
        constraint: a function of the value, or one of `optim.constraints`, applied inside every update.
    """

    __slots__ = ("constraint", "trainable")

    def __init__(
        self,
        obj: Any,
        name: str | None = None,
        trainable: bool = True,
        constraint: Any = None,
        dtype: Any = None,
        device: str | None = None,
    ) -> None:
        from .creation import tensor

        value = tensor(obj, dtype=dtype, device=device)
        super().__init__(value.array)
        self.serial = new_serial()
        self.storage = Storage(name)
        self.trainable = trainable
        self.constraint = constraint

    @property
    def name(self) -> str | None:
        return self.storage.name

    @name.setter
    def name(self, name: str | None) -> None:
        self.storage.name = name

    @property
    def version(self) -> int:
        """Grows with every change in place."""
        return self.storage.version

    def assign(self, value: Any) -> Parameter:
        """Sets the value in place, from anything of the same shape. Raises ShapeError; the dtype is converted."""
        from .creation import asarray

        source = asarray(value).array
        if source.shape != self.shape:
            raise ShapeError(
                f"assign: {self.label()} has shape {self.shape}, the value {source.shape}. Give it the same shape "
                f"(pb.broadcast_to says so explicitly)."
            )
        from .ops.writing import write

        write(self.array, devices.move(source, self.device))
        self.storage.changed()
        return self

    def place(self, array: Any) -> None:
        """Moves the value into other memory of the same shape and dtype (an optimizer's arena)."""
        capturing.tell_change(f"moving {self.label()}", "Make optimizers before.")
        devices.write(array, self.array)
        self.array = array
        self.storage.placement += 1

    def label(self) -> str:
        """How messages call it."""
        return f'Parameter "{self.name}"' if self.name else f"an unnamed Parameter of shape {self.shape}"

    def _title(self) -> str:
        return f'Parameter "{self.name}" ' if self.name else "Parameter"

    def __copy__(self) -> Parameter:
        copy = Parameter(self.array, self.name, self.trainable, self.constraint)
        copy.__class__ = type(self)  # a Buffer stays one
        return copy

    def __deepcopy__(self, memo: Any) -> Parameter:
        memo[id(self)] = copy = self.__copy__()
        return copy


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A view that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view


cut_listener: Callable[[Tensor, str], None] | None = None  # set by the tape: a value leaves, and gradients stop there


def leave(t: Tensor, how: str) -> None:
    """A value leaves pullback here: tapes that watch it are told, and a captured function must not."""
    if capturing.thread.recording is not None:
        capturing.refuse(f"{how}, which reads a value on the host,", "Return the tensor from the function, and read it outside.")
    if cut_listener is not None and t.serial:
        cut_listener(t, how)



