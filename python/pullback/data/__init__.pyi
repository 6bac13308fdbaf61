# Written by tools/generate.py from __init__.py.
# ruff: noqa

from .digits import Digits as Digits
from .digits import digits as digits
from .loader import Loader as Loader
from .progress import progress as progress
from .shakespeare import Text as Text
from .shakespeare import shakespeare as shakespeare
