"""How the elements of NumPy's arrays are compared before a replay: by their bits, whatever their layout, dtype and class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from footguns import X, follows, told, unseen

pytestmark = needs_kernels

RECORD = np.dtype([("kind", "u1"), ("value", "f8")], align=True)  # with 7 bytes between the fields


def records() -> Any:
    """Returns records whose bytes between the fields are not zero."""
    array = np.frombuffer(bytearray(np.random.default_rng(0).bytes(3 * RECORD.itemsize)), RECORD)
    array["kind"], array["value"] = 1, [2.0, 3.0, 4.0]
    return array


def summed(x: Any, w: Any) -> Any:
    return x * sum([float(v) for v in w])


# The array, and what reads it. Its element 1, or (1, 1), or its field "value" there, becomes 5.
ARRAYS: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any]]] = {
    "every other": (lambda: np.arange(8.0)[::2], summed),
    "backwards": (lambda: np.arange(8.0)[::-1], summed),
    "a column": (lambda: np.arange(8.0).reshape(4, 2)[:, 1], summed),
    "columns first": (lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)), lambda x, w: x * float(w.sum())),
    "axes exchanged": (lambda: np.arange(24.0).reshape(2, 3, 4).swapaxes(0, 2)[0], lambda x, w: x * float(w.max())),
    "of length 1": (lambda: np.ones((3, 1)).repeat(2, axis=1), lambda x, w: x * float(w.sum())),
    "objects": (lambda: np.array([1.0, 2.0], dtype=object), summed),
    "an object by number": (lambda: np.array([1.0, 2.0], dtype=object), lambda x, w: x * w[1]),
    "records": (records, lambda x, w: x * sum([float(r["value"]) for r in w])),
    "a field": (records, lambda x, w: x * float(sum(w["value"]))),
    "a record": (records, lambda x, w: x * float(w[1]["value"])),
    "records with attributes": (lambda: records().view(np.recarray), lambda x, w: x * float(w.value[1])),
    "long doubles": (lambda: np.arange(3, dtype=np.longdouble), summed),
    "complex": (lambda: np.array([1 + 2j, 2j]), lambda x, w: x * sum([abs(v) for v in w])),
    "halves": (lambda: np.arange(3, dtype=np.float16), summed),
    "other byte order": (lambda: np.arange(3, dtype=">f8"), summed),
    "dates": (lambda: np.array([0, 1], "datetime64[D]"), lambda x, w: x * sum([int(v.astype(int)) for v in w])),
    "texts": (lambda: np.array(["1", "2"]), summed),
    "bytes": (lambda: np.array([b"1", b"2"]), summed),
    "matrix": (lambda: np.asmatrix(np.ones((2, 2))), lambda x, w: x * float(w.sum())),
    "masked": (lambda: np.ma.array([1.0, 2.0, 3.0], mask=[1, 0, 0]), lambda x, w: x * float(w.sum())),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_element_of_an_array_of_any_kind_is_compared(name: str) -> None:
    make, read = ARRAYS[name]
    array = make()
    place = (1, 1) if array.ndim == 2 else 1

    def change() -> None:
        (array["value"] if array.dtype.names else array)[place] = 5

    captured = follows(lambda x: read(x, array), change)
    assert captured.stats().captures == 2  # unchanged bytes, also those between fields, begin no recording


def test_an_element_of_an_array_in_a_file_is_compared(tmp_path: Path) -> None:
    array = np.memmap(tmp_path / "numbers", dtype="f8", mode="w+", shape=(3,))
    captured = follows(lambda x: summed(x, array), lambda: array.__setitem__(1, 5.0))
    assert captured.stats().captures == 2


def test_a_sign_of_zero_is_a_change() -> None:
    array = np.array([0.0, 1.0], "float32")
    signs = lambda x: x * sum([float(np.copysign(1.0, v)) for v in array])
    assert follows(signs, lambda: array.__setitem__(0, -0.0), lambda: array.__setitem__(0, 0.0)).stats().captures == 2


def test_a_nan_is_equal_to_itself_but_not_to_one_of_other_bits() -> None:
    array = np.array([np.nan, 1.0], "float32")
    bits = array.view(np.int32)
    captured = follows(lambda x: x * sum([float(np.nan_to_num(v, nan=2.0)) for v in array]))
    assert captured.stats().captures == 1
    bits[0] += 1  # a NaN, too
    captured(X)
    assert captured.stats().captures == 2


# ---- shapes and dtypes that are assigned to


def set_shape(array: Any, shape: Any) -> Callable[[], None]:
    return lambda: setattr(array, "shape", shape)


@pytest.mark.parametrize("size", [6, 6000])
@pytest.mark.parametrize(
    "read",
    [
        lambda x, w: x * len(w),
        lambda x, w: x * w.shape[-1],
        lambda x, w: x * w.ndim,
        lambda x, w: x * float(sum([np.sum(v) ** 2 for v in w[:4]])),
        lambda x, w: x * pb.sum(pb.asarray(w)[0]),
        lambda x, w: x * pb.sum(w[0] * x[0, 0]),
    ],
)
def test_an_array_that_gets_another_shape_is_a_change(read: Callable[[Any, Any], Any], size: int) -> None:
    array = np.arange(float(size), dtype="float32")
    changes = [set_shape(array, shape) for shape in ((2, size // 2), (size,), (size // 2, 2))]
    assert follows(lambda x: read(x, array), *changes).stats().captures == 3


@pytest.mark.parametrize("size", [4, 4000])
def test_an_array_that_gets_another_dtype_is_a_change(size: int) -> None:
    array = np.arange(float(size), dtype="float32")
    for read in (lambda x: x * float(max(array[:4])), lambda x: x * pb.sum(pb.asarray(array, dtype="float32"))):
        follows(read, lambda: setattr(array, "dtype", np.int32), lambda: setattr(array, "dtype", np.float32))


def test_an_array_that_the_function_gives_another_shape_is_left_behind() -> None:
    array = np.arange(4.0, dtype="float32")

    def f(x: Any) -> Any:
        array.shape = (2, 2) if array.ndim == 1 else (4,)
        return x * float(array.sum())

    assert "it leaves shape of array of f changed (" in told(f, lambda _: X * 6)


def test_an_array_that_the_function_makes_may_have_any_shape() -> None:
    def f(x: Any) -> Any:
        holder = {"a": np.arange(4.0, dtype="float32"), "b": np.zeros(3000)}
        holder["a"].shape = (2, 2)
        return x * float(holder["a"].sum()) + len(holder["b"])

    captured = follows(f)
    assert (captured.stats().captures, captured.stats().replays) == (1, 1)


# ---- what is documented as unseen


def test_what_objects_in_an_array_hold_cannot_be_seen() -> None:
    array = np.array([{"gain": 2.0}], dtype=object)
    unseen(lambda x: x * array[0]["gain"], lambda: array[0].update(gain=3.0))


def test_long_texts_of_one_length_and_masks_cannot_be_seen() -> None:
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    unseen(lambda x: x * float(masked.sum()), lambda: masked.mask.__setitem__(1, False))
    if hasattr(np, "dtypes") and hasattr(np.dtypes, "StringDType"):
        texts = np.array(["b" * 50], dtype=np.dtypes.StringDType())
        unseen(lambda x: x * sum([ord(text[0]) for text in texts]), lambda: texts.__setitem__(0, "c" * 50))
