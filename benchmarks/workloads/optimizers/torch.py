"""The updates in PyTorch, by each of its implementations that run on a CPU: "adam, fused" and "adam, foreach" for "adam"."""

from functools import partial

import torch

from . import COUNT, RULES, SIZE


def update(kind, options, implementation):
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(SIZE)) for _ in range(COUNT)]
    for p in params:
        p.grad = torch.full((SIZE,), 0.5)
    return getattr(torch.optim, kind)(params, lr=1e-3, **options, **{implementation: True}).step


WORKLOADS = {
    f"{name}, {implementation}": partial(update, kind, options, implementation)
    for name, (kind, options) in RULES.items()
    for implementation in ("fused", "foreach")
    if implementation == "foreach" or kind in ("SGD", "Adam", "AdamW", "Adagrad")
}


def facts():
    return f"torch {torch.__version__}, {torch.get_num_threads()} threads"
