"""The gradients of several targets: an op is pulled back at once for all targets that depend on it, and for no others.

If values are large, the targets are pulled back one after another instead, so that each op reads the result of the one before
it from the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from ..autodiff.backward import Sums, run_hooks, total, walk
from ..autodiff.batching import Batch, Batched
from ..autodiff.journal import note_derivative
from ..autodiff.listeners import listeners
from ..autodiff.node import all_kept, live, named
from ..autodiff.request import connected, open_calls
from ..errors import TapeError
from ..launch import capturing
from ..ops.by_name import of_all, reshaped, view
from ..ops.movement import joined
from ..ops.shape import SLICE
from ..tensors.creation import ones_like, zeros_like
from ..tensors.tensor import Tensor
from ..tree import flatten, unflatten
from .calls import Cotangents

if TYPE_CHECKING:
    from ..autodiff.node import Recorded
    from ..autodiff.tape import Tape

# A mask is an int whose bit k stands for target k. Its cotangents are one tensor with a first axis over its targets in the order of
# their bits, or without this axis if there is only one target.
Masked = tuple[int, Any]
LARGE_BYTES: Final = 1 << 18  # bytes of one value's cotangents for all targets: more do not stay in the cache from op to op
_ALONE: Final = nullcontext()


def tape_gradients(tape: Tape, targets: Any, sources: Any, unconnected: str) -> Any:
    """Implements tape.gradients."""
    (of, form), (by, spec) = flatten(targets), flatten(sources)
    for y in of:
        if not isinstance(y, Tensor) or y.size != 1:
            raise TapeError(
                f"gradients: a target is {f'of shape {y.shape}' if isinstance(y, Tensor) else f'a {type(y).__name__}'}; each "
                f"must be a scalar tensor. Sum it, or ask for tape.jacobian."
            )
    rows = tape.run_backward(lambda free: _sweep(tape, of, by, unconnected, free))
    note_derivative(of, [g for row in rows for g in row])
    return unflatten(form, [unflatten(spec, row) for row in rows])


def _sweep(tape: Tape, targets: list[Tensor], sources: list[Any], unconnected: str, free: bool) -> list[Any]:
    """Returns for each target the gradient of each source."""
    open_calls(tape)
    masks, groups = _shared_by(tape, targets)
    serials, reach, missing = connected(tape, targets, sources, unconnected, masks.keys())
    seeds = {(y.shape, y.dtype, y.device): y for y in targets}
    seeds = {alike: ones_like(y) for alike, y in seeds.items()}
    begun = [{y.serial: [(1 << k, seeds[y.shape, y.dtype, y.device])]} if y.serial in reach else {} for k, y in enumerate(targets)]
    tape.consumed, nodes = free, tape.nodes
    if free:
        tape.nodes = []
    if _largest(nodes) * len(targets) > LARGE_BYTES:
        groups.clear()  # the groups hold references to the nodes, too
        for k, cotangents in enumerate(begun):
            last = k + 1 == len(begun)
            _walk(tape, 1 << k, nodes if free and last else nodes[:], cotangents, reach, serials)
        return _rows(tape, targets, sources, _joined(begun), missing if unconnected == "none" else ())
    cotangents = _joined(begun)
    del nodes
    for mask in sorted(groups, key=int.bit_count):  # consumers first: their masks are subsets
        _walk(tape, mask, groups.pop(mask), cotangents, reach, serials)
    return _rows(tape, targets, sources, cotangents, missing if unconnected == "none" else ())


def _shared_by(tape: Tape, targets: Sequence[Tensor]) -> tuple[dict[int, int], dict[int, list[Recorded]]]:
    """Returns two dicts: serial -> mask, whose bit k is set if target k depends on the value; mask -> nodes of such outputs."""
    masks: dict[int, int] = {}
    for k, y in enumerate(targets):
        if tape.knows(y):
            masks[y.serial] = masks.get(y.serial, 0) | 1 << k
    groups: dict[int, list[Recorded]] = {}
    for node in reversed(tape.nodes):
        op, y, inputs, *_ = node
        mask = masks.get(y)
        if mask is not None:
            groups.setdefault(mask, []).append(node)
            for x in live(op, inputs) if op.dead else inputs:
                masks[x] = masks.get(x, 0) | mask
    for nodes in groups.values():
        nodes.reverse()
    return masks, groups


def _joined(several: list[dict[int, list[Masked]]]) -> dict[int, list[Masked]]:
    """Returns the masked cotangents of several walks together, by the serials of the values."""
    found: dict[int, list[Masked]] = {}
    for cotangents in several:
        for serial, of in cotangents.items():
            found.setdefault(serial, []).extend(of)
    return found


def _walk(
    tape: Tape, mask: int, nodes: list[Recorded], cotangents: dict[int, list[Masked]], reach: set[int], sources: set[int]
) -> None:
    """Pulls the cotangents for all targets of the mask back through the nodes at once."""
    sums = Sums("accumulate")
    with Batch(mask.bit_count(), directions=True) if mask & (mask - 1) else _ALONE as batch:
        for serial in [node.y for node in named(nodes) if node.y in cotangents]:
            whole = _whole(mask, cotangents.pop(serial))
            sums.of[serial] = whole if batch is None else _of_each(whole, lambda g: Batched(batch, g))
        walk(tape, nodes, reach, sources, sums)
    for serial, g in sums.of.items():
        found = total(g)
        cotangents.setdefault(serial, []).append((mask, found if batch is None else _of_each(found, lambda g: of_all(g, batch))))


def _largest(nodes: list[Recorded]) -> int:
    """Returns the bytes of the largest kept value: a cotangent takes about as many."""
    return max([value.array.nbytes for value in all_kept(nodes) if isinstance(value, Tensor)], default=0)


def _of_each(g: Any, f: Callable[[Tensor], Tensor]) -> Any:
    """Returns f(g), or if g is the cotangent of a call, f of the cotangent of each output."""
    return Cotangents({place: f(x) for place, x in g.of.items()}) if isinstance(g, Cotangents) else f(g)


def _bits(mask: int) -> list[int]:
    return [k for k in range(mask.bit_length()) if mask >> k & 1]


def _whole(mask: int, cotangents: list[Masked]) -> Any:
    """Returns the cotangents for all targets of the mask as one tensor.

    If the targets of the masked cotangents, in order, are exactly those of the mask, the cotangents are concatenated. Otherwise
    they are summed for each target, with zeros for a target that has none.
    """
    if len(cotangents) == 1 and cotangents[0][0] == mask:
        return cotangents[0][1]
    if isinstance(cotangents[0][1], Cotangents):
        places = {place: None for _, g in cotangents for place in g.of}
        return Cotangents({place: _whole(mask, [(own, g.of[place]) for own, g in cotangents if place in g.of]) for place in places})
    cotangents = sorted(cotangents, key=lambda masked: masked[0] & -masked[0])
    if [k for own, _ in cotangents for k in _bits(own)] != _bits(mask):
        rows = _each(cotangents)
        zero = zeros_like(next(iter(rows.values())))
        cotangents = [(1 << k, rows.get(k, zero)) for k in _bits(mask)]
    if len(cotangents) == 1:
        return cotangents[0][1]
    return joined([g if own & (own - 1) else reshaped(g, (1, *g.shape)) for own, g in cotangents], 0)


def _each(cotangents: list[Masked]) -> dict[int, Tensor]:
    """Returns the sum of the cotangents for each target, in the order of the targets."""
    if len(cotangents) == 1 and cotangents[0][0] & (cotangents[0][0] - 1):
        return dict(zip(_bits(cotangents[0][0]), _slices(cotangents[0][1])))
    found: dict[int, Tensor] = {}
    for mask, g in cotangents:
        for k, row in zip(_bits(mask), _slices(g) if mask & (mask - 1) else (g,)):
            found[k] = found[k] + row if k in found else row
    return dict(sorted(found.items()))


def _slices(x: Tensor) -> list[Tensor]:
    """Returns the slices along the first axis."""
    if listeners.record is None and x.__class__ is Tensor and x.storage is None and capturing.thread.recording is None:
        rows = x.array if x.array.ndim > 1 else [x.array[k, ...] for k in range(x.array.shape[0])]
        return [Tensor(row) for row in rows]  # there are no listeners
    return [view(SLICE, x, (k,)) for k in range(x.shape[0])]


def _rows(
    tape: Tape, targets: list[Tensor], sources: list[Any], cotangents: dict[int, list[Masked]], missing: Sequence[int] | set[int]
) -> list[list[Any]]:
    """Returns for each target the gradient of each source: zeros if the target does not depend on it, None if it is missing."""
    columns: list[list[Any]] = []
    for x in sources:
        own = cotangents.get(x.serial, [])
        if own and x.serial in tape.leaves and x.serial in tape.hooks:
            own = [_shown(tape.hooks[x.serial], own)]
        of = _each(own)
        columns.append(
            list(of.values())
            if len(of) == len(targets)
            else [of[k] if k in of else None if x.serial in missing else zeros_like(x) for k in range(len(targets))]
        )
    return [[column[k] for column in columns] for k in range(len(targets))]


def _shown(hooks: Sequence[Any], cotangents: list[Masked]) -> Masked:
    """Runs the hooks of a leaf on its complete gradient, and returns the result with one mask."""
    mask = 0
    for own, _ in cotangents:
        mask |= own
    g = _whole(mask, cotangents)
    if not mask & (mask - 1):
        return mask, run_hooks(hooks, g)
    with Batch(mask.bit_count(), directions=True) as batch:
        return mask, of_all(run_hooks(hooks, Batched(batch, g)), batch)
