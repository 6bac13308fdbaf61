"""The arguments that all optimizers take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from ..typing import Dataclass
from .groups import Number

Params = Iterable[Any] | Dataclass  # Parameters in a list, an iterator, or any nested structure
Groups = Mapping[str, Mapping[str, Any]]  # hyper-parameters by patterns of names
if TYPE_CHECKING:  # All type checkers know it, and Python from 3.11 on.
    from typing_extensions import Unpack as Unpack
else:
    Unpack = Any


class Options(TypedDict, total=False):
    """The options that all rules have. A rule takes them as `**options: Unpack[Options]` and passes them on to Optimizer."""

    clip_norm: float | None
    clip_value: float | None
    groups: Groups | None
    ema: Number | None
    master_weights: bool
    clip_adaptive: float | None
    stochastic_rounding: bool
