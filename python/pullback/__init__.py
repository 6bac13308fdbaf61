"""pullback: train small networks, and see what the forward and the backward pass cost.

The public names, and nothing else. Packages that not every program needs are imported when they are first used.
"""

from __future__ import annotations

import importlib as _importlib
import math as _math
from typing import TYPE_CHECKING
from typing import Any as _Any

from .check import check_gradients as check_gradients
from .tensors.creation import (
    arange as arange, asarray as asarray, empty as empty, empty_like as empty_like, eye as eye, from_dlpack as from_dlpack,
    full as full, full_like as full_like, linspace as linspace, meshgrid as meshgrid, ones as ones, ones_like as ones_like,
    tensor as tensor, zeros as zeros, zeros_like as zeros_like,
)  # fmt: skip
from .debug import debug_nans as debug_nans
from .tensors.devices import cuda as cuda, use_device as use_device
from .interop.dispatch import attach as _attach_numpy
from .tensors.dtypes import bool_
from .tensors.dtypes import (
    can_cast as can_cast, finfo as finfo, float16 as float16, float32 as float32, float64 as float64, iinfo as iinfo,
    int8 as int8, int16 as int16, int32 as int32, int64 as int64, isdtype as isdtype, result_type as result_type,
    uint8 as uint8, uint16 as uint16, uint32 as uint32, uint64 as uint64,
)  # fmt: skip
from .errors import (
    CaptureError as CaptureError, DeviceError as DeviceError, DTypeError as DTypeError, FileFormatError as FileFormatError,
    GradientCheckError as GradientCheckError, NonFiniteError as NonFiniteError, OutOfMemoryError as OutOfMemoryError,
    PrecisionWarning as PrecisionWarning, PullbackError as PullbackError, ShapeError as ShapeError,
    StaleValueError as StaleValueError, TapeError as TapeError,
    UnconnectedError as UnconnectedError, VmapError as VmapError, ZeroGradientWarning as ZeroGradientWarning,
)  # fmt: skip
from .ops.cast import astype as astype
from .ops.elementwise import *  # noqa: F403 (an op is named once: where it is declared)
from .ops.index import (
    argwhere as argwhere, nonzero as nonzero, one_hot as one_hot, take as take, take_along_axis as take_along_axis,
)  # fmt: skip
from .ops.linalg import (
    einsum as einsum, matmul as matmul, outer as outer, tensordot as tensordot, vecdot as vecdot,
)  # fmt: skip
from .ops.operators import attach as _attach
from .ops.reduce import (
    all as all, any as any, argmax as argmax, argmin as argmin, count_nonzero as count_nonzero, max as max, mean as mean,
    min as min, prod as prod, std as std, sum as sum, var as var,
)  # fmt: skip
from .ops.rows import log_softmax as log_softmax, logsumexp as logsumexp, softmax as softmax
from .ops.scan import cumulative_prod as cumulative_prod, cumulative_sum as cumulative_sum, diff as diff
from .ops.segment import (
    segment_logsumexp as segment_logsumexp, segment_max as segment_max, segment_mean as segment_mean,
    segment_min as segment_min, segment_softmax as segment_softmax, segment_sum as segment_sum,
)  # fmt: skip
from .ops.padding import pad as pad
from .ops.repetition import repeat as repeat, tile as tile
from .ops.shape import (
    broadcast_arrays as broadcast_arrays, broadcast_to as broadcast_to, concat as concat, copy as copy,
    expand_dims as expand_dims, flip as flip, matrix_transpose as matrix_transpose, moveaxis as moveaxis,
    permute_dims as permute_dims, reshape as reshape, roll as roll, split as split, squeeze as squeeze,
    stack as stack, stop_gradient as stop_gradient, swapaxes as swapaxes, transpose as transpose,
    unstack as unstack,
)  # fmt: skip
from .ops.sort import (
    argsort as argsort, searchsorted as searchsorted, sort as sort, topk as topk, unique_all as unique_all,
    unique_counts as unique_counts, unique_inverse as unique_inverse, unique_values as unique_values,
)  # fmt: skip
from .ops.triangle import tril as tril, triu as triu
from .autodiff.tape import GradientTape as GradientTape
from .tensors.tensor import Parameter as Parameter, Tensor as Tensor

if TYPE_CHECKING:
    import numpy as _numpy

    from . import amp as amp, data as data, linalg as linalg, nn as nn, optim as optim
    from .backends.native import trim as trim
    from .profiling import profile as profile
    from .profiling.flops import flops as flops
    from .replays.capture import capture as capture
    from .io import load as load, save as save
    from .ops import random as random
    from .transforms.black_box import black_box as black_box
    from .transforms.checkpoint import checkpoint as checkpoint
    from .transforms.custom import custom_gradient as custom_gradient, straight_through as straight_through
    from .transforms.jacobian import hessian as hessian, jacobian as jacobian
    from .transforms.jvp import hvp as hvp, jvp as jvp, linearize as linearize
    from .transforms.per_example import (
        per_example_grad as per_example_grad, per_example_norm as per_example_norm, weighted_grad as weighted_grad,
    )  # fmt: skip
    from .transforms.memo import memo as memo
    from .transforms.scan import scan as scan
    from .transforms.vjp import grad as grad, value_and_grad as value_and_grad, vjp as vjp
    from .transforms.vmap import vmap as vmap

    bfloat16: _numpy.dtype[_Any]

bool = bool_
e, pi, inf, nan, newaxis = _math.e, _math.pi, _math.inf, _math.nan, None
__version__ = "0.1.0"
__array_api_version__ = "2024.12"


def __array_namespace_info__() -> _Any:
    """Devices, dtypes and capabilities, by the names of the array API standard."""
    from .interop.namespace_info import NamespaceInfo

    return NamespaceInfo()



_LAZY = {
    "amp": ".amp", "data": ".data", "linalg": ".linalg", "nn": ".nn", "optim": ".optim", "random": ".ops.random",
    "load": ".io", "save": ".io", "profile": ".profiling", "vmap": ".transforms.vmap",
    "grad": ".transforms.vjp", "value_and_grad": ".transforms.vjp", "vjp": ".transforms.vjp", "jvp": ".transforms.jvp",
    "linearize": ".transforms.jvp", "hvp": ".transforms.jvp", "jacobian": ".transforms.jacobian",
    "hessian": ".transforms.jacobian", "black_box": ".transforms.black_box", "checkpoint": ".transforms.checkpoint",
    "custom_gradient": ".transforms.custom", "straight_through": ".transforms.custom", "memo": ".transforms.memo",
    "capture": ".replays.capture", "scan": ".transforms.scan", "per_example_grad": ".transforms.per_example",
    "per_example_norm": ".transforms.per_example", "weighted_grad": ".transforms.per_example", "flops": ".profiling.flops",
    "trim": ".backends.native",
}  # fmt: skip


def __getattr__(name: str) -> _Any:
    if name == "bfloat16":
        from .tensors.dtypes import bfloat16 as make

        value: _Any = make()
    elif name in _LAZY:
        module = _importlib.import_module(_LAZY[name], __name__)
        value = getattr(module, name, module)
    else:
        raise AttributeError(f"module 'pullback' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({name for name in globals() if name[0] != "_"} | {*_LAZY, "bfloat16"})


_attach()
_attach_numpy()
