"""Derivatives of spectral functions at equal, nearly equal and zero eigenvalues and singular values, and at all scales.

A derivative is that of the function, as finite differences and closed forms have it, or it is NaN: never another number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import pullback as pb
from captured_step import needs_kernels
from conftest import close, host

L = pb.linalg
RNG = np.random.default_rng(3)
W = RNG.standard_normal((3, 3))
SQUARE = {
    "zero": np.zeros((3, 3)), "identity": np.eye(3), "two equal": np.diag([2.0, 2, 1]), "one zero": np.diag([3.0, 1, 0]),
    "two zeros": np.diag([1.0, 0, 0]), "opposite": np.diag([1.0, -1, 2]), "rotated": np.eye(3) + np.outer([1, 2, 2], [1, 2, 2]),
    "apart": np.diag([1.0, 2, 4]), "ones": np.ones((3, 3)),
}
OBLONG = {name: np.vstack([x, np.zeros((1, 3))]) for name, x in SQUARE.items()}
Values = Callable[[Any], Any]


def of_eigh(f: Values) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        w, v = L.eigh(x)
        return (v * f(w)[..., None, :]) @ v.mT

    return function


def of_svd(f: Values) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        u, s, v = L.svd(x, full_matrices=False)
        return (u * f(s)[..., None, :]) @ v

    return function


WEIGHTS = {"random": W, "ones": np.ones((3, 3)), "identity": np.eye(3), "positions": np.arange(9.0).reshape(3, 3)}


def weighted(f: Callable[[Any], Any], weights: Any) -> Callable[[Any], Any]:
    """Returns the sum of the products of the matrix that f returns with weights, repeated for further rows."""
    return lambda x: pb.sum(f(x) * pb.tensor(np.vstack([weights, weights])[: x.shape[-2]], dtype=x.dtype))


def derivatives(f: Callable[[Any], Any], x: Any, t: Any) -> dict[str, Any]:
    """Returns the derivative in direction t, in both modes, and the derivatives of those in all combinations of modes."""
    first = {"reverse": lambda x: pb.sum(pb.grad(f)(x) * t), "forward": lambda x: pb.jvp(f, (x,), (t,))[1]}
    found = {name: host(g(x)) for name, g in first.items()}
    for outer, inner in itertools.product(first, first):
        found[f"{outer} of {inner}"] = host(
            pb.sum(pb.grad(first[inner])(x) * t) if outer == "reverse" else pb.jvp(first[inner], (x,), (t,))[1]
        )
    return found


def right_or_nan(found: dict[str, Any], first: Any, second: Any, tolerance: float) -> None:
    for name, value in found.items():
        wanted = second if " of " in name else first
        assert np.isnan(value) or abs(value - wanted) <= tolerance * (1 + abs(wanted)), (name, value, wanted)


T = {"random": RNG.standard_normal((4, 3)), "diagonal": np.vstack([np.diag([1.0, 2, 3]), np.zeros(3)])}
DTYPES = {"float32": 1e-3, "float64": 1e-8}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", SQUARE)
def test_the_product_of_its_factors_has_the_derivative_of_the_matrix_or_nan(name: str, weights: str, dtype: str) -> None:
    w = np.vstack([WEIGHTS[weights]] * 2)
    for (f, points), t in itertools.product(((of_svd, SQUARE), (of_svd, OBLONG), (of_eigh, SQUARE)), T.values()):
        m = len(points[name])
        turned = (w[:m] + w[:m].T) / 2 if f is of_eigh else w[:m]
        found = derivatives(weighted(f(lambda s: s), WEIGHTS[weights]), *[pb.tensor(x, dtype=dtype) for x in (points[name], t[:m])])
        right_or_nan(found, np.sum(turned * t[:m]), 0.0, DTYPES[dtype])


SMOOTH: dict[str, tuple[Values, Any]] = {
    "log": (pb.log, lambda x: scipy.linalg.logm(x)), "shifted": (lambda w: w - 1, lambda x: x - np.eye(3)),
    "square": (pb.square, lambda x: x @ x), "exp": (pb.exp, scipy.linalg.expm),
}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("function", SMOOTH)
def test_functions_of_matrices_by_eigh_have_their_derivative_or_nan(function: str, weights: str) -> None:
    f, exact = SMOOTH[function]
    for name, x in SQUARE.items():
        if function == "log" and np.linalg.eigvalsh(x)[0] < 0.5:
            continue
        w, t = WEIGHTS[weights], (T["random"][:3] + T["random"][:3].T) / 2
        values = np.array([np.sum(exact(x + k * 3e-3 * t) * (w + w.T) / 2) for k in range(-2, 3)])
        first, second = values @ [1, -8, 0, 8, -1] / (12 * 3e-3), values @ [-1, 16, -30, 16, -1] / (12 * 9e-6)
        found = derivatives(weighted(of_eigh(f), w), pb.tensor(x), pb.tensor(t))
        right_or_nan(found, first, second, 1e-5)
        if name == "apart":
            assert all(np.isfinite(list(found.values())))


# ---- functions of the values alone

SUMS: dict[str, tuple[Values, Callable[[Any], Any], Callable[[Any, Any], Any]]] = {  # f, its gradient, its Hessian times t
    "sum": (lambda s: pb.sum(s), lambda x: np.eye(3), lambda x, t: 0 * t),
    "sum of squares": (lambda s: pb.sum(s**2), lambda x: 2 * x, lambda x, t: 2 * t),
    "distance from 1": (lambda s: pb.sum((s - 1) ** 2), lambda x: 2 * (x - np.eye(3)), lambda x, t: 2 * t),
    "logarithm": (
        lambda s: pb.sum(pb.log(s)), np.linalg.inv, lambda x, t: -np.linalg.inv(x) @ t @ np.linalg.inv(x)
    ),
}


@pytest.mark.parametrize("values", ["eigvalsh", "eigh", "svdvals", "svd"])
@pytest.mark.parametrize("function", SUMS)
def test_sums_of_functions_of_the_values_are_right_at_equal_values(function: str, values: str) -> None:
    """Their second derivatives are right, or NaN where the rules would have to know the function."""
    f, gradient, hessian = SUMS[function]
    of = {"eigvalsh": L.eigvalsh, "eigh": lambda x: L.eigh(x)[0], "svdvals": L.svdvals, "svd": lambda x: L.svd(x)[1]}[values]
    for name, x in SQUARE.items():
        least = np.linalg.eigvalsh(x)[0]
        if least < (0.5 if function == "logarithm" or (function != "sum of squares" and "svd" in values) else -9):
            continue
        t = (T["random"][:3] + T["random"][:3].T) / 2
        close(pb.grad(lambda x: f(of(x)))(pb.tensor(x)), gradient(x), 1e-9)
        found = derivatives(lambda x: f(of(x)), pb.tensor(x), pb.tensor(t))
        first = np.sum(gradient(x) * t)
        assert abs(found["forward"] - first) < 1e-9
        right_or_nan(found, first, np.sum(hessian(x, t) * t), 1e-8)
        if name == "apart":
            assert all(np.isfinite(list(found.values())))


def test_the_frobenius_norm_of_oblong_matrices_by_their_singular_values() -> None:
    t = pb.tensor(T["random"])
    for x in OBLONG.values():
        for of in (L.svdvals, lambda x: L.svd(x)[1], lambda x: L.svd(x, full_matrices=False)[1]):
            found = derivatives(lambda x, of=of: pb.sum(of(x) ** 2), pb.tensor(x), t)
            right_or_nan(found, 2 * np.sum(x * T["random"]), 2 * np.sum(T["random"] ** 2), 1e-8)
            assert np.isfinite([found["reverse"], found["forward"]]).all()


def test_vectors_without_a_cotangent_may_belong_to_equal_values() -> None:
    """So the leading vectors have a derivative, if only other values are equal, and the leading value has two."""
    top = lambda x: L.eigh(x).eigenvectors[:, -1]
    x = np.diag([1.0, 1, 1, 3])
    pb.check_gradients(lambda x: pb.outer(top(x), top(x)), [x], order=1)
    pb.check_gradients(lambda x: L.eigh(x).eigenvalues[-1], [x], order=2)
    left = lambda x: L.svd(x, full_matrices=False)[0][:, 0]
    deficient = np.outer([3.0, 1, 2, 1], [1.0, 2, 2])
    pb.check_gradients(lambda x: pb.outer(left(x), left(x)), [deficient], order=1)
    pb.check_gradients(lambda x: L.svdvals(x)[0], [deficient], order=2)


@pytest.mark.parametrize("gap", [0.0, 1e-17, 4e-16, 1e-15])
def test_vectors_of_values_that_are_equal_up_to_rounding_have_no_derivative(gap: float) -> None:
    x = np.diag([1.0, 1 + gap, 3])
    for f in (lambda x: L.eigh(x)[1], lambda x: L.svd(x)[0], lambda x: L.svd(x)[2]):
        assert np.isnan(host(pb.grad(lambda x, f=f: pb.sum(f(x) * W))(pb.tensor(x)))).all()
        moved = host(pb.jvp(f, (pb.tensor(x),), (pb.tensor(W),))[1])
        assert np.isnan(moved).any()


@pytest.mark.parametrize(("dtype", "exponents"), [("float32", (-30, -20, -5, 5, 20, 33)), ("float64", (-250, -170, 160, 250))])
@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (3, 3)])
def test_gradients_of_singular_vectors_are_right_at_all_scales(shape: tuple[int, int], dtype: str, exponents: Any) -> None:
    x, weights = RNG.standard_normal(shape), RNG.standard_normal(shape)

    def f(x: Any) -> Any:
        u, _, v = L.svd(x, full_matrices=False)
        return pb.sum((u @ v) * pb.tensor(weights, dtype=x.dtype))

    wanted = host(pb.grad(f)(pb.tensor(x)))
    moved = host(pb.jvp(f, (pb.tensor(x),), (pb.tensor(weights),))[1])
    eps = np.finfo(dtype).eps
    for e in exponents:
        scaled = pb.tensor((x * 10.0**e).astype(dtype))
        found = host(pb.grad(f)(scaled)).astype(float) * 10.0**e
        assert np.abs(found - wanted).max() < 100 * eps * np.abs(wanted).max(), e
        tangent = pb.tensor((weights * 10.0**e).astype(dtype))
        assert abs(host(pb.jvp(f, (scaled,), (tangent,))[1]) - moved) < 100 * eps * np.abs(wanted).sum(), e


@pytest.mark.parametrize(
    ("dtype", "exponents"), [("float32", (-18, -13, -12, 0, 11, 12, 13, 18)), ("float64", (-150, -90, 90, 150))]
)
@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (3, 3)])
def test_gradients_of_least_squares_are_right_at_all_scales(shape: tuple[int, int], dtype: str, exponents: Any) -> None:
    m, n = shape
    x, w, b = RNG.standard_normal(shape), RNG.standard_normal((n, m)), RNG.standard_normal(m)
    functions = {
        "pinv": lambda x: pb.sum(L.pinv(x) * pb.tensor(w, dtype=x.dtype)),
        "lstsq": lambda x: pb.sum(L.lstsq(x, pb.tensor(b, dtype=x.dtype)).solution * pb.tensor(w[:, 0], dtype=x.dtype)),
    }
    for (name, f), e in itertools.product(functions.items(), exponents):
        wanted, scaled = host(pb.grad(f)(pb.tensor(x))), (x * 10.0**e).astype(dtype)
        found = host(pb.grad(f)(pb.tensor(scaled))).astype(float) * 10.0**e * 10.0**e
        lost = float(np.finfo(dtype).tiny) * 10.0**e * 10.0**e  # denormal numbers count as zero
        assert np.abs(found - wanted).max() < 300 * np.finfo(dtype).eps * np.abs(wanted).max() + lost, (name, e)
        moved = host(pb.jvp(f, (pb.tensor(scaled),), (pb.tensor(scaled),))[1]) * 10.0**e
        assert abs(moved - np.sum(wanted * x)) < 300 * np.finfo(dtype).eps * np.abs(wanted * x).sum(), (name, e)


def test_pseudo_inverses_of_zero_and_of_no_elements_have_gradients() -> None:
    for shape in ((2, 3), (0, 3), (3, 0), (2, 0, 3), (2, 2, 3)):
        assert not host(pb.grad(lambda x: pb.sum(L.pinv(x)))(pb.zeros(shape))).any()


def test_a_batch_spoils_only_the_matrix_with_equal_values() -> None:
    x = np.stack([np.eye(3), np.diag([1.0, 2, 4])])
    for f in (of_eigh(pb.log), of_svd(pb.log)):
        g = pb.grad(weighted(f, W))
        for found in (host(pb.grad(lambda x, f=f: pb.sum(f(x) * W))(pb.tensor(x))), host(pb.vmap(g)(pb.tensor(x)))):
            assert np.isnan(found[0]).all()
            close(found[1], host(g(pb.tensor(x[1]))), 1e-12)


# ---- matrix_function

FUNCTIONS: dict[str, tuple[Values, Callable[[Any], Any]]] = {
    "exp": (pb.exp, scipy.linalg.expm), "log": (pb.log, scipy.linalg.logm), "sqrt": (pb.sqrt, scipy.linalg.sqrtm),
    "reciprocal": (lambda w: 1 / w, np.linalg.inv), "cube": (lambda w: w**3, lambda x: x @ x @ x),
    "cos": (pb.cos, scipy.linalg.cosm), "constant": (lambda w: pb.ones_like(w), lambda x: np.eye(len(x))),
}
GAPS = [0.0, 1e-16, 1e-12, 1e-9, 1e-7, 1e-5, 1e-3, 0.1]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_matrix_functions_and_their_derivatives(name: str) -> None:
    f, exact = FUNCTIONS[name]
    s = W @ W.T + np.eye(3)
    close(L.matrix_function(s, f), exact(s), 1e-9)
    for x in (s, np.eye(3), np.diag([1.0, 1, 2]), 2 * np.eye(2)):
        pb.check_gradients(lambda x: L.matrix_function(x, f), [x], order=2)


@pytest.mark.parametrize("gap", GAPS)
def test_divided_differences_of_close_eigenvalues_are_accurate(gap: float) -> None:
    """By mpmath: the derivatives of exp in direction t at diag(w), by the block-triangular matrix of Mathias (1996)."""
    mpmath = pytest.importorskip("mpmath", reason="mpmath is not installed")
    t = (W + W.T) / 2
    for centre, name in itertools.product((0.0, 1.0, 5.0), ("exp", "cos", "log")):
        if name == "log" and not centre:
            continue
        w = np.array([centre, centre + gap, centre + 2 * gap])
        with mpmath.workdps(60):
            f = {"exp": mpmath.expm, "cos": mpmath.cosm, "log": mpmath.logm}[name]
            x, d = mpmath.diag([mpmath.mpf(v) for v in w]), mpmath.matrix(t.tolist())
            if name == "log":  # a power series, because logm of mpmath needs eigenvalues apart
                first = np.array([[float(_log_slope(a, b) * d[i, j]) for j, b in enumerate(w)] for i, a in enumerate(w)])
            else:
                h = mpmath.mpf(10) ** -20
                first = np.array(((f(x + h * d) - f(x - h * d)) / (2 * h)).tolist(), dtype=float)
        found = host(pb.jvp(lambda x, n=name: L.matrix_function(x, getattr(pb, n)), (pb.tensor(np.diag(w)),), (pb.tensor(t),))[1])
        assert np.abs(found - first).max() < 2e-11 * max(1, np.abs(first).max()), (centre, name)


def _log_slope(a: float, b: float) -> Any:
    import mpmath

    x, y = mpmath.mpf(a), mpmath.mpf(b)
    return 1 / x if x == y else (mpmath.log(x) - mpmath.log(y)) / (x - y)


def test_third_derivatives_of_a_matrix_function_at_equal_eigenvalues() -> None:
    """The third derivative of the trace of x^5 in direction t at the identity is 60 tr t^3."""
    t = pb.tensor(W + W.T)
    f = lambda h: pb.linalg.trace(L.matrix_function(pb.eye(3, dtype="float64") + h * t, lambda w: w**5))
    third = pb.grad(pb.grad(pb.grad(f)))(pb.tensor(0.0, dtype="float64"))
    close(third, 60 * np.trace(np.linalg.matrix_power(W + W.T, 3)), 1e-9)


def test_a_kink_between_two_eigenvalues_is_not_missed() -> None:
    x = np.diag([-1.0, 1, 1, -3])
    pb.check_gradients(lambda x: L.matrix_function(x, pb.relu), [x], order=2)
    pb.check_gradients(lambda x: L.matrix_function(x, pb.relu, derivative=lambda w: (w > 0).astype(w.dtype)), [x], order=1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_matrix_functions_keep_the_dtype_and_take_batches(dtype: str) -> None:
    x = pb.tensor(np.stack([np.eye(3), W @ W.T + np.eye(3)]), dtype=dtype)
    y = L.matrix_function(x, pb.sqrt)
    assert y.dtype == x.dtype
    assert L.matrix_function(pb.zeros((0, 0)), pb.exp).shape == (0, 0)
    assert L.matrix_function(pb.zeros((0, 2, 2)), pb.exp).shape == (0, 2, 2)
    tolerance = {"float16": 5e-3, "bfloat16": 4e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    f = lambda x: pb.sum(L.matrix_function(x, pb.log) * pb.tensor(W, dtype=x.dtype))
    for found in (pb.grad(f)(x), pb.vmap(pb.grad(f))(x), pb.grad(lambda x: pb.sum(pb.vmap(f)(x)))(x)):
        close(found[0].astype("float64"), (W + W.T) / 2, tolerance)
        close(found[1].astype("float64"), host(pb.grad(f)(x[1].astype("float64"))), 10 * tolerance)


@needs_kernels
def test_the_gradient_of_a_matrix_function_can_be_captured() -> None:
    g = pb.grad(lambda x: pb.sum(L.matrix_function(x, pb.log) * W))
    step = pb.capture(g)
    for x in (np.diag([1.0, 2, 4]), np.eye(3), W @ W.T + np.eye(3)):
        assert (host(step(pb.tensor(x))) == host(g(pb.tensor(x)))).all()
    assert step.stats().replays == 2


def test_a_matrix_function_refuses_what_it_would_lose() -> None:
    x, power = pb.tensor(np.eye(3)), pb.Parameter(2.0, name="power", dtype="float64")
    with pytest.raises(pb.TapeError, match=r'matrix_function: f uses Parameter "power".*stop_gradient'), pb.GradientTape():
        L.matrix_function(x, lambda w: w**power)
    with pytest.raises(pb.ShapeError, match=r"matrix_function: f turned eigenvalues of shape \(3,\) into a result of shape \(\)"):
        L.matrix_function(x, pb.sum)
    with pytest.raises(pb.ShapeError, match=r"matrix_function.*square"):
        L.matrix_function(pb.ones((2, 3)), pb.exp)
    with pytest.raises(pb.LinAlgError, match="NaN or infinite"):
        L.matrix_function(x * np.nan, pb.exp)


def test_vectors_of_equal_values_have_no_derivative_in_forward_mode_either() -> None:
    flipped = pb.tensor([[-1.0, 0.0], [0.0, 1.0]], dtype="float64")  # in this direction the two singular vectors change places
    assert np.isnan(host(pb.jvp(lambda a: pb.linalg.svd(a)[0], (flipped,), (pb.ones_like(flipped),))[1])).any()
    moved = pb.tensor([[1.0, 0.0], [0.0, -1.0]], dtype="float64")
    assert np.isnan(host(pb.jvp(lambda a: pb.linalg.eigh(a)[1], (pb.eye(2, dtype="float64"),), (moved,))[1])).any()
    for f in (lambda a: pb.linalg.svd(a)[0], lambda a: pb.linalg.eigh(a)[1]):
        assert not host(pb.jvp(f, (flipped,), (pb.zeros_like(flipped),))[1]).any()


def test_a_function_of_no_matrices_has_no_gradient() -> None:
    assert pb.grad(lambda a: pb.sum(pb.linalg.matrix_function(a, pb.exp)))(pb.zeros((0, 2, 2))).shape == (0, 2, 2)


def test_the_derivative_of_pinv_and_lstsq_at_zero_is_zero_in_both_modes() -> None:
    for dtype in ("float32", "float64"):
        x, t, b = pb.zeros((3, 2), dtype=dtype), pb.ones((3, 2), dtype=dtype), pb.ones((3,), dtype=dtype)
        for f in (L.pinv, lambda a, b=b: L.lstsq(a, b).solution):
            assert not host(pb.jvp(f, (x,), (t,))[1]).any()
            assert not host(pb.grad(lambda x, f=f: pb.sum(f(x)))(x)).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(4, 3), (3, 3), (3, 5)])
def test_derivatives_of_qr_of_numerically_singular_matrices_are_nan(shape: tuple[int, int], dtype: str) -> None:
    """They were of the size of 1 / ε and finite."""
    x = np.random.default_rng(0).standard_normal(shape)
    x[:, 2] = x[:, 0] + x[:, 1]
    a = pb.tensor(np.stack([x, x + np.eye(*shape)]).astype(dtype))
    f = lambda a: pb.sum(pb.sin(L.qr(a).Q)) + pb.sum(L.qr(a).R)
    g = lambda a: pb.sum(pb.grad(f)(a) * pb.ones_like(a))
    for found in (pb.grad(f)(a), pb.grad(g)(a), pb.jvp(pb.grad(f), (a,), (pb.ones_like(a),))[1]):
        assert np.isnan(host(found)[0]).any()
        assert np.isfinite(host(found)[1]).all()
    assert np.isnan(host(pb.jvp(f, (a,), (pb.ones_like(a),))[1]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_second_derivatives_of_singular_vectors_are_right_at_every_scale(dtype: str) -> None:
    x, t, w = np.random.default_rng(2).standard_normal((3, 4, 3))
    wanted = None
    for scale in (1.0, 1e-8, 1e4, 1e8, 1e12):

        def f(a: Any) -> Any:
            u, s, v = L.svd(a, full_matrices=False)
            return pb.sum(pb.sin(u) * pb.tensor(w, dtype=a.dtype)) + pb.sum(v[0] * s / pb.stop_gradient(s[0]))

        a, d = [pb.tensor((scale * y).astype(dtype)) for y in (x, t)]
        found = host(pb.grad(lambda a, d=d: pb.sum(pb.grad(f)(a) * d))(a)) * scale
        wanted = host(pb.jvp(pb.grad(f), (pb.tensor(x),), (pb.tensor(t),))[1]) if wanted is None else wanted
        np.testing.assert_allclose(found, wanted, rtol=0, atol=(1e-4 if dtype == "float32" else 1e-12) * abs(wanted).max())
