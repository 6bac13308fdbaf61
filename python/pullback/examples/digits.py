"""A dense network reads handwritten digits: `pullback train digits`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pullback as pb
from pullback import nn, optim

from .run import Measure, Result, Run, check


def mlp() -> nn.Module:
    """Returns a network for 64 pixels and 10 classes with 128 hidden units: 9,610 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


MODELS: Final[dict[str, Callable[[], nn.Module]]] = {"mlp": mlp}


def train(run: Run, *, model: str = "mlp", epochs: int = 30, batch_size: int = 64, lr: float = 5e-3) -> Result:
    """Trains a network on the digits with Adam, and tests it once at the end.

    Args:
        model: a name in MODELS.
        epochs: the number of passes over the training images.
        lr: the initial learning rate, which falls to 0 along a cosine.

    Raises: PullbackError, DeviceError.
    """
    if model not in MODELS:
        raise pb.PullbackError(f"train: there is no model {model!r}; use {', '.join(MODELS)}.")
    check(lr, epochs=epochs)
    with run:
        data, network = pb.data.digits(), MODELS[model]()
        loader = pb.data.Loader((data.x_train, data.y_train), batch_size, seed=run.seed)
        opt = optim.Adam(network.parameters(), lr=optim.schedules.Cosine(lr, epochs * len(loader)))
        step = pb.capture(lambda x, y: opt.minimize(lambda: nn.cross_entropy(network(x), y)))
        run.repeat(lambda: [step(x, y) for x, y in loader], epochs)
        right = accuracy(network.eval(), data.x_test, data.y_test)
        return run.result(network, {"test accuracy": Measure(right, f"{right:.2%}")})


def accuracy(network: nn.Module, images: pb.Tensor, labels: pb.Tensor) -> float:
    """Returns the share of the images whose largest output is that of their class."""
    return float(pb.mean((pb.argmax(network(images), axis=1) == labels).astype("float32")))
