"""Numbers among the arguments of a captured function: each value has a recording, and a warning says what to pass."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from pullback import nn

pytestmark = needs_kernels


def told_of(f: Any, *values: Any) -> list[str]:
    """Returns the warnings of a captured function that is called with each of these values."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for value in values:
            f(pb.ones(3), value)
    return [str(warning.message) for warning in caught]


def test_the_third_recording_for_another_float_says_what_to_pass() -> None:
    def scaled(x: Any, by: Any) -> Any:
        return x * by

    (message,) = told_of(pb.capture(scaled), 0.1, 0.1, 0.2, 0.2, 0.3, 0.4, 0.5)
    assert "capture(scaled) was recorded 3 times in a row" in message
    assert "argument leaf 1 was 0.2, then 0.3." in message
    assert "An option that must be a number, such as eps, refuses tensors." in message
    (message,) = told_of(pb.capture(scaled), *np.arange(3, dtype=np.float32))  # an op takes a NumPy number as a Python number
    assert re.search(r"was (np.float32\(1.0\), then np.float32\(2.0\)|1.0, then 2.0)\.", message)  # as NumPy 2 or 1 prints it
    assert told_of(pb.capture(scaled), 0.1, 0.2) == []
    assert told_of(pb.capture(scaled), 1, 2, 3, True, False) == []

    f = pb.capture(scaled)
    assert told_of(f, *[pb.tensor(number, pb.float32) for number in (0.1, 0.2, 0.3)]) == []
    assert f.stats().captures == 1
    for number in (0.1, 0.7):  # what the message says to pass has the bits of the float
        assert f(pb.ones(3) / 3, pb.tensor(number, pb.float32)).tolist() == scaled(pb.ones(3) / 3, number).tolist()


def test_the_advice_for_an_option_that_takes_no_tensor_holds_in_a_captured_function() -> None:
    attend = nn.functional.scaled_dot_product_attention
    x, scale = pb.random.normal((3, 4)), pb.tensor(0.3)
    with pytest.raises(pb.DTypeError, match=r"Multiply the query by it, and pass scale=1\.0\. A captured function cannot") as told:
        pb.capture(lambda x, scale: attend(x, x, x, scale=scale))(x, scale)
    assert ".item()" not in str(told.value)
    f = pb.capture(lambda x, scale: attend(x * scale, x, x, scale=1.0))
    for number in (0.3, 0.7):
        np.testing.assert_allclose(f(x, pb.tensor(number)).numpy(), attend(x, x, x, scale=number).numpy(), rtol=1e-5)
    with pytest.raises(pb.DTypeError, match=r"pass scale=1\.0\. For its value alone, give scale\.item\(\)"):
        attend(x, x, x, scale=scale)


@dataclass(frozen=True)
class Rate:
    value: float


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        (0.5, 2.5, "0.5, then 2.5"),
        (-0.0, 0.0, "-0.0, then 0.0"),
        (("a", 1.5), ("b", 1.5), "'a', then 'b'"),
        (1j, 2.5 + 1j, r"\(0.0, 1.0\), then \(2.5, 1.0\)"),
        (Rate(0.5), Rate(1.5), "0.5, then 1.5"),
        (frozenset([1.5]), frozenset([2.5]), r"\(1.5\), then \(2.5\)"),
        (pb.float32, pb.float64, ".*float32.*, then .*float64"),
    ],
)
def test_a_changed_argument_is_named_by_its_values(first: Any, then: Any, words: str) -> None:
    f = pb.capture(lambda x, _: x * 2, cache=1)
    f(pb.ones(3), first)
    with pytest.warns(UserWarning, match=f"argument leaf 1 was {words}"):
        f(pb.ones(3), then)
