"""pb.flops: what a function would cost, forward and backward, by the formulas of its launches on their shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..autodiff.kept import Kept, Listening
from ..autodiff.tape import Tape
from ..errors import PullbackError
from ..launch import capturing
from ..tensors import devices, dtypes, views
from ..tensors.creation import asarray, ones_like
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..tree import flatten
from .session import Profile


def flops(f: Callable[..., Any], *args: Any, argnums: int | Sequence[int] = (), **options: Any) -> Profile:
    """What f(*args) costs, and its gradient: a Profile with `.forward`, `.backward`, `.by("op")`, … and no times.

    The function runs, but no native kernel does: tensors inside have shapes and dtypes, and no values. Where it computes
    gradients itself (a training step), they are what is counted; otherwise that of all its results by the trainable Parameters
    that it uses, and by the arguments that `argnums` names. Optimizers and random streams stay as they are.

    Args:
        args: tensors or arrays, of which the values do not matter.
        argnums: the places of arguments whose gradients are wanted, too.

    Raises PullbackError where the function reads a value, or its shapes depend on one.
    """
    places = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if any([not -len(args) <= n < len(args) for n in places]):
        raise PullbackError(f"flops: argnums={argnums} names none of {len(args)} argument(s); count from 0.")
    given = [asarray(x) if hasattr(x, "__array__") and not isinstance(x, Tensor) else x for x in args]
    with _Shapes(), Profile(detail="count", dry=True) as prof:
        f(*given, **options)
    if prof.backward.launches:
        return prof
    with _Shapes(), Profile(detail="count", dry=True) as prof:
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
    """Listens for the Parameters that ops take."""

    def __init__(self) -> None:
        self.parameters: list[Parameter] = []

    def add(self, op: Any, y: Any, inputs: Sequence[Any], params: Sequence[Any]) -> None:
        for x in inputs:
            if isinstance(x, Parameter) and not any([x is p for p in self.parameters]):
                self.parameters.append(x)

    def on_escape(self, x: Tensor, how: str) -> None:
        """A value left, which is none of its business."""


class _Shapes(Kept):
    """A run of which only the shapes matter: see `capturing.Recording`. What it changed is undone at its end."""

    opaque = True

    def __init__(self) -> None:
        self._generators: dict[Any, dict[str, int]] = {}
        self._known: list[Tensor] = []  # views that are not stale
        self._counts: list[tuple[Any, str, int]] = []

    def refusal(self, what: str, line: str, instead: str) -> Exception:
        """There are no values to read."""
        return PullbackError(f"flops: {what} at {line}: here are shapes only, and no values. {instead}")

    def increments(self, owner: Any, name: str) -> None:
        """The count goes back at the end."""
        self._counts.append((owner, name, getattr(owner, name) - 1))

    def guard(self, key: Any, holds: Callable[[], bool]) -> None:
        """Nothing is kept that would have to hold."""

    def reads(self, storage: Any) -> None:
        """Nothing is kept that could be stale."""

    def random_state(self, generator: Any, state: dict[str, int], device: str) -> Any:
        """Some memory for a state; the generator goes back at the end."""
        self._generators.setdefault(generator, state)
        with devices.working(device):
            return devices.array_module(device).zeros(2, "uint64")

    def __enter__(self) -> _Shapes:
        """This thread's launches are to be counted inside, and not performed. Raises PullbackError inside a captured function."""
        if capturing.thread.recording is not None:
            raise PullbackError("flops: a captured function cannot be counted from inside; call pb.flops outside.")
        super().__enter__()
        return self

    def _begin(self) -> None:
        self._known = views.living()
        capturing.thread.recording = self

    def _end(self) -> None:
        capturing.thread.recording = None
        for owner, name, before in reversed(self._counts):
            setattr(owner, name, before)
        for view in self._known:
            if any([view.storage is owner for owner, *_ in self._counts]):
                views.revive(view)
        for generator, state in self._generators.items():
            generator.load_state_dict(state)
