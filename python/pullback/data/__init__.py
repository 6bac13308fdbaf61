"""Data: the digits that come with the package, and a loader that shuffles and gathers on the device."""

from ..exports import export as _export
from .digits import Digits, digits
from .loader import Loader

__all__ = ["Digits", "Loader", "digits"]

_export(globals())
