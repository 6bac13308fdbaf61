"""A convolutional network reads handwritten digits: `pullback train cnn`.

The network is compared with a nearest neighbour classifier, which the authors of the digits published as the baseline: it gives a
test image the class of the training image at the smallest Euclidean distance. They trained it on 3,823 images by 30 people and
tested it on the 1,797 images by 13 others, and 98.00 % were right. The package has the latter 1,797 images only, so here some
images of each class are for training and others by the same people for testing, which is easier. The nearest neighbour of the same
split is therefore computed, too, and is the value to compare with.

Source: E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998 (optdigits.names).
"""

from __future__ import annotations

from typing import Any, Final

import pullback as pb
from pullback import nn, optim

from .digits import accuracy
from .run import GREY, ORANGE, Measure, Result, Run, check

REFERENCE: Final = "98.00%: nearest neighbour, trained on 3,823 images of other writers (Alpaydin & Kaynak, UCI, 1998)"


def network(channels: int = 24) -> nn.Module:
    """Returns two convolutions, each with a norm and a pool, and a dense layer: 12,730 parameters with 24 channels."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.BatchNorm2d(2 * channels), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * channels * 2 * 2, 10),
    )


def train(run: Run, *, epochs: int = 7, batch_size: int = 64, lr: float = 5e-3, channels: int = 24) -> Result:
    """Trains the network with AdamW, and tests it once at the end.

    Args:
        epochs: the number of passes over the training images.
        lr: the initial learning rate, which falls to 0 along a cosine.
        channels: the number of channels of the first convolution. The second has twice as many.

    Raises: PullbackError, DeviceError.
    """
    check(lr, epochs=epochs, channels=channels)
    with run:
        data, net = pb.data.digits(), network(channels)
        x_train, x_test = data.x_train[:, None], data.x_test[:, None]  # (N, channels, rows, columns)
        loader = pb.data.Loader((x_train, data.y_train), batch_size, seed=run.seed)
        opt = optim.AdamW(net.parameters(), lr=optim.schedules.Cosine(lr, epochs * len(loader)))
        step = pb.capture(lambda x, y: opt.minimize(lambda: nn.cross_entropy(net(x), y)))
        run.repeat(lambda: [step(x, y) for x, y in loader], epochs)
        net.eval()  # BatchNorm2d now uses its running mean and variance
        right, near = accuracy(net, x_test, data.y_test), nearest_neighbour(data)
        measures = {
            "test accuracy": Measure(right, f"{right:.2%}"),
            "baseline": Measure(near, f"{near:.2%}: nearest neighbour, trained on the same images"),
        }
        shown = (x_test.numpy(), nn.functional.softmax(net(x_test), axis=1).numpy(), data.y_test.numpy())
        return run.result(net, measures, reference=REFERENCE, draw=lambda figure: draw(figure, *shown))


def nearest_neighbour(data: pb.data.Digits) -> float:
    """Returns the share of the test images whose nearest training image has their class."""
    train, test = data.x_train.reshape(-1, 64), data.x_test.reshape(-1, 64)
    distances = pb.sum(train * train, axis=1) - 2 * test @ train.T  # squared, less |test|², which is the same in a row
    return float(pb.mean((data.y_train[pb.argmin(distances, axis=1)] == data.y_test).astype("float32")))


def draw(figure: Any, images: Any, chances: Any, labels: Any) -> None:
    """Draws the 12 test images whose class the network gives the smallest probability."""
    own = chances[range(len(labels)), labels]
    figure.suptitle("test images whose class is the least certain: class, the network's class, its probability")
    for axes, i in zip(figure.subplots(2, 6).flat, own.argsort(kind="stable")):
        axes.imshow(images[i, 0], cmap="gray_r", vmin=0, vmax=1)
        guess = chances[i].argmax()
        colour = GREY if guess == labels[i] else ORANGE
        axes.set_title(f"{labels[i]}, {guess}, {chances[i, guess]:.0%}", color=colour, fontsize=9)
        axes.set(xticks=[], yticks=[])
