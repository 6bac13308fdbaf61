"""Functions that are composed of ops, at their edges: NaN, infinities, zeros, empty and 0-d tensors, ties, and refusals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.special

import pullback as pb
from conftest import host
from pullback import linalg

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ENDS = np.array([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-3, -7.25, 100.5])
X, Y = [grid.ravel() for grid in np.meshgrid(ENDS, ENDS)]
GAPS = np.array([[1.0, np.nan, 3.0, -2.0], [np.nan] * 4, [0.5, 2.0, 2.0, 7.0]])
AXES = pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])


def equal(got: Any, wanted: Any, rtol: float = 1e-13) -> None:
    assert got.shape == np.shape(wanted)
    np.testing.assert_allclose(host(got), wanted, rtol=rtol, atol=1e-15)


@pytest.mark.parametrize("name", ["fmax", "fmin", "fmod", "heaviside"])
def test_two_numbers_at_their_ends_are_numpys(name: str) -> None:
    equal(getattr(pb, name)(pb.tensor(X), pb.tensor(Y)), getattr(np, name)(X, Y))


def test_fmod_has_the_sign_of_its_first_argument_and_takes_integers() -> None:
    wanted = np.fmod(X, Y)
    got, numbers = host(pb.fmod(pb.tensor(X), pb.tensor(Y))), ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(wanted[numbers]))
    a, b = [np.array(pair) for pair in zip(*itertools.product(range(-7, 8), (-3, -2, 1, 2, 5)))]
    for dtype in ("int8", "int32", "int64"):
        got = pb.fmod(pb.tensor(a, dtype=dtype), pb.tensor(b, dtype=dtype))
        assert str(got.dtype) == dtype
        np.testing.assert_array_equal(host(got), np.fmod(a, b))
    np.testing.assert_array_equal(host(pb.fmod(pb.tensor([7, 8], dtype="uint8"), 3)), [1, 2])


def test_extremes_without_nan_take_integers_and_keep_a_nan_only_of_both() -> None:
    assert pb.fmax(pb.tensor([1, 5]), 3).tolist() == [3, 5]
    assert pb.fmin(pb.tensor([True, False]), pb.tensor([False, True])).tolist() == [False, False]
    a, b = pb.tensor([np.nan, 1.0, np.nan]), pb.tensor([2.0, np.nan, np.nan])
    ga, gb = pb.grad(lambda a, b: pb.nansum(pb.fmax(a, b)), argnums=(0, 1))(a, b)
    assert (ga.tolist()[:2], gb.tolist()[:2]) == ([0.0, 1.0], [1.0, 0.0])


@pytest.mark.parametrize("name", ["xlogy", "xlog1py"])
def test_products_with_logarithms_are_scipys(name: str) -> None:
    f = getattr(pb, name)
    equal(f(pb.tensor(X), pb.tensor(Y)), getattr(scipy.special, name)(X, Y))
    slopes = pb.grad(lambda x, y: pb.sum(f(x, y)), argnums=(0, 1))(pb.zeros(5), pb.tensor([0.0, 2.0, -1.0, np.inf, -3.0]))
    wanted = {"xlogy": np.log(2.0), "xlog1py": np.log(3.0)}[name]
    np.testing.assert_allclose(host(slopes[0]), [0.0, wanted, 0.0, 0.0, 0.0], rtol=1e-6)
    assert not host(slopes[1]).any()


def test_python_numbers_take_the_dtype_of_the_tensor() -> None:
    t = pb.tensor([0.5, 2.0], dtype="float16")
    for y in (pb.xlogy(2, t), pb.xlogy(t, 2.5), pb.fmax(t, 1), pb.fmod(3, t), pb.heaviside(t, 0.5), pb.xlog1py(0, t)):
        assert (y.dtype, y.shape) == (pb.float16, (2,))
    assert pb.xlogy(pb.tensor([1, 2]), 3).dtype == pb.float32


def test_logit_is_scipys_near_a_half_and_at_the_ends() -> None:
    p = np.concatenate([np.linspace(0.0, 1.0, 101), 0.5 + np.array([1e-12, -1e-9]), [1e-300, 1 - 1e-16, -0.5, 1.5, np.nan]])
    wanted = scipy.special.logit(p)
    equal(pb.logit(pb.tensor(p)), wanted)
    half = 0.5 + 1e-10
    assert float(pb.logit(pb.tensor(half, dtype="float64"))) == pytest.approx(4 * (half - 0.5), rel=1e-13)
    assert host(pb.grad(pb.logit)(pb.tensor(0.25, dtype="float64"))) == pytest.approx(1 / (0.25 * 0.75), rel=1e-14)
    with pytest.raises(pb.DTypeError, match="eps='a'"):
        pb.logit(pb.ones(2), "a")


def test_sinc_is_zero_at_integers_and_has_derivatives_of_every_order_at_0() -> None:
    x = np.concatenate([np.arange(1.0, 9.0), [1e6 + 0.5, 1e17, 0.1249999, 0.125, -0.1250001, 1e-9]])
    wanted = np.where((x == np.round(x)) & (x != 0), 0.0, np.sinc(x))
    np.testing.assert_allclose(host(pb.sinc(pb.tensor(x))), wanted, rtol=1e-12, atol=1e-20)
    f = pb.sinc
    for order, value in enumerate([1.0, 0.0, -(np.pi**2) / 3, 0.0, np.pi**4 / 5]):
        assert float(f(pb.tensor(0.0, dtype="float64"))) == pytest.approx(value, rel=1e-13, abs=1e-15), order
        f = pb.grad(f)
    small = pb.grad(pb.sinc)(pb.tensor(1e-6, dtype="float64"))
    assert float(small) == pytest.approx(-(np.pi**2) / 3 * 1e-6, rel=1e-11)


def test_gamma_functions_at_their_poles_and_ends() -> None:
    ends = np.array([0.0, -0.0, -1.0, -2.0, np.inf, -np.inf, np.nan, 1.0, 2.0])
    for dtype in ("float32", "float64"):
        x = pb.tensor(ends.astype(dtype))
        np.testing.assert_array_equal(host(pb.lgamma(x)), [np.inf] * 6 + [np.nan, 0.0, 0.0])
        np.testing.assert_array_equal(host(pb.digamma(x))[:7], [-np.inf, np.inf, np.nan, np.nan, np.inf, np.nan, np.nan])
        np.testing.assert_array_equal(host(pb.polygamma(1, x))[:7], [np.inf] * 4 + [0.0, np.nan, np.nan])
        np.testing.assert_array_equal(host(pb.polygamma(2, x))[[0, 2, 3, 4]], [-np.inf, -np.inf, -np.inf, 0.0])
        assert not np.signbit(host(pb.lgamma(x))[-2:]).any()
    with pytest.raises(pb.ShapeError, match="n=-1"):
        pb.polygamma(-1, pb.ones(2))


# ---- reductions without NaN, quantiles


@AXES
@pytest.mark.parametrize("name", ["nansum", "nanprod", "nanmean", "nanmax", "nanmin", "nanvar", "nanstd", "nanmedian"])
def test_reductions_of_rows_that_are_all_nan_are_numpys(name: str, axis: Any) -> None:
    for keepdims in (False, True):
        equal(getattr(pb, name)(pb.tensor(GAPS), axis, keepdims=keepdims), getattr(np, name)(GAPS, axis=axis, keepdims=keepdims))
    slopes = pb.grad(lambda x: pb.nansum(getattr(pb, name)(x, axis)))(pb.tensor(GAPS))
    assert np.isfinite(host(slopes)).all()
    assert not host(slopes)[np.isnan(GAPS)].any()


def test_reductions_without_nan_of_integers_and_half_precision() -> None:
    assert pb.nansum(pb.tensor([1, 2], dtype="int8")).dtype == pb.int64
    assert pb.nansum(pb.tensor([1.0, np.nan]), dtype="float64").dtype == pb.float64
    assert pb.nanmax(pb.tensor([1, 2], dtype="int8")).dtype == pb.int8
    assert pb.nanmean(pb.tensor([1, 2])).dtype == pb.float32
    large = np.full(70_000, 2.0, np.float16)  # more elements than float16 can count
    large[0] = np.nan
    assert (float(pb.nanmean(pb.tensor(large))), float(pb.nanvar(pb.tensor(large)))) == (2.0, 0.0)
    with pytest.raises(pb.ShapeError, match="axis 0 of shape"):
        pb.nanmax(pb.ones((0, 2)), 0)
    assert (float(pb.nansum(pb.ones(0))), np.isnan(float(pb.nanmean(pb.ones(0))))) == (0.0, True)


@AXES
@pytest.mark.parametrize("name", ["nanvar", "nanstd"])
def test_variances_without_nan_of_too_few_elements_are_numpys(name: str, axis: Any) -> None:
    for x in (GAPS, np.array([[2, 3, 0], [2, 3, 5]]), np.array([[True, False]]), np.full((2, 2), 7)):
        for correction in (0, 1, 2, 4, 7.5):
            wanted = getattr(np, name)(x, axis=axis, correction=correction)
            equal(getattr(pb, name)(pb.tensor(x), axis, "float64", correction=correction), wanted)


def test_places_of_extremes_without_nan() -> None:
    t = pb.tensor([[np.nan, -np.inf, np.nan], [np.nan] * 3, [2.0, np.nan, 2.0]])
    assert pb.nanargmax(t, 1).tolist() == [1, -1, 0]
    assert pb.nanargmin(t, 1, keepdims=True).tolist() == [[1], [-1], [0]]
    assert pb.nanargmax(t).item() == 6


@AXES
@pytest.mark.parametrize("method", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantiles_of_rows_with_nan_and_ties_are_numpys(method: str, axis: Any) -> None:
    for x in (np.round(np.random.default_rng(2).standard_normal((3, 4))), np.where(GAPS == 7.0, np.nan, GAPS)):
        for q in (0.0, 1.0, 0.5, [0.1, 0.3, 0.9]):
            for name in ("quantile", "nanquantile"):
                got = getattr(pb, name)(pb.tensor(x), q, axis, method=method, keepdims=True)
                equal(got, getattr(np, name)(x, q, axis=axis, method=method, keepdims=True), rtol=1e-12)


def test_quantiles_of_infinities_are_infinite() -> None:
    t = pb.tensor([-np.inf, 1.0, np.inf, np.inf])
    assert pb.quantile(t, [0.0, 1 / 3, 0.8, 1.0]).tolist() == [-np.inf, 1.0, np.inf, np.inf]
    assert pb.median(pb.tensor([np.inf, np.inf])).item() == np.inf
    between = pb.quantile(pb.tensor([-np.inf, 0.0, np.inf]), [0.25, 0.5, 0.75])
    assert between.tolist() == [-np.inf, 0.0, np.inf]
    assert np.isnan(pb.median(pb.tensor([-np.inf, np.inf])).item())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_quantiles_between_the_largest_numbers_of_opposite_sign_are_finite(dtype: Any) -> None:
    most = float(pb.finfo(dtype).max)
    t = pb.tensor([-most, most], dtype=dtype)
    for median in (pb.median, pb.nanmedian, lambda x: pb.quantile(x, 0.5, method="midpoint")):
        assert median(t).item() == 0.0
        assert pb.grad(median)(t).tolist() == [0.5, 0.5]
    found = pb.quantile(t, [0.0, 0.25, 0.75, 1.0]).tolist()
    np.testing.assert_allclose(found, [-most, -most / 2, most / 2, most], rtol=float(pb.finfo(dtype).eps))


def test_arrays_with_a_mask_are_refused() -> None:
    masked, x = np.ma.masked_array([1.0, 2.0, 3.0], mask=[0, 1, 0]), pb.ones(3)
    ids = np.ma.masked_array([0, 1, 2], mask=[0, 1, 0])
    calls: list[Any] = [
        lambda: pb.tensor(masked), lambda: pb.asarray(masked), lambda: pb.Parameter(masked), lambda: x * masked,
        lambda: pb.sum(masked), lambda: pb.tensor([masked, masked]),
        lambda: pb.tensor([masked[0], masked[1]]), lambda: pb.full(3, masked[1]),
        lambda: pb.Parameter(x).assign(masked), lambda: pb.data.Loader((masked,), batch_size=1), lambda: np.add(x, masked),
        lambda: pb.capture(lambda a: a * 2)(masked), lambda: x[ids], lambda: pb.take(x, ids), lambda: pb.one_hot(ids, 3),
    ]
    for call in calls:
        with pytest.raises(pb.DTypeError, match="the mask of a masked array"):
            call()


def test_ragged_lists_of_indices_are_refused() -> None:
    x = pb.ones((3, 2))
    for call in (lambda i: x[i], lambda i: x.at[i].add(1.0), lambda i: pb.take(x, i, axis=0)):
        with pytest.raises(pb.ShapeError, match="lists of an index do not have equal lengths"):
            call([[0, 1], [2]])


@pytest.mark.parametrize("method", ["linear", "midpoint"])
def test_quantiles_of_infinities_are_the_limits_of_those_of_large_numbers(method: Any) -> None:
    x = np.array([[-np.inf, -np.inf, 1.0, 2.5, 3.0], [0.0, -1.5, 0.25, np.inf, np.inf], [-np.inf, 3.0, np.inf, 4.0, -7.0]])
    shares = [0.0, 0.125, 0.25, 0.5, 0.625, 0.75, 0.875, 1.0]
    limits = np.quantile(np.nan_to_num(x, posinf=1e300, neginf=-1e300), shares, axis=1, method=method)
    limits = np.where(np.abs(limits) > 1e290, np.copysign(np.inf, limits), limits)
    for name, factor in (("quantile", 1), ("nanquantile", 1), ("percentile", 100), ("nanpercentile", 100)):
        got = getattr(pb, name)(pb.tensor(x), np.array(shares) * factor, 1, method=method)
        equal(got, limits)
    equal(pb.quantile(pb.tensor(x), 0.0, 1), x.min(axis=1))
    equal(pb.median(pb.tensor(x), 1), np.median(x, axis=1))


def test_differences_of_bools_are_numpys() -> None:
    x = np.random.default_rng(3).random((3, 5)) < 0.5
    for n in (0, 1, 2, 7):
        np.testing.assert_array_equal(host(pb.diff(pb.tensor(x), n)), np.diff(x, n))


def test_quantiles_of_nothing_of_one_element_and_of_a_tensor_q() -> None:
    assert np.isnan(host(pb.quantile(pb.ones((2, 0)), [0.1, 0.2], axis=1))).all()
    assert pb.quantile(pb.ones((2, 0)), [0.1, 0.2, 0.3], axis=1).shape == (3, 2)
    assert (pb.median(pb.tensor(3.0)).item(), pb.median(pb.tensor([1, 2])).dtype) == (3.0, pb.float32)
    q = pb.tensor([0.5, -0.1, 1.5, np.nan])
    np.testing.assert_array_equal(host(pb.quantile(pb.tensor([1.0, 2.0, 4.0]), q)), [2.0, np.nan, np.nan, np.nan])
    captured = pb.capture(lambda x, q: pb.quantile(x, q, axis=0)) if pb.backends.native.module else None
    if captured is not None:
        x = np.random.default_rng(5).standard_normal((7, 3))
        for share in (0.25, 0.8):
            np.testing.assert_allclose(
                host(captured(pb.tensor(x), pb.tensor(share, dtype="float64"))), np.quantile(x, share, axis=0)
            )


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda t: pb.quantile(t, 1.5), pb.PullbackError, r"q=1.5 is not in \[0, 1\]"),
        (lambda t: pb.percentile(t, [50, 101]), pb.PullbackError, r"is not in \[0, 100\]"),
        (lambda t: pb.quantile(t, "a"), pb.PullbackError, "q='a' is not a real number"),
        (lambda t: pb.quantile(t, "0.5"), pb.PullbackError, "q='0.5' is not a real number"),
        (lambda t: pb.percentile(t, 10**400), pb.PullbackError, r"is not in \[0, 100\]"),
        (lambda t: pb.nanquantile(t, np.array([0.5j])), pb.PullbackError, "nanquantile: q=.* is not a real number"),
        (lambda t: pb.quantile(t, 0.5, method="cubic"), pb.PullbackError, "method='cubic'; use 'linear'"),
        (lambda t: pb.pad(t, 1, "mean"), pb.PullbackError, "mode='mean'; use 'constant', 'reflect'"),
        (lambda t: pb.pad(t[:0], 1, "edge"), pb.ShapeError, "axis 0 of shape .* has no elements"),
        (lambda t: pb.pad(t, 1, constant_values=[1, 2, 3]), pb.ShapeError, "constant_values"),
        (lambda t: pb.trapezoid(t, t[:2]), pb.ShapeError, "trapezoid: x has shape"),
        (lambda t: pb.diag(t[0, 0]), pb.ShapeError, "a vector or a matrix"),
        (lambda t: pb.rot90(t, 1, (0, 0)), pb.ShapeError, "two different axes"),
        (lambda t: pb.unfold(t, 0, 4), pb.ShapeError, "size can be at most 3"),
        (lambda t: pb.unfold(t, 0, 2, 0), pb.ShapeError, "step must be at least 1"),
        (lambda t: pb.cummax(t), pb.ShapeError, "axis= is needed"),
        (lambda t: pb.inner(t, t[:, :2]), pb.ShapeError, "different lengths"),
        (lambda t: pb.tensordot(t, t, axes="ab"), pb.ShapeError, "not an integer or a pair"),
    ],
)
def test_what_fits_nothing_is_refused_in_words(call: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call(pb.ones((3, 3)))


# ---- along axes


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extremes_and_their_places_are_torchs(torch: Any, name: str) -> None:
    for x in (GAPS, np.round(GAPS), np.arange(12).reshape(3, 4) % 3, np.array([[True, False], [False, True]]), np.zeros((0, 2))):
        for axis in (0, 1, -1):
            got, wanted = getattr(pb, name)(pb.tensor(x), axis), getattr(torch, name)(torch.tensor(x), axis)
            np.testing.assert_array_equal(host(got.values), wanted.values.numpy())
            np.testing.assert_array_equal(host(got.indices), wanted.indices.numpy())
            assert (got.values.dtype, got.indices.dtype) == (x.dtype, pb.int64)


def test_running_log_sums_do_not_overflow_and_begin_with_minus_infinity(torch: Any) -> None:
    x = np.random.default_rng(4).standard_normal((2, 37)) * 400
    x[0, :3] = -np.inf
    np.testing.assert_allclose(host(pb.logcumsumexp(pb.tensor(x), 1)), torch.logcumsumexp(torch.tensor(x), 1).numpy(), rtol=1e-12)
    weights = pb.grad(lambda t: pb.logcumsumexp(t)[-1])(pb.tensor(x[1]))
    np.testing.assert_allclose(host(weights), scipy.special.softmax(x[1]), rtol=1e-9, atol=1e-300)
    assert pb.logcumsumexp(pb.ones((3, 0)), 1).shape == (3, 0)


@pytest.mark.parametrize(("axis", "size", "step"), [(0, 2, 1), (1, 3, 1), (2, 2, 3), (1, 4, 2), (2, 0, 1), (-1, 5, 1)])
def test_windows_are_torchs_and_a_view(torch: Any, axis: int, size: int, step: int) -> None:
    x = np.random.default_rng(6).standard_normal((3, 4, 5))
    for dtype in ("float64", "bfloat16", "int8"):
        t = pb.tensor(x).astype(dtype)
        got, wanted = pb.unfold(t, axis, size, step), torch.tensor(x).unfold(axis, size, step).numpy()
        assert str(got.dtype) == dtype
        np.testing.assert_array_equal(host(got), host(pb.tensor(wanted).astype(dtype)))
    ones = pb.grad(lambda t: pb.sum(pb.unfold(t, axis, size, step)))(pb.tensor(x))
    count = np.zeros(x.shape[axis])
    for start in range(0, x.shape[axis] - size + 1, step):
        count[start : start + size] += 1
    np.testing.assert_array_equal(host(pb.moveaxis(ones, axis, -1)), np.broadcast_to(count, np.moveaxis(x, axis, -1).shape))


def test_a_view_of_windows_becomes_stale() -> None:
    p = pb.Parameter(np.arange(5.0))
    windows, turned = pb.unfold(p, 0, 3), pb.rot90(pb.Parameter(np.eye(2)))
    p.assign(p * 2)
    with pytest.raises(pb.StaleValueError):
        windows.numpy()
    assert turned.tolist() == [[0.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize("mode", ["reflect", "symmetric", "edge", "wrap"])
def test_padding_wider_than_the_tensor_is_numpys(mode: str) -> None:
    x = np.arange(12.0).reshape(3, 4)
    for width in (0, 1, 11, (1, 3), ((2, 5), (0, 7))):
        np.testing.assert_array_equal(host(pb.pad(pb.tensor(x), width, mode)), np.pad(x, width, mode))
    other = {"edge": "replicate", "wrap": "circular"}.get(mode, mode)
    np.testing.assert_array_equal(host(pb.pad(pb.tensor(x), 2, other)), np.pad(x, 2, mode))
    assert pb.pad(pb.tensor(1.0), 3, mode).shape == ()


@pytest.mark.parametrize("k", [-4, -2, -1, 0, 1, 3, 5])
def test_diagonals_beyond_the_matrix_are_numpys(k: int) -> None:
    x, cube = np.arange(12.0).reshape(3, 4), np.arange(24.0).reshape(2, 3, 4)
    for got, wanted in (
        (pb.diag(pb.tensor(x[0]), k), np.diag(x[0], k)), (pb.diag(pb.tensor(x), k), np.diag(x, k)),
        (pb.diagonal(pb.tensor(cube), k, 1, 2), np.diagonal(cube, k, 1, 2)),
        (pb.trace(pb.tensor(cube), k, 2, 0), np.trace(cube, k, 2, 0)),
        (pb.rot90(pb.tensor(cube), k, (2, 0)), np.rot90(cube, k, (2, 0))),
        (pb.diag(pb.tensor([True, False]), k), np.diag([True, False], k)),
    ):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(host(got), wanted)


def test_products_take_scalars_and_any_rank() -> None:
    a, b = np.random.default_rng(8).standard_normal((3, 4)), np.random.default_rng(9).standard_normal((2, 3, 4))
    for x, y in ((a, b), (a[0], b), (b, a[0]), (np.float64(2), a), (a, np.float64(3)), (a[0], a[1])):
        np.testing.assert_allclose(host(pb.kron(pb.tensor(x), pb.tensor(y))), np.kron(x, y), rtol=1e-14)
        np.testing.assert_allclose(host(pb.inner(pb.tensor(x), pb.tensor(y))), np.inner(x, y), rtol=1e-13, atol=1e-15)
    for u, v, axes in (
        (a, b, (0, 1)), (a, b, (1, -1)), (a.T, b, np.array([1, 1])), (a, b, np.array([[0, 1], [1, 2]])), (a, b, ([1], [2])),
        (a, b.T, np.int64(1)), (a, b, 0),
    ):
        np.testing.assert_allclose(
            host(pb.tensordot(pb.tensor(u), pb.tensor(v), axes=axes)), np.tensordot(u, v, axes=axes), rtol=1e-13
        )


def test_sums_have_the_dtype_that_was_asked_for() -> None:
    t = pb.tensor([200, 100], dtype="uint8")
    assert (pb.sum(t, dtype="uint8").tolist(), pb.sum(t, dtype="uint8").dtype) == (44, pb.uint8)
    for f in (pb.prod, lambda t, dtype: pb.cumulative_sum(t, dtype=dtype, include_initial=True), pb.nansum, pb.nancumprod):
        assert f(t, dtype="int16").dtype == pb.int16
    assert linalg.trace(pb.ones((2, 2), dtype="int8"), dtype="int8").dtype == pb.int8


@pytest.mark.parametrize("n", [64, 1000, 10**9])
@pytest.mark.parametrize("index_type", [np.int32, np.int64])
def test_gradients_of_every_order_pick_nothing_from_an_empty_batch(n: int, index_type: type) -> None:
    indices = pb.tensor(np.zeros((0, n), index_type))
    x = pb.zeros((0, n))

    def total(x: pb.Tensor) -> pb.Tensor:
        return pb.sum(pb.take_along_axis(x, indices, axis=1) ** 3)

    assert pb.grad(total)(x).shape == (0, n)
    assert pb.grad(lambda x: pb.sum(pb.grad(total)(x) ** 2))(x).shape == (0, n)


@pytest.mark.parametrize("function", [pb.sort, lambda x: pb.topk(x, 2).values, lambda x: pb.median(x, axis=-1)])
def test_gradients_of_ordered_elements_of_an_empty_batch_are_empty(function: Any) -> None:
    x = pb.zeros((0, 1000))
    first = pb.grad(lambda x: pb.sum(function(x) ** 3))
    assert first(x).shape == (0, 1000)
    assert pb.grad(lambda x: pb.sum(first(x) ** 2))(x).shape == (0, 1000)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("low", [1.0, 1, 2.0, np.float32(1)])
def test_clip_is_a_constant_where_its_limits_leave_no_room(dtype: str, low: Any) -> None:
    """x had a quarter of the gradient where it was equal to both limits. Finite differences are 0."""
    x, ones = pb.tensor([0.0, 1.0, 2.0, np.nan], dtype=dtype), pb.ones(4, dtype=dtype)
    for limits in ((low, 1.0), (low * ones, 1.0), (low * ones, ones), (low, ones)):
        f = lambda x, limits=limits: pb.clip(x, *limits)
        for of in (f, pb.capture(f)):
            np.testing.assert_array_equal(of(x).numpy(), [1.0, 1.0, 1.0, np.nan])
            y, pulled = pb.vjp(of, x)
            assert y.dtype == of(x).dtype
            np.testing.assert_array_equal(y.numpy(), [1.0, 1.0, 1.0, np.nan])
            assert pulled(pb.ones_like(y))[0].tolist() == [0.0] * 4
        assert pb.jvp(f, (x,), (ones,))[1].tolist() == [0.0] * 4
        assert pb.vmap(pb.grad(lambda x, low=low: pb.clip(x, low, 1.0)))(x).tolist() == [0.0] * 4


def test_limits_of_clip_share_the_gradient_that_x_does_not_get() -> None:
    x, b = pb.tensor([0.0, 1.0]), pb.ones(2)
    low, high = pb.grad(lambda low, high: pb.sum(pb.clip(x, low, high)), argnums=(0, 1))(b, b)
    assert low.tolist() == high.tolist() == [0.5, 0.5]
