"""Exchange of memory with other libraries: sharing, copies, refusals, and bfloat16 in both directions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.tensors.devices import device_of, move

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def w() -> pb.Parameter:
    return pb.Parameter(VALUES, name="w")


# ---- a Parameter is exported as a copy

PARTS: dict[str, Callable[[Any], Any]] = {"Parameter": lambda w: w, "view": lambda w: w[1:], "transposed": lambda w: w.T}


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("take", [np.asarray, np.from_dlpack, np.array], ids=["asarray", "from_dlpack", "array"])
def test_numpy_gets_a_copy_of_a_parameter(w: pb.Parameter, part: str, take: Any) -> None:
    taken = take(PARTS[part](w))
    assert not np.shares_memory(taken, w.array)
    w.assign(VALUES + 1)
    np.testing.assert_array_equal(taken, PARTS[part](VALUES))
    if taken.flags.writeable:
        taken[...] = 100
    np.testing.assert_array_equal(w.numpy(), VALUES + 1)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("part", PARTS)
def test_numpy_shares_a_parameters_memory_where_no_copy_is_asked_for(w: pb.Parameter, part: str) -> None:
    for taken in (np.asarray(PARTS[part](w), copy=False), np.from_dlpack(PARTS[part](w), copy=False)):
        assert np.shares_memory(taken, w.array)
        assert not taken.flags.writeable
    with pytest.raises(ValueError, match="float64 needs a copy"):
        np.asarray(PARTS[part](w), dtype=np.float64, copy=False)
    np.testing.assert_array_equal(np.asarray(PARTS[part](w), dtype=np.float64), PARTS[part](VALUES.astype(np.float64)))


@pytest.mark.usefixtures("on_cpu")
def test_torch_cannot_write_to_a_parameter_unless_it_asks_for_its_memory(w: pb.Parameter) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pb.GradientTape() as tape:
        y = pb.sum(w * w)
        torch.from_dlpack(w).add_(5)
        torch.from_dlpack(w.T).add_(5)
    np.testing.assert_array_equal(w.numpy(), VALUES)
    np.testing.assert_array_equal(tape.gradient(y, w).numpy(), 2 * VALUES)
    assert torch.from_dlpack(pb.tensor(VALUES)).shape == (3, 4)
    shared = torch.from_dlpack(w.__dlpack__(copy=False))
    assert shared.data_ptr() == w.array.ctypes.data


@pytest.mark.usefixtures("on_cpu")
def test_a_tensor_is_copied_where_a_copy_is_asked_for() -> None:
    t = pb.tensor(VALUES)
    assert np.shares_memory(np.from_dlpack(t), t.array)
    for taken in (np.from_dlpack(t, copy=True), np.array(t, copy=True)):
        assert not np.shares_memory(taken, t.array)
        np.testing.assert_array_equal(taken, VALUES)


# ---- arguments of __dlpack__


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"stream": "fast"}, TypeError, r"stream='fast'.*number of a stream"),
        ({"stream": True}, TypeError, "stream=True"),
        ({"stream": -2}, TypeError, "stream=-2"),
        ({"stream": 1.0}, TypeError, "stream=1.0"),
        ({"max_version": 1}, TypeError, r"max_version=1; .*\(major, minor\)"),
        ({"max_version": (1,)}, TypeError, "max_version"),
        ({"max_version": [1, 0]}, TypeError, "max_version"),
        ({"max_version": ("1", "0")}, TypeError, "max_version"),
        ({"dl_device": 5}, TypeError, "dl_device=5.*device type"),
        ({"dl_device": "cpu"}, TypeError, "dl_device='cpu'"),
        ({"dl_device": (13, 0)}, BufferError, r"not on DLPack device \(13, 0\)"),
        ({"copy": "never"}, TypeError, "copy='never'.*None, True or False"),
        ({"device": "cpu"}, TypeError, "device"),
    ],
)
def test_arguments_of_dlpack_are_checked_in_words(options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        pb.tensor(VALUES).__dlpack__(**options)


@pytest.mark.usefixtures("on_cpu")
def test_dlpack_takes_the_arguments_of_the_array_api() -> None:
    t = pb.tensor(VALUES)
    for copy in (None, True, False):
        for version in (None, (0, 8), (1, 0), (1, 1)):
            capsule = t.__dlpack__(stream=None, max_version=version, dl_device=(1, 0), copy=copy)
            assert ("versioned" in repr(capsule)) == (version is not None and version[0] >= 1)
    with pytest.raises(ValueError, match='stream=1, but the tensor is on "cpu"'):
        t.__dlpack__(stream=1)
    with pytest.raises(TypeError):
        t.__dlpack__(None)  # type: ignore[misc]


# ---- bfloat16, checked in dlpack.h's structures, which ctypes lays out


class _DType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("dtype", _DType), ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    ]


READ_ONLY, BFLOAT, UNSIGNED = 1, 4, 1


def opened(capsule: Any) -> tuple[_Tensor, int | None]:
    """Returns the tensor structure in a capsule, and its flags if it has any."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    if "versioned" in repr(capsule):
        whole = _Versioned.from_address(pointer(capsule, b"dltensor_versioned"))
        return whole.tensor, whole.flags
    return _Tensor.from_address(pointer(capsule, b"dltensor")), None


