"""Scopes: the modules, ops and lines that launches are attributed to, as numbers, because the native ledger keeps only numbers."""

from __future__ import annotations

from types import CodeType
from typing import Any, Final, NamedTuple


class Scope(NamedTuple):
    """A scope.

    Attributes:
        module: the path of the Module that runs.
        op: the op that was called; "" if the kernel's name implies it.
        code, offset: the site of the user's line that called the op (see site.py).
        order: the order of the derivative: 0 in the forward pass, 1 in its pullback, and so on.
        without: of a pullback, the factors of the op (see Facts.multiplied) that get no gradient.
    """

    module: str = ""
    op: str = ""
    code: CodeType | None = None
    offset: int = 0
    order: int = 0
    without: tuple[str, ...] = ()


scopes: Final[list[Scope]] = [Scope()]  # indexed by the scope's number
_numbers: Final[dict[tuple[Any, ...], int]] = {("", "", 0, 0, 0, ()): 0}


def number(scope: Scope) -> int:
    """Returns the number of a scope, the same one each time."""
    module, op, code, offset, order, without = scope
    key = (module, op, id(code) if code is not None else 0, offset, order, without)
    found = _numbers.get(key)
    if found is None:
        scopes.append(scope)  # keeps the code alive, so that its id stays unique
        found = _numbers[key] = len(scopes) - 1
    return found


def given(name: str, code: CodeType | None, offset: int, within: int) -> tuple[int, int]:
    """Returns the scope of an op called from a line and the scope of its pullback; or, without code, a module's scope and 0.

    The op's scope is -1 inside a pullback, whose launches, and their derivatives, belong to the op that is pulled back.
    """
    base = scopes[within]
    if code is None:
        return number(Scope(name, order=base.order)), 0
    if base.op:
        return -1, number(Scope(base.module, base.op, base.code, base.offset, base.order + 1))
    op = Scope(base.module, name, code, offset, base.order)
    return number(op), number(op._replace(order=base.order + 1))


def recomputing(within: int) -> int:
    """Returns the scope for ops that a pullback computes again: that of no op, one order below the pullback."""
    base = scopes[within]
    return number(Scope(base.module, order=max(0, base.order - 1)))


def pulling(scope: int, without: tuple[str, ...]) -> int:
    """Returns the scope of the same pullback if these inputs get no gradient."""
    return number(scopes[scope]._replace(without=without)) if without else scope
