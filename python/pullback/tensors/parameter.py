"""Parameter: a tensor that is updated in place, and that tapes watch by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ..launch import capturing
from . import devices, dtypes, exchange
from .attached import attached
from .creation import tensor
from .storage import Storage
from .tensor import Tensor, new_serial


class Parameter(Tensor):
    """A tensor that optimizers update in place, and that tapes watch by themselves.

    Args:
        obj: the value; always copied.
        name: for messages and state dictionaries; a Module gives one where there is none.
        trainable: False keeps tapes from watching it and optimizers from updating it.
        constraint: a function of the value, or one of `optim.constraints`, applied inside every update.
    """

    __slots__ = ("constraint", "trainable")

    if TYPE_CHECKING:  # attached by ops/operators.py
        def __iadd__(self, other: Any) -> Parameter: ...
        __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = __ipow__ = __imatmul__ = __iadd__
        __iand__ = __ior__ = __ixor__ = __ilshift__ = __irshift__ = __iadd__

    def __init__(
        self,
        obj: Any,
        name: str | None = None,
        trainable: bool = True,
        constraint: Any = None,
        dtype: Any = None,
        device: str | None = None,
    ) -> None:
        value = tensor(obj, dtype=dtype, device=device)
        dtypes.check_trainable(value.dtype, trainable)
        super().__init__(value.array)
        self.serial = new_serial()
        self.storage = Storage(type(self).__name__, name)
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
        """Sets the value in place, from anything of the same shape; the dtype is converted.

        In-place operators (`p -= lr * g`) do the same with the operator's result. Raises ShapeError; TapeError if a tape that
        records watches the value, because gradients would stop at the Parameter.
        """
        return attached.assign(self, value)

    @property
    def __cuda_array_interface__(self) -> NoReturn:
        """Raises AttributeError: a Parameter, which changes in place, could not let go of the copies that it gave out."""
        exchange.check_on_gpu(self)
        raise AttributeError(
            f"__cuda_array_interface__: {self.label()} changes in place. Give pb.copy(p), or use DLPack, which makes a copy."
        )

    def place(self, array: Any) -> None:
        """Moves the value into other memory of the same shape and dtype (an optimizer's arena)."""
        capturing.tell_change(f"moving {self.label()}", "Make optimizers before.")
        devices.write(array, self.array)
        self.array = array
        self.storage.placement += 1

    def label(self) -> str:
        """How messages call it."""
        kind = type(self).__name__
        return f'{kind} "{self.name}"' if self.name else f"an unnamed {kind} of shape {self.shape}"

    def _title(self) -> str:
        return f'{type(self).__name__} "{self.name}" ' if self.name else type(self).__name__

    def __copy__(self) -> Parameter:
        copy = Parameter(self.array, self.name, self.trainable, self.constraint)
        copy.__class__ = type(self)  # a Buffer stays one
        copy.storage.kind = self.storage.kind
        return copy

    def __deepcopy__(self, memo: Any) -> Parameter:
        memo[id(self)] = copy = self.__copy__()
        return copy
