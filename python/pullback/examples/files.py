"""The files that a training run leaves: weights, the page of the profile, the loss curve and the example's own picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pullback as pb

from .run import BLUE, GREY, ORANGE, Result

NAMES: Final = ("weights.safetensors", "profile.html", "loss.png", "picture.png")
STYLE: Final[dict[Any, Any]] = {
    "savefig.transparent": True,  # so that the pictures fit into pages of any colour
    "text.color": GREY, "axes.labelcolor": GREY, "axes.titlecolor": GREY, "axes.edgecolor": GREY, "xtick.color": GREY,
    "ytick.color": GREY, "legend.frameon": False,
}  # fmt: skip


class Files(NamedTuple):
    """The paths that `write` has written. `loss` and `picture` are None if they were not drawn."""

    weights: Path
    profile: Path
    loss: Path | None
    picture: Path | None


def write(result: Result, folder: str | Path) -> Files:
    """Saves the weights, the page of the profile and, if matplotlib is installed, the loss curve and the example's picture."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights, page, curve, picture = [folder / name for name in NAMES]
    pb.save(weights, result.model.state_dict())
    result.profile.to_html(page)
    loss = _drawn(curve, lambda figure: _draw_losses(figure, result.losses))
    return Files(weights, page, loss, _drawn(picture, result.draw) if result.draw else None)


def _drawn(path: Path, draw: Callable[[Any], None]) -> Path | None:
    """Saves what `draw` draws on a figure. Returns the path, or None if matplotlib is missing."""
    try:
        from matplotlib import rc_context  # pyright: ignore[reportMissingImports]
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":  # matplotlib is here, but broken
            raise
        return None
    with rc_context(STYLE):
        figure = Figure(figsize=(7, 4), layout="constrained")
        draw(figure)
        figure.savefig(path, dpi=120)
    return path


def _draw_losses(figure: Any, losses: Sequence[float]) -> None:
    axes = figure.subplots()
    axes.semilogy(losses, color=BLUE, linewidth=0.8, alpha=0.5, label="each step")
    width = max(1, len(losses) // 50)
    means = [sum(losses[i - width : i]) / width for i in range(width, len(losses) + 1)]
    axes.semilogy(range(width - 1, len(losses)), means, color=ORANGE, label=f"mean of {width}")
    axes.set(xlabel="step", ylabel="loss", title="training loss")
    axes.legend()
