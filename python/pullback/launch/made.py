"""What a captured function makes while it is recorded, and what it cannot make."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

from ..autodiff.site import Site, call_site
from . import capturing


class Made:
    """The living Modules and Parameters that one run of a captured function has made.

    Every replay makes them anew, in the memory of the plan. A recording cannot be used again if one of them outlives its run,
    because an eager call would either make another one, or find this one and make none.

    Attributes:
        memory: True if one of them was a Parameter.
    """

    def __init__(self) -> None:
        self.memory = False
        self._living: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._sites: dict[int, Site] = {}

    def __contains__(self, x: object) -> bool:
        return self._living.get(id(x)) is x

    def add(self, x: Any) -> None:
        """Adds an object, with the user's line that makes it."""
        self._living[id(x)] = x
        self._sites[id(x)] = call_site()
        self.memory = self.memory or hasattr(x, "storage")

    def kept(self, but: Sequence[Any] = ()) -> tuple[str, Site] | None:
        """Returns the class and the site of an object, not one of these, that is still in use at the end of the run, or None."""
        if self._living:
            gc.collect()  # frees what only cycles hold
        rest = [x for x in self._living.values() if not any([x is other for other in but])]
        return (type(rest[0]).__name__, self._sites[id(rest[0])]) if rest else None


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
