"""When the parameters are updated in `minimize`: after the whole backward pass, or each one during it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from ..autodiff.gated import sweep_each
from ..errors import PullbackError
from ..launch import capturing, door
from ..ops.elementwise import add
from ..ops.writing import write
from ..tensors import devices
from ..tensors.tensor import Tensor
from . import sets as c
from .loss_scaler import LossScaler

if TYPE_CHECKING:
    from ..autodiff.tape import Tape

Gate = Literal["graph", "op"]


def check(opt: Any, gate: Any, scaler: Any) -> None:
    """Raises PullbackError for a gate that does not exist or that this optimizer cannot have, and for what is no LossScaler."""
    if scaler is not None and not isinstance(scaler, LossScaler):
        raise PullbackError(f"minimize: scaler is a {type(scaler).__name__}; give a pb.amp.LossScaler().")
    if gate not in get_args(Gate):
        none = (
            ' There is no "none", because an update while other ops still read the parameter is a race.' if gate == "none" else ""
        )
        raise PullbackError(f'minimize: gate={gate!r}; use "graph" or "op".{none}')
    if gate == "op" and not opt.updates_each:
        raise PullbackError(
            f'minimize: gate="op" updates the parameters one by one, and {type(opt).__name__} computes many together. Use '
            f'gate="graph", or another rule, such as optim.AdamW.'
        )
    if gate == "op" and scaler is not None:
        raise PullbackError(
            'minimize: gate="op" updates each parameter while the gradients of others are not known yet, and a scaler leaves out '
            'the step if any of them is not finite. Use gate="graph".'
        )
    if gate == "op" and opt.clip_norm is not None:
        raise PullbackError(
            f'minimize: gate="op" updates each parameter while the gradients of others are not known yet, and '
            f'clip_norm={opt.clip_norm:g} needs the joint norm of all of them. Use gate="graph"; or set opt.clip_norm = None, and '
            f"clip_value where each element may be clipped by itself."
        )


def update_each(opt: Any, tape: Tape, loss: Tensor) -> None:
    """Walks the tape back from the loss, and updates each parameter with its gradient as soon as both are free.

    The update of one parameter is that of an optimizer with this parameter alone, which shares the memory of slots and sets. The
    sets have a clock each, so that after the last update all have done one step.
    """
    parameters = opt.parameters
    waiting = set(range(len(parameters)))
    opt._follow_parameters()
    opt._follow_constraints()
    if opt._pruning is not None:  # Masks depend on the weights before the step, of all parameters together with scope="global".
        opt._pruning.begin([True for _ in parameters])

    def update(position: int, g: Tensor) -> None:
        p = parameters[position]
        before = p.storage.version
        try:
            _update_one(opt, position, g)
        finally:
            if p.storage.version != before:  # A constraint may raise after the update.
                waiting.discard(position)

    try:
        tape.run_backward(lambda _: sweep_each(tape, loss, parameters, update) or [])
    finally:
        if len(waiting) < len(parameters):
            for position in waiting:  # after an error: their gradients did not become complete
                _advance_clock(opt, position)
            opt._skip(waiting)
            capturing.increment(opt, "_steps")


def _update_one(opt: Any, position: int, g: Tensor) -> None:
    """Updates one parameter, by an optimizer that has this parameter alone, with the slots and sets of `opt` in the same memory.

    """
    with door.charged_to(door.OPTIMIZER):
        table = opt._table.alone(position)
    each = {name: value and [value[position]] for name, value in vars(opt).items() if name in opt.listed}
    alone: Any = object.__new__(type(opt))
    vars(alone).update(vars(opt), **each, _memory=opt._memory.part([position]), _table=table, _pruning=None, _of=opt)
    vars(alone).update(_first=position, **opt.apart)
    alone._update([g])
    with door.charged_to(door.OPTIMIZER):
        opt._table.adopt(position, table)


def _advance_clock(opt: Any, position: int) -> None:
    """Counts a step that has brought a parameter no gradient."""
    rows, one = opt._table.of(position), np.zeros((1, c.SIZE))
    one[:, c.CLOCK] = 1
    write(rows, add(Tensor(rows), Tensor(devices.move(one, devices.device_of(rows)))).array)
