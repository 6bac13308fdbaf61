"""docs/reproducibility.md: its code runs, and the order of sums that it states in NumPy is that of its rules and its example."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import ROOT

PAGE = ROOT / "docs" / "reproducibility.md"
if not PAGE.exists():
    pytest.skip("the source tree is not here: an installed package", allow_module_level=True)


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """Returns the names that the page's code defines."""
    names: dict[str, Any] = {}
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    assert len(snippets) == 2
    for snippet in snippets:
        exec(compile(snippet, PAGE.name, "exec"), names)
    return names


def test_the_table_of_the_example_is_what_the_rules_give() -> None:
    rows = re.findall(r"^\| (?:given|\d.*?joins? .*?) \|(.*)\|$", PAGE.read_text(), flags=re.M)
    levels = [[np.float32(cell) for cell in row.split("|") if cell.strip()] for row in rows]
    assert [len(level) for level in levels] == [6, 4, 2, 1]
    for level, after in zip(levels, levels[1:]):
        half = len(after)
        assert after == [x + level[half + j] if half + j < len(level) else x for j, x in enumerate(level[:half])]
    loop = np.float32(0)
    for term in levels[0]:
        loop += term
    assert (loop, sum(map(Fraction, map(float, levels[0])))) == (2, 4)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 255, 256, 257, 511, 513, 600, 1300, 70_000])
def test_the_code_combines_terms_as_the_rules_say(count: int, page: dict[str, Any]) -> None:
    """The rules, term by term, on symbols: each term is the pair of the terms that it combines."""

    def block(terms: list[Any]) -> Any:
        while len(terms) > 1:
            half = max([1 << p for p in range(9) if 1 << p < len(terms)])
            terms = [(x, terms[half + j]) if half + j < len(terms) else x for j, x in enumerate(terms[:half])]
        return terms[0]

    blocks = [block(list(range(k, min(k + 256, count)))) for k in range(0, count, 256)]
    while len(blocks) > 1:
        blocks = [(blocks[k], blocks[k + 1]) if k + 1 < len(blocks) else blocks[k] for k in range(0, len(blocks), 2)]
    values = np.random.default_rng(count).standard_normal(count).astype(np.float32)

    def evaluated(tree: Any) -> Any:
        return evaluated(tree[0]) + evaluated(tree[1]) if isinstance(tree, tuple) else values[tree]

    assert page["total"](values).tobytes() == evaluated(blocks[0]).tobytes()
    if pb.config.why_not() is None:
        assert page["total"](values) == pb.sum(pb.tensor(values)).item()
