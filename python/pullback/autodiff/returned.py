"""Notices numbers that left pullback and come back as a constant: gradients of a part of the function would be lost in silence.

A number is known by its object, an array by its memory, and a NumPy array that values were written into by the code that wrote
them. Only arrays that NumPy made of several tensors are known by their values. Numbers that went through further arithmetic
outside of pullback are not noticed.
"""

from __future__ import annotations

import dis
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final, NamedTuple

import numpy as np

from ..errors import ZeroGradientWarning
from .listeners import listeners, new_serial
from .site import Site, call_site, current_frame, is_ours, line_of, reading_frame, warn

# The modules that hand values out, and the listeners that they tell.
_READERS: Final = frozenset((
    "tensors.tensor", "tensors.exchange", "tensors.escape", "interop.dispatch", "interop.gate", "autodiff.tape",
    "autodiff.returned", "transforms.jvp",
))
_LARGEST: Final = 4096  # the most elements of a tensor that is known by its values
_STORED: Final = "an assignment to items of a NumPy array"
_JOINED: Final = "NumPy, which made an array of tensors"


Cut = tuple[str, Site]  # how and where a value left


class _Memory(NamedTuple):
    """The owner of the memory that a value left in.

    view: it is the tensor's memory, of which the user got a read-only view. values: the elements that were written into it.
    """

    array: weakref.ref[Any]
    view: bool
    values: Any
    cut: Cut


class Returned:
    """The numbers and arrays in which the watched values of one tape left pullback. It warns once if one of them comes back.

    An operand that is one of them is a marked constant, and so is what ops compute from it. Coming back means that an op has a
    marked input and one that the tape watches. What does not meet a watched value (a metric, a log) is not told.

    warned: True if one has come back.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[float, Cut]] = {}  # by identity, which holding the number keeps
        self._arrays: list[_Memory] = []
        self._read: dict[Site, list[Any]] = {}  # by site, the arrays of tensors that NumPy read there, in order
        self._joined: dict[Site, tuple[list[Any], bool]] = {}  # those that became one new array, and whether they filled it
        self._floats: list[tuple[float, Site]] = []  # the numbers that left, in order
        self._marked: dict[int, Cut] = {}  # by serial, the constants that came of what left
        self.warned = False

    def add(self, x: Any, how: str, given: Any) -> None:
        """Adds the object that the user's code was given for the tensor x, as by `float(x)`. Calls by pullback do not count."""
        frame = reading_frame(_READERS)
        if frame is None:
            return
        site = frame.f_code, frame.f_lasti
        if dis.opname[frame.f_code.co_code[frame.f_lasti]] in ("STORE_SUBSCR", "STORE_SLICE"):
            target = _target(frame)
            if isinstance(target, np.ndarray):
                self.stored(target, x.array, (_STORED, site))
        elif isinstance(given, np.ndarray):
            self._arrays.append(_Memory(weakref.ref(_owner(given)), not given.flags.writeable, None, (how, site)))
        else:
            self._note_numbers(given, how, site)
        self._note_conversion(x, how, site)

    def _note_numbers(self, given: Any, how: str, site: Site) -> None:
        if isinstance(given, float):
            self._numbers[id(given)] = given, (how, site)
            self._floats.append((given, site))
        elif isinstance(given, list):  # of tolist()
            for item in given:
                self._note_numbers(item, how, site)

    def _note_conversion(self, x: Any, how: str, site: Site) -> None:
        """Notes the tensors of a list that NumPy converts: it reads each as an array, and then each number as a float.

        `np.full` reads its number as an array.
        """
        if how == "np.asarray()" and x.size <= _LARGEST:
            values = self._read.setdefault(site, [])
            values.append(x.array)
            filled = _inside("full")
            if (x.ndim and len(values) > 1) or filled:
                self._joined[site] = values, filled
        elif how == "float()" and site in self._read:
            self._joined[site] = self._read[site], False

    def stored(self, target: Any, values: Any, cut: Cut) -> None:
        """Adds an array that values were written into."""
        self._arrays.append(_Memory(weakref.ref(_owner(target)), False, values, cut))

    def mark(self, operand: Any, t: Any) -> None:
        """Marks the tensor t that an operand became, if the operand, or a part of a list, is what left."""
        cut = self._found(operand)
        if cut is not None:
            t.serial = t.serial or new_serial()
            self._marked[t.serial] = cut

    def meet(self, op: Any, y: Any, inputs: Sequence[Any], watched: bool) -> None:
        """Warns if an op has an input that is watched and a marked one. Marks its result if no input is watched."""
        for x in () if self.warned else inputs:
            cut = self._marked.get(x.serial) if x.serial else self._found(x.array) if isinstance(x.array, float) else None
            if cut is None or op.pullback is None or op.pullback == "zero":  # for a comparison, the gradient is zero anyway
                continue
            if watched:
                self._warn(*cut)
            else:
                y.serial = y.serial or new_serial()
                self._marked[y.serial] = cut
            return

    def _found(self, operand: Any) -> Cut | None:
        """Returns how and where an operand, or a part of a list, left. Returns None if it did not, or if a warning came already."""
        if self.warned:
            return None
        if isinstance(operand, np.ndarray):
            return self._found_array(operand)
        if isinstance(operand, float):
            return self._numbers.get(id(operand), (None, None))[1]
        parts = operand if isinstance(operand, (list, tuple)) else ()
        return next((cut for x in parts if (cut := self._found(x)) is not None), None)

    def _found_array(self, array: Any) -> Cut | None:
        owner = _owner(array)
        for memory in [memory for memory in self._arrays if memory.array() is owner]:
            overwritten = memory.values is not None and not np.isin(memory.values.astype(array.dtype), array).any()
            if not overwritten and not (memory.view and array.flags.writeable):
                return memory.cut
        for site, (arrays, filled) in self._joined.items():
            if _holds(array, arrays, filled):
                return _JOINED, site
        if 1 < array.size <= min(len(self._floats), _LARGEST) and array.dtype.kind == "f" and not _is_common(array):
            last = np.array([number for number, _ in self._floats[-_LARGEST:]], array.dtype)
            windows = np.lib.stride_tricks.sliding_window_view(last, array.size)
            if (windows == array.reshape(-1)).all(axis=1).any():
                return "numbers that became an array", self._floats[-1][1]
        return None

    def _warn(self, how: str, site: Site) -> None:
        self.warned = True
        warn(
            f"values that a tape watches left pullback by {how} at {line_of(site)}, and come back here as a constant, through "
            f"which no gradient flows. Compute with pb's functions: pb.stack joins tensors, t.at[i].set(v) writes into one. If a "
            f"constant is meant, use pb.stop_gradient(t).",
            ZeroGradientWarning,
        )


