"""Adds to an error message which layer of a network raised it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .module import Module


def say_where(error: Any, module: Module) -> None:
    """Adds to an error message the layer that raised it, named by its path from `module`.

    Every module that the error passes through rewrites that path, so it finally starts at the outermost one.
    """
    words, layer = vars(error).setdefault("_raised", (str(error), module))
    path = next((path for path, other in module.named_modules() if other is layer), None)
    if path is None:  # `module` calls the layer, but does not hold it in an attribute.
        return
    name = type(layer).__name__
    if len(layer.modules()) == 1 and layer.extra_repr():
        name += f"({layer.extra_repr()})"
    where = f"item {path} of {type(module).__name__}" if path.isdigit() else f"{path} of {type(module).__name__}" if path else ""
    error.args = (f"{words} (in {where + ', ' if where else ''}{name})", *error.args[1:])
