"""grad, value_and_grad, vjp: reverse mode of a function of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from typing import Any, Final, Literal, TypeVar, overload

import numpy as np

from ..autodiff.tape import Tape
from ..duck import attribute
from ..errors import ArgumentError, DTypeError, PullbackError, ShapeError, TapeError
from ..function_wrapper import FunctionWrapper
from ..interop.gate import explained
from ..interop.wrong_calls import argument_named, flag, with_title
from ..ops.conversion import alias, copy
from ..tensors import dtypes
from ..tensors.creation import ones_like, zeros_like
from ..tensors.operand import converted, own
from ..tensors.parameter import Parameter
from ..tensors.precision import made_of
from ..tensors.tensor import Tensor
from ..tree import beside, flatten, paths, unflatten
from ..typing import Gradient, P, R, ValueAndGradient

A = TypeVar("A")


@overload
def grad(f: Callable[P, Any], argnums: Literal[0] = 0, has_aux: Literal[False] = False) -> Gradient[P]: ...
@overload
def grad(
    f: Callable[P, tuple[Any, A]], argnums: int | Sequence[int] = 0, *, has_aux: Literal[True]
) -> Callable[P, tuple[Any, A]]: ...
@overload
def grad(f: Callable[P, Any], argnums: Sequence[int], has_aux: Literal[False] = False) -> Callable[P, tuple[Any, ...]]: ...
@overload
def grad(f: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[P, Any]: ...
def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Returns a function that computes the gradient of a scalar function with respect to the argument or arguments `argnums`.

    Args:
        f: returns a scalar tensor; with `has_aux` a pair of the scalar and any other value, which is returned with the gradient.
        argnums: the positions of the arguments; each is a tensor, a number, or nested lists, tuples, dicts of these.

    The gradient has the structure of the argument, or is a tuple of gradients for several arguments. It is zero for each tensor
    that f does not depend on; if it is zero for every tensor of an argument for this reason, there is a ZeroGradientWarning. A
    Parameter among the arguments is differentiated wherever it is used, also by a model that holds it.
    Raises: TapeError if an argument is not floating-point, ShapeError if the value of f is not a scalar.
    """
    argnums = check_argnums("grad", argnums)
    return gradient_of("grad", f, argnums, has_aux)


