"""Facts: what a recording of a captured function read in Python, in the form that the kernel module compares before each replay.

A fact says what a holder has under a key. Holders of one kind are read in one way (READS), and a value is compared in one way
(HOWS); csrc/bindings/facts.cpp has the same numbers. What is compared by identity is held by a weak reference where its class
allows one, so a recording keeps no model alive, and an object that is gone is a change.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple
from weakref import ref

import numpy as np

ATTRIBUTE, NAME, CELL, ITEM, SLOT, ENTRY = range(6)  # how a holder is read: READS
SAME, REFERENT, VALUE, ITEMS, LENGTH, ABSENT = range(6)  # how a value is compared: HOWS
NOTHING: Final = object()  # stands for the value under a key that a holder does not have
MOST: Final = 64  # items of a container that are compared one by one
DEPTH: Final = 8  # containers inside one another that are compared by their items

# What a function does with a place. COUNT is an augmented assignment that is its only load, GUESS a possible load by `getattr`, and
# NAMED a possible load by the name of an attribute, of an object that no chain tells.
LOAD, STORE, COUNT, GUESS, NAMED = 1, 2, 4, 8, 16

_NUMBERS: Final = (int, float, complex, str, bytes)


class Location(NamedTuple):
    """Where a value stands: under the first key of the path in the holder, and below it in dicts, lists and tuples."""

    read: int
    holder: Any
    path: tuple[Any, ...]


def is_container(value: Any) -> bool:
    """True if a value is compared by its items. A subclass may iterate in Python, which a comparison must not run."""
    return isinstance(value, (dict, list, tuple)) or (
        isinstance(value, (set, frozenset, deque)) and type(value).__iter__ in (set.__iter__, frozenset.__iter__, deque.__iter__)
    )


def frozen(value: Any, around: tuple[Any, ...] = ()) -> tuple[int, Any]:
    """Returns how a value is compared, and with what."""
    kind = type(value)
    if value is NOTHING:
        return ABSENT, None
    if kind in _NUMBERS or (issubclass(kind, np.generic) and kind.__module__ == "numpy"):
        return VALUE, value
    if kind is Contents:
        return VALUE, value.array
    if not is_container(value):
        return _identity(value)
    if len(value) > MOST:
        return LENGTH, (_identity(value)[1], len(value))
    if len(around) == DEPTH or any([value is outer for outer in around]):
        return SAME, value
    around = (*around, value)
    if isinstance(value, dict):
        pairs = OrderedDict.items(value) if isinstance(value, OrderedDict) else dict.items(value)  # no method of a derived class
        items = [part for key, x in pairs for part in (key, *frozen(x, around))]
    else:
        items = [part for x in value for part in frozen(x, around)]
    attributes = getattr(value, "__dict__", None)  # of a derived class
    return ITEMS, (kind, tuple(items), *([frozen(attributes, around)] if type(attributes) is dict else []))


def _identity(value: Any) -> tuple[int, Any]:
    try:
        return REFERENT, ref(value)
    except TypeError:  # its class takes no weak references
        return SAME, value


class Contents(NamedTuple):
    """A copy of an array, which is compared by its elements."""

    array: Any


class Fact:
    """What is expected at a place.

    Attributes:
        how, expected: as `frozen` returns them.
        label: the place for messages, such as "N.scale".
        uses: what the functions that ran do with it: LOAD, STORE, COUNT, GUESS and NAMED together.
    """

    __slots__ = ("expected", "how", "label", "uses")

    def __init__(self, value: Any, label: str) -> None:
        self.how, self.expected = frozen(value)
        self.label, self.uses = label, 0


class _Group:
    """The facts of one holder, by path."""

    def __init__(self, read: int, holder: Any) -> None:
        self.read = read
        self.holder = _identity(holder)[1] if read in (ATTRIBUTE, CELL, SLOT, ENTRY) else holder
        self.kind = ref(type(holder))
        self.facts: dict[tuple[Any, ...], Fact] = {}

    def is_of(self, holder: Any) -> bool:
        return (self.holder() if type(self.holder) is ref else self.holder) is holder

    def is_abandoned(self) -> bool:
        """True if the holder is gone, or only this group keeps it alive."""
        if type(self.holder) is ref:
            return self.holder() is None
        return sys.getrefcount(self.holder) <= 2  # the group's and the argument; a local variable has none from CPython 3.14 on


class Facts(NamedTuple):
    """The facts of a recording. `labels` has the labels of `groups`, in their order."""

    changed_in: Callable[[Any], tuple[int, int] | None] = lambda groups: None
    groups: tuple[Any, ...] = ()
    labels: tuple[tuple[str, ...], ...] = ()

    def change(self) -> str | None:
        """Returns the label of the first fact that no longer holds."""
        found = self.changed_in(self.groups)
        return None if found is None else self.labels[found[0]][found[1]]

    def lost(self) -> bool:
        """True if an object that a fact is about, or that it expects, is gone."""
        facts = [fact for group in self.groups for fact in group[2:]]
        held = [*[group[1] for group in self.groups], *[expected for _, how, expected in facts if how == REFERENT]]
        return any([type(x) is ref and x() is None for x in held])

    def lines(self) -> list[str]:
        """Returns a line for each fact, for `explain()`, except that an object has no attribute in place of its class's."""
        return [
            f"{label} = {_shown(*fact[1:])}"
            for group, labels in zip(self.groups, self.labels) for fact, label in zip(group[2:], labels) if fact[1] != ABSENT
        ]


