"""Minima under general constraints refuse derivatives. Those by the implicit function theorem need the active constraints, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import TapeError
from ..tensors.tensor import Tensor
from ..transforms.custom import with_pullback

if TYPE_CHECKING:
    from .objective import Objective


def without_derivatives(values: tuple[Tensor, ...], x: Tensor, parts: Sequence[Objective]) -> tuple[Tensor, ...]:
    """Returns what belongs to a minimum x under constraints, so that its derivative raises TapeError. parts: f and constraints.

    The error comes when a gradient or a tangent by an argument of the parts is computed, and at once if a part uses another tensor
    that is watched.
    """
    owner = parts[0].what
    own = [part for part in parts if part.takes_unknowns]

    def constrained_minimum(*given: Sequence[Any]) -> tuple[tuple[Tensor, ...], Callable[..., Any]]:
        for part, sources in zip(own, given):
            part.value_from(part.unknowns.structured(x), sources)

        def pull(_: Any) -> Any:
            raise _refused(owner)

        return values, pull

    return with_pullback(constrained_minimum, lambda *_: _refused(owner))(*[part.sources() for part in own])


def _refused(owner: str) -> TapeError:
    return TapeError(
        f"{owner}: a minimum under constraints has no derivatives here, because those by the implicit function theorem need the "
        f"conditions of the active constraints, too. Where the result is meant as a constant, use pb.stop_gradient of the tensors "
        f"that f and the constraints use. For derivatives, give the gradient of the Lagrangian and the active constraints as "
        f"equations to pb.solve.root, with the multipliers among the unknowns (docs/solvers.md, Constraints)."
    )
