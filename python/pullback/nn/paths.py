"""The paths of Modules, by which profiles and error messages name them."""

from __future__ import annotations

from collections.abc import Iterable
from sys import intern
from typing import TYPE_CHECKING, Any

from ..launch import door

if TYPE_CHECKING:
    from .module import Module


def give(module: Module) -> None:
    """Gives the Modules inside paths that continue the Module's own."""
    prefix = module._path and f"{module._path}."
    for path, inner in module.named_modules():
        if path:
            vars(inner)["_path"] = intern(prefix + path)  # the key of the Module's scope


def give_to_children(module: Module, children: Iterable[tuple[str, Module]]) -> None:
    """Gives paths to the Modules that `module` is about to hold, and to those inside. One that holds `module` keeps its own."""
    for path, child in children:
        if not any([inner is module for inner in child.modules()]):
            vars(child)["_path"] = intern(f"{module._path}.{path}" if module._path else path)
            give(child)


def scope_of(module: Module, around: int) -> str:
    """Returns the name of a Module that is called in the scope `around`: its path, or its class if no other Module holds it.

    An outermost Module gives the paths again, because lists may have got Modules, and other networks may hold the same ones.
    """
    told = door.state.ledger is not None or door.state.recording_active
    if told and not (module._path and door.scopes[around].module):
        give(module)
    return module._path or type(module).__name__


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
