"""An optimizer step in NumPy or CuPy, for rules and devices without a kernel. Apart from the rule's formula it does the same as
csrc/cpu/update.cpp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends.reference import distinct_bytes
from ..launch import door
from ..tensors import devices, dtypes
from . import sets as c
from ._counts import UPDATE_COUNTS

if TYPE_CHECKING:
    from .optimizer import Optimizer


def clip_norm(grads: list[Any], table: Any) -> None:
    """Writes the joint norm of each member's gradients, and the factor that scales them, into all sets of the member."""
    members = len(table) // len(grads)

    def clip() -> None:
        most = devices.move(table, "cpu")[:, c.CLIP_NORM]
        for m in range(members):
            parts = [_part(g, m, members).astype("float64") for g in grads if g is not None]
            norm = float(sum([float((g**2).sum()) for g in parts])) ** 0.5
            factor = float(most[m]) / (norm + 1e-6)
            table[m::members, c.GRADIENT_NORM] = norm
            table[m::members, c.CLIP_FACTOR] = 1.0 if factor > 1 else factor

    door.in_place("clip_norm", clip, lambda _: _norm_cost(grads, members))


def update(
    opt: Optimizer, kernel: str, slots: list[list[Any]], grads: list[Any], table: Any, outputs: list[Any] | None, preview: bool
) -> None:
    """Does what opt's kernel would do. `kernel` is "" for a rule without one. Writes the changes into `outputs` if given."""
    members = len(table) // len(grads)

    def run() -> None:
        sets = devices.move(table, "cpu")
        for i, (p, g) in enumerate(zip(opt.parameters, grads)):
            if g is None or not g.size:
                if not preview:
                    table[i * members : (i + 1) * members, c.CLOCK] += 1
                continue
            for m in range(members):
                row = i * members + m
                settings = sets[row].tolist()
                opt.advance(settings)
                tensors = [p.array, g, *[slot[i] for slot in slots], *([] if outputs is None else [outputs[i]])]
                _update_part(opt, settings, [_part(x, m, members) for x in tensors], preview)
                settings[c.CLOCK] += 1
                if not preview:
                    devices.write(table[row], devices.move(np.array(settings), devices.device_of(table)))

    door.in_place(kernel or type(opt).__name__, run, lambda _: _cost(opt, kernel, slots, grads, outputs, preview, members))


def _update_part(opt: Optimizer, settings: list[float], tensors: list[Any], preview: bool) -> None:
    """Updates one member of a parameter. tensors: the weights, the gradient, the slots, and the output for the change, if any."""
    p, g, *rest = tensors
    slots, outputs = rest[: len(opt.slot_names)], rest[len(opt.slot_names) :]
    wide = dtypes.float32 if p.dtype.itemsize == 2 else p.dtype
    g = _clipped(g.astype(wide), settings)
    delta = opt.change(settings, p.astype(wide), g, [slot.copy() if preview else slot for slot in slots]).astype(p.dtype)
    for output in outputs:
        output[...] = delta
    if not preview:
        p[...] = p + delta


def _part(array: Any, member: int, members: int) -> Any:
    """Returns a view of the part of an array that belongs to one member."""
    return array if members == 1 else array[member : member + 1]


def _clipped(g: Any, settings: list[float]) -> Any:
    bound = settings[c.CLIP_VALUE]
    return (g * settings[c.CLIP_FACTOR]).clip(-bound, bound)


def _cost(
    opt: Optimizer, kernel: str, slots: list[list[Any]], grads: list[Any], outputs: list[Any] | None, preview: bool, members: int
) -> dict[str, Any] | None:
    """Returns the cost of a step by the formula of its kernel, whichever backend runs it; None for a rule without a kernel."""
    if kernel not in UPDATE_COUNTS:
        return None
    adds, multiplies, special = UPDATE_COUNTS[kernel]
    figures = dict.fromkeys(("adds", "multiplies", "special_ops", "bytes_read", "bytes_written"), 0)
    for i, (p, g) in enumerate(zip(opt.parameters, grads)):
        if g is None or not g.size:
            for figure in ("bytes_read", "bytes_written"):  # the clocks
                figures[figure] += 0 if preview else 8 * members
            continue
        slot_bytes = sum([slot[i].nbytes for slot in slots])
        figures["adds"] += p.size * (adds - preview)  # a preview does not add the delta to the weight
        figures["multiplies"] += p.size * multiplies
        figures["special_ops"] += p.size * special
        figures["bytes_read"] += p.nbytes + distinct_bytes(g) + slot_bytes + members * c.BYTES
        figures["bytes_written"] += (0 if preview else p.nbytes + slot_bytes + members * c.BYTES) + (
            0 if outputs is None else p.nbytes
        )
    return {"dtype": opt.parameters[0].dtype, **figures}


def _norm_cost(grads: list[Any], members: int) -> dict[str, Any]:
    given = [g for g in grads if g is not None]
    elements, sets = sum([g.size for g in given]), members * len(grads)
    return {
        "adds": elements, "multiplies": elements, "special_ops": members + sets, "dtype": "float64",
        "bytes_read": sum([distinct_bytes(g) for g in given]) + 8 * sets, "bytes_written": 16 * sets,
    }  # fmt: skip
