"""jvp, linearize, hvp: forward mode. Each value carries its tangent, and nothing is recorded."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from ..autodiff import error_text
from ..autodiff.journal import note_derivative
from ..autodiff.kept import Listening
from ..autodiff.listeners import listeners, new_serial
from ..autodiff.primitive import ZERO
from ..autodiff.returned import note
from ..autodiff.site import Site, call_site, warn
from ..autodiff.tape import Tape
from ..errors import ShapeError, TapeError, ZeroGradientWarning
from ..interop.wrong_calls import flag
from ..launch import door
from ..ops.conversion import alias
from ..tensors.creation import asarray, zeros_like
from ..tensors.tensor import Tensor
from ..tree import beside, flatten, unflatten
from ..typing import R, SupportsArray, X
from .linearity import Transposing
from .vjp import check_function, gradient_of, like, name_of, pulled_back, variables_of, with_aux

if TYPE_CHECKING:
    from ..autodiff.primitive import Op

A = TypeVar("A")


class Forward(Listening):
    """A listener that computes the tangents of values, and keeps each tangent as long as its value lives.

    Attributes:
        bytes: the total bytes of all tangents so far.
        used: True if an op read a value with a tangent, if a result has one, or if one left as a number.
    """

    def __init__(self) -> None:
        self._tangents: dict[int, tuple[Tensor, Any]] = {}
        self._cuts: list[tuple[str, Site]] = []  # the sites where values with a tangent left as numbers
        self.bytes = 0
        self.used = False

    def give(self, x: Tensor, tangent: Tensor) -> None:
        """Sets the tangent of x."""
        if not x.serial:
            x.serial = new_serial()
        self.bytes += tangent.array.nbytes
        serial, tangents = x.serial, self._tangents
        # The callback is not a Python function, because Ctrl-C inside it would be lost. `pop` receives the weak reference as its
        # default value.
        tangents[serial] = (tangent, weakref.ref(x, partial(tangents.pop, serial)))

    def living(self) -> list[Tensor]:
        """Returns the values that have a tangent."""
        return [x for _, found in list(self._tangents.values()) if (x := found()) is not None]

    def knows(self, x: Any) -> bool:
        """True if x has a tangent."""
        return self.of(x) is not None

    def of(self, x: Any) -> Tensor | None:
        """Returns the tangent of x; None stands for zero."""
        found = self._tangents.get(x.serial) if x.serial else None
        return found[0] if found is not None else None

    def add(self, op: Op, y: Tensor, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        """Computes the tangent of y. This listener and those inside it do not receive the ops of the computation."""
        tangents = [self.of(x) for x in inputs]
        moves = any([t is not None for t in tangents])
        if self.left is not None:
            self.left.meet(op, y, inputs, moves)
        self.used = self.used or moves
        if op.pullback is None or op.pullback is ZERO:
            return
        for i in () if op.joint else op.dead:
            tangents[i] = None
        if all([t is None for t in tangents]):
            return
        before = listeners.truncate(listeners.stack.index(self))
        try:
            tangent = op.tangent(op, inputs, y, params, tangents)
        finally:
            listeners.restore(before)
        if door.profiling:
            door.charge(op.facts.shown)  # for kernels of pullbacks, which are not ops
        self.give(y, tangent)

    def on_escape(self, x: Tensor, how: str, given: Any = None) -> None:
        """Records the line where a value with a tangent leaves as numbers, unless a tape inside this listener records it."""
        inner = listeners.stack[listeners.stack.index(self) + 1 :]
        if how in error_text.NUMBERS and self.knows(x) and not any([isinstance(other, Tape) for other in inner]):
            self._cuts.append((how, call_site()))
            self.used = True
            note(self, x, how, given)

    def warn_of_zero(self) -> None:
        """Issues a warning if values left as numbers. The caller has found that no result has a tangent."""
        if self._cuts and not (self.left and self.left.warned):
            warn(error_text.silent_zero("the arguments", self._cuts), ZeroGradientWarning)

    def warn_if_unused(self) -> None:
        """Issues a warning if there were tangents, and no op has read one."""
        if self.bytes and not self.used:
            warn(error_text.unused("the arguments"), ZeroGradientWarning)


@overload
def jvp(f: Callable[..., R], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[False] = False) -> tuple[R, R]: ...
@overload
def jvp(
    f: Callable[..., tuple[R, A]], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[True]
) -> tuple[R, R, A]: ...
def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """Computes the value of f at the primals and its derivative in the direction of the tangents, in one pass.

    Args:
        f: called as f(*primals); takes and returns tensors, alone or in nested lists, tuples, dicts.
        primals, tangents: a list or tuple with one entry per argument, of the same structure and shapes; None stands for a
            tangent that is zero, or for the zero tangents of a whole list, tuple or dict.
        has_aux: f returns a pair of the value to differentiate and anything else, which is returned as a third value.

    Returns (value, derivative), both in the structure of the value. Nothing is kept for a backward pass, so this takes twice the
    memory of f. Most ops push a tangent forward by a rule of their kind, the rest by the transpose of their pullback, which is
    linear in its cotangent. Raises ShapeError if a tangent does not match its primal, TapeError if a primal cannot be
    differentiated, or if the pullback of a `custom_gradient` is not linear.
    """
    check_function("jvp", f)
    has_aux = flag("jvp", "has_aux", has_aux)
    aux: Any = None

    def value(*args: Any) -> Any:
        nonlocal aux
        y, aux = with_aux("jvp", f, f(*args))
        return y

    out, derivative, forward = pushed(value if has_aux else f, primals, tangents)
    forward.warn_if_unused()
    return (out, derivative, aux) if has_aux else (out, derivative)


def pushed(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], title: str = "jvp") -> tuple[Any, Any, Forward]:
    """Returns the results of `jvp`, and the listener that computed the tangents. title: the user's function, for messages."""
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            raise TapeError(
                f"jvp: {name} must be a tuple or list with one entry for each argument of f, and is a {type(given).__name__}. "
                f"For one argument write jvp(f, (x,), (v,))."
            )
    whole = tuple(primals)
    leaves, spec = flatten(whole)
    directions = beside(whole, tuple(tangents))
    if len(leaves) != len(directions):
        raise ShapeError(_unlike(title, len(directions), len(leaves)))
    inside = variables_of(leaves, whole, title)
    with Forward() as forward:
        for x, t in zip(inside, directions):
            if t is not None:
                forward.give(x, like(title, "tangent", "primal", x, t))
        out = f(*unflatten(spec, list(inside)))
    values, spec = flatten(out)
    ends = [asarray(y) for y in values]
    tangents = [forward.of(y) for y in ends]
    if all([t is None for t in tangents]):
        forward.warn_of_zero()
    else:
        forward.used = True
    found = [zeros_like(y) if t is None else t for y, t in zip(ends, tangents)]
    note_derivative(ends, found)
    return out, unflatten(spec, found), forward