def gradient_of(title: str, f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Returns what `grad` does. title: the function that the user called, for messages."""
    check_function(title, f)
    return GradientFunction(f, title, argnums, has_aux)


@overload
def value_and_grad(f: Callable[P, Any], argnums: Literal[0] = 0, has_aux: Literal[False] = False) -> ValueAndGradient[P]: ...
@overload
def value_and_grad(
    f: Callable[P, tuple[Any, A]], argnums: int | Sequence[int] = 0, *, has_aux: Literal[True]
) -> Callable[P, tuple[tuple[Tensor, A], Any]]: ...
@overload
def value_and_grad(
    f: Callable[P, Any], argnums: Sequence[int], has_aux: Literal[False] = False
) -> Callable[P, tuple[Tensor, tuple[Any, ...]]]: ...
@overload
def value_and_grad(f: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[P, Any]: ...
def value_and_grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Returns a function like that of `grad` that also returns the value: (value, gradient), or ((value, aux), gradient)."""
    argnums = check_argnums("value_and_grad", argnums)
    check_function("value_and_grad", f)
    return ValueAndGradientFunction(f, "value_and_grad", argnums, has_aux)


class ValueAndGradientFunction(FunctionWrapper[..., Any]):
    """The function that `value_and_grad` returns. title: the function that the user called, for messages."""

    def __init__(self, f: Callable[..., Any], title: str, argnums: int | Sequence[int], has_aux: bool) -> None:
        super().__init__(f, title, argnums, has_aux)
        self._title, self._argnums, self._has_aux = title, argnums, flag(title, "has_aux", has_aux)

    def __call__(self, *args: Any, **options: Any) -> Any:
        title, f, has_aux = self._title, self._function, self._has_aux
        tape = Tape(watch_parameters=False)
        args, sources, spec = variables(args, self._argnums, tape, title)
        with tape:
            result = f(*args, **options)
        result, aux = with_aux(title, f, result) if has_aux else (result, None)
        y = _value(title, f, result)
        if y.size != 1:
            raise ShapeError(
                f"{title}: {name_of(f)} returned shape {y.shape}; only a scalar has a gradient. Sum it (pb.sum), or ask for all of "
                f"it with pb.jacobian, or for one combination with pb.vjp."
            )
        gradient = tape.gradient(y, sources, unconnected="zero")
        y = y if y.storage is None else copy(y)  # copies a view of a Parameter, which the next step changes
        return ((y, aux) if has_aux else y), unflatten(spec, gradient)


class GradientFunction(ValueAndGradientFunction):
    """The function that `grad` returns."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        value, gradient = super().__call__(*args, **options)
        return (gradient, value[1]) if self._has_aux else gradient


def with_aux(title: str, f: Callable[..., Any], result: Any) -> tuple[Any, Any]:
    """Returns the value to differentiate and what is passed on, from the result of f with has_aux=True. Raises TapeError."""
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise TapeError(
            f"{title}: {name_of(f)} returned {_shown(result)}; with has_aux=True it must return two things, the value to "
            f"differentiate and what is passed on."
        )
    return result[0], result[1]


def _value(title: str, f: Callable[..., Any], result: Any) -> Tensor:
    """Returns the scalar to differentiate from the result of f. Raises TapeError if there is none."""
    returned = f"{title}: {name_of(f)} returned {_shown(result)}"
    if isinstance(result, (tuple, list, dict)):
        raise TapeError(
            f"{returned}, and only one scalar has a gradient. Return the scalar alone; with has_aux=True also a pair of it and "
            f"anything else."
        )
    if result is None:
        raise TapeError(f"{returned}, and no scalar. Does it lack a return?")
    return converted(title, f"the result of {name_of(f)}", result, own)


def _shown(result: Any) -> str:
    if isinstance(result, (tuple, list, dict)):
        return f"a {type(result).__name__} of {len(result)}"
    return "None" if result is None else f"a {type(result).__name__}"


@overload
def vjp(f: Callable[..., R], *primals: Any, has_aux: Literal[False] = False) -> tuple[R, Callable[..., tuple[Any, ...]]]: ...
@overload
def vjp(f: Callable[..., tuple[R, A]], *primals: Any, has_aux: Literal[True]) -> tuple[R, Callable[..., tuple[Any, ...]], A]: ...
def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Returns the value of f and its pullback, which maps cotangents in the structure of the value to those of the primals.

    The pullback can be called any number of times. It returns a tuple with one entry per primal, in the primal's structure. A
    cotangent among several may be None, which stands for zero. With `has_aux` f returns a pair of the value and anything else, and
    the result is (value, pullback, anything else).
    Raises: TapeError if a primal is not floating-point; the pullback raises ShapeError for a cotangent of the wrong shape.
    """
    out, pullback, aux = pulled_back("vjp", f, primals, has_aux)
    return (out, pullback, aux) if has_aux else (out, pullback)


def pulled_back(title: str, f: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool = False) -> tuple[Any, Any, Any]:
    """Returns what `vjp` does with `has_aux`. title: the function that the user called, for messages."""
    check_function(title, f)
    has_aux = flag(title, "has_aux", has_aux)
    tape = Tape(persistent=True, watch_parameters=False)
    args, sources, spec = variables(primals, tuple(range(len(primals))), tape, title)
    with tape:
        out = f(*args)
    out, aux = with_aux(title, f, out) if has_aux else (out, None)
    targets = flatten(out)[0]

    @explained
    def pullback(cotangents: Any) -> tuple[Any, ...]:
        entries = [None] if cotangents is None else beside(out, cotangents)
        for y in targets or [None]:
            if not isinstance(y, Tensor):
                shown = _shown(y if targets else out)
                raise TapeError(f"{title}: {name_of(f)} returned {shown}, and only tensors have cotangents.")
        if len(entries) != len(targets):
            raise ShapeError(f"{title}: {len(entries)} cotangent(s) for a value of {len(targets)} tensor(s). Give one for each.")
        seeds = [_cotangent(title, y, g, len(entries) > 1) for y, g in zip(targets, entries)]
        return tuple(unflatten(spec, tape.gradient(targets, sources, seeds, unconnected="zero")))

    return out, pullback, aux


def _cotangent(title: str, y: Tensor, value: Any, several: bool) -> Tensor:
    """Returns the cotangent of a tensor. None is zero if there are several, and 1 for a scalar alone. Raises ShapeError."""
    if value is not None:
        return like(title, "cotangent", "value", y, value)
    if several or y.size == 1:
        return zeros_like(y) if several else ones_like(y)
    raise ShapeError(f"{title}: the cotangent is None, and the value has shape {y.shape}. Give a tensor of this shape.")


def like(title: str, kind: str, counterpart: str, x: Tensor, value: Any) -> Tensor:
    """Returns a tangent or cotangent (`kind`) as a tensor like x, its primal or value (`counterpart`).

    Raises DTypeError, ShapeError.
    """
    try:
        t = own(value, dtype=x.dtype, device=x.device)
    except (ArgumentError, DTypeError) as error:
        raise type(error)(with_title(f"{title}: a {kind}", error, value)) from None
    if t.shape != x.shape:
        raise ShapeError(f"{title}: a {kind} has shape {t.shape}, its {counterpart} {x.shape}. They must be equal.")
    return t


def variables(
    args: tuple[Any, ...], argnums: int | Sequence[int], tape: Tape, title: str
) -> tuple[tuple[Any, ...], list[Tensor], Any]:
    """Returns the arguments, in which those of `argnums` are watched by the tape; the watched tensors; and their structure.

    The watched tensors are new values, so that the derivative of f is with respect to its argument and not to other uses of the
    same tensor. Parameters are the exception: they are watched themselves.
    """
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for position in positions:
        if not -len(args) <= position < len(args):
            raise TapeError(f"{title}: argnums={argnums}, but there are {len(args)} positional arguments.")
    _require_different(title, argnums, [position % len(args) for position in positions])
    chosen = [args[position] for position in positions]
    leaves, spec = flatten(chosen[0] if isinstance(argnums, int) else tuple(chosen))
    sources = variables_of(leaves, args, title, positions)
    tape.journal.arguments = partial(_by_argument, chosen, [position % len(args) for position in positions], sources)
    tape.watch(sources)
    inside = unflatten(spec, list(sources))
    replaced = list(args)
    for position, value in zip(positions, (inside,) if isinstance(argnums, int) else inside):
        replaced[position] = value
    return tuple(replaced), sources, spec


def _by_argument(values: Sequence[Any], positions: Sequence[int], sources: Sequence[Tensor]) -> dict[str, set[int]]:
    """Returns the serials of the watched tensors of each argument, by the argument's name."""
    leaves = iter(sources)
    return {f"argument {position}": {next(leaves).serial for _ in flatten(value)[0]} for position, value in zip(positions, values)}


def variables_of(leaves: Sequence[Any], args: Sequence[Any], title: str, positions: Sequence[int] | None = None) -> list[Tensor]:
    """Returns the leaves of the arguments (or of those at `positions`) as tensors that can be differentiated with respect to.

    Raises TapeError or DTypeError, which name a leaf that cannot.
    """
    tensors: list[Tensor] = []
    for x in leaves:
        try:
            tensors.append(_floating(x, title) if isinstance(x, Parameter) else made_of(x, alias(_variable(x, title))))
        except ArgumentError as error:
            words = str(error).removeprefix(argument_named(x))
            raise ArgumentError(f"{title}: {_leaf_name(args, positions, len(tensors))}: {words}") from None
        except PullbackError as error:
            raise type(error)(f"{title}: {_leaf_name(args, positions, len(tensors))} {error}") from None
    return tensors


def _variable(x: Any, title: str) -> Tensor:
    if not isinstance(x, Tensor) and callable(attribute(x, "parameters", None)):
        raise TapeError(
            f"is a {type(x).__name__}, and only tensors have derivatives. Give its Parameters, module.parameters(); f may use "
            f"the module itself."
        )
    try:
        t = own(x)
    except DTypeError:
        raise DTypeError(
            f"is a {type(x).__name__}, and derivatives are by tensors, arrays and real numbers, in nested lists, tuples, dicts. "
            f"Instead, {_without_it(title)}."
        ) from None
    return _floating(t, title)


def _floating(t: Tensor, title: str) -> Tensor:
    """Returns t. Raises TapeError if it is not floating-point."""
    if dtypes.is_float(t.dtype):
        return t
    if isinstance(t, Parameter):
        raise TapeError(
            f"is {t.label()} of dtype {t.dtype}, and only floating-point tensors have derivatives. Leave it out: differentiate by "
            f"the Parameters alone, dict(net.named_parameters()), and let f use the {type(t).__name__} itself."
        )
    raise TapeError(
        f"has dtype {t.dtype}, and only floating-point tensors have derivatives. Convert it with .astype(pb.float32), or "
        f"{_without_it(title)}."
    )


def _without_it(title: str) -> str:
    """Returns how to call the transform `title` so that it does not differentiate by an argument."""
    if title in _ALL_ARGUMENTS:
        return f"make it a constant c of a function of the other arguments: {_ALL_ARGUMENTS[title]}"
    return "leave it out of argnums, in a separate argument"


def _leaf_name(args: Sequence[Any], positions: Sequence[int] | None, leaf: int) -> str:
    """Returns the name of a leaf of the arguments for messages, such as `argument 0["b"][1]`."""
    chosen = range(len(args)) if positions is None else positions
    return [f"argument {position % len(args)}{path}" for position in chosen for path in paths(args[position])][leaf]


# The functions that differentiate by every argument of f, and how to call them for a function with a constant.
_ALL_ARGUMENTS: Final = {
    "vjp": "pb.vjp(lambda x: f(x, c), x)", "jvp": "pb.jvp(lambda x: f(x, c), (x,), (v,))",
    "linearize": "pb.linearize(lambda x: f(x, c), x)", "hvp": "pb.hvp(lambda x: f(x, c), x, v)",
}
# How functions are called that take a function and other arguments.
_USES: Final = {
    "vjp": "pb.vjp(f, x)", "jvp": "pb.jvp(f, (x,), (v,))", "scan": "pb.scan(f, init, xs)",
    "linearize": "pb.linearize(f, x)", "hvp": "pb.hvp(f, x, v)",
    "associative_scan": "pb.associative_scan(combine, xs)",
}


def check_function(title: str, f: Any) -> None:
    """Raises TapeError if f cannot be called. Most often it is the value of a function instead of the function."""
    if not callable(f):
        raise TapeError(
            f"{title}: takes a function, and was given a {type(f).__name__}. Pass the function itself, not its value: "
            f"{_USES.get(title, f'pb.{title}(f)(x)')}."
        )


def check_argnums(title: str, argnums: Any) -> Any:
    """Returns argnums as an int or a tuple of ints.

    Raises TapeError if it is not one position or several different ones. Most often it is an argument of the function.
    """
    if isinstance(argnums, (int, np.integer)):
        return index(argnums)
    if not isinstance(argnums, (tuple, list, range)) or not all([isinstance(n, (int, np.integer)) for n in argnums]):
        raise TapeError(
            f"{title}: argnums is a {type(argnums).__name__}; it must be the position of an argument, or a tuple of positions. "
            f"pb.{title}(f) returns a function: pass the arguments to it, pb.{title}(f)(x)."
        )
    _require_different(title, argnums, argnums)
    return tuple([index(n) for n in argnums])


def _require_different(title: str, argnums: Any, positions: Sequence[int]) -> None:
    """Raises TapeError if a position is repeated: each argument has one derivative, which cannot be in two places."""
    if len({*positions}) < len(positions):
        again = next(position for position in positions if positions.count(position) > 1)
        raise TapeError(f"{title}: argnums={argnums} names argument {again} more than once. Name each argument once.")


def name_of(f: Any) -> str:
    return getattr(f, "__name__", type(f).__name__)
