"""jvp, linearize, hvp: forward mode. A tangent goes along with each value, and nothing is recorded."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..autodiff import error_text
from ..autodiff.kept import Listening
from ..autodiff.listeners import listeners
from ..autodiff.primitive import ZERO
from ..autodiff.site import Site, call_site, warn
from ..autodiff.tape import Tape
from ..errors import ShapeError, TapeError, ZeroGradientWarning
from ..launch import door
from ..ops.conversion import alias
from ..tensors.creation import asarray, zeros_like
from ..tensors.operand import own
from ..tensors.tensor import Tensor, new_serial
from ..tree import beside, flatten, unflatten
from .vjp import check_function, grad, variables_of, vjp

if TYPE_CHECKING:
    from ..autodiff.primitive import Op


class Forward(Listening):
    """A listener with the tangent of each value that has one, for as long as the value lives.

    Attributes:
        bytes: of all tangents that there were.
    """

    def __init__(self) -> None:
        self._tangents: dict[int, tuple[Tensor, Any]] = {}
        self._cuts: list[tuple[str, Site]] = []  # where values with a tangent left as numbers
        self.bytes = 0

    def give(self, x: Tensor, tangent: Tensor) -> None:
        """From now on x has this tangent."""
        if not x.serial:
            x.serial = new_serial()
        self.bytes += tangent.array.nbytes
        serial, tangents = x.serial, self._tangents
        # No function in Python: Ctrl-C in a callback of a weak reference would be lost. The reference is the default of `pop`.
        tangents[serial] = (tangent, weakref.ref(x, partial(tangents.pop, serial)))

    def knows(self, x: Any) -> bool:
        """True if x has a tangent."""
        return self.of(x) is not None

    def of(self, x: Any) -> Tensor | None:
        """The tangent of x, None where it has none: zero."""
        found = self._tangents.get(x.serial) if x.serial else None
        return found[0] if found is not None else None

    def add(self, op: Op, y: Tensor, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        """Computes the tangent of y, unseen by itself and by what listens inside."""
        if op.pullback is None or op.pullback is ZERO:
            return
        tangents = [self.of(x) for x in inputs]
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
            door.charge(op.shown)  # the kernels of pullbacks, which are no ops
        self.give(y, tangent)

    def on_escape(self, x: Tensor, how: str) -> None:
        """Remembers where a value with a tangent leaves as a number, unless a derivative inside of this one is told."""
        inner = listeners.stack[listeners.stack.index(self) + 1 :]
        if how in error_text.NUMBERS and self.knows(x) and not any([isinstance(other, Tape) for other in inner]):
            self._cuts.append((how, call_site()))

    def warn_of_zero(self) -> None:
        """Issues a warning if values left as numbers: for who has found that no result has a tangent."""
        if self._cuts:
            warn(error_text.silent_zero("the arguments", self._cuts), ZeroGradientWarning)


def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """The value of f at the primals, and its derivative in the direction of the tangents, in one pass.

    Args:
        f: called as f(*primals); takes and returns tensors, alone or in nested lists, tuples, dicts.
        primals, tangents: a list or tuple with one entry per argument, of the same structure and shapes; None for a tangent
            that is zero.

    Nothing is kept for a backward pass: the memory is that of f, twice. Most ops pass a tangent by a rule of their kind; the
    rest by the transpose of their pullback, which is linear in its cotangent. Raises ShapeError, TapeError.
    """
    return pushed(f, primals, tangents)[:2]


def pushed(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any, int]:
    """jvp, and the bytes of all tangents that were computed."""
    check_function("jvp", f)
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
        raise ShapeError(f"jvp: {len(directions)} tangents for {len(leaves)} primals. Give one for each, in the same structure.")
    inside = variables_of(leaves, whole, "jvp")
    with Forward() as forward:
        for x, t in zip(inside, directions):
            if t is not None:
                forward.give(x, _direction(x, t))
        out = f(*unflatten(spec, list(inside)))
    values, spec = flatten(out)
    ends = [asarray(y) for y in values]
    tangents = [forward.of(y) for y in ends]
    if all([t is None for t in tangents]):
        forward.warn_of_zero()
    found = [zeros_like(y) if t is None else t for y, t in zip(ends, tangents)]
    return out, unflatten(spec, found), forward.bytes


def _direction(x: Tensor, tangent: Any) -> Tensor:
    t = own(tangent, dtype=x.dtype, device=x.device)
    if t.shape != x.shape:
        raise ShapeError(f"jvp: a tangent has shape {t.shape}, its primal {x.shape}. They must be equal.")
    return t


def linearize(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """The value of f, and its derivative as a function from tangents (one per primal) to that of the value.

    f runs once; each call of the function costs about a backward pass. It is the transpose of f's pullback, which is recorded.
    """
    out, pullback = vjp(f, *primals)
    targets, spec = flatten(out)
    zero = [alias(zeros_like(y)) for y in targets]
    with Tape(persistent=True, watch_parameters=False) as tape:
        tape.watch(zero)
        cotangents = flatten(pullback(unflatten(spec, list(zero))))[0]

    def derivative(*tangents: Any) -> Any:
        given = beside(primals, tangents)
        if len(given) != len(cotangents):
            raise ShapeError(f"linearize: {len(given)} tangents for {len(cotangents)} primals. Give one for each.")
        return unflatten(spec, tape.gradient(cotangents, zero, given, unconnected="zero"))

    return out, derivative


def hvp(f: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    """The product of the Hessian of a scalar function with a direction, in the structure of the primals.

    Args:
        f: called as f(*primals) for a list or tuple, otherwise as f(primals).
        tangents: of the structure and shapes of the primals.

    Forward over reverse mode: about four times the cost of f, whatever the size. Source: Pearlmutter 1994.
    """
    several = isinstance(primals, (list, tuple))
    points, directions = (tuple(primals), tuple(tangents)) if several else ((primals,), (tangents,))
    _, products = jvp(grad(f, argnums=tuple(range(len(points)))), points, directions)
    return products[0] if not several else list(products) if isinstance(primals, list) else products
