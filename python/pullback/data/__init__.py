"""Data: the digits that come with the package, and a loader that shuffles and gathers on the device."""

from .digits import Digits, digits
from .loader import Loader

__all__ = ["Digits", "Loader", "digits"]
