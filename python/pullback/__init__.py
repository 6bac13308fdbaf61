"""pullback: train small networks, and see what the forward and the backward pass cost."""

from .check import check_gradients
from .creation import (
    arange, asarray, empty, empty_like, eye, from_dlpack, full, full_like, linspace, meshgrid, ones, ones_like, tensor, zeros,
    zeros_like,
)  # fmt: skip
from .debug import debug_nans
from .devices import cuda, use_device
from .dispatch import attach as _attach_numpy
from .dtypes import bool_ as bool
from .dtypes import (
    float16, float32, float64, int8, int16, int32, int64, result_type, uint8, uint16, uint32, uint64,
)  # fmt: skip
from .errors import (
    CaptureError, DeviceError, DTypeError, FileFormatError, GradientCheckError, NonFiniteError, OutOfMemoryError, PullbackError,
    ShapeError, StaleValueError, TapeError, UnconnectedError, ZeroGradientWarning,
)  # fmt: skip
from .ops.cast import astype
from .ops.elementwise import *  # noqa: F403
from .ops.index import argwhere, nonzero, one_hot, take, take_along_axis
from .ops.linalg import einsum, matmul, outer, tensordot, vecdot
from .ops.operators import attach as _attach
from .ops.scan import cumulative_prod, cumulative_sum, diff
from .ops.segment import segment_logsumexp, segment_max, segment_mean, segment_min, segment_softmax, segment_sum
from .ops.sort import argsort, searchsorted, sort, topk, unique_all, unique_counts, unique_inverse, unique_values
from .ops.reduce import all, any, argmax, argmin, count_nonzero, max, mean, min, prod, std, sum, var
from .ops.shape import (
    broadcast_arrays, broadcast_to, concat, copy, expand_dims, flip, matrix_transpose, moveaxis, pad, permute_dims, repeat,
    reshape, roll, split, squeeze, stack, stop_gradient, swapaxes, tile, transpose, tril, triu, unstack,
)  # fmt: skip
from .tape import GradientTape
from .tensor import Parameter, Tensor
from .transforms.custom import straight_through

_attach()
_attach_numpy()
__version__ = "0.1.0"
__array_api_version__ = "2024.12"
