"""The paths of Modules, by which profiles and error messages name them."""

from __future__ import annotations

from collections.abc import Iterable
from sys import intern
from typing import TYPE_CHECKING, Any, Final

from ..launch import door

if TYPE_CHECKING:
    from .module import Module


DEEPER: Final = (
    "Each level of Modules takes three of Python's calls. If the nest is meant to be so deep, and no forward calls itself without "
    "end, raise the limit before, by sys.setrecursionlimit(10_000)."
)


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
    put(inside)
    return inside


def put(inside: Iterable[tuple[Module, str]]) -> None:
    """Gives each Module its path."""
    for module, path in inside:
        held: Any = module.__dict__
        held["_path"] = path  # the key of the Module's scope


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
            put(known[1])
        elif ledger is not None:
            ledger.paths[id(module), path] = module, give(module)
    return path or type(module).__name__


def say_where(error: Any, module: Module) -> None:
    """Adds to an error message the layer that raised it, named by its path from `module`.

    Every module that the error passes through rewrites that path, so it finally starts at the outermost one. To a RecursionError it
    adds what helps if the nest of Modules is as deep as it should be.
    """
    if isinstance(error, RecursionError):
        if not error.args[0].endswith(DEEPER):
            error.args = (f"{error.args[0]}. {DEEPER}",)
        return
    words, layer = vars(error).setdefault("_raised", (str(error), module))
    path = next((path for path, other in module.named_modules() if other is layer), None)
    if path is None:  # `module` calls the layer, but does not hold it in an attribute.
        return
    name = type(layer).__name__
    if len(layer.modules()) == 1 and layer.extra_repr():
        name += f"({layer.extra_repr()})"
    where = f"item {path} of {type(module).__name__}" if path.isdigit() else f"{path} of {type(module).__name__}" if path else ""
    error.args = (f"{words} (in {where + ', ' if where else ''}{name})", *error.args[1:])
