"""Problems of the CUTEst collection, written from their published formulas, with their own gradients."""

from . import bounded as bounded, squares as squares, sums as sums
from .problem import PROBLEMS as PROBLEMS, Problem as Problem
