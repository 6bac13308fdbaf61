# Written by tools/generate.py from elementwise.py.
# ruff: noqa
from pullback.tensors.tensor import Tensor
from pullback.typing import ArrayLike

def abs(x: ArrayLike, /) -> Tensor:
    """Returns abs(x), element by element."""

def negative(x: ArrayLike, /) -> Tensor:
    """Returns negative(x), element by element."""

def positive(x: ArrayLike, /) -> Tensor:
    """Returns positive(x), element by element."""

def sign(x: ArrayLike, /) -> Tensor:
    """Returns sign(x), element by element."""

def square(x: ArrayLike, /) -> Tensor:
    """Returns square(x), element by element."""

def sqrt(x: ArrayLike, /) -> Tensor:
    """Returns sqrt(x), element by element."""

def rsqrt(x: ArrayLike, /) -> Tensor:
    """Returns rsqrt(x), element by element."""

def reciprocal(x: ArrayLike, /) -> Tensor:
    """Returns reciprocal(x), element by element."""

def floor(x: ArrayLike, /) -> Tensor:
    """Returns floor(x), element by element."""

def ceil(x: ArrayLike, /) -> Tensor:
    """Returns ceil(x), element by element."""

def trunc(x: ArrayLike, /) -> Tensor:
    """Returns trunc(x), element by element."""

def round(x: ArrayLike, decimals: int = 0) -> Tensor:
    """Returns the elements rounded to this number of decimals, to even at a tie, in their dtype. The derivative is 0.

    Negative decimals round to tens, hundreds, …, as in NumPy."""

def exp(x: ArrayLike, /) -> Tensor:
    """Returns exp(x), element by element."""

def exp2(x: ArrayLike, /) -> Tensor:
    """Returns exp2(x), element by element."""

def expm1(x: ArrayLike, /) -> Tensor:
    """Returns expm1(x), element by element."""

def log(x: ArrayLike, /) -> Tensor:
    """Returns log(x), element by element."""

def log1p(x: ArrayLike, /) -> Tensor:
    """Returns log1p(x), element by element."""

def log2(x: ArrayLike, /) -> Tensor:
    """Returns log2(x), element by element."""

def log10(x: ArrayLike, /) -> Tensor:
    """Returns log10(x), element by element."""

def sin(x: ArrayLike, /) -> Tensor:
    """Returns sin(x), element by element."""

def cos(x: ArrayLike, /) -> Tensor:
    """Returns cos(x), element by element."""

def tan(x: ArrayLike, /) -> Tensor:
    """Returns tan(x), element by element."""

def asin(x: ArrayLike, /) -> Tensor:
    """Returns asin(x), element by element."""

def acos(x: ArrayLike, /) -> Tensor:
    """Returns acos(x), element by element."""

def atan(x: ArrayLike, /) -> Tensor:
    """Returns atan(x), element by element."""

def sinh(x: ArrayLike, /) -> Tensor:
    """Returns sinh(x), element by element."""

def cosh(x: ArrayLike, /) -> Tensor:
    """Returns cosh(x), element by element."""

def tanh(x: ArrayLike, /) -> Tensor:
    """Returns tanh(x), element by element."""

def asinh(x: ArrayLike, /) -> Tensor:
    """Returns asinh(x), element by element."""

def acosh(x: ArrayLike, /) -> Tensor:
    """Returns acosh(x), element by element."""

def atanh(x: ArrayLike, /) -> Tensor:
    """Returns atanh(x), element by element."""

def erf(x: ArrayLike, /) -> Tensor:
    """Returns erf(x), element by element."""

def erfc(x: ArrayLike, /) -> Tensor:
    """Returns erfc(x), element by element."""

def erfinv(x: ArrayLike, /) -> Tensor:
    """Returns the inverse of erf, element by element: +-inf at +-1, NaN outside [-1, 1]."""

def relu(x: ArrayLike, /) -> Tensor:
    """Returns max(x, 0). The derivative is 0 at 0 and at NaN."""

def sigmoid(x: ArrayLike, /) -> Tensor:
    """Returns sigmoid(x), element by element."""

def softplus(x: ArrayLike, /) -> Tensor:
    """Returns log(1 + exp(x)), without overflow."""

def silu(x: ArrayLike, /) -> Tensor:
    """Returns x * sigmoid(x)."""

def elu(x: ArrayLike, /) -> Tensor:
    """Returns x where x is positive, exp(x) - 1 elsewhere."""

