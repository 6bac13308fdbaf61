"""What a run of a captured function leaves behind: what a replay would not do again, and what the function may read next time."""

from __future__ import annotations

import dis
import gc
from collections.abc import Callable, Sequence
from functools import partial
from inspect import iscoroutine
from types import BuiltinFunctionType, CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple
from weakref import ref

from ...autodiff.site import line_of
from ...function_wrapper import FunctionWrapper
from ...launch import capturing
from ...launch.made import MadeOutside
from ...launch.scopes import scopes
from ...tensors.attached import attached
from ...tensors.parameter import Parameter
from ...tensors.tensor import Tensor
from .facts import COUNT, DEPTH, LOAD, NAMED, STORE, Fact, Facts, Table, is_container
from .lookup import value_at
from .reading import Reading

CARRY: Final = (
    "Return it, and keep it outside of the function. State that the next call reads is an nn.Buffer (self.h = nn.Buffer(zeros) in "
    "__init__, self.h.assign(value) here), or an argument and a result."
)
DRAW: Final = "Draw with pb.random, whose numbers every replay draws anew, or pass the numbers in as an argument."
RETURN: Final = "The function gets a copy of it, because it has to be compared with that of the next call. Return what is new."
COPY: Final = "Every replay makes it in the same memory. Return a copy of its values, pb.copy(p)."
WITHIN: Final = "Return tensors in lists, tuples, dicts or dataclasses: what other objects hold stays that of the recording."
STEP: Final = "Take the next item outside, and pass it in as an argument."


REACH: Final = 100_000  # objects below a result among which tensors are looked for
_RUNNING: Final = (FrameType, type(iter([])))  # what holds the values of a function that runs
# What matters only if something holds it.
_PASSING: Final = (list, tuple, dict, CellType, FunctionType, BuiltinFunctionType, MethodType, partial, ref)


class Behind(NamedTuple):
    """What a run left behind.

    Attributes:
        reasons: for each thing, what it is, and what to do instead.
        counted: the labels of counters that the run changed.
        after: all facts as they are at the end, if something was left behind.
        drew: True if code that is not the user's, or another thread, has drawn from a global random generator of the host.
    """

    reasons: list[tuple[str, str]]
    counted: list[str]
    after: Facts | None = None
    drew: bool = False


def behind(
    table: Table, reading: Reading, living: Callable[[], list[Tensor]], maker: Callable[[Tensor], int],
    objects: Sequence[Any], arguments: Sequence[Tensor],
) -> Behind:
    """Returns what a run has left behind.

    living: returns the tensors that the run made and that are still alive, except its results.
    objects: those of the results that are no tensors.
    arguments: the tensors that the function received.
    maker: returns the number of the scope of the launch that computed a tensor, -1 if there is none.
    """
    changed = table.changed()
    reasons = [(_changed(fact, reading.codes), CARRY) for fact in changed if fact.uses & (LOAD | STORE) or fact.uses == NAMED]
    if not reasons and _held_by_others(living()):  # the search looks at all objects of the process
        gc.collect()  # cycles and tracebacks do not count
        reasons += [(_held(x, holder, table, maker(x)), CARRY) for x, holder in _held_by_others(living())]
    for y in objects:
        if _reaches(y, [*living(), *arguments]):
            reasons.insert(0, (f"its result, a {type(y).__name__}, holds a tensor", WITHIN))
        if hasattr(type(y), "__next__") or iscoroutine(y):
            reasons.append((f"its result is a {type(y).__name__}, which can be run once", WITHIN))
    reasons += [(f"it draws random numbers from {label}", DRAW) for label in reading.generators.drew()]
    reasons += [(f"it writes to the array {label}", CARRY) for label in reading.arrays.written()]
    reasons += [(f"it takes items from the iterator {label}", STEP) for place, label in reading.iterators if table.has(place)]
    after = Table(table.changed_in)
    for place, fact in table.places() if reasons else ():
        after.note(place, value_at(place), fact.label, LOAD)
    return Behind(
        reasons, [fact.label for fact in changed if fact.uses == COUNT], after.finished(), reading.generators.drew_unnamed()
    )


