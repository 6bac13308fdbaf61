"""Tensors made of numbers: every number that a dtype can represent is exact, and other objects raise clear errors."""

from __future__ import annotations

import subprocess
import sys
from array import array
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from conftest import FLOATS, INTEGERS, dtype_of, environment, host
from pullback.autodiff.primitive import OPS


@pytest.mark.parametrize(
    "values", [True, [True, False], [2**64 - 1, 0], [[2**63], [1]], [2**64 - 1]], ids=["bool", "bools", "mixed", "nested", "one"]
)
def test_unsigned_integers_of_64_bits_are_held_exactly(values: Any) -> None:
    """NumPy converts a list of large and small integers to floats, and cannot compare a bool with the largest integer."""
    got = host(pb.tensor(values, dtype="uint64"))
    assert got.dtype == np.uint64
    assert got.tolist() == np.array(values, np.uint64).tolist()


@pytest.mark.parametrize("values", [[2**64, 1], [2**64 - 1, -1], [2**63, 1.5, -2]])
def test_what_no_uint64_holds_is_refused(values: Any) -> None:
    with pytest.raises(pb.DTypeError):
        pb.tensor(values, dtype="uint64")


@pytest.mark.parametrize("number", [3, 2.5, True, np.int64(3), np.float32(2.5), np.float64(2.5), np.bool_(True), np.array(3)])
def test_a_tensor_of_one_number_has_the_default_dtype_of_that_number(number: Any) -> None:
    wanted = {"b": "bool", "i": "int64", "f": "float32"}[np.asarray(number).dtype.kind]
    got = pb.full((2, 3), number)
    assert got.dtype == wanted
    np.testing.assert_array_equal(host(got), np.full((2, 3), number))


@pytest.mark.filterwarnings("error")
def test_a_number_too_large_for_a_float_becomes_infinite_without_a_warning() -> None:
    for got in (pb.full(2, -1e30, dtype="float16"), pb.full_like(pb.zeros(2, dtype="float16"), -1e30)):
        assert host(got).tolist() == [-np.inf, -np.inf]


@pytest.mark.parametrize("value", [[1.0, 2.0], [None], None, "a", 1j, np.zeros(2), ()])
def test_what_is_not_one_number_does_not_fill_a_tensor(value: Any) -> None:
    with pytest.raises(pb.DTypeError, match=r"is not a number.*pb\.broadcast_to"):
        pb.full(2, value)
    with pytest.raises(pb.DTypeError, match=r"is not a number.*pb\.broadcast_to"):
        pb.full_like(pb.zeros(2), value, dtype="bool")


# ---- faults elsewhere that long random runs of test_fuzz.py found


def test_positions_of_a_split_may_be_counted_off_once() -> None:
    x = np.arange(6.0)
    for got, wanted in zip(pb.split(pb.tensor(x), iter([1, 4])), np.split(x, [1, 4]), strict=True):
        np.testing.assert_array_equal(host(got), wanted)


@pytest.mark.parametrize("order", [-1, -2.5])
@pytest.mark.parametrize("x", [[], [np.inf, -np.inf], [0.0, 3.0], [1.0, -4.0]])
def test_norms_of_negative_order_are_numpys(x: list[float], order: float) -> None:
    with np.errstate(divide="ignore"):
        wanted = np.linalg.norm(np.array(x), order)
    assert pb.linalg.vector_norm(pb.tensor(x, dtype="float64"), ord=order).item() == pytest.approx(wanted)


@pytest.mark.parametrize("order", ["fro", [], None])
def test_an_order_that_is_no_number_is_refused(order: Any) -> None:
    with pytest.raises(pb.ArgumentError, match=r"vector_norm: ord=.* is none of 2, 1, 0, inf, -inf, another power"):
        pb.linalg.vector_norm(pb.ones(3), ord=order)


