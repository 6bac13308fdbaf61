"""Solvers: least squares, minima and roots, with derivatives of what they find."""

from ..exports import exported
from .augmented_lagrangian import augmented_lagrangian
from .least_squares import least_squares
from .levenberg_marquardt import LevenbergMarquardt
from .minimize import minimize
from .root import root

__all__ = exported(globals())
