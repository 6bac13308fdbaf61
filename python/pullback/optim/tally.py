"""What an update rule costs, by running it once on a stand-in for an element that counts."""

from __future__ import annotations

from typing import Any


class Tally:
    """One element (a weight, its gradient, a slot: one object plays them all) that counts what a rule does with it.

    Divisions and roots are special ops; comparisons are not counted.
    """

    def __init__(self) -> None:
        self.adds = self.multiplies = self.special_ops = 0

    def _add(self, other: Any) -> Tally:
        self.adds += 1
        return self

    def _multiply(self, other: Any) -> Tally:
        self.multiplies += 1
        return self

    def _special(self, other: Any) -> Tally:
        self.special_ops += 1
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = _add
    __mul__ = __rmul__ = _multiply
    __truediv__ = __rtruediv__ = __pow__ = _special

    def clip(self, low: Any, high: Any) -> Tally:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        """A slot takes its new value."""
