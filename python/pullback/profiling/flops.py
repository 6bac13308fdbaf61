"""`pb.flops` computes the cost of a function, forward and backward, by the formulas of its launches and from shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..autodiff.kept import Listening
from ..autodiff.shape_run import ShapeRun
from ..autodiff.tape import Tape
from ..duck import has
from ..errors import PullbackError
from ..launch import capturing
from ..tensors import dtypes, views
from ..tensors.creation import asarray, ones_like
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..tree import flatten
from .session import Profile


def flops(f: Callable[..., Any], *args: Any, argnums: int | Sequence[int] = (), **options: Any) -> Profile:
    """Returns the cost of f(*args) and of its gradient as a Profile without times (`.forward`, `.backward`, `.by("op")`, …).

    The function runs, but no native kernel does: tensors inside it have shapes and dtypes, but no values. If the function
    computes gradients itself (a training step), its own backward pass is counted. Otherwise the gradient of all its results is
    counted, with respect to the trainable Parameters that it uses and to the arguments that `argnums` names. Optimizers and
    random streams are restored afterwards.

    Args:
        args: tensors or arrays. Their values do not matter.
        argnums: the positions of arguments whose gradients are counted as well.

    Raises PullbackError if the function reads a value, or if its shapes depend on one.
    """
    places = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if any([not -len(args) <= n < len(args) for n in places]):
        raise PullbackError(f"flops: argnums={argnums} names none of {len(args)} argument(s); count from 0.")
    given = [asarray(x) if has(x, "__array__") and not isinstance(x, Tensor) else x for x in args]
    with _CountedRun(), Profile(detail="count", dry=True) as prof:
        f(*given, **options)
    if prof.backward.launches:
        return prof
    with _CountedRun(), Profile(detail="count", dry=True) as prof:
        with _Used() as used, Tape() as tape:
            for n in places:
                tape.watch(given[n])
            outputs = [y for y in flatten(f(*given, **options))[0] if isinstance(y, Tensor) and dtypes.is_float(y.dtype)]
        targets = [y for y in outputs if tape.knows(y)]
        sources = [x for n in places for x in flatten(given[n])[0]] + [p for p in used.parameters if tape.knows(p)]
        if targets and sources:
            tape.pull(targets, lambda: [ones_like(y) for y in targets], sources, "zero")
    return prof


class _Used(Listening):
    """Listens to ops, and collects the Parameters among their inputs."""

    def __init__(self) -> None:
        self.parameters: list[Parameter] = []

    def add(self, op: Any, y: Any, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        for x in inputs:
            if isinstance(x, Parameter) and not any([x is p for p in self.parameters]):
                self.parameters.append(x)

    def on_escape(self, x: Tensor, how: str, given: Any = None) -> None:
        """Ignores values that leave pullback."""


class _CountedRun(ShapeRun):
    """A run whose launches are counted. It restores at its end the counts and the views that it changed, too."""

    def __init__(self) -> None:
        super().__init__()
        self._known: list[Tensor] = []  # views that are not stale
        self._counts: list[tuple[Any, str, int]] = []

    def refusal(self, what: str, line: str, instead: str) -> Exception:
        """Returns the error for code that needs a value."""
        return PullbackError(f"flops: {what} at {line}: pb.flops computes shapes only, so there is no value to read. {instead}")

    def increments(self, owner: Any, name: str) -> None:
        """Notes the count before the increment, which is restored at the end."""
        self._counts.append((owner, name, getattr(owner, name) - 1))

    def __enter__(self) -> _CountedRun:
        """Starts the run on shapes in this thread. Raises PullbackError inside a captured function."""
        if capturing.thread.recording is not None:
            raise PullbackError("flops: a captured function cannot be counted from inside; call pb.flops outside.")
        super().__enter__()
        return self

    def _begin(self) -> None:
        self._known = views.living()
        super()._begin()

    def _end(self) -> None:
        super()._end()
        for owner, name, before in reversed(self._counts):
            setattr(owner, name, before)
        for view in self._known:
            if any([view.storage is owner for owner, *_ in self._counts]):
                views.revive(view)
