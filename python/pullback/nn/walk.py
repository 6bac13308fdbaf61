"""Finds the Modules and the Parameters in the attributes of a Module."""

from __future__ import annotations

import math
from collections.abc import Iterator
from sys import intern
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

DEEP: Final = 50  # levels of Modules, far fewer than Python's calls


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

    A module comes before those inside.
    """
    for path, inner, _ in walk_levels(module, prefix, math.inf):
        yield path, inner


def walk_levels(module: Module, prefix: str, most: float) -> Iterator[tuple[str, Module, int]]:
    """Yields (path, module, level) as `walk_modules` does, down to the level `most` below the module.

    The loop keeps the modules still to come itself, so that a deep nest takes linear time.
    """
    seen, rest = set[int](), [(prefix, module, 0)]
    while rest:
        path, inner, level = rest.pop()
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        yield path, inner, level
        if level < most:
            inside = [found for name, x in vars(inner).items() for found in children(paths.join(path, name), x)]
            rest += [(below, child, level + 1) for below, child in reversed(inside)]


def give_paths(module: Any, name: str, value: Any) -> None:
    """Gives paths to the Modules in an attribute that `module` is about to get, and to those inside. One that holds `module` keeps
    its own.

    Modules more than DEEP levels below get theirs when the outermost one is called in a profile, so that a deep nest is built in
    linear time.
    """
    for path, child in children(name, value):
        inside = [(below, inner) for below, inner, _ in walk_levels(child, "", DEEP)]
        if not any([inner is module for _, inner in inside]):
            prefix = paths.join(module._path, path)
            paths.put([(inner, intern(paths.join(prefix, below) if below else prefix)) for below, inner in inside])


def every_path(module: Module, prefix: str) -> Iterator[tuple[str, Parameter]]:
    """Yields (path, tensor) for all tensors inside. A tensor that is used in several places comes under each of its paths."""
    around, walks = {id(module)}, [(module, _contents(module, prefix))]
    while walks:
        inner, contents = walks[-1]
        for path, x in contents:
            if isinstance(x, Parameter):
                yield path, x
            elif id(x) not in around:
                around.add(id(x))
                walks.append((x, _contents(x, path)))
                break
        else:
            around.remove(id(inner))
            walks.pop()


def _contents(module: Module, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yields (path, value) for the tensors and the Modules in the attributes of a Module."""
    for name, value in vars(module).items():
        yield from tensors_in(value, paths.join(prefix, name))
        yield from children(paths.join(prefix, name), value)


def listing(module: Module) -> str:
    """Returns the text of a Module: a line for each Module inside, indented by its level."""
    lines, around = list[str](), set[int]()
    rest: list[tuple[int, str, Any]] = [(0, "", module)]  # level, head of the line, and a Module, or None after those inside
    while rest:
        level, head, inner = rest.pop()
        if inner is None:
            around.remove(int(head))
            head, text, inside = "", ")", []
        else:
            text, inside = _line_of(inner, module, around)
        indent = "  " * level
        lines.append(f"{indent}{head}{text}".replace("\n", f"\n{indent}"))
        if inside:
            around.add(id(inner))
            rest.append((level, str(id(inner)), None))
            rest += [(level + 1, f"({name}): ", child) for name, child in reversed(inside)]
    return "\n".join(lines)


def _line_of(inner: Module, outermost: Module, around: set[int]) -> tuple[str, list[tuple[str, Module]]]:
    """Returns the text of a Module without those inside, and those inside."""
    if id(inner) in around:  # a Module inside may hold a transform of a method of this one
        return "...", []
    if inner is not outermost and type(inner).__repr__ is not attached.Module.__repr__:
        return repr(inner), []
    title, head = type(inner).__name__, inner.extra_repr()
    inside = [found for name, x in vars(inner).items() for found in children(name, x) if found[1] is not inner]
    if not inside:
        return f"{title}({head})", []
    return f"{title}(\n  {head}" if head else f"{title}(", inside
