"""What a captured function makes while it is recorded, and what it cannot make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

from . import capturing


class Made:
    """The living Modules and Parameters that one run of a captured function has made. Every replay makes them anew.

    Attributes:
        memory: True if one of them was a Parameter.
    """

    def __init__(self) -> None:
        self.memory = False
        self._living: WeakValueDictionary[int, Any] = WeakValueDictionary()

    def __contains__(self, x: object) -> bool:
        return x is not None and self._living.get(id(x)) is x

    def add(self, x: Any) -> None:
        self._living[id(x)] = x
        self.memory = self.memory or hasattr(x, "storage")


class MadeOutside:
    """Base of what keeps state from call to call: optimizers and what belongs to them, random generators, Loaders.

    Neither a constructor nor a copy can make one inside a captured function. A replay would not make it anew, so that its state
    would go on from call to call.
    """

    _instead: ClassVar[str] = ""  # what else to do, for the error

    if not TYPE_CHECKING:  # so that type checkers read the arguments of __init__

        def __new__(cls, *args, **options):
            capturing.refuse(f"a new {cls.__name__}, which keeps state from call to call,", f"Make it outside{cls._instead}.")
            return super().__new__(cls)
