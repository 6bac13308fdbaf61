"""Training on the digits, as `pullback train digits` runs it: a complete example program of the public API."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from .. import config, nn, optim
from ..data import Digits, Loader, digits
from ..errors import PullbackError
from ..io import save
from ..ops import random
from ..ops.elementwise import equal
from ..ops.reduce import argmax
from ..profiling import Profile
from ..replays.capture import capture
from ..tensors import devices


def mlp() -> nn.Module:
    """Returns a network for 64 pixels and 10 classes with 128 hidden units: 9,610 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


FILES: Final = ("weights.safetensors", "profile.html", "loss.png")  # what `write` writes
MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp}


@dataclass
class Result:
    """The result of a training run.

    Attributes:
        losses: the mean loss of each step's batch. accuracy: the share of test images that are classified correctly.
        profile: all launches of the training steps. seconds: their wall time. steps: the number of training steps.
        reproducible: the mode of the run. why_machine: if it is not "everywhere", the reason, or "" if the caller chose it.
    """

    model: nn.Module
    losses: list[float]
    accuracy: float
    profile: Profile
    seconds: float
    steps: int
    reproducible: str
    why_machine: str


def train_digits(
    model: str = "mlp",
    *,
    epochs: int = 30,
    batch_size: int = 64,
    lr: float = 5e-3,
    seed: int = 0,
    device: str | None = None,
    reproducible: Literal["machine", "everywhere"] | None = None,
    progress: Callable[[Sequence[int]], Any] | None = None,
) -> Result:
    """Trains a network on the digits with Adam, and tests it once at the end. Equal arguments give equal bits, under
    "everywhere" on every machine.

    Args:
        model: a name in MODELS.
        lr: the initial learning rate, which falls to 0 along a cosine.
        seed: the seed of the weights and of the shuffling.
        reproducible: the `pb.config.reproducible` of this run. None takes "everywhere" if the device can, else "machine".
        progress: a function that wraps the range of epochs, as tqdm does. If its result has a `set_postfix`, that is called with
            loss=… after every epoch.

    Raises: PullbackError, DeviceError.
    """
    if model not in MODELS:
        raise PullbackError(f"train: there is no model {model!r}; use {', '.join(MODELS)}.")
    if epochs < 1:
        raise PullbackError(f"train: epochs={epochs} must be 1 or more.")
    random.seed(seed)
    place = device or devices.default_device()
    with devices.use_device(place), _mode(reproducible) as why_machine:
        data, network = digits(device=place), MODELS[model]()
        loader = Loader((data.x_train, data.y_train), batch_size, seed=seed)
        schedule = optim.schedules.Cosine(lr, epochs * len(loader))
        opt = optim.Adam(network.parameters(), lr=schedule)
        step = capture(lambda x, y: opt.minimize(lambda: nn.cross_entropy(network(x), y)))
        losses: list[float] = []
        rounds: Any = progress(range(epochs)) if progress else range(epochs)
        start = time.perf_counter()
        with Profile() as profile:
            for _ in rounds:
                done = [step(x, y) for x, y in loader]  # Losses are read after the epoch, so that no step waits on a GPU.
                losses += [loss.item() for loss in done]
                if hasattr(rounds, "set_postfix"):
                    rounds.set_postfix(loss=f"{sum(losses[-len(loader) :]) / len(loader):.4f}")
        seconds = time.perf_counter() - start
        right = accuracy(network.eval(), data)
        return Result(network, losses, right, profile, seconds, len(losses), config.reproducible, why_machine)


@contextmanager
def _mode(wanted: Literal["machine", "everywhere"] | None) -> Generator[str]:
    """Sets `pb.config.reproducible` inside the block. Yields the reason if it is "machine" although nobody asked for that."""
    before = config.reproducible
    why_not = config.why_not() or ""
    config.reproducible = wanted or ("machine" if why_not else "everywhere")
    try:
        yield "" if wanted else why_not
    finally:
        config.reproducible = before


def accuracy(network: nn.Module, data: Digits) -> float:
    """Returns the share of the test images whose largest output is that of their class."""
    return float(equal(argmax(network(data.x_test), axis=1), data.y_test).astype("float32").mean().item())


def write(result: Result, folder: str | Path) -> tuple[Path, Path, Path | None]:
    """Saves the weights, the HTML page of the profile and, if matplotlib is installed, the loss curve.

    Returns: their paths, with None if there is no curve.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights, page, curve = [folder / name for name in FILES]
    save(weights, result.model.state_dict())
    result.profile.to_html(page)
    return weights, page, _draw(result.losses, curve)


def _draw(losses: Sequence[float], path: Path) -> Path | None:
    try:
        import matplotlib  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot  # pyright: ignore[reportMissingImports]

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.semilogy(losses, linewidth=0.8, alpha=0.4, label="each batch")
    width = max(1, len(losses) // 50)
    means = [sum(losses[i - width : i]) / width for i in range(width, len(losses) + 1)]
    axes.semilogy(range(width - 1, len(losses)), means, label=f"mean of {width}")
    axes.set(xlabel="step", ylabel="cross entropy", title="Digits: training loss")
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
