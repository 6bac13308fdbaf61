"""Sums in log space and softmax have their limits at infinities, NaN where there is none, and 0 for a cotangent of 0."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn

INF, FAR = np.inf, 1e4


def log_sum(x: Any) -> Any:
    return x.max() + np.log(np.exp(x - x.max()).sum())


def log_softmax(x: Any) -> Any:
    z = x - x.max()
    return z - log_sum(z)


def softmax_jacobian(x: Any) -> Any:
    p = np.exp(log_softmax(x))
    return np.diag(p) - np.outer(p, p)


def log_softmax_jacobian(x: Any) -> Any:
    return np.eye(len(x)) - np.exp(log_softmax(x))


def in_segments(f: Any, x: Any) -> Any:
    rows = x.size // x.shape[-1]
    y = f(pb.reshape(x, -1), np.repeat(np.arange(rows), x.shape[-1]), rows)
    return pb.reshape(y, x.shape[:-1])


# name: the function, and its value and its first derivative at finite numbers
FUNCTIONS: dict[str, tuple[Any, Any, Any]] = {
    "logsumexp": (lambda x: pb.logsumexp(x, axis=-1), log_sum, lambda x: np.exp(log_softmax(x))),
    "logaddexp": (lambda x: pb.logaddexp(x[..., 0], x[..., 1]), log_sum, lambda x: np.exp(log_softmax(x))),
    "logcumsumexp": (lambda x: pb.logcumsumexp(x, axis=-1)[..., -1], log_sum, lambda x: np.exp(log_softmax(x))),
    "segment_logsumexp": (lambda x: in_segments(pb.segment_logsumexp, x), log_sum, lambda x: np.exp(log_softmax(x))),
    "softmax": (pb.softmax, lambda x: np.exp(log_softmax(x)), softmax_jacobian),
    "log_softmax": (pb.log_softmax, log_softmax, log_softmax_jacobian),
}
for _label in range(2):
    FUNCTIONS[f"cross entropy of class {_label}"] = (
        lambda x, k=_label: nn.cross_entropy(pb.reshape(x, (-1, x.shape[-1])), pb.full((x.size // x.shape[-1],), k, dtype="int64"),
                                             reduction="none").reshape(x.shape[:-1]),
        lambda x, k=_label: -log_softmax(x)[k],
        lambda x, k=_label: -log_softmax_jacobian(x)[k],
    )
SUMS = ("logsumexp", "logaddexp", "logcumsumexp", "segment_logsumexp")
POINTS = [x for n in (2, 3) for x in itertools.product((-INF, 0.0, 1.0, INF), repeat=n) if not np.isfinite(x).all()]


def limit(f: Any, x: Any) -> Any:
    """Returns f where numbers far away stand for infinities, and NaN wherever it depends on the way to infinity."""
    x, found = np.array(x), []
    at = np.flatnonzero(np.isinf(x))
    for sizes in itertools.product((1.0, 1.5, 2.0), repeat=len(at)):
        z = x.copy()
        z[at] = np.sign(x[at]) * FAR * np.array(sizes)
        y = np.asarray(f(z))
        found.append(np.where(abs(y) > FAR / 4, np.sign(y) * INF, y))
    same = np.all([(y == found[0]) | (abs(y - found[0]) < 1e-12) for y in found], axis=0)
    return np.where(same, found[0], np.nan)


def slope(name: str, x: Any) -> Any:
    """Returns the derivative that docs/derivatives.md promises: the limit, but 0 for a sum of nothing."""
    wanted = limit(FUNCTIONS[name][2], x)
    return np.zeros_like(wanted) if name in SUMS and set(x) == {-INF} else wanted


def allowed(name: str, got: Any, wanted: Any) -> Any:
    """Returns what is wanted. In logcumsumexp all elements may be NaN if one is, because it adds in pairs."""
    return np.where(np.isnan(got) & np.isnan(wanted).any(), np.nan, wanted) if name == "logcumsumexp" else wanted


def points(name: str) -> list[Any]:
    return [x for x in POINTS if name != "logaddexp" or len(x) == 2]


def numbers(x: Any) -> Any:
    return host(x.astype("float64"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_limits(name: str, dtype: str) -> None:
    f, value, _ = FUNCTIONS[name]
    tolerance: Any = {"atol": {"float16": 1e-3, "bfloat16": 1e-2}.get(dtype, 1e-6)}
    for x in points(name):
        wanted, about = slope(name, x), f"{name} at {x}"
        for rows in (1, 2, 70):  # a row by itself, and rows side by side in SIMD lanes
            t = pb.tensor(np.tile(x, (rows, 1)), dtype=dtype)
            for mode in (lambda f: f, pb.capture, pb.vmap):
                got = numbers(mode(f)(t))
                np.testing.assert_allclose(got, np.broadcast_to(limit(value, x), got.shape), **tolerance, err_msg=about)
                if wanted.ndim == 1:
                    by = mode(pb.grad(f)) if mode is pb.vmap else mode(pb.grad(lambda t: pb.sum(f(t))))
                    got = numbers(by(t))
                    here = allowed(name, got, np.broadcast_to(wanted, got.shape))
                    np.testing.assert_allclose(got, here, **tolerance, err_msg=about)
            nothing = pb.grad(lambda t: pb.sum(pb.where(False, f(t), 0.0)))(t)
            assert not np.any(numbers(nothing)), about


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_mode_has_the_limits_of_the_derivatives(name: str) -> None:
    f = FUNCTIONS[name][0]
    for x in points(name):
        wanted, t = slope(name, x), pb.tensor(x, dtype="float64")
        along = [numbers(pb.jvp(f, (t,), (pb.tensor(np.eye(len(x))[k]),))[1]) for k in range(len(x))]
        for got in (pb.jacobian(f, mode="reverse")(t), pb.jacobian(f, mode="forward")(t), pb.tensor(np.stack(along, axis=-1))):
            _close_where_defined(numbers(got), allowed(name, numbers(got), wanted), f"{name} at {x}")


def _close_where_defined(got: Any, wanted: Any, about: str) -> None:
    """A row or a column of a Jacobian that has a NaN may be NaN elsewhere, too."""
    undefined = np.isnan(wanted)
    assert np.isnan(got[undefined]).all(), about
    either = undefined if wanted.ndim == 1 else undefined.any(axis=0) | undefined.any(axis=1, keepdims=True)
    np.testing.assert_allclose(got[~either], wanted[~either], atol=1e-12, err_msg=about)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives_are_limits(name: str) -> None:
    f = FUNCTIONS[name][0]
    for x in points(name):
        if np.isnan(slope(name, x)).any():
            continue
        t = pb.tensor(x, dtype="float64")
        flat = not (name in SUMS and set(x) == {-INF})
        cotangent = pb.tensor(np.arange(1.0, len(x) + 1)) if f(t).ndim else 1.0
        total = lambda z, c=cotangent: pb.sum(pb.where(pb.isfinite(f(z)), f(z), 0.0) * c)
        wanted = limit(softmax_jacobian, x) if flat and f(t).ndim == 0 else None
        for found in (pb.hessian(total)(t), pb.jacobian(pb.grad(total), mode="reverse")(t), pb.capture(pb.hessian(total))(t)):
            got = numbers(found)
            assert np.isfinite(got).all(), f"{name} at {x}"
            if wanted is not None and np.isfinite(float(f(t))):
                np.testing.assert_allclose(got, wanted, atol=1e-12, err_msg=f"{name} at {x}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [40, 300, 5000])
def test_long_rows(n: int, dtype: str) -> None:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((6, n)).astype(dtype)
    x[1, n // 2], x[2, :2], x[3], x[4, n // 2] = INF, INF, -INF, np.nan
    t = pb.tensor(x)
    p, size = numbers(pb.softmax(t)), numbers(pb.logsumexp(t, axis=1))
    alone = np.eye(n)[n // 2]
    np.testing.assert_array_equal(p[1], alone)
    np.testing.assert_array_equal(p[2], [np.nan, np.nan, *[0] * (n - 2)])
    assert np.isnan(p[3:5]).all()
    np.testing.assert_allclose(p[[0, 5]].sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(size[1:5], [INF, INF, -INF, np.nan])
    np.testing.assert_array_equal(numbers(pb.log_softmax(t))[1], np.where(alone, 0, -INF))
    gradient = numbers(pb.grad(lambda t: pb.sum(pb.logsumexp(t, axis=1)))(t))
    np.testing.assert_array_equal(gradient[1:5], [alone, p[2], [0] * n, [np.nan] * n])
    np.testing.assert_allclose(gradient[[0, 5]], p[[0, 5]], rtol=1e-4)


@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("n", [40, 300, 5000])
def test_losses_of_long_rows(n: int, smoothing: float) -> None:
    rng = np.random.default_rng(n)
    x, labels = rng.standard_normal((6, n)), rng.integers(0, n, 6)
    x[1, labels[1]], x[2, :2], x[3], x[4, labels[4]] = INF, INF, -INF, np.nan
    f = lambda t: nn.cross_entropy(t, pb.tensor(labels), reduction="none", label_smoothing=smoothing)
    used = lambda t: pb.sum(pb.where(pb.tensor([True, True, False, False, False, True]), f(t), 0.0))
    t, alone = pb.tensor(x), np.eye(n)[labels[1]]
    by = numbers(pb.grad(lambda t: pb.sum(f(t)))(t))
    assert float(f(t)[1]) == (INF if smoothing else 0)
    np.testing.assert_allclose(by[1], alone - (alone * (1 - smoothing) + smoothing / n), atol=1e-7)
    for mode in (lambda f: f, pb.capture):
        got = numbers(mode(pb.grad(used))(t))
        np.testing.assert_array_equal(got[2:5], 0)
        np.testing.assert_array_equal(got[[0, 1, 5]], by[[0, 1, 5]])


def test_the_rows_of_a_matrix_do_not_see_each_other() -> None:
    """A row between rows with infinities has the bits that it has by itself."""
    rng = np.random.default_rng(0)
    for n, dtype in itertools.product((2, 3, 17, 32, 33, 1000), ("float32", "float64")):
        x = (3 * rng.standard_normal((40, n))).astype(dtype)
        mixed = x.copy()
        mixed[::3, 0], mixed[1::3] = INF, -INF
        for f in (pb.softmax, pb.log_softmax, lambda t: pb.logsumexp(t, axis=1, keepdims=True),
                  lambda t: nn.cross_entropy(t, pb.zeros((len(t),), dtype="int64"), reduction="none")):
            for g in (f, pb.grad(lambda t, f=f: pb.sum(pb.where(pb.isfinite(f(t)), f(t), 0.0)))):
                alike = host(g(pb.tensor(x)))[2::3]
                assert host(g(pb.tensor(mixed)))[2::3].tobytes() == alike.tobytes(), (n, dtype)


def test_minus_infinity_alone_is_a_sum_of_nothing() -> None:
    x = pb.tensor([-INF])
    assert float(pb.grad(pb.logsumexp)(x)) == 0
    assert np.isnan(float(pb.softmax(x)))


def test_softmax_of_segments() -> None:
    x = pb.tensor([0.0, INF, 1.0, INF, INF, 2.0, -INF, -INF, np.nan, 3.0], dtype="float64")
    ids = pb.tensor([0, 0, 0, 1, 1, 1, 2, 2, 3, 3])
    undefined = [np.nan] * 7
    np.testing.assert_array_equal(numbers(pb.segment_softmax(x, ids, 4)), [0, 1, 0, *undefined])
    for weights in (np.arange(10.0), np.eye(10)[1]):
        f = lambda x, w=weights: pb.sum(pb.where(ids == 0, pb.segment_softmax(x, ids, 4) * w, 0.0))
        for found in (pb.grad(f)(x), pb.hessian(f)(x), pb.capture(pb.grad(f))(x)):
            np.testing.assert_array_equal(numbers(found), 0)
    gradient = numbers(pb.grad(lambda x: pb.sum(pb.segment_softmax(x, ids, 4) * np.arange(10.0)))(x))
    assert np.isnan(gradient[5:]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_running_log_sums_of_sure_rows_have_all_digits(dtype: str) -> None:
    """What small elements add to a large one was rounded at the size of their partial sums."""
    rng = np.random.default_rng(0)
    for place in (0, 25, 50):
        x = np.insert(-rng.uniform(5, 20, 50), place, 0.0).astype(dtype)
        wide = x.astype(np.longdouble)
        top = np.maximum.accumulate(wide)
        others = [np.exp(np.delete(wide[: k + 1], np.argmax(wide[: k + 1])) - top[k]).sum() for k in range(51)]
        wanted = top + np.log1p(np.array(others))
        found = host(pb.logcumsumexp(pb.tensor(x)))
        np.testing.assert_allclose(found, wanted.astype(np.float64), rtol=4 * np.finfo(dtype).eps)
        with pb.GradientTape() as tape:
            t = pb.tensor(x)
            tape.watch(t)
            y = pb.logcumsumexp(t)
            last = y[-1]
        np.testing.assert_array_equal(host(y), found)  # the same bits where it is differentiated
        np.testing.assert_allclose(host(tape.gradient(last, t)), np.exp(wide - wanted[-1]).astype(np.float64), rtol=1e-5)


@pytest.mark.parametrize("ord", [2, 3, 0.5, 4])
def test_a_norm_that_is_infinite_has_no_finite_derivative(ord: float) -> None:
    """That of the infinite element was 0, and is 1 in the limit."""
    x, t = pb.tensor([1.0, INF, 2.0]), pb.ones((3,))
    f = lambda x: pb.linalg.vector_norm(x, ord=ord)
    assert np.isnan(host(pb.grad(f)(x))[1])
    assert np.isnan(host(pb.jvp(f, (x,), (t,))[1]))


def test_rms_norm_of_numbers_whose_squares_overflow_or_vanish_is_right() -> None:
    """It was 0 for large numbers, and infinite for small ones without eps."""
    f = lambda x: nn.functional.rms_norm(x, eps=0.0)
    slope = pb.grad(lambda x: pb.sum(pb.sin(f(x))))
    second = lambda x: pb.jvp(slope, (x,), (pb.ones_like(x) * pb.max(x),))[1]
    x = np.random.default_rng(0).standard_normal((3, 70))
    for scale in (1e-30, 1e-20, 1e-18, 1.0, 1e18, 1e19, 1e20, 1e33):
        given = pb.tensor((scale * x).astype("float32"))
        wanted = x / np.sqrt((x * x).mean(-1, keepdims=True))
        np.testing.assert_allclose(host(f(given)), wanted, rtol=1e-5)
        for slopes, exact in ((slope(given), slope(pb.tensor(x))), (second(given), second(pb.tensor(x)))):
            assert np.abs(host(slopes).astype(float) * scale - host(exact)).max() < 1e-4


def test_the_rms_norm_of_a_row_with_an_infinity_has_no_finite_derivative() -> None:
    x, t = pb.tensor([1.0, INF, 2.0]), pb.ones((3,))
    assert np.isnan(host(nn.functional.rms_norm(x))[1])
    assert np.isnan(host(pb.jvp(nn.functional.rms_norm, (x,), (t,))[1])[1])
    assert np.isnan(host(pb.grad(lambda x: pb.sum(nn.functional.rms_norm(x)))(x))[1])
