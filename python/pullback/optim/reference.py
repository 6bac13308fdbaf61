"""An optimizer step in NumPy or CuPy, for rules and devices without a kernel: the rule's formula, and around it what
csrc/cpu/update.cpp does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from .program import MEMBER, WATCH, Program, observe as observe_row
from .rounding import added_at_random

LEAST_NORM: Final = 1e-3  # the norm that the weights of a unit count with at least, so that weights of 0 can move


def clip_norm(grads: list[Any], table: Any, members: int, scaler: Any = None) -> None:
    """Writes the joint norm of each member's gradients, and the factor that scales them, into all sets of the member.

    scaler: the numbers of the LossScaler of a scaled loss. The factor that undoes its scale is written, too.
    """
    used = table[: members * len(grads)]

    def clip() -> None:
        for m in range(members):
            parts = [_part(g, m, members).astype("float64") for g in grads if g is not None]
            with np.errstate(over="ignore", invalid="ignore"):
                norm = float(sum([float((g**2).sum()) for g in parts])) ** 0.5
            if scaler is not None:
                used[:, c.GRADIENT_SCALE] *= _unscaling(scaler, norm)
            most, scale = devices.move(used, "cpu")[m, [c.CLIP_NORM, c.GRADIENT_SCALE]]
            if scale == 0:
                continue
            norm *= float(scale)
            factor = float(most) / (norm + 1e-6)
            used[m::members, c.GRADIENT_NORM] = norm
            used[m::members, c.CLIP_FACTOR] = 1.0 if factor > 1 else factor

    door.in_place("clip_norm", clip, lambda _: _norm_cost(grads, members, scaler is not None))


def _unscaling(scaler: Any, norm: float) -> float:
    """Returns the factor that undoes a scale, or 0 if the norm is not finite, and counts the step in the scaler's numbers."""
    overflow = not np.isfinite(norm)
    devices.write(scaler, scaler + devices.move(np.array([0, 0, overflow, 1, overflow], np.float32), devices.device_of(scaler)))
    return 0.0 if overflow else 1 / float(devices.move(scaler, "cpu")[0])


def update_scale(scaler: Any, growth: float, backoff: float, interval: float) -> None:
    """Changes the scale of a LossScaler as csrc/math/settings.h does."""

    def run() -> None:
        scale, good, skipped, checks, overflows = devices.move(scaler, "cpu").tolist()
        if checks:
            grows = not overflows and good + 1 >= interval
            with np.errstate(over="ignore"):
                new = np.float32(scale * (backoff if overflows else growth))
            if (overflows or grows) and np.finfo(np.float32).tiny <= new < np.inf:
                scale = float(new)
            found = np.array([scale, 0 if overflows or grows else good + 1, skipped, 0, 0], np.float32)
            devices.write(scaler, devices.move(found, devices.device_of(scaler)))

    cost = {"dtype": "float32", "bytes_read": 16, "bytes_written": 12}
    door.in_place("update_scale", run, lambda _: cost)


def clip_adaptive(grads: list[Any], weights: list[Any], table: Any, limit: Any, members: bool) -> list[Any]:
    """Returns the gradients, those of each unit scaled to a norm of at most a share of the norm of the unit's weights."""
    found = list(grads)

    def clip() -> None:
        scale, share = float(devices.move(table, "cpu")[0, c.GRADIENT_SCALE]), float(devices.move(limit, "cpu")[0])
        for i, (g, p) in enumerate(zip(grads, weights)):
            if g is not None and g.size:
                found[i] = _clipped_units(p, g, scale, share, members)

    door.in_place("clip_adaptive", clip, lambda _: _units_cost(grads, members))
    return found


