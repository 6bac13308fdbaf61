"""A tape warns if values that left pullback come back as constants."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels

X = pb.tensor([1.0, 2.0, 3.0])
Program = Callable[..., Any]
PROGRAMS: dict[str, Program] = {}


def program(f: Program) -> Program:
    PROGRAMS[f.__name__] = f
    return f


# ---- what comes back


@program
def elements_are_stored(x: Any) -> Any:
    a = np.zeros(3)
    a[0] = x[0] * x[0]
    a[1], a[2] = x[1] * x[0], x[2]
    return pb.sum(a * x)


@program
def a_row_is_stored(x: Any) -> Any:
    a = np.zeros((2, 3), np.float32)
    a[0] = 2 * x
    return pb.sum(pb.asarray(a) * x)


@program
def a_slice_is_stored_and_a_view_comes_back(x: Any) -> Any:
    a = np.zeros(6)
    a[1:3] = x[:2] * 2
    return pb.sum(x * a[:3])


@program
def elements_are_added(x: Any) -> Any:
    a = np.zeros(3)
    for i in range(3):
        a[i] += x[i] * x[0]
    return pb.sum(a * x)


@program
def a_flat_view_is_stored_into(x: Any) -> Any:
    a = np.zeros((3, 1))
    a.flat[:2] = x[:2]
    return pb.sum(a * x)


@program
def floats_become_an_array(x: Any) -> Any:
    return pb.sum(np.array([float(v) for v in x]) * x)


@program
def floats_of_several_calls_become_an_array(x: Any) -> Any:
    return pb.sum(x[:2] * np.array([float(x[0] * x[0]), float(x[1])]))


@program
def a_float_stands_beside_a_tensor_in_a_list(x: Any) -> Any:
    return pb.sum(pb.tensor([float(x[0]), x[1] * x[2]]) * x[0])


@program
def an_array_is_made_in_each_round(x: Any) -> Any:
    total = pb.sum(x)
    for k in range(3):
        a = np.array([x[k], 2.0])
        total = total + pb.sum(a) * x[0] if k == 2 else total
    return total


@program
def an_attribute_is_stored_into(x: Any) -> Any:
    class Memory:
        values = np.zeros(0)

    memory = Memory()
    memory.values = np.zeros(3)
    for i in range(3):
        memory.values[i] = x[i]
    return memory.values @ x


@program
def a_diagonal_is_stored(x: Any) -> Any:
    a = np.eye(3)
    a[np.arange(3), np.arange(3)] = x
    return pb.sum(pb.linalg.inv(a) @ x)


@program
def numpy_makes_an_array_of_numbers(x: Any) -> Any:
    return pb.sum(np.array([x[0], x[1], 1.0]) * x)


@program
def numpy_makes_an_array_of_rows(x: Any) -> Any:
    return pb.sum(np.array([2 * x, 3 * x]) * x)


@program
def numpy_fills(x: Any) -> Any:
    return pb.sum(np.full(20, x[1])) * x[0]


@program
def numpy_fills_in_another_dtype(x: Any) -> Any:
    return pb.sum(np.full(3, x[2], dtype=np.float64) * x)


@program
def a_float_is_a_factor(x: Any) -> Any:
    total = pb.sum(x)
    return float(total) * total


@program
def an_item_is_among_the_numbers_of_a_list(x: Any) -> Any:
    return pb.sum(pb.tensor([x[0].item(), 1.0, 2.0]) * x)


@program
def a_copy_is_a_factor(x: Any) -> Any:
    return pb.sum((2 * x).numpy() * x)


@program
def a_view_is_a_factor(x: Any) -> Any:
    return pb.sum(np.asarray(2 * x)[::-1] * x)


@program
def a_list_of_numbers_comes_back(x: Any) -> Any:
    return pb.sum(pb.tensor((2 * x).tolist()) * x)


@program
def floats_of_a_loop_come_back(x: Any) -> Any:
    return pb.sum(pb.tensor([float(v) for v in x]) * x)


@program
def a_number_fills(x: Any) -> Any:
    return pb.sum(pb.full(2, x[0].item()) + pb.full_like(x[:2], float(x[1]))) * x[1]


@program
def a_number_is_an_end(x: Any) -> Any:
    return pb.sum(pb.linspace(0.0, float(x[0]), 3)) * x[1]


@program
def a_constant_is_computed_from_it(x: Any) -> Any:
    scale = pb.exp(-pb.tensor((2 * x).numpy()))
    return pb.sum(pb.sqrt(scale) * 3.0 * x)


@program
def a_branch_of_where(x: Any) -> Any:
    return pb.sum(pb.where(x > 1.5, (2 * x).numpy(), x))


@pytest.mark.parametrize("way", ["grad", "jvp"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_warning_names_both_lines(name: str, way: str) -> None:
    f = PROGRAMS[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if way == "grad":
            pb.grad(f)(X)
        else:
            pb.jvp(f, (X,), (pb.ones(3),))
    (warning,) = caught
    assert warning.category is pb.ZeroGradientWarning
    assert warning.filename == __file__
    first, last = f.__code__.co_firstlineno, max([n for *_, n in f.__code__.co_lines() if n])
    assert first <= warning.lineno <= last
    assert f'"{__file__}", line ' in str(warning.message)
    assert "pb.stack joins tensors" in str(warning.message)
    assert "pb.stop_gradient(t)" in str(warning.message)


def test_a_constant_that_is_meant_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pb.grad(lambda x: pb.sum(pb.stop_gradient(2 * x) * x))(X)


STORES = ("elements_are_stored", "a_row_is_stored", "numpy_makes_an_array_of_numbers", "numpy_fills")


@pytest.mark.parametrize("name", STORES)
def test_examples_refuse_the_read(name: str) -> None:
    for f in (PROGRAMS[name], pb.grad(PROGRAMS[name])):
        with pytest.raises(pb.VmapError, match="cannot be read here, because they differ"):
            pb.vmap(f)(pb.stack([X, X]))


@needs_kernels
@pytest.mark.parametrize("name", STORES)
def test_captured_functions_refuse_the_read(name: str) -> None:
    with pytest.raises(pb.CaptureError, match=r"t\.at\[i\]\.set\(v\) writes into one"):
        pb.capture(PROGRAMS[name])(X)
