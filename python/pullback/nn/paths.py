"""The paths of Modules, by which profiles and error messages name them."""

from __future__ import annotations

from collections.abc import Iterable
from sys import intern
from typing import TYPE_CHECKING, Any

from ..launch import door

if TYPE_CHECKING:
    from .module import Module


def join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def items(name: str, value: Any) -> list[tuple[str, Any]]:
    """Returns the entries of a container with their paths, and an empty list for any other value."""
    if isinstance(value, (list, tuple)):
        return [(f"{name}.{i}", x) for i, x in enumerate(value)]
    if isinstance(value, dict):
        return [(f"{name}.{key}", x) for key, x in value.items()]
    return []


def give(module: Any) -> list[tuple[Module, str]]:
    """Gives the Modules inside paths that continue the Module's own. Returns these Modules with their paths."""
    prefix = module._path and f"{module._path}."
    inside = [(inner, intern(prefix + path)) for path, inner in module.named_modules() if path]
    _set(inside)
    return inside


def _set(inside: Iterable[tuple[Module, str]]) -> None:
    for module, path in inside:
        held: Any = module.__dict__
        held["_path"] = path  # the key of the Module's scope


def give_to_children(module: Any, children: Iterable[tuple[str, Module]]) -> None:
    """Gives paths to the Modules that `module` is about to hold, and to those inside. One that holds `module` keeps its own."""
    for path, child in children:
        inside = list(child.named_modules())
        if not any([inner is module for _, inner in inside]):
            prefix = join(module._path, path)
            _set([(inner, intern(join(prefix, below) if below else prefix)) for below, inner in inside])


def scope_of(module: Any, around: int) -> str:
    """Returns the name of a Module that is called in the scope `around`: its path, or its class if no other Module holds it.

    An outermost Module gives the paths again, because lists may have got Modules, and other networks may hold the same ones. It
    looks for Modules in its first call in a profile, and in each call that is recorded.
    """
    path, ledger = module._path, door.state.ledger
    if not (path and door.scopes[around].module):
        if door.state.recording_active:
            give(module)
        elif ledger is not None and (known := ledger.paths.get((id(module), path))):
            _set(known[1])
        elif ledger is not None:
            ledger.paths[id(module), path] = module, give(module)
    return path or type(module).__name__


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
