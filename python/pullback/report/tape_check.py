"""`tape.check` compares the pullback of each op before a target with finite differences of the op, in float64."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Final

import numpy as np

from ..autodiff.batching import Batched
from ..autodiff.node import Node
from ..autodiff.request import check_versions
from ..autodiff.site import number_of_line
from ..autodiff.tape import Tape
from ..backends.autocast import autocast
from ..errors import GradientCheckError, StaleValueError, TapeError, VmapError
from ..launch import capturing
from ..printable import printable
from ..tensors import devices
from ..tensors.tensor import Tensor
from ..transforms.calls import Call, Output
from ..tree import flatten
from .backward import without_listeners
from .points import DEFINITION, PULLBACK, CannotRunError, Function, function_of
from .rule_check import RTOL, Comparison, Measured, compare
from .table import table
from .walk import Walk

RIGHT, KINK, WRONG, UNCHECKED = "right", "kink", "wrong", "unchecked"
WIDTH: Final = 60  # characters of the column with the remarks
SEED: Final = 0  # of the directions, the cotangents and the values that the tape does not know
MOST_NAMED: Final = 8  # wrong ops that the text of an error names


@dataclass(frozen=True)
class CheckedOp:
    """One op of the tape.

    Attributes:
        op: the name of the op, or of the user's function.
        file, line, function: where the user's code called it.
        status: "right", "wrong", "kink" (right next to a kink or a jump, where the derivative is a convention), or "unchecked".
        worst: the argument, the element and both derivatives where the pullback is furthest off; None if nothing was compared.
        why: one sentence: what is wrong, why the op was not checked, or at which values it was.
    """

    op: str
    file: str
    line: int
    function: str
    status: str
    worst: Measured | None
    why: str

    @property
    def place(self) -> str:
        return f'{self.op}, recorded at "{self.file}", line {self.line}, in {self.function}'


class Check:
    """The result of `tape.check`. It prints as a table, followed by a sentence for each op whose derivative is wrong.

    Attributes:
        rows: a CheckedOp for each op between the leaves and the target, in the order in which the ops ran.
    """

    def __init__(self, rows: Sequence[CheckedOp]) -> None:
        self.rows = list(rows)

    def _of(self, status: str) -> list[CheckedOp]:
        return [row for row in self.rows if row.status == status]

    @property
    def wrong(self) -> list[CheckedOp]:
        """The rows of ops whose derivative is wrong."""
        return self._of(WRONG)

    @property
    def unchecked(self) -> list[CheckedOp]:
        """The rows of ops that could not be checked; `why` is the reason."""
        return self._of(UNCHECKED)

    @property
    def ok(self) -> bool:
        """True if no derivative is wrong. Ops that could not be checked do not count."""
        return not self.wrong

    @property
    def findings(self) -> list[str]:
        """A sentence for each op whose derivative is wrong, with its line and the figures."""
        return list(dict.fromkeys([f"{row.place}: {row.why}" for row in self.wrong]))

    def raise_if_wrong(self) -> None:
        """Raises GradientCheckError (also an AssertionError), naming op, line and figures, if a derivative is wrong."""
        if found := self.findings:
            more = [f"and {len(found) - MOST_NAMED} more"] if len(found) > MOST_NAMED else []
            raise GradientCheckError("\n".join(["check: " + self._verdict(), *found[:MOST_NAMED], *more]))

    def _verdict(self) -> str:
        counts = [f"{len(found)} {status}" for status in (RIGHT, KINK, WRONG, UNCHECKED) if (found := self._of(status))]
        return f"{len(self.rows)} ops: {', '.join(counts)}" if self.rows else "no ops"

    def __str__(self) -> str:
        columns = ("op", "line", "times", "derivative", "furthest off at", "difference", "allowed", "remark")
        alike: dict[Any, list[CheckedOp]] = {}
        for row in self.rows:
            alike.setdefault((row.op, row.file, row.line, row.status, row.why if row.status != WRONG else ""), []).append(row)
        lines = [_cells(rows) for rows in alike.values()]
        body = table(columns, lines, right=("times", "difference", "allowed"))
        ends = [f"- {finding}" for finding in self.findings] or ["no derivative is wrong"]
        return printable("\n".join([body, self._verdict(), *ends]))

    def __repr__(self) -> str:
        where = "".join([f"; {row.op} at {os.path.basename(row.file)}:{row.line}" for row in self.wrong[:MOST_NAMED]])
        return f"Check({self._verdict()}{where})"


def _cells(rows: Sequence[CheckedOp]) -> tuple[tuple[str, ...], ...]:
    """Formats one line of the table: ops of one line with the same result, with the figures of the worst of them."""
    row = max(rows, key=lambda row: row.worst.excess if row.worst else -1.0)
    at = (f"{os.path.basename(row.file)}:{row.line} {row.function}",)
    m = row.worst
    figures: list[tuple[str, ...]] = [()] * 3
    if m is not None:
        figures = [(f"{m.argument}, {m.where}",), (f"{m.difference:.1e}",), (f"{m.allowed:.1e}",)]
    remark = () if row.status == WRONG else tuple(wrap(row.why, WIDTH))
    return ((row.op,), at, (str(len(rows)),), (row.status,), *figures, remark)


def check(tape: Tape, target: Any) -> Check:
    """Returns the Check of a tape, for GradientTape.check."""
    capturing.refuse("tape.check, which reads values,", "Call it outside of the captured function.")
    targets = flatten(target)[0]
    for t in targets:
        if isinstance(t, Batched):
            raise VmapError("check: the values inside vmap differ from example to example. Call tape.check outside of it.")
        if not isinstance(t, Tensor):
            raise TapeError(f"check: a target is a {type(t).__name__}, not a tensor, so it cannot be on a tape.")
    if not any([t.serial in tape.values for t in targets]):
        raise TapeError("check: the target is not on this tape. Compute it while the tape records, from what the tape watches.")
    rng = np.random.default_rng(SEED)
    with np.errstate(all="ignore"), without_listeners(), autocast("float32"), devices.use_device(targets[0].device):
        walk = Walk(tape, targets)
        known: dict[int, Any] = {**walk.known}
        used = {x: place for place, node in enumerate(walk.nodes) for x in node.inputs}
        rows: list[CheckedOp] = []
        for place, node in enumerate(walk.nodes):
            rows += _rows(node, walk, known, rng, targets[0].device)
            for x in node.inputs:  # frees the float64 values that no later op reads
                if used[x] == place and isinstance(known.get(x), (np.ndarray, dict)):
                    del known[x]
    return Check(rows)


def _rows(node: Node, walk: Walk, known: dict[int, Any], rng: Any, device: str) -> Iterator[CheckedOp]:
    """Yields the row of an op, and adds its result to the known values. An Output, which only passes values on, has none."""
    if isinstance(node.op, Output):
        results = known.get(node.inputs[0])
        if isinstance(results, dict) and node.op.position in results:
            known[node.y] = results[node.op.position]
        return

    def row(status: str, why: str, worst: Measured | None = None) -> CheckedOp:
        return CheckedOp(node.op.name, node.code.co_filename, number_of_line(node.site), node.code.co_name, status, worst, why)

    if node.y in walk.missed and node.y not in walk.shapes:
        yield row(UNCHECKED, "no gradient arrives here, because the pullback of an op after it raised an error")
        return
    try:
        check_versions(node.op, node.versions, node.site)
        error = walk.failed.get(node.y)
        if isinstance(error, StaleValueError):
            raise error
        function = function_of(node, walk, known, rng, device)
    except (CannotRunError, StaleValueError) as reason:
        yield row(UNCHECKED, str(reason).removeprefix("gradient: "))
        return
    if error is not None:
        yield row(WRONG, f"its pullback raised {type(error).__name__}: {error}")
        return
    judged = _judged(row, function, rng)
    yield judged
    if function.known and judged.status != UNCHECKED:
        results = dict(zip(function.places, function.run(function.point)))
        known[node.y] = results if isinstance(node.op, Call) else results[0]


def _judged(row: Callable[..., CheckedOp], function: Function, rng: Any) -> CheckedOp:
    try:
        first, again = function.run(function.point), function.run(function.point)
    except Exception as error:  # any error of a user's function, or of a reference that does not take these values
        return row(UNCHECKED, f"it raised {type(error).__name__} when it ran again in float64: {error}")
    if not all([np.array_equal(a, b, equal_nan=True) for a, b in zip(first, again)]):
        return row(UNCHECKED, "it returns different values for the same arguments")
    if not function.checked:
        return row(UNCHECKED, "no gradient passes it")
    if not any([function.point[i].size for i in function.checked]):
        return row(UNCHECKED, "its arguments have no elements")
    found = compare(function, rng)
    worst = found.worst
    if found.malformed:
        return row(WRONG, "; ".join(found.malformed), worst)
    if worst is None:
        return row(UNCHECKED, "finite differences decide nothing: its values are not finite, or not smooth, at this point")
    if worst.excess > 1:
        return row(WRONG, _wrong(found, worst, function.pulls), worst)
    remarks = [f"at a kink or jump in {found.kinks} places: checked next to it"] if found.kinks else []
    if function.is_example:
        remarks.append("at the op's example: the tape does not keep its arguments")
    if function.drawn:
        remarks.append(f"at drawn values of {', '.join(function.drawn)}, which the tape does not keep")
    return row(KINK if found.kinks else RIGHT, "; ".join(remarks), worst)


def _wrong(found: Comparison, worst: Measured, pulls: Mapping[str, Any]) -> str:
    """Returns the sentence about a wrong derivative. It says "the pullback" if all pullbacks of the op are wrong."""
    wrong = {m.pullback for m in found.measured if m.excess > 1}
    name = PULLBACK if len(wrong) == len(pulls) else worst.pullback
    after = ", which second derivatives use," if name == DEFINITION else ""
    return (
        f"{name}{after} gives {worst.ours:.9g} for {worst.argument}, {worst.where}, and finite differences give "
        f"{worst.theirs:.9g}. They differ by {worst.difference:.1e}, and may differ by {worst.allowed:.1e} ({RTOL:g} of the "
        f"derivative, and {worst.error:.1e} for the error of the finite differences)"
    )
