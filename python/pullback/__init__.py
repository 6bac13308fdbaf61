"""pullback: train small networks, and see what the forward and the backward pass cost.

This file lists every public name once and contains nothing else, because tools/generate.py derives the stub for type checkers
(__init__.pyi) from it. Packages that not every program needs are imported when they are first used.
"""

import importlib as _importlib
import math as _math
from typing import Any as _Any

from . import config, debug, tree, typing
from .check import check_gradients
from .tensors.creation import (
    asarray, empty, empty_like, from_dlpack, full, full_like, ones, ones_like, tensor, zeros, zeros_like,
)
from .debug import debug_nans
from .tensors.devices import cuda, use_device
from .exports import adopt as _adopt, exported as _exported
from .interop.dispatch import attach as _attach_numpy
from .interop.einops_backend import attach as _attach_einops
from .interop.unknown_names import missing as _missing
from .tensors.ranges import arange, eye, linspace
from .tensors.dtypes import (
    bool_ as bool, can_cast, finfo, float16, float32, float64, iinfo, int8, int16, int32, int64, isdtype, result_type, uint8,
    uint16, uint32, uint64,
)
from .errors import (
    ArgumentError, AxisError, CaptureError, ConvergenceWarning, DeviceError, DTypeError, FileFormatError, GradientCheckError,
    LinAlgError, NonFiniteError, OutOfMemoryError, PrecisionWarning, PullbackError, ShapeError, StaleValueError, TapeError,
    UnconnectedError, VmapError, ZeroGradientWarning,
)
from .ops.composed import deg2rad, fmax, fmin, fmod, heaviside, logit, rad2deg, sinc, xlog1py, xlogy
from .ops.conversion import astype, copy, stop_gradient
from .ops.diagonals import diag, diagonal, trace
from .ops.elementwise import *  # noqa: F403 (an op's name is written once, in its declaration)
from .ops.gamma import digamma, lgamma, polygamma
from .ops.gather import one_hot, take, take_along_axis
from .ops.index import argwhere, nonzero
from .ops.linear_recurrence import linear_recurrence
from .ops.linalg import einsum, inner, kron, matmul, outer, tensordot, vecdot
from .ops.movement import concat, meshgrid, pad, repeat, roll, stack, tile, tril, triu
from .ops.nan_reductions import (
    nanargmax, nanargmin, nancumprod, nancumsum, nanmax, nanmean, nanmin, nanprod, nanstd, nansum, nanvar,
)
from .ops.operators import attach as _attach
from .ops.quantiles import median, nanmedian, nanpercentile, nanquantile, percentile, quantile
from .ops.reduce import all, any, argmax, argmin, count_nonzero, max, mean, min, prod, sum, trapezoid
from .ops.rows import log_softmax, logsumexp, softmax
from .ops.cumulative import cummax, cummin, cumulative_prod, cumulative_sum, diff, logcumsumexp
from .ops.segment import segment_logsumexp, segment_max, segment_mean, segment_min, segment_softmax, segment_sum
from .ops.shape import (
    broadcast_arrays, broadcast_to, expand_dims, flip, matrix_transpose, moveaxis, permute_dims, reshape, rot90, split, squeeze,
    swapaxes, transpose, unfold, unstack,
)
from .ops.sort import argsort, searchsorted, sort, topk, unique_all, unique_counts, unique_inverse, unique_values
from .ops.variance import std, var
from .transforms.tape import GradientTape
from .tensors.parameter import Parameter
from .tensors.pickling import rebuilt as _rebuilt
from .tensors.tensor import Tensor

e, pi, inf, nan, newaxis = _math.e, _math.pi, _math.inf, _math.nan, None
__version__ = "0.1.0"
__array_api_version__ = "2024.12"


def __array_namespace_info__() -> _Any:
    """Returns the devices, dtypes and capabilities under the names that the array API standard gives them."""
    from .interop.namespace_info import NamespaceInfo

    return NamespaceInfo()


# The names that are imported when they are first used, listed by module. A name can be that of the module itself.
_LATE = {
    ".amp": ("amp",), ".data": ("data",), ".linalg": ("linalg",), ".nn": ("nn",), ".optim": ("optim",), ".random": ("random",),
    ".backends.native": ("trim",), ".hashing": ("hash",), ".io": ("load", "save"), ".profiling": ("profile", "profiling"),
    ".profiling.flops": ("flops",), ".replays.capture": ("capture",), ".resume": ("load_training", "save_training"),
    ".tensors.dtypes": ("bfloat16",), ".transforms.associative_scan": ("associative_scan",),
    ".transforms.black_box": ("black_box",), ".transforms.checkpoint": ("checkpoint",),
    ".transforms.custom": ("custom_gradient", "straight_through"), ".transforms.jacobian": ("hessian", "jacobian"),
    ".transforms.jvp": ("hvp", "jvp", "linearize"), ".transforms.memo": ("memo",),
    ".transforms.per_example": ("per_example_grad", "per_example_norm", "weighted_grad"), ".transforms.scan": ("scan",),
    ".solve": ("solve",), ".transforms.vjp": ("grad", "value_and_grad", "vjp"), ".transforms.vmap": ("vmap",),
}
_HOME = {name: module for module, names in _LATE.items() for name in names}


def __getattr__(name: str) -> _Any:
    if name not in _HOME:
        raise _missing(__name__, name)
    module = _importlib.import_module(_HOME[name], __name__)
    value: _Any = _adopt(getattr(module, name, module), __name__)
    if name == "bfloat16":  # a function, because the dtype is made on its first use
        value = value()
    globals()[name] = value
    return value


_attach()
_attach_numpy()
_attach_einops()
__all__ = [*_exported(globals(), config, debug, tree, typing), *_HOME]
_rebuilt.__module__, _rebuilt.__qualname__ = __name__, "_rebuilt"  # pickles of tensors name this function
