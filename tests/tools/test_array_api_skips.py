"""The list of tests that are left out of the array API test suite: each has a reason, and is still needed."""

from __future__ import annotations

import re

import pytest

import pullback as pb
from conftest import ROOT
from pullback import linalg

LINES = (ROOT / "tests" / "array_api_skips.txt").read_text().splitlines()
SKIPS = [line for line in LINES if line and not line.startswith("#")]


def test_each_is_in_a_paragraph_that_begins_with_its_reason() -> None:
    for paragraph in "\n".join(LINES).split("\n\n"):
        assert paragraph.startswith("# ")
        assert paragraph.splitlines()[0].endswith(".")
    assert len(set(SKIPS)) == len(SKIPS)


@pytest.mark.parametrize("line", SKIPS)
def test_each_is_of_what_pullback_has_not(line: str) -> None:
    """If this fails, pullback has got the function: remove its lines."""
    if "setitem" in line or "asarray_arrays" in line:  # the latter changes elements to see if memory is shared
        with pytest.raises(TypeError, match="immutable"):
            pb.ones(3)[0] = 1
        return
    name = re.search(r"(?:test_linalg\.py::test_|\[(?:linalg.|elementwise-|fft-)?)(\w+)", line)
    assert name, line
    if name[1] == "vecdot_conj":
        with pytest.raises(pb.DTypeError, match="complex"):
            pb.asarray([1j])
        return
    space = linalg if "linalg" in line else getattr(pb, "fft", None) if "fft-" in line else pb
    assert space is None or not hasattr(space, name[1])
