"""In the mode "everywhere" an op has the same bits on every SIMD level and device, with any number of threads, and in every way to
run it. tests/same_bits.py compares them, and finds an op that is left: python tests/same_bits.py --ops NAME

With PULLBACK_SAME_BITS=long, more lengths and all numbers of threads are compared. That takes some minutes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from bit_cases import LONG, cases
from conftest import environment, host, ops
from same_bits import Configuration, Difference, collect, configurations, difference, digest, places

REASON = pb.config.why_not()
THREADS = (1, 2, 3, 4) if LONG else (1, 4)

pytestmark = pytest.mark.skipif(REASON is not None, reason=f'"everywhere" is not possible here: {REASON}')


def test_an_op_has_the_same_bits_everywhere_if_it_says_so_and_only_then() -> None:
    found = collect(configurations(places(), THREADS))
    # NumPy's bits may, but need not, differ.
    says = {op.name: op.facts.same_bits for op in ops() if op.native or op.facts.same_bits is True}
    assert not (wrong := contradictions(found, says, len(places()) > 2)), "\n".join(wrong)


def contradictions(found: dict[str, list[Difference]], says: dict[str, bool | str], complete: bool) -> list[str]:
    """Returns a line for each op whose bits differ although it says yes, or never differ although it says why they do.

    complete: True if several levels and a GPU were compared. Without them an op that says no is not expected to differ.
    """
    wrong = []
    for name, said in says.items():
        differences = found[name]
        if differences and said is True:
            wrong.append(f"{name}: {len(differences)} results differ, such as {differences[0]}")
        elif complete and not differences and said is not True:
            wrong.append(f"{name} has the same bits in all cases, but says: {said}")
    return wrong


def test_every_op_is_evaluated_and_every_case_has_its_own_name() -> None:
    for op in ops():
        words = [case.words for case in cases(op)]
        assert words, op
        assert len(set(words)) == len(words), op


# ---- the comparison itself


def test_a_yes_that_differs_and_a_no_that_agrees_are_contradictions() -> None:
    one = Difference("x", ("v3", 1, "eager"), ("cuda", 1, "eager"))
    found: dict[str, list[Difference]] = {"a": [], "b": [one, one], "c": [one], "d": []}
    says: dict[str, bool | str] = {"a": True, "b": True, "c": "it rounds twice", "d": "it rounds twice"}
    assert contradictions(found, says, complete=True) == [
        "b: 2 results differ, such as x: [v3, 1 threads, eager] and [cuda, 1 threads, eager]",
        "d has the same bits in all cases, but says: it rounds twice",
    ]
    assert [line.partition(" ")[0] for line in contradictions(found, says, complete=False)] == ["b:"]


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


@pytest.fixture
def in_mode_everywhere() -> Iterator[None]:
    before = pb.config.reproducible
    pb.config.reproducible = "everywhere"
    yield
    pb.config.reproducible = before


# ---- arguments that kernels cannot read as they are


@pytest.mark.usefixtures("in_mode_everywhere")
def test_unaligned_memory_makes_no_difference() -> None:
    numbers = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    record = np.zeros(1000, [("pad", np.int16), ("number", np.float32)])
    record["number"] = numbers
    odd = np.frombuffer(b"\0" + numbers.tobytes(), np.float32, offset=1)
    captured = pb.capture(pb.sum)
    for f in (pb.exp, pb.sum, pb.softmax, pb.cumulative_sum, captured, captured):
        wanted = digest(f(pb.asarray(numbers)))
        for unaligned in (odd, record["number"]):
            assert not unaligned.flags.aligned
            assert digest(f(pb.asarray(unaligned))) == wanted
            assert digest(f(pb.tensor(unaligned))) == wanted
            assert digest(f(unaligned)) == wanted
    with pytest.raises(ValueError, match="unaligned memory"):
        pb.asarray(odd, copy=False)


@pytest.mark.usefixtures("in_mode_everywhere")
def test_arguments_that_no_kernel_takes_are_refused_if_a_library_would_round() -> None:
    x = pb.ones((2,) * 9)
    for f in (pb.exp, pb.sum, lambda x: x + x, lambda x: x @ x):
        with pytest.raises(pb.PullbackError, match=r"does not take 9 axes \(at most 8\), and .* Reshape"):
            f(x)
    assert pb.sum(pb.ones((2,) * 9, dtype="int32")).item() == 512  # integers have the same bits in every order
    with pytest.raises(pb.ShapeError):
        x @ pb.ones((3,) * 9)
    pb.config.reproducible = "machine"
    assert pb.sum(x).item() == 512


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("share", [0.2, 1.0])
def test_rows_with_nan_are_nan_on_every_device(share: float, dtype: str) -> None:
    """On a GPU all threads of a row must agree on its largest element, with NaN among the candidates."""
    for n in (100, 257, 300, 5000):
        x = np.random.default_rng(n).standard_normal((1, n))
        x[0, np.random.default_rng(1).permutation(n)[: int(share * n)]] = np.nan
        t = pb.tensor(x, dtype=dtype)
        for y in (pb.logsumexp(t), pb.log_softmax(t), pb.softmax(t), pb.nn.cross_entropy(t, pb.tensor([3]))):
            assert np.all(np.isnan(host(y).astype(np.float64)))


def test_the_mean_of_one_number_is_this_number() -> None:
    for dtype, number in ((np.float32, 1e-40), (np.float64, 1e-310)):
        x = pb.tensor(np.array([number], dtype))
        assert digest(pb.mean(x)) == digest(np.array(number, dtype))


# ---- what the fixed order costs in accuracy: nothing


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


# ---- other libraries

OTHER_LIBRARIES = """
import math
import numpy as np
import pullback as pb
from pullback import nn, optim

def ours():
    pb.random.seed(0)
    weights = [nn.init.orthogonal(pb.Parameter(pb.zeros(shape, dtype="float64"))) for shape in ((50, 70), (70, 50), (3, 4, 5))]
    x = pb.random.normal((100,), dtype="float64")
    slopes = [pb.grad(lambda x: pb.sum(pb.cos(base**x)))(x) for base in (0.3, 1.7, 10, 1e300)]
    shares = [optim.schedules.PolynomialSparsity(0.1, 0.9, 0, 1000, 1)(t) for t in range(1000)]
    return [weights, slopes, shares]

numbers = np.linspace(-5, 5, 1000)
theirs = [[math.exp(x) for x in numbers], np.linalg.qr(numbers.reshape(20, 50))[0]]
print(pb.hash(ours()), *[pb.hash(x) for x in theirs])
"""


def test_other_libraries_make_no_difference() -> None:
    """The C library and OpenBLAS have variants for each kind of processor. Variants without fused multiply-adds can run here."""
    plain = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-AVX2", "OPENBLAS_CORETYPE": "Nehalem"}
    ours, theirs = [], []
    for variables in ({}, plain):
        given = environment(PULLBACK_REPRODUCIBLE="everywhere", PULLBACK_DEVICE="cpu") | variables
        done = subprocess.run([sys.executable, "-c", OTHER_LIBRARIES], env=given, capture_output=True, text=True, check=True)
        first, *rest = done.stdout.split()
        ours.append(first), theirs.append(rest)
    if theirs[0] == theirs[1]:
        pytest.skip("these variables choose no other variant of the C library and of OpenBLAS on this machine")
    assert ours[0] == ours[1]
