"""The workloads in PyTorch's eager mode, as a user would write them."""

from functools import partial

import torch
from torch import nn

from ..eager import torch as eager
from . import (
    ATTENTION,
    CAUSAL,
    CHARACTERS,
    CNN,
    DIGITS,
    GPT,
    GRU,
    HEADS,
    LAYERS,
    NORM,
    RESNET,
    SHAPES,
    WIDTH,
    layers_of_cnn,
    layers_of_digits,
    reader,
)


class Residual(nn.Module):
    """A block of ResNet-8. With stride 2 there is a row of zeros below and a column on the right, as in TensorFlow."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        first = nn.Conv2d(inputs, outputs, 3, stride, padding=2 - stride)
        self.branch = nn.Sequential(
            nn.ZeroPad2d((0, 1, 0, 1)) if stride == 2 else nn.Identity(), first, nn.BatchNorm2d(outputs, 1e-3, 0.01), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs, 1e-3, 0.01),
        )
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x):
        return torch.relu(self.branch(x) + self.shortcut(x))


def resnet8():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16, 1e-3, 0.01), nn.ReLU(),
        Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2),
        nn.AvgPool2d(8), nn.Flatten(), nn.Linear(64, 10),
    )


class Block(nn.Module):
    """A block of the GPT."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.in_proj, self.out_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.in_proj(self.norm1(x)).chunk(3, -1)]
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out_proj(y.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """The GPT. The last layer uses the weight of the embedding."""

    def __init__(self):
        super().__init__()
        self.characters, self.positions = nn.Embedding(CHARACTERS, WIDTH), nn.Embedding(SHAPES[GPT][1] - 1, WIDTH)
        self.blocks, self.norm = nn.Sequential(*[Block() for _ in range(LAYERS)]), nn.LayerNorm(WIDTH, bias=False)

    def forward(self, numbers):
        x = self.characters(numbers) + self.positions.weight[: numbers.shape[1]]
        return nn.functional.linear(self.norm(self.blocks(x)), self.characters.weight)


NETWORKS = {
    CNN: lambda: nn.Sequential(*layers_of_cnn(nn)), DIGITS: lambda: nn.Sequential(*layers_of_digits(nn)),
    RESNET: resnet8, GRU: lambda: reader(nn),
}


def step(name):
    torch.manual_seed(0)
    net, shape = NETWORKS[name](), SHAPES[name]
    opt = torch.optim.SGD(net.parameters(), lr=0.01) if name == RESNET else torch.optim.Adam(net.parameters(), lr=1e-3)
    x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])

    def run():
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()

    return run


def gpt():
    net = Decoder()
    opt, sequences = torch.optim.AdamW(net.parameters(), lr=1e-3), torch.randint(0, CHARACTERS, SHAPES[GPT])

    def run():
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(sequences[:, :-1]).flatten(0, 1), sequences[:, 1:].flatten())
        loss.backward()
        opt.step()

    return run


def norm():
    layer, x, g = nn.BatchNorm2d(SHAPES[NORM][1]), torch.randn(SHAPES[NORM], requires_grad=True), torch.randn(SHAPES[NORM])
    return lambda: torch.autograd.grad(layer(x), [x, *layer.parameters()], g)


def attention(name):
    q, k, v = [torch.randn(SHAPES[name], requires_grad=True) for _ in range(3)]
    g = torch.randn(SHAPES[name])

    def run():
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=name == CAUSAL)
        return torch.autograd.grad(y, [q, k, v], g)

    return run


WORKLOADS = {name: partial(step, name) for name in NETWORKS} | {GPT: gpt, NORM: norm}
WORKLOADS |= {name: partial(attention, name) for name in (ATTENTION, CAUSAL)}

facts = eager.facts
