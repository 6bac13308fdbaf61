"""The public modules, found by following `dir` from pullback."""

from __future__ import annotations

from types import ModuleType

import pullback as pb


def spaces() -> list[ModuleType]:
    """Returns pullback and the modules that it shows, and those that these show. `pb.config` checks what is assigned instead."""
    found, rest = list[ModuleType](), [pb]
    while rest:
        space = rest.pop(0)
        found.append(space)
        rest += [x for x in [getattr(space, name) for name in dir(space)] if type(x) is ModuleType and x not in found]
    return found