def _changed(fact: Fact, codes: Sequence[CodeType]) -> str:
    name = fact.label.partition(" of ")[0].rpartition(".")[2].removeprefix("global ")
    line = _line_of(name, codes)
    return f"it leaves {fact.label} changed{f' ({line})' if line else ''}"


def _line_of(name: str, codes: Sequence[CodeType]) -> str | None:
    """Returns the line that stores a name, or else one that loads it, such as that of `name.append(x)`."""
    for verbs in (("STORE_", "DELETE_"), ("LOAD_",)):
        for code in codes:
            for at in dis.get_instructions(code):
                if at.opname.startswith(verbs) and not at.opname.endswith("FAST") and at.argval == name:
                    return line_of((code, at.offset))
    return None


def _held(x: Tensor, holder: Any, table: Table, scope: int) -> str:
    made = scopes[scope] if scope >= 0 else None
    line = f", computed at {line_of((made.code, made.offset))}" if made is not None and made.code is not None else ""
    return f"it leaves a tensor of shape {x.shape} in {_label(x, table) or _named(holder)}{line}"


def _label(x: Tensor, table: Table) -> str | None:
    """Returns the place of a tensor as far as the table knows it."""
    for place, fact in table.places():
        value = value_at(place)
        if value is x:
            return fact.label
        if is_container(value):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            found = [key for key, item in items if item is x]
            if found:
                return f"item {found[0]!r} of {fact.label}"
    return None


def _named(holder: Any) -> str:
    return f"a {type(holder).__name__}" if is_container(holder) else f"an object of class {type(holder).__name__}"


def _reaches(result: Any, tensors: list[Tensor]) -> bool:
    """True if an object refers to one of these tensors, itself or through others."""
    wanted, seen, level = {id(x) for x in tensors}, {id(result)}, [result]
    while level and len(seen) < REACH:
        below = [x for x in gc.get_referents(*level) if id(x) not in seen and not isinstance(x, (type, ModuleType))]
        if any([id(x) in wanted for x in below]):
            return True
        level = [x for x in below if not (type(x) is dict and "__builtins__" in x)]  # the names of a module
        seen |= {id(x) for x in below}
    return False


def _held_by_others(living: list[Tensor]) -> list[tuple[Tensor, Any]]:
    """Returns the tensors that something else than pullback's own objects holds, each with one such object.

    pullback keeps what it needs for itself. A container or a function counts as far as something holds it in its turn, which the
    collector finds level by level.
    """
    found: dict[int, tuple[Tensor, Any]] = {}
    level: list[tuple[Any, list[Tensor]]] = [(x, [x]) for x in living]  # objects, each with the tensors that it leads to
    seen = {id(living), id(level)}
    for _ in range(2 * DEPTH):
        if not level:
            break
        held = [x for x, _ in level]
        referrers = gc.get_referrers(*held)
        above: list[tuple[Any, list[Tensor]]] = []
        seen |= {id(x) for x in (held, referrers, level, above, *level)}
        leads = {id(x): tensors for x, tensors in level}
        seen |= {id(leads), *map(id, leads.values())}
        for holder in referrers:
            if id(holder) in seen or type(holder) in _RUNNING or _is_ours(holder):
                continue
            seen.add(id(holder))
            tensors = [y for x in gc.get_referents(holder) for y in leads.get(id(x), ())]
            if type(holder) in _PASSING or capturing.makes(holder):
                above.append((holder, tensors))
            else:
                found.update({id(y): (y, holder) for y in tensors})
        level = above
    return list(found.values())


def _is_ours(holder: Any) -> bool:
    kept_by_users = (Parameter, attached.Module, FunctionWrapper)
    if isinstance(holder, MadeOutside):  # an optimizer of a user's class, too
        return True
    definition = holder if isinstance(holder, FunctionType) else type(holder)
    return (definition.__module__ or "").partition(".")[0] == "pullback" and not isinstance(holder, kept_by_users)
