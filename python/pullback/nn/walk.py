"""Finds the Modules and the Parameters in the attributes of a Module."""

from __future__ import annotations

from collections.abc import Iterator
from types import MethodType
from typing import TYPE_CHECKING, Any, Final

from ..function_wrapper import FunctionWrapper, innermost
from ..tensors.attached import attached
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from . import paths
from .buffer import Buffer

if TYPE_CHECKING:
    from .module import Module

# Short cuts for most values: classes in which neither Modules nor Parameters are, and those whose values are no Modules.
NO_CONTAINERS: Final = {type(None), bool, int, float, str, Tensor, Parameter, Buffer}
_NO_MODULES: Final = {*NO_CONTAINERS, tuple, list, dict}


def module_of(value: Any) -> Module | None:
    """Returns a Module itself, and for what a transform returned the Module that it calls, or whose method it calls."""
    if value.__class__ in _NO_MODULES:
        return None
    if isinstance(value, FunctionWrapper):
        value = innermost(value)
        value = value.__self__ if isinstance(value, MethodType) else value
    return value if isinstance(value, attached.Module) else None


def children(name: str, value: Any) -> Iterator[tuple[str, Module]]:
    """Yields the Modules in an attribute's value: the value itself, or the Modules in nested lists, tuples and dicts."""
    if (module := module_of(value)) is not None:
        yield name, module
    else:
        for path, x in paths.items(name, value):
            yield from children(path, x)


def tensors_in(value: Any, path: str) -> Iterator[tuple[str, Parameter]]:
    if isinstance(value, Parameter):
        yield path, value
    elif not isinstance(value, attached.Module):
        for inner, x in paths.items(path, value):
            yield from tensors_in(x, inner)


def leaf_at(value: Any, path: str, wanted: str) -> Any:
    """Returns the value at the path `wanted`, or the leaf that the path runs into before its end.

    Returns None if the path leads nowhere, or to a container or a Module.
    """
    if isinstance(value, (list, tuple, dict)):
        return next((x for inner, y in paths.items(path, value) if (x := leaf_at(y, inner, wanted)) is not None), None)
    return value if not isinstance(value, attached.Module) and (wanted == path or wanted.startswith(path + ".")) else None


def walk_modules(module: Module, prefix: str) -> Iterator[tuple[str, Module]]:
    """Yields (path, module) for the module itself, whose path is the prefix, and for all modules inside, each once.

    A module comes before those inside. The loop keeps the ones still to come itself, so that a deep nest takes linear time.
    """
    seen, rest = set[int](), [(prefix, module)]
    while rest:
        path, inner = rest.pop()
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        yield path, inner
        rest += [found for name, x in vars(inner).items() for found in children(paths.join(path, name), x)][::-1]


def every_path(module: Module, prefix: str, around: tuple[Module, ...]) -> Iterator[tuple[str, Parameter]]:
    """Yields (path, tensor) for all tensors inside. A tensor that is used in several places comes under each of its paths."""
    around = (*around, module)
    for name, value in vars(module).items():
        yield from tensors_in(value, paths.join(prefix, name))
        for path, child in children(paths.join(prefix, name), value):
            if not any([child is outer for outer in around]):
                yield from every_path(child, path, around)
