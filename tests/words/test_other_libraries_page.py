"""docs/other_libraries.md, on names with another meaning elsewhere: each row is true of pullback and of the other library."""

from __future__ import annotations

import importlib
import re
import warnings
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import ROOT
from pullback import nn

PAGE = ROOT / "docs" / "other_libraries.md"
if not PAGE.exists():
    pytest.skip("the source tree is not here: an installed package", allow_module_level=True)

ROWS = [re.findall(r"`([^`]+)`", line) for line in PAGE.read_text().splitlines() if line.startswith("| `")]
X, V = [[1.0, 4.0], [3.0, 2.0]], [3.0, 1.0, 2.0, 2.0, 5.0, 4.0]


def plain(value: Any) -> Any:
    """Returns tensors and arrays as lists and numbers, tuples as lists, and a dtype as its name."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else str(value).rpartition(".")[2]


def agree(value: Any, text: str) -> None:
    wanted = text if text.startswith(("float", "int")) else eval(text)
    if isinstance(wanted, float):
        assert plain(value) == pytest.approx(wanted, rel=1e-6)
    else:
        assert plain(value) == wanted


def here(expression: str) -> Any:
    return eval(expression, {"pb": pb, "nn": nn, "np": np, "x": pb.tensor(X), "v": pb.tensor(V)})


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_is_true(row: list[str]) -> None:
    ours, value, theirs, there, instead = row
    agree(here(ours), value)
    agree(here(instead), there)
    library = theirs.partition(".")[0]
    try:
        found = importlib.import_module({"np": "numpy", "tf": "tensorflow"}.get(library, library))
    except ImportError:
        return
    names = {"jax": found, "torch": found, "tf": found, "np": np, "x": X, "v": V}
    if library == "torch":
        names.update(x=found.tensor(X), v=found.tensor(V))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agree(eval(theirs, names), there)


def test_the_rows_were_found() -> None:
    assert len(ROWS) > 15
    assert {len(row) for row in ROWS} == {5}
