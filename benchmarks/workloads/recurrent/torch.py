"""The workloads in PyTorch's eager mode, as a user would write them."""

from functools import partial

import torch

from . import SHAPES


def layer(kind, shape):
    torch.manual_seed(0)
    steps, batch, inputs, hidden = shape
    net, x = getattr(torch.nn, kind)(inputs, hidden), torch.randn(steps, batch, inputs)
    parameters = list(net.parameters())

    def run():
        return torch.autograd.grad(net(x)[0].square().mean(), parameters)

    return run


WORKLOADS = {name: partial(layer, *how) for name, how in SHAPES.items()}


def facts():
    return f"torch {torch.__version__}, {torch.get_num_threads()} threads, MKL {torch.backends.mkl.is_available()}"
