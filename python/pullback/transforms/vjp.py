"""grad, value_and_grad, vjp: reverse mode of a function of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from .. import dtypes
from ..creation import asarray
from ..errors import ShapeError, TapeError
from ..ops.shape import alias
from ..tape import GradientTape
from ..tensor import Parameter, Tensor
from ..tree import flatten, unflatten


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that gives the gradient of a scalar function, by the argument or arguments `argnums`.

    Args:
        f: returns a scalar tensor; with `has_aux` a pair of it and anything else, which is returned beside the gradient.
        argnums: positions of arguments; each a tensor, a number, or nested lists, tuples, dicts of them.

    The gradient has the structure of the argument (a tuple of them for several); zeros where f does not depend on it. A
    Parameter among the arguments is differentiated wherever it is used, also by a model that holds it.
    Raises: TapeError for an argument that is not floating-point, ShapeError where f's value is not a scalar.
    """
    both = value_and_grad(f, argnums, has_aux)

    @wraps(f)
    def gradient(*args: Any, **options: Any) -> Any:
        value, found = both(*args, **options)
        return (found, value[1]) if has_aux else found

    return gradient


def value_and_grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """As `grad`, with the value first: (value, gradient), or ((value, aux), gradient)."""

    @wraps(f)
    def both(*args: Any, **options: Any) -> Any:
        tape = GradientTape(watch_parameters=False)
        args, sources, spec = variables(args, argnums, tape, "grad")
        with tape:
            result = f(*args, **options)
        y = asarray(result[0] if has_aux else result)
        if y.size != 1:
            raise ShapeError(
                f"grad: {name_of(f)} returned shape {y.shape}; only a scalar has a gradient. Sum it (pb.sum), or ask for all of "
                f"it with pb.jacobian, or for one combination with pb.vjp."
            )
        found = tape.gradient(y, sources, unconnected="zero")
        return ((y, result[1]) if has_aux else y), unflatten(spec, found)

    return both


def vjp(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., tuple[Any, ...]]]:
    """The value of f, and its pullback: a function from cotangents, in the structure of the value, to those of the primals.

    The pullback may be called any number of times; it returns a tuple with one entry per primal, in its structure.
    Raises: TapeError for a primal that is not floating-point, ShapeError for a cotangent of the wrong shape.
    """
    tape = GradientTape(persistent=True, watch_parameters=False)
    args, sources, spec = variables(primals, tuple(range(len(primals))), tape, "vjp")
    with tape:
        out = f(*args)
    targets = flatten(out)[0]

    def pullback(cotangents: Any) -> tuple[Any, ...]:
        given = flatten(cotangents)[0]
        if len(given) != len(targets):
            raise ShapeError(f"vjp: {len(given)} cotangent(s) for a value of {len(targets)} tensor(s). Give one for each.")
        return tuple(unflatten(spec, tape.gradient(targets, sources, given, unconnected="zero")))

    return out, pullback


def variables(
    args: tuple[Any, ...], argnums: int | Sequence[int], tape: GradientTape, what: str
) -> tuple[tuple[Any, ...], list[Tensor], Any]:
    """The arguments with those of `argnums` watched by the tape; the watched tensors; and how they make up the argument(s).

    They are other values than what was given, so that f's derivative is by its argument, and not by everything else that the
    same tensor is used for. Parameters are the exception: they stay what they are.
    """
    places = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for place in places:
        if not -len(args) <= place < len(args):
            raise TapeError(f"{what}: argnums={argnums}, but there are {len(args)} positional arguments.")
    chosen = [args[place] for place in places]
    leaves, spec = flatten(chosen[0] if isinstance(argnums, int) else tuple(chosen))
    sources = [x if isinstance(x, Parameter) else alias(variable(x, what)) for x in leaves]
    tape.watch(sources)
    inside = unflatten(spec, list(sources))
    replaced = list(args)
    for place, value in zip(places, (inside,) if isinstance(argnums, int) else inside):
        replaced[place] = value
    return tuple(replaced), sources, spec


def variable(x: Any, what: str) -> Tensor:
    """A value that a derivative can be taken by. Raises TapeError."""
    t = asarray(x)
    if not dtypes.is_float(t.dtype):
        raise TapeError(
            f"{what}: an argument has dtype {t.dtype}, and only floating-point tensors have derivatives. Convert it with "
            f".astype(pb.float32), or leave it out of argnums."
        )
    return t


def name_of(f: Any) -> str:
    return getattr(f, "__name__", type(f).__name__)
