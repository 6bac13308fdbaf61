"""pb.linalg: products, norms, factorisations and linear systems under their array API names.

The module has no other public names, so that `dir(pb.linalg)` shows what users may call.
"""

from .exports import exported as _exported
from .errors import LinAlgError
from .ops.determinants import det, slogdet
from .ops.least_squares import lstsq, matrix_rank, pinv
from .ops.linalg import matmul, outer, tensordot, vecdot
from .ops.matrices import cross, diagonal, matrix_norm, matrix_power, norm, trace, vector_norm
from .ops.qr import qr
from .ops.shape import matrix_transpose
from .ops.solves import cholesky, inv, solve, solve_triangular
from .ops.spectral import eigh, eigvalsh, svd, svdvals
from .transforms.matrix_functions import matrix_function

__all__ = _exported(globals())
