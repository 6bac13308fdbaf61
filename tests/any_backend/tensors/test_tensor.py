"""Tensors: creation, dtypes and promotion, indexing, immutability, and array functions against NumPy."""

from __future__ import annotations

import copy
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback.tensors import dtypes

A = np.random.default_rng(5).standard_normal((3, 4, 5))
FLOATS = [pb.float16, pb.float32, pb.float64]


def same(got: Any, wanted: Any, rtol: float = 1e-12) -> None:
    got, wanted = host(got), host(wanted)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=1e-12)


# ---- creation


@pytest.mark.parametrize(
    ("obj", "dtype"),
    [
        (1, "int64"), (1.5, "float32"), (True, "bool"), ([1, 2], "int64"), ([1, 2.5], "float32"), ([[True], [False]], "bool"),
        (np.float64(2), "float64"), (np.arange(3), "int64"), (np.ones(2, np.float16), "float16"), ((1.0, 2.0), "float32"),
        ([np.float64(1.0), np.float64(2.0)], "float64"), ([], "float32"), (np.zeros((0, 3), np.int8), "int8"),
    ],
)
def test_python_numbers_become_the_default_dtypes_and_arrays_keep_theirs(obj: Any, dtype: str) -> None:
    t = pb.tensor(obj)
    assert t.dtype == dtype
    np.testing.assert_array_equal(t.numpy(), np.asarray(obj))


@pytest.mark.usefixtures("on_cpu")
def test_tensor_copies_and_asarray_does_not() -> None:
    a = np.ones(3)
    t, u = pb.tensor(a), pb.asarray(a)
    a[0] = 5
    assert (t[0].item(), u[0].item()) == (1.0, 5.0)
    assert pb.asarray(u) is u
    with pytest.raises(ValueError, match="copy=False"):
        pb.asarray(a, dtype=pb.float32, copy=False)


def test_nested_tensors_become_one_array() -> None:
    same(pb.tensor([pb.tensor([1.0, 2.0]), pb.tensor([3.0, 4.0])]), [[1, 2], [3, 4]])


def test_creation_functions_agree_with_numpy() -> None:
    same(pb.arange(2, 9, 3), np.arange(2, 9, 3))
    same(pb.linspace(0, 1, 5, dtype=pb.float64), np.linspace(0, 1, 5))
    same(pb.eye(3, 4, k=1), np.eye(3, 4, k=1))
    same(pb.full((2, 2), 7), np.full((2, 2), 7))
    assert pb.full((2,), 7).dtype == "int64"
    assert pb.zeros(3).dtype == pb.float32
    for got, wanted in zip(pb.meshgrid(pb.arange(2), pb.arange(3)), np.meshgrid(np.arange(2), np.arange(3))):
        same(got, wanted)
    for got, wanted in zip(pb.meshgrid([1, 2], [3, 4, 5], indexing="ij"), np.meshgrid([1, 2], [3, 4, 5], indexing="ij")):
        same(got, wanted)
    with pytest.raises(pb.PullbackError, match='indexing=\'yx\'; use "xy" or "ij"'):
        pb.meshgrid([1, 2], [3], indexing="yx")


def test_bfloat16_is_a_dtype() -> None:
    t = pb.tensor([1.0, 2.0078125], dtype=pb.bfloat16)
    assert t.dtype == ml_dtypes.bfloat16
    assert (t + 1).dtype == ml_dtypes.bfloat16
    assert (t + pb.tensor([1.0, 1.0])).dtype == pb.float32


@pytest.mark.usefixtures("on_cpu")
def test_attributes() -> None:
    t = pb.tensor(A)
    assert (t.shape, t.ndim, t.size, t.nbytes, t.itemsize, t.device) == ((3, 4, 5), 3, 60, 480, 8, "cpu")
    same(t.T, A.T)
    same(t.mT, A.mT if hasattr(A, "mT") else A.swapaxes(-1, -2))
    assert len(t) == 3
    assert [row.shape for row in t] == [(4, 5)] * 3


@pytest.mark.usefixtures("on_cpu")
def test_repr_shows_what_is_not_the_default() -> None:
    assert repr(pb.tensor([1.0, 2.0])) == "tensor([1., 2.])"
    assert "dtype=float64" in repr(pb.tensor([1.0], dtype=pb.float64))
    assert repr(pb.Parameter(1.0, name="w")).startswith('Parameter "w"')
    assert f"{pb.tensor(1.25):.1f}" == "1.2"


# ---- promotion


