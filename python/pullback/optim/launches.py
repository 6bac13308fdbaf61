"""The launches around the update of a rule, each declared once: its cost, and its definition in NumPy or CuPy, which has the name
and the arguments of its kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..backends.reference import distinct_bytes
from ..launch import capturing, door
from ..launch.refusal import Refused
from ..tensors import devices
from . import arena, sets as c
from .program import MEMBER, WATCH, Program, observe as observe_row

LEAST_NORM: Final = 1e-3  # the norm that the weights of a unit count with at least, so that weights of 0 can move
Check = Callable[[list[Any]], None]


def launch(
    cost: Callable[..., dict[str, Any]], opaque: str, instead: str = "Return the gradients, and call step() outside."
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that makes a launch from its definition: a function of the module of kernels, which is None without one,
    and of the arguments. It runs the definition where there is no kernel, or where the kernel refuses the arguments.

    The function's keyword `check` raises an error for the first argument, gradients that the definition cannot take.

    Args:
        cost: computes the cost from the arguments.
        opaque: the words for the definition in the error in a captured function. instead: those for what to do.
    """

    def decorate(definition: Callable[..., Any]) -> Callable[..., Any]:
        name = definition.__name__

        @functools.wraps(definition)
        def run(kernels: Any, *given: Any, check: Check | None = None) -> Any:
            if kernels is not None:
                try:
                    return getattr(kernels, name)(*given)
                except Refused:
                    pass
            if check is not None:
                check(given[0])
            capturing.refuse_opaque(opaque, instead)
            found: list[Any] = []
            with devices.working(next(devices.device_of(x) for x in given if hasattr(x, "strides"))):
                door.in_place(name, lambda: found.append(definition(*given)), lambda _: cost(*given))
            return found[0] if found else given[0]  # Under a dry ledger it does not run.

        return run

    return decorate


# ---- clipping


def _norm_cost(grads: list[Any], table: Any, members: int, scaler: Any) -> dict[str, Any]:
    given, scaled = [g for g in grads if g is not None], scaler is not None
    elements, sets = sum([g.size for g in given]), members * len(grads)
    return {
        "adds": elements, "multiplies": elements + sets, "special_ops": members + sets, "dtype": "float64",
        "bytes_read": sum([distinct_bytes(g) for g in given]) + 16 * sets + 8 * scaled,
        "bytes_written": 16 * sets + (8 * sets + 4) * scaled,
    }


@launch(_norm_cost, "an update without a native kernel")
def clip_norm(grads: list[Any], table: Any, members: int, scaler: Any) -> None:
    """Writes the joint norm of each member's gradients, and the factor that scales them, into all sets of the member.

    scaler: the numbers of the LossScaler of a scaled loss, or None. The factor that undoes its scale is written, too.
    """
    used = table[: members * len(grads)]
    for m in range(members):
        parts = [part(g, m, members).astype("float64") for g in grads if g is not None]
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


def part(array: Any, member: int, members: int) -> Any:
    """Returns a view of the part of an array that belongs to one member, and None for None."""
    return array if members == 1 or array is None else array[member : member + 1]


def _unscaling(scaler: Any, norm: float) -> float:
    """Returns the factor that undoes a scale, or 0 if the norm is not finite, and counts the step in the scaler's numbers."""
    overflow = not np.isfinite(norm)
    devices.write(scaler, scaler + devices.move(np.array([0, 0, overflow, 1, overflow], np.float32), devices.device_of(scaler)))
    return 0.0 if overflow else 1 / float(devices.move(scaler, "cpu")[0])


def _units_cost(grads: list[Any], weights: list[Any], table: Any, limit: Any, members: bool) -> dict[str, Any]:
    given = [g for g in grads if g is not None and g.size]
    elements, units = sum([g.size for g in given]), sum([_unit_count(g, members) for g in given])
    moved = sum([g.nbytes for g in given])
    return {
        "adds": 2 * elements, "multiplies": 3 * elements + 2 * units, "special_ops": 3 * units,
        "dtype": given[0].dtype if given else "float32",
        "bytes_read": sum([distinct_bytes(g) for g in given]) + moved + 16, "bytes_written": moved,
    }


