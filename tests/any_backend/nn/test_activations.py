"""Activations: PyTorch's values and gradients, at kinks and infinities too, second derivatives, half precision, and layers."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import agrees_with_torch, host, normal
from pullback import nn
from pullback.nn import functional as F

# (name, options)
CASES = [
    ("relu6", {}), ("hardtanh", {}), ("hardtanh", {"min_val": -0.4, "max_val": 1.7}), ("hardsigmoid", {}), ("hardswish", {}),
    ("mish", {}), ("selu", {}), ("celu", {}), ("celu", {"alpha": 0.5}), ("softsign", {}),
    ("softshrink", {}), ("softshrink", {"lambd": 1.2}), ("hardshrink", {}), ("hardshrink", {"lambd": 0.0}), ("tanhshrink", {}),
    ("threshold", {"threshold": 0.3, "value": -5.0}), ("elu", {"alpha": 0.7}), ("softplus", {"beta": 2.0}),
]
EACH = pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{name} {list(options.values())}" for name, options in CASES])
KINKS = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 6.0, 0.3, 1.2, -1.2, -0.4, 1.7)
# PyTorch's derivative of hardswish at 3 is that of the left side, 1.5, and pullback's that of the right side.
OTHER_SIDE = {"hardswish": (3.0, -3.0)}


@EACH
def test_values_and_gradients_are_torchs(torch: Any, name: str, options: Any) -> None:
    theirs = getattr(torch.nn.functional, name)
    if name == "hardsigmoid":  # the slope of PyTorch's is 1/6 in float32
        theirs = lambda t: torch.clamp(t / 6 + 0.5, 0, 1).where((t > -3) & (t < 3), (t > 0).double())
    at = [x for x in KINKS if x not in OTHER_SIDE.get(name, ())]
    for x in (normal(3, 5) * 3, np.array(at), np.array([1e-9, -1e-9, 30.0, -30.0, 100.0, -100.0])):
        agrees_with_torch(torch, lambda t: getattr(F, name)(t, **options), lambda t: theirs(t, **options), x)


@EACH
def test_values_at_infinity_are_limits_and_nan_stays(name: str, options: Any) -> None:
    f = lambda x: host(getattr(F, name)(pb.tensor(x), **options)).item()
    assert np.isnan(f(np.nan))
    for end in (np.inf, -np.inf):
        near = f(np.copysign(1e300, end))
        assert f(end) == pytest.approx(end if abs(near) > 1e200 else near)
        slope = pb.grad(lambda x: getattr(F, name)(x, **options))(pb.tensor(end, dtype=pb.float64))
        assert np.isfinite(host(slope))


@EACH
def test_derivatives_are_right_twice(name: str, options: Any) -> None:
    x = np.array([0.13, -0.17, 0.71, -0.83, 2.1, -2.2, 4.7, -4.4])
    assert pb.check_gradients(lambda t: getattr(F, name)(t, **options), [x], order=2, step=1e-3) < 1e-6


@EACH
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_dtypes_are_rounded_once(name: str, options: Any, dtype: str) -> None:
    x = pb.tensor(normal(200) * 3).astype(dtype)
    y = getattr(F, name)(x, **options)
    wanted = host(getattr(F, name)(x.astype("float64"), **options))
    assert str(y.dtype) == dtype
    eps = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-20}[dtype]
    np.testing.assert_allclose(host(y).astype(np.float64), wanted, rtol=0.51 * eps, atol=1e-7)


def test_the_derivative_of_softsign_has_all_digits_far_out() -> None:
    x = np.array([1e7, -1e7, 1e3, 0.99, 1.01, -1e-8])
    slopes = pb.grad(lambda t: pb.sum(F.softsign(t)))(pb.tensor(x.astype(np.float32)))
    np.testing.assert_allclose(host(slopes), 1 / (1 + np.abs(x)) ** 2, rtol=1e-6)
    curves = pb.grad(lambda t: pb.sum(pb.grad(lambda u: pb.sum(F.softsign(u)))(t)))(pb.tensor(x))
    np.testing.assert_allclose(host(curves), -2 * np.sign(x) / (1 + np.abs(x)) ** 3, rtol=1e-12)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_glu_is_torchs(torch: Any, axis: int) -> None:
    agrees_with_torch(torch, lambda x: F.glu(x, axis), lambda x: torch.nn.functional.glu(x, axis), normal(4, 6, 2))
    with pytest.raises(pb.ShapeError, match="odd length"):
        F.glu(pb.ones((3, 5)), axis)


@pytest.mark.parametrize(("shape", "count"), [((3, 4), 4), ((2, 3, 4), 3), ((2, 3, 4), 1), ((5,), 1), ((), 1)])
def test_prelu_is_torchs(torch: Any, shape: Any, count: int) -> None:
    agrees_with_torch(torch, F.prelu, torch.nn.functional.prelu, normal(*shape), normal(count) ** 2)
    layer, theirs = nn.PReLU(count, init=0.3), torch.nn.PReLU(count, init=0.3)
    layer.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    x = normal(*shape).astype(np.float32)
    np.testing.assert_allclose(host(layer(x)), theirs(torch.tensor(x)).detach().numpy())
    with pytest.raises(pb.ShapeError, match="prelu: weight has shape"):
        F.prelu(pb.ones((2, 3)), pb.ones(2))


@EACH
def test_a_layer_applies_its_function(name: str, options: Any) -> None:
    kind = {cls.lower(): cls for cls in nn.__all__}[name]
    layer, x = getattr(nn, kind)(**options), pb.tensor(normal(3, 5))
    assert set(inspect.signature(type(layer)).parameters) >= set(options)
    np.testing.assert_array_equal(host(layer(x)), host(getattr(F, name)(x, **options)))
    assert all([str(value) in repr(layer) for value in options.values()])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: F.hardtanh(x, 1.0, 1.0), "min_val=1.0 is not less"), (lambda x: F.softshrink(x, -1.0), "lambd=-1.0 is negative"),
        (lambda x: F.celu(x, 0.0), "alpha must not be 0"), (lambda x: F.hardtanh(x, "a"), "min_val='a' is not a real number"),
        (lambda x: F.threshold(x, None, 1.0), "threshold=None"),
    ],
)
def test_meaningless_options_are_refused(call: Any, words: str) -> None:
    with pytest.raises(pb.PullbackError, match=words):
        call(pb.ones(3))


# ---- distances and losses


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_distances_are_torchs(torch: Any, p: float) -> None:
    theirs = torch.nn.functional
    a, b = normal(3, 4, 5), normal(3, 4, 5)
    agrees_with_torch(torch, lambda x: F.normalize(x, p, 2), lambda x: theirs.normalize(x, p, 2), a)
    agrees_with_torch(torch, lambda *xs: F.pairwise_distance(*xs, p), lambda *xs: theirs.pairwise_distance(*xs, p), a, b[:1])
    agrees_with_torch(torch, lambda *xs: F.cosine_similarity(*xs, -1), lambda *xs: theirs.cosine_similarity(*xs, -1), a, b[0])


def test_vectors_of_zeros_have_finite_gradients() -> None:
    zero = pb.zeros((2, 3), dtype=pb.float64)
    for f in (F.normalize, lambda x: F.cosine_similarity(x, x + 1)):
        assert not host(f(zero)).any()
        assert np.isfinite(host(pb.grad(lambda x, f=f: pb.sum(f(x)))(zero))).all()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_smooth_l1_is_torchs(torch: Any, reduction: str, beta: float) -> None:
    theirs = torch.nn.functional.smooth_l1_loss
    options = {"beta": beta, "reduction": reduction}
    agrees_with_torch(
        torch, lambda *xs: nn.smooth_l1(*xs, **options), lambda *xs: theirs(*xs, **options), normal(4, 5), normal(4, 5)
    )
    with pytest.raises(pb.PullbackError, match="beta=-1"):
        nn.smooth_l1(pb.ones(2), pb.ones(2), beta=-1)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_binary_cross_entropy_is_torchs(torch: Any, reduction: str) -> None:
    theirs, rng = torch.nn.functional.binary_cross_entropy, np.random.default_rng(4)
    p, z, w = [rng.uniform(0.01, 0.99, (4, 5)) for _ in range(3)]
    agrees_with_torch(
        torch, lambda x: nn.binary_cross_entropy(x, z, weight=w, reduction=reduction),
        lambda x: theirs(x, torch.tensor(z), weight=torch.tensor(w), reduction=reduction), p,
    )
    ends = np.array([0.0, 1.0, 0.0, 1.0])
    wanted = theirs(torch.tensor(ends), torch.tensor(ends[::-1].copy()), reduction=reduction).numpy()
    np.testing.assert_allclose(host(nn.binary_cross_entropy(pb.tensor(ends), ends[::-1].copy(), reduction=reduction)), wanted)
    assert np.isfinite(host(pb.grad(lambda x: pb.sum(nn.binary_cross_entropy(x, pb.tensor(ends))))(pb.tensor(ends[::-1])))).all()
    assert pb.check_gradients(lambda x: nn.binary_cross_entropy(x, z), [p], order=2) < 1e-6
