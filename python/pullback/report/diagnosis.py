"""`tape.diagnose` finds where gradients die, vanish or turn into NaN between a target and its sources."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from typing import Any, Final

from ..autodiff import error_text
from ..autodiff.backward import Sums, total
from ..autodiff.node import all_kept, named, needed_by
from ..autodiff.request import check_versions, checked, checked_target, seeds_for
from ..autodiff.tape import Tape
from ..printable import printable
from ..tensors.creation import zeros_like
from ..tensors.parameter import Parameter
from ..tensors.tensor import Tensor
from ..tree import beside, flatten
from .backward import visits, without_listeners
from .first_nan import in_backward, in_forward
from .measures import Measures, of_op, of_source
from .table import html_table, table
from .tensorboard import writer

COLUMNS: Final = ("gradient by", "shape", "norm", "dead", "saturated")
MOSTLY: Final = 0.9  # saturation is a finding if at least this share of the elements is saturated


class Diagnosis:
    """The result of `tape.diagnose`. It prints as a table, followed by the findings in words.

    Attributes:
        sources: Measures for each source.
        ops: Measures for each op between the sources and the target, in the order in which the ops ran.
        first_nan: names the op that made the first NaN, in the forward or the backward pass; None if there is no NaN.
        without_gradient: names of the sources that no gradient reaches.
        findings: a sentence for each thing that looks wrong, the first NaN and the sources without gradient included.
    """

    def __init__(
        self, sources: list[Measures], ops: list[Measures], first_nan: str | None, without_gradient: list[str], findings: list[str]
    ) -> None:
        self.sources, self.ops = sources, ops
        self.first_nan, self.without_gradient, self.findings = first_nan, without_gradient, findings

    @property
    def rows(self) -> list[Measures]:
        """The rows of the ops, then the rows of the sources."""
        return [*self.ops, *self.sources]

    def __str__(self) -> str:
        body = table(COLUMNS, [_cells(row) for row in self.rows], right=COLUMNS[2:])
        return printable("\n".join([body, *([f"- {finding}." for finding in self.findings] or ["nothing looks wrong"])]))

    def _repr_html_(self) -> str:
        """Returns the table and the findings as HTML, for notebooks."""
        items = "".join([f"<li>{escape(finding)}.</li>" for finding in self.findings])
        found = f"<ul>{items}</ul>" if items else "<p>nothing looks wrong</p>"
        return f"{html_table(COLUMNS, [_cells(row) for row in self.rows], right=COLUMNS[2:])}\n{found}"

    def __repr__(self) -> str:
        return f"Diagnosis({len(self.sources)} sources, {len(self.ops)} ops, {len(self.findings)} findings)"

    def to_tensorboard(self, directory: str | os.PathLike[str], step: int = 0) -> None:
        """Writes the figures and histograms of all rows, and the findings, as one step of a TensorBoard run.

        Raises PullbackError if the package tensorboardX is not installed.
        """
        with writer(directory) as run:
            for row in self.rows:
                for figure in ("norm", "dead", "saturated"):
                    value = getattr(row, figure)
                    if value is not None:
                        run.add_scalar(f"gradient {figure}/{row.tag}", value, step)
                h = row.histogram
                if count := int(h.counts.sum()):
                    ends, sums = (h.edges[0], h.edges[-1]), (h.sum, h.sum_squares)
                    run.add_histogram_raw(f"gradient/{row.tag}", *ends, count, *sums, h.edges[1:].tolist(), h.counts.tolist(), step)
            run.add_text("findings", "\n".join([f"- {finding}" for finding in self.findings]) or "nothing looks wrong", step)


def _cells(row: Measures) -> list[tuple[str, ...]]:
    saturated = () if row.saturated is None else (f"{row.saturated:.1%}",)
    return [(row.tag,), (str(row.shape),), (f"{row.norm:.3g}",), (f"{row.dead:.1%}",), saturated]


def diagnose(tape: Tape, target: Any, sources: Any, output_gradients: Any) -> Diagnosis:
    """Returns the Diagnosis of a tape, for GradientTape.diagnose."""
    (targets, nested), wanted = flatten(target), checked(flatten(sources)[0], "diagnose")
    for t in targets:
        checked_target(t, "diagnose")
    given = beside(target, output_gradients) if nested and output_gradients is not None else [output_gradients]
    needed, live = needed_by(tape, targets, through_zero=True), needed_by(tape, targets)
    for node in named(tape.nodes):
        if node.y in needed:
            check_versions(node.op, node.versions, node.site)
    with without_listeners():
        seeds = seeds_for(targets, given)
        kept = [value for value in all_kept(tape.nodes) if isinstance(value, Tensor) and value.serial]
        known = {t.serial: t for t in [*kept, *targets, *wanted]}
        parameters = {serial: t for serial, t in known.items() if isinstance(t, Parameter)}
        first_nan = in_forward(tape, targets, known)
        ops, wrong = list[Measures](), list[str]()
        gradients, sums = dict.fromkeys([x.serial for x in wanted]), Sums("accumulate")
        for visit in visits(tape, targets, seeds, sums):
            if visit.node.y in needed:
                ops.append(of_op(visit, parameters))
                wrong += _wrong(ops[-1])
                first_nan = first_nan or in_backward(visit)
            if visit.node.y in gradients:
                gradients[visit.node.y] = visit.g
        gradients.update({serial: total(g) for serial, g in sums.of.items() if serial in gradients})
        found = [_of_source(i, x, gradients[x.serial]) for i, x in enumerate(wanted)]
    without = [x for x in wanted if x.serial not in live]
    findings = [first_nan] if first_nan else []
    findings += [_why_without(tape, x, x.serial in needed) for x in without]
    ops, found = _told_apart(ops[::-1], found)
    return Diagnosis(found, ops, first_nan, [error_text.name_of(x) for x in without], findings + wrong[::-1])


def _of_source(position: int, x: Tensor, gradient: Tensor | None) -> Measures:
    name = isinstance(x, Parameter) and x.name
    return of_source(error_text.name_of(x), str(name or f"source {position}"), zeros_like(x) if gradient is None else gradient)


def _why_without(tape: Tape, x: Tensor, zero: bool) -> str:
    if zero:
        return error_text.zero(tape, x).removesuffix(".")
    return f"the target does not depend on {error_text.unconnected(tape, x)}"


def _wrong(row: Measures) -> Iterator[str]:
    """Yields the findings about one op."""
    if row.norm and row.dead == 1:
        yield f"no gradient passes {row.name}: all of it is dead, and nothing before it learns from this path"
    if row.saturated is not None and row.saturated >= MOSTLY:
        yield (
            f"{row.saturated:.1%} of {row.name}, is saturated, so that hardly any gradient passes: make its argument smaller "
            f"(initial weights, normalisation)"
        )


def _told_apart(*groups: Sequence[Measures]) -> list[list[Measures]]:
    """Makes tags unique: appends a number to every repetition of a tag (a layer that is called again, a loop)."""
    seen = Counter[str]()

    def numbered(row: Measures) -> Measures:
        seen[row.tag] += 1
        return row if seen[row.tag] == 1 else replace(row, tag=f"{row.tag} ({seen[row.tag]})")

    return [[numbered(row) for row in rows] for rows in groups]
