"""Losses: PyTorch's values and gradients in every reduction, exact second derivatives, and no overflow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import agrees_with_torch, host, normal
from pullback import backends, nn

LABELS = np.array([2, 0, -100, 4, 1, 2])
REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])


@REDUCTIONS
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_cross_entropy_of_classes_is_torchs(torch: Any, reduction: str, weighted: bool, smoothing: float) -> None:
    weight = np.random.default_rng(2).random(5) if weighted else None
    options = {"label_smoothing": smoothing, "reduction": reduction}
    for logits, labels in ((normal(6, 5), LABELS), (normal(2, 5, 3), LABELS.reshape(2, 3)), (normal(5), np.array(3))):
        agrees_with_torch(
            torch,
            lambda x, labels=labels: nn.cross_entropy(x, labels, weight=weight, **options),
            lambda x, labels=labels: torch.nn.functional.cross_entropy(
                x, torch.tensor(labels), weight=None if weight is None else torch.tensor(weight), **options
            ),
            logits,
        )


@REDUCTIONS
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_cross_entropy_of_probabilities_is_torchs(torch: Any, reduction: str, weighted: bool) -> None:
    weight = np.random.default_rng(2).random(5) if weighted else None
    options = {"label_smoothing": 0.2, "reduction": reduction}
    agrees_with_torch(
        torch,
        lambda x, p: nn.cross_entropy(x, p, weight=weight, **options),
        lambda x, p: torch.nn.functional.cross_entropy(x, p, weight=None if weight is None else torch.tensor(weight), **options),
        normal(2, 5, 3),
        np.random.default_rng(3).dirichlet(np.ones(3), (2, 5)),
    )


@REDUCTIONS
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")
@pytest.mark.parametrize(
    ("name", "theirs", "options"),
    [
        ("mse", "mse_loss", {}),
        ("l1", "l1_loss", {}),
        ("huber", "huber_loss", {"delta": 0.7}),
        ("bce_with_logits", "binary_cross_entropy_with_logits", {}),
        ("kl_div", "kl_div", {}),
        ("kl_div", "kl_div", {"log_target": True}),
    ],
)
def test_losses_are_torchs(torch: Any, name: str, theirs: str, options: Any, reduction: str) -> None:
    target = np.random.default_rng(4).random((4, 3))
    agrees_with_torch(
        torch,
        lambda x, t: getattr(nn, name)(x, t, reduction=reduction, **options),
        lambda x, t: getattr(torch.nn.functional, theirs)(x, t, reduction=reduction, **options),
        normal(4, 3),
        target,
    )


@REDUCTIONS
def test_nll_and_the_weighted_losses_are_torchs(torch: Any, reduction: str) -> None:
    weight, positive = np.random.default_rng(5).random(5), np.array([0.5, 2.0, 3.0])
    functional = torch.nn.functional
    agrees_with_torch(
        torch,
        lambda x: nn.nll(x, LABELS, weight=weight, reduction=reduction),
        lambda x: functional.nll_loss(x, torch.tensor(LABELS), weight=torch.tensor(weight), reduction=reduction),
        normal(6, 5),
    )
    target = np.random.default_rng(6).random((4, 3))
    agrees_with_torch(
        torch,
        lambda x: nn.bce_with_logits(x, target, weight=positive, pos_weight=positive, reduction=reduction),
        lambda x: functional.binary_cross_entropy_with_logits(
            x, torch.tensor(target), torch.tensor(positive), pos_weight=torch.tensor(positive), reduction=reduction
        ),
        normal(4, 3),
    )


def test_losses_do_not_overflow() -> None:
    x = pb.tensor([1000.0, -1000.0, 0.0])
    with pb.GradientTape() as tape:
        tape.watch(x)
        loss = nn.bce_with_logits(x, pb.tensor([1.0, 0.0, 1.0]), reduction="sum")
    assert loss.item() == pytest.approx(np.log(2))
    assert tape.gradient(loss, x).tolist() == [0.0, 0.0, -0.5]
    assert nn.cross_entropy(pb.tensor([[1e4, -1e4]]), pb.tensor([1])).item() == 2e4


def test_cross_entropy_has_exact_second_derivatives() -> None:
    pb.check_gradients(lambda x: nn.cross_entropy(x, LABELS, label_smoothing=0.1), [normal(6, 5)], order=2)


@REDUCTIONS
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(torch: Any, dtype: str, reduction: str) -> None:
    def half(values: Any) -> tuple[pb.Tensor, Any]:
        t = pb.tensor(values).astype(dtype)
        return t, torch.tensor(t.astype("float64").numpy())

    x, wide_x = half(300 * (np.arange(4000.0).reshape(400, 10) % 7 == 0))  # Squares and sums of x overflow float16.
    z, wide_z = half(np.tile(np.eye(10), (40, 1)))
    w, wide_w = half(np.linspace(0.5, 2.0, 10))
    labels, options = np.arange(400) % 10, {"reduction": reduction}
    f, numbers, smoothed = torch.nn.functional, torch.tensor(labels), {"label_smoothing": 0.1, "reduction": reduction}
    for got, wanted in [
        (nn.mse(x, z, **options), f.mse_loss(wide_x, wide_z, **options)),
        (nn.l1(x, z, **options), f.l1_loss(wide_x, wide_z, **options)),
        (nn.huber(x, z, **options), f.huber_loss(wide_x, wide_z, **options)),
        (nn.bce_with_logits(x, z, weight=w, **options), f.binary_cross_entropy_with_logits(wide_x, wide_z, wide_w, **options)),
        (nn.kl_div(x, z, **options), f.kl_div(wide_x, wide_z, **options)),
        (nn.nll(x, labels, weight=w, **options), f.nll_loss(wide_x, numbers, wide_w, **options)),
        (nn.cross_entropy(x, labels, **smoothed), f.cross_entropy(wide_x, numbers, **smoothed)),
        (nn.cross_entropy(x, labels, weight=w, **smoothed), f.cross_entropy(wide_x, numbers, wide_w, **smoothed)),
        (nn.cross_entropy(x, z, weight=w, **smoothed), f.cross_entropy(wide_x, wide_z, wide_w, **smoothed)),
    ]:
        assert got.dtype.name == dtype
        rounded = pb.tensor(wanted.numpy()).astype(dtype).astype("float64")
        np.testing.assert_allclose(got.astype("float64").numpy(), rounded.numpy(), rtol=2e-2 if dtype == "bfloat16" else 2e-3)


def test_the_mean_of_many_rows_in_half_precision_is_finite() -> None:
    loss = nn.cross_entropy(pb.zeros((40000, 10), dtype=pb.float16), pb.zeros(40000, dtype=pb.int64))
    assert loss.item() == pytest.approx(np.log(10), rel=1e-3)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "uint64"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_class_numbers_may_be_of_any_integer_dtype(torch: Any, dtype: str, weighted: bool) -> None:
    x, labels, weight = normal(4, 5), np.array([0, 4, 2, 2]), np.arange(1.0, 6.0) if weighted else None
    options = {} if weight is None else {"weight": torch.tensor(weight)}
    log_p = np.log(np.exp(x) / np.exp(x).sum(1, keepdims=True))
    wanted = torch.nn.functional.cross_entropy(torch.tensor(x), torch.tensor(labels), **options).item()
    for loss in (nn.cross_entropy(x, labels.astype(dtype), weight=weight), nn.nll(log_p, labels.astype(dtype), weight=weight)):
        assert loss.item() == pytest.approx(wanted, rel=1e-12)


INTEGERS: dict[str, tuple[Any, Any]] = {
    "int8": ([[100, -120], [7, 90]], [[-100, 120], [3, -90]]), "uint8": ([[0, 255], [3, 3]], [[1, 0], [3, 5]]),
    "int16": ([300, -32000], [0, 32000]), "uint32": ([0, 3], [1, 2**31]), "int64": ([2**33, 0], [0, 2**33]),
}


@REDUCTIONS
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["mse", "l1", "huber", "smooth_l1"])
def test_losses_of_integers_do_not_wrap(torch: Any, name: str, dtype: str, reduction: str) -> None:
    """The differences of images in uint8 are one example."""
    x, target = [np.array(values, dtype) for values in INTEGERS[dtype]]
    wide = [torch.tensor(a.astype(float)) for a in (x, target)]
    wanted = getattr(torch.nn.functional, f"{name}_loss")(*wide, reduction=reduction)
    found = getattr(nn, name)(pb.tensor(x), pb.tensor(target), reduction=reduction)
    assert found.dtype == pb.float32
    np.testing.assert_allclose(host(found), wanted.numpy(), rtol=1e-6)
    for other in (target.astype(float), pb.tensor(target)):  # an integer beside a float takes the dtype of the float
        exact = getattr(nn, name)(pb.tensor(x.astype(float)), other, reduction=reduction)
        np.testing.assert_allclose(host(exact), wanted.numpy(), rtol=1e-12)


def test_logistic_losses_of_bytes_do_not_wrap(torch: Any) -> None:
    x, z = np.array([1, 200], "uint8"), np.array([0, 1], "uint8")
    wide = [torch.tensor(a.astype(float)) for a in (x, z)]
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(*wide).item()
    assert nn.bce_with_logits(x, z).item() == pytest.approx(wanted, rel=1e-6)
    wanted = torch.nn.functional.kl_div(*wide, reduction="sum", log_target=True).item()
    assert nn.kl_div(x, z, reduction="sum", log_target=True).item() == pytest.approx(wanted, rel=1e-6)


@REDUCTIONS
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_kl_div_of_targets_that_are_no_probabilities_is_torchs(torch: Any, captured: bool, reduction: str) -> None:
    x, strange = -abs(normal(6, 1)), np.array([np.nan, -0.1, -np.inf, np.inf, 0.0, 0.5])[:, None]
    x = np.concatenate([x, x, np.full((6, 1), np.nan)], axis=1)  # a NaN of the network comes through, too

    def loss(x: Any, target: Any) -> Any:
        return nn.kl_div(x, target, reduction=reduction)

    def gradients(x: Any, target: Any) -> Any:
        return loss(x, target), pb.grad(lambda *xs: pb.sum(loss(*xs)), (0, 1))(x, target)

    wide = [torch.tensor(a, requires_grad=True) for a in (x, np.broadcast_to(strange, x.shape).copy())]
    wanted = torch.nn.functional.kl_div(*wide, reduction=reduction)
    of_x, of_target = torch.autograd.grad(wanted.sum(), wide)
    for _ in range(3):
        y, (gx, gt) = (pb.capture(gradients) if captured else gradients)(*[pb.tensor(a.detach().numpy()) for a in wide])
    np.testing.assert_allclose(host(y), wanted.detach().numpy(), rtol=1e-13)
    np.testing.assert_allclose(host(gx), of_x.numpy(), rtol=1e-13)
    zero = wide[1].detach().numpy() == 0  # where the logarithm of the target has no derivative
    np.testing.assert_allclose(host(gt)[~zero], of_target.numpy()[~zero], rtol=1e-13)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_mean_of_no_rows_or_no_classes_is_nan_as_torchs(shape: Any, smoothing: float) -> None:
    x = pb.zeros(shape)
    assert np.isnan(nn.cross_entropy(x, x, label_smoothing=smoothing).item())
    assert nn.cross_entropy(x, x, label_smoothing=smoothing, reduction="sum").item() == 0
    ignored = np.full(shape[:1], -100)
    assert np.isnan(nn.cross_entropy(x, ignored, label_smoothing=smoothing).item())


def test_logits_of_no_classes_have_an_empty_gradient_of_any_order() -> None:
    x = pb.zeros((2, 0))
    with pb.GradientTape() as outer:
        outer.watch(x)
        with pb.GradientTape() as inner:
            inner.watch(x)
            loss = nn.cross_entropy(x, [-100, -100], label_smoothing=0.1, reduction="sum")
        slope = inner.gradient(loss, x)
        total = pb.sum(slope)
    assert slope.shape == (2, 0)
    assert outer.gradient(total, x, unconnected="zero").shape == (2, 0)


def test_a_row_that_is_left_out_of_nll_has_no_loss() -> None:
    x = pb.tensor(np.log([[0.5, 0.5], [0.25, 0.75]]))
    np.testing.assert_allclose(nn.nll(x, [-100, 1], reduction="none").numpy(), [0.0, -np.log(0.75)])
    for reduction in ("sum", "mean"):
        assert nn.nll(x, [-100, 1], reduction=reduction).item() == pytest.approx(-np.log(0.75))


# ---- what no loss can be made of


@pytest.mark.parametrize("shape", [(3, 1), (3, 1, 4), (1,)], ids=str)
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_cross_entropy_of_one_class_is_refused(shape: tuple[int, ...], captured: bool) -> None:
    """It is 0 for any logits, and so is its gradient."""
    logits, classes = pb.ones(shape), pb.zeros(shape[:1] + shape[2:] if len(shape) > 1 else (), dtype=pb.int64)
    for target in (classes, pb.ones(shape)):
        for options in ({}, {"label_smoothing": 0.1}, {"weight": [2.0]}, {"reduction": "none"}):

            def loss(x: Any, target: Any = target, options: Any = options) -> Any:
                return nn.cross_entropy(x, target, **options)

            for f in (loss, pb.grad(loss), lambda x: pb.vmap(loss)(pb.stack([x, x]))):
                with pytest.raises(pb.ShapeError, match=r"one class.*bce_with_logits"):
                    (pb.capture(f) if captured else f)(logits)


SHARES = np.array([[0.0, 1.0, 0.25], [0.5, np.nan, 1.0]])
OUTSIDE = (-1.0, 1.5, np.nextafter(np.float32(1), np.float32(2)), -np.finfo(np.float32).tiny, np.inf, -np.inf)


@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("argument", ["x", "target"])
def test_binary_cross_entropy_outside_of_zero_to_one(argument: str, outside: float) -> None:
    """It is an error if the host has the numbers, and NaN if it has not; torch raises a RuntimeError."""
    fine = pb.tensor(SHARES, dtype=pb.float32)
    wrong = pb.tensor(np.where(SHARES == 0.25, outside, SHARES), dtype=pb.float32)

    def loss(x: Any) -> Any:
        values = {"x": fine, "target": fine, argument: x}
        return nn.binary_cross_entropy(values["x"], values["target"], reduction="none")

    if fine.device == "cpu":
        each = pb.vmap(lambda x: nn.binary_cross_entropy(**{"x": x, "target": x, argument: x}))
        for f in (loss, pb.grad(lambda x: pb.sum(loss(x))), each):
            with pytest.raises(pb.ArgumentError, match=r"^binary_cross_entropy: \w+ is .* at position \[0, 2\]; .* from 0 to 1"):
                f(wrong)
    captured = pb.capture(loss)
    np.testing.assert_array_equal(host(captured(fine)), host(loss(fine)))
    if fine.device != "cpu" or backends.why_not("cpu") is None:  # the NumPy backend runs a captured function eagerly
        assert np.isnan(host(captured(wrong))).tolist() == [[False, False, True], [False, True, False]]


def test_a_class_that_is_impossible_and_not_wanted_adds_nothing() -> None:
    """torch gives NaN for 0 times log(0); the limit is 0, as it is for class numbers."""
    x = pb.tensor([[1.0, -np.inf, 2.0], [0.5, 1.0, -np.inf]], dtype="float64")
    for target, weight in (([[1.0, 0, 0], [0.25, 0.75, 0]], None), ([[0, 0, 1.0], [1.0, 0, 0]], [1.0, 2.0, 0.5])):
        wanted = np.array(target)
        factors = wanted * np.array(weight or [1.0, 1.0, 1.0])
        with pb.GradientTape() as tape:
            tape.watch(x)
            loss = nn.cross_entropy(x, wanted, weight=weight)
        p = np.exp(x.numpy()) / np.exp(x.numpy()).sum(axis=1, keepdims=True)
        entropy = -np.sum(np.where(factors > 0, factors * np.log(np.where(p > 0, p, 1.0)), 0.0)) / 2
        np.testing.assert_allclose(float(loss), entropy, rtol=1e-14)
        slope = (p * factors.sum(axis=1, keepdims=True) - factors) / 2
        np.testing.assert_allclose(tape.gradient(loss, x).numpy(), slope, atol=1e-15)
    smooth = nn.cross_entropy(x, [0, 1], weight=[1.0, 1.0, 0.0], label_smoothing=0.1)
    assert np.isinf(float(smooth)) == bool(np.isinf(x.numpy()[:, :2]).any())
    assert float(nn.cross_entropy(x[:1], [[0.5, 0.5, 0.0]])) == np.inf
    assert np.isnan(float(nn.cross_entropy(pb.tensor([[1.0, np.nan, 2.0]]), [[1.0, 0.0, 0.0]])))
