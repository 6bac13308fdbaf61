"""The journal of a tape: what it notes for its errors and warnings only (error_text.py writes them)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..tensors.tensor import Tensor
from .batching import Batched
from .listeners import listeners
from .site import Site


class Journal:
    """What a tape notes for its errors and warnings.

    Attributes:
        entered: the site where the tape last began to record.
        arguments: on the tape of a transform, returns the serials of each argument's tensors by the argument's name. A transform
            returns zeros for an argument that the value does not depend on, and warns: see request.connected.
        watched: for each leaf that was passed to `watch`, the site of the call.
        cuts: (serial, how, site) for each place where a watched value left the tape: numpy(), stop_gradient, …
        derivatives: the serials that `note_derivative` notes.
    """

    entered: Site | None = None
    arguments: Callable[[], dict[str, set[int]]] | None = None
    watched: dict[int, Site]
    cuts: list[tuple[int, str, Site]]
    derivatives: list[tuple[set[int], list[set[int]]]]

    def clear(self) -> None:
        """Forgets what was noted of recorded ops and watched values."""
        self.watched, self.cuts, self.derivatives = {}, [], []


def note_derivative(values: Sequence[Any], derivatives: Sequence[Any]) -> None:
    """Notes on the listening tapes that these derivatives of these values were taken.

    The derivative of a linear function depends on nothing. A tape can then tell an argument that such a function used from one that
    was forgotten: see `error_text.silent_zeros`.
    """
    if listeners.stack:
        noted = (_serials(values), [_serials([g]) for g in derivatives if isinstance(g, Tensor)])
        for listener in listeners.stack:
            if (journal := getattr(listener, "journal", None)) is not None:
                journal.derivatives.append(noted)


def _serials(values: Sequence[Any]) -> set[int]:
    """Returns the serials of tensors, and of the tensors with all examples if they are members of batches."""
    found: set[int] = set()
    for x in values:
        while isinstance(x, Batched):
            found.add(x.serial)
            x = x.value
        found.add(x.serial)
    return found - {0}
