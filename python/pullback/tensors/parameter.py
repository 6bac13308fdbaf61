"""Parameter: a tensor that is updated in place, and that tapes watch automatically."""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from ..autodiff.listeners import new_serial
from ..autodiff.stand_in import refuse_examples
from ..duck import has
from ..errors import PullbackError
from ..interop.wrong_calls import flag
from ..launch import capturing
from ..printable import printable
from ..typing import ArrayLike, DTypeLike
from . import devices, dtypes, exchange
from .attached import attached
from .creation import asarray
from .storage import Storage
from .tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Self


class Parameter(Tensor):
    """A tensor that optimizers update in place, and that tapes watch automatically.

    Args:
        obj: the value; always copied.
        name: the name in messages and state dictionaries; if it is None, a Module that holds the Parameter sets it.
        trainable: False keeps tapes from watching it and optimizers from updating it.
        constraint: a function of the value, or one of `optim.constraints`, applied inside every update.
    """

    __slots__ = ("constraint", "trainable")

    if TYPE_CHECKING:  # attached by ops/operators.py

        def __iadd__(self, other: ArrayLike, /) -> Self: ...

        __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = __ipow__ = __imatmul__ = __iadd__
        __iand__ = __ior__ = __ixor__ = __ilshift__ = __irshift__ = __iadd__

    def __init__(
        self,
        obj: ArrayLike,
        name: str | None = None,
        trainable: bool = True,
        constraint: Callable[[Tensor], ArrayLike] | None = None,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        value = _copied(obj, dtype, device)
        refuse_examples("Parameter: the value", value)
        dtypes.check_trainable(value.dtype, trainable)
        super().__init__(value.array)
        self.serial = new_serial()
        self.storage = Storage(type(self).__name__, name)
        self.trainable = trainable
        self.constraint = constraint
        capturing.made(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "constraint":
            self._check_constraint(value)
        elif name == "trainable":
            value = flag(type(self).__name__, name, value)
        # A recording trains what was trainable when it was made, with the constraints of that time.
        if name in ("trainable", "constraint") and value is not getattr(self, name, value):
            capturing.tell_change(f"setting {name} of {self.label()}", "Set it outside.", self)
        super().__setattr__(name, value)

    def _check_constraint(self, constraint: Any) -> None:
        """Raises PullbackError for what is no function, and ShapeError for one of optim.constraints that does not fit the shape."""
        if constraint is None:
            return
        if isinstance(constraint, type) or not callable(constraint):
            made = f"{constraint.__name__}()" if isinstance(constraint, type) else "optim.constraints.NonNegative()"
            raise PullbackError(
                f"constraint of {self.label()}: {constraint!r} is not a function of the value. Give a function, or one of "
                f"optim.constraints: constraint={made}."
            )
        check = getattr(constraint, "check", None)
        if check is not None:
            check(self.shape)

    @property
    def name(self) -> str | None:
        if capturing.thread.recording is not None:
            capturing.thread.recording.fact(self, "name")
        return self.storage.name

    @name.setter
    def name(self, name: str | None) -> None:
        self.storage.name = name

    @property
    def version(self) -> int:
        """The number of changes in place so far."""
        if capturing.thread.recording is not None:
            capturing.thread.recording.fact(self, "version")
        return self.storage.version

    def assign(self, value: ArrayLike) -> Self:
        """Sets the value in place, to a value of the same shape that is converted to the Parameter's dtype; returns the Parameter.

        In-place operators (`p -= lr * g`) assign the operator's result. Raises ShapeError if the shape differs; TapeError if a
        recording tape watches `value`, because gradients would stop at the Parameter.
        """
        attached.assign(self, value)
        return self

    @property
    def __cuda_array_interface__(self) -> NoReturn:
        """Raises AttributeError: a Parameter changes in place, so it would give out copies and could never free them."""
        exchange.check_on_gpu(self)
        raise AttributeError(
            f"__cuda_array_interface__: {self.label()} changes in place. Give pb.copy(p), or use DLPack, which makes a copy."
        )

    def place(self, array: Any) -> None:
        """Moves the value into `array`, different memory of the same shape and dtype (an optimizer's arena)."""
        capturing.tell_change(f"moving {self.label()}", "Make optimizers before.", self)
        devices.write(array, self.array)
        self.array = array
        self.storage.placement += 1

    def label(self) -> str:
        """Returns the Parameter's name for messages."""
        kind = type(self).__name__
        return f'{kind} "{self.storage.name}"' if self.storage.name else f"an unnamed {kind} of shape {self.shape}"

    def _title(self) -> str:
        return f'{type(self).__name__} "{self.name}" ' if self.name else type(self).__name__

    def __str__(self) -> str:
        return printable(repr(self))

    def __copy__(self) -> Parameter:
        return remade(type(self), self.array, self.storage.name, self.trainable, self.constraint, added(self))

    def __deepcopy__(self, memo: Any) -> Parameter:
        memo[id(self)] = made = remade(type(self), self.array, self.storage.name, self.trainable, self.constraint, {})
        _set(made, copy.deepcopy(added(self), memo))
        return made


def added(p: Parameter) -> dict[str, Any]:
    """Returns the attributes that a subclass of the user's has added."""
    names = set(_slots(type(p))) - set(_slots(Parameter))
    return {**{name: getattr(p, name) for name in names if hasattr(p, name)}, **getattr(p, "__dict__", {})}


def remade(
    kind: type[Parameter], value: Any, name: str | None, trainable: bool, constraint: Any, attributes: dict[str, Any]
) -> Parameter:
    """Returns a Parameter of this class with a copy of the value. The `__init__` of a subclass does not run, as in any copy."""
    made = object.__new__(kind)
    Parameter.__init__(made, value, name, trainable, constraint)
    _set(made, attributes)
    return made


def _set(p: Parameter, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        object.__setattr__(p, name, value)


def _slots(kind: type) -> list[str]:
    return copyreg._slotnames(kind)  # type: ignore[attr-defined]  # what the module `copy` calls


def _copied(obj: Any, dtype: Any, device: str | None) -> Tensor:
    """Returns a copy of the value. Inside a captured function every replay makes it anew, of the present values of an array."""
    if capturing.thread.recording is None:
        return asarray(obj, dtype=dtype, device=device, copy=True)
    # The host converts what has no dtype, and to bfloat16, because kernels round float64 to float32 before.
    by_kernel = has(obj, "dtype") and dtype is not None and dtypes.as_dtype(dtype).name != "bfloat16"
    return asarray(asarray(obj, dtype=None if by_kernel else dtype, device=device), dtype=dtype, copy=True)
