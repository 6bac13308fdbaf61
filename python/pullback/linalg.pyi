# Written by tools/generate.py from linalg.py.
# ruff: noqa

from .ops.linalg import matmul as matmul
from .ops.linalg import outer as outer
from .ops.linalg import tensordot as tensordot
from .ops.linalg import vecdot as vecdot
from .ops.matrices import cross as cross
from .ops.matrices import diagonal as diagonal
from .ops.matrices import matrix_norm as matrix_norm
from .ops.matrices import norm as norm
from .ops.matrices import trace as trace
from .ops.matrices import vector_norm as vector_norm
from .ops.shape import matrix_transpose as matrix_transpose
