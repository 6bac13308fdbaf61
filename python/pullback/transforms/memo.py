"""memo: a function that runs once for the same inputs. All uses of its value share one recording and one backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..autodiff.kept import Heard
from ..autodiff.listeners import listeners
from ..autodiff.tape import Tape
from ..backends import modes
from ..duck import has
from ..errors import PullbackError
from ..function_wrapper import FunctionWrapper
from ..launch import capturing
from ..tensors.tensor import Tensor
from ..tree import flatten, unflatten
from ..typing import P, R
from .calls import Reads, called


@dataclass
class MemoStats:
    """The counts of a Memo. hits: calls that returned a remembered result. misses: calls that ran the function."""

    hits: int = 0
    misses: int = 0


def memo(f: Callable[P, R], *, size: int = 8) -> Memo[P, R]:
    """Returns a function with the value of `f` that runs `f` only if it does not remember a result for the same inputs.

    Args:
        f: takes and returns nested lists, tuples, dicts. Its inputs are its arguments (tensors, and Python values that can be
            compared), and the Parameters and watched tensors that it reads. It must not depend on anything else that changes
            (a module's training mode, random numbers, a constant that is bound to a new value).
        size: the number of results that are remembered; the least recently used are dropped first.

    Inputs are the same if they are the same tensors at the same versions, so an updated Parameter is a new input. A tape gets a
    value that it has recorded itself, so that the backward pass of `f` runs once, however often the value is used. With different
    listeners, or under a different `amp.autocast` or `pb.config.reproducible` than in the first run, `f` runs again. Results are
    kept alive; arguments and tapes are not. `stats` holds the counts, `clear()` drops all results. A copy remembers nothing.

    Example:
        >>> weight = pb.memo(lambda: spectral_norm(layer.weight))
        >>> y = x @ weight() + z @ weight()     # computed once, until layer.weight is updated

    Raises: PullbackError if `size` is less than 1, or if an argument is an array, whose changes cannot be detected.
    """
    return Memo(f, size)


class Memo(FunctionWrapper[P, R]):
    """The function that `memo` returns."""

    def __init__(self, f: Callable[P, R], size: int) -> None:
        if size < 1:
            raise PullbackError(f"memo: size={size} must be 1 or more results to remember.")
        super().__init__(f, size)
        self.stats = MemoStats()
        self._size = size
        self._entries: list[_Entry] = []  # in the order of use, the latest at the end

    def __call__(self, *args: P.args, **options: P.kwargs) -> R:
        leaves, spec = flatten((args, options))
        found = next((entry for entry in self._entries if entry.is_for(leaves, spec)), None)
        self.stats.hits += found is not None
        self.stats.misses += found is None
        entry = found or self._run(args, options, leaves, spec)
        others = [other for other in self._entries if other is not entry and other.is_fresh()]
        self._entries = [*others[max(0, len(others) + 1 - self._size) :], entry]
        return unflatten(entry.form, list(entry.outputs))

    def __repr__(self) -> str:
        counts = f"{self.stats.hits} hits, {self.stats.misses} misses"
        return f"memo({called(self._function)}, size={self._size}; {len(self._entries)} results, {counts})"

    def clear(self) -> None:
        """Drops all remembered results."""
        self._entries = []

    def _run(self, args: Any, options: Any, leaves: Sequence[Any], spec: Any) -> _Entry:
        for x in leaves:
            if has(x, "__array__") and not isinstance(x, Tensor):
                raise PullbackError(
                    f"memo: {called(self._function)} was given a {type(x).__name__}, which can change without a trace. Give a "
                    f"tensor: pb.tensor(x), made once and kept."
                )
        reads = Reads()
        with Heard((*listeners.stack, reads)):
            outputs, form = flatten(self._function(*args, **options))
        return _Entry(leaves, spec, reads.inputs, outputs, form)


class _Entry:
    """One result, with the conditions under which it is valid."""

    def __init__(self, leaves: Sequence[Any], spec: Any, inputs: Sequence[Tensor], outputs: list[Any], form: Any) -> None:
        self._leaves = [weakref.ref(x) if isinstance(x, Tensor) else x for x in leaves]
        self._spec = spec
        inputs = [*inputs, *[x for x in leaves if isinstance(x, Tensor)]]
        self._inputs = [weakref.ref(x) for x in inputs]
        self._versions = [(x.storage, x.storage.version) for x in inputs if x.storage is not None]
        self.outputs, self.form = outputs, form
        self._recording = capturing.thread.recording  # a replay needs the ops that compute the result
        self._rounding = modes.rounding()
        self._known = self._known_now()

    def is_fresh(self) -> bool:
        """True if the result can still be used: its inputs and tapes are alive, and no input has changed."""
        references = (*self._inputs, *[listener for listener, _ in self._known])
        alive = all([reference() is not None for reference in references])
        return alive and all([storage.version == version for storage, version in self._versions])

    def is_for(self, leaves: Sequence[Any], spec: Any) -> bool:
        """True if this is the result for these arguments, for the present listeners and for the present rounding of products."""
        if self._recording is not capturing.thread.recording or self._rounding != modes.rounding():
            return False
        same = spec == self._spec and all([_same(x, kept) for x, kept in zip(leaves, self._leaves)])
        return same and self.is_fresh() and self._known == self._known_now()

    def _known_now(self) -> list[tuple[Any, Any]]:
        """Returns the listeners that `f` concerns now, each tape with the inputs it watches and the outputs it has recorded.

        Tapes that watch no input are left out. The result is valid only while this list equals that from its first run.
        """
        found: list[tuple[Any, Any]] = []
        inputs = [x for ref in self._inputs if (x := ref()) is not None]
        for listener in listeners.stack:
            if not isinstance(listener, Tape):
                found.append((weakref.ref(listener), None))
                continue
            watched = {x.serial for x in inputs if listener.knows(x)}
            if watched:
                recorded = {y.serial for y in self.outputs if isinstance(y, Tensor) and y.serial in listener.values}
                found.append((weakref.ref(listener), (watched, recorded)))
        return found


def _same(x: Any, kept: Any) -> bool:
    if isinstance(kept, weakref.ref) or isinstance(x, Tensor):
        return isinstance(kept, weakref.ref) and kept() is x
    return type(x) is type(kept) and bool(x == kept)
