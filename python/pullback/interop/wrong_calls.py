"""Explains calls whose arguments do not fit: those that Python refuses, and options that do not exist."""

from __future__ import annotations

import functools
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from types import CodeType, FrameType
from typing import Any

import numpy as np

from ..autodiff.site import current_frame, is_ours
from ..duck import attribute, has
from ..errors import ArgumentError, DTypeError, shown
from .hints import hints
from .unknown_names import SPACES

# What to write for the call of an attribute of a tensor, and of a tensor itself.
_ATTRIBUTES = {
    "shape": "x.shape is an attribute: x.shape[0] is the length of the first axis.",
    "size": "x.size is an attribute, the number of elements; x.shape[0] is the length of the first axis.",
    **{name: f"x.{name} is an attribute: write it without parentheses."
       for name in ("ndim", "dtype", "device", "T", "mT", "nbytes", "itemsize")},
}
_CALLED = re.compile(rf"\.({'|'.join(_ATTRIBUTES)})\(")


def explain_not_callable(error: TypeError) -> None:
    """Adds to Python's message about a call of something that is no function what to write, if it is a tensor or a part of one."""
    text, trace = str(error), error.__traceback__
    if not text.endswith("object is not callable") or trace is None:
        return
    while trace.tb_next is not None:
        trace = trace.tb_next
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno, trace.tb_frame.f_globals)
    called = _CALLED.search(line)
    if called is not None:
        error.args = (f"{text}: {_ATTRIBUTES[called[1]]}",)
    elif re.match("'(Tensor|Parameter|Buffer)' ", text):
        error.args = (f"{text}: a layer is called with a tensor, layer(x), and a tensor is indexed, x[0].",)


def refused_by(error: BaseException) -> bool:
    """True if a call in the function that handles the error raised it before the called function began to run."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


def misfit(function: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any], error: object = "") -> TypeError:
    """Returns the error for a call whose arguments do not fit: unknown or repeated names, too many or missing arguments.

    Returns Python's own error if its message says enough, as it does for a missing argument of a function.

    Args:
        args: the first one is the object itself, or its class, for the function of a method.
    """
    parameters, kind = list(inspect.signature(function).parameters.values()), None
    bound = bool(parameters) and parameters[0].name == "self"
    if bound and not args:  # a method was called on its class, without an object
        return TypeError(str(error))
    title = _title_of_call(function, args)
    if bound:
        kind = args[0] if isinstance(args[0], type) else type(args[0])
        parameters, args = parameters[1:], args[1:]
    misplaced = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.name in options]
    if misplaced:
        order = ", ".join([p.name for p in parameters if p.kind is p.POSITIONAL_ONLY])
        return TypeError(f"{title}() takes {' and '.join(misplaced)} by position, without a name: {title}({order}).")
    kinds = {p.kind for p in parameters}
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for name in options if inspect.Parameter.VAR_KEYWORD not in kinds else ():
        if name not in names:
            return TypeError(keyword_text(title, name, names, function.__module__.startswith("pullback.")))
    advice = hints("calls").get(title) or hints("calls").get(title.rpartition(".")[2], "")
    if inspect.Parameter.VAR_POSITIONAL not in kinds and len(args) > len(placed):
        return TypeError(_too_many(title, placed, args, names[len(placed) :], advice))
    required = [p.name for p in placed if p.default is p.empty]
    missing = [name for name in required[len(args) :] if name not in options]
    if missing and function.__name__ == "__init__" and (args or options):
        return TypeError(_too_few(title, missing, required, getattr(kind, "_needs", {})))
    text = str(error).replace(f"{function.__qualname__}()", f"{title}()")
    return TypeError(f"{text}. {advice}" if advice else text)


def keyword_text(title: str, name: str, names: Sequence[str], of_ours: bool = True) -> str:
    """Returns the message for a call of the function `title`, whose parameters are `names`, with an unknown keyword.

    of_ours: the function is one of pullback, so that the sentence in the table is about it.
    """
    import difflib  # late, because few programs need it

    words, _, sentence = hints("keywords").get(name, "").partition("| ")
    sentence = sentence if of_ours else ""
    if own := hints(f"keywords of {title}").get(name) or hints(f"keywords of {title.rpartition('.')[2]}").get(name):
        words, sentence = "", own
    ours = [word for word in words.split() if word in names]
    if ours:
        rest = f": it is {ours[0]}= here."
    elif sentence:
        rest = f": {sentence}"
    elif near := difflib.get_close_matches(name, names, 1):
        rest = f". Did you mean: {near[0]!r}?"
    else:
        rest = f". It takes {', '.join(names) or 'no arguments'}."
    return f"{title}() got an unexpected keyword argument {name!r}{rest}"


def _too_many(title: str, placed: Sequence[inspect.Parameter], args: Sequence[Any], rest: Sequence[str], advice: str) -> str:
    """Returns the message for arguments by position of a function that takes those of `placed`, and `rest` by keyword."""
    if placed and placed[-1].name == "axis" and "keepdims" in rest:
        more = args[len(placed) - 1 :]
        if isinstance(more[1], bool):
            return f"{title}() takes one axis by position. Write keepdims={more[1]} by keyword."
        several = "Sequence" in str(placed[-1].annotation)
        axes = f" Several axes are one tuple: axis=({', '.join(map(shown, more))})." if several else ""
        return f"{title}() takes one axis by position.{axes}"
    by_keyword = ", ".join([f"{name}=" for name in rest])
    advice = advice or (f"Pass what follows by keyword: {by_keyword}." if by_keyword else "It has no other arguments.")
    takes = " and ".join([p.name for p in placed]) or "nothing"
    return f"{title}() takes {takes} by position, and {len(args)} arguments were given by position. {advice}"


def _too_few(title: str, missing: Sequence[str], required: Sequence[str], needs: Mapping[str, str]) -> str:
    """Returns the message for a constructor without some of its required arguments. needs: what some of them mean."""
    meant = [name for name in missing if name in needs]
    if meant:
        return f"{title} needs {meant[0]}=, {needs[meant[0]]}."
    return f"{title} needs {' and '.join(missing)}, too: {title}({', '.join(required)})."


def _title_of_call(function: Callable[..., Any], args: Sequence[Any]) -> str:
    """Returns what the user called, without its parentheses: "GRU(...)" for a layer, "GRU" for the class.

    Python names the method instead, which may be that of a base class. args: as for `misfit`.
    """
    if function.__name__ == "forward" and inspect.ismethod(function):
        return f"{type(function.__self__).__name__}(...)"
    if function.__name__ == "__init__":
        kind = args[0] if isinstance(args[0], type) else type(args[0])
        if inspect.unwrap(kind.__init__) is function:  # which a constructor of a user's subclass may call
            return kind.__name__
    return function.__qualname__.rpartition("<locals>.")[2].removesuffix(".__init__").lstrip("_")


# ---- arguments that cannot be converted


def argument_named(x: Any) -> str:
    """Returns "GRU: hx: " for an argument hx of a public function or layer GRU that is x, or holds x; "" if there is none.

    This is for errors of a conversion deep inside the function, which does not know whose argument it converts. The names are
    read from the frames, of which the outermost one of pullback belongs to what the user called.
    """
    frame: FrameType | None = current_frame(1)
    title_and_name = ""
    while frame is not None and is_ours(frame):
        if title := _title_of_frame(frame):
            code, values = frame.f_code, frame.f_locals
            count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
            names = code.co_varnames[:count]
            holders = [name for name in names if name != "self" and _holds(values.get(name), x)]
            title_and_name = f"{title}: {holders[0]}: " if holders else title_and_name
        frame = frame.f_back
    return title_and_name


def with_title(name: str, error: Exception, x: Any) -> str:
    """Returns the message of an error that x caused, which begins with a public function: with `name` if it names none yet."""
    text, title = str(error), argument_named(x)
    return text if title and text.startswith(title) else f"{name}: {text}"


def _title_of_frame(frame: FrameType) -> str:
    """Returns the name of the public function, or of the layer, that runs in the frame, or "" if it is neither."""
    code, owner = frame.f_code, frame.f_locals.get("self")
    name, kind = code.co_name, type(owner)
    public = kind.__module__ in SPACES
    if owner is not None and (name == "forward" or (name == "__init__" and public)):
        return kind.__name__
    if name[0] in "_<" or (name == "asarray" and _inside(frame)):
        return ""
    return name if _is_public(code, (kind,) if public else _loaded()) else ""


def _loaded() -> tuple[str, ...]:
    return tuple([space for space in SPACES if space in sys.modules])


def public_name(codes: Sequence[CodeType]) -> str:
    """Returns the name of the outermost public function among the codes of frames, which begin with the innermost one, or ""."""
    return next((code.co_name for code in reversed(codes) if _is_public(code, _loaded())), "")


def _inside(frame: FrameType) -> bool:
    """True if a function of pullback, and not the user's code, called the one that runs in the frame, such as a conversion."""
    caller = frame.f_back
    if caller is not None and caller.f_globals.get("__name__") == f"{__package__}.gate":
        caller = caller.f_back
    return caller is not None and is_ours(caller)


