"""The Modules that a `functional_call` uses, in which other tensors stand in place of Parameters, and the threads that use them."""

from __future__ import annotations

from threading import get_ident
from typing import Any, Final

from ..errors import PullbackError

lent: Final[dict[int, int]] = {}  # by the id of a Module, the thread; Module.__call__ looks only if there is an entry


def check(module: Any) -> None:
    """Raises PullbackError if another thread uses the Module."""
    if lent.get(id(module), get_ident()) != get_ident():
        raise _refusal(module)


def _refusal(module: Any) -> PullbackError:
    return PullbackError(
        f"{type(module).__name__}: nn.functional_call uses it in another thread, and has put other tensors in place of its "
        f"Parameters meanwhile. Give each thread a copy, copy.deepcopy(net), or take turns by a lock."
    )


def claim(module: Any, mine: list[int]) -> None:
    """Gives a Module to this thread, and notes its id if this thread did not have it. Raises PullbackError if another has it."""
    if id(module) not in lent:
        mine.append(id(module))
    if lent.setdefault(id(module), get_ident()) != get_ident():
        mine[:] = [key for key in mine if key != id(module)]
        raise _refusal(module)


def release(mine: list[int]) -> None:
    """Takes Modules back that `claim` has noted."""
    for key in mine:
        lent.pop(key, None)