def _unlike(name: str, tangents: int, primals: int) -> str:
    """Returns the message for tangents that do not correspond to the primals."""
    return f"{name}: {tangents} tangents for {primals} primals. Give one for each, in the same structure; None stands for zero."


def linearize(f: Callable[..., R], *primals: Any) -> tuple[R, Callable[..., R]]:
    """Returns the value of f, and its derivative: a function from tangents (one per primal) to the tangent of the value.

    f runs once; each call of the derivative costs about one backward pass. The derivative is the transpose of f's pullback, which
    is recorded. A tangent may be None, as in `jvp`. Raises TapeError if a primal cannot be differentiated; the derivative raises
    ShapeError if the tangents do not match the primals.
    """
    out, pullback, _ = pulled_back("linearize", f, primals)
    targets, spec = flatten(out)
    zero = [alias(zeros_like(y)) for y in targets]
    with Transposing(persistent=True) as tape:
        tape.watch(zero)
        cotangents = flatten(pullback(unflatten(spec, list(zero))))[0]

    def derivative(*tangents: Any) -> R:
        given = beside(primals, tangents)
        if len(given) != len(cotangents):
            raise ShapeError(_unlike("linearize", len(given), len(cotangents)))
        moved = [(c, like("linearize", "tangent", "primal", c, t)) for c, t in zip(cotangents, given) if t is not None]
        if not moved:
            return unflatten(spec, [zeros_like(y) for y in zero])
        return unflatten(spec, tape.gradient([c for c, _ in moved], zero, [t for _, t in moved], unconnected="zero"))

    return out, derivative


@overload
def hvp(f: Callable[..., Any], primals: SupportsArray, tangents: Any) -> Tensor: ...
@overload
def hvp(f: Callable[..., Any], primals: X, tangents: Any) -> X: ...
@overload
def hvp(f: Callable[..., Any], primals: Any, tangents: Any) -> Any: ...
def hvp(f: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    """Computes the product of the Hessian of a scalar function with a direction, in the structure of the primals.

    Args:
        f: called as f(*primals) if the primals are a list or tuple, otherwise as f(primals). A list that is one argument of f is
            given in a tuple: hvp(f, (parameters,), (directions,)).
        tangents: the direction, in the structure and shapes of the primals.

    The product is computed by forward mode over reverse mode, at about four times the cost of f, whatever the size. Raises
    ShapeError, TapeError. Source: Pearlmutter 1994.
    """
    check_function("hvp", f)
    several = isinstance(primals, (list, tuple))
    if several:
        _check_several(f, primals, tangents)
    points, directions = (tuple(primals), tuple(tangents)) if several else ((primals,), (tangents,))
    _, products, forward = pushed(gradient_of("hvp", f, tuple(range(len(points)))), points, directions, "hvp")
    forward.warn_if_unused()
    return products[0] if not several else list(products) if isinstance(primals, list) else products


def _check_several(f: Callable[..., Any], primals: Sequence[Any], tangents: Any) -> None:
    """Raises TapeError if hvp cannot call f with these primals as its arguments, or if there is no tangent for each."""
    count, kind = len(primals), type(primals).__name__
    if not isinstance(tangents, (list, tuple)) or len(tangents) != count:
        given = f"{len(tangents)}" if isinstance(tangents, (list, tuple)) else f"a {type(tangents).__name__}"
        raise TapeError(
            f"hvp: the primals are a {kind} of {count}, and the tangents are {given}. Give both in the same structure: "
            f"pb.hvp(f, x, v), or pb.hvp(f, (x, y), (v, w)) for several arguments."
        )
    if not _takes(f, count):
        raise TapeError(
            f"hvp: the primals are a {kind} of {count}, so that {name_of(f)} is called with {count} arguments, which it does not "
            f"take. If the {kind} is one argument, write pb.hvp(f, (parameters,), (directions,))."
        )


def _takes(f: Callable[..., Any], count: int) -> bool:
    """True unless f cannot be called with this number of positional arguments."""
    try:
        inspect.signature(f).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # Python does not know the signature
        return True
    return True
