"""Finds what the Python functions that run in a recording read, from the names in their code.

A function of the user's, and every method of a Module, is read when it begins: its globals, closure and arguments, and the
attributes and constant items that it names below them. Attributes are looked up in the objects' dicts, slots and classes, so
that no property and no other method runs.
"""

from __future__ import annotations

import builtins
import functools
import gc
import inspect
import io
import operator
import sys
from collections.abc import Iterable, Mapping
from types import CodeType, FrameType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, Final

from ...function_wrapper import FunctionWrapper, innermost
from ...launch import capturing, door
from ...launch.mode import Mode
from ...tensors.attached import attached
from ...tensors.parameter import Parameter
from ...tensors.tensor import Tensor
from ..served import Served
from . import hosts
from .arrays import Arrays
from .facts import (
    ATTRIBUTE,
    CELL,
    COUNT,
    DEPTH,
    ENTRY,
    GUESS,
    ITEM,
    LOAD,
    NAME,
    NAMED,
    NOTHING,
    SLOT,
    STORE,
    Location,
    Table,
    is_container,
)
from .lookup import (
    CLOSED,
    attributes_of,
    containers_behind,
    has_variables,
    is_closed,
    is_frame_of_library,
    is_frame_of_method,
    is_installed,
    is_library,
    is_of_library,
    is_plain,
    item,
    items,
    looked_up,
    methods_with,
    slot,
    unaliased,
    value_at,
    wrapped_in,
)
from .names import GUESSING, SETTING, SUPER, Chain, ChainStep, mentions, names_in

# Methods of an array that compute numbers of its elements.
_NUMBERS: Final = frozenset(
    ("all", "any", "argmax", "argmin", "dot", "item", "max", "mean", "min", "prod", "std", "sum", "tolist", "var")
)
_FORM: Final = ("dtype", "ndim", "shape", "size", "T")  # attributes of an array that do not depend on its elements
OBJECTS: Final = 1000  # objects whose attributes are looked up by name alone


