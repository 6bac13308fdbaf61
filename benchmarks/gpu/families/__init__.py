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


# The radix sort comes first because its blocks wait for each other, so it could hang. Then come the families that have run least on
# GPUs, and those that have run most are last.
_NATIVE: tuple[Family, ...] = (
    indexing.radix_sort, layers.attention, layers.conv, layers.recurrent, layers.channel_norms, layers.pools, layers.conv_transpose,
    layers.linear_recurrence, captures.captured_norms, captures.captured_recurrent, captures.captured_attention, captures.loader,
    captures.captured_steps_with_state, updates.update_options, updates.loss_scaler, updates.projection, updates.optimizers,
    transforms.vectorized, transforms.per_example, transforms.recomputed, captures.captured_step, captures.new_addresses,
    indexing.sorts, indexing.select, indexing.scatter, elementary.losses, elementary.rounded_products, elementary.products,
    elementary.reductions, elementary.rows, indexing.indexing, indexing.cumulative, indexing.random, elementary.layouts,
    elementary.elementwise, elementary.elementwise_ops, elementary.large_products,
)  # fmt: skip
_SAME_BITS: tuple[Family, ...] = (
    layers.attention, layers.conv, layers.recurrent, layers.channel_norms, layers.pools, layers.linear_recurrence,
    captures.captured_step, updates.optimizers, elementary.products, elementary.reductions, elementary.rows, elementary.losses,
    elementary.elementwise_ops, indexing.scatter,
)  # fmt: skip
# Families that need another library, or in which CuPy compiles kernels.
LIBRARIES: dict[str, Family] = {
    f.__name__: f
    for f in (
        libraries.matrices, libraries.by_cupy, libraries.exchange_cupy, libraries.exchange_torch, libraries.exchange_jax,
    )
}  # fmt: skip


def _name(family: Family) -> str:
    return getattr(family, "__name__", "")


_native = {_name(f): f for f in _NATIVE}
_same_bits = {_name(f) + EVERYWHERE: in_everywhere(f) for f in _SAME_BITS}
_first = list(_native)[0:12]
FAMILIES: dict[str, Family] = {
    **{name: _native[name] for name in _first}, **LIBRARIES, **_same_bits,
    **{name: f for name, f in _native.items() if name not in _first},
}  # fmt: skip

# The largest difference relative to the largest element, for families that round more than others (comparison.BY_DTYPE).
TOLERANCES = {"rounded_products": 5e-3, "large_products": 5e-3}


def allowed(name: str) -> float | None:
    """Returns the tolerance of a family: 0.0 if it requires equal bits, None if its dtypes determine it."""
    return 0.0 if name.endswith(EVERYWHERE) else TOLERANCES.get(name)


def order_for_sanitizer() -> list[str]:
    """Returns the families that run under compute-sanitizer, those that have run least on GPUs first.

    Those that need other libraries are left out, because their kernels are not pullback's. Those in the mode "everywhere" run the
    same kernels as the families of the same name, except that captured steps have one kernel more.
    """
    return [*_native, captures.captured_step.__name__ + EVERYWHERE]