@launch(_units_cost, "adaptive clipping without native kernels")
def clip_adaptive(grads: list[Any], weights: list[Any], table: Any, limit: Any, members: bool) -> list[Any]:
    """Returns the gradients, the norm of each unit scaled down to at most a share, in `limit`, of that of the unit's weights (Brock
    et al. 2021, eq. 3).

    The rows along the first axis of a parameter of two axes or more are units; a vector or a scalar is one unit, and each member
    has separate units. members: True if the first axis is that of the members.
    """
    scale, share = float(devices.move(table, "cpu")[0, c.GRADIENT_SCALE]), float(devices.move(limit, "cpu")[0])
    pairs = zip(weights, grads)
    return [_clipped_units(p, g, scale, share, members) if g is not None and g.size else g for p, g in pairs]


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


# ---- sets and schedules


def begin_step(settings: list[float], program: Program) -> None:
    """Begins the step of a set: writes its learning rate, and counts it. program: the rows after the sets, at present."""
    schedule = program.read(settings[c.SCHEDULE : c.HYPER]).schedule
    settings[c.RATE] = schedule.rate(int(settings[c.CLOCK])) * settings[c.RATE_SCALE]
    settings[c.STEP] += 1


@launch(lambda table, now, count: _moved(count * c.BYTES), "an update without a native kernel")
def begin_steps(table: Any, now: Any, count: int) -> None:
    """Writes the first `count` sets of a table into a copy of it, as they are after the next step has begun."""
    sets = np.array(devices.move(table, "cpu"))
    program = Program(sets[count:], 1, present=True)
    for settings in sets[:count]:
        advanced = settings.tolist()
        begin_step(advanced, program)
        settings[:] = advanced
    devices.write(now, devices.move(sets, devices.device_of(now)))


@launch(
    lambda table, metric, count, _: _moved((len(table) - count) * c.BYTES, metric.nbytes + 8), "observe without native kernels",
    "Observe outside.",
)
def observe(table: Any, metric: Any, count: int, members: int) -> None:
    """Moves the states of reduce-on-plateau in the rows after `count` sets by one observation of the metric,
    which has the shape () or (members,).
    """
    clock = float(devices.move(table[:1], "cpu")[0, c.CLOCK])
    rows, values = np.array(devices.move(table[count:], "cpu")), np.atleast_1d(devices.move(metric, "cpu"))
    for row in rows:
        if row[c.SCHEDULE] == WATCH and row[c.CLOCK] <= clock:
            observe_row(row, float(values[int(row[MEMBER]) if len(values) > 1 else 0]))
    devices.write(table[count:], devices.move(rows, devices.device_of(table)))


def _moved(count: int, more: int = 0) -> dict[str, Any]:
    return {"dtype": "float64", "bytes_read": count + more, "bytes_written": count}


@launch(
    lambda *_: {"dtype": "float32", "bytes_read": 16, "bytes_written": 12}, "scaling a loss without native kernels",
    "Call scaler.update() outside.",
)
def update_scale(scaler: Any, growth: float, backoff: float, interval: float) -> None:
    """Changes the scale of a LossScaler as csrc/math/settings.h does."""
    scale, good, skipped, checks, overflows = devices.move(scaler, "cpu").tolist()
    if not checks:
        return
    grows = not overflows and good + 1 >= interval
    with np.errstate(over="ignore"):
        new = np.float32(scale * (backoff if overflows else growth))
    if (overflows or grows) and np.finfo(np.float32).tiny <= new < np.inf:
        scale = float(new)
    found = np.array([scale, 0 if overflows or grows else good + 1, skipped, 0, 0], np.float32)
    devices.write(scaler, devices.move(found, devices.device_of(scaler)))
