"""Says in one sentence why the backward pass took as many FLOPs as it did, compared with the forward pass.

A product of two factors has a gradient by each, and each costs as many FLOPs as the product. So the backward pass of a network
costs twice the forward pass, unless some gradients are not asked for, a part has no backward pass, several cotangents are pulled
back, or there are derivatives of higher order.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from .units import three_digits

if TYPE_CHECKING:
    from .figures import Row
    from .session import Profile

EXACT: Final = 0.02  # how far a quotient of FLOPs may be from 0, 1 or 2: biases and sums of gradients are not in products
NOTICED: Final = 0.05  # a part with a smaller share of the FLOPs is not mentioned
ALL: Final = 0.995  # a part with a larger share counts as everything
MOST_PLACES: Final = 3


@dataclass
class _Product:
    """The products of one op in one module, or outside modules on one line.

    Attributes:
        forward: the FLOPs in the forward pass.
        backward: for each set of factors without a gradient, the FLOPs of first derivatives.
    """

    label: str
    forward: int = 0
    backward: Counter[tuple[str, ...]] = field(default_factory=Counter)

    @property
    def gradients(self) -> float:
        """The number of gradients per product."""
        return self.backward.total() / self.forward

    def unasked(self) -> dict[str, float]:
        """Returns for each factor the FLOPs of the products of which every gradient but that by this factor ran."""
        return {names[0]: flops for names, flops in self.backward.items() if len(names) == 1}

    @property
    def pulled_back(self) -> float:
        """The part of the products that had a backward pass, and more than 1 if several cotangents were pulled back."""
        return sum([flops / (2 if not without else 1) for without, flops in self.backward.items()]) / self.forward


class _Several(_Product):
    """The products of an op that has several, such as the scores and the sums of attention, or those of recurrent steps.

    A gradient by one input takes a part of them. If one was not asked for, what is missing is its share, because the parts are not
    known.
    """

    def unasked(self) -> dict[str, float]:
        missing = min(self.forward, 2 * self.forward * min(1.0, self.pulled_back) - self.backward.total())
        names = dict.fromkeys([name for names in self.backward for name in names])
        return {" and ".join(names): missing} if names and missing > 0 else {}

    @property
    def pulled_back(self) -> float:
        if not any(self.backward):
            return self.gradients / 2
        return 1.0 if self.gradients < 2 else self.gradients


class _Steps(_Several):
    """The products of a recurrent op. Backward, they are those by the weight, which pass the cotangent of the state from step to
    step, and one over all steps, which gives the gradient of the weight. A kernel computes the first ones, and they are one step
    fewer if no gradient of the first state was asked for.

    Attributes:
        carried: the FLOPs of that kernel.
    """

    carried: int = 0

    @property
    def pulled_back(self) -> float:
        of_weight = self.backward.total() - self.carried
        return of_weight / self.forward if self.carried and of_weight else super().pulled_back


_KINDS: Final[dict[str, type[_Product]]] = {"attention": _Several, "rnn": _Steps, "lstm": _Steps, "gru": _Steps}


def short_line(line: str) -> str:
    """Returns a row's line as "train.py:12 step", and other text unchanged."""
    found = re.fullmatch(r'"(.*)", line (\d+), in (.*)', line)
    return f"{os.path.basename(found[1])}:{found[2]} {found[3]}" if found else line


def ratio_explained(prof: Profile) -> str | None:
    """Returns "backward 1.01 × forward: …" with the reason, from the rows of the profile; None if one of the passes did not run.

    The ratio is that of all FLOPs; that of the FLOPs in products follows in parentheses if it differs.
    """
    forward, backward = prof.forward.flops, prof.backward.flops
    if not forward or not backward:
        return None
    products, higher = _products(prof.rows), _higher(prof.rows)
    total = sum([p.forward for p in products])
    reasons = _of_products(products, total, higher) if 2 * total >= forward else _of_others(prof)
    of_all, of_products = three_digits(backward / forward), _ratio_of_products(prof)
    products_too = "" if of_products in ("", of_all) else f" ({of_products} × in products)"
    return f"backward {of_all} × forward{products_too}" + (f": {'; '.join(reasons)}" if reasons else "")


