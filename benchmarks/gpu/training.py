"""The training step of the benchmark's networks, as a user would write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pullback as pb
from pullback import nn


def training_step(model: nn.Module, opt: Any) -> Callable[[Any, Any], Any]:
    """Returns a function of a batch and its labels that updates the model and returns the loss."""

    def step(x: Any, y: Any) -> Any:
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(model(x), y)
        opt.step(tape.gradient(loss, opt.parameters))
        return loss

    return step
