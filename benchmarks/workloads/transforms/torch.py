"""The workloads in PyTorch's eager mode, as a user would write them."""

import torch
from torch.func import functional_call, grad, hessian, jacrev, vmap


def per_example():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    params = {name: p.detach() for name, p in model.named_parameters()}
    x, y = torch.randn(64, 784), torch.randint(0, 10, (64,))

    def loss(params, x, y):
        return torch.nn.functional.cross_entropy(functional_call(model, params, (x[None],)), y[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    return lambda: gradients(params, x, y)


def _two_layers():
    torch.manual_seed(0)
    a, b = torch.randn(64, 64) / 8, torch.randn(64, 64) / 8
    return lambda x: torch.tanh(b @ torch.tanh(a @ x))


def jacobian():
    f = jacrev(_two_layers())
    x = torch.randn(64)
    return lambda: f(x)


def hessian_of_squares():
    net = _two_layers()
    f = hessian(lambda x: net(x).square().sum())
    x = torch.randn(64)
    return lambda: f(x)


def segments():
    torch.manual_seed(0)
    data, ids = torch.randn(100_000, 32, requires_grad=True), torch.randint(0, 5000, (100_000,))
    weight = torch.randn(5000, 32)
    return lambda: torch.autograd.grad(torch.zeros(5000, 32).index_add(0, ids, data), data, weight)


WORKLOADS = {
    "per-example gradients": per_example,
    "jacobian": jacobian,
    "hessian": hessian_of_squares,
    "segment_sum": segments,
}


def facts():
    return f"torch {torch.__version__}, {torch.get_num_threads()} threads, MKL {torch.backends.mkl.is_available()}"
