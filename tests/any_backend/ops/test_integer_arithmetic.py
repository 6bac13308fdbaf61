"""Powers, shifts, quotients and rounding of integers and bools: what NumPy computes, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import INTEGERS, host

SIGNED = [name for name in INTEGERS if name[0] == "i"]
NEGATIVE: dict[str, Any] = {
    "int": -1, "numpy": np.int64(-3), "narrow": np.int8(-1), "list": [-1, 2], "nested": [[1], [-2]], "array": np.array([2, -1]),
    "listed": [np.int64(-1), True],
}
CALLS: dict[str, Any] = {
    "**": lambda a, b: a**b, "pow": pb.pow, "numpy": np.power,
    "vmap": lambda a, b: pb.vmap(lambda x: x**b)(pb.expand_dims(a, axis=0)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("exponent", NEGATIVE)
@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_integers_to_known_negative_powers_are_refused(dtype: str, exponent: str, call: str) -> None:
    b = NEGATIVE[exponent]
    with pytest.raises(ValueError, match="negative"):
        np.power(np.array([2, 3], dtype).astype(np.int64), b)
    with pytest.raises(pb.ArgumentError, match=rf"^pow: the exponent {np.min(b)} .*x\.astype\(pb\.float32\) \*\* {np.min(b)}\.$"):
        CALLS[call](pb.tensor([2, 3], dtype), b)


@pytest.mark.parametrize("a", [2, [2, 3], np.array([2, 3]), np.int64(2)], ids=["int", "list", "array", "numpy"])
def test_integers_that_are_no_tensors_to_negative_powers_are_refused(a: Any) -> None:
    with pytest.raises(pb.ArgumentError, match=r"pow: the exponent -1 "):
        pb.pow(a, -1)


@pytest.mark.parametrize("b", [-1, -2.0, [-1, 2], np.array([-1, 2]), [-1, 0.5], np.float32(-1)], ids=str)
def test_floats_have_negative_powers(b: Any) -> None:
    a = np.array([2.0, 0.75])
    np.testing.assert_allclose(host(pb.tensor(a) ** b), np.power(a, b))
    np.testing.assert_allclose(host(pb.tensor([2, 3]).astype(pb.float64) ** b), np.power([2.0, 3.0], b))
    np.testing.assert_allclose(host(pb.pow(2.0, b)), np.power(2.0, b), rtol=1e-6)


@pytest.mark.parametrize("b", [-1.0, [-1.0, 2.0], np.array([-1.0, 2.0])], ids=str)
def test_integers_have_negative_powers_of_floats(b: Any) -> None:
    np.testing.assert_allclose(host(pb.tensor([2, 3]) ** b), np.power([2.0, 3.0], b), rtol=1e-6)


@pytest.mark.parametrize("dtype", SIGNED)
def test_integers_have_powers_that_are_not_negative(dtype: str) -> None:
    a = np.array([-3, 0, 2], dtype)
    for b in (0, 3, True, [0, 1, 2], np.array([2, 0, 3])):
        np.testing.assert_array_equal(host(pb.tensor(a) ** b), np.power(a.astype(np.int64), np.asarray(b, np.int64)))


@pytest.mark.parametrize("shift", [pb.bitwise_left_shift, pb.bitwise_right_shift], ids=["left", "right"])
def test_shifts_of_bools_are_refused_as_their_differences_are(shift: Any) -> None:
    t = pb.tensor([True, False])
    for op, name in ((shift, shift.__name__), (pb.subtract, "subtract")):
        for a, b in ((t, t), (t, True), (False, t), (t, [True, False]), (t, np.True_)):
            with pytest.raises(pb.DTypeError, match=rf"^{name}: dtype bool is not for this op, which takes "):
                op(a, b)
    numpys = np.left_shift if shift is pb.bitwise_left_shift else np.right_shift
    for a, b in (([True, False], 1), ([True, False], [2, 3]), ([5, 4], [True, False]), (6, [True, False])):
        tensors = [pb.tensor(x) if isinstance(x, list) else x for x in (a, b)]
        np.testing.assert_array_equal(host(shift(*tensors)), numpys(np.asarray(a, int), np.asarray(b, int)))


def test_operators_on_bits_take_bools() -> None:
    a, b = np.array([True, True, False]), np.array([True, False, False])
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        got = getattr(pb, name)(pb.tensor(a), pb.tensor(b))
        assert got.dtype == pb.bool
        np.testing.assert_array_equal(host(got), getattr(np, name)(a, b))
    np.testing.assert_array_equal(host(~pb.tensor(a)), ~a)
    with pytest.raises(pb.DTypeError, match=r"bitwise_and: dtype float32 is not for this op, which takes integers and bools\."):
        pb.tensor([1.0]) & 1


@pytest.mark.parametrize("decimals", [0, 1, 2, -1, np.int64(1)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint8"])
def test_rounding_to_decimals_is_numpys(dtype: str, decimals: Any) -> None:
    a = np.array([0.25, 1.5, 2.5, 12.345, 15.0, 25.0, 117.3]).astype(dtype)
    t, wanted = pb.tensor(a), np.round(a, decimals)
    for got in (
        pb.round(t, decimals),
        pb.round(t, decimals=decimals),
        t.round(decimals),
        np.round(t, decimals),
        round(t, decimals),
    ):
        assert got.dtype == dtype
        np.testing.assert_allclose(host(got), wanted, rtol=1e-6)
    np.testing.assert_allclose(host(pb.vmap(lambda x: pb.round(x, decimals))(t)), wanted, rtol=1e-6)
    np.testing.assert_array_equal(host(round(t)), np.round(a))


def test_divmod_is_numpys() -> None:
    a, b = np.array([7, -7, 5]), np.array([2, 2, -3])
    for dtype in ("int32", "float64"):
        x, y = a.astype(dtype), b.astype(dtype)
        for got, wanted in (
            (divmod(pb.tensor(x), pb.tensor(y)), np.divmod(x, y)), (divmod(pb.tensor(x), 2), np.divmod(x, 2)),
            (divmod(9, pb.tensor(y)), np.divmod(9, y)),
        ):
            for part, numpys in zip(got, wanted):
                np.testing.assert_array_equal(host(part), numpys)


@pytest.mark.parametrize("name", ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])
@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_integers_are_compared_with_numbers_beyond_their_dtype_as_pythons_are(dtype: str, name: str) -> None:
    limits = (0, 1) if dtype == "bool" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    a = np.array([*limits, 1, 0], dtype)
    for number in (limits[0] - 1, limits[1] + 1, -(2**63), 2**63, -(2**63) - 1, 2**64, 10**400, -(10**400)):
        wanted = [bool(getattr(np, name)(np.array(x, object), np.array(number, object))) for x in a.tolist()]
        assert getattr(pb, name)(pb.tensor(a), number).tolist() == wanted
        wanted = [bool(getattr(np, name)(np.array(number, object), np.array(x, object))) for x in a.tolist()]
        assert getattr(pb, name)(number, pb.tensor(a)).tolist() == wanted


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"])
@pytest.mark.parametrize("decimals", [-1, -2, -3, -9, -18, -19])
def test_integers_are_rounded_to_tens_exactly(dtype: str, decimals: int) -> None:
    limits = np.iinfo(dtype)
    a = np.random.default_rng(-decimals).integers(limits.min // 2, limits.max // 2, 500, dtype=dtype)
    unit = 10**-decimals
    wanted = [round(Fraction(int(x), unit)) * unit for x in a]
    kept = [limits.min <= x <= limits.max for x in wanted]
    got = host(pb.round(pb.tensor(a), decimals))
    assert got.dtype == dtype
    assert got[kept].tolist() == [x for x, keep in zip(wanted, kept) if keep]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("decimals", [5, 39, 300, 400, 2**62])
def test_decimals_beyond_the_dtype_keep_the_number(dtype: str, decimals: int) -> None:
    x = pb.tensor([1.5, -0.25, 0.0, np.inf, -np.inf, np.nan], dtype=dtype)
    np.testing.assert_array_equal(host(pb.round(x, decimals).astype("float64")), host(x.astype("float64")))
    tens = host(pb.round(x, -decimals).astype("float64"))
    np.testing.assert_array_equal(tens, [0, 0, 0, np.inf, -np.inf, np.nan])
    assert host(pb.grad(lambda x: pb.sum(pb.round(x, decimals) * x))(x[:3]).astype("float64")).tolist() == [1.5, -0.25, 0.0]


DIVISIONS: dict[str, Any] = {
    "//": (lambda a, b: a // b, np.floor_divide), "%": (lambda a, b: a % b, np.remainder),
    "divmod": (lambda a, b: pb.stack(list(divmod(a, b))), lambda a, b: np.stack(np.divmod(a, b))),
    "fmod": (pb.fmod, np.fmod),
}


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_an_integer_divided_by_zero_is_zero_and_so_is_the_remainder(dtype: str, name: str) -> None:
    ours, numpys = DIVISIONS[name]
    limits = np.iinfo(dtype)
    a = np.array([5, 0, limits.min, limits.max, limits.min, 7], dtype)
    b = np.array([0, 0, 0, 0, -1 if dtype[0] == "i" else 1, 2], dtype)
    with np.errstate(all="ignore"):
        wanted = numpys(a, b)
    assert not wanted[..., :4].any()
    x, y = pb.tensor(a), pb.tensor(b)
    step = pb.capture(ours)
    for got in (ours(x, y), step(x, y), step(x, y), pb.vmap(ours, out_axes=-1)(x, y)):
        np.testing.assert_array_equal(host(got), wanted)
    np.testing.assert_array_equal(host(ours(x, 0)), 0)
