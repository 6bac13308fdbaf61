"""Explains calls whose arguments do not fit: those that Python refuses, and options that do not exist."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar

from ..errors import ArgumentError
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
    title = function.__qualname__.rpartition("<locals>.")[2].removesuffix(".__init__").lstrip("_")
    advice = _tables().CALLS.get(title.rpartition(".")[2])
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


# ---- options


def one_of(
    owner: str, name: str, value: Any, known: Sequence[Any], also: str = "", spelled: Mapping[str, str] | None = None
) -> None:
    """Raises ArgumentError unless an option is one of the known values. It says what the value is called here, if that is known.

    Args:
        owner, name: the function and its argument, for the message.
        also: what else may be given, for the end of the list in the message.
        spelled: other names of values, and what to write for them.
    """
    if isinstance(value, (str, Real)) and value in known:
        return
    listed = ", ".join([*[repr(x) for x in known], *([also] if also else [])])
    raise ArgumentError(f"{owner}: {name}={value!r} is none of {listed}.{_meant(owner, name, value, known, spelled or {})}")


def _meant(owner: str, name: str, value: Any, known: Sequence[Any], spelled: Mapping[str, str]) -> str:
    """Returns a sentence, after a space, about what to give in place of an option of another library or spelling, or nothing."""
    import difflib  # late, as in `keyword_text`

    if not isinstance(value, str):
        return ""
    if hint := _tables().OPTIONS.get(f"{owner}.{name}", {}).get(value):
        return f" {hint}"
    written = {_letters(x): y for x, y in spelled.items()} | {_letters(x): x for x in known if isinstance(x, str)}
    near = difflib.get_close_matches(_letters(value), written, 1, 0.8)
    return f" Did you mean {written[near[0]]!r}?" if near else ""


def _tables() -> Any:
    from .names_elsewhere import tables  # late, because few programs need it

    return tables


def _letters(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "").replace(" ", "")
