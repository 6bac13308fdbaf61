"""NumPy code on tensors is recorded and differentiated; arrays are exchanged without copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.tensors.tensor import Tensor

RNG = np.random.default_rng(3)
X, M = RNG.uniform(0.2, 0.9, 4), RNG.standard_normal((3, 4))

# NumPy code as users write it. Each function runs on arrays and on tensors.
CODE: list[Any] = [
    *[lambda x, f=f: f(x) for f in (
        np.sin, np.cos, np.tan, np.arcsin, np.arccos, np.arctan, np.sinh, np.cosh, np.tanh, np.arcsinh, np.arctanh, np.exp, np.exp2,
        np.expm1, np.log, np.log1p, np.log2, np.log10, np.sqrt, np.square, np.abs, np.absolute, np.negative, np.positive, np.sign,
        np.floor, np.ceil, np.trunc, np.rint, np.round, np.reciprocal, np.isnan, np.isfinite, np.isinf, np.signbit, np.logical_not,
        np.sum, np.mean, np.prod, np.max, np.min, np.amax, np.var, np.std, np.argmax, np.argmin, np.any, np.all, np.ravel, np.copy,
        np.zeros_like, np.ones_like, np.sort, np.argsort, np.flip, np.atleast_2d, np.cumsum, np.diff, np.nan_to_num, np.squeeze,
        np.count_nonzero, np.nonzero, np.transpose,
    )],
    lambda x: np.add(x, 1), lambda x: np.subtract(1.0, x), lambda x: np.multiply(x, x), lambda x: np.true_divide(x, 3.0),
    lambda x: np.power(x, 2), lambda x: np.float_power if False else x**2, lambda x: np.arctan2(x, 2.0), lambda x: np.hypot(x, 1.0),
    lambda x: np.logaddexp(x, 0.0), lambda x: np.maximum(x, 0.5), lambda x: np.minimum(x, 0.5), lambda x: np.copysign(x, -1.0),
    lambda x: np.floor_divide(x, 0.3), lambda x: np.mod(x, 0.3), lambda x: np.divmod(x, 0.3), lambda x: np.matmul(M, x),
    lambda x: M @ x, lambda x: np.dot(x, x), lambda x: np.dot(M, x), lambda x: np.inner(x, x), lambda x: np.outer(x, x),
    lambda x: np.tensordot(M, x, 1), lambda x: np.einsum("ij,j->i", M, x), lambda x: np.where(x > 0.5, x, 0),
    lambda x: np.where(x > 0.5),
    lambda x: np.concatenate([x, x]), lambda x: np.concatenate([M, x[None]], axis=0), lambda x: np.stack([x, x], axis=1),
    lambda x: np.vstack([x, x]), lambda x: np.hstack([x, x]), lambda x: np.column_stack([x, x]), lambda x: np.split(x, 2),
    lambda x: np.reshape(x, (2, 2)), lambda x: np.expand_dims(x, 0), lambda x: np.swapaxes(x[None], 0, 1),
    lambda x: np.moveaxis(x[None], 0, 1),
    lambda x: np.broadcast_to(x, (3, 4)), lambda x: np.broadcast_arrays(x, M), lambda x: np.tile(x, 2), lambda x: np.repeat(x, 2),
    lambda x: np.roll(x, 1), lambda x: np.pad(x, (1, 2)), lambda x: np.pad(x, 1, constant_values=2.0), lambda x: np.take(x, [0, 2]),
    lambda x: np.clip(x, 0.3, 0.6), lambda x: np.clip(x, None, 0.5), lambda x: np.sum(x * M, 0),
    lambda x: np.sum(x * M, axis=(0, 1)),
    lambda x: np.mean(x * M, axis=1, keepdims=True), lambda x: np.var(x * M, axis=0, ddof=1), lambda x: np.std(x * M, 1),
    lambda x: np.max(x * M, 1), lambda x: np.add.reduce(x * M), lambda x: np.add.reduce(x * M, axis=1),
    lambda x: np.maximum.reduce(x),
    lambda x: np.add.accumulate(x), lambda x: np.isclose(x, x), lambda x: np.full_like(x, 2.0),
    lambda x: np.take_along_axis(x, np.argsort(x), 0),
    lambda x: np.sum(x, dtype=np.float32), lambda x: x + np.ones(4), lambda x: np.ones(4) + x,
    lambda x: np.float64(2) * x, lambda x: M * x,
    lambda x: np.sort(x * M, axis=None), lambda x: np.argsort(x * M, axis=None), lambda x: np.cumsum(x * M),
    lambda x: np.cumprod(x * M),
    lambda x: np.outer(M, x), lambda x: np.vdot(x * M, M), lambda x: np.trace(x * M), lambda x: np.linspace(x[0], 5, 3),
    lambda x: np.ones(4) < x, lambda x: np.arange(4) ** x, lambda x: 1 - x, lambda x: np.flip(x[None], axis=1),
]


def flat(y: Any) -> list[Any]:
    return [z for part in y for z in flat(part)] if isinstance(y, (tuple, list)) else [y]


@pytest.mark.parametrize("code", CODE, ids=range(len(CODE)))
def test_numpy_code_gives_numpy_values_as_tensors(code: Any) -> None:
    for got, wanted in zip(flat(code(pb.tensor(X))), flat(code(X)), strict=True):
        assert isinstance(got, Tensor)
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-13)


def test_numpy_code_is_differentiated() -> None:
    def f(x: Any) -> Any:
        y = np.tanh(np.dot(M, x)) + np.sum(np.exp(x[:3] * 0.1))
        return np.mean(np.concatenate([y, np.where(x > 0.5, np.sin(x), x)]) ** 2)

    assert pb.check_gradients(f, [X], order=2) < 1e-6
    x = pb.tensor(X)
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    assert isinstance(y, Tensor)
    assert tape.gradient(y, x).shape == (4,)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (lambda t: np.fft.fft(t), r"np\.fft\.fft"), (lambda t: np.i0(t), r"np\.i0"),
        (lambda t: np.multiply.outer(t, t), r"np\.multiply\.outer"),
        (lambda t: np.frexp(t), r"np\.frexp"),
        (lambda t: np.sum(t, where=np.ones(4, bool), initial=1.0), r"np\.sum: (where|initial)="),
        (lambda t: np.add(t, 1, where=np.zeros(4, bool)), r"np\.add: where="),
        (lambda t: np.add(t, 1, out=np.zeros(4)), r"np\.add: out="), (lambda t: np.sum(t, out=np.zeros(())), r"np\.sum: out="),
        (lambda t: np.sin(t, dtype=np.float32), r"np\.sin: dtype="), (lambda t: np.add.at(t, [0], 1.0), r"np\.add\.at"),
        (lambda t: np.reshape(t, (2, 2), order="F"), r"np\.reshape: order="),
        (lambda t: np.pad(t, 1, mode="mean"), r"np\.pad: mode="),
    ],
)
def test_what_pullback_has_not_is_a_type_error_that_says_how_to_go_on(code: Any, name: str) -> None:
    with pytest.raises(TypeError, match=name + r".*(numpy\(\)|pb\.)"):
        code(pb.tensor(X))


def test_an_array_does_not_swallow_a_tensor_in_place() -> None:
    a = np.ones(4)
    with pytest.raises(TypeError, match=r"a = a \+ t"):
        a += pb.tensor(X)


@pytest.mark.usefixtures("on_cpu")
def test_facts_about_a_tensor_are_plain_python() -> None:
    t = pb.tensor(M)
    assert (np.shape(t), np.ndim(t), np.size(t)) == ((3, 4), 2, 12)
    assert np.allclose(t, M) is True
    assert np.array_equal(t, M) is True
    np.testing.assert_allclose(t, M)


def test_another_librarys_array_type_has_its_say() -> None:
    class Other:
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> str:
            return "other"

    assert np.add(pb.tensor(X), Other()) == "other"


# ---- exchange


@pytest.mark.usefixtures("on_cpu")
def test_numpy_sees_the_memory_and_cannot_write() -> None:
    t = pb.tensor(M)
    for view in (np.asarray(t), np.from_dlpack(t)):
        assert np.shares_memory(view, t.array)
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            view[0, 0] = 1
    copy = t.numpy()
    copy[0, 0] = 100
    assert t[0, 0].item() == M[0, 0]
    assert np.array(t, copy=True).flags.writeable
    assert np.asarray(t, dtype=np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="copy=False"):
        np.array(t, dtype=np.float32, copy=False)


@pytest.mark.usefixtures("on_cpu")
def test_pullback_sees_numpys_memory() -> None:
    a = np.arange(4.0)
    t = pb.from_dlpack(a)
    a[0] = 7
    assert t[0].item() == 7.0
    assert np.shares_memory(pb.asarray(a).array, a)
    assert not np.shares_memory(pb.tensor(a).array, a)


@pytest.mark.usefixtures("on_cpu")
def test_dlpack_tells_its_device_and_that_it_is_read_only() -> None:
    t = pb.tensor(X)
    assert t.__dlpack_device__() == (1, 0)
    assert "versioned" in repr(t.__dlpack__(max_version=(1, 0)))
    assert "versioned" not in repr(t.__dlpack__())


@pytest.mark.usefixtures("on_cpu")
def test_torch_and_back() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    t = pb.tensor(M)
    there = torch.from_dlpack(t)
    assert there.data_ptr() == t.array.ctypes.data
    back = pb.from_dlpack(there)
    assert np.shares_memory(back.array, t.array)
    np.testing.assert_array_equal(back.numpy(), M)


def test_the_namespace_is_pullback() -> None:
    t = pb.tensor(X)
    assert t.__array_namespace__() is pb
    assert t.__array_namespace__(api_version="2024.12") is pb


@pytest.mark.usefixtures("on_cpu")
def test_a_cpu_tensor_has_no_cuda_interface() -> None:
    assert not hasattr(pb.tensor(X), "__cuda_array_interface__")


class _Exporter:
    """Another library's array that supports only DLPack."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@pytest.mark.usefixtures("on_cpu")
def test_an_object_that_has_only_dlpack_is_an_array() -> None:
    array = np.arange(6.0).reshape(2, 3)
    for make in (pb.asarray, pb.tensor, pb.from_dlpack):
        np.testing.assert_array_equal(make(_Exporter(array)).numpy(), array)
    np.testing.assert_array_equal((pb.ones((2, 3), dtype=pb.float64) + _Exporter(array)).numpy(), array + 1)
