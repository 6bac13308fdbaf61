"""A user's program in which every line that ends with "wrong" has one mistake. It is only checked and never runs."""

from __future__ import annotations

import pullback as pb
from pullback import nn, optim

x, p = pb.tensor([1.0, 2.0]), pb.Parameter(1.0)
net = nn.Linear(2, 3)
tape, prof = pb.GradientTape(), pb.profile()


def square(v: pb.Tensor) -> pb.Tensor:
    return v * v


@pb.capture
def step(images: pb.Tensor, scale: float = 1.0) -> pb.Tensor:
    return net(images) * scale


pb.summ(x)  # wrong
pb.tensor("1.0")  # wrong
pb.tensor(["one"])  # wrong
pb.tensor(None)  # wrong
pb.tanh(x, x)  # wrong
pb.add(x)  # wrong
pb.tanh({"x": x})  # wrong
pb.sum(x, axis="rows")  # wrong
pb.sum(x, keepdim=True)  # wrong
pb.zeros("2")  # wrong
pb.zeros((2, 3.5))  # wrong
pb.stack(["a", "b"])  # wrong
x + "one"  # wrong
x @ None  # wrong
x["a"]  # wrong
x[1.5]  # wrong
x.shapes  # wrong
x.astype(3)  # wrong
x[0] = 1  # wrong
x.numpy().tensor()  # wrong
pb.meshgrid(x, indexing="yx")  # wrong
pb.searchsorted(x, x, side="middle")  # wrong
pb.linalg.matmul(x)  # wrong
pb.linalg.determinant(x)  # wrong
pb.random.normal(shape="2")  # wrong
pb.Parameter({"w": x})  # wrong
tape.gradient(x, p, unconnected="zeros")  # wrong
tape.gradient(x, p, aggregation="sum")  # wrong
tape.gradient(x, [p]).shape  # wrong
tape.gradient(x, p, unconnected="none").shape  # wrong
tape.gradients_of(x)  # wrong
pb.grad(x)  # wrong
pb.grad(square)("x")  # wrong
pb.grad(square)(x, x)  # wrong
pb.grad(square)(x).value  # wrong
pb.vmap(square)(x, 3)  # wrong
pb.jacobian(square, mode="backward")  # wrong
pb.checkpoint(square)(y=x)  # wrong
pb.memo(square)()  # wrong
pb.scan(square, x, x)  # wrong
pb.black_box(square, gradient="exact")  # wrong
step("images")  # wrong
step(x, scale="2")  # wrong
step(x).loss  # wrong
pb.capture(step, fusion="quick")  # wrong
pb.capture(fusion="quick")  # wrong
net("x")  # wrong
net(x, activation="swish")  # wrong
net(x).weights  # wrong
nn.Linear(2)  # wrong
nn.Linear("2", 3)  # wrong
nn.Sequential(3)  # wrong
nn.mse(x, x, reduction="avg")  # wrong
nn.cross_entropy(x, x, reduction="batchmean")  # wrong
nn.GELU(approximate="erf")  # wrong
nn.init.kaiming_normal(p, mode="fan")  # wrong
nn.functional.rely(x)  # wrong
optim.Adam(net)  # wrong
optim.Adam(net.parameters(), lr="fast")  # wrong
optim.Adam(net.parameters(), learning_rate=1e-3)  # wrong
optim.Adam(net.parameters(), clip_nrm=1.0)  # wrong
optim.Muon(net.parameters(), ema="much")  # wrong
optim.schedules.Cosine(1e-3, warmup=2)  # wrong
pb.data.Loader(x, batch_size="2")  # wrong
next(iter(pb.data.Loader((x, x), 2))).labels  # wrong
next(iter(pb.data.Loader(x, 2)))[0].labels  # wrong
pb.profile(detail="all")  # wrong
prof.forwards  # wrong
prof.by("function")  # wrong
pb.amp.autocast("int8")  # wrong
pb.config.reproducible = "always"  # wrong
pb.cuda.is_avaliable()  # wrong
pb.debug.debug_nan()  # wrong
pb.tree.mapp(square, x)  # wrong
