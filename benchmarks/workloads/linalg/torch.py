"""The workloads in PyTorch's eager mode, as a user would write them."""

from functools import partial

import torch

from . import BATCHED, LARGE, positive, right_sides


def batched(name, dtype):
    arrays = [positive(dtype, 1000, 16, 16)] + [right_sides(dtype)] * (name == "solve")
    inputs = [torch.tensor(x, requires_grad=True) for x in arrays]
    op = getattr(torch.linalg, name)
    return lambda: torch.autograd.grad(op(*inputs).sum(), inputs)


def large(dtype):
    return partial(torch.linalg.cholesky, torch.tensor(positive(dtype, 1024, 1024)))


WORKLOADS = {
    **{name: partial(batched, *how) for name, how in BATCHED.items()},
    **{name: partial(large, dtype) for name, dtype in LARGE.items()},
}


def facts():
    return f"torch {torch.__version__}, {torch.get_num_threads()} threads, MKL {torch.backends.mkl.is_available()}"
