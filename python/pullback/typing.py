"""Types for annotations: `from pullback.typing import ArrayLike`.

ArrayLike   whatever functions take for an array: a tensor, a number, an array of any library, nested lists and tuples of these
DTypeLike   a dtype, a NumPy type, Python's float, int or bool, or the name of a dtype
ShapeLike   a length or a sequence of lengths
IndexLike   what stands between the brackets of `t[...]`
Tree        a tensor, or tensors in nested lists, tuples, dicts and dataclasses
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, Protocol, SupportsIndex, TypeVar, overload

import numpy as np

from .exports import exported as _exported

if TYPE_CHECKING:
    from typing import TypeAlias

    from .tensors.tensor import Tensor

__all__ = ["ArrayLike", "DTypeLike", "IndexLike", "ShapeLike", "Tree"]

T_co = TypeVar("T_co", covariant=True)


class SupportsArray(Protocol):
    """A Tensor, a NumPy array or scalar, or an object that can become a NumPy array."""

    def __array__(self) -> np.ndarray[Any, Any]: ...


class SupportsDLPack(Protocol):
    """An array that another library shares: a torch.Tensor, a jax.Array, a cupy.ndarray."""

    def __dlpack__(self) -> Any: ...


class Nested(Protocol[T_co]):
    """A list, tuple or range of T, or of nested lists, tuples or ranges of T. A string is none, because of its `__contains__`."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> T_co | Nested[T_co]: ...
    def __contains__(self, x: object, /) -> bool: ...


class Dataclass(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


# Type checkers take an int and a bool where a float is asked for.
ArrayLike: TypeAlias = float | SupportsArray | SupportsDLPack | Nested[float | SupportsArray | SupportsDLPack]
DTypeLike: TypeAlias = np.dtype[Any] | type[np.generic] | type[float] | type[int] | type[bool] | str
ShapeLike: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
_Item: TypeAlias = SupportsIndex | slice | EllipsisType | SupportsArray | Nested[SupportsIndex | SupportsArray] | None
IndexLike: TypeAlias = _Item | tuple[_Item, ...]
Tree: TypeAlias = "Tensor | Nested[Tensor | Mapping[Any, Tree] | Dataclass | None] | Mapping[Any, Tree] | Dataclass | None"

P = ParamSpec("P")
Rest = ParamSpec("Rest")
R = TypeVar("R")
T = TypeVar("T", bound="Tensor")
X = TypeVar("X", bound="Tree")


class Gradient(Protocol[P]):
    """A function like f that returns something of the type of its first argument, such as the gradient with respect to it.

    The type is Any if the first argument is not a tensor or a tree of tensors: the gradient with respect to a number is a tensor.
    """

    @overload
    def __call__(self: Gradient[Concatenate[X, Rest]], x: X, /, *args: Rest.args, **options: Rest.kwargs) -> X: ...
    @overload
    def __call__(self: Gradient[P], *args: P.args, **options: P.kwargs) -> Any: ...


class Derivative(Protocol[P]):
    """A function like f that returns a tensor if its first argument is one, otherwise Any: a Jacobian, a Hessian."""

    @overload
    def __call__(self: Derivative[Concatenate[T, Rest]], x: T, /, *args: Rest.args, **options: Rest.kwargs) -> T: ...
    @overload
    def __call__(self: Derivative[P], *args: P.args, **options: P.kwargs) -> Any: ...


class ValueAndGradient(Protocol[P]):
    """A function like f that returns a scalar tensor and what `Gradient` returns."""

    @overload
    def __call__(
        self: ValueAndGradient[Concatenate[X, Rest]], x: X, /, *args: Rest.args, **options: Rest.kwargs
    ) -> tuple[Tensor, X]: ...
    @overload
    def __call__(self: ValueAndGradient[P], *args: P.args, **options: P.kwargs) -> tuple[Tensor, Any]: ...


_exported(globals())
