"""Finds the memory that a tape holds, and the part that nothing else refers to, which is freed together with the tape."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import CellType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from ..autodiff.primitive import OPS, Op, Rule
from ..autodiff.tape import Tape
from ..duck import has
from ..function_wrapper import FunctionWrapper, innermost
from ..tensors.tensor import Tensor
from ..transforms.passage import Passage


class MemoryBlock(NamedTuple):
    """The memory behind an array. A view shares the block of the array it was made from.

    Attributes:
        key: identifies the block.
        bytes: the size of the block.
        alone: true if only this tape refers to the block.
    """

    key: int
    bytes: int
    alone: bool


class Holdings:
    """The objects that a tape holds, and which of them are referred to from elsewhere, by reference counts.

    The known references to an object are those from the tape and from objects that the tape holds. An object with more
    references than that is also held from elsewhere, and so is everything that it refers to.
    """

    def __init__(self, tape: Tape) -> None:
        self._objects: dict[int, Any] = {}
        self._holders: dict[int, list[int]] = {}  # the holder of each known reference to an object; 0 is the tape itself
        self._visit_all(tape.nodes)
        self._alone = self._owned()

    def _visit_all(self, nodes: list[Any]) -> None:
        for node in nodes:
            self._visit(node, 0)

    def _visit(self, value: Any, holder: int) -> None:
        key = id(value)
        self._holders.setdefault(key, []).append(holder)
        if key not in self._objects:
            self._objects[key] = value
            for child in _children(value):
                self._visit(child, key)

    def _owned(self) -> dict[int, bool]:
        """Returns, for each object, whether only the tape holds it.

        Must be called when no local variable of this class refers to an object any more, because that reference would count.
        """
        alone = {0: True}
        probe = {0: object()}
        unknown = sys.getrefcount(probe[0])  # the references of the dict and of the call itself
        for key in self._objects:
            alone[key] = sys.getrefcount(self._objects[key]) == unknown + len(self._holders[key])
        changed = True
        while changed:
            changed = False
            for key, holders in self._holders.items():
                if alone[key] and not all([alone[holder] for holder in holders]):
                    alone[key], changed = False, True
        return alone

    def blocks(self, value: Any) -> Iterator[tuple[Any, MemoryBlock]]:
        """Yields (array, its block of memory) for each array in a value that a pullback keeps."""
        if isinstance(value, (tuple, list)):
            for item in value:
                yield from self.blocks(item)
        elif isinstance(value, Tensor):
            yield from self.blocks(value.array)
        elif is_array(value):
            owner = _owner(value)
            size = owner.nbytes if isinstance(owner, np.ndarray) else owner.size
            yield value, MemoryBlock(id(owner), int(size), self._alone.get(id(owner), False))


def is_array(value: Any) -> bool:
    """True for arrays of NumPy and of a GPU library."""
    return isinstance(value, np.ndarray) or (not isinstance(value, type) and has(value, "__cuda_array_interface__"))


def closed_over(function: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yields (name, value) of the variables that a user's pullback, and the functions it refers to, capture in closures."""
    function = innermost(function)
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        value = _content(cell)
        if isinstance(value, (FunctionType, FunctionWrapper)):
            yield from closed_over(value, seen)
        else:
            yield name, value


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # The variable has no value yet.
        return None


def _children(value: Any) -> list[Any]:
    """Returns the objects that may lead to memory and that this object refers to, once per reference."""
    if isinstance(value, np.ndarray):
        return [value.base] if isinstance(value.base, np.ndarray) else []
    if isinstance(value, FunctionType):
        return [] if value.__closure__ is None else [value.__closure__]
    if isinstance(value, Tensor):
        return [value.array]
    if is_array(value):
        base = getattr(value, "base", None)
        return [value.data, *([] if base is None else [base])]  # value.data is CuPy's pointer, which refers to the memory.
    if isinstance(value, (tuple, list, dict, CellType, Rule, FunctionWrapper)) or _is_call(value):
        return [item for item in gc.get_referents(value) if _leads_on(item)]
    return [value.mem] if hasattr(value, "mem") else []


def _leads_on(item: Any) -> bool:
    kinds = (tuple, list, dict, CellType, FunctionType, FunctionWrapper, Rule, Tensor)
    return isinstance(item, kinds) or _is_call(item) or is_array(item)


def _is_call(value: Any) -> bool:
    """True for the op of one call of a user's function, which is made per call and not registered in OPS, and for its passage."""
    return isinstance(value, Passage) or (isinstance(value, Op) and OPS.get(value.name) is not value)


def _owner(array: Any) -> Any:
    """Returns the object that owns an array's memory: the NumPy array that it is a view of, or a memory block of CuPy."""
    if not isinstance(array, np.ndarray):
        return array.data.mem
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
