"""Refuses attributes of a Module that would lose a Parameter or a Buffer."""

from __future__ import annotations

import dataclasses
from collections import UserList, deque
from collections.abc import Iterable, Mapping, Set as AbstractSet, ValuesView
from inspect import isfunction
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..duck import has
from ..errors import PullbackError, an
from ..interop.wrong_calls import flag
from ..tensors.parameter import Parameter
from .buffer import Buffer
from .walk import NO_CONTAINERS


def check_attribute(module: Any, name: str, held: Any, value: Any) -> None:
    """Raises PullbackError if the attribute, which holds `held` now, must not become `value`."""
    title = f"{type(module).__name__}.{name}"
    if name == "training":
        flag(type(module).__name__, name, value, "net.train() and net.eval() set it for all layers.")
    if name == "requires_grad" and not any([name in vars(kind) for kind in type(module).__mro__]):
        raise PullbackError(f"{title} would freeze nothing. Set net.trainable = False, which freezes all Parameters inside.")
    is_layer = has(value, "named_parameters")
    if isfunction(getattr(type(module), name, None)) and (not callable(value) or (is_layer and name != "forward")):
        raise PullbackError(
            f"{title} is a method, which {an(value)} would replace. "
            + (f"Call it: net.{name}()." if name in ("train", "eval") else "Give the attribute another name.")
        )
    if isinstance(held, Buffer) and not (value is None or isinstance(value, Buffer)):
        raise PullbackError(
            f"{title} is a Buffer, which is saved and not trained, and a {type(value).__name__} cannot take its place. Use "
            f"{name}.assign(value) to change its value. For something else there, set it to None first."
        )
    if isinstance(held, Parameter) and not (value is None or isinstance(value, Parameter)):
        raise PullbackError(
            f"{title} is a {type(held).__name__}, and a {type(value).__name__} in its place would be neither trained nor saved. "
            f"Use {name}.assign(value) to change its value, a new pb.Parameter(value) to replace it, or None to remove it."
        )
    if (hidden := _hiding(module, value)) is not None:
        why = "a set has no order by which to name its" if isinstance(hidden, AbstractSet) else f"{an(hidden)} hides its layers and"
        raise PullbackError(
            f"{title}: {why} Parameters, so they would be neither trained nor saved. Put them in a list, a tuple or a dict."
        )


def _hiding(module: Any, value: Any) -> Any:
    """Returns the value, or a container inside of it, if layers or Parameters in that container are not found; otherwise None.

    Iterators are not searched, because that would use them up.
    """
    rest, seen = [(value, None)], dict[int, Any]()  # with the container around, which may contain itself
    while rest:
        x, around = rest.pop()
        if x.__class__ in NO_CONTAINERS or x is module or id(x) in seen:
            if around is not None and isinstance(x, Parameter):
                return around
            continue
        if module._is_part(x):
            if around is not None:
                return around
            continue
        seen[id(x)] = x
        if isinstance(x, (list, tuple, dict)):
            rest += [(item, around) for item in (x.values() if isinstance(x, dict) else x)]
        else:
            rest += [(item, x if around is None else around) for item in _held(x)]
    return None


def _held(value: Any) -> Iterable[Any]:
    """Returns what a container holds in which Parameters are not found, and nothing for any other value."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (AbstractSet, ValuesView, UserList, deque)):
        return list(value)
    if isinstance(value, np.ndarray):
        return value.ravel().tolist() if value.dtype.hasobject else ()
    if isinstance(value, SimpleNamespace) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return list(vars(value).values()) if hasattr(value, "__dict__") else ()
    return ()
