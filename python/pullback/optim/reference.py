"""The update of a rule in NumPy or CuPy, for rules and devices without a kernel: the formula, and around it what
csrc/cpu/update.cpp does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..backends.reference import distinct_bytes
from ..errors import ShapeError
from ..launch import door
from ..tensors import devices
from ..tensors.tensor import Tensor
from . import arena, sets as c
from ._counts import UPDATE_COUNTS
from .formula_check import results
from .launches import begin_step, part
from .memory import OptimizerMemory
from .program import Program
from .rounding import added_at_random

_FIGURES: Final = ("adds", "multiplies", "special_ops", "bytes_read", "bytes_written")


def measure(rule: Any, memory: OptimizerMemory, kernel: str, grads: list[Any], table: Any) -> None:
    """Writes the trust ratio of each part with a gradient into its set: the norm of the weights over that of the direction."""
    members = memory.members

    def run() -> None:
        for i, m, settings in _begun_parts(rule, memory, grads, table):
            settings[c.RATE], settings[c.RATIO] = -1.0, 1.0  # so that the change is the direction
            tensors = (memory.weight(i), memory.copy(i), grads[i], *[slot[i] for slot in memory.slots.values()])
            weights, low, grad, *state = [part(x, m, members) for x in tensors]
            weights = _refreshed(weights, low).astype(arena.slot_dtype(weights))
            direction, _ = _computed(rule, kernel, settings, weights, _clipped(grad.astype(weights.dtype), settings), state)
            norms = [float((x.astype("float64") ** 2).sum()) ** 0.5 for x in (weights, direction)]
            table[i * members + m, c.RATIO] = norms[0] / norms[1] if norms[0] > 0 and norms[1] > 0 else 1.0

    door.in_place(kernel.replace("_step", "_ratio"), run, lambda _: _measure_cost(memory, kernel, grads))


def update(
    rule: Any, memory: OptimizerMemory, kernel: str, grads: list[Any], table: Any, outputs: list[Any] | None, preview: bool,
    rounding: int,
) -> None:
    """Does what the rule's kernel would do. `kernel` is "" for a rule without one. Writes the changes into `outputs` if given.

    rounding: 0, or for stochastic rounding 1 + the number of the first parameter.
    """
    members, slots = memory.members, [] if rule.composed else [*memory.slots.values()]

    def run() -> None:
        absent = [i for i, g in enumerate(grads) if g is None or not g.size]
        for i in absent if not preview and _goes(table) else ():
            table[i * members : (i + 1) * members, c.CLOCK] += 1
        for i, m, settings in _begun_parts(rule, memory, grads, table):
            optional = (each and each[i] for each in (memory.averages, memory.masks, outputs))
            tensors = [memory.weight(i), grads[i], memory.copy(i), *optional, *[slot[i] for slot in slots]]
            key = rounding - 1 + i if rounding else None
            _update_part(rule, kernel, settings, [part(x, m, members) for x in tensors], preview, key)
            settings[c.CLOCK] += 1
            if not preview:
                devices.write(table[i * members + m], devices.move(np.array(settings), devices.device_of(table)))

    door.in_place(kernel or type(rule).__name__, run, lambda _: _cost(memory, kernel, slots, grads, outputs, preview))


def _goes(table: Any) -> bool:
    """True if the step changes anything, which one with an overflow in a scaled loss does not."""
    return bool(devices.move(table, "cpu")[0, c.GRADIENT_SCALE] != 0)


def _begun_parts(rule: Any, memory: OptimizerMemory, grads: list[Any], table: Any) -> Iterator[tuple[int, int, list[float]]]:
    """Yields (number of the parameter, member, its set after the step has begun) for all with gradients, in a step that goes."""
    sets, members = devices.move(table, "cpu"), memory.members
    program = Program(sets[len(grads) * members :], members, present=True)
    for i, g in enumerate(grads):
        for m in range(members if g is not None and g.size and _goes(sets) else 0):
            settings = sets[i * members + m].tolist()
            begin(rule, settings, program)
            yield i, m, settings


def begin(rule: Any, settings: list[float], program: Program) -> None:
    """Begins a step: writes its learning rate into a set, and advances the set. program: the rows after the sets, at present."""
    begin_step(settings, program)
    h = StepNumbers(rule.hyper, settings)
    settings[c.RATE] = h.lr = rule._rate(h)
    found = rule._step_numbers(h)
    settings[c.STATE : c.STATE + len(found)] = found


class StepNumbers:
    """The numbers of a step that a formula reads, on the host: `lr`, `step`, the rule's hyper-parameters by their names, a tuple
    for several numbers, and `numbers`, the four that the rule computes once in a step (csrc/math/update.h).
    """

    lr: float
    step: float
    numbers: list[float]

    def __init__(self, hyper: Mapping[str, int], settings: list[float]) -> None:
        values, at = vars(self), c.HYPER
        values.update(lr=settings[c.RATE], step=settings[c.STEP], numbers=settings[c.STATE : c.CLIP_FACTOR])
        for name, count in hyper.items():
            values[name] = settings[at] if count == 1 else tuple(settings[at : at + count])
            at += count


def _computed(rule: Any, kernel: str, settings: list[float], p: Any, g: Any, slots: list[Any]) -> tuple[Any, Sequence[Any]]:
    """Returns the change of weights and the new slots by the rule's formula."""
    change, new = rule.formula(p, g, slots, StepNumbers(rule.hyper, settings))
    if kernel:
        return change, new
    cls, found = type(rule).__name__, [x.array if isinstance(x, Tensor) else x for x in (change, *new)]  # of ops, if it called some
    for name, y in zip(["the change", *rule.slot_names], results(cls, found, rule.slot_names)):
        if np.shape(y) != p.shape:
            raise ShapeError(f"{cls}: the formula returned {name} of shape {np.shape(y)} for weights of shape {p.shape}.")
    return found[0], [y.copy() for y in found[1:]]  # A new slot may be the memory of another slot.


