"""Elementwise ops, one declaration each. csrc/math/unary.def and binary.def hold the same formulas for the kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ..autodiff.listeners import listeners
from ..autodiff.primitive import OPS, ZERO, apply, same
from ..autodiff.scalars import common_dtype
from ..backends.reference import special
from ..errors import PullbackError
from ..tensors import dtypes
from ..tensors.creation import asarray
from ..tensors.operand import Number, as_tensor, own
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from ._powers import POWER, refuse_negative_exponents
from ._shapes import broadcast_shapes, flag, integer
from .by_name import in_dtype
from .conversion import settled, stop_gradient as _constant
from .declare import binary, no_flops, op, per_element, unary
from .kinds import BINARY, COMPARE, NEIGHBOUR, SELECT
from .operands import as_tensors, operands
from .promotion import check_devices, check_numbers

TWO_OVER_ROOT_PI = 2 / math.sqrt(math.pi)
ROOT_HALF, INVERSE_ROOT_TWO_PI = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)
LOG2, LOG10 = 0.6931471805599453, 2.302585092994046

# ---- sign and size

abs = unary("abs", reference=lambda xp, x: xp.abs(x), pullback=lambda g, x: g * sign(x), takes="any")
negative = unary("negative", reference=lambda xp, x: xp.negative(x), pullback=lambda g: -g, takes="number")
positive = unary("positive", reference=lambda xp, x: xp.positive(x), pullback=same, takes="number")
sign = unary("sign", reference=lambda xp, x: xp.sign(x), pullback=ZERO, takes="number")
square = unary("square", reference=lambda xp, x: x * x, pullback=lambda g, x: g * (2 * x), takes="number")
sqrt = unary("sqrt", reference=lambda xp, x: xp.sqrt(x), pullback=lambda g, y: g * (0.5 / y), domain=(0.1, 4))
rsqrt = unary("rsqrt", reference=lambda xp, x: 1 / xp.sqrt(x), pullback=lambda g, y: -0.5 * g * y * y * y, domain=(0.1, 4))
reciprocal = unary("reciprocal", reference=lambda xp, x: 1 / x, pullback=lambda g, y: -g * (y * y), domain=(0.2, 3))
floor = unary("floor", reference=lambda xp, x: xp.floor(x), pullback=ZERO, takes="number")
ceil = unary("ceil", reference=lambda xp, x: xp.ceil(x), pullback=ZERO, takes="number")
trunc = unary("trunc", reference=lambda xp, x: xp.trunc(x), pullback=ZERO, takes="number")
_round = unary("round", reference=lambda xp, x: xp.round(x), pullback=ZERO, takes="number")


def round(x: ArrayLike, decimals: int = 0) -> Tensor:
    """Returns the elements rounded to this number of decimals, to even at a tie, in their dtype. The derivative is 0.

    Negative decimals round to tens, hundreds, …, as in NumPy.
    """
    if decimals.__class__ is int and not decimals:
        return _round(x)
    x, decimals = as_tensor(x), integer("round", "decimals", decimals)
    if not dtypes.is_float(x.dtype):
        return _round(x) if decimals > 0 or x.dtype == dtypes.bool_ else _rounded_integers(x, 10 ** min(-decimals, 20))
    wide = in_dtype(x, dtypes.float32) if x.dtype.itemsize == 2 else x
    scale = 10.0 ** max(decimals, -decimals) if -308 <= decimals <= 308 else math.inf
    if decimals > 0:  # A number that overflows when it is scaled has no decimals to round away.
        y = _round(wide * scale) / scale
    else:
        tens = _round(wide / scale)
        y = where(tens == 0, tens, tens * scale)
    return in_dtype(where(isfinite(y), y, _constant(wide)), x.dtype)


def _rounded_integers(x: Tensor, unit: int) -> Tensor:
    """Returns the integers rounded to multiples of the unit, to even multiples at a tie."""
    if unit > np.iinfo(x.dtype).max:
        return x * 0
    rest, more = x % unit, unit - x % unit
    return where((rest > more) | ((rest == more) & (x // unit % 2 == 1)), x + more, x - rest)


# ---- exponentials and logarithms

exp = unary("exp", reference=lambda xp, x: xp.exp(x), pullback=lambda g, y: g * y)
exp2 = unary("exp2", reference=lambda xp, x: xp.exp2(x), pullback=lambda g, y: g * (y * LOG2))
expm1 = unary("expm1", reference=lambda xp, x: xp.expm1(x), pullback=lambda g, x: g * exp(x))
log = unary("log", reference=lambda xp, x: xp.log(x), pullback=lambda g, x: g / x, domain=(0.1, 4))
log1p = unary("log1p", reference=lambda xp, x: xp.log1p(x), pullback=lambda g, x: g / (1 + x), domain=(-0.8, 4))
log2 = unary("log2", reference=lambda xp, x: xp.log2(x), pullback=lambda g, x: g / (x * LOG2), domain=(0.1, 4))
log10 = unary("log10", reference=lambda xp, x: xp.log10(x), pullback=lambda g, x: g / (x * LOG10), domain=(0.1, 4))

# ---- circular and hyperbolic functions


def _one_minus_square(x: Tensor) -> Tensor:
    """1 - x². Next to ±1 the product has its digits, and next to 0 the derivative -2 x of the other form has."""
    return where(less(abs(x), 0.5), 1 - x * x, (1 - x) * (1 + x))


sin = unary("sin", reference=lambda xp, x: xp.sin(x), pullback=lambda g, x: g * cos(x))
cos = unary("cos", reference=lambda xp, x: xp.cos(x), pullback=lambda g, x: -(g * sin(x)))
tan = unary("tan", reference=lambda xp, x: xp.tan(x), pullback=lambda g, y: g * (1 + y * y), domain=(-1, 1))
asin = unary("asin", reference=lambda xp, x: xp.arcsin(x), pullback=lambda g, x: g * rsqrt(_one_minus_square(x)), domain=(-0.9, 0.9))
acos = unary("acos", reference=lambda xp, x: xp.arccos(x), pullback=lambda g, x: -(g * rsqrt(_one_minus_square(x))), domain=(-0.9, 0.9))
atan = unary("atan", reference=lambda xp, x: xp.arctan(x), pullback=lambda g, x: g / (1 + x * x))
sinh = unary("sinh", reference=lambda xp, x: xp.sinh(x), pullback=lambda g, x: g * cosh(x))
cosh = unary("cosh", reference=lambda xp, x: xp.cosh(x), pullback=lambda g, x: g * sinh(x))
tanh = unary("tanh", reference=lambda xp, x: xp.tanh(x), pullback=lambda g, y: g * (1 - y * y))
asinh = unary("asinh", reference=lambda xp, x: xp.arcsinh(x), pullback=lambda g, x: g * rsqrt(x * x + 1))
acosh = unary("acosh", reference=lambda xp, x: xp.arccosh(x), pullback=lambda g, x: g * (rsqrt(x - 1) * rsqrt(x + 1)), domain=(1.2, 4))
atanh = unary("atanh", reference=lambda xp, x: xp.arctanh(x), pullback=lambda g, x: g / _one_minus_square(x), domain=(-0.8, 0.8))

# ---- special functions

erf = unary("erf", reference=lambda xp, x: special(xp, "erf")(x), pullback=lambda g, x: g * (TWO_OVER_ROOT_PI * exp(-(x * x))))
erfc = unary(
    "erfc", reference=lambda xp, x: special(xp, "erfc")(x), pullback=lambda g, x: g * (-TWO_OVER_ROOT_PI * exp(-(x * x)))
)
erfinv = unary("erfinv", reference=lambda xp, x: special(xp, "erfinv")(x), domain=(-0.9, 0.9),
               pullback=lambda g, y: g * (exp(y * y) / TWO_OVER_ROOT_PI),
               doc="Returns the inverse of erf, element by element: +-inf at +-1, NaN outside [-1, 1].")

# ---- activations

relu = unary("relu", reference=lambda xp, x: xp.where(x < 0, xp.zeros_like(x), x), pullback=lambda g, y: where(y > 0, g, 0.0),
             doc="Returns max(x, 0). The derivative is 0 at 0 and at NaN.")
sigmoid = unary("sigmoid", reference=lambda xp, x: _sigmoid(xp, x), pullback=lambda g, y: g * (y * (1 - y)))
softplus = unary("softplus", reference=lambda xp, x: xp.logaddexp(x, xp.zeros_like(x)), pullback=lambda g, x: g * sigmoid(x),
                 doc="Returns log(1 + exp(x)), without overflow.")
silu = unary("silu", reference=lambda xp, x: _gated(xp, x, 800, lambda c: _sigmoid(xp, c)),
             pullback=lambda g, x: g * _silu_slope(_bounded(x, 800)), doc="Returns x * sigmoid(x).")
elu = unary("elu", reference=lambda xp, x: xp.where(x > 0, x, xp.expm1(xp.where(x > 0, xp.zeros_like(x), x))),
            pullback=lambda g, x: where(x > 0, g, g * exp(x)), doc="Returns x where x is positive, exp(x) - 1 elsewhere.")
gelu = unary(
    "gelu",
    reference=lambda xp, x: _gated(xp, x, 40, lambda c: 0.5 * special(xp, "erfc")(-c * ROOT_HALF)),
    pullback=lambda g, x: g * _gelu_slope(_bounded(x, 40)),
    ulp=8,  # the argument of erfc is rounded, which matters where erfc falls steeply
    doc="Returns x times the normal distribution's cumulative probability of x, computed exactly by erf (Hendrycks & Gimpel 2016).",
)
gelu_tanh = unary(
    "gelu_tanh",
    reference=lambda xp, x: _gated(xp, x, 40, lambda c: 1 / (1 + xp.exp(-1.5957691216057308 * (c + 0.044715 * c * c * c)))),
    pullback=lambda g, x: g * _gelu_tanh_slope(_bounded(x, 40)),
    ulp=8,  # for the same reason as gelu
    doc="Returns the tanh approximation of gelu.",
)


def _sigmoid(xp: Any, x: Any) -> Any:
    """Returns the sigmoid of x, computed from e^-|x|, which does not overflow."""
    e = xp.exp(-xp.abs(x))
    return xp.where(x < 0, e, xp.ones_like(e)) / (1 + e)


def _gated(xp: Any, x: Any, limit: float, gate: Any) -> Any:
    """Returns x * gate(x). gate(-limit) is practically 0, so x is clamped there: -inf gives -0, not NaN."""
    c = xp.maximum(x, xp.asarray(-limit, x.dtype))
    return c * gate(c)


def _bounded(x: Tensor, limit: float) -> Tensor:
    """Clamps x to ±limit, beyond which the factor that multiplies x has reached its limit, so that infinity times 0 never occurs."""
    return minimum(maximum(x, -limit), limit)


def _silu_slope(c: Tensor) -> Tensor:
    s = sigmoid(c)
    return s + c * (s * (1 - s))


def _gelu_slope(c: Tensor) -> Tensor:
    return 0.5 * erfc(c * -ROOT_HALF) + c * (INVERSE_ROOT_TWO_PI * exp(-0.5 * (c * c)))


def _gelu_tanh_slope(c: Tensor) -> Tensor:
    s = sigmoid(1.5957691216057308 * (c + 0.044715 * (c * c * c)))
    return s + c * s * (1 - s) * (1.5957691216057308 + 0.2140644488178602 * (c * c))


# ---- arithmetic with two operands

add = binary("add", reference=lambda xp, a, b: xp.add(a, b), pullback=(same, same))
subtract = binary("subtract", reference=lambda xp, a, b: xp.subtract(a, b), pullback=(same, lambda g: -g), takes="number")
multiply = binary("multiply", reference=lambda xp, a, b: xp.multiply(a, b), pullback=(lambda g, b: g * b, lambda g, a: g * a))
divide = binary("divide", reference=lambda xp, a, b: xp.divide(a, b), takes="float",
                pullback=(lambda g, b: g / b, lambda g, b, y: -(g * (y / b))), domain=(0.3, 3))
pow = binary("pow", reference=lambda xp, a, b: xp.power(a, b), domain=(0.3, 2.5), takes="number", check=refuse_negative_exponents, doc=POWER,
             pullback=(lambda g, a, b: _pow_pullback_a(g, a, b), lambda g, a, b, y: _pow_pullback_b(g, a, b, y)))


def _floor_divide(xp: Any, a: Any, b: Any) -> Any:
    """Returns floor(a / b). If a or b is infinite, the result follows the array API, and not Python as NumPy does."""
    y = xp.floor_divide(a, b)
    return xp.where(xp.isinf(a) | xp.isinf(b), xp.true_divide(a, b).astype(y.dtype), y) if y.dtype.kind in "fV" else y


floor_divide = binary("floor_divide", reference=_floor_divide, pullback=(ZERO, ZERO), takes="number", domain=(0.3, 3))
remainder = binary("remainder", reference=lambda xp, a, b: xp.remainder(a, b), takes="number",
                   pullback=(same, lambda g, a, b: -(g * floor_divide(a, b))), domain=(0.3, 3))
atan2 = binary("atan2", reference=lambda xp, a, b: xp.arctan2(a, b), takes="float",
               pullback=(lambda g, a, b: g * _atan2_slope(_kept(a), _kept(b), True), lambda g, a, b: -(g * _atan2_slope(_kept(a), _kept(b), False))))
hypot = binary("hypot", reference=lambda xp, a, b: xp.hypot(a, b), takes="float", tangent=lambda *given: _hypot_tangent(*given),
               pullback=(lambda g, a, y: apply(OPS["along"], (g, a, y), (False,)), lambda g, b, y: apply(OPS["along"], (g, b, y), (False,))), doc="Returns sqrt(a^2 + b^2). At 0 the derivative is 0, and the second one NaN.")
logaddexp = binary("logaddexp", reference=lambda xp, a, b: xp.logaddexp(a, b), takes="float",
                   pullback=(lambda g, a, b: g * sigmoid(_apart(a, b)), lambda g, a, b: g * sigmoid(_apart(b, a))))
maximum = binary("maximum", reference=lambda xp, a, b: xp.maximum(a, b),
                 pullback=(lambda g, a, b: g * _share(a, b), lambda g, a, b: g * _share(b, a)), doc="Returns the larger of a and b. Ties share the gradient evenly; a NaN gets none.")
minimum = binary("minimum", reference=lambda xp, a, b: xp.minimum(a, b),
                 pullback=(lambda g, a, b: g * _share(b, a), lambda g, a, b: g * _share(a, b)), doc="Returns the smaller of a and b. Ties share the gradient evenly; a NaN gets none.")
copysign = binary("copysign", reference=lambda xp, a, b: xp.copysign(a, b), takes="float",
                  pullback=(lambda g, a, b: _by_sign(g, a, b), ZERO), doc="Returns |a| with the sign of b. The derivative at a = 0 is 0.")
nextafter = binary("nextafter", reference=lambda xp, a, b: xp.nextafter(a, b), takes="float", kind=NEIGHBOUR, cost=no_flops, pullback=(same, ZERO))


def _pow_pullback_a(g: Tensor, a: Tensor, b: Any) -> Tensor:
    """b * a**(b-1), and 0 where b = 0 and a**(b-1) is not finite.

    If b = 0 and the power is finite, the product is kept, because its derivative with respect to b is not 0.
    """
    if isinstance(b, Number):
        b = b.array
        return g * (b * a ** (b - 1)) if b else g * 0.0
    power = pow(a, b - 1)
    return g * where(logical_and(equal(b, 0), logical_not(isfinite(power))), 0.0, b * power)


@lru_cache
def _log_of(number: float) -> float:
    """Returns the correctly rounded logarithm of a positive number. The last digit of `math.log` depends on the machine."""
    from decimal import Context, Decimal

    return float(Context(prec=40).ln(Decimal(number)))


def _pow_pullback_b(g: Tensor, a: Any, b: Tensor, y: Tensor) -> Tensor:
    """y * log(a): NaN for a negative base, because its powers exist at integers only; 0 where a = 0 and b >= 0."""
    if isinstance(a, Number):
        a = a.array
        slope = y * (_log_of(float(a)) if a > 0 else -math.inf if a == 0 else math.nan)
        return g * (slope if a else where(greater_equal(b, 0), 0.0, slope))
    flat = logical_and(equal(a, 0), greater_equal(b, 0))
    return g * where(flat, 0.0, y * log(where(flat, 1.0, a)))


def _atan2_slope(a: Any, b: Any, of_a: bool) -> Tensor:
    """Returns b / (a² + b²) if `of_a`, otherwise a / (a² + b²). Uses the ratio of the smaller to the larger number, as the kernel does."""
    steep = greater(*[abs(x) if isinstance(x, Tensor) else math.fabs(x) for x in (a, b)])
    large, small = where(steep, a, b), where(steep, b, a)
    ratio = where(isinf(small), 0.0, small) / large
    return (where(steep, ratio, 1.0) if of_a else where(steep, 1.0, ratio)) / (1.0 + ratio * ratio) / large


def _hypot_tangent(op: Any, inputs: Any, y: Tensor, params: Any, tangents: Any) -> Tensor:
    parts = [apply(OPS["along"], (t, x, y), (True,)) for t, x in zip(tangents, inputs) if t is not None]
    return sum(parts[1:], parts[0])


def _apart(a: Any, b: Any) -> Tensor:
    """Returns a - b, and -inf where both are -inf, so that neither has a slope."""
    a, b = _kept(a), _kept(b)
    return where(equal(maximum(a, b), -math.inf), -math.inf, subtract(a, b))


def _by_sign(g: Tensor, a: Tensor, b: Any) -> Tensor:
    """g where a and b have the same sign, -g where they do not, 0 where a is 0."""
    same = equal(signbit(a), signbit(_kept(b)))
    return where(equal(a, 0), 0.0, where(same, g, -g))


def _share(a: Any, b: Any) -> Tensor:
    """Returns 1 where a > b, 1/2 where a = b, 0 elsewhere, in the dtype of the tensor."""
    a, b = _kept(a), _kept(b)
    dtype = (a if isinstance(a, Tensor) else b).dtype
    return where(a == b, 0.5, where(greater(a, b), 1.0, 0.0)).astype(dtype)


def _kept(x: Any) -> Any:
    return x.array if isinstance(x, Number) else x


mask_nan_gradient = binary(
    "mask_nan_gradient", reference=lambda xp, a, b: xp.where((a == 0) & xp.isnan(b), xp.zeros_like(b), b), takes="float",
    pullback=(ZERO, lambda g, a, b: where(logical_and(equal(a, 0), isnan(b)), 0.0, g)),
    doc="Returns b, but 0 where a is 0 and b is NaN: a zero cotangent then gives a zero gradient.",
)


# ---- comparisons, logic, bits: their derivatives are zero


def _flat(name: str, kind: Any = BINARY, takes: str = "any") -> Callable[[ArrayLike, ArrayLike], Tensor]:
    return binary(name, reference=lambda xp, a, b: getattr(xp, name)(a, b), pullback=(ZERO, ZERO), takes=takes, kind=kind)


def _logical(name: str) -> Callable[[ArrayLike, ArrayLike], Tensor]:
    # A Python integer may be larger than any that NumPy converts.
    return binary(name, reference=lambda xp, a, b: getattr(xp, name)(a != 0, b != 0), pullback=(ZERO, ZERO), takes="any")


equal, not_equal = _flat("equal", COMPARE), _flat("not_equal", COMPARE)
less, less_equal = _flat("less", COMPARE), _flat("less_equal", COMPARE)
greater, greater_equal = _flat("greater", COMPARE), _flat("greater_equal", COMPARE)
logical_and, logical_or, logical_xor = _logical("logical_and"), _logical("logical_or"), _logical("logical_xor")
bitwise_and, bitwise_or, bitwise_xor = _flat("bitwise_and", takes="bits"), _flat("bitwise_or", takes="bits"), _flat("bitwise_xor", takes="bits")
bitwise_left_shift = binary("bitwise_left_shift", reference=lambda xp, a, b: xp.left_shift(a, b), pullback=(ZERO, ZERO), takes="integer", domain=(0, 6))
bitwise_right_shift = binary("bitwise_right_shift", reference=lambda xp, a, b: xp.right_shift(a, b), pullback=(ZERO, ZERO), takes="integer", domain=(0, 6))
logical_not = unary("logical_not", reference=lambda xp, x: xp.logical_not(x), pullback=ZERO, takes="any")
bitwise_invert = unary("bitwise_invert", reference=lambda xp, x: xp.invert(x), pullback=ZERO, takes="bits")
isnan = unary("isnan", reference=lambda xp, x: xp.isnan(x), pullback=ZERO)
isinf = unary("isinf", reference=lambda xp, x: xp.isinf(x), pullback=ZERO)
isfinite = unary("isfinite", reference=lambda xp, x: xp.isfinite(x), pullback=ZERO)
signbit = unary("signbit", reference=lambda xp, x: xp.signbit(x), pullback=ZERO)

# ---- where and what is built from it

_where = op(
    "where",
    kind=SELECT,
    reference=lambda xp, condition, a, b: xp.where(condition, a, b),
    inputs=3,
    joint=True,
    pullback=lambda g, condition, needs: [
        None,
        where(condition, g, 0.0) if needs[1] else None,
        where(condition, 0.0, g) if needs[2] else None,
    ],
    cost=per_element("where"),
)


def where(condition: ArrayLike, a: ArrayLike, b: ArrayLike) -> Tensor:
    """Returns a where the condition is true, b elsewhere. Only the chosen branch is differentiated, so the other contributes no NaN."""
    condition = as_tensor(condition)
    if condition.dtype != dtypes.bool_:
        condition = not_equal(condition, 0)
    x, y = operands("where", a, b)
    if isinstance(x, Number) and isinstance(y, Number):
        x = asarray(x.array, device=condition.device)
    dtype = common_dtype((x, y))
    check_numbers("where", dtype, (x, y))
    x, y = [in_dtype(z, dtype) if isinstance(z, Tensor) and z.dtype != dtype else z for z in (x, y)]
    return apply(_where, (condition, x, y))


def clip(x: ArrayLike, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Tensor:
    """Returns x limited to [min, max]; None means no limit. An element equal to a limit shares the gradient evenly with it.

    Where min is not less than max the result does not depend on x, which has the gradient 0 there.
    """
    if min is None and max is None:
        return settled(own(x))
    y = given = x if isinstance(x, Tensor) else as_tensors("clip", x, optional=(min, max))[0]
    try:
        y = y if min is None else maximum(y, min)
        y = y if max is None else minimum(y, max)
    except PullbackError:  # that of maximum or minimum; for limits that do not fit x, the name in it should be clip
        found = operands("clip", given, *[limit for limit in (min, max) if limit is not None])
        check_devices("clip", found)
        check_numbers("clip", common_dtype(found), found)
        broadcast_shapes("clip", [y.shape for y in found])
        raise
    return y if min is None or max is None or not listeners.differentiates else _still(y, given, min, max)


def _still(y: Tensor, x: Tensor, low: Any, high: Any) -> Tensor:
    """Returns y = clip(x, low, high) as a function of the limits alone where they leave x no room. NaN stays NaN."""
    if isinstance(low, (int, float, np.number)) and isinstance(high, (int, float, np.number)):
        return where(equal(x, x), high, y) if low >= high else y
    return where(logical_and(greater_equal(low, high), equal(x, x)), minimum(low, high), y)


_leaky_relu = binary("leaky_relu", reference=lambda xp, a, b: xp.where(a > 0, a, a * b), takes="float",
                     pullback=(lambda g, a, b: where(a > 0, g, g * _kept(b)), lambda g, a: where(a > 0, 0.0, g * a)))


def leaky_relu(x: ArrayLike, negative_slope: ArrayLike = 0.01) -> Tensor:
    """Returns x where x is positive, negative_slope * x elsewhere. The derivative at 0 is negative_slope."""
    return _leaky_relu(as_tensors("leaky_relu", x, negative_slope)[0], negative_slope)


def isclose(a: ArrayLike, b: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Returns |a - b| <= atol + rtol * |b|, element by element, as NumPy does."""
    a, b = as_tensors("isclose", a, b, compared=True)
    if not dtypes.is_float(a.dtype):
        a, b = a.astype("float64"), b.astype("float64")
    close = logical_or(equal(a, b), logical_and(less_equal(abs(a - b), atol + rtol * abs(b)), isfinite(b)))
    return logical_or(close, logical_and(isnan(a), isnan(b))) if flag("isclose", "equal_nan", equal_nan) else close


def nan_to_num(x: ArrayLike, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Returns x with NaN replaced by `nan`, and ±inf by `posinf` and `neginf` (None: the largest and lowest finite values)."""
    x = as_tensor(x)
    limit = float(np.finfo(x.dtype).max) if x.dtype.kind == "f" else 3.38953139e38
    x = where(isnan(x), nan, x)
    x = where(equal(x, math.inf), limit if posinf is None else posinf, x)
    return where(equal(x, -math.inf), -limit if neginf is None else neginf, x)


# Derived, so that each op's name is written once. (A type checker exports all public names defined here, which are the same ones.)
__all__ = [
    name for name, value in globals().items() if callable(value) and (value.__module__ == __name__ or name in OPS) and name[0] != "_"
]
