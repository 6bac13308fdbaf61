"""Properties that hold for all shapes, indices and values, tested on examples that Hypothesis generates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conftest import assert_ulps, host

pytest.importorskip("hypothesis", reason="hypothesis is not installed")
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import pullback as pb
from pullback.tensors.dtypes import promote

settings.register_profile("pullback", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("pullback")

NUMBERS = st.floats(-100, 100, allow_nan=False, width=32).map(lambda x: x if abs(x) > 1e-6 else 0.0)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
ARRAYS = hnp.arrays(np.float64, SHAPES, elements=NUMBERS)
FILLED = hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5), elements=NUMBERS)
DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]


def same(got: Any, wanted: Any) -> None:
    got, wanted = host(got), host(wanted)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-9)


# ---- shapes


@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4, min_side=0), st.integers(0, 2**32 - 1))
def test_arithmetic_broadcasts_as_numpy_and_gradients_come_back_to_each_shape(shapes: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(shape) for shape in shapes.input_shapes)
    x, y = pb.tensor(a), pb.tensor(b)
    with pb.GradientTape() as tape:
        tape.watch([x, y])
        z = x * y + x
    same(z, a * b + a)
    gx, gy = tape.gradient(z, [x, y], output_gradients=np.ones(z.shape))
    over = np.ones(shapes.result_shape)

    def summed(g: Any, shape: Any) -> Any:
        g = np.broadcast_to(g, shapes.result_shape).sum(axis=tuple(range(len(shapes.result_shape) - len(shape))))
        return g.sum(axis=tuple([i for i, n in enumerate(shape) if n == 1]), keepdims=True)

    same(gx, summed((b + 1) * over, a.shape))
    same(gy, summed(a * over, b.shape))


@given(st.lists(st.integers(0, 4), max_size=4), st.lists(st.integers(0, 4), max_size=4))
def test_shapes_broadcast_or_fail_as_numpys_do(a: list[int], b: list[int]) -> None:
    try:
        wanted = np.broadcast_shapes(tuple(a), tuple(b))
    except ValueError:
        with pytest.raises(pb.ShapeError):
            pb.zeros(tuple(a)) + pb.zeros(tuple(b))
    else:
        assert (pb.zeros(tuple(a)) + pb.zeros(tuple(b))).shape == wanted


@given(st.data())
def test_any_chain_of_views_keeps_values_and_gradients(data: Any) -> None:
    a = data.draw(FILLED)
    t, wanted = pb.tensor(a), a
    with pb.GradientTape() as tape:
        tape.watch(t)
        y = t * 1.0
        for _ in range(data.draw(st.integers(1, 5))):
            kind = data.draw(st.sampled_from(["transpose", "flip", "expand", "reshape", "slice"]))
            if kind == "transpose":
                order = data.draw(st.permutations(range(wanted.ndim)))
                y, wanted = pb.permute_dims(y, order), wanted.transpose(order)
            elif kind == "flip":
                y, wanted = pb.flip(y), np.flip(wanted)
            elif kind == "expand":
                y, wanted = pb.expand_dims(y, axis=0), wanted[None]
            elif kind == "reshape":
                y, wanted = pb.reshape(y, (-1,)), wanted.reshape(-1)
            else:
                index = data.draw(hnp.basic_indices(wanted.shape, allow_ellipsis=True, allow_newaxis=True))
                y, wanted = y[index], np.asarray(wanted[index])
    same(y, wanted)
    g = tape.gradient(y, t, output_gradients=np.ones(y.shape), unconnected="zero")
    positions = np.zeros(a.shape)
    assert g.shape == positions.shape
    assert float(pb.sum(g)) == wanted.size


@given(st.data())
def test_indexing_is_numpys_in_every_form(data: Any) -> None:
    a = data.draw(FILLED)
    kind = data.draw(st.sampled_from(["basic", "integer", "mask"]))
    if kind == "basic":
        index = data.draw(hnp.basic_indices(a.shape, allow_ellipsis=True, allow_newaxis=True))
    elif kind == "integer":
        shapes = hnp.array_shapes(min_dims=0, max_dims=2, max_side=3, min_side=0)
        index = data.draw(hnp.integer_array_indices(a.shape, result_shape=shapes))
    else:
        index = data.draw(hnp.arrays(bool, a.shape))
    same(pb.tensor(a)[index], a[index])
    changed = a.copy()
    changed[index] = -1.5
    same(pb.tensor(a).at[index].set(-1.5), changed)
    added = a.copy()
    np.add.at(added, index, 2.5)
    same(pb.tensor(a).at[index].add(2.5), added)


# ---- reductions, products


@given(ARRAYS, st.data())
def test_reductions_agree_with_numpy_over_any_axes(a: Any, data: Any) -> None:
    axes = data.draw(st.one_of(st.none(), st.sets(st.integers(0, a.ndim - 1)).map(tuple) if a.ndim else st.none()))
    keepdims = data.draw(st.booleans())
    t = pb.tensor(a)
    same(pb.sum(t, axis=axes, keepdims=keepdims), a.sum(axis=axes, keepdims=keepdims))
    same(pb.any(t, axis=axes, keepdims=keepdims), a.any(axis=axes, keepdims=keepdims))
    if a.size:
        same(pb.max(t, axis=axes, keepdims=keepdims), a.max(axis=axes, keepdims=keepdims))
        same(pb.mean(t, axis=axes, keepdims=keepdims), a.mean(axis=axes, keepdims=keepdims))
        same(pb.var(t, axis=axes, keepdims=keepdims), a.var(axis=axes, keepdims=keepdims))


@given(FILLED, st.data())
def test_sorting_permutes_and_orders(a: Any, data: Any) -> None:
    axis = data.draw(st.integers(-a.ndim, a.ndim - 1))
    t = pb.tensor(a)
    same(pb.sort(t, axis=axis), np.sort(a, axis))
    same(pb.take_along_axis(t, pb.argsort(t, axis=axis), axis=axis), np.sort(a, axis))
    same(pb.argsort(t, axis=axis), np.argsort(a, axis, kind="stable"))


@given(*[st.integers(0, 6)] * 3, st.sampled_from([(), (1,), (3,), (2, 1)]), st.sampled_from([(), (3,), (1,)]))
def test_products_of_any_shape_agree_with_numpy(m: int, k: int, n: int, left: Any, right: Any) -> None:
    rng = np.random.default_rng(m * 49 + k * 7 + n)
    a, b = rng.standard_normal((*left, m, k)), rng.standard_normal((*right, k, n))
    same(pb.tensor(a) @ pb.tensor(b), a @ b)
    transposed = np.ascontiguousarray(b.swapaxes(-1, -2))
    same(pb.tensor(a) @ pb.tensor(transposed).mT, a @ b)


@given(st.data())
def test_einsum_agrees_with_numpy(data: Any) -> None:
    lengths = dict(zip("abcd", data.draw(st.lists(st.integers(1, 3), min_size=4, max_size=4))))
    terms = data.draw(st.lists(st.text("abcd", min_size=1, max_size=3), min_size=1, max_size=3))
    letters = sorted(set("".join(terms)))
    result = "".join(data.draw(st.lists(st.sampled_from(letters), unique=True)))
    subscripts = f"{','.join(terms)}->{result}"
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([lengths[c] for c in term]) for term in terms]
    same(pb.einsum(subscripts, *[pb.tensor(x) for x in arrays]), np.einsum(subscripts, *arrays))


# ---- dtypes


@given(st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.sampled_from(DTYPES))
def test_promotion_commutes_and_is_a_least_upper_bound(a: str, b: str, c: str) -> None:
    def joined(x: Any, y: Any) -> Any:
        try:
            return promote(np.dtype(x), np.dtype(y))
        except pb.DTypeError:
            return None

    assert joined(a, b) == joined(b, a)
    assert joined(a, a) == np.dtype(a)
    both = joined(a, b)
    if both is not None:
        assert joined(both, a) == joined(both, b) == both
        left, right = joined(both, c), joined(b, c)
        if left is not None and right is not None and joined(a, right) is not None:
            assert left == joined(a, right)


@given(
    hnp.arrays(np.float64, st.integers(0, 40), elements=st.floats(width=64)),
    st.sampled_from(["float16", "float32", "int32", "uint8", "bool"]),
)
def test_casts_are_numpys_where_the_value_fits(a: Any, dtype: str) -> None:
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        a = np.clip(np.nan_to_num(a), info.min, info.max)
    with np.errstate(all="ignore"):
        got, wanted = pb.tensor(a).astype(dtype).numpy(), a.astype(dtype)
    if dtype == "float32":  # The kernels flush denormal float32 numbers to 0.
        got, wanted = (np.where(np.abs(x) < np.finfo(np.float32).tiny, 0, x) for x in (got, wanted))
    np.testing.assert_array_equal(got, wanted)


@given(hnp.arrays(np.float32, st.integers(1, 70), elements=st.floats(width=32, allow_subnormal=False)))
def test_elementwise_functions_keep_nan_and_infinity_where_float64_has_them(x: Any) -> None:
    for name in ("exp", "log", "tanh", "sqrt", "log1p", "atan"):
        ours, theirs = getattr(pb, name), getattr(np, {"atan": "arctan"}.get(name, name))
        with np.errstate(all="ignore"):
            got, wanted = ours(pb.tensor(x)).numpy(), theirs(x.astype(np.float64))
        normal = (np.abs(wanted) >= 1e-36) | (wanted == 0) | ~np.isfinite(wanted)
        assert_ulps(got[normal], wanted[normal], 4, what=name)


# ---- derivatives


@given(*[hnp.arrays(np.float64, (3,), elements=st.floats(-2, 2))] * 2, NUMBERS, NUMBERS)
def test_pullbacks_are_linear_in_the_cotangent(x: Any, g: Any, a: float, b: float) -> None:
    t = pb.tensor(x)
    with pb.GradientTape(persistent=True) as tape:
        tape.watch(t)
        y = pb.tanh(t) * pb.exp(t) + pb.logsumexp(t)
    first, second = (tape.gradient(y, t, output_gradients=c).numpy() for c in (g, np.ones(3)))
    combined = tape.gradient(y, t, output_gradients=a * g + b).numpy()
    np.testing.assert_allclose(combined, a * first + b * second, rtol=1e-9, atol=1e-9)


@settings(max_examples=15)
@given(st.data())
def test_random_programs_have_right_first_and_second_derivatives(data: Any) -> None:
    kinds = ["tanh", "sin", "exp", "square", "mix", "sum", "softmax", "outer"]
    steps = data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=5))

    def f(x: Any, w: Any) -> Any:
        h = x
        for step in steps:
            if step == "mix":
                h = pb.tanh(h @ w)
            elif step == "sum":
                h = h + pb.mean(h, axis=0, keepdims=True)
            elif step == "softmax":
                h = pb.softmax(h)
            elif step == "outer":
                h = h * h[:, ::-1] + w[0]
            elif step == "exp":
                h = pb.exp(-h * h)
            else:
                h = getattr(pb, step)(h)
        return h

    rng = np.random.default_rng(len(steps))
    pb.check_gradients(f, [rng.standard_normal((2, 3)), rng.standard_normal((3, 3))], order=2)