class Exporter:
    """Another library's bfloat16 array, made of 16-bit NumPy integers."""

    def __init__(self, bits: np.ndarray[Any, Any]) -> None:
        self.bits = bits

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.bits.__dlpack__(**options)
        opened(capsule)[0].dtype.code = BFLOAT
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_of_bfloat16_says_so(version: Any) -> None:
    t = pb.tensor(VALUES, dtype=pb.bfloat16)
    tensor, flags = opened(capsule := t.__dlpack__(max_version=version))
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (BFLOAT, 16, 1)
    assert [tensor.shape[i] for i in range(tensor.ndim)] == [3, 4]
    assert flags is None or flags & READ_ONLY
    bits = np.ctypeslib.as_array(ctypes.cast(tensor.data, ctypes.POINTER(ctypes.c_uint16)), (12,)).copy()
    del capsule
    np.testing.assert_array_equal(bits, (VALUES.ravel().view(np.uint32) >> 16).astype(np.uint16))  # VALUES are exact in bfloat16.
    integers = opened(pb.tensor(VALUES.astype(np.uint16)).__dlpack__())[0]
    assert integers.dtype.code == UNSIGNED


@pytest.mark.usefixtures("on_cpu")
def test_bfloat16_comes_in_without_a_copy() -> None:
    bits = (VALUES.view(np.uint32) >> 16).astype(np.uint16)
    for take in (pb.from_dlpack, pb.asarray, pb.tensor):
        t = take(Exporter(bits))
        assert t.dtype == pb.bfloat16
        assert np.shares_memory(t.array.view(np.uint16), bits) == (take is not pb.tensor)
        np.testing.assert_array_equal(t.astype(pb.float32).numpy(), VALUES)
    assert pb.from_dlpack(Exporter(bits.T)).shape == (4, 3)
    assert np.shares_memory(pb.asarray(Exporter(bits), copy=False).array.view(np.uint16), bits)
    assert pb.from_dlpack(bits).dtype == pb.uint16
    with pytest.raises(ValueError, match="copy=False"):
        pb.asarray(Exporter(bits), dtype=pb.float32, copy=False)


def test_bfloat16_goes_to_torch_and_comes_back() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for values in (VALUES, VALUES.T, VALUES[:, ::2], VALUES[:0], VALUES[0, 0]):
        there = torch.tensor(np.array(values, order="C")).to(torch.bfloat16)
        t = pb.from_dlpack(there)
        assert (t.dtype, t.shape) == (pb.bfloat16, values.shape)
        np.testing.assert_array_equal(pb.tensor(there).astype(pb.float32).numpy(), values)
        if device_of(t.array) == "cpu":
            back = torch.from_dlpack(pb.tensor(values, dtype=pb.bfloat16))
            assert back.dtype == torch.bfloat16
            np.testing.assert_array_equal(back.float().numpy(), values)
    if pb.tensor(VALUES).device == "cpu":
        t = pb.ones(3, dtype=pb.bfloat16)
        assert torch.from_dlpack(t).data_ptr() == t.array.ctypes.data
        w = pb.Parameter(t)
        torch.from_dlpack(w).add_(1)
        np.testing.assert_array_equal(w.astype(pb.float32).numpy(), [1, 1, 1])