class Reading:
    """What the functions of one recording read.

    Args:
        table: receives the facts.
        function: the captured function.
        by_value: the ids of arguments whose attributes their own `__eq__` compares.
        copies: arrays of the host are copied when they are read, and not read in place by each replay.
    """

    def __init__(self, table: Table, function: Any, by_value: set[int], copies: bool) -> None:
        self._table, self._by_value = table, by_value
        self._functions: dict[int, list[FunctionType]] = {}  # by the id of their code
        self._inner: set[int] = set()  # the ids of the code of functions that those that ran define
        self._read: dict[int, list[list[Any]]] = {}  # by the id of their code, the roots for which it was read
        self._guesses = 0  # what a function that is being read may do with attributes under names that it computes
        self._made: list[Any] = []  # the objects whose `__init__` ran
        self._objects: dict[int, tuple[Any, str]] = {}  # by id, the objects that were met, with their labels
        self._names: set[str] = set()  # the attributes that the functions read of objects which no chain tells
        self._asked: set[str] = set()  # those that an object may lack
        self.codes: list[CodeType] = []  # the code that was read
        self.defines = False  # True if the body of a class ran
        self.generators = hosts.States()
        self.iterators: list[tuple[Location, str]] = []
        self.arrays = Arrays(copies)
        self._know(function.function if isinstance(function, Served) else function)

    def seen(self, frame: FrameType) -> bool:
        """Reads what a function that begins names. Returns False if its code is never looked into."""
        code = frame.f_code
        library = is_frame_of_library(frame)
        if (library and not is_frame_of_method(frame)) or frame.f_globals.get("__name__", "").startswith("namedtuple_"):
            return False
        self.defines |= not code.co_flags & inspect.CO_OPTIMIZED
        names = names_in(code)
        if id(code) in self._read and names.is_constant:
            return True
        chains_of = ((names.loads, LOAD), (names.stores, STORE), (names.counters, COUNT))
        roots = {(chain.root, chain.name) for chains, _ in chains_of for chain in chains}
        local = frame.f_locals if not names.is_constant else {}
        given = {name: local.get(name, NOTHING) for root, name in roots if root == "argument"}
        variables = [local.get(name, NOTHING) for root, name in roots if root == "free"]
        objects = [*[x for x in given.values() if not is_plain(x)], *variables]
        if code.co_argcount and not library:
            first = (local or frame.f_locals).get(code.co_varnames[0], NOTHING)
            if code.co_name == "__init__":
                self._made.append(first)
            made = self._is_made(first)
            self._object(type(first) if made else first, type(first).__name__)
            for base in type(first).__mro__ if mentions(code, SUPER) else ():
                self._object(base, base.__name__)
            self._method(first, code, made)
        self._names -= names.asked - self._asked
        self._asked |= names.asked
        if not library:
            self._read_everywhere(names.attributes)
        before = self._read.setdefault(id(code), [])
        if any([len(others) == len(objects) and all([a is b for a, b in zip(objects, others)]) for others in before]):
            return True
        if not before:
            self.codes.append(code)
            self._inner.update([id(x) for x in code.co_consts if isinstance(x, CodeType)])
        before.append(objects)
        self._guesses = STORE if mentions(code, SETTING) else GUESS if mentions(code, GUESSING) else 0
        functions = self._functions_of(code, local) if any([root == "free" for root, _ in roots]) else []
        for chains, use in chains_of:
            for chain in chains if not library else [x for x in chains if x.root == "argument"]:
                self._root(chain, frame, given, functions, use)
        return True

    def attribute(self, owner: Any, name: str) -> None:
        """Reads an attribute of an object that pullback itself has read."""
        self._follow(None, owner, (ChainStep("attr", name),), type(owner).__name__, "", LOAD)

    def end(self) -> None:
        """Lets go of the arguments and functions that were kept while the recording ran."""
        self._functions.clear()
        self._read.clear()
        self._made.clear()
        self._objects.clear()

    def _read_everywhere(self, names: Iterable[str]) -> None:
        """Notes attributes of these names of all objects that were met, and of those that will be."""
        new = set(names) - self._names
        self._names |= new
        for value, label in list(self._objects.values()) if new else ():
            for name in new:
                self._named(value, name, label)
            self._inside(value, label)

    def _object(self, value: Any, label: str) -> None:
        """Notes that the run may read the attributes of an object, and of others of its class that the run makes."""
        if id(value) in self._objects or is_closed(value):
            return
        self._object(type(value), type(value).__name__)
        if len(self._objects) >= OBJECTS and not isinstance(value, type):
            return
        self._objects[id(value)] = value, label
        for name in list(self._names):
            self._named(value, name, label)
        self._inside(value, label)

    def _inside(self, value: Any, label: str) -> None:
        """Meets the Modules inside a Module, which its methods give to whoever asks for them."""
        if isinstance(value, attached.Module):
            for name, x in vars(value).items():
                below = items(x) if is_container(x) else [x]
                if is_container(x) and any([isinstance(y, (attached.Module, Parameter)) for y in below]):
                    self._table.note(Location(ATTRIBUTE, value, (name,)), x, f"{type(value).__name__}.{name}", LOAD)
                for y in below if self._names else ():
                    self._object(y, f"{label}.{name}")

    def _named(self, value: Any, name: str, label: str) -> None:
        """Notes an attribute of an object unless it is not there, or a method, which its class has."""
        label += f".{name}"
        place, x = self._attribute(value, name, label, methods=isinstance(value, type)) or (None, NOTHING)
        if place is not None and (x is not NOTHING or place.read == SLOT or name in self._asked):
            self._table.note(place, x, label, NAMED)
            if name == "__match_args__" and isinstance(x, tuple):
                self._read_everywhere(x)
            self._meet(None, x, label)
            self._items(x, label)
            self.arrays.meet(x, label, computes=not _NUMBERS.isdisjoint(self._names))

    # ---- roots

    def _root(self, chain: Chain, frame: FrameType, given: dict[str, Any], functions: list[FunctionType], use: int) -> None:
        name, code = chain.name, frame.f_code
        if chain.root == "argument":
            value = given[name]
            if self._is_made(value):
                self._object(type(value), type(value).__name__)
                self._read_everywhere(chain.attributes())
                return
            if value is NOTHING or is_plain(value):
                return
            label, where = (type(value).__name__, "") if name == "self" else (name, f" of {code.co_name}")
            self._follow(None, value, chain.steps, label, where, use)
        elif chain.root == "global":
            names = frame.f_globals
            if name in names or not hasattr(builtins, name):
                self._follow(Location(NAME, names, (name,)), names.get(name, NOTHING), chain.steps, f"global {name}", "", use)
        elif chain.root == "import":
            self._follow(Location(NAME, sys.modules, (name,)), sys.modules.get(name, NOTHING), chain.steps, name, "", use)
        else:
            for function in functions:
                place = Location(CELL, function, (code.co_freevars.index(name),))
                self._follow(place, value_at(place), chain.steps, name, f" of {code.co_name}", use)

    def _method(self, first: Any, code: CodeType, made: bool) -> None:
        """Notes a method that runs, however it was called, as what the class of its object, or it itself, has under a name."""
        kinds: list[type] = [type(first), *([first] if isinstance(first, type) else [])]
        for kind in kinds:
            for depth, name, entry in methods_with(code, kind):
                found = looked_up(kind, name) is entry
                if found and not made and kind is not first:
                    self._attribute(first, name, f"{kind.__name__}.{name}")
                    continue
                self._know(entry)
                for base in kind.__mro__[: 1 if found else depth + 1]:  # it was called by super() if it is not found
                    self._table.note(Location(ENTRY, base, (name,)), looked_up(base, name), f"{base.__name__}.{name}", LOAD)

    def _is_made(self, value: Any) -> bool:
        """True if the run has made an object, or a call may bring another one that is equal. What matters of it is its class."""
        return id(value) in self._by_value or capturing.makes(value) or any([value is made for made in self._made])

    def _functions_of(self, code: CodeType, local: Mapping[str, Any]) -> list[FunctionType]:
        """Returns the functions with this code and these variables that were not made by the functions that ran."""
        if id(code) in self._inner:
            return []
        found = self._functions.get(id(code))
        if found is None:  # it was called by a way that no chain tells, such as a loop
            found = self._functions[id(code)] = [f for f in gc.get_referrers(code) if isinstance(f, FunctionType)]
        found = [f for f in found if f.__code__ is code and not capturing.makes(f)]
        return [f for f in found if has_variables(f, local)]

    def _know(self, value: Any) -> None:
        """Notes a function, so that its closure is found when it runs."""
        for _ in range(8):  # wrappers around wrappers
            if isinstance(value, operator.attrgetter):
                self._read_everywhere([name for path in value.__reduce__()[1] for name in path.split(".")])
            if isinstance(value, functools.partial):
                for part in ("args", "keywords"):
                    place = Location(SLOT, value, (vars(functools.partial)[part],))
                    self._whole(place, value_at(place), f"{part} of a partial")
            if type(value) is not FunctionType:
                value = innermost(value) if isinstance(value, FunctionWrapper) else wrapped_in(value)
                if value is None:
                    return
                if isinstance(value, type):
                    self._object(value, value.__name__)
        known = self._functions.setdefault(id(getattr(value, "__code__", None)), [])
        if type(value) is not FunctionType or any([value is f for f in known]):
            return
        known.append(value)
        for part in ("__code__", "__defaults__", "__kwdefaults__") if not is_installed(value.__code__.co_filename) else ():
            if (now := getattr(value, part)) is not None:
                self._table.note(Location(SLOT, value, (vars(FunctionType)[part],)), now, f"{value.__name__}.{part}", LOAD)

    # ---- chains

    def _follow(self, place: Location | None, value: Any, steps: tuple[ChainStep, ...], label: str, where: str, use: int) -> None:
        """Notes the values along a chain. `place` is None for an argument, which the caller determines."""
        for i, (kind, key) in enumerate(steps):
            if isinstance(value, ModuleType) and kind == "attr":
                self.generators.meet_module(value, key)
                if is_library(value.__name__, getattr(value, "__file__", None)):
                    return
            self._meet(place, value, label + where)
            if kind == "item" and (found := item(value, key)) is not None:
                place = Location(place.read, place.holder, (*place.path, key)) if place else Location(ITEM, value, (None, key))
                (value,), label = found, f"{label}[{key!r}]"
                continue
            if is_container(value):
                self._whole(place, value, label + where)
                if kind == "each":
                    for k, x in enumerate(items(value)):
                        self._follow(None, x, steps[i + 1 :], f"{label}[{k}]", where, use)
                    return
            if place is not None:
                self._table.note(place, value, label + where, LOAD)
            numbers = kind == "each" and getattr(value, "ndim", 0) == 1  # a loop over rows gives views
            if numbers or (kind == "attr" and key not in _FORM):
                self.arrays.meet(value, label + where, computes=True)
            if kind != "attr" or value is NOTHING:
                self._rest(steps[i:])
                return
            label += f".{key}"
            found = self._attribute(unaliased(value), key, label + where)
            if found is None:
                self._rest(steps[i + 1 :])
                return
            place, value = found
        self._end(place, value, label, where, use)

    def _end(self, place: Location | None, value: Any, label: str, where: str, use: int) -> None:
        """Notes what stands at the end of a chain."""
        self._meet(place, value, label + where)
        if self._guesses and not is_closed(value) and (attributes := attributes_of(value)) is not None:
            module = isinstance(value, attached.Module)  # it tells of new Parameters and Modules itself, and gets a mode and a path
            if not module:
                self._table.note(Location(ATTRIBUTE, value, (None,)), [*attributes], f"attributes of {label}{where}", self._guesses)
            for name, x in attributes.items():
                if not (module and isinstance(x, (attached.Module, Tensor))):
                    self._table.note(Location(ATTRIBUTE, value, (name,)), x, f"{label}.{name}{where}", self._guesses)
        kind = value if isinstance(value, type) else type(value)
        for base in kind.__mro__ if self._guesses else ():
            for name, x in vars(base).items() if not is_of_library(base) else ():
                if not name.startswith(("__", "_abc_")) and not hasattr(type(x), "__get__"):
                    self._table.note(Location(ENTRY, kind, (name,)), looked_up(kind, name), f"{kind.__name__}.{name}", GUESS)
        if place is None or is_container(value):
            self._whole(place, value, label + where, use)
        else:
            self._table.note(place, value, label + where, use)

    def _rest(self, steps: tuple[ChainStep, ...]) -> None:
        """Notes the attributes that a chain goes on with, whatever object it has come to."""
        self._read_everywhere([key for kind, key in steps if kind == "attr"])

    def _whole(self, place: Location | None, value: Any, label: str, use: int = LOAD) -> None:
        """Notes all items of a container. An argument's own tuples come with the call."""
        if place is None and (not is_container(value) or isinstance(value, tuple)):
            return
        self._table.note(place or Location(ITEM, value, (None,)), value, label, use)
        self._items(value, label)

    def _items(self, value: Any, label: str, around: tuple[Any, ...] = ()) -> None:
        """Meets the items of a container, and those of containers in it."""
        if is_container(value) and len(around) < DEPTH and not any([value is outer for outer in around]):
            for x in items(value):
                self._meet(None, x, label)
                self._items(x, label, (*around, value))

    def _attribute(self, value: Any, name: str, label: str, methods: bool = True) -> tuple[Location | None, Any] | None:
        """Returns where an attribute is found and what it is, without running anything; None if that is not possible.

        A method, a property or another descriptor is noted if `methods` is true, and not looked into.
        """
        if isinstance(value, Parameter) and name in ("name", "version"):
            return self._attribute(value.storage, name, label)
        replaced = name == "training" and id(value) in door.state.replaced  # by a checkpoint, with the mode of its forward pass
        if replaced or (isinstance(value, CLOSED) and is_of_library(type(value))):
            return None
        if isinstance(value, ModuleType):
            return Location(NAME, vars(value), (name,)), vars(value).get(name, NOTHING)
        kind = value if isinstance(value, type) else type(value)
        entry = looked_up(kind, name)
        if entry is NOTHING and kind is value and not is_of_library(type(kind)):
            self._table.note(Location(ENTRY, kind, (name,)), NOTHING, label, LOAD)
            return self._attribute(type(kind), name, label, methods)
        if isinstance(entry, MemberDescriptorType) and kind is not value:
            return Location(SLOT, value, (entry,)), slot(entry, value)
        own = entry is NOTHING or not hasattr(type(entry), "__get__") or (isinstance(entry, Mode) and kind is not value)
        # What a property runs is seen as a function.
        of_class = kind is value or (hasattr(type(entry), "__set__") and not own)
        place, attributes = Location(ATTRIBUTE, value, (name,)), None if of_class else attributes_of(value)
        if attributes is None:
            if is_of_library(kind):  # nobody changes these
                return (None, entry) if own else None
            place = Location(ENTRY, kind, (name,))
        elif name in attributes:
            return place, attributes[name]
        if own:
            return place, entry
        if methods:
            self._know(entry)
            self._table.note(place, entry, label, LOAD)
        return None

    def _meet(self, place: Location | None, value: Any, label: str) -> None:
        if value is NOTHING or (isinstance(value, (Tensor, type(None), int, float, str)) and is_of_library(type(value))):
            return
        self._object(unaliased(value), label)
        if isinstance(value, attached.Module):
            return
        self._know(value)
        self.generators.meet(value, label)
        for behind, x in containers_behind(value):
            self._whole(behind, x, label)
        self.arrays.meet(value, label, named=place is not None)
        if place is not None and hasattr(type(value), "__next__") and not isinstance(value, io.IOBase):
            self.iterators.append((place, label))
