"""Muon, which replaces the momentum of each matrix by the nearest orthogonal matrix, and updates all else by another rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import numpy as np

from ..errors import PullbackError
from ..ops._shapes import flag, integer
from ..ops.by_name import in_dtype, reshaped
from ..ops.conversion import COPY
from ..ops.elementwise import maximum, minimum
from ..ops.movement import concat
from ..ops.writing import write
from ..tensors import devices, dtypes
from ..tensors.creation import eye
from ..tensors.tensor import Tensor
from . import arena, groups as grouping, sets as c
from .auxiliary import Auxiliary
from .composed import Hyper
from .groups import Number, Rate
from .moments import AdamW
from .optimizer import Groups, Optimizer, Params
from .orthogonal import orthogonal
from .partly import Partly

ADJUSTMENTS: Final = (None, "original", "match_rms_adamw")
MOST_STEPS: Final = 99