@pytest.mark.usefixtures("on_cpu")
def test_an_unknown_dtype_is_refused_in_words() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(pb.DTypeError, match=r"^from_dlpack: x: a Tensor cannot be taken.*Convert it first"):
        pb.from_dlpack(torch.ones(3, dtype=torch.float8_e4m3fn))
    with pytest.raises(pb.ArgumentError, match=r"^tensor: obj: a Tensor of torch cannot be taken.*torch.strided.*Convert it first"):
        pb.tensor(torch.eye(2).to_sparse())


@pytest.mark.usefixtures("on_cpu")
def test_a_tensor_of_torch_that_requires_grad_is_refused_by_name() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    w = torch.ones((2, 2), requires_grad=True)
    x = pb.ones((2, 2))
    calls: dict[str, Callable[[], Any]] = {
        "from_dlpack: x": lambda: pb.from_dlpack(w.to(torch.bfloat16)),
        "tensor: obj": lambda: pb.tensor(w),
        "asarray: obj": lambda: pb.asarray([[w[0, 0], 1.0]]),
        "sin: x": lambda: pb.sin(w),
        "add: a": lambda: w + x,
        "add: b": lambda: x + w,
        "Linear: x": lambda: pb.nn.Linear(2, 3)(w),
        'grad: argument 1["b"]': lambda: pb.grad(lambda a, b: pb.sum(b["b"]), 1)(x, {"b": w}),
        "vjp: argument 0": lambda: pb.vjp(pb.sin, w),
        "jvp: tangents": lambda: pb.jvp(pb.sin, (x,), (w,)),
        "vmap: argument 0": lambda: pb.vmap(pb.sin)(w),
        "vmap: argument k": lambda: pb.vmap(lambda x, k: x * k)(x, k=w),
        "vmap: the result of the function": lambda: pb.vmap(lambda x: w)(x),
    }
    for words, call in calls.items():
        with pytest.raises(pb.ArgumentError) as caught:
            call()
        text = str(caught.value)
        assert text.startswith(f"{words}: a Tensor of torch requires grad, and gradients do not pass"), text
        assert "Call .detach() on it" in text
    close = np.testing.assert_array_equal
    close(pb.tensor(w.detach()).numpy(), np.ones((2, 2), np.float32))


# ---- GPUs


def on_gpu(w: Any) -> bool:
    return w.device != "cpu"


def test_a_view_of_a_parameter_has_a_cuda_interface_of_a_copy(w: pb.Parameter) -> None:
    if not on_gpu(w):
        assert not hasattr(w, "__cuda_array_interface__")
        return
    view = w[1:]
    pointer = view.__cuda_array_interface__["data"][0]
    assert pointer != w[1:].array.__cuda_array_interface__["data"][0]
    w.assign(VALUES + 1)
    np.testing.assert_array_equal(view.numpy(), VALUES[1:])  # The view is a snapshot now.
    with pytest.raises(AttributeError, match=r'"w" changes in place.*pb\.copy\(p\)'):
        _ = w.__cuda_array_interface__


def test_a_gpus_tensor_goes_to_the_host_where_the_consumer_wants_it_there(w: pb.Parameter) -> None:
    t = pb.tensor(VALUES)

    class OnTheHost:
        def __dlpack__(self, **options: Any) -> Any:
            return t.__dlpack__(dl_device=(1, 0))

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    taken = np.from_dlpack(OnTheHost())
    np.testing.assert_array_equal(taken, move(t.array, "cpu"))
    if on_gpu(w):
        with pytest.raises(BufferError, match="copy=False"):
            t.__dlpack__(dl_device=(1, 0), copy=False)


def test_a_tensor_of_another_library_indexes() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    t = pb.tensor(VALUES)
    for ours, theirs in ((np.array([2, 0]), torch.tensor([2, 0])), (1, torch.tensor(1)), (VALUES > 0, torch.tensor(VALUES > 0))):
        np.testing.assert_array_equal(t[theirs].numpy(), VALUES[ours])
        np.testing.assert_array_equal(t.at[theirs].add(1.0).numpy(), t.at[ours].add(1.0).numpy())
