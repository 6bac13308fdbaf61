"""The workloads in PyTorch's eager mode, as a user would write them."""

import torch

from ..yolo26n import MATRICES


def chain():
    x, c = torch.linspace(-1, 1, 8, requires_grad=True), torch.linspace(0, 1, 8)

    def run():
        y = x
        for _ in range(50):
            y = torch.tanh(y) + c
        return torch.autograd.grad(y.sum(), x)

    return run


def mlp(sizes, batch, **options):
    torch.manual_seed(0)
    layers = []
    for i, (m, n) in enumerate(zip(sizes, sizes[1:])):
        layers += [torch.nn.Linear(m, n)] + ([torch.nn.ReLU()] if i + 2 < len(sizes) else [])
    model = torch.nn.Sequential(*layers)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, **options)
    x, y = torch.randn(batch, sizes[0]), torch.randint(0, sizes[-1], (batch,))

    def run():
        opt.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        opt.step()

    return run


def adam():
    params = [torch.nn.Parameter(torch.zeros(100_000)) for _ in range(100)]
    for p in params:
        p.grad = torch.full((100_000,), 0.5)
    return torch.optim.Adam(params, lr=1e-3, fused=True).step


def _gradient_step(make, shapes, **options):
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    for p in params:
        p.grad = torch.randn(p.shape)
    return make(params, **options).step


def _reduction(f, shape):
    torch.manual_seed(0)
    x, weight = torch.randn(shape, requires_grad=True), torch.randn(shape)
    return lambda: torch.autograd.grad(f(x), x, weight)


def gelu():
    torch.manual_seed(0)
    x = torch.randn(10_000_000, requires_grad=True)
    return lambda: torch.autograd.grad(torch.nn.functional.gelu(x).sum(), x)


WORKLOADS = {
    "chain": chain,
    "mlp 2-16-16-2": lambda: mlp((2, 16, 16, 2), 100),
    "mlp 784-128-10": lambda: mlp((784, 128, 10), 64),
    "mlp 784-1024-1024-10": lambda: mlp((784, 1024, 1024, 10), 512),
    "mlp 2-16-16-2, fused": lambda: mlp((2, 16, 16, 2), 100, fused=True),
    "mlp 784-128-10, fused": lambda: mlp((784, 128, 10), 64, fused=True),
    "mlp 784-1024-1024-10, fused": lambda: mlp((784, 1024, 1024, 10), 512, fused=True),
    "adam": adam,
    "adafactor": lambda: _gradient_step(torch.optim.Adafactor, [(250, 400)] * 100, foreach=False),
    "adafactor, foreach": lambda: _gradient_step(torch.optim.Adafactor, [(250, 400)] * 100, foreach=True),
    "adafactor, vectors": lambda: _gradient_step(torch.optim.Adafactor, [(100_000,)] * 100, foreach=False),
    "adafactor, vectors, foreach": lambda: _gradient_step(torch.optim.Adafactor, [(100_000,)] * 100, foreach=True),
    "muon": lambda: _gradient_step(torch.optim.Muon, MATRICES),
    "gelu": gelu,
    "softmax": lambda: _reduction(lambda x: torch.softmax(x, -1), (4096, 1024)),
    "layer norm": lambda: _reduction(torch.nn.LayerNorm(1024), (4096, 1024)),
}


def facts():
    return f"torch {torch.__version__}, {torch.get_num_threads()} threads, MKL {torch.backends.mkl.is_available()}"