def test_promotion_is_that_of_the_table() -> None:
    assert pb.result_type(pb.float32, pb.int64) == pb.float32
    assert pb.result_type(pb.float16, pb.float64) == pb.float64
    assert pb.result_type(pb.int8, pb.uint8) == pb.int16
    assert pb.result_type(pb.bool, pb.int8) == pb.int8
    assert pb.result_type(pb.float16, "bfloat16") == pb.float32
    with pytest.raises(pb.DTypeError):
        pb.result_type(pb.uint64, pb.int8)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float16", "bfloat16", "float32", "float64"])
def test_a_python_number_never_widens(dtype: str) -> None:
    t = pb.ones(3, dtype=dtype)
    assert (t + 1).dtype == t.dtype
    assert (2 * t).dtype == t.dtype
    assert (t + 1.5).dtype == (t.dtype if dtypes.is_float(t.dtype) else pb.float32)
    assert (np.float64(1.5) * t).dtype == (t.dtype if dtypes.is_float(t.dtype) else pb.float32)


def test_comparisons_answer_for_numbers_out_of_range() -> None:
    a = np.array([100, -100], np.int8)
    for f in (lambda x: x == 1000, lambda x: x < 1000, lambda x: x >= -1000, lambda x: x > 2**70):
        assert f(pb.tensor(a)).tolist() == f(a).tolist()
    assert (pb.tensor(np.array([0, 7], np.uint64)) > -1).tolist() == [True, True]
    assert pb.logical_xor(2**70, pb.tensor([0.0, 0.5])).tolist() == [True, False]


def test_a_zero_d_tensor_is_not_weak() -> None:
    assert (pb.ones(3) + pb.tensor(1.0, dtype=pb.float64)).dtype == pb.float64


def test_functions_of_real_numbers_take_integers_as_float32() -> None:
    assert pb.sin(pb.tensor([1, 2])).dtype == pb.float32
    assert pb.mean(pb.tensor([1, 2])).item() == 1.5
    assert (pb.tensor([1, 2]) / pb.tensor([2, 2])).dtype == pb.float32
    assert pb.sum(pb.tensor([100, 100], dtype="int8")).dtype == pb.int64
    assert pb.sum(pb.tensor([True, True])).item() == 2


# ---- protocols


def test_one_element_converts() -> None:
    t = pb.tensor([[2.5]])
    assert (float(t), int(t), bool(t), complex(t), t.item()) == (2.5, 2, True, 2.5 + 0j, 2.5)
    assert [10, 20, 30][pb.tensor(1)] == 20
    assert t.tolist() == [[2.5]]
    assert 2.5 in t
    assert 3 not in t


def test_tensors_are_immutable() -> None:
    t = pb.tensor([1.0, 2.0])
    with pytest.raises(TypeError):
        t[0] = 3.0
    with pytest.raises(AttributeError):
        t.shape = (2, 1)
    before, u = t, t
    u += 1
    assert u is not before
    same(before, [1.0, 2.0])
    same(t.at[0].set(9.0), [9.0, 2.0])
    same(t, [1.0, 2.0])


def test_mixed_lists_take_the_dtype_of_their_tensors() -> None:
    assert pb.tensor([pb.tensor(1.0), 2.0]).dtype == pb.float32
    assert pb.tensor([np.float64(1.0), 2]).dtype == pb.float64
    assert pb.tensor([[pb.tensor(1)], [2.5]]).dtype == pb.float32


def test_copies_of_parameters_are_their_own() -> None:
    from pullback.nn.module import Buffer

    p, b = pb.Parameter([1.0], name="p"), Buffer([2.0])
    for made in (copy.deepcopy([p, b]), [copy.copy(p), copy.copy(b)]):
        assert (type(made[0]), type(made[1])) == (pb.Parameter, Buffer)
        made[0].assign([5.0])
        assert p.item() == 1.0
    shared = pb.tensor([1.0])
    first, second = copy.deepcopy([shared, shared])
    assert first is second


def test_half_precision_does_not_overflow_on_the_way_to_a_result_that_fits() -> None:
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float16)
    wide = x.astype(np.float64)
    assert float(pb.var(pb.tensor(x))) == pytest.approx(wide.var(), rel=1e-3)
    assert float(pb.linalg.vector_norm(pb.tensor(x))) == pytest.approx(np.linalg.norm(wide), rel=1e-3)
    assert float(pb.std(pb.tensor(x), correction=1)) == pytest.approx(wide.std(ddof=1), rel=1e-3)


def test_the_variance_of_nothing_is_not_a_number() -> None:
    assert np.isnan(pb.var(pb.zeros(0)).item())
    assert not np.isfinite(pb.var(pb.tensor([1.0, 2.0]), correction=2).item())


