"""Finds the op that made the first NaN: in the forward pass, from the values that the tape kept, or else in the backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..autodiff.error_text import name_of, op_at
from ..autodiff.node import Node, named, needed_by
from ..autodiff.primitive import OPS, apply
from ..autodiff.tape import Tape
from ..tensors import devices, dtypes
from ..tensors.tensor import Tensor
from ..transforms.calls import Output
from .backward import Visit
from .walk import kept_by_name

MOST_NAMED = 3  # ops without a kept result that one message names


def has_nan(t: Tensor) -> bool:
    """True if some element is NaN."""
    return dtypes.is_float(t.dtype) and bool(np.isnan(devices.move(t.array, "cpu")).any())


def in_forward(tape: Tape, targets: Sequence[Tensor], known: Mapping[int, Tensor]) -> str | None:
    """Returns a sentence about the first op with NaN in its result on the way to a target; None if no target contains NaN.

    `known` holds values by serial: those that pullbacks keep, the targets and the sources. An op whose arguments are all known
    runs again. If the NaN may come from an op whose result is not known, the sentence names that op too.
    """
    if not any([has_nan(target) for target in targets]):
        return None
    needed, values = needed_by(tape, list(targets), through_zero=True), dict(known)
    for serial in needed & tape.leaves.keys() & values.keys():
        if has_nan(values[serial]):
            return f"{name_of(values[serial])} holds NaN before the first op"
    unknown: dict[int, Node] = {}
    for node in named(tape.nodes):
        y = node.y
        if y not in needed:
            continue
        if y not in values and (value := _recomputed(node, values)) is not None:
            values[y] = value
        if y not in values:
            unknown[y] = node
        elif has_nan(values[y]):
            return _words(node, unknown)
    return None


def in_backward(visit: Visit) -> str | None:
    """Returns a sentence about this op if it turns a cotangent without NaN into one with NaN, otherwise None."""
    if has_nan(visit.g) or not any([has_nan(gx) for _, gx in visit.passed]):
        return None
    node = visit.node
    return f"the backward pass of {op_at(node.op, node.site)}, makes the first NaN: its result has none, its gradient has"


def _recomputed(node: Node, values: Mapping[int, Tensor]) -> Tensor | None:
    """Runs the op again and returns its result; None if some argument of the call is not known."""
    op, inputs, given = node.op, node.inputs, dict(kept_by_name(node))
    names = op.names[: len(op.names) - op.params]
    if len(inputs) != len(names) or OPS.get(op.name) is not op:  # The op takes any number of inputs, or is a user's function.
        return None
    given.update({name: values[x] for name, x in zip(names, inputs) if x in values})
    if any([name not in given for name in names]):
        return None
    return apply(op, tuple([given[name] for name in names]), tuple(node.params))


def _words(node: Node, unknown: dict[int, Node]) -> str:
    if isinstance(node.op, Output):
        node = unknown.pop(node.inputs[0])  # the call of a user's function, which this Output is a result of
    words = f"the first NaN is in the result of {op_at(node.op, node.site)}"
    behind: list[Node] = []
    front = [unknown[x] for x in node.inputs if x in unknown]
    while front:
        found = front.pop()
        if not isinstance(found.op, Output):
            behind.append(found)
        front += [unknown[x] for x in found.inputs if x in unknown]
    if not behind:
        return words
    ops = [op_at(node.op, node.site) for node in behind[:MOST_NAMED]]
    more = f", or {len(behind) - MOST_NAMED} more before" if len(behind) > MOST_NAMED else ""
    return f"{words}, or of an op before it whose result was not kept ({'; '.join(ops)}{more}); pb.debug_nans() tells which"
