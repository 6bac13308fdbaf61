"""Pools: PyTorch's values, positions and gradients on random windows, higher derivatives, transforms, layouts and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host, normal
from pullback import nn
from pullback.nn import functional as F

NAMES = ("max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d")


def drawn(rng: Any, name: str) -> tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]:
    """Returns a shape, the arguments (kernel_size, stride, padding) and the options of a random call."""
    axes = int(name[-2])
    sizes = rng.integers(1, 5, axes).tolist()
    shape = (*rng.integers(1, 4, 2).tolist(), *[int(rng.integers(n, 12)) for n in sizes])
    options: dict[str, Any] = {"ceil_mode": bool(rng.integers(2))}
    if name.startswith("max"):
        dilations = [int(rng.integers(1, 3)) if 2 * k <= n else 1 for k, n in zip(sizes, shape[2:])]
        options["dilation"] = dilations
    else:
        options["count_include_pad"] = bool(rng.integers(2))
        if axes == 2 and rng.random() < 0.3:
            options["divisor_override"] = int(rng.integers(1, 9))
    paddings = [int(rng.integers(0, k // 2 + 1)) for k in sizes]
    return shape, (sizes, rng.integers(1, 4, axes).tolist(), paddings), options


def values(rng: Any, shape: tuple[int, ...]) -> Any:
    """Returns numbers of which many are equal, some are infinite, and sometimes some are NaN."""
    x = rng.integers(-3, 4, shape).astype(np.float64)
    x[rng.random(shape) < 0.1] = -np.inf
    if rng.random() < 0.3:
        x[rng.random(shape) < 0.1] = np.nan
    return x


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_torchs_on_random_windows(torch: Any, name: str) -> None:
    ours, theirs = getattr(F, name), getattr(torch.nn.functional, name)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        shape, arguments, options = drawn(rng, name)
        given = values(rng, shape) if name.startswith("max") else rng.standard_normal(shape)
        x, y = pb.tensor(given), torch.tensor(given, requires_grad=True)
        wanted = theirs(y, *arguments, **options)
        with pb.GradientTape() as tape:
            tape.watch(x)
            result = ours(x, *arguments, **options)
        g = rng.standard_normal(tuple(wanted.shape))
        case = str((shape, arguments, options))
        np.testing.assert_allclose(host(result), wanted.detach().numpy(), rtol=1e-12, atol=1e-14, err_msg=case)
        (gradient,) = torch.autograd.grad(wanted, y, torch.tensor(g))
        np.testing.assert_allclose(host(tape.gradient(result, x, output_gradients=g)), gradient.numpy(), rtol=1e-12, atol=1e-13)
        if name.startswith("max"):
            top, at = ours(x, *arguments, **options, return_indices=True)
            assert at.dtype == pb.int64
            np.testing.assert_array_equal(host(top), host(result))
            np.testing.assert_array_equal(host(at), theirs(y, *arguments, **options, return_indices=True)[1].numpy(), err_msg=case)


@pytest.mark.parametrize("size", [1, (1, 1), (3, 2), (None, 3), (2, None), (7, 9), 4], ids=str)
def test_adaptive_means_are_torchs(torch: Any, size: Any) -> None:
    for shape in ((2, 3, 7, 5), (3, 6, 8), (1, 1, 3, 11)):
        given = normal(*shape)
        x, y = pb.tensor(given), torch.tensor(given, requires_grad=True)
        wanted = torch.nn.functional.adaptive_avg_pool2d(y, size)
        with pb.GradientTape() as tape:
            tape.watch(x)
            result = F.adaptive_avg_pool2d(x, size)
        g = normal(*wanted.shape)
        np.testing.assert_allclose(host(result), wanted.detach().numpy(), rtol=1e-12)
        (gradient,) = torch.autograd.grad(wanted, y, torch.tensor(g))
        np.testing.assert_allclose(host(tape.gradient(result, x, output_gradients=g)), gradient.numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("name", "options", "shape"), [
    ("MaxPool1d", {"kernel_size": 3, "stride": 2, "padding": 1}, (2, 3, 9)), ("MaxPool2d", {"kernel_size": (3, 2)}, (2, 3, 9, 8)),
    ("MaxPool2d", {"kernel_size": 2, "dilation": 2, "ceil_mode": True}, (3, 9, 8)), ("AvgPool1d", {"kernel_size": 2}, (2, 3, 9)),
    ("AvgPool2d", {"kernel_size": 3, "padding": 1, "count_include_pad": False}, (2, 3, 9, 8)),
    ("AvgPool2d", {"kernel_size": 3, "divisor_override": 2}, (2, 3, 9, 8)),
    ("AdaptiveAvgPool2d", {"output_size": (3, 5)}, (2, 3, 9, 8)),
], ids=str)
def test_modules_are_torchs(torch: Any, name: str, options: Any, shape: Any) -> None:
    x, ours, theirs = normal(*shape), getattr(nn, name)(**options), getattr(torch.nn, name)(**options)
    np.testing.assert_allclose(host(ours(pb.tensor(x))), theirs(torch.tensor(x)).numpy(), rtol=1e-12)
    assert repr(ours) == repr(theirs).replace("(2,)", "2").replace("(0,)", "0")  # AvgPool1d


def test_a_module_returns_positions(torch: Any) -> None:
    x = normal(2, 3, 8, 8)
    for name, given in (("MaxPool2d", x), ("MaxPool1d", x[..., 0])):
        found = getattr(nn, name)(2, return_indices=True)(pb.tensor(given))
        for a, b in zip(found, getattr(torch.nn, name)(2, return_indices=True)(torch.tensor(given))):
            np.testing.assert_array_equal(host(a), b.numpy())


# ---- derivatives and transforms

CALLS: dict[str, Any] = {
    "max": lambda x: F.max_pool2d(x, (3, 2), (1, 2), 1),
    "max dilated": lambda x: F.max_pool2d(x, 2, 1, dilation=2),
    "avg": lambda x: F.avg_pool2d(x, (3, 2), (1, 2), 1),
    "avg inside": lambda x: F.avg_pool2d(x, 3, 2, 1, True, False),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "max 1d": lambda x: F.max_pool1d(x, 3, 2),
}


@pytest.mark.parametrize("name", CALLS)
def test_derivatives_of_first_and_second_order(name: str) -> None:
    x = np.random.default_rng(3).permutation(2 * 5 * 6).reshape(2, 5, 6) / 7.0  # no two elements are near each other
    pb.check_gradients(lambda x: CALLS[name](x) ** 3, [x], order=2)
    v = normal(2, 5, 6)
    _, tangent = pb.jvp(CALLS[name], (pb.tensor(x),), (pb.tensor(v),))
    ends = [host(CALLS[name](pb.tensor(x + s * 1e-5 * v))) for s in (1, -1)]
    np.testing.assert_allclose(host(tangent), (ends[0] - ends[1]) / 2e-5, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", CALLS)
def test_examples_under_vmap_and_their_gradients(name: str) -> None:
    f, x, w = CALLS[name], pb.tensor(normal(4, 2, 5, 6)), pb.tensor(normal(2, 5, 6))
    np.testing.assert_array_equal(host(pb.vmap(f)(x)), np.stack([host(f(x[i])) for i in range(4)]))
    np.testing.assert_array_equal(host(pb.vmap(f, in_axes=1)(x)), np.stack([host(f(x[:, i])) for i in range(2)]))

    def loss(w: Any, x: Any) -> Any:
        return pb.sum(f(x * w) ** 2)

    found = pb.per_example_grad(loss)(w, x)
    norms = pb.per_example_norm(loss)(w, x)
    for i in range(4):
        alone = host(pb.grad(loss)(w, x[i]))
        np.testing.assert_allclose(host(found[i]), alone, rtol=1e-12, atol=1e-13)
        assert norms[i].item() == pytest.approx(float((alone**2).sum()))
    hessian = pb.hessian(lambda x: loss(w, x))(x[0])
    np.testing.assert_allclose(host(hessian), np.swapaxes(host(hessian).reshape(60, 60), 0, 1).reshape(hessian.shape), atol=1e-12)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_layout_and_dtype(name: str, dtype: str) -> None:
    """A layout does not change a bit, and half precision is rounded once."""
    whole = pb.tensor(normal(2, 5, 6), dtype=dtype)
    layouts = [
        pb.permute_dims(pb.tensor(host(pb.permute_dims(whole, (2, 1, 0))).copy(), dtype=dtype), (2, 1, 0)),
        pb.flip(pb.tensor(host(pb.flip(whole, axis=2)).copy(), dtype=dtype), axis=2),
        pb.repeat(whole, 2, axis=-1)[..., ::2],
    ]
    exact = host(CALLS[name](pb.tensor(host(whole).astype(np.float64))))
    for x in layouts:
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = CALLS[name](x)
        with pb.GradientTape() as straight:
            straight.watch(whole)
            z = CALLS[name](whole)
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(host(y), host(z))
        np.testing.assert_allclose(
            host(y).astype(np.float64), exact, rtol={"float16": 1e-3, "bfloat16": 8e-3}.get(dtype, 1e-5), atol=1e-6
        )
        g = pb.tensor(normal(*y.shape), dtype=dtype)
        gradients = [t.gradient(r, s, output_gradients=g) for t, r, s in ((tape, y, x), (straight, z, whole))]
        np.testing.assert_array_equal(host(gradients[0]), host(gradients[1]))
        assert gradients[0].dtype == x.dtype


@pytest.mark.parametrize("name", CALLS)
def test_captured_is_eager(native: None, name: str) -> None:
    def step(x: Any) -> Any:
        with pb.GradientTape() as tape:
            tape.watch(x)
            loss = pb.sum(CALLS[name](x) ** 3)
        return loss, tape.gradient(loss, x)

    captured = pb.capture(step)
    for seed in range(3):
        x = pb.tensor(np.random.default_rng(seed).standard_normal((2, 5, 6)), dtype="float32")
        for a, b in zip(captured(x), step(x)):
            np.testing.assert_array_equal(host(a), host(b))


def test_empty_batches_and_integers() -> None:
    for call in CALLS.values():
        assert call(pb.zeros((0, 5, 6))).size == 0
    assert host(F.max_pool1d(pb.tensor([[1, 3, 2, 0]]), 2)).tolist() == [[3.0, 2.0]]


def test_a_window_of_minus_infinity_and_of_nan() -> None:
    top, at = F.max_pool1d(pb.tensor([[-np.inf, -np.inf, 1.0, np.nan, np.nan, 2.0]]), 2, return_indices=True)
    np.testing.assert_array_equal(host(top), [[-np.inf, np.nan, np.nan]])
    assert host(at).tolist() == [[0, 3, 4]]


def test_equal_maxima_give_the_gradient_to_the_first() -> None:
    x = pb.ones((1, 4))
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = pb.sum(F.max_pool1d(x, 3, 1))
    assert host(tape.gradient(y, x)).tolist() == [[1.0, 1.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: F.max_pool2d(x, 0), r"max_pool2d: kernel_size=0 must be an integer, or one for each of two axes, of 1 or more"),
        (lambda x: F.max_pool2d(x, (2, 2, 2)), r"kernel_size=\(2, 2, 2\)"),
        (lambda x: F.avg_pool2d(x, 2, 0), r"stride=0"),
        (lambda x: F.avg_pool2d(x, 2, padding=-1), r"padding=-1"),
        (
            lambda x: F.max_pool2d(x, 2, padding=2),
            r"padding=2 is more than half of a window, which covers 2 elements; use at most 1",
        ),
        (lambda x: F.max_pool2d(x, 9), r"covers 9 elements does not fit in x, which has 5 with 0 of padding"),
        (lambda x: F.max_pool1d(pb.zeros((1, 1)), 2, padding=1, dilation=2), r"lies in the padding"),
        (lambda x: F.avg_pool2d(x, 2, divisor_override=0), r"divisor_override=0 must be an integer other than 0"),
        (lambda x: F.adaptive_avg_pool2d(x, 0), r"output_size=\[0, 0\] must be"),
        (lambda x: F.adaptive_avg_pool2d(x, (1, 2, 3)), r"output_size=\(1, 2, 3\) must be a number, or one for H and one for W"),
        (lambda x: F.max_pool2d(pb.zeros(3), 2), r"it must be \(\.\.\., C, H, W\)"),
        (lambda x: F.max_pool1d(pb.zeros(()), 2), r"it must be \(\.\.\., C, L\)"),
        (lambda x: F.avg_pool2d(pb.zeros((2, 0, 3)), 2), r"an axis without elements has no windows"),
    ],
)
def test_windows_that_do_not_fit(call: Any, message: str) -> None:
    with pytest.raises(pb.ShapeError, match=message):
        call(pb.zeros((2, 5, 6)))