def test_numpy_integers_are_integers() -> None:
    n = np.int64(1)
    assert pb.expand_dims(pb.ones(2), axis=n).shape == (2, 1)
    assert pb.roll(pb.tensor([1, 2, 3]), n).tolist() == [3, 1, 2]
    assert pb.roll(pb.tensor([1, 2, 3]), (1, 1), axis=0).tolist() == [2, 3, 1]
    assert pb.zeros(np.array([2, 3])).shape == (2, 3)
    assert len(pb.split(pb.arange(4), np.int64(2))) == 2


def test_a_contraction_over_an_empty_axis() -> None:
    assert pb.einsum("i,ji->j", pb.ones(2), pb.ones((0, 2))).shape == (0,)
    assert pb.einsum("i,ji->j", pb.ones(0), pb.ones((3, 0))).tolist() == [0.0, 0.0, 0.0]


def test_the_namespace_tells_what_it_can() -> None:
    info = pb.tensor([1.0]).__array_namespace__().__array_namespace_info__()
    assert info.default_device() in info.devices()
    assert info.default_dtypes() == {"real floating": pb.float32, "integral": pb.int64, "indexing": pb.int64}
    assert info.dtypes(kind="real floating") == {"float32": pb.float32, "float64": pb.float64}
    assert set(info.dtypes(kind=("bool", "unsigned integer"))) == {"bool", "uint8", "uint16", "uint32", "uint64"}
    assert pb.zeros((1,) * info.capabilities()["max dimensions"]).ndim == 64


def test_copies_and_pickles() -> None:
    t, p = pb.tensor([1.0]), pb.Parameter([1.0], name="w", trainable=False)
    assert copy.copy(t) is t
    assert copy.deepcopy(t) is not t
    q = copy.deepcopy(p)
    q.assign([5.0])
    assert (p.numpy()[0], q.name, q.trainable) == (1.0, "w", False)
    assert len({t, p}) == 2  # Tensors are hashed by identity, although == is elementwise.


def test_a_parameter_knows_its_version() -> None:
    p = pb.Parameter([1.0, 2.0])
    assert p.version == 0
    p.assign([3.0, 4.0])
    assert p.version == 1
    same(p, [3.0, 4.0])
    view = p[:1]
    p.assign([5.0, 6.0])
    assert view.storage is p.storage
    assert p.dtype == pb.float32


# ---- indexing


INDICES: list[Any] = [
    0, -1, slice(None), slice(1, None, 2), slice(None, None, -1), (0, 1), (slice(None), 2), (..., 0), (None, 1), (1, None, ..., -1),
    (slice(2, 0, -1), slice(None), slice(4, None, -2)), [0, 2], ([0, 2], [1, 3]), (slice(None), [0, 0, 3]), ([[0], [2]], [1, 3]),
    np.array([True, False, True]), (0, np.array([True, False, True, True])), A > 0,
    (..., [1, 0]), (0, [1, 2], slice(None), ), ([1], 0, [2]),
    (slice(1), None, [0, 1]), [], np.zeros((0,), int), (np.int64(1), 2), slice(5, 9), (slice(0, 0), 1),
]


@pytest.mark.parametrize("index", INDICES, ids=range(len(INDICES)))
def test_indexing_is_numpys(index: Any) -> None:
    same(pb.tensor(A)[index], A[index])


@pytest.mark.parametrize("index", INDICES, ids=range(len(INDICES)))
def test_at_changes_what_indexing_reads(index: Any) -> None:
    t, changed = pb.tensor(A), A.copy()
    changed[index] = 7.0
    same(t.at[index].set(7.0), changed)
    added = A.copy()
    np.add.at(added, index, 2.0)
    same(t.at[index].add(2.0), added)
    largest = A.copy()
    np.maximum.at(largest, index, 0.3)
    same(t.at[index].max(0.3), largest)


@pytest.mark.parametrize("index", [INDICES[i] for i in (2, 3, 6, 9, 11, 12, 13, 17)], ids=str)
def test_indexing_and_at_have_derivatives(index: Any) -> None:
    index = tuple([i if not isinstance(i, list) else np.array(i) for i in index]) if isinstance(index, tuple) else index
    values = np.random.default_rng(0).standard_normal(np.shape(A[index]))
    assert pb.check_gradients(lambda x: x[index] ** 2, [A]) < 1e-6
    assert pb.check_gradients(lambda x, v: x.at[index].set(v) ** 2, [A, values]) < 1e-6
    assert pb.check_gradients(lambda x, v: x.at[index].add(v) ** 2, [A, values]) < 1e-6


# ---- array functions against NumPy


