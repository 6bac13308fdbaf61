# Written by tools/generate.py from the class Tensor.
# ruff: noqa
from collections.abc import Sequence
from pullback.ops.index import At
from pullback.tensors.tensor import Tensor
from pullback.typing import ArrayLike
from pullback.typing import DTypeLike
from pullback.typing import IndexLike
from pullback.typing import ShapeLike
from typing import Any
from typing import Literal
from typing import NoReturn

class Methods:
    def __hash__(self) -> int: ...  # otherwise a class with __eq__ has none

    def __add__(self, b: ArrayLike, /) -> Tensor: ...

    def __radd__(self, other: ArrayLike, /) -> Tensor: ...

    def __sub__(self, b: ArrayLike, /) -> Tensor: ...

    def __rsub__(self, other: ArrayLike, /) -> Tensor: ...

    def __mul__(self, b: ArrayLike, /) -> Tensor: ...

    def __rmul__(self, other: ArrayLike, /) -> Tensor: ...

    def __truediv__(self, b: ArrayLike, /) -> Tensor: ...

    def __rtruediv__(self, other: ArrayLike, /) -> Tensor: ...

    def __floordiv__(self, b: ArrayLike, /) -> Tensor: ...

    def __rfloordiv__(self, other: ArrayLike, /) -> Tensor: ...

    def __mod__(self, b: ArrayLike, /) -> Tensor: ...

    def __rmod__(self, other: ArrayLike, /) -> Tensor: ...

    def __pow__(self, b: ArrayLike, /) -> Tensor: ...

    def __rpow__(self, other: ArrayLike, /) -> Tensor: ...

    def __matmul__(self, b: ArrayLike, /) -> Tensor: ...

    def __rmatmul__(self, other: ArrayLike, /) -> Tensor: ...

    def __and__(self, b: ArrayLike, /) -> Tensor: ...

    def __rand__(self, other: ArrayLike, /) -> Tensor: ...

    def __or__(self, b: ArrayLike, /) -> Tensor: ...

    def __ror__(self, other: ArrayLike, /) -> Tensor: ...

    def __xor__(self, b: ArrayLike, /) -> Tensor: ...

    def __rxor__(self, other: ArrayLike, /) -> Tensor: ...

    def __lshift__(self, b: ArrayLike, /) -> Tensor: ...

    def __rlshift__(self, other: ArrayLike, /) -> Tensor: ...

    def __rshift__(self, b: ArrayLike, /) -> Tensor: ...

    def __rrshift__(self, other: ArrayLike, /) -> Tensor: ...

    def __eq__(self, b: ArrayLike, /) -> Tensor: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]

    def __ne__(self, b: ArrayLike, /) -> Tensor: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]

    def __lt__(self, b: ArrayLike, /) -> Tensor: ...

    def __le__(self, b: ArrayLike, /) -> Tensor: ...

    def __gt__(self, b: ArrayLike, /) -> Tensor: ...

    def __ge__(self, b: ArrayLike, /) -> Tensor: ...

    def __neg__(self, /) -> Tensor: ...

    def __pos__(self, /) -> Tensor: ...

    def __abs__(self, /) -> Tensor: ...

    def __invert__(self, /) -> Tensor: ...

    def all(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """Returns True where no element over the axes (None: all axes) is zero. Raises ShapeError."""

    def any(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """Returns True where at least one element over the axes (None: all axes) is not zero. Raises ShapeError."""

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
        """Returns the int64 index of the first largest element along the axis (None: in the flattened tensor). Raises ShapeError."""

    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
        """Returns the int64 index of the first smallest element along the axis (None: in the flattened tensor). Raises ShapeError."""

    def max(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """Returns the largest element over the axes (None: all axes), or NaN if there is one. Ties share the gradient evenly.

        Raises ShapeError for an axis that does not exist or is empty."""

    def mean(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """Returns the mean over the axes (None: all axes); integers are averaged in float32. Raises ShapeError.

        It is the sum over the count, and infinite where the sum is, as in NumPy."""

    def min(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """Returns the smallest element over the axes (None: all axes), or NaN if there is one. Ties share the gradient evenly.

        Raises ShapeError for an axis that does not exist or is empty."""

    def prod(self, axis: int | Sequence[int] | None = None, dtype: DTypeLike | None = None, *, keepdims: bool = False) -> Tensor:
        """Returns the product over the axes (None: all axes). Its gradient is correct even if elements are zero.

        dtype: that of the result, to which x is converted first. Raises ShapeError."""

    def sum(self, axis: int | Sequence[int] | None = None, dtype: DTypeLike | None = None, *, keepdims: bool = False) -> Tensor:
        """Returns the sum over the axes (None: all axes). Integers are summed in 64 bits, half precision in float32.

        dtype: that of the result, to which x is converted first. Raises ShapeError for an axis that does not exist."""

    def std(self, axis: int | Sequence[int] | None = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
        """Returns the square root of `var`, of numbers of any size. Where all elements are equal, its gradient is 0 and its second
        derivative NaN.

        Raises ShapeError, DTypeError."""

    def var(self, axis: int | Sequence[int] | None = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
        """Returns the variance over the axes: the sum of squared distances from the mean, over n - correction; 0 if all are equal.

        Half precision is computed in float32, because a mean rounded to half precision can be off by more than the deviations from
        it. Raises ShapeError, DTypeError for a correction that is not a number."""

    def abs(self, /) -> Tensor:
        """Returns abs(x), element by element."""

    def acos(self, /) -> Tensor:
        """Returns acos(x), element by element."""

    def acosh(self, /) -> Tensor:
        """Returns acosh(x), element by element."""

    def asin(self, /) -> Tensor:
        """Returns asin(x), element by element."""

    def asinh(self, /) -> Tensor:
        """Returns asinh(x), element by element."""

    def atan(self, /) -> Tensor:
        """Returns atan(x), element by element."""

    def atanh(self, /) -> Tensor:
        """Returns atanh(x), element by element."""

    def ceil(self, /) -> Tensor:
        """Returns ceil(x), element by element."""

    def clip(self, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Tensor:
        """Returns x limited to [min, max]; None means no limit. An element equal to a limit shares the gradient evenly with it.

        Where min is not less than max the result does not depend on x, which has the gradient 0 there."""

    def cos(self, /) -> Tensor:
        """Returns cos(x), element by element."""

    def cosh(self, /) -> Tensor:
        """Returns cosh(x), element by element."""

    def erf(self, /) -> Tensor:
        """Returns erf(x), element by element."""

    def erfc(self, /) -> Tensor:
        """Returns erfc(x), element by element."""

    def erfinv(self, /) -> Tensor:
        """Returns the inverse of erf, element by element: +-inf at +-1, NaN outside [-1, 1]."""

    def exp(self, /) -> Tensor:
        """Returns exp(x), element by element."""

    def exp2(self, /) -> Tensor:
        """Returns exp2(x), element by element."""

    def expm1(self, /) -> Tensor:
        """Returns expm1(x), element by element."""

    def floor(self, /) -> Tensor:
        """Returns floor(x), element by element."""

    def isfinite(self, /) -> Tensor:
        """Returns isfinite(x), element by element."""

    def isinf(self, /) -> Tensor:
        """Returns isinf(x), element by element."""

    def isnan(self, /) -> Tensor:
        """Returns isnan(x), element by element."""

    def log(self, /) -> Tensor:
        """Returns log(x), element by element."""

    def log10(self, /) -> Tensor:
        """Returns log10(x), element by element."""

    def log1p(self, /) -> Tensor:
        """Returns log1p(x), element by element."""

    def log2(self, /) -> Tensor:
        """Returns log2(x), element by element."""

    def reciprocal(self, /) -> Tensor:
        """Returns reciprocal(x), element by element."""

    def relu(self, /) -> Tensor:
        """Returns max(x, 0). The derivative is 0 at 0 and at NaN."""

    def round(self, decimals: int = 0) -> Tensor:
        """Returns the elements rounded to this number of decimals, to even at a tie, in their dtype. The derivative is 0.

        Negative decimals round to tens, hundreds, …, as in NumPy."""

    def rsqrt(self, /) -> Tensor:
        """Returns rsqrt(x), element by element."""

    def sigmoid(self, /) -> Tensor:
        """Returns sigmoid(x), element by element."""

    def sign(self, /) -> Tensor:
        """Returns sign(x), element by element."""

    def sin(self, /) -> Tensor:
        """Returns sin(x), element by element."""

    def sinh(self, /) -> Tensor:
        """Returns sinh(x), element by element."""

    def sqrt(self, /) -> Tensor:
        """Returns sqrt(x), element by element."""

    def square(self, /) -> Tensor:
        """Returns square(x), element by element."""

    def tan(self, /) -> Tensor:
        """Returns tan(x), element by element."""

    def tanh(self, /) -> Tensor:
        """Returns tanh(x), element by element."""

    def trunc(self, /) -> Tensor:
        """Returns trunc(x), element by element."""

    def squeeze(self, axis: int | Sequence[int] | None = None) -> Tensor:
        """Removes these axes of length 1 (None: all axes of length 1). Raises ShapeError for an axis of another length."""

    def swapaxes(self, axis1: int, axis2: int, /) -> Tensor:
        """Exchanges two axes. Raises ShapeError."""

    def transpose(self, *axes: int | Sequence[int]) -> Tensor:
        """Reverses the axes, or puts them in the given order, as NumPy's transpose does. Raises ShapeError."""

    def astype(self, dtype: DTypeLike, /, *, copy: bool = True, device: str | None = None) -> Tensor:
        """Returns the tensor in another dtype. Between floating-point dtypes gradients pass; to integers they are zero.

        A tensor that already has the dtype is returned as it is: it is immutable and cannot be distinguished from a copy. A Parameter
        or a view of one is copied even then, because updates change it; with copy=False the result is a view.
        A float outside the range of an integer dtype, infinity and NaN included, has no right result there: the array API leaves it
        open. It is converted to int64, and from there wraps around.
        If `device` is given, the result is on that device. Raises DTypeError, DeviceError."""

    def copy(self, /) -> Tensor:
        """Returns a contiguous copy in row-major order."""

    def nonzero(self, /) -> tuple[Tensor, ...]:
        """Returns the int64 indices of the elements that are not zero, one tensor per axis. Raises ShapeError for a 0-d tensor."""

    def argsort(self, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Tensor:
        """Returns the int64 indices that sort along the axis, NaN last. Equal elements keep their order. Raises ShapeError."""

    def sort(self, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Tensor:
        """Returns the elements sorted along the axis, NaN last. Equal elements keep their order. Raises ShapeError."""

    def diagonal(self, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        """Returns the diagonals over two axes, along a new last axis. `pb.linalg.diagonal` takes the last two axes.

        offset: the number of the diagonal, positive above the main one. Raises ShapeError."""

    def trace(self, /, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Tensor:
        """Returns the sum of each diagonal over two axes. `pb.linalg.trace` takes the last two axes. Raises ShapeError."""

    def __round__(self, ndigits: int | None = None, /) -> Tensor: ...

    def __divmod__(self, other: ArrayLike, /) -> Any: ...

    def __rdivmod__(self, other: ArrayLike, /) -> Tensor: ...

    def __getitem__(self, index: IndexLike, /) -> Tensor: ...

    @property
    def at(self) -> At: ...

    @property
    def T(self) -> Tensor: ...

    @property
    def mT(self) -> Tensor: ...

    def reshape(self, *lengths: ShapeLike) -> Tensor:
        """Returns the tensor in another shape: t.reshape(2, 3) or t.reshape((2, 3)); one length may be -1. Raises ShapeError."""

    def repeat(self, repeats: ArrayLike, *more: NoReturn, axis: int | None = None) -> Tensor:
        """Repeats each element along an axis; with axis=None, of the flattened tensor. Raises ShapeError.

        Raises TypeError for several positional integers, which mean an axis to NumPy and one count per axis to PyTorch."""

    def flatten(self) -> Tensor:
        """Returns all elements as a vector, in row-major order."""

    def __dir__(self) -> list[str]: ...

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any: ...

    def __array_function__(self, func: Any, types: Any, args: Any, options: Any) -> Any: ...

    def cumprod(self, axis: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
        """Returns, for each element, the product of all elements up to it along the axis; axis=None flattens first."""

    def cumsum(self, axis: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
        """Returns, for each element, the sum of all elements up to it along the axis; axis=None flattens first."""

    def dot(self, b: ArrayLike) -> Tensor:
        """Returns the product of vectors, of matrices, or over the last axis of a and the last but one of b. Raises ShapeError."""

    def ravel(self, order: Literal['C', 'K', 'A'] = 'C') -> Tensor:
        """Returns all elements as a vector in row-major order; a view if possible. Raises ShapeError for another order."""

    def take(self, indices: ArrayLike, axis: int | None = None, *, mode: Literal['raise'] = 'raise') -> Tensor:
        """Returns the slices at the indices along an axis; with axis=None the elements of the flattened tensor. Raises IndexError."""
