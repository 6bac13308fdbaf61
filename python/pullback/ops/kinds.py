"""The kinds of ops (unary, binary, reduce, movement…). Each determines promotion, batching and forward-mode rules.

The kind supplies an op's rules, so that most ops are one declaration. An op for which a rule of its kind is wrong passes a
different rule in its declaration. The rules are in promotion.py, batch_rules.py and tangents.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..autodiff.primitive import Op, Rule
from ..tensors.tensor import Tensor
from .batch_rules import along_axes, elementwise, leading, no_rule, pull_along_axes, pull_elementwise, pull_leading
from .by_name import view
from .promotion import prepare, retry
from .tangents import bilinear, diagonal, linear, transposed

BatchRule = Callable[[Op, int, Sequence[Any], Sequence[bool], Sequence[Any]], Tensor]
PullRule = Callable[[Rule, int, Sequence[Any], Sequence[bool]], Any]
TangentRule = Callable[[Op, Sequence[Any], Tensor, Sequence[Any], Sequence[Any]], Tensor]


class Kind:
    """A kind of op: the rules and properties that ops of this kind share.

    Attributes:
        name: the name of the kind.
        batch: the batching rule; ops of the kind "own" declare a different one.
        pull: the batching rule of a fused pullback, None if there is none or the op declares it.
        broadcasts: True if the inputs broadcast.
        tangent: the forward-mode rule.
        issue: runs the op, if not `apply`.
        promotes: True if the inputs are converted to one dtype.
        widens: True if the op does arithmetic: its reference then computes half precision in float32 and rounds once.
        unbounded: True if a Python number may exceed the integers of the tensors' dtype, and then counts as infinite.
    """

    __slots__ = ("batch", "broadcasts", "issue", "name", "promotes", "pull", "tangent", "unbounded", "widens")
    prepare, retry = staticmethod(prepare), staticmethod(retry)

    def __init__(
        self, name: str, *, batch: BatchRule, tangent: TangentRule, promotes: bool = False, widens: bool = False,
        unbounded: bool = False, issue: Callable[..., Any] | None = None, pull: PullRule | None = None,
    ) -> None:
        self.name, self.batch, self.tangent, self.issue, self.pull = name, batch, tangent, issue, pull
        self.promotes, self.widens, self.unbounded = promotes, widens, unbounded
        self.broadcasts = batch is elementwise


ELEMENTWISE: dict[str, Any] = {"batch": elementwise, "pull": pull_elementwise}
ALONG_AXES: dict[str, Any] = {"batch": along_axes, "tangent": linear}

UNARY = Kind("unary", **ELEMENTWISE, tangent=diagonal, promotes=True, widens=True)
BINARY = Kind("binary", **ELEMENTWISE, tangent=diagonal, promotes=True, widens=True)
COMPARE = Kind("binary", **ELEMENTWISE, tangent=diagonal, promotes=True, widens=True, unbounded=True)
NEIGHBOUR = Kind("binary", **ELEMENTWISE, tangent=diagonal, promotes=True)  # depends on the dtype's spacing: must not be widened
SELECT = Kind("select", batch=elementwise, tangent=linear, widens=True)
REDUCE = Kind("reduce", batch=along_axes, pull=pull_along_axes, tangent=transposed)
LINEAR = Kind("linear", **ALONG_AXES)
MOVEMENT = Kind("movement", **ALONG_AXES)
VIEW = Kind("view", **ALONG_AXES, issue=lambda op, inputs, params: view(op, inputs[0], *params))
BILINEAR = Kind("bilinear", batch=no_rule, tangent=bilinear, promotes=True, widens=True)
ROWS = Kind("rows", batch=leading, pull=pull_leading, tangent=transposed, widens=True)
OWN = Kind("own", batch=no_rule, tangent=transposed, widens=True)
OWN_OF_TWO = Kind("own", batch=no_rule, tangent=transposed, promotes=True, widens=True)  # converts both inputs to one dtype
