"""pb.linalg: products, diagonals and norms under their array API names. (Factorisations are not here yet.)

No other name is in this module, so that `dir(pb.linalg)` shows what users may call.
"""

from .exports import exported as _exported
from .ops.linalg import matmul, outer, tensordot, vecdot
from .ops.matrices import cross, diagonal, matrix_norm, norm, trace, vector_norm
from .ops.shape import matrix_transpose

__all__ = _exported(globals())
