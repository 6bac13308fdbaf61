"""Errors say what was asked, what is wrong and what to do; check_gradients and debug_nans find what they look for."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import errors

HERE = r'".*test_errors\.py", line \d+'


# ---- the classes


def test_every_error_is_a_pullback_error_and_an_ordinary_one() -> None:
    for name, also in {
        "ShapeError": ValueError, "DTypeError": TypeError, "NonFiniteError": ArithmeticError, "GradientCheckError": AssertionError,
        "FileFormatError": ValueError, "OutOfMemoryError": MemoryError, "UnconnectedError": pb.TapeError,
        "StaleValueError": pb.TapeError,
        "DeviceError": Exception, "CaptureError": Exception,
    }.items():  # fmt: skip
        cls = getattr(pb, name)
        assert issubclass(cls, pb.PullbackError), name
        assert issubclass(cls, also), name
    assert issubclass(pb.ZeroGradientWarning, UserWarning)


def test_every_class_is_public_and_says_what_it_is_for() -> None:
    for name, cls in vars(errors).items():
        if isinstance(cls, type):
            assert getattr(pb, name) is cls
            assert cls.__doc__


# ---- what they say


T = pb.tensor
CASES: list[tuple[Any, Any, str]] = [
    (lambda: T([1.0, 2.0]) + T([1.0, 2.0, 3.0]), pb.ShapeError, r"add.*\(2,\).*\(3,\).*lengths 2 and 3.*expand_dims"),
    (lambda: T(np.ones((2, 3))) @ T(np.ones((4, 5))), pb.ShapeError, r"matmul.*\(2, 3\).*\(4, 5\).*length 3.*has 4.*mT"),
    (lambda: T(1.0) @ T(1.0), pb.ShapeError, r"matmul.*0-d.*a \* b"),
    (lambda: pb.reshape(T([1.0, 2.0, 3.0]), (2, -1)), pb.ShapeError, r"reshape.*3 elements.*\(2, -1\)"),
    (lambda: pb.sum(T([1.0]), axis=3), pb.ShapeError, r"sum.*axis 3.*1 axes.*from -1 to 0"),
    (lambda: pb.sum(T(np.ones((2, 2))), axis=(0, 0)), pb.ShapeError, r"sum.*twice"),
    (lambda: pb.max(T(np.zeros((0, 3)))), pb.ShapeError, r"max.*\(0, 3\).*empty"),
    (lambda: pb.concat([T([1.0]), T([[1.0]])]), pb.ShapeError, r"concat.*\(1,\).*\(1, 1\)"),
    (lambda: pb.stack([T([1.0]), T([1.0, 2.0])]), pb.ShapeError, r"stack.*\(1,\).*\(2,\)"),
    (lambda: pb.broadcast_to(T([1.0, 2.0]), (3,)), pb.ShapeError, r"broadcast_to.*2 and 3"),
    (lambda: pb.permute_dims(T([[1.0]]), (0, 0)), pb.ShapeError, r"permute_dims.*\(0, 0\).*permutation"),
    (lambda: pb.split(T([1.0, 2.0, 3.0]), 2), pb.ShapeError, r"split.*length 3.*2 equal parts"),
    (lambda: pb.squeeze(T([1.0, 2.0]), axis=0), pb.ShapeError, r"squeeze.*\(2,\)"),
    (lambda: pb.einsum("ij,jk->ik", T([[1.0]]), T([1.0])), pb.ShapeError, r"einsum.*jk.*\(1,\)"),
    (lambda: T([[1.0, 2.0]])[5], IndexError, r"\[5\].*\(1, 2\)"),
    (lambda: T([1.0, 2.0])[T([0, 7])], IndexError, r"index 7 (at position \[1\]|is out of range).*length 2"),
    (lambda: pb.take(T([1.0]), T([0.5])), pb.DTypeError, r"take.*float32.*astype"),
    (lambda: T([1.0, 2.0]).at[[0, 1]].set(T([1.0, 2.0, 3.0])), pb.ShapeError, r"at\[.*set.*\(2,\).*\(3,\)"),
    (lambda: T([1.0]) & T([1.0]), pb.DTypeError, r"bitwise_and.*float32.*integer"),
    (lambda: T([1, 2], dtype="int8") + 1000, pb.DTypeError, r"add.*1000.*int8.*-128 to 127"),
    (lambda: T([1], dtype="uint64") + T([1], dtype="int64"), pb.DTypeError, r"uint64.*int64|int64.*uint64"),
    (lambda: T([1.0], dtype="complex64"), pb.DTypeError, r"complex64.*not supported"),
    (lambda: T(["a"]), pb.DTypeError, r"numbers"),
    (lambda: T([[1.0], [1.0, 2.0]]), pb.ShapeError, r"equal lengths"),
    (lambda: T([1.0], dtype="float99"), pb.DTypeError, r"float99.*pb\.float32"),
    (lambda: T([1.0, 2.0]).item(), pb.ShapeError, r"item\(\).*\(2,\).*numpy\(\)"),
    (lambda: bool(T([1.0, 2.0])), pb.ShapeError, r"bool\(\).*\(2,\).*pb\.all"),
    (lambda: [1, 2, 3][T(1.0)], pb.DTypeError, r"float32.*index"),
    (lambda: pb.Parameter([1.0, 2.0], name="w").assign([1.0]), pb.ShapeError, r'"w".*\(2,\).*\(1,\)'),
    (lambda: pb.ones(2, device="tpu"), pb.DeviceError, r"'tpu'.*\"cpu\""),
    (lambda: pb.zeros((-1,)), pb.ShapeError, r"negative"),
    (lambda: pb.where(T([True]), 1000, T([1], dtype="int8")), pb.DTypeError, r"where: 1000 .*int8.*-128 to 127"),
    (lambda: T([1], dtype="int8").at[0].set(300), pb.DTypeError, r"300.*int8"),
    (lambda: T([1], dtype="int8").at[0].set(1.5), pb.DTypeError, r"at\[.*float32.*int8"),
    (lambda: pb.pad(T([1], dtype="int8"), 1, value=1.5), pb.DTypeError, r"pad: value 1\.5.*int8"),
    (lambda: pb.pad(T([1]), (1, 2, 3)), pb.ShapeError, r"pad_width \(1, 2, 3\)"),
    (lambda: T([1000], dtype="int8"), pb.DTypeError, r"1000.*int8.*wider"),
    (lambda: pb.full((2,), 1000, dtype="int8"), pb.DTypeError, r"1000.*int8.*wider"),
    (lambda: pb.sin(None), pb.DTypeError, r"NoneType.*made of numbers.*nested lists"),
    (lambda: pb.Parameter([1.0]).assign([1j]), pb.DTypeError, r"made of numbers"),
    (lambda: pb.moveaxis(T([[1.0]]), (0, 1), (1,)), pb.ShapeError, r"moveaxis.*\(0, 1\).*\(1,\)"),
    (lambda: pb.roll(T([[1.0]]), (1, 2, 3), axis=(0, 1)), pb.ShapeError, r"roll: 3 shifts for 2 axes"),
    (lambda: pb.reshape(T([[1.0, 2.0], [3.0, 4.0]]).T, (4,), copy=False), ValueError, r"reshape.*copy"),
    (lambda: pb.repeat(T([1.0, 2.0]), [1, 2, 3]), pb.ShapeError, r"repeat: 3 counts.*length 2"),
    (lambda: pb.tile(T([1.0]), -1), pb.ShapeError, r"tile.*negative"),
    (lambda: pb.arange(0, 1, 0), pb.ShapeError, r"arange: step=0"),
    (lambda: pb.zeros(2.5), pb.ShapeError, r"shape 2\.5"),
    (lambda: pb.sum(T(1.0), axis=0), pb.ShapeError, r"sum: axis 0.*without axes"),
    (lambda: pb.random.Generator(0).uniform((2,), 2.0, 1.0), pb.PullbackError, r"low=2\.0.*high=1\.0"),
    (lambda: pb.zeros((1 << 44,)), pb.OutOfMemoryError, r"17592186044416.*float32"),
    (lambda: pb.matmul(pb.ones((1 << 20, 1)), pb.ones((1, 1 << 24))), pb.OutOfMemoryError, r"memory"),
    (lambda: pb.GradientTape().watch(T([1])), pb.TapeError, r"watch.*int64.*float32"),
    (lambda: pb.GradientTape().watch([1.0]), pb.TapeError, r"watch.*float"),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "error", "words"), CASES, ids=[words[:30] for _, _, words in CASES])
def test_a_message_has_the_essential_words(ask: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match="(?s)" + words):
        ask()


def test_item_assignment_shows_what_to_write_instead() -> None:
    t = pb.tensor([1.0, 2.0])
    with pytest.raises(TypeError, match=r"t\.at\[index\]\.set\(value\)"):
        t[0] = 1.0


def test_a_target_that_is_not_a_scalar_is_told_three_choices() -> None:
    w = pb.Parameter([1.0, 2.0])
    with pb.GradientTape() as tape:
        y = w * w
    with pytest.raises(pb.TapeError, match=r"\(2,\).*pb\.sum.*tape\.jacobian.*output_gradients"):
        tape.gradient(y, w)


@pytest.mark.parametrize("bad", [3.0, "x", None])
def test_sources_and_targets_must_be_tensors(bad: Any) -> None:
    w = pb.Parameter(2.0)
    with pb.GradientTape(persistent=True) as tape:
        y = w * w
    with pytest.raises(pb.TapeError, match=r"source.*not a tensor"):
        tape.gradient(y, [w, bad])
    with pytest.raises(pb.TapeError, match=r"target.*not a tensor"):
        tape.gradient(bad, w)


def test_an_error_in_the_backward_pass_names_the_forward_line() -> None:
    x = pb.Parameter([0.0, 1.0])
    with pb.GradientTape() as tape:
        y = pb.sum(pb.sqrt(x))
    with pytest.raises(pb.NonFiniteError, match=r"in the backward pass of sqrt, recorded at " + HERE), pb.debug_nans():
        tape.gradient(y, x)


# ---- debug_nans


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pb.log(T([1.0, -1.0])), r"log\(\(2,\) float32\) made the first nan, at index \(1,\)"),
        (lambda: T([1.0, 0.0]) / 0.0, r"divide.*made the first (inf|nan)"),
        (lambda: pb.exp(T([[1.0], [1000.0]])), r"exp.*first inf, at index \(1, 0\)"),
        (lambda: pb.sum(T([3e38, 3e38])), r"sum.*first inf"),
        (lambda: pb.matmul(T([[3e38]]), T([[10.0]])), r"matmul.*first inf"),
        (lambda: pb.mean(pb.zeros((0,))), r"mean.*first nan"),
    ],
)
def test_debug_nans_stops_at_the_op_that_made_the_first_one(make: Any, words: str) -> None:
    make()
    with pytest.raises(pb.NonFiniteError, match=f"(?s){words}.*at {HERE}"), pb.debug_nans():
        make()


def test_debug_nans_does_not_blame_an_op_whose_input_is_bad() -> None:
    x = T([1.0, math.nan, math.inf])
    with pb.debug_nans():
        y = pb.sum(x * 2) + math.inf
        z = T([1, 2]) + 1
    assert math.isnan(y.item())
    assert z.tolist() == [2, 3]


def test_debug_nans_ends_with_its_block_and_nests_with_tapes() -> None:
    from pullback.listeners import listeners

    x = pb.Parameter(2.0)
    with pb.debug_nans(), pb.GradientTape() as outer:
        with pb.GradientTape() as inner:
            y = x**3
        g = inner.gradient(y, x)
    assert outer.gradient(g, x).item() == 12.0
    assert listeners.stack == ()
    assert math.isnan(pb.log(T(-1.0)).item())


# ---- check_gradients


def test_check_gradients_returns_the_largest_error() -> None:
    x, y = np.array([0.3, -1.2]), np.array([[1.0], [2.0]])
    assert pb.check_gradients(lambda x, y: pb.sin(x) * y, [x, y], order=3) < 1e-8
    assert pb.check_gradients(lambda p: {"a": p["w"] ** 2, "b": [pb.exp(p["b"])]}, [{"w": x, "b": y}]) < 1e-8
    assert pb.check_gradients(lambda x: pb.sum(pb.tanh(x)), [np.random.default_rng(0).standard_normal((20, 20))]) < 1e-8


def test_check_gradients_accepts_integers_and_constants_beside() -> None:
    index = np.array([2, 0])
    assert pb.check_gradients(lambda x, i, k: pb.take(x, i) * k, [np.array([1.0, 2.0, 3.0]), index, 2.0]) < 1e-8


def test_check_gradients_names_argument_index_and_both_values() -> None:
    def wrong(x: Any, y: Any) -> Any:
        return x * x + y * pb.stop_gradient(y)

    words = r"order 1, argument 1, element \(0,\): the tape says .*, finite differences say"
    with pytest.raises(AssertionError, match=words) as caught:
        pb.check_gradients(wrong, [np.array([1.0]), np.array([2.0, 3.0])])
    assert isinstance(caught.value, pb.PullbackError)


def test_check_gradients_sees_a_wrong_second_derivative() -> None:
    def right_once(x: Any) -> Any:
        return pb.stop_gradient(pb.exp(x)) * (x - pb.stop_gradient(x)) + pb.stop_gradient(pb.exp(x))

    x = np.array([0.5, 1.0])
    assert pb.check_gradients(lambda x: pb.exp(x), [x], order=2) < 1e-8
    with warnings.catch_warnings(), pytest.raises(pb.GradientCheckError):
        pb.check_gradients(right_once, [x], order=2)


def test_check_gradients_without_anything_to_check() -> None:
    with pytest.raises(pb.TapeError, match="no argument"):
        pb.check_gradients(lambda x: x, [3])
    with pytest.raises(pb.TapeError, match="nothing to differentiate"):
        pb.check_gradients(lambda x: pb.argmax(x), [np.ones(3)])
