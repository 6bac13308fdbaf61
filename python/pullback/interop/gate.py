"""The gate that calls of public functions and methods pass. It explains a call whose arguments do not fit.

The modules of pullback import each other's functions without it. `exports.py` puts it around what users get.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from inspect import CO_VARARGS, CO_VARKEYWORDS, Parameter, signature
from types import FunctionType, MethodType
from typing import Any, Final, TypeVar

from ..duck import attribute
from .wrong_calls import keyword_text, misfit, refused_by

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Kind = TypeVar("Kind", bound=type)


def explained(function: F) -> F:
    """Returns the function behind a gate, which adds about 0.05 us to a call.

    Python refuses a call whose arguments do not fit before the function begins to run. The error then is that of `misfit`; errors
    from inside the function stay as they are.
    """

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError as error:
            if refused_by(error):
                raise misfit(function, args, options, error) from None
            raise

    if not hasattr(function, "__signature__"):
        return call  # type: ignore[return-value]
    known = {*signature(function).parameters}

    @functools.wraps(function)
    def call_with_options(*args: Any, **options: Any) -> Any:
        if not options.keys() <= known:
            raise misfit(function, args, options)
        return call(*args, **options)

    return call_with_options  # type: ignore[return-value]


def list_options(function: Any, options: Iterable[Parameter]) -> None:
    """Shows parameters in the signature of a function in the place of its `**options`. Its gate then refuses all others."""
    own = [p for p in signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    function.__signature__ = signature(function).replace(parameters=[*own, *options])


_GATES: Final[dict[Any, Any]] = {}  # the function behind its gate, by the function and by the gate


def gated(value: T) -> T:
    """Returns a public function or method behind its gate, which is the same one wherever it is exported.

    Returns anything else, and functions that `ungated` marks, as they are.
    """
    if isinstance(value, MethodType):
        return MethodType(gated(value.__func__), value.__self__)  # type: ignore[return-value]
    if not isinstance(value, FunctionType):
        return value
    if value not in _GATES:
        _GATES[value] = explained(value)
        _GATES[_GATES[value]] = _GATES[value]
    return _GATES[value]


def ungated(function: F) -> F:
    """Marks a function that is called for every op, and that Python's own message suffices for. Returns the function."""
    _GATES[function] = function
    return function


def gate_methods(kind: type) -> None:
    """Puts the public methods of a class, its constructor, and those that it inherits in pullback, behind their gates.

    `forward` has none, because `Module.__call__` explains its calls.
    """
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] != "pullback":
            continue
        for name, value in [*vars(base).items()]:
            if name == "forward" or (name[0] == "_" and name != "__init__"):
                continue
            if isinstance(value, (classmethod, staticmethod)):
                setattr(base, name, type(value)(gated(value.__func__)))
            elif gated(value) is not value:
                setattr(base, name, gated(value))


# ---- constructors of classes that users derive from


def explain_arguments(kind: Kind) -> Kind:
    """Makes subclasses of a class answer arguments that their own `__init__` does not take, and returns the class.

    `__new__` does this, because nothing of pullback runs around the `__init__` of a user's class.
    """
    make: Any = kind.__new__

    def __new__(cls: Any, *args: Any, **options: Any) -> Any:
        if args or options:  # Pickle passes nothing here.
            _check_arguments(cls, args, options)
        return make(cls)

    kind.__new__ = staticmethod(__new__)  # type: ignore[assignment]
    return kind


def _check_arguments(cls: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Raises TypeError for arguments that do not fit a user's `cls.__init__`, or that make no layer."""
    title, initialize = cls.__name__, cls.__init__
    if initialize is object.__init__:  # which raises no error in a class with a __new__
        if args:
            raise TypeError(f"{title}() takes no arguments: nothing is computed in place, and the tensor goes to {title}()(x).")
        raise TypeError(keyword_text(title, next(iter(options)), (), cls.__module__.startswith("pullback.")))
    if hasattr(cls, "forward") and cls.__module__.startswith("pullback.") and args and len(attribute(args[0], "shape", ())) > 1:
        raise TypeError(f"{title}: an array was given to make the layer. The layer is called with it: {title}(...)(x).")
    if isinstance(initialize, FunctionType) and initialize not in _GATES and not _fits(initialize, args, options):
        raise misfit(initialize, (cls, *args), options)


def _fits(initialize: FunctionType, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    code, defaults = initialize.__code__, initialize.__defaults__ or ()
    placed = code.co_varnames[1 : code.co_argcount]
    known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    required = placed[len(args) : max(0, len(placed) - len(defaults))]
    few_enough = len(args) <= len(placed) or code.co_flags & CO_VARARGS
    return bool(few_enough) and {*required} <= {*options} and (bool(code.co_flags & CO_VARKEYWORDS) or {*options} <= {*known})