def _ratio_of_products(prof: Profile) -> str:
    """Returns the backward pass's FLOPs in products divided by the forward pass's, or "" without products in one of them."""
    forward, backward = prof.forward.matmul_flops, prof.backward.matmul_flops
    return three_digits(backward / forward) if forward and backward else ""


def _products(rows: Sequence[Row]) -> list[_Product]:
    found: dict[tuple[str, str], _Product] = {}
    for row in rows:
        if row.phase == "forward" and row.figures.matmul_flops:
            label = f"{row.op} of {row.module or short_line(row.line)}"
            product = found.setdefault((row.module or row.line, row.op), _KINDS.get(row.op, _Product)(label))
            product.forward += row.figures.matmul_flops
    for row in rows:
        product = found.get((row.module or row.line, row.op)) if row.phase == "backward" and row.order == 1 else None
        if product is not None:
            product.backward[row.without] += row.figures.matmul_flops
            if isinstance(product, _Steps) and row.kernel == f"{row.op}_pullback":
                product.carried += row.figures.matmul_flops
    return list(found.values())


def _higher(rows: Sequence[Row]) -> float:
    """Returns the share of derivatives of second and higher order in the products of the backward pass."""
    flops = [(row.figures.matmul_flops, row.order) for row in rows if row.phase == "backward"]
    total = sum([x for x, _ in flops])
    return sum([x for x, order in flops if order > 1]) / total if total else 0.0


def _of_products(products: Sequence[_Product], total: int, higher: float) -> list[str]:
    many = {p.label: p.forward for p in products if p.pulled_back > 1 + EXACT}
    reasons = _in("several cotangents were pulled back", many, total)
    if higher > NOTICED:
        reasons.append(f"{higher:.0%} of the backward pass are derivatives of second or higher order")
    if reasons:
        return reasons
    unasked = [(p.label, p.unasked()) for p in products]
    for factor in dict.fromkeys([factor for _, flops in unasked for factor in flops]):
        reasons += _in(f"no gradient of {factor} was asked for", {label: flops.get(factor, 0) for label, flops in unasked}, total)
    alone = {p.label: p.forward * (1 - p.pulled_back) for p in products if p.pulled_back < 1}
    reasons += _in("no backward pass ran", alone, total)
    both = sum([p.forward for p in products if abs(p.gradients - 2) <= EXACT]) / total
    return reasons or (["both gradients of every product were asked for"] if both > ALL else [])


def _in(what: str, flops: Mapping[str, float], total: int) -> list[str]:
    """Returns the reason with the ops that it holds for and their share of all FLOPs in products, unless it holds for few."""
    share = sum(flops.values()) / total
    if share < NOTICED:
        return []
    if share > ALL:
        return [what]
    labels = [label for label in sorted(flops, key=lambda label: -flops[label]) if flops[label]]
    more = f" and {len(labels) - MOST_PLACES} more" if len(labels) > MOST_PLACES else ""
    return [f"{what} in {', '.join(labels[:MOST_PLACES])}{more}, for {share:.1%} of the FLOPs in products"]


def _of_others(prof: Profile) -> list[str]:
    """Returns the reason for a program that hardly computes products: the ratio is that of its costliest op."""
    groups = [group for group in prof.by("op") if group.forward.flops]
    top = max(groups, key=lambda group: group.forward.flops)
    forward, pulled = top.forward.flops, top.backward.flops
    share = forward / prof.forward.flops
    ratio = three_digits(pulled / forward)
    return [f"few FLOPs are in products; {top.name} has {share:.0%} of the forward pass, and its pullback takes {ratio} × as many"]
