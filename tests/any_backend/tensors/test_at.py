"""`t.at[...]` with Python numbers, lists and NumPy's numbers: they take the tensor's dtype if they fit it, as in an op."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import FLOATS, INTEGERS, host

METHODS: dict[str, Any] = {
    "set": lambda a, i, v: a.__setitem__(i, v), "add": lambda a, i, v: np.add.at(a, i, v),
    "max": lambda a, i, v: np.maximum.at(a, i, v), "min": lambda a, i, v: np.minimum.at(a, i, v),
    "multiply": lambda a, i, v: np.multiply.at(a, i, v),
}
VALUES = {
    "int": 7, "list": [7, 2], "tuple": (0, 3), "bool": True, "numpy": np.int64(7), "listed": [np.int64(5), 1],
    "tensor": [pb.tensor(5), 1],
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [*INTEGERS, *[name for name in FLOATS if name != "bfloat16"]])
def test_numbers_take_the_dtype_of_the_tensor(dtype: str, method: str, value: str) -> None:
    a = np.array([1, 2, 3, 5], dtype)
    given = VALUES[value]
    t = getattr(pb.tensor(a).at[1:3], method)(given)
    plain = [int(x) for x in given] if isinstance(given, (list, tuple)) else given
    METHODS[method](a, slice(1, 3), np.asarray(plain).astype(dtype))
    assert t.dtype == dtype
    np.testing.assert_array_equal(host(t), a)


def test_numbers_take_the_dtype_of_each_example() -> None:
    t = pb.tensor(np.arange(6, dtype="uint8").reshape(2, 3))
    changed = pb.vmap(lambda x, i: x.at[i].add(200))(t, pb.tensor([0, 2]))
    assert changed.dtype == pb.uint8
    np.testing.assert_array_equal(host(changed), [[200, 1, 2], [3, 4, 205]])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_numbers_that_do_not_fit_are_refused(dtype: str, method: str) -> None:
    t, limits = pb.tensor([1, 2], dtype), np.iinfo(dtype)
    for value in (limits.max + 1, limits.min - 1, 10**30):
        given = [value, [value, 0], np.int64(value)] if abs(value) < 2**63 else [value]
        for v in given:
            with pytest.raises(pb.DTypeError, match=rf"at\[...\].{method}: .*{value} does not fit {dtype} \(from {limits.min} to "):
                getattr(t.at[:], method)(v)
        with pytest.raises(pb.DTypeError, match=rf"add: {value} does not fit {dtype}"):  # the rule of an op
            t + value


@pytest.mark.parametrize("value", [1.5, [1.5], np.float64(1.5), np.float32(1.5)])
@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_numbers_of_a_higher_kind_are_refused(dtype: str, value: Any) -> None:
    with pytest.raises(pb.DTypeError, match=rf"at\[...\].set: .* {dtype}. Convert "):
        pb.tensor([1, 0], dtype).at[0].set(value)
