"""Data: digits and a text that come with the package, a loader that shuffles and gathers rows on the device, and progress bars."""

from ..exports import exported
from .digits import Digits, digits
from .loader import Loader
from .progress import progress
from .shakespeare import Text, shakespeare

__all__ = exported(globals())
