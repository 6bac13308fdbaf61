"""One program per family of kernels. On the device it must compute what the CPU's kernels compute from the same numbers.

A family takes a length, from which it derives the sizes of its arrays, and yields calls by name. The families that are not in
LIBRARIES only call ops that have native kernels, on contiguous arrays, so that CuPy compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pullback as pb

from . import captures, elementary, indexing, layers, libraries, transforms, updates
from .values import Case, Family

EVERYWHERE = "_everywhere"  # the end of the names of families in the mode "everywhere"


def in_everywhere(family: Family) -> Family:
    """Returns the family in the mode "everywhere", in which the device must give the CPU's bits."""

    def calls(n: int) -> Iterator[Case]:
        for name, call in family(n):
            yield name, partial(_everywhere, call)

    return calls


def _everywhere(call: Callable[[], Any]) -> Any:
    before = pb.config.reproducible
    pb.config.reproducible = "everywhere"
    try:
        return call()
    finally:
        pb.config.reproducible = before


def together(*families: Family) -> Family:
    """Returns several families as one, which costs one process."""

    def calls(n: int) -> Iterator[Case]:
        for family in families:
            for name, call in family(n):
                yield f"{getattr(family, '__name__', '')}, {name}", call

    return calls


# The radix sort comes first because its blocks wait for each other, so it could hang. Then come the families that have run least on
# GPUs, each alone, and those that have run most are last.
_FIRST: dict[str, Family] = {
    "radix_sort": indexing.radix_sort, "attention": layers.attention, "conv": layers.conv, "recurrent": layers.recurrent,
    "channel_norms": layers.channel_norms, "pools": layers.pools, "conv_transpose": layers.conv_transpose,
    "linear_recurrence": layers.linear_recurrence, "captured_norms": captures.captured_norms,
    "captured_recurrent": captures.captured_recurrent, "loader": captures.loader,
    "captured_state": together(captures.captured_attention, captures.captured_steps_with_state),
    "update_options": updates.update_options, "projection": together(updates.loss_scaler, updates.projection),
}
# Families that need another library, or in which CuPy compiles kernels.
LIBRARIES: dict[str, Family] = {
    "matrices": libraries.matrices, "by_cupy": libraries.by_cupy, "exchange_cupy": libraries.exchange_cupy,
    "exchange_torch": libraries.exchange_torch, "exchange_jax": libraries.exchange_jax,
}
_SAME_BITS: dict[str, Family] = {
    "layers": together(
        layers.attention, layers.conv, layers.recurrent, layers.channel_norms, layers.pools, layers.linear_recurrence
    ),
    "captured_step": captures.captured_step,
    "others": together(
        updates.optimizers, elementary.products, elementary.reductions, elementary.rows, elementary.losses,
        elementary.elementwise_ops, indexing.scatter,
    ),
}
_LAST: dict[str, Family] = {
    "optimizers": updates.optimizers,
    "transforms": together(transforms.vectorized, transforms.per_example, transforms.recomputed),
    "captured_step": captures.captured_step, "new_addresses": captures.new_addresses,
    "sorts": together(indexing.sorts, indexing.select), "scatter": indexing.scatter,
    "rows": together(elementary.losses, elementary.reductions, elementary.rows, elementary.products),
    "indexing": together(indexing.indexing, indexing.cumulative, indexing.random, elementary.layouts),
    "elementwise": together(elementary.elementwise, elementary.elementwise_ops), "rounded_products": elementary.rounded_products,
    "large_products": elementary.large_products,
}
FAMILIES: dict[str, Family] = {
    **_FIRST, **LIBRARIES, **{name + EVERYWHERE: in_everywhere(f) for name, f in _SAME_BITS.items()}, **_LAST,
}

# What multiplies the differences that comparison.BY_DTYPE allows in float32 and float64. Tensor cores round their factors, and the
# algorithms of other libraries round differently.
TOLERANCES = {"rounded_products": 250.0, "large_products": 250.0, "matrices": 10.0}


def tolerance(name: str) -> float:
    """Returns what multiplies the allowed differences of a family: 0 if it requires equal bits."""
    return 0.0 if name.endswith(EVERYWHERE) else TOLERANCES.get(name, 1.0)


def order_for_sanitizer() -> list[str]:
    """Returns the families that run under compute-sanitizer, those that have run least on GPUs first.

    Those that need other libraries are left out, because their kernels are not pullback's. Those in the mode "everywhere" run the
    same kernels as the families of the same name, except that captured steps have one kernel more.
    """
    names = [*_FIRST, *_LAST, "captured_step" + EVERYWHERE]
    return [*[name for name in names if name != "large_products"], "large_products"]  # which take the longest under a tool
