# Written by tools/generate.py from __init__.py.
# ruff: noqa

from .least_squares import least_squares as least_squares
from .levenberg_marquardt import LevenbergMarquardt as LevenbergMarquardt
from .root import root as root
