"""Texts of a tape's errors. Each names the value, the op and the line, and says what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from ..duck import attribute
from ..errors import an
from ..interop.wrong_calls import public_name
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from .node import all_kept, dependents, named
from .site import NOWHERE, line_of

if TYPE_CHECKING:
    from .primitive import Op
    from .tape import Tape

IF_MEANT: Final = '. Pass unconnected="zero" or "none" where that is meant.'
MINIMIZE_IF_MEANT: Final = (
    ". Where that is meant, compute the loss inside `with pb.GradientTape() as tape:` and call "
    'opt.step(tape.gradient(loss, opt.parameters, unconnected="none")), which leaves such a Parameter alone.'
)

# The ways in which a value leaves pullback as numbers to compute with. Showing or testing a value (repr(), bool(), …) does not
# belong here, and neither does stop_gradient, whose name says that gradients stop.
NUMBERS: Final = frozenset((
    "numpy()", "item()", "tolist()", "int()", "float()", "complex()", "np.asarray()", "__dlpack__()", "__cuda_array_interface__",
    "pickling",
))
STOPPED: Final = frozenset(("stop_gradient",))  # cuts that the user asked for


def op_at(op: Op, site: Any) -> str:
    return f"{op.name}, recorded at {line_of(site)}"


def name_of(x: Any) -> str:
    return x.label() if isinstance(x, Parameter) else f"the tensor of shape {x.shape}"


def missing(tape: Tape, targets: list[Any], sources: list[Any]) -> str:
    """Returns the text of an UnconnectedError: why the target does not depend on each source that is not None."""
    named = [(i, unconnected(tape, x)) for i, x in enumerate(sources) if x is not None]
    lines = [f"gradient: the target does not depend on source {i}, {words}" for i, words in named]
    if not any([y.serial in tape.values for y in targets]):
        where = f" (the `with` at {line_of(tape.journal.entered)})" if tape.journal.entered else ""
        lines.append(
            f"The target is not on the tape: it was computed after the tape{where} had stopped, in another thread than the one "
            f"that entered it, or from nothing that it watches. Compute it inside; y[i] in the call of gradient is an op, too"
        )
    return ".\n".join(lines) + IF_MEANT


def unconnected(tape: Tape, x: Any) -> str:
    """Returns the name of a source that the target does not depend on, with the reason or the line where the path was cut."""
    line = name_of(x)
    if x.serial not in tape.values:
        frozen = isinstance(x, Parameter) and not x.trainable
        line += (
            " (it is not trainable)" if frozen
            else " (it was not used while the tape recorded" + _views_before(x) + ")" if isinstance(x, Parameter)
            else ": it was not watched while the tape recorded; call tape.watch(t) before using it"
        )
    elif x.serial in tape.journal.watched and not any([x.serial in node.inputs for node in named(tape.nodes)]):
        line += f": it was watched at {line_of(tape.journal.watched[x.serial])}, and no op that was recorded used it after that"
        before = [op_at(node.op, node.site) for node in named(tape.nodes) if any([value is x for value in all_kept([node])])]
        line += f"; {', '.join(before)}, used it before. Call tape.watch(t) first" if before else ""
    reach = dependents(tape, [x.serial])
    return line + _cut_by([(how, site) for serial, how, site in tape.journal.cuts if serial in reach])


def _cut_by(cuts: Iterable[tuple[str, Any]]) -> str:
    found = dict.fromkeys([f"{how} at {line_of(site)}" for how, site in cuts])
    return f"; the path was cut by {', and by '.join(found)}" if found else ""


def as_numbers(tape: Tape, x: Any) -> list[tuple[str, Any]]:
    """Returns the sites where a source, or a value computed from it, left pullback as numbers to compute with."""
    reach = dependents(tape, [x.serial]) if tape.journal.cuts else ()
    return [(how, site) for serial, how, site in tape.journal.cuts if how in NUMBERS and serial in reach]


def silent_zeros(tape: Tape, missing: list[Tensor]) -> list[str]:
    """Returns a transform's warnings of zero derivatives that may not be meant. `missing`: the tensors that get the zeros.

    A transform returns zeros if the function does not depend on an argument. It may depend on it through numbers that left
    pullback, or compute with something else that should have been the argument. A single tensor that a function does not use is
    common in a tree of them, so only arguments that do not reach the value with any of their tensors are named.
    """
    numbers = [(x, cuts) for x in missing if (cuts := as_numbers(tape, x))]
    told = tape.left is not None and tape.left.warned  # where the numbers came back
    found = [] if told else [silent_zero(name_of(x), cuts) for x, cuts in numbers]
    left, serials = {x.serial for x, _ in numbers}, {x.serial for x in missing}
    for name, leaves in (tape.journal.arguments or dict)().items():
        if not leaves or not leaves <= serials or not leaves.isdisjoint(left):
            continue
        reach = dependents(tape, leaves)
        cuts = [(how, site) for serial, how, site in tape.journal.cuts if serial in reach]
        taken = tape.journal.derivatives
        constant = [True for values, found in taken if values & reach and any([reach.isdisjoint(g) for g in found])]
        if not constant and not any([how in STOPPED for how, _ in cuts]):
            found.append(unused(name, cuts, used=len(reach) > len(leaves)))
    return found


def silent_zero(name: str, cuts: Iterable[tuple[str, Any]]) -> str:
    """Returns the warning of a zero derivative by a value that left pullback as numbers."""
    return (
        f"the function's value does not depend on {name}{_cut_by(cuts)}. Its derivative is zero, and not that of the numbers that "
        f"left there. Compute with pb's functions, or wrap what is outside of pullback in pb.black_box."
    )


def unused(name: str, cuts: Iterable[tuple[str, Any]] = (), *, used: bool = False) -> str:
    """Returns the warning of an argument that the value does not depend on. `used`: an op used it, but the value not the op."""
    how = _cut_by(cuts) or ("; ops used it, and nothing that they returned reached the value" if used else "; no op used it")
    return (
        f"the function's value does not depend on {name}{how}. Its derivative is zero. Differentiate by what the function computes "
        f"with (net.parameters() for a Module), or let it compute with the argument that it receives."
    )


def _views_before(p: Parameter) -> str:
    """Returns a hint that a view may have been used instead of the Parameter, or "" if the Parameter has no living views."""
    if not p.storage.views:
        return ""
    return "; a view of it that was taken before, p.T as an attribute for example, has no gradient: take the view inside"


def not_watched(x: Any) -> str:
    """Returns why a tape cannot watch x, which is not a floating-point tensor, and what to do."""
    if isinstance(x, Tensor):
        return (
            f"watch: only floating-point tensors have gradients, this is a tensor of dtype {x.dtype}. Convert it with "
            f".astype(pb.float32) before."
        )
    return f"watch: only floating-point tensors have gradients, this is {an(x)}. {instead_of(x)}"


def instead_of(x: Any) -> str:
    """Returns a sentence that says what to pass instead of x, which is not a tensor."""
    if isinstance(x, str):
        return "Give the tensor itself and not its name, such as net.weight, or net.parameters() for all Parameters of a Module."
    parameters = attribute(x, "parameters", None)
    if parameters is not None:
        return f"Give its Parameters: {'module.parameters()' if callable(parameters) else 'opt.parameters'}."
    if callable(x):
        return "Give what it returns, a tensor."
    return "Make it a tensor with pb.tensor(..., dtype=pb.float32), and watch that."


def stale(op: Op, site: Any, storage: Any, version: int) -> str:
    return (
        f"gradient: {storage.label()} was changed in place after the forward pass (version {version} then, {storage.version} now), "
        f"but the pullback of {op_at(op, site)}, needs the old value. Take the gradient before the update, or run the forward pass "
        f"again."
    )


def zero(tape: Tape, x: Any) -> str:
    """Returns the warning of a source that the target depends on only through zero derivatives."""
    reach = dependents(tape, [x.serial])
    nodes = [node for node in named(tape.nodes) if not reach.isdisjoint([node.inputs[i] for i in node.op.dead])]
    origins = [tape.dead.get(node.y, NOWHERE) for node in nodes]
    ends = "; ".join(dict.fromkeys([
        f"the derivative of {op_at(*origin.pulled)}" if origin.pulled
        else f"{public_name(origin.codes) or node.op.name}, recorded at {line_of(node.site)}"
        for node, origin in zip(nodes, origins)
    ]))
    second = any([not reach.isdisjoint(values) for values, _ in tape.journal.derivatives])
    return f"{name_of(x)} reaches the target only through steps whose derivative is zero everywhere ({ends}): its gradient is " + (
        "zero, because it is the second derivative of a function of straight pieces."
        if second
        else "zero, and nothing will be learned from it. pb.straight_through(f) lets gradients pass."
    )
