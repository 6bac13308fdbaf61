"""Refuses attributes of a Module that would lose a Parameter or a Buffer."""

from __future__ import annotations

from inspect import isfunction
from typing import Any

from ..errors import PullbackError, an
from ..interop.wrong_calls import flag
from ..tensors.parameter import Parameter
from .buffer import Buffer


def check_attribute(module: Any, name: str, held: Any, value: Any) -> None:
    """Raises PullbackError if the attribute, which holds `held` now, must not become `value`."""
    title = f"{type(module).__name__}.{name}"
    if name == "training":
        flag(type(module).__name__, name, value, "net.train() and net.eval() set it for all layers.")
    is_layer = hasattr(value, "named_parameters")
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
    if isinstance(value, (set, frozenset)) and any([module._is_part(x) for x in value]):
        raise PullbackError(
            f"{title}: a set has no order by which to name its Parameters, so they would be neither trained nor saved. Put them in "
            f"a list, a tuple or a dict."
        )
