"""Functions whose derivative is defined separately from their value: straight_through and custom_gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..autodiff.batching import Batch, Batched
from ..autodiff.error_text import name_of
from ..autodiff.listeners import listeners
from ..autodiff.tape import Tape
from ..errors import ShapeError, TapeError
from ..function_wrapper import FunctionWrapper
from ..ops.by_name import in_dtype
from ..ops.conversion import constant
from ..tensors.escape import is_watched
from ..tensors.operand import as_tensor, own, steady
from ..tensors.tensor import Tensor
from ..tree import alike, beside, flatten, shown, unflatten
from ..typing import P, R
from .calls import Again, Reads, batches_of, called, is_real, on, record, with_listeners
from .linearity import refuse_nonlinear


def straight_through(f: Callable[P, Any]) -> Callable[P, Tensor]:
    """Returns a function with the value of `f` whose derivative with respect to its first argument is the identity.

    It is for steps without a useful derivative (round, sign, one-hot of an argmax). The first argument is a finite tensor, and `f`
    must keep its shape; the result is converted to its dtype. No gradient flows to the other arguments, or to Parameters.

    Raises ShapeError if `f` changes the shape. Source: Bengio, Léonard & Courville 2013.
    """
    return StraightThrough(f)


class StraightThrough(FunctionWrapper[P, Tensor]):
    """The function that `straight_through` returns."""

    _title = "straight_through"

    def __call__(self, x: Any, *args: Any, **options: Any) -> Tensor:
        x = as_tensor(x)
        y = constant(in_dtype(as_tensor(self._function(constant(x), *args, **options)), x.dtype))
        if y.shape != x.shape:
            name = getattr(self._function, "__name__", "f")
            raise ShapeError(
                f"straight_through: {name} turned shape {x.shape} into {y.shape}, and the identity cannot be its derivative. "
                f"Return the argument's shape."
            )
        return y + (x - constant(x))  # the bracket is exactly 0, and its derivative exactly 1


def custom_gradient(f: Callable[P, tuple[R, Callable[..., Any]]]) -> Callable[P, R]:
    """Decorates a function that defines its own derivative: `f(*args)` returns the value and a pullback.

    The pullback maps the value's cotangent to the gradients of the arguments.

    Args:
        f: its value and its arguments may be nested lists, tuples, dicts. The pullback receives the cotangent in the structure
            of the value (None for each leaf that is not a floating-point tensor). It returns the gradient in the structure of
            the argument, or a tuple with one gradient per argument; None stands for no gradient. Keyword arguments are not
            differentiated.

    The ops inside `f` are not differentiated, but the pullback is: with a second tape, derivatives of second order also flow
    through the values that the pullback kept from `f`. So `f` may depend on watched tensors and Parameters only through its
    arguments. A watched tensor from outside raises TapeError (pb.stop_gradient makes it a constant), and a Parameter among the
    arguments must not change before the backward pass (StaleValueError).

    Forward mode (jvp, linearize, hvp, hessian) transposes the pullback, so it must be linear in the cotangent there: one that clips
    or normalizes the gradient raises TapeError. Reverse mode takes any pullback, and `jacobian` chooses it by itself.

    Example:
        >>> @pb.custom_gradient
        ... def log1pexp(x):
        ...     e = pb.exp(x)
        ...     return pb.log(1 + e), lambda g: g * (1 - 1 / (1 + e))

    Raises: TapeError, ShapeError if the pullback returns a structure or a shape that differs from the arguments'.
    """

    return with_pullback(f, _used_from_outside)


def with_pullback(f: Callable[P, tuple[R, Callable[..., Any]]], outside: Callable[[str, Tensor], TapeError]) -> Callable[P, R]:
    """Does what `custom_gradient` does. outside(name, x): the error for a function that uses a watched x from outside."""
    return WithPullback(f, outside)


class WithPullback(FunctionWrapper[P, R]):
    """The function that `custom_gradient` returns."""

    _title = "custom_gradient"

    def __init__(self, f: Callable[P, tuple[R, Callable[..., Any]]], outside: Callable[[str, Tensor], TapeError]) -> None:
        super().__init__(f, outside)
        self._outside = outside

    def __call__(self, *args: P.args, **options: P.kwargs) -> R:
        if not listeners.differentiates:
            return _pair(self._function(*args, **options), called(self._function))[0]
        return _recorded(self._function, args, options, self._outside)


def _used_from_outside(name: str, x: Tensor) -> TapeError:
    return TapeError(
        f"custom_gradient: {name} uses {name_of(x)}, whose derivative is asked for and which is not an argument, so that "
        f"no gradient would reach it. Pass it as an argument, or use pb.stop_gradient of it."
    )


def _recorded(f: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], outside: Callable[..., TapeError]) -> Any:
    """Returns the value of f, which tapes record as one call with the pullback that f returned."""
    name, reads, stack = called(f), Reads(), listeners.stack
    arguments, form = flatten(args)
    arguments = [steady(x) for x in arguments]  # the pullback of f may read them later
    # A tape that differentiates the pullback must record how the values that the pullback keeps were computed. A single
    # non-persistent tape never does: it stops recording before it runs the pullback.
    others = [listener for listener in stack if not isinstance(listener, (Batch, Reads))]
    alone = others if len(others) == 1 and isinstance(others[0], Tape) and not others[0].persistent else []
    inside = [listener for listener in stack if listener not in alone]

    def run(arguments: Sequence[Any]) -> tuple[list[Any], Any, Callable[[list[Any]], list[Any]]]:
        """Returns the leaves of the value of f, their structure, and the pullback that f returned for these arguments."""
        args = unflatten(form, list(arguments))
        value, pullback = _pair(f(*args, **options), name)
        leaves, spec = flatten(value)

        def pull(cotangents: list[Any]) -> list[Any]:
            """The pullback that the function returned"""
            refuse_nonlinear("custom_gradient", name, pull, cotangents)
            return conforming(pullback(unflatten(spec, cotangents)), args, name, rule="custom_gradient")

        return leaves, spec, pull

    leaves, spec, pull = with_listeners((*inside, reads), lambda: run(arguments))
    places = [place for place, x in enumerate(arguments) if is_real(x)]
    inputs = [arguments[place] for place in places]
    _refuse_closures(name, reads, [*arguments, *flatten(options)[0]], outside)
    batches = batches_of([*inputs, *leaves])
    outputs = with_listeners(
        [listener for listener in stack if isinstance(listener, Batch)],
        lambda: [on(constant(y), batches) if isinstance(y, Tensor) else y for y in leaves],
    )

    def again(xs: Sequence[Tensor]) -> tuple[list[Any], Callable[[list[Any]], list[Any]]]:
        given = dict(zip(places, xs))
        leaves, _, pull = run([given.get(place, x) for place, x in enumerate(arguments)])
        return leaves, pull

    record(name, pull, inputs, outputs, again=Again(inputs, again), formula=True)
    return unflatten(spec, list(outputs))


def _pair(result: Any, name: str) -> tuple[Any, Callable[..., Any]]:
    if not (isinstance(result, tuple) and len(result) == 2 and callable(result[1])):
        raise TapeError(
            f"custom_gradient: {name} must return two things, its value and its pullback (a function of the value's cotangent); "
            f"it returned {'a tuple of ' + str(len(result)) if isinstance(result, tuple) else 'a ' + type(result).__name__}."
        )
    return result


def _refuse_closures(name: str, reads: Reads, given: Sequence[Any], outside: Callable[[str, Tensor], TapeError]) -> None:
    """Raises TapeError if f read a watched value that is not an argument, because its gradient would silently be missing."""
    known: set[int] = set()
    for x in given:
        while isinstance(x, Tensor):
            known.add(x.serial)
            x = x.value if isinstance(x, Batched) else None
    for x in reads.values.values():
        if x.serial in reads.live - known and is_watched(x):
            raise outside(name, x)


def conforming(result: Any, args: Sequence[Any], name: str, *, rule: str) -> list[Any]:
    """Returns the result of a user's pullback as a list of gradients, one per floating-point tensor of the arguments.

    Raises TapeError if the structure is wrong, ShapeError if a shape is wrong.
    """
    several = len(args) != 1
    if not several and isinstance(result, (tuple, list)):
        result = _alone(result, args[0], name, rule)
    if several and (not isinstance(result, (tuple, list)) or len(result) != len(args)):
        got = f"{len(result)} of them" if isinstance(result, (tuple, list)) else f"a {type(result).__name__}"
        raise TapeError(
            f"{rule}: {name} was called with {len(args)} positional arguments, so its pullback must return a tuple of "
            f"{len(args)} gradients, and returned {got}. Return None for an argument without a gradient."
        )
    found: list[Any] = []
    for place, (x, gx) in enumerate(zip(args, result if several else (result,))):
        where = f"argument {place} of {name}" if several else f"the argument of {name}"
        leaves = flatten(x)[0]
        if gx is not None and not alike(gx, x):
            raise TapeError(
                f"{rule}: the gradient for {where} has the structure {shown(gx)}, the argument {shown(x)} (* is one "
                f"leaf). They must be equal."
            )
        parts = [None] * len(leaves) if gx is None else beside(x, gx)
        found += [_gradient(part, leaf, where, rule) for part, leaf in zip(parts, leaves) if is_real(leaf)]
    return found


def _alone(result: Any, x: Any, name: str, rule: str) -> Any:
    """Returns the gradient for the only argument from a tuple of one entry, unless the argument is such a tuple itself."""
    nested = isinstance(x, (tuple, list))
    if len(result) == 1 and (not nested or alike(result[0], x)):
        return result[0]
    if not nested:
        raise TapeError(
            f"{rule}: {name} was called with 1 positional argument, so its pullback must return 1 gradient, and returned "
            f"{len(result)} of them. Keyword arguments have no gradients."
        )
    return result


def _gradient(gx: Any, x: Tensor, where: str, rule: str) -> Tensor | None:
    if gx is None:
        return None
    gx = own(gx)
    if gx.shape != x.shape:
        raise ShapeError(
            f"{rule}: the pullback returned a gradient of shape {gx.shape} for {where}, where a tensor of shape "
            f"{x.shape} is. They must be equal; sum over axes that were broadcast."
        )
    return in_dtype(gx, x.dtype)
