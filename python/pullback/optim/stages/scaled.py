"""The factor of all gradients, and steps with the gradients of a scaled loss, which change nothing if one of them is not finite.

Such a step begins with one launch, which computes the joint norm of the gradients. It writes the factor that undoes the scale into
the sets of the optimizer, as their GRADIENT_SCALE, and 0 if the norm is not finite: launches that read 0 change nothing. After the
step the sets get back the factor that they had. What other ops than the update's kernel change, the slots of composed rules and
the projected weights, is chosen element by element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...errors import DeviceError, PullbackError
from ...launch import door
from ...ops.elementwise import greater, where
from ...tensors.parameter import Parameter
from ...tensors.tensor import Tensor
from .. import groups as grouping, launches, sets as c
from ..sparsity import ConstantSparsity
from ..table import SetTable
from .stage import Stage, Step, one_positive


class GradientScale(Stage):
    """The factor that multiplies all gradients before they are clipped: 1 / scale, if the loss was multiplied by `scale`."""

    name = "gradient_scale"
    neutral, on_device = 1.0, True
    in_sets = True

    def checked(self, rule: str, given: Any) -> float:
        if not grouping.positive(given) or math.isinf(given):
            raise PullbackError(f"{rule}: {self.name}={given}; it must be one positive number.")
        return float(given)

    def write(self, table: SetTable) -> None:
        table.write_all(c.GRADIENT_SCALE, self.value)

    def found(self, state: Mapping[str, Any], sets: Any) -> float:
        return one_positive(self.name, sets[:, c.GRADIENT_SCALE])


def check(opt: Any, numbers: Parameter) -> None:
    """Raises PullbackError for an optimizer that cannot leave out a step on the device, DeviceError for one on another device than
    the numbers of the LossScaler.
    """
    rule = type(opt).__name__
    if opt._lead:
        raise PullbackError(
            f"LossScaler.step: this {rule} trains several members, and a LossScaler has one scale for all gradients. Train in "
            f"bfloat16, or each member alone."
        )
    if opt.pruning is not None and not isinstance(opt.pruning.schedule, ConstantSparsity):
        raise PullbackError(
            f"LossScaler.step: the pruning of this {rule} follows a count of steps on the host, which does not know of skipped "
            f"ones. Prune a constant share, or train without a scaler in bfloat16."
        )
    if (device := opt._memory.device) != numbers.device:
        raise DeviceError(
            f"LossScaler.step: the scale is on {numbers.device}, the optimizer on {device}. Make the scaler with "
            f'pb.amp.LossScaler(device="{device}").'
        )


def begin(step: Step) -> None:
    """Launches what undoes the scale, or lets the step change nothing."""
    memory = step.memory
    launches.clip_norm(memory.kernels, step.grads, step.table, memory.members, step.scaler, check=memory.check_device)
    step.normed = True


def end(table: SetTable, scale: float) -> None:
    """Writes the factor that the user has set for the gradients into the sets again."""
    with door.charged_to(door.OPTIMIZER):
        table.launch_write(c.GRADIENT_SCALE, scale)


def goes(table: SetTable) -> Tensor:
    """Returns whether a scaled step changes anything, a bool in the device's memory."""
    return greater(Tensor(table.array[:1, c.GRADIENT_SCALE].reshape(())), 0.0)


def chosen(go: Tensor | None, new: Tensor, old: Any) -> Tensor:
    """Returns the new value of an array, or the old one if the step changes nothing."""
    return new if go is None else where(go, new, Tensor(old))
