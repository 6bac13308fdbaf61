"""Explains calls that Python refuses because the arguments do not fit the parameters of the function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .unknown_names import keyword_text

F = TypeVar("F", bound=Callable[..., Any])


def explain_call(function: F) -> F:
    """Makes a function answer arguments that do not fit it, and returns it.

    It is for functions that `unexpected` does not suffice for: Python itself raises an error, before the function runs, if a
    required argument is missing because the call names it otherwise. A call takes about 0.1 us longer.
    """

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError as error:
            if refused_by(error):
                raise misfit(function, args, options, error) from None
            raise

    return call  # type: ignore[return-value]


def refused_by(error: BaseException) -> bool:
    """True if a call in the function that handles the error raised it before the called function began to run."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


def misfit(function: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any], error: TypeError) -> TypeError:
    """Returns the error for a call whose arguments do not fit: unknown or repeated names, or too many positions.

    Returns Python's own error if its message says enough, as it does for a missing argument.
    """
    from .names_elsewhere.tables import CALLS  # late, because few programs need it

    title = function.__qualname__.rpartition("<locals>.")[2].removesuffix(".__init__").lstrip("_")
    advice = CALLS.get(title.rpartition(".")[2])
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name == "self":
        parameters, args = parameters[1:], args[1:]
    kinds = {p.kind for p in parameters if p.name != "unknown"}  # `unknown` collects keywords to refuse them
    known = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    placed = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for name in options if inspect.Parameter.VAR_KEYWORD not in kinds else ():
        if name not in known:
            return TypeError(keyword_text(title, name, known))
    if inspect.Parameter.VAR_POSITIONAL not in kinds and len(args) > len(placed):
        rest = ", ".join([f"{name}=" for name in known if name not in placed])
        advice = advice or (f"Pass what follows by keyword: {rest}." if rest else "It has no other arguments.")
        return TypeError(
            f"{title}() takes {' and '.join(placed) or 'nothing'} by position, and {len(args)} arguments were given by position. "
            f"{advice}"
        )
    return TypeError(f"{error}. {advice}") if advice else error
