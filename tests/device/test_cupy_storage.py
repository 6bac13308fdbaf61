"""CuPy's arrays as operands and results of the CUDA kernels, without a GPU: they wrap the simulator's host memory."""

from __future__ import annotations

import ctypes
import gc
import importlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pullback.launch.refusal import Refused

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
DTYPES = [*FLOATS, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


def _load() -> tuple[Any, Any, str]:
    try:
        kernels = importlib.import_module("pullback._cuda_cupy")
    except ImportError as error:
        return None, None, f"the kernels are not those of the simulator (PULLBACK_CUDA=SIM): {error}"
    try:
        cupy = importlib.import_module("cupy")
    except Exception as error:  # without a driver, importing a broken installation may raise anything
        return None, None, f"CuPy cannot be imported: {error}"
    kernels.register_bfloat16(np.dtype(ml_dtypes.bfloat16))
    kernels.register_arrays(kernels, cupy.ndarray)
    return kernels, cupy, ""


kernels, cupy, WHY_NOT = _load()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def on_device(array: np.ndarray, device: int = 0) -> Any:
    """Returns a CuPy array over the same memory, with the same strides."""
    base = array.base if isinstance(array.base, np.ndarray) else array
    memory = cupy.cuda.UnownedMemory(base.ctypes.data, max(base.nbytes, 1), base, device)
    pointer = cupy.cuda.MemoryPointer(memory, array.ctypes.data - base.ctypes.data)
    return cupy.ndarray(array.shape, array.dtype, pointer, array.strides)


def on_host(array: Any) -> np.ndarray:
    """Returns a copy of a contiguous result as a NumPy array."""
    kernels.synchronize(0)
    assert type(array) is cupy.ndarray
    assert array.flags.c_contiguous
    raw = ctypes.string_at(array.data.ptr, array.nbytes) if array.size else b""
    return np.frombuffer(bytearray(raw), array.dtype).reshape(array.shape)


def numbers(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 50, shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (2, 0, 3), (2, 1, 2, 1, 2, 1, 2, 1)], ids=str)
def test_arrays_of_every_dtype_and_rank_go_in_and_come_out(dtype: Any, shape: tuple[int, ...]) -> None:
    a, b = numbers(shape, dtype), numbers(shape, dtype)
    y = kernels.add(on_device(a), on_device(b))
    assert y.shape == shape
    assert y.dtype == np.dtype(dtype)
    assert y.data.device_id == 0
    np.testing.assert_array_equal(on_host(y), (a + b).astype(dtype))


def test_a_predicate_is_an_array_of_bools() -> None:
    a = numbers((33,), np.float32)
    y = kernels.less(on_device(a), 25)
    assert y.dtype == np.bool_
    np.testing.assert_array_equal(on_host(y), a < 25)


@pytest.mark.parametrize(
    "view",
    [lambda x: x.T, lambda x: x[::-1, ::2], lambda x: x[1:, 3:], lambda x: np.broadcast_to(x[:1], (6, 8)), lambda x: x[2]],
    ids=["transposed", "reversed", "shifted", "broadcast", "row"],
)
def test_views_are_read_where_they_lie(view: Any) -> None:
    x = view(numbers((6, 8), np.float32))
    np.testing.assert_array_equal(on_host(kernels.negative(on_device(x))), -x)


def test_what_kernels_do_not_take_is_refused() -> None:
    x = np.arange(40, dtype=np.uint8)
    with pytest.raises(Refused, match="no array"):
        kernels.add(x, x)  # NumPy arrays
    with pytest.raises(Refused, match="no array"):
        kernels.negative(on_device(np.zeros((1,) * 9)))
    with pytest.raises(Refused, match="no array"):
        kernels.negative(on_device(np.zeros(3, np.complex64)))
    crooked = x[1:33].view(np.float32)
    with pytest.raises(Refused, match="no array"):
        kernels.negative(on_device(crooked))


def test_arrays_of_two_gpus_do_not_meet() -> None:
    x = np.zeros(3)
    with pytest.raises(Refused, match="two GPUs"):
        kernels.add(on_device(x, 0), on_device(x, 1))
    np.testing.assert_array_equal(on_host(kernels.add(on_device(x), 1)), x + 1)  # the next call still works


def test_memory_is_given_back_with_the_last_view() -> None:
    def used() -> int:
        gc.collect()
        return kernels.memory()[0]

    before = used()
    y = kernels.add(on_device(np.ones(1000)), 1)
    assert used() >= before + 8000
    part = y[10:20]
    del y
    assert used() >= before + 8000
    del part
    assert used() == before


def test_results_go_in_again() -> None:
    x = numbers((7, 9), np.float32)
    y = on_device(x)
    for _ in range(5):
        y = kernels.multiply(kernels.add(y, y), 0.5)
    np.testing.assert_array_equal(on_host(y), x)


def test_a_class_that_makes_its_arrays_otherwise_is_asked_to() -> None:
    made = []

    class Other(cupy.ndarray):  # type: ignore[misc, name-defined]
        def _init(self, *arguments: Any) -> None:
            made.append(self)
            cupy.ndarray._init(self, *arguments)

    kernels.register_arrays(kernels, Other)
    try:
        x = np.arange(6.0)
        memory = cupy.cuda.UnownedMemory(x.ctypes.data, x.nbytes, x, 0)
        y = kernels.negative(Other(x.shape, x.dtype, cupy.cuda.MemoryPointer(memory, 0)))
        kernels.synchronize(0)
        assert type(y) is Other
        assert made[-1] is y
        assert ctypes.string_at(y.data.ptr, y.nbytes) == (-x).tobytes()
    finally:
        kernels.register_arrays(kernels, cupy.ndarray)
