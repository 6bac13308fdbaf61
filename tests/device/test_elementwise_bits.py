"""Elementwise ops have equal bits on the CPU and on a GPU, because both compute the same formulas with the same roundings."""

from __future__ import annotations

import pytest

import pullback as pb
from elementwise_bits import results
from pullback.backends import native

pytestmark = [
    pytest.mark.skipif(not pb.cuda.is_available(), reason=f"no device cuda: {pb.cuda.why_not()}"),
    pytest.mark.skipif(native.simd_level() == "x86-64-v2", reason="level v2 has no fused multiply-add, so its bits differ"),
    pytest.mark.filterwarnings("ignore::pullback.errors.ZeroGradientWarning"),
]


def test_values_and_gradients_of_random_bit_patterns() -> None:
    wanted, got = dict(results("cpu")), dict(results("cuda"))
    assert len(wanted) > 300
    assert [name for name, value in wanted.items() if got[name].tobytes() != value.tobytes()] == []
