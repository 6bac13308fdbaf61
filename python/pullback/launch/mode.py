"""The mode of a Module, training or evaluation, which one thread may replace for a time without changing the Module."""

from __future__ import annotations

from typing import Any

from .door import state


class Mode:
    """The attribute `training` of Modules. It is in the Module's dict, under its name.

    A checkpoint computes its function again in the modes of the forward pass. Another thread may call the same Modules meanwhile,
    so they keep their modes, and `state.replaced` holds those of this thread. What the function sets lasts as long.
    """

    def __init__(self, default: bool) -> None:
        self.default = default

    def __get__(self, module: Any, kind: Any = None) -> bool:
        if module is None:
            return self.default
        if state.replaced and id(module) in state.replaced:
            return state.replaced[id(module)][1]
        return vars(module).get("training", self.default)

    def __set__(self, module: Any, value: bool) -> None:
        if id(module) in state.replaced:
            state.replaced[id(module)] = module, value
        else:
            vars(module)["training"] = value

    def __delete__(self, module: Any) -> None:
        vars(module).pop("training", None)
