"""The public modules, found by following `dir` from pullback, and the names from other libraries that errors answer."""

from __future__ import annotations

from types import ModuleType

import pullback as pb
from pullback.interop.hints import hints, sections


def spaces() -> list[ModuleType]:
    """Returns pullback and the modules that it shows, and those that these show. `pb.config` checks what is assigned instead."""
    found, rest = list[ModuleType](), [pb]
    while rest:
        space = rest.pop(0)
        found.append(space)
        rest += [x for x in [getattr(space, name) for name in dir(space)] if type(x) is ModuleType and x not in found]
    return found


def names_elsewhere() -> dict[str, dict[str, str]]:
    """Returns the hints for names, by the public module or the class that does not have them."""
    return {title: hints(title) for title in sections() if title not in ("keywords", "calls") and " of " not in title}