class Table:
    """Collects the facts of one recording while it runs. `changed_in` is the kernel module's function that compares them."""

    def __init__(self, changed_in: Callable[[Any], tuple[int, int] | None]) -> None:
        self.changed_in = changed_in
        self._groups: dict[tuple[int, int], _Group] = {}

    def note(self, place: Location, value: Any, label: str, use: int) -> None:
        """Notes what a function does with a place, and the value there, unless it is known already."""
        read, holder, path = place
        key = read, id(holder)
        group = self._groups.get(key)
        if group is None or not group.is_of(holder):  # another object had this address
            group = self._groups[key] = _Group(read, holder)
        fact = group.facts.get(path)
        if fact is None:
            fact = group.facts[path] = Fact(value, label)
        fact.uses |= use

    def places(self) -> Iterator[tuple[Location, Fact]]:
        """Yields all facts of holders that are alive."""
        for group in self._groups.values():
            holder = group.holder() if type(group.holder) is ref else group.holder
            for path, fact in group.facts.items() if holder is not None else ():
                yield Location(group.read, holder, path), fact

    def forget(self, place: Location) -> None:
        """Forgets what was noted about a place, and about those below it."""
        if self.has(place):
            facts, depth = self._groups[place.read, id(place.holder)].facts, len(place.path)
            for path in [path for path in facts if path[:depth] == place.path]:
                del facts[path]

    def has(self, place: Location) -> bool:
        """True if the holder of a place is alive."""
        group = self._groups.get((place.read, id(place.holder)))
        return group is not None and group.is_of(place.holder)

    def drop_temporary(self, value_at: Callable[[Location], Any]) -> None:
        """Drops the facts of objects that only this table has kept alive. What they have from their classes, these have."""
        while abandoned := [key for key, group in self._groups.items() if group.is_abandoned()]:  # a group may hold other holders
            for key in abandoned:
                group = self._groups.pop(key)
                kind = group.kind() if group.read == ATTRIBUTE else None
                for path, fact in group.facts.items() if kind is not None else ():
                    place = Location(ENTRY, kind, path)
                    if (x := value_at(place)) is not NOTHING or fact.how == ABSENT:
                        self.note(place, x, fact.label, fact.uses)
                del group

    def changed(self) -> list[Fact]:
        """Returns the facts that no longer hold, and forgets the guesses among them."""
        found = []
        for group in self._groups.values():
            for path, fact in list(group.facts.items()):
                if self.changed_in((_packed(group, [(path, fact)]),)) is not None:
                    found.append(fact)
                    if fact.uses == GUESS:
                        del group.facts[path]
        return found

    def finished(self) -> Facts:
        """Returns what a replay has to compare."""
        groups, labels = [], []
        for group in self._groups.values():
            facts = [(path, fact) for path, fact in group.facts.items() if fact.uses != COUNT]
            if facts:
                groups.append(_packed(group, facts))
                labels.append(tuple([fact.label for _, fact in facts]))
        return Facts(self.changed_in, tuple(groups), tuple(labels))


def _packed(group: _Group, facts: list[tuple[tuple[Any, ...], Fact]]) -> tuple[Any, ...]:
    return (
        group.read, group.holder,
        *[(path[0] if len(path) == 1 else path, fact.how, fact.expected) for path, fact in facts],
    )


def _shown(how: int, expected: Any) -> str:
    if how == ITEMS:
        return f"{expected[0].__name__} of {len(expected[1]) // (3 if issubclass(expected[0], dict) else 2)} items"
    if how == LENGTH:
        return f"{expected[1]} items"
    value = expected() if how == REFERENT else expected
    return repr(value) if how == VALUE or value is None or isinstance(value, bool) else f"this {type(value).__name__}"
