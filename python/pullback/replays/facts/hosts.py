"""Random generators of the host: those of NumPy, of Python's `random` and of PyTorch, whose numbers a replay would not draw."""

from __future__ import annotations

import pickle
import sys
from types import BuiltinFunctionType, MethodType, ModuleType
from typing import Any


def state_of(x: Any) -> Any:
    """Returns the state of a random generator in a form that can be compared; None for any other object."""
    modules = sys.modules
    if (numpy := modules.get("numpy.random")) is not None:
        if isinstance(x, numpy.Generator):
            return pickle.dumps(x.bit_generator.state)
        if isinstance(x, numpy.RandomState):  # its normal numbers come in pairs, and the second one is part of the state
            return [part.tobytes() if hasattr(part, "tobytes") else part for part in x.get_state()]
    if (python := modules.get("random")) is not None and isinstance(x, python.Random):
        return x.getstate()
    if (torch := modules.get("torch")) is not None and isinstance(x, torch.Generator):
        return bytes(x.get_state().tolist())
    return None


def global_generators() -> dict[str, Any]:
    """Returns the generators behind the functions of `random`, `numpy.random` and `torch`, by the module that names them."""
    found: dict[str, Any] = {}
    for name, inside in (("random", "_inst"), ("numpy.random", "mtrand._rand"), ("torch", "default_generator")):
        x = sys.modules.get(name)
        for part in inside.split("."):
            x = getattr(x, part, None)
        if x is not None:
            found[name] = x
    return found


class States:
    """The states that the generators had when a recording met them."""

    def __init__(self) -> None:
        self._global = global_generators()
        self._met: dict[int, tuple[Any, Any, str]] = {}
        self._unnamed = {name: state_of(x) for name, x in self._global.items() if name != "torch"}

    def meet(self, value: Any, label: str) -> None:
        """Notes a generator, or the one that a function or a method draws from."""
        if isinstance(value, (BuiltinFunctionType, MethodType)):
            owner: Any = value.__self__
            value = self._global.get("torch") if _is_of_torch(owner) else owner
        if value is not None and id(value) not in self._met and (state := state_of(value)) is not None:
            self._met[id(value)] = value, state, label

    def meet_module(self, module: ModuleType, name: str) -> None:
        """Notes the generator behind a module whose attribute is read."""
        title = module.__name__ if module.__name__ != "numpy" or name != "random" else "numpy.random"
        if (value := self._global.get(title.partition(".")[0] if title.startswith("torch") else title)) is not None:
            self.meet(value, f"the global generator of {title.partition('.')[0] if title.startswith('torch') else title}")

    def drew(self) -> list[str]:
        """Returns the labels of the generators whose state has changed since they were met."""
        return [label for value, state, label in self._met.values() if state_of(value) != state]

    def drew_unnamed(self) -> bool:
        """True if a global generator that no function of the user's names has changed its state, in whichever thread."""
        others = [(self._global[x], state) for x, state in self._unnamed.items() if id(self._global[x]) not in self._met]
        return any([state_of(x) != state for x, state in others])


def _is_of_torch(owner: Any) -> bool:
    return str(getattr(owner, "__module__", None) or getattr(owner, "__name__", "")).startswith("torch")