def note(listener: Any, x: Any, how: str, given: Any) -> None:
    """Notes for a listener that a value which it watches left in the object `given`. None: in nothing that can come back."""
    if given is not None:
        listener.left = listener.left or Returned()
        listener.left.add(x, how, given)


def mark_return(operand: Any, t: Any) -> None:
    """Lets the tapes of this thread mark the tensor that an operand became, if the operand left them before."""
    for listener in listeners.stack:
        if (left := getattr(listener, "left", None)) is not None:
            left.mark(operand, t)


def report_store(target: Any, values: Any, how: str) -> None:
    """Reports that NumPy has written a tensor's values into an array."""
    for listener in listeners.stack:
        if (left := getattr(listener, "left", None)) is not None and listener.knows(values):
            left.stored(target, values.array, (how, call_site()))


def _inside(name: str) -> bool:
    """True if a function of NumPy of this name is reading the tensor."""
    frame: FrameType | None = current_frame(1)
    while frame is not None and is_ours(frame):
        if frame.f_code.co_name == name and frame.f_globals["__name__"].startswith("numpy."):
            return True
        frame = frame.f_back
    return False


def _owner(array: Any) -> Any:
    """Returns the array that owns the memory of a NumPy array, or the last array in the chain of bases."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _holds(array: Any, parts: Sequence[Any], filled: bool) -> bool:
    """True if the last elements of the parts are the array, in their order, with few others in between, or all that is in it.

    Integers are in many constants, so they must be at least half of the array and stand side by side. filled: the parts are numbers
    that arrays were filled with.
    """
    if array.dtype.kind != "f":
        return False
    wanted = np.concatenate([part.reshape(-1) for part in parts]).astype(array.dtype)
    rest = iter(array.reshape(-1)[::-1].tolist())
    found = 0
    for value in wanted[::-1].tolist():
        if value not in rest:  # `in` consumes the iterator, so this finds a subsequence
            break
        found += 1
    matched = wanted[wanted.size - found :]
    if _is_common(matched):
        return False
    if filled:
        return bool(np.isin(array, wanted).all())
    if (matched == np.rint(matched)).all():
        windows = np.lib.stride_tricks.sliding_window_view(array.reshape(-1), found)
        return 2 * found >= array.size and bool((windows == matched).all(axis=1).any())
    return 2 * found >= array.size or (found == wanted.size and array.size <= 4 * found)


def _is_common(values: Any) -> bool:
    """True if the values are in masks, identity matrices and many other constants, so that they tell nothing."""
    return bool(np.isin(values, (-1.0, 0.0, 1.0)).all())


def _target(frame: FrameType) -> Any:
    """Returns the object whose items the frame is assigning to, if its code names it by names and attributes, and None if not."""
    code = [i for i in dis.get_instructions(frame.f_code) if i.offset <= frame.f_lasti]
    missing = 2 if code[-1].opname == "STORE_SLICE" else 1  # the values on the stack above the object: an index, or two ends
    k = len(code) - 1
    while code[k - 1].opname in ("SWAP", "ROT_THREE"):  # of `a[i] += t`, which computes its value above the object and the index
        k, missing = k - 1, 2
    while missing > 0 and k > 0:
        k -= 1
        missing -= dis.stack_effect(code[k].opcode, code[k].arg if code[k].opcode >= dis.HAVE_ARGUMENT else None, jump=False)
    names: list[str] = []
    if missing < 0:  # one instruction loaded the object and its index
        return _named(frame, code[k].argval[0], names) if isinstance(code[k].argval, tuple) else None
    while k > 0:
        k -= 1
        loaded = code[k]
        if loaded.opname == "LOAD_ATTR":
            names.insert(0, loaded.argval)
        elif loaded.opname.startswith("LOAD_"):  # from Python 3.13 on one instruction may load two names
            return _named(frame, loaded.argval[-1] if isinstance(loaded.argval, tuple) else loaded.argval, names)
        else:
            return None
    return None


def _named(frame: FrameType, name: str, attributes: Sequence[str]) -> Any:
    found = frame.f_locals.get(name, frame.f_globals.get(name))
    for attribute in attributes:
        if isinstance(found, np.ndarray):
            return found  # a.T[i] = t, a.flat[i] = t
        found = getattr(found, "__dict__", {}).get(attribute)
    return found
