"""Pullbacks by definition that count as their kernels do, so that a profile has the same FLOPs on a backend without kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..autodiff.primitive import Op, Rule
from ..backends.reference import distinct_bytes
from ..launch import door
from ..tensors.tensor import Tensor
from ._counts import COUNTS

# f(g, *kept) returns the FLOPs of a pullback's kernel by their names in FIGURES. It returns None where the kernel does not serve,
# and the ops of the definition count one by one.
PullCost = Callable[..., "dict[str, int] | None"]


def count_as_kernels(op: Op, costs: Sequence[PullCost | None]) -> None:
    """Makes the definitions of an op without kernels count as one launch each, with these costs, where no listener needs their
    ops.
    """
    for rule, cost in zip(op.rules, costs):
        if rule is not None and cost is not None:
            rule.fused = _counted(rule, f"{op.name}_pullback", cost)


def count_per_element(op: Op) -> None:
    """Does this for an elementwise op: the costs are measured by running its functors on the counting scalar."""
    for rule, which in zip(op.rules, ("",) if len(op.rules) == 1 else ("_a", "_b")):
        work = COUNTS.get(f"{op.name}_pullback{which}")
        if rule is not None and rule.names and work is not None:
            rule.fused = _counted(rule, f"{op.name}_pullback", lambda g, *_, work=work: cost_of_elements(g.size, work))


def cost_of_elements(count: int, work: tuple[int, int, int]) -> dict[str, int]:
    """Returns the cost of this many elements, each of which takes these (additions, multiplications, special ops)."""
    return {figure: count * of for figure, of in zip(("adds", "multiplies", "special_ops"), work)}


def _counted(rule: Rule, name: str, cost: PullCost) -> Callable[..., Any]:
    definition = rule.definition

    def pull(g: Tensor, *kept: Any) -> Any:
        flops = None if door.state.ledger is None else cost(g, *kept)
        if flops is None:
            return definition(g, *kept)
        return run_as_kernel(name, lambda: definition(g, *kept), (g, *kept), flops)

    return pull


def run_as_kernel(name: str, run: Callable[[], Any], values: Sequence[Any], flops: dict[str, int]) -> Any:
    """Runs ops on these values that count as one launch of a kernel, with the FLOPs of the kernel."""
    return door.run_counted(name, run, lambda found: _figures(values, found, flops))


def _figures(values: Sequence[Any], found: Any, flops: dict[str, int]) -> dict[str, Any]:
    written = [x.array.nbytes for x in (found if isinstance(found, list) else [found]) if x is not None]
    read = [x.array for i, x in enumerate(values) if isinstance(x, Tensor) and not any([x is y for y in values[:i]])]
    sizes = {"bytes_read": sum(map(distinct_bytes, read)), "bytes_written": sum(written)}
    return {**sizes, "dtype": values[0].dtype, **flops}
