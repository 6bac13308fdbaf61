"""The logarithm of a sum of exponentials, of which one is far larger than the others, has the others' digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special

import pullback as pb
from conftest import host
from pullback import nn

GAPS = (0.2, 0.5, 1.0, 5.0, 10.0, 17.0, 40.0, 70.0)
CLASSES = (2, 3, 5, 40, 300, 5000)
EPS = {"float32": 1.2e-7, "float64": 2.3e-16}


def rows(classes: int, dtype: str) -> Any:
    """Returns a row for each gap, whose largest element is 0; it is another one in each row, and in the last row there are ties."""
    rng = np.random.default_rng(classes)
    x = -(np.array(GAPS)[:, None] + np.log(classes)) - rng.random((len(GAPS), classes))
    labels = rng.integers(0, classes, len(GAPS))
    x[np.arange(len(GAPS)), labels] = 0.0
    x[-1, :2], labels[-1] = 0.0, 0
    return x.astype(dtype), labels


def exact(x: Any, labels: Any) -> tuple[Any, Any]:
    """Returns the cross entropy of rows, whose largest element is 0, and its gradient, without cancellation."""
    wide, at = x.astype(np.longdouble), (np.arange(len(x)), labels)
    others = np.exp(wide)
    others[at] = 0
    rest = others.sum(axis=1)
    gradient = others / (1 + rest)[:, None]
    gradient[at] = -rest / (1 + rest)
    return np.log1p(rest), gradient


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_loss_of_a_sure_class(classes: int, dtype: str) -> None:
    x, labels = rows(classes, dtype)
    x[-1, 1] = -50.0  # no ties: the label of a tie is not sure
    loss, gradient = exact(x, labels)
    f = lambda x: nn.cross_entropy(x, pb.tensor(labels), reduction="none")
    total = lambda x: pb.sum(f(x))
    summed = lambda x: nn.cross_entropy(x, pb.tensor(labels), reduction="sum")
    tolerance: Any = {"rtol": 20 * EPS[dtype], "atol": 0}
    for mode in (lambda f: f, pb.capture):
        np.testing.assert_allclose(mode(f)(pb.tensor(x)).numpy(), loss, **tolerance)
        np.testing.assert_allclose(float(mode(summed)(pb.tensor(x))), float(loss.sum()), rtol=20 * EPS[dtype])
        for g in (total, summed):
            value, got = mode(pb.value_and_grad(g))(pb.tensor(x))
            np.testing.assert_allclose(float(value), float(loss.sum()), rtol=20 * EPS[dtype])
            np.testing.assert_allclose(got.numpy(), gradient, rtol=30 * EPS[dtype])
    np.testing.assert_allclose(pb.vmap(pb.grad(lambda x, k: nn.cross_entropy(x, k)))(pb.tensor(x), pb.tensor(labels)).numpy(),
                               gradient, rtol=30 * EPS[dtype])


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logsumexp_next_to_zero(classes: int, dtype: str) -> None:
    x, _ = rows(classes, dtype)
    wanted: Any = scipy.special.logsumexp(x.astype(np.longdouble), axis=1)
    tolerance: Any = {"rtol": 20 * EPS[dtype], "atol": 0}
    np.testing.assert_allclose(pb.logsumexp(pb.tensor(x), axis=1).numpy(), wanted, **tolerance)
    np.testing.assert_allclose(pb.log_softmax(pb.tensor(x)).numpy(), x - wanted[:, None], **tolerance)
    ids = np.repeat(np.arange(len(x)), classes)
    np.testing.assert_allclose(pb.segment_logsumexp(pb.tensor(x.ravel()), ids).numpy(), wanted, rtol=40 * EPS[dtype])
    gradient = pb.grad(lambda x: pb.sum(pb.segment_logsumexp(x, ids)))(pb.tensor(x.ravel())).numpy()
    np.testing.assert_allclose(gradient, scipy.special.softmax(x.astype("f8"), axis=1).ravel(), rtol=100 * EPS[dtype])


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_smoothing_of_a_sure_class(smoothing: float) -> None:
    x, labels = rows(40, "float32")
    f = lambda x: nn.cross_entropy(x, pb.tensor(labels), label_smoothing=smoothing, reduction="sum")
    value, gradient = pb.value_and_grad(f)(pb.tensor(x))
    wanted, exactly = pb.value_and_grad(f)(pb.tensor(x.astype("float64")))
    np.testing.assert_allclose(float(value), float(wanted), rtol=1e-6)
    np.testing.assert_allclose(gradient.numpy(), exactly.numpy(), atol=1e-7)


def test_ends() -> None:
    inf = np.inf
    x = pb.tensor(
        [[inf, 0.0, 1.0], [-inf, -inf, -inf], [0.0, -inf, -inf], [0.0, 0.0, -inf], [np.nan, 0.0, -50.0], [-200.0, 0.0, 0.0]]
    )
    wanted = [inf, -inf, 0.0, np.log(np.float32(2)), np.nan, np.log(np.float32(2))]
    np.testing.assert_allclose(pb.logsumexp(x, axis=1).numpy(), wanted, rtol=2e-7)
    ids = np.repeat(np.arange(6), 3)
    np.testing.assert_allclose(pb.segment_logsumexp(pb.reshape(x, -1), ids, 7).numpy(), [*wanted, -inf], rtol=2e-7)


@pytest.mark.parametrize("target", [0.0, 1.0, 0.3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sure_logits_of_two_classes(dtype: str, target: float) -> None:
    x = np.array([-80.0, -30.0, -10.0, -1.0, 0.0, 1.0, 10.0, 30.0, 80.0])
    f = lambda x: pb.sum(nn.bce_with_logits(x, pb.full(x.shape, target, dtype=x.dtype), reduction="none"))
    gradient = pb.grad(f)(pb.tensor(x, dtype=dtype))
    found = nn.bce_with_logits(pb.tensor(x, dtype=dtype), pb.full(x.shape, target, dtype=dtype), reduction="none")
    wanted = target * np.logaddexp(0, -x) + (1 - target) * np.logaddexp(0, x)
    share = lambda x: np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))
    rtol = 1e-6 if dtype == "float32" else 1e-14
    np.testing.assert_allclose(host(found), wanted, rtol=rtol)
    np.testing.assert_allclose(host(gradient), (1 - target) * share(x) - target * share(-x), rtol=rtol)


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_gradient_of_log_softmax(classes: int, dtype: str) -> None:
    x, labels = rows(classes, dtype)
    x[-1, 1] = -50.0  # no ties: the label of a tie is not sure
    _, gradient = exact(x, labels)
    at = (np.arange(len(x)), labels)
    f = lambda x: -pb.sum(pb.log_softmax(x)[at])
    for mode in (lambda f: f, pb.capture):
        np.testing.assert_allclose(mode(pb.grad(f))(pb.tensor(x)).numpy(), gradient, rtol=30 * EPS[dtype])
    each = pb.vmap(pb.grad(lambda x, k: -pb.take(pb.log_softmax(x), k)))
    np.testing.assert_allclose(each(pb.tensor(x), pb.tensor(labels)).numpy(), gradient, rtol=30 * EPS[dtype])
