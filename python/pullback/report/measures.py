"""Measures one gradient for `tape.diagnose`: its norm, its zeros, its histogram, and how much of it an op passes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from ..autodiff.primitive import Op, Rule
from ..autodiff.site import line_of, number_of_line
from ..tensors import devices
from ..tensors.creation import ones_like
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from .backward import Visit

SATURATED: Final = 0.01  # an element is saturated if it passes on less than this fraction of the gradient
BINS: Final = 30  # bins of a histogram


@dataclass(frozen=True)
class Histogram:
    """The number of elements between neighbouring edges (BINS counts, BINS + 1 edges), their sum, and the sum of their squares."""

    edges: np.ndarray[Any, Any]
    counts: np.ndarray[Any, Any]
    sum: float
    sum_squares: float


@dataclass(frozen=True)
class Measures:
    """Measurements of the target's gradient with respect to a source or to the result of an op.

    Attributes:
        name: the source's label, or the op and its line.
        tag: a shorter name, different in every row.
        shape: the shape of the gradient.
        norm: the Euclidean norm of the gradient.
        dead: the share of zeros in the gradient. For an elementwise function, the share of zeros in the gradient with respect
            to its argument, which is 1 if no gradient passes.
        saturated: for a function that is bounded on both sides (tanh, sigmoid, …), the share of elements that pass on less
            than 1 % of the gradient; None for other ops.
        histogram: the histogram of the gradient's finite elements.
    """

    name: str
    tag: str
    shape: tuple[int, ...]
    norm: float
    dead: float
    saturated: float | None
    histogram: Histogram


def of_source(name: str, tag: str, gradient: Tensor) -> Measures:
    """Returns the row of a source."""
    return _row(name, tag, gradient, gradient, None)


def of_op(visit: Visit, parameters: Mapping[int, Parameter]) -> Measures:
    """Returns the row of an op.

    parameters: Parameters by serial. The first one that the op uses distinguishes layers whose ops share a line.
    """
    op, _, inputs, _, _, code, offset, _ = visit.node
    used = next((parameters[x] for x in inputs if x in parameters), None)
    layer = "" if used is None else f" with {used.label()}"
    name = f"{op.name}{layer}, recorded at {line_of((code, offset))}"
    layer = "" if used is None or not used.name else f" {used.name}"
    tag = f"{op.name}{layer} {os.path.basename(code.co_filename)}:{number_of_line((code, offset))}"
    found = _function(visit)
    if found is None:
        return _row(name, tag, visit.g, visit.g, None)
    function, rule, kept = found
    slope = rule.definition(ones_like(visit.g), *kept) if squashes(function) else None
    return _row(name, tag, visit.g, rule.definition(visit.g, *kept), slope)


def _row(name: str, tag: str, g: Tensor, passed: Tensor, slope: Tensor | None) -> Measures:
    array = on_host(g).astype(np.float64)
    finite = array[np.isfinite(array)]
    counts, edges = np.histogram(finite, BINS)
    with np.errstate(over="ignore", invalid="ignore"):
        histogram = Histogram(edges, counts, float(finite.sum()), float(np.square(finite).sum()))
        norm = float(np.sqrt(np.square(array).sum()))
    saturated = None if slope is None else _share(np.abs(on_host(slope)) < SATURATED)
    return Measures(name, tag, g.shape, norm, _share(on_host(passed) == 0), saturated, histogram)


def _share(mask: Any) -> float:
    return float(mask.mean()) if mask.size else 0.0


def on_host(t: Tensor) -> Any:
    """Returns the tensor's array, copied to the host if it is on a GPU."""
    return devices.move(t.array, "cpu")


def _function(visit: Visit) -> tuple[Op, Rule, tuple[Any, ...]] | None:
    """Returns the elementwise function of one argument that an op is or ends with, its rule, and the values the rule needs.

    Returns None if there is no such function.
    """
    op, edges = visit.node.op, visit.node.named_edges()
    if not edges:
        return None
    rule, kept = edges[0].rule, edges[0].kept
    if op.kind.name == "unary":
        return op, rule, kept
    if op.facts.ends_with is None:
        return None
    names = dict(zip(rule.names, kept))
    last = op.facts.ends_with(names)
    last_rule = last.rules[0]
    return None if last_rule is None else (last, last_rule, tuple([names[name] for name in last_rule.names]))


@cache
def squashes(op: Op) -> bool:
    """True if a function has finite, different limits at -inf and +inf, so that it saturates for large arguments."""
    with np.errstate(all="ignore"):
        low, high = np.asarray(op.reference(np, np.array([-np.inf, np.inf])), np.float64)
    return bool(np.isfinite(low) and np.isfinite(high) and low != high)
