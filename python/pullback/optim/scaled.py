"""A step with the gradients of a scaled loss, which changes nothing if one of them is not finite.

One launch computes the joint norm of the gradients. It writes the factor that undoes the scale into the sets of the optimizer, as
their GRADIENT_SCALE, and 0 if the norm is not finite: launches that read 0 change nothing. After the step the sets get back the
factor that they had. What other ops than the update's kernel change, the slots of composed rules and the projected weights, is
chosen element by element.
"""

from __future__ import annotations

from typing import Any

from ..errors import DeviceError, PullbackError
from ..launch import capturing, door
from ..ops.elementwise import greater, where
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from . import sets as c
from .sparsity import ConstantSparsity
from .table import SetTable


def step(opt: Any, grads: Any, numbers: Parameter) -> None:
    """Does a step of the optimizer. numbers: those of the loss scaler, csrc/math/settings.h."""
    _check(opt, numbers)
    leaves = opt._form.one_each(grads)
    if all([g is None for g in leaves]):
        opt._step(leaves)
        return
    capturing.increment(opt, "_scaled_steps")
    try:
        try:
            opt._scaler = numbers.array
            opt._step(leaves)
        finally:
            _restore(opt)
    except BaseException:  # Ctrl-C may have interrupted the restore, too.
        _restore(opt)
        raise


def _check(opt: Any, numbers: Parameter) -> None:
    """Raises PullbackError for an optimizer that cannot leave out a step on the device, DeviceError for one on another device."""
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


def _restore(opt: Any) -> None:
    """Writes the factor that the user has set for the gradients into the sets again."""
    opt._scaler = None
    scale = opt.gradient_scale  # A recording is valid until another value is set.
    with door.charged_to(door.OPTIMIZER):
        opt._table.launch_write(c.GRADIENT_SCALE, scale)


def goes(table: SetTable) -> Tensor:
    """Returns whether a scaled step changes anything, a bool in the device's memory."""
    return greater(Tensor(table.array[:1, c.GRADIENT_SCALE].reshape(())), 0.0)


def chosen(go: Tensor | None, new: Tensor, old: Any) -> Tensor:
    """Returns the new value of an array, or the old one if the step changes nothing."""
    return new if go is None else where(go, new, Tensor(old))
