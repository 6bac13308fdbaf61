"""Losses: PyTorch's values and gradients in every reduction, exact second derivatives, nothing that overflows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import agrees_with_torch, normal
from pullback import nn

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