def gelu(x: ArrayLike, /) -> Tensor:
    """Returns x times the normal distribution's cumulative probability of x, computed exactly by erf (Hendrycks & Gimpel 2016)."""

def gelu_tanh(x: ArrayLike, /) -> Tensor:
    """Returns the tanh approximation of gelu."""

def add(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns add(a, b), element by element, with broadcasting."""

def subtract(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns subtract(a, b), element by element, with broadcasting."""

def multiply(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns multiply(a, b), element by element, with broadcasting."""

def divide(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns divide(a, b), element by element, with broadcasting."""

def pow(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns a to the power of b, element by element, with broadcasting.

    An integer to a negative integer power is no integer: ArgumentError refuses a negative number as the exponent of integers, and a
    list or a NumPy array with one. The values of a tensor of exponents are not checked, because a program would wait for the device:
    the kernels then round the power toward zero, and 0 to a negative power is 0."""

def floor_divide(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns floor_divide(a, b), element by element, with broadcasting."""

def remainder(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns remainder(a, b), element by element, with broadcasting."""

def atan2(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns atan2(a, b), element by element, with broadcasting."""

def hypot(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns sqrt(a^2 + b^2). At 0 the derivative is 0, and the second one NaN."""

def logaddexp(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns logaddexp(a, b), element by element, with broadcasting."""

def maximum(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns the larger of a and b. Ties share the gradient evenly; a NaN gets none."""

def minimum(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns the smaller of a and b. Ties share the gradient evenly; a NaN gets none."""

def copysign(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns |a| with the sign of b. The derivative at a = 0 is 0."""

def nextafter(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns nextafter(a, b), element by element, with broadcasting."""

def mask_nan_gradient(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns b, but 0 where a is 0 and b is NaN: a zero cotangent then gives a zero gradient."""

def equal(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns equal(a, b), element by element, with broadcasting."""

def not_equal(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns not_equal(a, b), element by element, with broadcasting."""

def less(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns less(a, b), element by element, with broadcasting."""

def less_equal(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns less_equal(a, b), element by element, with broadcasting."""

def greater(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns greater(a, b), element by element, with broadcasting."""

def greater_equal(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns greater_equal(a, b), element by element, with broadcasting."""

def logical_and(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns logical_and(a, b), element by element, with broadcasting."""

def logical_or(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns logical_or(a, b), element by element, with broadcasting."""

def logical_xor(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns logical_xor(a, b), element by element, with broadcasting."""

def bitwise_and(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns bitwise_and(a, b), element by element, with broadcasting."""

def bitwise_or(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns bitwise_or(a, b), element by element, with broadcasting."""

def bitwise_xor(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns bitwise_xor(a, b), element by element, with broadcasting."""

def bitwise_left_shift(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns bitwise_left_shift(a, b), element by element, with broadcasting."""

def bitwise_right_shift(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns bitwise_right_shift(a, b), element by element, with broadcasting."""

def logical_not(x: ArrayLike, /) -> Tensor:
    """Returns logical_not(x), element by element."""

def bitwise_invert(x: ArrayLike, /) -> Tensor:
    """Returns bitwise_invert(x), element by element."""

def isnan(x: ArrayLike, /) -> Tensor:
    """Returns isnan(x), element by element."""

def isinf(x: ArrayLike, /) -> Tensor:
    """Returns isinf(x), element by element."""

def isfinite(x: ArrayLike, /) -> Tensor:
    """Returns isfinite(x), element by element."""

def signbit(x: ArrayLike, /) -> Tensor:
    """Returns signbit(x), element by element."""

def where(condition: ArrayLike, a: ArrayLike, b: ArrayLike) -> Tensor:
    """Returns a where the condition is true, b elsewhere. Only the chosen branch is differentiated, so the other contributes no NaN."""

def clip(x: ArrayLike, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Tensor:
    """Returns x limited to [min, max]; None means no limit. An element equal to a limit shares the gradient evenly with it.

    Where min is not less than max the result does not depend on x, which has the gradient 0 there."""

def leaky_relu(x: ArrayLike, negative_slope: ArrayLike = 0.01) -> Tensor:
    """Returns x where x is positive, negative_slope * x elsewhere. The derivative at 0 is negative_slope."""

def isclose(a: ArrayLike, b: ArrayLike, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """Returns |a - b| <= atol + rtol * |b|, element by element, as NumPy does."""

def nan_to_num(x: ArrayLike, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Returns x with NaN replaced by `nan`, and ±inf by `posinf` and `neginf` (None: the largest and lowest finite values)."""