@functools.lru_cache(maxsize=1000)
def _is_public(code: CodeType, spaces: tuple[str | type, ...]) -> bool:
    """True if a method of the class, or a function that one of the modules exports, has this code."""
    for name_or_class in spaces:
        space = sys.modules[name_or_class] if isinstance(name_or_class, str) else name_or_class
        if isinstance(space, type) or code.co_name in dir(space):
            function = inspect.unwrap(getattr(space, code.co_name, None))  # type: ignore[arg-type]
            if getattr(function, "__code__", None) is code:
                return True
    return False


def _holds(argument: Any, x: Any) -> bool:
    """True if an argument is x, or a nested list, tuple or dict with x in it."""
    rest, seen = [argument], set[int]()  # A list may contain itself.
    while rest:
        value = rest.pop()
        if value is x:
            return True
        if isinstance(value, (list, tuple, dict)) and id(value) not in seen:
            seen.add(id(value))
            rest += value.values() if isinstance(value, dict) else value
    return False


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
    raise ArgumentError(f"{owner}: {name}={shown(value)} is none of {listed}.{_meant(owner, name, value, known, spelled or {})}")


def flag(name: str, what: str, value: Any, instead: str = "") -> bool:
    """Returns True or False. Raises DTypeError for any other value; `instead` is a sentence that the message ends with."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise DTypeError(f"{name}: {what}={shown(value)} must be True or False.{instead and ' '}{instead}")


def _meant(owner: str, name: str, value: Any, known: Sequence[Any], spelled: Mapping[str, str]) -> str:
    """Returns a sentence, after a space, about what to give in place of an option of another library or spelling, or nothing."""
    if not isinstance(value, str):
        is_array = has(value, "item") and not isinstance(value, Real) and attribute(value, "shape", None) == ()
        return f" It must be a Python number: give {name}.item()." if is_array else ""
    if hint := hints(f"values of {owner}.{name}").get(value):
        return f" {hint}"
    import difflib  # late, as in `keyword_text`

    written = {_letters(x): y for x, y in spelled.items()} | {_letters(x): x for x in known if isinstance(x, str)}
    near = difflib.get_close_matches(_letters(value), written, 1, 0.8)
    return f" Did you mean {written[near[0]]!r}?" if near else ""


def _letters(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "").replace(" ", "")
