"""Batching rules for the kinds of ops (kinds.py). There are two sorts:

- batch: `rule(op, size, xs, on, params)` runs the op on all examples at once. `on` marks the inputs that have the batch as their
  first axis; the other inputs are the same for every example. The result has the batch as its first axis too.
- pull: `rule(rule, size, values, on)` runs a fused pullback on all examples at once; `values` are (g, *kept).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..autodiff.batching import pull
from ..autodiff.primitive import Op, apply
from ..tensors.tensor import Tensor
from .by_name import aligned, all_on

# Maps the name of a parameter in the op's reference to a function (value, size) that returns the parameter's value after a new
# first axis of this size was inserted. Parameters that are not listed do not depend on axes.
SHIFTED: dict[str, Callable[[Any, int], Any]] = {
    "axis": lambda axis, size: axis + 1,
    "axes": lambda axes, size: tuple([axis + 1 for axis in axes]),
    "order": lambda order, size: (0, *[axis + 1 for axis in order]),
    "shape": lambda shape, size: (size, *shape),
    "key": lambda key, size: (slice(None), *key),
    "before": lambda before, size: (0, *before),
    "after": lambda after, size: (0, *after),
}


def shifted(op: Op, size: int, params: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the op's parameters adjusted to an additional first axis."""
    return _moved(op.names[len(op.names) - op.params :], size, params)


def _moved(names: Sequence[str], size: int, values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([SHIFTED[name](value, size) if name in SHIFTED else value for name, value in zip(names, values)])


def elementwise(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Lifts the examples of all inputs to one rank; broadcasting does everything else."""
    return apply(op, tuple(aligned(xs, on) if len(xs) > 1 else xs), tuple(params))


def along_axes(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Runs an op that moves, reduces or scans along axes, with the parameters that name axes adjusted."""
    return op.issue(op, tuple(all_on(size, xs, on)), shifted(op, size, params))


def leading(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Runs an op of one input that accepts any leading axes."""
    return apply(op, tuple(xs), tuple(params))


def everywhere(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Runs an op of several inputs that accepts any leading axes, if all inputs have the same ones."""
    return apply(op, tuple(all_on(size, xs, on)), tuple(params))


def no_rule(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """Raises NotImplementedError: the batching rule of kinds whose ops must declare one."""
    raise NotImplementedError(f"op {op} has no batching rule")


# ---- fused pullbacks: the same kernel runs on all examples at once


def pull_elementwise(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> Tensor:
    """Lifts the examples of all values to one rank; broadcasting does everything else."""
    return pull(rule, *aligned(values, on))


def pull_along_axes(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> Tensor:
    """Adjusts the kept values of a reduction (a shape and axes) to the additional first axis."""
    return pull(rule, values[0], *_moved([name.removeprefix("x_") for name in rule.names], size, values[1:]))


def pull_leading(rule: Any, size: int, values: Sequence[Any], on: Sequence[bool]) -> Tensor:
    """Runs a kernel that accepts any leading axes."""
    return pull(rule, *all_on(size, values, on))