def _clipped_units(p: Any, g: Any, scale: float, share: float, members: bool) -> Any:
    count = _unit_count(g, members)
    weights, gradient = [(x.reshape(count, -1).astype("float64") ** 2).sum(axis=1) ** 0.5 for x in (p, g)]
    wide = arena.slot_dtype(g)
    with np.errstate(invalid="ignore"):
        most, norm = share * weights.clip(LEAST_NORM, None), gradient * scale
        factor = np.where(norm > most, most / norm.clip(1e-6, None), 1.0)
        return (g.reshape(count, -1).astype(wide) * factor[:, None].astype(wide)).astype(g.dtype).reshape(g.shape)


def _unit_count(g: Any, members: bool) -> int:
    """Returns the number of units: the rows along the first axis of each member, or one for each member's vector.

    members: True if the first axis is that of the members.
    """
    rows = g.shape[1 if members else 0 :]
    return (g.shape[0] if members else 1) * (rows[0] if len(rows) > 1 else 1)


def begun_steps(opt: Any, table: Any) -> Any:
    """Returns a copy of the table of sets, as the sets are after the next step has begun."""
    now, count = devices.copied(table), len(opt._parameters) * opt._members

    def begin_all() -> None:
        sets = np.array(devices.move(now, "cpu"))
        program = Program(sets[count:], opt._members, present=True)
        for settings in sets[:count]:
            advanced = settings.tolist()
            begin(opt, advanced, program)
            settings[:] = advanced
        devices.write(now, devices.move(sets, devices.device_of(now)))

    moved = count * c.BYTES
    door.in_place("begin_steps", begin_all, lambda _: {"dtype": "float64", "bytes_read": moved, "bytes_written": moved})
    return now


def measure(opt: Any, kernel: str, slots: list[list[Any]], grads: list[Any], table: Any) -> None:
    """Writes the trust ratio of each part with a gradient into its set: the norm of the weights over that of the direction."""
    members = opt._members

    def run() -> None:
        sets = devices.move(table, "cpu")
        if sets[0, c.GRADIENT_SCALE] == 0:  # The step changes nothing.
            return
        program = Program(sets[opt._set_count :], members, present=True)
        for i, (p, g) in enumerate(zip(opt._parameters, grads)):
            for m in range(members if g is not None and g.size else 0):
                settings = sets[i * members + m].tolist()
                begin(opt, settings, program)
                settings[c.RATE], settings[c.RATIO] = -1.0, 1.0  # so that the change is the direction
                tensors = (opt._weights()[i], opt._copies()[i], g, *[slot[i] for slot in slots])
                weights, low, grad, *state = [_part(x, m, members) for x in tensors]
                weights = _refreshed(weights, low).astype(arena.slot_dtype(p))
                grad = _clipped(grad.astype(weights.dtype), settings)
                direction, _ = _computed(opt, kernel, settings, weights, grad, state)
                norms = [float((x.astype("float64") ** 2).sum()) ** 0.5 for x in (weights, direction)]
                ratio = norms[0] / norms[1] if norms[0] > 0 and norms[1] > 0 else 1.0
                table[i * members + m, c.RATIO] = ratio

    door.in_place(kernel.replace("_step", "_ratio"), run, lambda _: _measure_cost(opt, kernel, slots, grads, members))


def update(
    opt: Any, kernel: str, slots: list[list[Any]], grads: list[Any], table: Any, outputs: list[Any] | None, preview: bool
) -> None:
    """Does what opt's kernel would do. `kernel` is "" for a rule without one. Writes the changes into `outputs` if given."""
    members = opt._members

    def run() -> None:
        sets = devices.move(table, "cpu")
        if sets[0, c.GRADIENT_SCALE] == 0:  # The step changes nothing.
            return
        program = Program(sets[opt._set_count :], members, present=True)
        for i, g in enumerate(grads):
            if g is None or not g.size:
                if not preview:
                    table[i * members : (i + 1) * members, c.CLOCK] += 1
                continue
            for m in range(members):
                row = i * members + m
                settings = sets[row].tolist()
                begin(opt, settings, program)
                optional = (each and each[i] for each in (opt._copies(), opt._averages, opt._masks, outputs))
                tensors = [opt._weights()[i], g, *optional, *[slot[i] for slot in slots]]
                _update_part(opt, kernel, settings, [_part(x, m, members) for x in tensors], preview, opt._first + i)
                settings[c.CLOCK] += 1
                if not preview:
                    devices.write(table[row], devices.move(np.array(settings), devices.device_of(table)))

    door.in_place(kernel or type(opt).__name__, run, lambda _: _cost(opt, kernel, slots, grads, outputs, preview, members))


