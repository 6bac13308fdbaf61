"""Lists of Python numbers beside tensors: they take the dtype of the tensors, as a Python number does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from list_calls import CASES

SEVERAL = [name for name, (_, arrays) in CASES.items() if len(arrays) > 1 and all([a.dtype == float for a in arrays])]
APART = ("broadcast_arrays", "meshgrid", "full_like", "quantile", "linspace", "arange")  # arguments that keep their own dtypes

SHARES = "cross_entropy of shares"


def same(found: Any, wanted: Any) -> None:
    for a, b in zip(pb.tree.leaves(found), pb.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(host(a), host(b))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("name", [name for name in SEVERAL if name not in APART])
def test_a_list_has_the_bits_of_a_tensor_of_the_dtype(name: str, dtype: str) -> None:
    f, arrays = CASES[name]
    if dtype == "float16" and name in ("solve", "solve_triangular", "lstsq", "nextafter"):
        return
    xs = [pb.tensor(x.astype(dtype)) for x in arrays]
    for i in range(len(xs)):
        if i == ("reflected" in name) and name.startswith(("operator", "at", "pad", "nll", "cross_entropy")) and name != SHARES:
            continue  # the case makes this array a tensor, or it determines the dtype alone
        given = [x.tolist() if j == i else x for j, x in enumerate(xs)]
        same(f(*given), f(*xs))
        rest = [j for j in range(len(xs)) if j != i]

        def of_rest(*tensors: Any, given: list[Any] = given, rest: list[int] = rest) -> Any:
            placed = dict(zip(rest, tensors))
            return f(*[placed.get(j, x) for j, x in enumerate(given)])

        same(pb.capture(of_rest)(*[xs[j] for j in rest]), f(*xs))


def test_the_dtype_is_that_of_an_op_on_the_tensor_and_a_number() -> None:
    for dtype, numbers, wanted in [
        ("int8", [1, 2], "int8"), ("int64", [0.5, 1], "float32"), ("bool", [1, 2], "int64"), ("bool", [True, False], "bool"),
        ("float16", [1, 0.5], "float16"), ("bfloat16", [0.1, 2], "bfloat16"), ("uint64", [2**64 - 1, 0], "uint64"),
        ("float64", [np.float32(0.1), 0.1], "float64"), ("float32", [np.float64(0.1), 0.1], "float32"), ("int16", (), "int16"),
    ]:
        x = pb.ones(2 if numbers else (2, 0), dtype=dtype)
        assert pb.where(pb.tensor(True), x, numbers).dtype == wanted
        assert pb.stack([x, numbers if numbers else [numbers] * 2]).dtype == wanted
    for array in (np.array([0.1, 0.2]), [np.array(0.1), 0.2]):
        assert (pb.ones(2) + array).dtype == pb.float64
    with pytest.raises(pb.DTypeError, match=r"add: b: 200 does not fit int8 \(from -128 to 127\)"):
        pb.add(pb.ones(2, dtype="int8"), [100, 200])


def test_comparisons_with_integers_out_of_range() -> None:
    x = pb.tensor([0, 255], dtype="uint8")
    np.testing.assert_array_equal(host(x < [300, -1]), [True, False])
    np.testing.assert_array_equal(host(pb.searchsorted(x, [300, -1])), [2, 0])
    np.testing.assert_array_equal(host(pb.isclose(x, [300, 255])), [False, True])


def test_numbers_beside_tensors_where_tensors_are_needed() -> None:
    x = pb.tensor([0.0, 0.1, 0.2], dtype="float64")
    assert pb.searchsorted(x, 0.1).item() == 1
    assert host(pb.isclose(x, 0.1, rtol=0.0, atol=0.0)).tolist() == [False, True, False]
    assert host(pb.inner(x, 0.3)).tolist() == host(x * 0.3).tolist()
    assert host(pb.clip([0.1], pb.tensor(0.0, dtype="float64"), 0.5)).tolist() == [0.1]


def test_class_numbers_and_masks_keep_their_dtypes() -> None:
    x = pb.tensor(np.linspace(-1.0, 1.0, 12).reshape(1, 1, 3, 4))
    rows = x[0, 0]
    same(pb.nn.cross_entropy(rows, [1, 0, 3]), pb.nn.cross_entropy(rows, pb.tensor([1, 0, 3])))
    same(pb.nn.cross_entropy(rows, rows.numpy().tolist()), pb.nn.cross_entropy(rows, rows))
    attention = pb.nn.functional.scaled_dot_product_attention
    for mask in (np.tril(np.ones((3, 3), bool)), np.linspace(-0.3, 0.3, 9).reshape(3, 3)):
        same(attention(x, x, x, attn_mask=mask.tolist()), attention(x, x, x, attn_mask=mask))


LAYERS = {
    "Linear": (lambda: pb.nn.Linear(4, 3, dtype="float64"), (2, 4)), "LSTM": (lambda: pb.nn.LSTM(4, 3, dtype="float64"), (5, 2, 4)),
    "GRUCell": (lambda: pb.nn.GRUCell(4, 3, dtype="float64"), (2, 4)), "LRU": (lambda: pb.nn.LRU(4, 3, dtype="float64"), (5, 2, 4)),
    "MinGRU": (lambda: pb.nn.MinGRU(4, 3, dtype="float64"), (5, 2, 4)),
    "LayerNorm": (lambda: pb.nn.LayerNorm(4, dtype="float64"), (2, 4)),
    "RMSNorm": (lambda: pb.nn.RMSNorm(4, dtype="float64"), (2, 4)),
    "BatchNorm1d": (lambda: pb.nn.BatchNorm1d(4, dtype="float64"), (3, 4)),
    "BatchNorm1d without weights": (lambda: pb.nn.BatchNorm1d(4, affine=False, dtype="float64"), (3, 4)),
    "InstanceNorm1d": (lambda: pb.nn.InstanceNorm2d(4, affine=True, dtype="float64"), (3, 4, 2, 2)),
    "GroupNorm": (lambda: pb.nn.GroupNorm(2, 4, dtype="float64"), (3, 4)),
    "Conv2d": (lambda: pb.nn.Conv2d(1, 2, 2, dtype="float64"), (1, 1, 3, 3)),
    "MultiheadAttention": (lambda: pb.nn.MultiheadAttention(4, 2, dtype="float64"), (3, 1, 4)),
    "MultiHeadAttention": (lambda: pb.nn.MultiHeadAttention(4, 2, dtype="float64"), (1, 3, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_read_lists_in_their_own_dtype(name: str) -> None:
    make, shape = LAYERS[name]
    layer, x = make(), np.random.default_rng(0).normal(size=shape)
    call: Any = layer
    net = call if name != "MultiheadAttention" else lambda x: call(x, x, x)
    same(net(x.tolist()), net(x))


def test_transforms_with_lists_beside() -> None:
    x, w = pb.tensor([[0.5, 2.0], [1.0, 3.0]], dtype="float64"), [0.1, 0.2]
    f = lambda x: pb.sum(pb.maximum(x * w, [0.3, 0.1]) @ w)
    g = lambda x: pb.sum(pb.maximum(x * np.array(w), np.array([0.3, 0.1])) @ np.array(w))
    for run in (lambda f: pb.vmap(pb.grad(f))(x), lambda f: pb.hessian(f)(x[0]), lambda f: pb.jvp(f, (x[0],), (x[1],)),
                lambda f: pb.capture(pb.vmap(f))(x), lambda f: pb.vmap(pb.capture(f))(x)):
        same(run(f), run(g))
