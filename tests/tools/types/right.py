"""A user's program without a mistake. Type checkers accept every line, and find the types that the values have at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

import pullback as pb
from pullback import nn, optim
from pullback.typing import ArrayLike

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:
    from matching import assert_type

# ---- tensors

x = pb.tensor([1.0, 2.0])
assert_type(x, pb.Tensor)
assert_type(pb.tanh(x) + 1, pb.Tensor)
assert_type(2 - x[None, 0] / 3, pb.Tensor)
assert_type([[3.0, 4.0], [5.0, 6.0]] @ x, pb.Tensor)
assert_type(pb.all(-x > 1), pb.Tensor)
assert_type(x == 1, pb.Tensor)
assert_type(x[x > 1] ** 2, pb.Tensor)
assert_type(pb.where(x > 1, x, 0.0), pb.Tensor)
assert_type(pb.sum(np.ones((2, 3)), axis=(0, 1), keepdims=True), pb.Tensor)
assert_type(pb.stack([x, np.zeros(2), [1, 2]], axis=-1).mean(axis=0), pb.Tensor)
assert_type(pb.topk(x, 1).values.at[0].set(3), pb.Tensor)
assert_type(pb.random.normal((2, 3), dtype=pb.float64).astype("float32").reshape(3, -1).T, pb.Tensor)
assert_type(pb.meshgrid(x, x, indexing="ij"), list[pb.Tensor])
assert_type(x.to("cpu").shape, tuple[int, ...])
assert_type(pb.tensor([[True, 1.5], (x[0], np.float32(2))], dtype=float, device="cpu").numpy().tolist(), Any)


# ---- tapes

w, b = pb.Parameter(np.ones((2, 3)), dtype="float32"), pb.Parameter(0.0)
with pb.GradientTape(persistent=True) as tape:
    y = pb.sum(w) * b
assert_type(tape.gradient(y, w), pb.Tensor)
assert_type(tape.gradient(y, [w, b], aggregation="tree"), list[pb.Tensor])
assert_type(tape.gradient(y, (w, b)), tuple[pb.Tensor, ...])
assert_type(tape.gradient(y, {"w": w}), dict[str, pb.Tensor])
assert_type(tape.gradient(y, [w, b], unconnected="none"), list[pb.Tensor | None])
assert_type(tape.jacobian(y, w), pb.Tensor)
w -= 0.1 * tape.gradient(y, w, unconnected="zero")
assert_type(w, pb.Parameter)


# ---- transforms


def loss(weights: dict[str, pb.Tensor], scale: float = 1.0) -> pb.Tensor:
    return scale * sum([pb.sum(pb.square(v)) for v in weights.values()], pb.tensor(0.0))


def square(v: pb.Tensor) -> pb.Tensor:
    return v * v


assert_type(pb.grad(loss)({"w": x}, scale=2.0), dict[str, pb.Tensor])
assert_type(pb.value_and_grad(loss)({"w": x}), tuple[pb.Tensor, dict[str, pb.Tensor]])
assert_type(pb.grad(pb.grad(lambda v: v**3))(x[0]).item(), Any)
assert_type(pb.vmap(pb.grad(square))(x), pb.Tensor)
assert_type(pb.jacobian(square, mode="forward")(x), pb.Tensor)
assert_type(pb.hessian(pb.checkpoint(square))(x[0]), pb.Tensor)
assert_type(pb.memo(pb.checkpoint(square), size=2)(x), pb.Tensor)
assert_type(pb.jvp(square, (x,), (x,)), tuple[pb.Tensor, pb.Tensor])
assert_type(pb.vjp(square, x)[0], pb.Tensor)


def step(carry: pb.Tensor, item: tuple[pb.Tensor, pb.Tensor]) -> tuple[pb.Tensor, pb.Tensor]:
    return carry + item[0], item[1] * carry


assert_type(pb.scan(step, pb.tensor(0.0), (x, x)), tuple[pb.Tensor, pb.Tensor])


@pb.custom_gradient
def log1pexp(v: pb.Tensor) -> tuple[pb.Tensor, Callable[[pb.Tensor], pb.Tensor]]:
    e = pb.exp(v)
    return pb.log(1 + e), lambda g: g * (1 - 1 / (1 + e))


assert_type(log1pexp(x), pb.Tensor)

# ---- networks


class Net(nn.Module):
    """A network of two layers."""

    def __init__(self, hidden: int) -> None:
        self.layers = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        self.drop = nn.Dropout(0.1)

    def forward(self, images: ArrayLike, flat: bool = False) -> pb.Tensor:
        return self.layers(self.drop(images if flat else pb.reshape(images, (-1, 64))))


def batches_of_a_file(path: str) -> pb.data.Loader[pb.Tensor]:
    return pb.data.Loader(path, batch_size=32, from_host=True)


data, net = pb.data.digits(), Net(hidden=16).train()
opt = optim.Adam(net.parameters(), lr=optim.schedules.Cosine(1e-2, steps=10), clip_norm=1.0)
loader = pb.data.Loader((data.x_train, data.y_train), batch_size=32, drop_last=True)
for images, labels in (bar := pb.data.progress(loader, epochs=2, disable=True)):
    assert_type(images, pb.Tensor)
    bar.update(loss=pb.sum(labels))
assert_type(net, Net)
assert_type(net(data.x_test, flat=False), pb.Tensor)
assert_type(nn.functional.linear(x, np.eye(2, dtype=np.float32), activation="relu"), pb.Tensor)


@pb.capture
def train_step(images: pb.Tensor, labels: pb.Tensor) -> pb.Tensor:
    with pb.GradientTape() as tape:
        value = nn.cross_entropy(net(images), labels, reduction="mean")
    opt.step(tape.gradient(value, opt.parameters))
    return value


@pb.capture(fusion="fast", steps=2)
def two_steps(images: pb.Tensor, labels: pb.Tensor, scale: float = 1.0) -> dict[str, pb.Tensor]:
    return {"loss": scale * nn.cross_entropy(net(images), labels)}


with pb.profile(detail="count") as prof, pb.amp.autocast("float32"):
    for images, labels in loader:
        assert_type(train_step(images, labels=labels), pb.Tensor)
        break
assert_type(train_step(loader), pb.Tensor)
assert_type(two_steps(loader, scale=2.0), dict[str, pb.Tensor])
assert_type(train_step.stats().captures, int)
assert_type(prof.backward.flops, int)
assert_type(opt.step([pb.zeros_like(p) for p in opt.parameters], return_delta=True), list[pb.Tensor])
assert_type(pb.tree.map(lambda leaf: leaf + 1, {"a": [x]}), Any)
pb.config.reproducible = "machine"