def begin(opt: Any, settings: list[float], program: Program) -> None:
    """Begins a step: writes its learning rate into a set, and advances the set. program: the rows after the sets, at present."""
    schedule = program.read(settings[c.SCHEDULE : c.HYPER]).schedule
    settings[c.RATE] = schedule.rate(int(settings[c.CLOCK])) * settings[c.RATE_SCALE]
    settings[c.STEP] += 1
    h = Numbers(opt.hyper, settings)
    settings[c.RATE] = h.lr = opt._rate(h)
    found = opt._step_numbers(h)
    settings[c.STATE : c.STATE + len(found)] = found


class Numbers:
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


def _computed(opt: Any, kernel: str, settings: list[float], p: Any, g: Any, slots: list[Any]) -> tuple[Any, Sequence[Any]]:
    """Returns the change of weights and the new slots by the rule's formula."""
    change, new = opt.formula(p, g, slots, Numbers(opt.hyper, settings))
    if kernel:
        return change, new
    rule, found = type(opt).__name__, [x.array if isinstance(x, Tensor) else x for x in (change, *new)]  # of ops, if it called some
    for name, y in zip(["the change", *opt.slot_names], results(rule, found, opt.slot_names)):
        if np.shape(y) != p.shape:
            raise ShapeError(f"{rule}: the formula returned {name} of shape {np.shape(y)} for weights of shape {p.shape}.")
    return found[0], [y.copy() for y in found[1:]]  # A new slot may be the memory of another slot.


def observe(table: Any, metric: Any, set_count: int) -> None:
    """Moves the states of reduce-on-plateau in the rows after the sets by one observation. metric: of shape () or (members,)."""

    def run() -> None:
        clock = float(devices.move(table[:1], "cpu")[0, c.CLOCK])
        rows, values = np.array(devices.move(table[set_count:], "cpu")), np.atleast_1d(devices.move(metric, "cpu"))
        for row in rows:
            if row[c.SCHEDULE] == WATCH and row[c.CLOCK] <= clock:
                observe_row(row, float(values[int(row[MEMBER]) if len(values) > 1 else 0]))
        devices.write(table[set_count:], devices.move(rows, devices.device_of(table)))

    moved = (len(table) - set_count) * c.BYTES
    cost = {"dtype": "float64", "bytes_read": moved + metric.nbytes + 8, "bytes_written": moved}
    door.in_place("observe", run, lambda _: cost)


def _update_part(opt: Any, kernel: str, settings: list[float], tensors: list[Any], preview: bool, parameter: int) -> None:
    """Updates one member of a parameter. tensors: the weights, the gradient, the copy of half precision, the average, the mask and
    the output for what was added, which may be None, and the slots. parameter: the number that chooses random bits.
    """
    weights, g, low, average, mask, output, *slots = tensors
    p = _refreshed(weights, low)
    wide = arena.slot_dtype(p)
    change, new = g.astype(wide), ()  # of the rule "add", which follows a formula on whole arrays
    if not opt.composed:
        change, new = _computed(opt, kernel, settings, p.astype(wide), _clipped(change, settings), slots)
    delta = change.astype(p.dtype)
    at_random = opt._rounds_at_random and p.dtype.itemsize == 2
    added = added_at_random(p, change, parameter, int(settings[c.STEP])) if at_random else p + delta
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


def _part(array: Any, member: int, members: int) -> Any:
    """Returns a view of the part of an array that belongs to one member, and None for None."""
    return array if members == 1 or array is None else array[member : member + 1]


