"""Writes the figures of a profile as one step of a TensorBoard run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ..launch.door import PHASES
from ..report.tensorboard import writer
from .figures import Figures

if TYPE_CHECKING:
    from .session import Profile

FIGURES: Final = ("flops", "matmul_flops", "bytes", "seconds")


def to_tensorboard(prof: Profile, directory: str | os.PathLike[str], step: int = 0) -> None:
    """Writes flops, matmul_flops, bytes and seconds of each phase, and of each module in it, as scalars.

    Tags are "flops/forward" for a phase, "flops/total" for the sum of phases, and "module_flops/encoder.0/forward" for a module.
    Ops that no module called are in "module_flops/outside/…". Seconds are written only if they were measured; the seconds of a
    module are the time inside its launches. TensorBoard stores float32, so counts are rounded to 7 digits.

    Raises PullbackError if the package tensorboardX is not installed.
    """
    with writer(directory) as run:
        for tag, value in scalars(prof).items():
            run.add_scalar(tag, value, step)


def scalars(prof: Profile) -> dict[str, float]:
    """Returns the values by their tags."""
    found: dict[str, float] = {}
    for phase in [*[name for name in PHASES if getattr(prof, name) != Figures()], "total"]:
        figures = getattr(prof, phase)
        found.update({f"{name}/{phase}": getattr(figures, name) for name in FIGURES if name != "seconds" or prof.spans})
    timed = prof.kernel_seconds > 0
    for group in prof.by("module"):
        for phase, figures in group.phases.items():
            place = f"{group.name or 'outside'}/{phase}"
            found.update({f"module_{name}/{place}": getattr(figures, name) for name in FIGURES if name != "seconds" or timed})
    return found
