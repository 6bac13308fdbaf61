"""In the mode "everywhere" an op has the same bits on every SIMD level and device, with any number of threads, and in every way to
run it. tests/same_bits.py compares them, and finds an op that is left: python tests/same_bits.py --ops NAME

With PULLBACK_SAME_BITS=long, more lengths and all numbers of threads are compared. That takes some minutes.
"""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from bit_cases import LONG, cases
from conftest import host, ops
from pullback.autodiff.primitive import OPS
from same_bits import Configuration, Difference, collect, configurations, difference, digest, places

REASON = pb.config.why_not()
THREADS = (1, 2, 3, 4) if LONG else (1, 4)

pytestmark = pytest.mark.skipif(REASON is not None, reason=f'"everywhere" is not possible here: {REASON}')


def test_an_op_has_the_same_bits_everywhere_if_it_says_so_and_only_then() -> None:
    found = collect(configurations(places(), THREADS))
    wrong = [
        f"{name}: {len(differences)} results differ, such as {differences[0]}"
        for name, differences in found.items()
        if differences and OPS[name].same_bits is True
    ]
    if len(places()) > 2:  # A difference that is admitted may be that of a level or of the GPU.
        wrong += [f"{name} always has the same bits, but says: {OPS[name].same_bits}" for name in admitted() if not found[name]]
    assert not wrong, "\n".join(wrong)


def admitted() -> list[str]:
    """Returns the ops with a kernel that say why their bits differ. NumPy may, but need not, compute other bits elsewhere."""
    return [op.name for op in ops() if op.native and op.same_bits is not True]


def test_every_op_is_evaluated_and_every_case_has_its_own_name() -> None:
    for op in ops():
        words = [case.words for case in cases(op)]
        assert words, op
        assert len(set(words)) == len(words), op


# ---- the comparison itself


def test_all_nans_are_equal_and_all_other_bits_count() -> None:
    for dtype, bits in ((np.float32, np.uint32), (ml_dtypes.bfloat16, np.uint16)):
        nan = np.array([np.nan, 1], dtype)
        other = (nan.view(bits) | bits(1)).view(dtype)
        other[1] = 1
        assert np.isnan(other[0])
        assert digest(nan) == digest(other)
    zero = np.zeros(3, np.float32)
    different = (zero, -zero, zero[:2], zero.reshape(3, 1), zero.astype(np.float64), np.nextafter(zero, np.float32(1)))
    assert len({digest(x) for x in different}) == len(different)


def test_a_difference_names_two_runs_that_are_as_similar_as_possible() -> None:
    v3, v4 = Configuration("v3", 1), Configuration("v4", 4)
    results = {v3: {"eager": "a", "captured": "a"}, v4: {"eager": "a", "captured": "b"}}
    found = difference("sum", "x", {one: {"sum": {"x": bits}} for one, bits in results.items()})
    assert found == Difference("x", ("v4", 4, "eager"), ("v4", 4, "captured"))
    assert found.axes() == ("way",)
    assert str(found) == "x: [v4, 4 threads, eager] and [v4, 4 threads, captured]"
    same = {one: {"sum": {"x": {"eager": "a"}}} for one in results}
    assert difference("sum", "x", same) is None


# ---- what the fixed order costs in accuracy: nothing


@pytest.fixture
def in_mode_everywhere() -> Iterator[None]:
    before = pb.config.reproducible
    pb.config.reproducible = "everywhere"
    yield
    pb.config.reproducible = before


@pytest.mark.parametrize("signs", ["both", "positive"])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (4, 4), (64, 64)])
@pytest.mark.usefixtures("in_mode_everywhere", "on_cpu")
def test_long_products_are_as_accurate_as_those_of_blas(m: int, n: int, signs: str) -> None:
    """The error of a float32 product with k = 100,000 against float64 is not larger than NumPy's, in the mean of several seeds.

    Chains of 256 terms that are summed in pairs have smaller errors than the longer chains of a library.
    """
    ours, blas = [], []
    for seed in range(24 if m == 1 else 4):
        rng = np.random.default_rng(seed)
        a, b = [rng.standard_normal(shape, np.float32) for shape in ((m, 100_000), (100_000, n))]
        a, b = (np.abs(a), np.abs(b)) if signs == "positive" else (a, b)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        scale = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
        for errors, got in ((ours, host(pb.tensor(a) @ pb.tensor(b))), (blas, a @ b)):
            errors.append(np.sqrt(np.mean(np.square((got - exact) / scale))))
    assert np.mean(ours) <= np.mean(blas)
    assert np.mean(ours) < 1e-7
