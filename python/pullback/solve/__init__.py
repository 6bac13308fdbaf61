"""Solvers: minimisation, with bounds and constraints."""

from ..exports import exported
from .augmented_lagrangian import augmented_lagrangian
from .minimize import minimize

__all__ = exported(globals())
