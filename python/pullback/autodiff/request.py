"""What a call that asks a tape for gradients is checked for: its targets, seeds and sources, and whether they are connected."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

from ..errors import ShapeError, StaleValueError, TapeError, UnconnectedError, ZeroGradientWarning, an
from ..launch import capturing
from ..tensors import creation
from ..tensors.operand import own
from ..tensors.tensor import Tensor
from . import error_text
from .node import dependents, needed_by
from .site import warn

if TYPE_CHECKING:
    from .primitive import Op
    from .tape import Tape


def refuse_outside(tape: Tape, what: str) -> None:
    """Raises CaptureError in a captured function that the tape is outside of: each call has other values inside."""
    if tape.recording is not capturing.thread.recording:
        capturing.refuse(f"{what} on a tape from outside", "Make the tape inside the function, or call it outside.")


def check_not_consumed(tape: Tape, asked: str) -> None:
    """Raises TapeError if the tape has been used up."""
    if tape.consumed:
        raise TapeError(
            f"{asked}: this tape has been used and has freed what it kept. For several calls make it with "
            f"pb.GradientTape(persistent=True)."
        )


def ready(tape: Tape, unconnected: str) -> str:
    """Returns `unconnected`. Raises TapeError if the tape has been used up, or if `unconnected` is not a valid choice."""
    if unconnected not in ("error", "zero", "none"):
        raise TapeError(f'gradient: unconnected={unconnected!r}; use "error", "zero" or "none".')
    check_not_consumed(tape, "gradient")
    return unconnected


def open_calls(tape: Tape) -> None:
    """Replaces the calls of captured functions on a tape by the ops inside them, so that each op can be looked at."""
    calls = [op.call for op, *_ in tape.nodes if op.call is not None and op.call.captured]
    if calls:
        calls[0].open(tape)


# ---- targets


def seeds_for(targets: list[Any], given: list[Any]) -> list[Tensor]:
    """Returns the cotangent of each target: the given one, or else 1, which only a scalar target allows."""
    if not targets:
        raise TapeError(
            "gradient: there is no target; it is None, or has no tensor in it. Does the function that computes it lack a return?"
        )
    if len(given) == 1 and given[0] is None:
        given = [None] * len(targets)
    if len(given) != len(targets):
        raise TapeError(f"gradient: {len(targets)} target(s), but {len(given)} output_gradients. Give one per target.")
    return [_seed(t, g) for t, g in zip(targets, given)]


def _seed(target: Any, given: Any) -> Tensor:
    checked_target(target)
    if given is None:
        if target.array.size != 1:
            raise TapeError(
                f"gradient: the target has shape {target.shape}, and the gradient of a tensor that is not a scalar is not "
                f"defined. Either sum it first (pb.sum), or ask for all of it (tape.jacobian), or say which combination of "
                f"its elements is meant (output_gradients=, of the target's shape)."
            )
        return creation.ones_like(target)
    seed = own(given, dtype=target.dtype, device=target.device)
    if seed.shape != target.shape:
        raise ShapeError(f"gradient: output_gradients has shape {seed.shape}, its target {target.shape}. They must be equal.")
    return seed


def checked_target(target: Any, what: str = "gradient") -> Tensor:
    if not isinstance(target, Tensor):
        raise TapeError(
            f"{what}: a target is {an(target)}, not a tensor, so it cannot be on a tape. Give what was computed under the tape, "
            f"such as the loss."
        )
    return target


# ---- sources


def checked(sources: list[Any], what: str = "gradient") -> list[Tensor]:
    for x in sources:
        if not isinstance(x, Tensor):
            raise TapeError(f"{what}: a source is {an(x)}, not a tensor. {error_text.instead_of(x)}")
    return sources


def connected(
    tape: Tape, targets: list[Tensor], sources: list[Any], unconnected: str, needed: Set[int] | None = None
) -> tuple[set[int], set[int], set[int]]:
    """Returns three sets of serials: the sources, all values whose cotangents are needed, the sources that no target depends on.

    needed: the result of `needed_by`, if the caller has it already.

    Raises UnconnectedError for a source that no target depends on, if `unconnected` is "error". Warns of sources that are
    reached only through zero derivatives. A transform returns zeros for an unconnected source, so on its tape also warns of
    such sources whose values left the function as numbers, and of arguments that do not reach the value with any of their tensors.
    """
    for y in targets:
        tape.knows(y)  # from now on, if it is a Parameter that no op used
    serials = {x.serial for x in checked(sources)}
    reach = reachable(tape, serials)
    # No cotangent reaches a blocked source: the targets do not depend on it, or only through zero derivatives. With one
    # source and no hooks, `reach` holds the values that depend on this source, so if a target is in it, nothing is blocked.
    certain = needed is None and len(serials) == 1 and not tape.hooks and targets[0].serial in reach
    blocked: set[int] = set() if certain else serials.difference(needed_by(tape, targets) if needed is None else needed)
    missing: set[int] = blocked and blocked - needed_by(tape, targets, through_zero=True)
    if missing and unconnected == "error":
        raise UnconnectedError(error_text.missing(tape, targets, [x if x.serial in missing else None for x in sources]))
    for x in sources:
        if x.serial in blocked and x.serial not in missing:
            warn(error_text.zero(tape, x), ZeroGradientWarning)
    if missing and tape.journal.arguments is not None:
        for text in error_text.silent_zeros(tape, [x for x in sources if x.serial in missing]):
            warn(text, ZeroGradientWarning)
    return serials, reach, missing


def reachable(tape: Tape, serials: set[int]) -> set[int]:
    """Returns the values whose cotangents are needed: every recorded value, if every watched leaf is a source."""
    if tape.leaves.keys() <= serials and not tape.dead:
        return tape.values
    return dependents(tape, [*serials, *tape.hooks])


def check_versions(op: Op, versions: Sequence[Any], site: Any) -> None:
    for storage, version in versions:
        if storage.version != version:
            raise StaleValueError(error_text.stale(op, site, storage, version))
