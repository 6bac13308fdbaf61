"""The workloads of one large matrix in SciPy."""

from functools import partial

import scipy
import scipy.linalg

from . import LARGE, positive

WORKLOADS = {
    name: partial(lambda dtype: partial(scipy.linalg.cholesky, positive(dtype, 1024, 1024), lower=True), dtype)
    for name, dtype in LARGE.items()
}


def facts():
    return f"scipy {scipy.__version__}"
