"""Checks of the arguments that several solvers have.

A value that an argument cannot have is an ArgumentError, which is a ValueError. An object of a wrong kind is a DTypeError, which is
a TypeError. Both are PullbackErrors.
"""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from ..errors import ArgumentError, DTypeError
from ..tensors.tensor import Tensor


def count(owner: str, name: str, value: Any, least: int, more: str = "") -> int:
    """Returns the value as an int. Raises ArgumentError unless it is an integer of `least` or more. more: ends the message."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < least:
        raise ArgumentError(f"{owner}: {name}={value!r} must be an integer of {least} or more{more}.")
    return int(value)


def positive(owner: str, name: str, value: Any, more: str = "") -> float:
    """Returns the value as a float. Raises ArgumentError unless it is a positive finite number. more: ends the message."""
    if not is_number(value) or not 0 < value < math.inf:
        raise ArgumentError(f"{owner}: {name}={value!r} must be a positive number{more}.")
    return float(value)


def not_negative(owner: str, name: str, value: Any, more: str = "") -> float:
    """Returns the value as a float. Raises ArgumentError unless it is a number of 0 or more. more: ends the message."""
    if not is_number(value) or not value >= 0:
        raise ArgumentError(f"{owner}: {name}={value!r} must be a number of 0 or more{more}.")
    return float(value)


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_))


def check_function(owner: str, name: str, value: Any, returns: str) -> None:
    """Raises DTypeError unless the value can be called. returns: what the function computes, for the message."""
    if not callable(value):
        raise DTypeError(
            f"{owner}: {name} is a {type(value).__name__}; it must be a function that returns {returns}. Pass the function itself, "
            f"not its value."
        )


def check_order(owner: str, name: str, f: Any, start_name: str, start: Any) -> None:
    """Raises DTypeError if a function is given as the start, with which the function of the solver has been exchanged."""
    if not callable(start) or isinstance(start, Tensor) or hasattr(start, "parameters") or hasattr(start, "__array__"):
        return
    exchanged = not callable(f) or hasattr(f, "parameters")
    remedy = f"The two are exchanged: write {owner}({name}, {start_name})" if exchanged else "Give its numbers or tensors"
    raise DTypeError(f"{owner}: {start_name} is a function, and must be the start. {remedy}.")


def check_call(owner: str, name: str, f: Callable[..., Any], first: str, args: Sequence[Any], where: str) -> None:
    """Raises ArgumentError unless f can be called with its first argument, if it has one, and these further ones.

    first: what the first argument is called, or "". where: how the user gives the further arguments.
    """
    begin = (None,) if first else ()
    if not fits(f, (*begin, *args), {}):
        further = f"{len(args) or 'no'} {'further ' if first else ''}argument{'' if len(args) == 1 else 's'}"
        given, after = (f"{first} and {further}", f" after {first}") if first else (further, "")
        raise ArgumentError(
            f"{owner}: {name}{signature_of(f)} is called with {given}, which it does not take. Give {where} what it takes{after}."
        )
    if first and len(args) == 1 and isinstance(args[0], Mapping) and args[0] and _names_parameters(f, args[0]):
        values = ", ".join(map(str, args[0]))
        raise ArgumentError(
            f"{owner}: args is a dict with the names of arguments of {name}{signature_of(f)}. Here they go by position, so write "
            f"args=({values},) with their values. If one argument is the dict itself, give it another name in {name}."
        )


def real_array(owner: str, name: str, value: Any) -> np.ndarray[Any, Any]:
    """Returns numbers, also nested lists or a tensor of them, as float64 on the host. Raises DTypeError for other objects."""
    try:
        found = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
        if found.dtype.kind in "fiubV" or (found.dtype.kind == "O" and all([is_number(x) for x in found.flat])):
            return found.astype(np.float64)
    except (TypeError, ValueError):
        pass
    raise DTypeError(f"{owner}: {name} must be made of real numbers, and has a {type(value).__name__}: {reprlib.repr(value)}.")


def listed(args: Any) -> list[Any]:
    """Returns further arguments of the user's function as a list. A value that is no tuple or list is the only argument."""
    return [] if args is None else list(args) if isinstance(args, (tuple, list)) else [args]


def given_arguments(args: Any) -> Any:
    """Returns further arguments of the user's function: a dict of keyword arguments, or a list as `listed` returns it."""
    return {} if args is None else dict(args) if isinstance(args, Mapping) else listed(args)


def _signature(f: Callable[..., Any]) -> inspect.Signature | None:
    """Returns the arguments of f, or None if Python does not know them."""
    try:
        return inspect.signature(f)
    except (TypeError, ValueError):
        return None


def fits(f: Callable[..., Any], positional: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """True unless Python would refuse to call f with these arguments, as far as it knows the signature."""
    signature = _signature(f)
    try:
        if signature is not None:
            signature.bind(*positional, **named)
    except TypeError:
        return False
    return True


def _names_parameters(f: Callable[..., Any], given: Mapping[Any, Any]) -> bool:
    """True if all keys are names of parameters of f after its first one."""
    signature = _signature(f)
    return signature is not None and {*given} <= {*list(signature.parameters)[1:]}


def signature_of(f: Callable[..., Any]) -> str:
    """Returns the arguments of f as text, such as "(x, a)", or "" if Python does not know them."""
    return str(_signature(f) or "")


def check_finite(owner: str, name: str, x: np.ndarray[Any, Any]) -> None:
    """Raises ArgumentError if an element of the start is not finite. name: what the start is called."""
    if not np.isfinite(x).all():
        i = int(np.argmax(~np.isfinite(x)))
        raise ArgumentError(f"{owner}: element {i} of {name} is {x.flat[i]}. Choose finite numbers.")


def check_start(owner: str, r: np.ndarray[Any, Any], start: str = "x0", remedy: str = "Choose an x0 at which all") -> None:
    """Raises ArgumentError for residuals at the start that are not finite or of which there are none.

    start, remedy: what the start is called, and the beginning of a sentence about what to change.
    """
    if not r.size:
        raise ArgumentError(f"{owner}: the function returned no residuals: an array of length 0.")
    bad = ~np.isfinite(r)
    if bad.any():
        i = int(np.argmax(bad))
        raise ArgumentError(
            f"{owner}: residual {i} is {r[i]} at {start} ({int(bad.sum())} of {r.size} are not finite). {remedy} residuals are "
            f"finite; `with pb.debug_nans():` finds the op that made it."
        )
