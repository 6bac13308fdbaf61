"""The files that a training run leaves: weights, the page of the profile, the loss curve and the example's own picture."""

from __future__ import annotations

import os
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
}


class Files(NamedTuple):
    """The paths that `write` has written. `loss` and `picture` are None if they were not drawn, and `why_not` is the reason."""

    weights: Path
    profile: Path
    loss: Path | None
    picture: Path | None
    why_not: str


def write(result: Result, folder: str | Path) -> Files:
    """Saves the weights, the page of the profile and, if matplotlib can be imported, the loss curve and the example's picture."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights, page, curve, picture = [folder / name for name in NAMES]
    pb.save(weights, result.model.state_dict())
    result.profile.to_html(page)
    if why_not := _why_no_pictures():
        return Files(weights, page, None, None, why_not)
    _draw(curve, lambda figure: _draw_losses(figure, result.losses))
    if result.draw is not None:
        _draw(picture, result.draw)
    return Files(weights, page, curve, picture if result.draw else None, "")


def _why_no_pictures() -> str:
    """Returns "" if matplotlib can be imported, otherwise the reason why not."""
    try:
        import matplotlib.figure  # noqa: F401  # pyright: ignore[reportMissingImports]
    except Exception as error:  # an unknown MPLBACKEND raises ValueError, a damaged installation anything
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "matplotlib":
            return f"matplotlib is missing: pip install {'pullback[plot]'!r}"
        backend = os.environ.get("MPLBACKEND")
        if backend and backend in str(error):
            return f"matplotlib knows no backend MPLBACKEND={backend!r}: set that environment variable to agg, or unset it"
        return f"matplotlib cannot be imported ({type(error).__name__}: {error})"
    return ""


def _draw(path: Path, draw: Callable[[Any], None]) -> None:
    """Saves what `draw` draws on a figure."""
    from matplotlib import rc_context  # pyright: ignore[reportMissingImports]
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    with rc_context(STYLE):
        figure = Figure(figsize=(7, 4), layout="constrained")
        draw(figure)
        figure.savefig(path, dpi=120)


def _draw_losses(figure: Any, losses: Sequence[float]) -> None:
    axes = figure.subplots()
    axes.semilogy(losses, color=BLUE, linewidth=0.8, alpha=0.5, label="each step")
    width = max(1, len(losses) // 50)
    means = [sum(losses[i - width : i]) / width for i in range(width, len(losses) + 1)]
    axes.semilogy(range(width - 1, len(losses)), means, color=ORANGE, label=f"mean of {width}")
    axes.set(xlabel="step", ylabel="loss", title="training loss")
    axes.legend()
