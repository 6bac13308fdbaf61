"""pullback: train small networks, and see what the forward and the backward pass cost.

The public names, and nothing else. Packages that not every program needs are imported when they are first used.
"""

from __future__ import annotations

import importlib as _importlib
import math as _math
from typing import TYPE_CHECKING
from typing import Any as _Any

from .check import check_gradients
from .creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tensor,
    zeros,
    zeros_like,
)  # fmt: skip
from .debug import debug_nans
from .devices import cuda, use_device
from .dispatch import attach as _attach_numpy
from .dtypes import bool_ as bool
from .dtypes import (
    can_cast,
    finfo,
    float16,
    float32,
    float64,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    isdtype,
    result_type,
    uint8,
    uint16,
    uint32,
    uint64,
)  # fmt: skip
from .errors import (
    CaptureError,
    DeviceError,
    DTypeError,
    FileFormatError,
    GradientCheckError,
    NonFiniteError,
    OutOfMemoryError,
    PullbackError,
    ShapeError,
    StaleValueError,
    TapeError,
    UnconnectedError,
    ZeroGradientWarning,
)  # fmt: skip
from .ops.cast import astype
from .ops.elementwise import (
    abs,
    acos,
    acosh,
    add,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    ceil,
    clip,
    copysign,
    cos,
    cosh,
    divide,
    elu,
    equal,
    erf,
    erfc,
    erfinv,
    exp,
    exp2,
    expm1,
    floor,
    floor_divide,
    gelu,
    gelu_tanh,
    greater,
    greater_equal,
    hypot,
    isclose,
    isfinite,
    isinf,
    isnan,
    leaky_relu,
    less,
    less_equal,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    nan_to_num,
    negative,
    nextafter,
    not_equal,
    positive,
    pow,
    reciprocal,
    relu,
    remainder,
    round,
    rsqrt,
    sigmoid,
    sign,
    signbit,
    silu,
    sin,
    sinh,
    softplus,
    sqrt,
    square,
    subtract,
    tan,
    tanh,
    trunc,
    where,
)  # fmt: skip
from .ops.index import argwhere, nonzero, one_hot, take, take_along_axis
from .ops.linalg import einsum, matmul, outer, tensordot, vecdot
from .ops.operators import attach as _attach
from .ops.reduce import all, any, argmax, argmin, count_nonzero, max, mean, min, prod, std, sum, var
from .ops.rows import log_softmax, logsumexp, softmax
from .ops.scan import cumulative_prod, cumulative_sum, diff
from .ops.segment import (
    segment_logsumexp,
    segment_max,
    segment_mean,
    segment_min,
    segment_softmax,
    segment_sum,
)  # fmt: skip
from .ops.shape import (
    broadcast_arrays,
    broadcast_to,
    concat,
    copy,
    expand_dims,
    flip,
    matrix_transpose,
    moveaxis,
    pad,
    permute_dims,
    repeat,
    reshape,
    roll,
    split,
    squeeze,
    stack,
    stop_gradient,
    swapaxes,
    tile,
    transpose,
    tril,
    triu,
    unstack,
)  # fmt: skip
from .ops.sort import (
    argsort,
    searchsorted,
    sort,
    topk,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
)  # fmt: skip
from .tape import GradientTape
from .tensor import Parameter, Tensor
from .transforms.custom import straight_through

if TYPE_CHECKING:
    import numpy as _numpy

    from . import data, linalg, nn, optim, profile
    from .io import load, save
    from .ops import random

    bfloat16: _numpy.dtype[_Any]

e, pi, inf, nan, newaxis = _math.e, _math.pi, _math.inf, _math.nan, None
__version__ = "0.1.0"
__array_api_version__ = "2024.12"

_LAZY = {
    "data": ".data", "linalg": ".linalg", "nn": ".nn", "optim": ".optim", "random": ".ops.random",
    "load": ".io", "save": ".io", "profile": ".profile",
}  # fmt: skip


def __getattr__(name: str) -> _Any:
    if name == "bfloat16":
        from .dtypes import bfloat16 as make

        value: _Any = make()
    elif name in _LAZY:
        module = _importlib.import_module(_LAZY[name], __name__)
        value = getattr(module, name, module)
    else:
        raise AttributeError(f"module 'pullback' has no attribute {name!r}")
    globals()[name] = value
    return value


_attach()
_attach_numpy()
