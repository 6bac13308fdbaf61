"""A step in NumPy or CuPy, for rules and devices without a kernel. What surrounds a rule's formula is as in csrc/cpu/update.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..backends.reference import distinct_bytes
from ..launch import door
from . import arena, control as c
from ._counts import UPDATE_COUNTS

if TYPE_CHECKING:
    from .optimizer import Optimizer


def clip_norm(grads: list[Any], control: Any, most: float) -> None:
    """Writes the joint norm of the gradients, and the factor that scales it to `most`, into the control block."""

    def clip() -> None:
        norm = float(sum([float((g.astype("float64") ** 2).sum()) for g in grads if g is not None])) ** 0.5
        control[c.GRADIENT_NORM] = norm
        factor = most / (norm + 1e-6)
        control[c.CLIP_FACTOR] = 1.0 if factor > 1 else factor

    door.in_place("clip_norm", clip, lambda _: _norm_cost(grads))


def update(
    opt: Optimizer, kernel: str, slots: list[list[Any]], grads: list[Any], control: Any, outputs: list[Any] | None, preview: bool
) -> None:
    """Does what opt's kernel would do; kernel is "" for a rule without one. Writes the deltas into the outputs, if any."""

    def run() -> None:
        opt.advance(control)
        for i, (p, g) in enumerate(zip(opt.parameters, grads)):
            if g is None:
                continue
            g = _clipped(g.astype(arena.slot_dtype(p)), control)
            own = [slot[i].copy() if preview else slot[i] for slot in slots]
            delta = opt.change(control, p.array.astype(g.dtype), g, own).astype(p.dtype)
            if outputs is not None:
                outputs[i][...] = delta
            if not preview:
                p.array[...] = p.array + delta

    door.in_place(kernel or type(opt).__name__, run, lambda _: _cost(opt, kernel, slots, grads, outputs, preview))


def _clipped(g: Any, control: Any) -> Any:
    bound = float(control[c.CLIP_VALUE])
    return (g * float(control[c.CLIP_FACTOR])).clip(-bound, bound)


def _cost(
    opt: Optimizer, kernel: str, slots: list[list[Any]], grads: list[Any], outputs: list[Any] | None, preview: bool
) -> dict[str, Any] | None:
    """Returns the cost of a step as its kernel states it, whichever backend runs it; None for a rule without a kernel."""
    if kernel not in UPDATE_COUNTS:
        return None
    adds, multiplies, special = UPDATE_COUNTS[kernel]
    figures = dict.fromkeys(("adds", "multiplies", "special_ops"), 0)
    figures |= {"bytes_read": c.BYTES, "bytes_written": 0 if preview else c.BYTES}
    for i, (p, g) in enumerate(zip(opt.parameters, grads)):
        if g is None:
            continue
        slot_bytes = sum([slot[i].nbytes for slot in slots])
        figures["adds"] += p.size * (adds - preview)  # a preview does not add the delta to the weight
        figures["multiplies"] += p.size * multiplies
        figures["special_ops"] += p.size * special
        figures["bytes_read"] += p.nbytes + distinct_bytes(g) + slot_bytes
        figures["bytes_written"] += (0 if preview else p.nbytes + slot_bytes) + (0 if outputs is None else p.nbytes)
    return {"dtype": opt.parameters[0].dtype, **figures}


def _norm_cost(grads: list[Any]) -> dict[str, Any]:
    given = [g for g in grads if g is not None]
    elements = sum([g.size for g in given])
    return {
        "adds": elements, "multiplies": elements, "special_ops": 2, "dtype": "float64",
        "bytes_read": sum([distinct_bytes(g) for g in given]), "bytes_written": 16,
    }  # fmt: skip