@pytest.mark.parametrize(("arguments", "words"), [
    (("a",), r"truncated_normal: mean='a' is not a number"),
    ((0.0, None), r"truncated_normal: std=None is not a number"),
    ((0.0, 1.0, [1]), r"truncated_normal: low=\[1\] is not a number"),
    ((0.0, 1.0, -1.0, "b"), r"truncated_normal: high='b' is not a number"),
    ((0.0, 1.0, 1.0, 1.0), r"truncated_normal: low=1\.0 must be less than high=1\.0"),
    ((0.0, 1.0, 5.0, 9.0), r"\[5\.0, 9\.0\] holds 3e-07 of the distribution, .* float32 .* dtype=pb\.float64 reaches further"),
    ((0.0, 1.0, -9.0, -8.0), r"holds 6e-16 of the distribution"),
    ((0.0, 1.0, 40.0, float("inf")), r"holds 0 of the distribution"),
])
def test_a_truncated_normal_says_which_of_its_numbers_is_none(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(pb.PullbackError, match=words):
        pb.random.truncated_normal(3, *arguments)


@pytest.mark.parametrize("sections", ["a", 1.5, [1, 2.5], None])
def test_sections_that_are_no_integers_are_named(sections: Any) -> None:
    with pytest.raises(pb.ShapeError, match=r"^split: sections=.* is not an integer"):
        pb.split(pb.ones(4), sections)


def test_bools_and_a_python_integer_are_integers() -> None:
    got = pb.tensor([True, False]) + 2
    assert (got.dtype, host(got).tolist()) == ("int64", [3, 2])
    assert pb.result_type(pb.bool, 2) == "int64"
    assert pb.result_type(pb.bool, True) == "bool"


def test_bfloat16_of_ml_dtypes_is_known_before_pb_bfloat16_is_used() -> None:
    """A process starts without the dtype. Whichever way it is named first must register it with the kernels."""
    program = (
        "import ml_dtypes, numpy as np, pullback as pb\n"
        "from pullback import optim\n"
        "t = pb.tensor(np.random.default_rng(0).standard_normal((300, 300)), dtype='float32').astype(ml_dtypes.bfloat16)\n"
        "p = pb.Parameter(np.ones((300, 300)), dtype=np.dtype(ml_dtypes.bfloat16))\n"
        "before = pb.hash(t @ t)\n"
        "optim.Adam([p]).step([t])\n"
        "pb.bfloat16\n"
        "assert pb.hash(t @ t) == before\n"
    )
    run = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("dtype", [dtype for dtype in INTEGERS if np.dtype(dtype).itemsize < 8])
@pytest.mark.parametrize("source", FLOATS)
def test_floats_outside_an_integer_dtype_wrap_around_on_every_way(backend: Any, source: str, dtype: str) -> None:
    numbers = np.array([-2.75, 0.0, 300.5, -40_000.0, 6e4, 3e9, -3e9, 2.0**40 + 2.0**33, -(2.0**62)])
    x = numbers[np.abs(numbers) <= ml_dtypes.finfo(source).max].astype(dtype_of(source))
    bits, lowest = np.iinfo(dtype).bits, np.iinfo(dtype).min
    wanted = [(int(number) - lowest) % 2**bits + lowest for number in x.tolist()]
    assert backend.run(OPS["truncate"], (x,), (np.dtype(dtype),)).tolist() == wanted
    for got in (pb.sum(pb.tensor(x), (), dtype), pb.astype(pb.tensor(x), dtype)):
        assert host(got).tolist() == wanted
    with pb.use_device("cpu"):
        assert pb.asarray(x, dtype=dtype).tolist() == wanted
    ends = np.array([np.inf, -np.inf, np.nan, 3.0]).astype(dtype_of(source))
    same = host(pb.astype(pb.tensor(ends), dtype)).tolist()  # what C leaves open is the same in every function
    assert backend.run(OPS["truncate"], (ends,), (np.dtype(dtype),)).tolist() == same
    assert [pb.sum(pb.tensor(end), dtype=dtype).item() for end in ends] == same


@pytest.mark.parametrize("make", [pb.tensor, pb.asarray, pb.Parameter], ids=["tensor", "asarray", "Parameter"])
@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (array("d", [1 / 3, 2.0]), "float64"), (memoryview(np.array([1 / 3, 2.0])), "float64"),
        (array("f", [1 / 3, 2.0]), "float32"),
        (memoryview(np.array([[1 / 3], [2.0]], "float32")), "float32"), ([1 / 3, 2.0], "float32"),
    ],
)
def test_what_has_a_dtype_keeps_it(given: Any, dtype: str, make: Any) -> None:
    made = make(given)
    assert made.dtype == dtype
    np.testing.assert_array_equal(host(made), np.asarray(given, dtype))
    assert make(given, dtype="float32").dtype == "float32"