def _update_part(
    rule: Any, kernel: str, settings: list[float], tensors: list[Any], preview: bool, parameter: int | None
) -> None:
    """Updates one member of a parameter. tensors: the weights, the gradient, the copy of half precision, the average, the mask and
    the output for what was added, which may be None, and the slots. parameter: the number that chooses random bits, None for none.
    """
    weights, g, low, average, mask, output, *slots = tensors
    p = _refreshed(weights, low)
    wide = arena.slot_dtype(p)
    change, new = g.astype(wide), ()  # of the rule "add", which follows a formula on whole arrays
    if not rule.composed:
        change, new = _computed(rule, kernel, settings, p.astype(wide), _clipped(change, settings), slots)
    delta = change.astype(p.dtype)
    at_random = parameter is not None and p.dtype.itemsize == 2
    added = p + delta if parameter is None or not at_random else added_at_random(p, change, parameter, int(settings[c.STEP]))
    after = added.clip(settings[c.LEAST], settings[c.MOST]).astype(p.dtype)
    if mask is not None:
        after = np.where(mask != 0, after, 0).astype(p.dtype)
    if output is not None:
        output[...] = after - p if at_random else np.where(after == added, delta, after - p)
    if preview:
        return
    weights[...] = after
    for slot, value in zip(slots, new):
        slot[...] = value
    if low is not None:
        low[...] = after.astype(low.dtype)
    if average is not None:
        keep = settings[c.KEEP] if settings[c.STEP] > 1 else 0.0
        average[...] = keep * average + (1 - keep) * after.astype(wide)
    if mask is not None:
        for state in (*slots, *([] if average is None else [average])):
            state[mask == 0] = 0


def _refreshed(weights: Any, low: Any) -> Any:
    """Returns weights, but for masters whose half precision weight has been assigned since the last step that weight."""
    return weights if low is None else np.where(weights.astype(low.dtype) == low, weights, low.astype(weights.dtype))


def _clipped(g: Any, settings: list[float]) -> Any:
    bound = settings[c.CLIP_VALUE]
    return (g * (settings[c.CLIP_FACTOR] * settings[c.GRADIENT_SCALE])).clip(-bound, bound)


def _cost(
    memory: OptimizerMemory, kernel: str, slots: list[list[Any]], grads: list[Any], outputs: list[Any] | None, preview: bool,
    *, masks: bool = True,
) -> dict[str, Any] | None:
    """Returns the cost of a step by the formula of its kernel, whichever backend runs it; None for a rule without a kernel."""
    if kernel not in UPDATE_COUNTS:
        return None
    adds, multiplies, special, settings = UPDATE_COUNTS[kernel]
    members = memory.members
    figures = dict.fromkeys(_FIGURES, 0)
    for i, (p, low, g) in enumerate(zip(memory.weights(), memory.copies(), grads)):
        if g is None or not g.size:
            for figure in ("bytes_read", "bytes_written"):  # the clocks
                figures[figure] += 0 if preview else 8 * members
            continue
        averages = [] if preview or memory.averages is None else [memory.averages]
        slot_bytes = sum([slot[i].nbytes for slot in [*slots, *averages]])
        figures["adds"] += p.size * (adds + len(averages) + (outputs is not None))
        figures["multiplies"] += p.size * (multiplies + 2 * len(averages))
        figures["special_ops"] += p.size * special
        changed = p.nbytes + slot_bytes + (0 if low is None else low.nbytes)
        masked = masks and memory.mask(i) is not None
        figures["bytes_read"] += changed + members * c.BYTES + distinct_bytes(g) + (p.size if masked else 0)
        figures["bytes_written"] += (0 if preview else changed + 8 * members * settings) + (0 if outputs is None else p.nbytes)
    return {"dtype": memory.parameters[0].dtype, **figures}


def _measure_cost(memory: OptimizerMemory, kernel: str, grads: list[Any]) -> dict[str, Any] | None:
    """Returns the cost of the trust ratios: that of a preview without masks, and of two norms of each part."""
    figures = _cost(memory, kernel, [*memory.slots.values()], grads, None, True, masks=False)
    if figures is None:
        return None
    sizes = [g.size for g in grads if g is not None and g.size]
    parts = memory.members * len(sizes)
    more = {"adds": sum(sizes), "multiplies": 2 * sum(sizes), "special_ops": 3 * parts, "bytes_written": 8 * parts}
    return {**figures, **{name: figures[name] + count for name, count in more.items()}}