FUNCTIONS: list[tuple[Any, Any]] = [
    (lambda x: pb.sum(x, axis=(0, 2)), lambda x: np.sum(x, (0, 2))),
    (lambda x: pb.var(x, axis=1, correction=1), lambda x: np.var(x, 1, ddof=1)),
    (lambda x: pb.std(x, axis=(0, 1), keepdims=True), lambda x: np.std(x, (0, 1), keepdims=True)),
    (lambda x: pb.prod(x, axis=-1), lambda x: np.prod(x, -1)),
    (lambda x: pb.argmin(x), np.argmin), (lambda x: pb.argmax(x, axis=1, keepdims=True), lambda x: np.argmax(x, 1, keepdims=True)),
    (lambda x: pb.permute_dims(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    (lambda x: pb.reshape(x.T, (4, -1)), lambda x: x.T.reshape(4, -1)),
    (lambda x: pb.concat([x, x[:1]], axis=0), lambda x: np.concatenate([x, x[:1]])),
    (lambda x: pb.concat([x, x], axis=None), lambda x: np.concatenate([x, x], None)),
    (lambda x: pb.stack([x, x], axis=-1), lambda x: np.stack([x, x], -1)), (lambda x: pb.unstack(x, axis=1)[2], lambda x: x[:, 2]),
    (lambda x: pb.split(x, [1, 3], axis=1)[1], lambda x: x[:, 1:3]),
    (lambda x: pb.roll(x, (1, -2), axis=(0, 2)), lambda x: np.roll(x, (1, -2), (0, 2))),
    (lambda x: pb.roll(x, 7), lambda x: np.roll(x, 7)), (lambda x: pb.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3))),
    (lambda x: pb.repeat(x, pb.tensor([2, 0, 1]), axis=0), lambda x: np.repeat(x, [2, 0, 1], 0)),
    (lambda x: pb.flip(x, axis=(0, 2)), lambda x: np.flip(x, (0, 2))),
    (lambda x: pb.pad(x, ((0, 0), (1, 2), (0, 1)), value=3.0), lambda x: np.pad(x, ((0, 0), (1, 2), (0, 1)), constant_values=3.0)),
    (lambda x: pb.tril(x, k=1), lambda x: np.tril(x, 1)), (lambda x: pb.triu(x, k=-1), lambda x: np.triu(x, -1)),
    (pb.matrix_transpose, lambda x: x.swapaxes(1, 2)),
    (lambda x: pb.moveaxis(x, (0, 1), (2, 0)), lambda x: np.moveaxis(x, (0, 1), (2, 0))),
    (lambda x: pb.sort(x, axis=1), lambda x: np.sort(x, 1)),
    (lambda x: pb.sort(x, axis=0, descending=True), lambda x: -np.sort(-x, 0)),
    (lambda x: pb.argsort(x), lambda x: np.argsort(x, -1)),
    (lambda x: pb.topk(x, 2)[0], lambda x: -np.sort(-x, -1)[..., :2]),
    (lambda x: pb.searchsorted(pb.sort(x[0, 0]), x, side="right"), lambda x: np.searchsorted(np.sort(x[0, 0]), x, "right")),
    (lambda x: pb.searchsorted(x[0, 0], [0, 1], sorter=pb.argsort(x[0, 0])), lambda x: np.searchsorted(np.sort(x[0, 0]), [0, 1])),
    (lambda x: pb.cumulative_sum(x, axis=1), lambda x: np.cumsum(x, 1)),
    (lambda x: pb.cumulative_prod(x, axis=2), lambda x: np.cumprod(x, 2)),
    (lambda x: pb.diff(x, axis=0), lambda x: np.diff(x, axis=0)),
    (lambda x: pb.count_nonzero(x > 0, axis=0), lambda x: np.count_nonzero(x > 0, 0)),
    (lambda x: pb.argwhere(x > 0), lambda x: np.argwhere(x > 0)),
    (lambda x: pb.take_along_axis(x, pb.argsort(x, axis=1), axis=1), lambda x: np.sort(x, 1)),
    (lambda x: pb.one_hot(pb.argmax(x, axis=2), 5), lambda x: np.eye(5)[np.argmax(x, 2)]),
    (lambda x: pb.einsum("ijk,ljk->il", x, x), lambda x: np.einsum("ijk,ljk->il", x, x)),
    (lambda x: pb.einsum("iji->j", x[:, :, :3]), lambda x: np.einsum("iji->j", x[:, :, :3])),
    (lambda x: pb.einsum("...k,k", x, x[0, 0]), lambda x: np.einsum("...k,k", x, x[0, 0])),
    (lambda x: pb.tensordot(x, x, axes=([0, 2], [0, 2])), lambda x: np.tensordot(x, x, ([0, 2], [0, 2]))),
    (lambda x: pb.vecdot(x, x, axis=-2), lambda x: (x * x).sum(-2)), (lambda x: x @ x.mT, lambda x: x @ x.swapaxes(1, 2)),
    (lambda x: x @ x[0, 0], lambda x: x @ x[0, 0]),
    (lambda x: pb.clip(x, -0.5, 0.5), lambda x: np.clip(x, -0.5, 0.5)),
    (lambda x: pb.where(x > 0, x, -1.0), lambda x: np.where(x > 0, x, -1.0)),
    (lambda x: pb.nan_to_num(x / 0), lambda x: np.nan_to_num(x / np.zeros(()))), (lambda x: x // 0.3, lambda x: x // 0.3),
    (lambda x: x % 0.3, lambda x: x % 0.3),
    (lambda x: abs(-x) ** 1.5, lambda x: np.abs(x) ** 1.5), (lambda x: 2.0**x, lambda x: 2.0**x),
    (lambda x: ~(x > 0), lambda x: ~(x > 0)),
]


@pytest.mark.parametrize(("ours", "theirs"), FUNCTIONS, ids=range(len(FUNCTIONS)))
def test_array_functions_are_numpys(ours: Any, theirs: Any) -> None:
    with np.errstate(all="ignore"):
        same(ours(pb.tensor(A)), theirs(A), 1e-11)


def test_reductions_of_nothing_are_the_identity_or_an_error() -> None:
    x = pb.zeros((0, 3))
    same(pb.sum(x, axis=0), np.zeros(3))
    same(pb.prod(x, axis=0), np.ones(3))
    assert pb.all(x).item() is True
    assert pb.any(x).item() is False
    assert np.isnan(pb.mean(x, axis=0).numpy()).all()
    with pytest.raises(pb.ShapeError):
        pb.max(x, axis=0)
    same(pb.max(x, axis=1), np.zeros(0))
    same(pb.matmul(x.mT, x), np.zeros((3, 3)))
    same(pb.matmul(x, pb.zeros((3, 2))), np.zeros((0, 2)))
    same(pb.concat([x, pb.ones((1, 3))]), np.ones((1, 3)))
    assert pb.sort(x, axis=0).shape == (0, 3)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_of_many_are_as_exact_as_the_dtype_allows(dtype: Any) -> None:
    x = np.random.default_rng(0).uniform(0.5, 1.5, 20_000).astype(dtype)
    exact = x.astype(np.float64).sum()
    assert abs(float(pb.sum(pb.tensor(x))) - exact) / exact < 4 * float(np.finfo(dtype).eps)
    assert abs(float(pb.mean(pb.tensor(x))) - exact / x.size) / (exact / x.size) < 4 * float(np.finfo(dtype).eps)


def test_views_share_memory_and_copies_do_not() -> None:
    t = pb.tensor(A)
    for view in (t[1:], t.T, t[..., None], pb.reshape(t, (60,)), pb.flip(t), pb.broadcast_to(t[0], (2, 4, 5)), pb.squeeze(t[:1])):
        assert np.shares_memory(view.array, t.array)
    assert not np.shares_memory(pb.copy(t).array, t.array)


@pytest.mark.usefixtures("on_cpu")
def test_moving_to_where_it_is_changes_nothing() -> None:
    t = pb.tensor([1.0])
    assert t.to("cpu") is t
    assert t.to(pb.float64).dtype == pb.float64
    assert t.astype(pb.float32) is t
    if not pb.cuda.is_available():
        with pytest.raises(pb.DeviceError, match=r"cuda.*cannot be used"):
            t.to("cuda")
        assert pb.cuda.why_not()


def test_every_nan_is_a_value_of_its_own() -> None:
    found = pb.unique_counts(pb.tensor([np.nan, 1.0, np.nan, 1.0]))
    assert found.counts.tolist() == [2, 1, 1]


@pytest.mark.parametrize("order", [None, 1, 2, np.inf])
@pytest.mark.parametrize("axis", [None, 0, 1, -1], ids=str)
def test_norms_along_an_axis_are_numpys(axis: Any, order: Any) -> None:
    x = np.random.default_rng(0).standard_normal((4, 3))
    for array in [*([] if axis is None and order == 2 else [x]), *([] if axis == 1 else [x[0]])]:  # Order 2 of a matrix is missing.
        for keepdims in (False, True):
            got = pb.linalg.norm(pb.tensor(array), order, axis, keepdims)
            np.testing.assert_allclose(got.numpy(), np.linalg.norm(array, order, axis, keepdims), rtol=1e-14)
