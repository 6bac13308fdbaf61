"""Data: the digits that come with the package, and a loader that shuffles and gathers on the device."""

from ..exports import exported
from .digits import Digits, digits
from .loader import Loader

__all__ = exported(globals())
