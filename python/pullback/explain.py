"""The words of a tape's errors: which value, which op, which line, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .site import line_of
from .tensor import Parameter

if TYPE_CHECKING:
    from .primitive import Op
    from .tape import GradientTape


def op_at(op: Op, site: Any) -> str:
    return f"{op.name}, recorded at {line_of(site)}"


def name_of(x: Any) -> str:
    return x.label() if isinstance(x, Parameter) else f"the tensor of shape {x.shape}"


def missing(tape: GradientTape, sources: list[Any]) -> str:
    """For each source that is not None: that the target does not depend on it, and where the path was cut."""
    named = [(i, unconnected(tape, x)) for i, x in enumerate(sources) if x is not None]
    lines = [f"gradient: the target does not depend on source {i}, {words}" for i, words in named]
    return ".\n".join(lines) + '. Say unconnected="zero" or "none" where that is meant.'


def unconnected(tape: GradientTape, x: Any) -> str:
    """The name of a source that the target does not depend on, and where the path was cut."""
    from .sweep import dependents

    line = name_of(x)
    if x.serial not in tape.values:
        frozen = isinstance(x, Parameter) and not x.trainable
        line += (
            " (it is not trainable)" if frozen
            else " (it was not used while the tape recorded)" if isinstance(x, Parameter)
            else ": it was not watched while the tape recorded; call tape.watch(t) before using it"
        )  # fmt: skip
    reach = dependents(tape, [x.serial])
    cuts = [f"{how} at {line_of(site)}" for serial, how, site in tape.cuts if serial in reach]
    return line + (f"; the path was cut by {', and by '.join(cuts)}" if cuts else "")


def stale(op: Op, site: Any, storage: Any, version: int) -> str:
    name = f'Parameter "{storage.name}"' if storage.name else "a Parameter without a name"
    return (
        f"gradient: {name} was changed in place after the forward pass (version {version} then, {storage.version} now), but "
        f"the pullback of {op_at(op, site)}, needs the old value. Take the gradient before the update, or run the forward pass "
        f"again."
    )


def zero(tape: GradientTape, x: Any) -> str:
    from .sweep import dependents

    reach = dependents(tape, [x.serial])
    ops = [op_at(op, site) for op, _, inputs, _, _, *site in tape.nodes if not reach.isdisjoint([inputs[i] for i in op.dead])]
    return (
        f"{name_of(x)} reaches the target only through ops whose derivative is zero everywhere ({'; '.join(ops)}): its "
        f"gradient is zero, and nothing will be learned from it. pb.straight_through(f) lets gradients pass."
    )
