"""The facts of an op that neither its run nor its derivative needs: for profiles, tests, benchmarks and documents."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..launch import scopes

if TYPE_CHECKING:
    from .primitive import Op

BY_LIBRARY: Final = "it runs in NumPy or CuPy, whose results on other machines pullback does not test"


class Facts:
    """What is known of an op besides what it computes.

    Args:
        shown: the name of the op in profiles.
        multiplied: if the op computes products, the names of their factors: the first two inputs, unless its declaration says more.
        cost: `f(inputs…, params…, y) -> dict` of figures.
        example: `f(rng, dtype) -> (inputs, params)` for tests, benchmarks and docs.
        domain, ulp: the range of the inputs in tests, and the error that a test accepts.
        factors: for some inputs, `f(of_all, g, *kept)`, which returns per-example gradients as factors (ops/factors.py).
        why_reference: the reason why the op has no kernel.
        ends_with: for an op whose last step is an elementwise op, returns this op, given a mapping from the names of the values
            that its rule keeps to the values.
        same_bits: True if the op gives the same bits everywhere (docs/reproducibility.md), otherwise a sentence that says why not.
    """

    __slots__ = ("cost", "domain", "ends_with", "example", "factors", "multiplied", "same_bits", "shown", "ulp", "why_reference")

    def __init__(
        self, shown: str, multiplied: tuple[str, ...], *, cost: Callable[..., Any] | None = None,
        example: Callable[..., Any] | None = None, domain: tuple[float, float] = (-2.0, 2.0), ulp: float = 4,
        factors: dict[int, Callable[..., Any]] | None = None, why_reference: str | None = None,
        ends_with: Callable[[Mapping[str, Any]], Op] | None = None, same_bits: bool | str = BY_LIBRARY,
    ) -> None:
        self.shown, self.multiplied, self.cost, self.example, self.domain, self.ulp = shown, multiplied, cost, example, domain, ulp
        self.factors: dict[int, Callable[..., Any]] = factors or {}
        self.why_reference, self.ends_with, self.same_bits = why_reference, ends_with, same_bits


def pulling(scope: int, op: Op, edges: Sequence[Any], reach: Container[int]) -> int:
    """Returns the scope of an op's pullback, which names the factors that get no gradient."""
    return scopes.pulling(scope, _without(op, edges, reach))


def _without(op: Op, edges: Sequence[Any], reach: Container[int]) -> tuple[str, ...]:
    """Returns which factors of the op get no gradient. A profile then knows which gradients of a product ran."""
    if op.joint:
        got = [name for name, x in zip(op.names, edges[0][0]) if x in reach] if edges else []
    elif len(op.rules) > 1:
        got = [op.names[op.rules.index(rule)] for x, rule, *_ in edges if x in reach and rule in op.rules]
    else:
        return ()
    return tuple([name for name in op.facts.multiplied if name not in got])
