"""pb.linalg: products, diagonals and norms under their array API names. Factorizations are not implemented yet.

The module has no other public names, so that `dir(pb.linalg)` shows what users may call.
"""

from .exports import exported as _exported
from .ops.linalg import matmul, outer, tensordot, vecdot
from .ops.matrices import cross, diagonal, matrix_norm, norm, trace, vector_norm
from .ops.shape import matrix_transpose

__all__ = _exported(globals())