def _clipped(g: Any, settings: list[float]) -> Any:
    bound = settings[c.CLIP_VALUE]
    return (g * (settings[c.CLIP_FACTOR] * settings[c.GRADIENT_SCALE])).clip(-bound, bound)


def _cost(
    opt: Any, kernel: str, slots: list[list[Any]], grads: list[Any], outputs: list[Any] | None, preview: bool, members: int
) -> dict[str, Any] | None:
    """Returns the cost of a step by the formula of its kernel, whichever backend runs it; None for a rule without a kernel."""
    if kernel not in UPDATE_COUNTS:
        return None
    adds, multiplies, special, settings = UPDATE_COUNTS[kernel]
    figures = dict.fromkeys(("adds", "multiplies", "special_ops", "bytes_read", "bytes_written"), 0)
    for i, (p, low, g) in enumerate(zip(opt._weights(), opt._copies(), grads)):
        if g is None or not g.size:
            for figure in ("bytes_read", "bytes_written"):  # the clocks
                figures[figure] += 0 if preview else 8 * members
            continue
        averages = [] if preview or opt._averages is None else [opt._averages]
        slot_bytes = sum([slot[i].nbytes for slot in [*slots, *averages]])
        figures["adds"] += p.size * (adds + len(averages) + (outputs is not None))
        figures["multiplies"] += p.size * (multiplies + 2 * len(averages))
        figures["special_ops"] += p.size * special
        changed = p.nbytes + slot_bytes + (0 if low is None else low.nbytes)
        masked = opt._masks is not None and opt._masks[i] is not None
        figures["bytes_read"] += changed + members * c.BYTES + distinct_bytes(g) + (p.size if masked else 0)
        figures["bytes_written"] += (0 if preview else changed + 8 * members * settings) + (0 if outputs is None else p.nbytes)
    return {"dtype": opt._parameters[0].dtype, **figures}


def _measure_cost(opt: Any, kernel: str, slots: list[list[Any]], grads: list[Any], members: int) -> dict[str, Any] | None:
    if kernel not in UPDATE_COUNTS:
        return None
    adds, multiplies, special, _ = UPDATE_COUNTS[kernel]
    figures = dict.fromkeys(("adds", "multiplies", "special_ops", "bytes_read", "bytes_written"), 0)
    for i, (p, low, g) in enumerate(zip(opt._weights(), opt._copies(), grads)):
        if g is None or not g.size:
            continue
        figures["adds"] += p.size * (adds + 1)
        figures["multiplies"] += p.size * (multiplies + 2)
        figures["special_ops"] += p.size * special + 3 * members
        figures["bytes_read"] += p.nbytes + distinct_bytes(g) + sum([slot[i].nbytes for slot in slots]) + members * c.BYTES
        figures["bytes_read"] += 0 if low is None else low.nbytes
        figures["bytes_written"] += 8 * members
    return {"dtype": opt._parameters[0].dtype, **figures}


def _units_cost(grads: list[Any], members: bool) -> dict[str, Any]:
    given = [g for g in grads if g is not None and g.size]
    elements, units = sum([g.size for g in given]), sum([_unit_count(g, members) for g in given])
    moved = sum([g.nbytes for g in given])
    return {
        "adds": 2 * elements, "multiplies": 3 * elements + 2 * units, "special_ops": 3 * units,
        "dtype": given[0].dtype if given else "float32",
        "bytes_read": sum([distinct_bytes(g) for g in given]) + moved + 16, "bytes_written": moved,
    }


def _norm_cost(grads: list[Any], members: int, scaled: bool) -> dict[str, Any]:
    given = [g for g in grads if g is not None]
    elements, sets = sum([g.size for g in given]), members * len(grads)
    return {
        "adds": elements, "multiplies": elements + sets, "special_ops": members + sets, "dtype": "float64",
        "bytes_read": sum([distinct_bytes(g) for g in given]) + 16 * sets + 8 * scaled,
        "bytes_written": 16 * sets + (8 * sets + 4) * scaled,
    }
