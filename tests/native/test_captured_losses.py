"""Losses are one launch with their mean, and one with their pullback when captured; the bits are those of the separate ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same
from conftest import host
from pullback import nn, optim
from pullback.ops.losses import divide_by_count
from pullback.tensors import devices
from pullback.tree import flatten

pytestmark = needs_kernels


@pytest.fixture(params=["machine", "everywhere"])
def mode(request: Any) -> Any:
    if request.param == "everywhere" and pb.config.why_not():
        pytest.skip(str(pb.config.why_not()))
    before = pb.config.reproducible
    pb.config.reproducible = request.param
    yield request.param
    pb.config.reproducible = before


def fuses_heads(mode: str) -> bool:
    """A GPU's layers add products in the order that a head follows in the mode "everywhere" only."""
    return mode == "everywhere" or devices.default_device() == "cpu"


REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum"])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
ROWS = (0, 1, 2, 7, 64, 255, 257, 700, 1024, 1025, 5000)  # a GPU combines up to 1024 losses in the launch that computes them


def in_parts(logits: Any, labels: Any, reduction: str, smoothing: float, ignored: int) -> Any:
    """Returns the loss as three ops: the losses of the rows, their sum in the dtype of computation, and the division."""
    loss = nn.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing, ignore_index=ignored)
    total = pb.sum(loss.astype("float32") if loss.dtype.itemsize == 2 else loss)
    total = divide_by_count(total, labels, ignored) if reduction == "mean" else total
    return total.astype(logits.dtype)


def with_gradient(f: Any, x: Any) -> tuple[Any, Any]:
    with pb.GradientTape() as tape:
        tape.watch(x)
        loss = f(x)
    return loss, tape.gradient(loss, x, output_gradients=pb.tensor(0.7, dtype=loss.dtype))


@DTYPES
@REDUCTIONS
@pytest.mark.filterwarnings("ignore::pullback.errors.ZeroGradientWarning")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_cross_entropy_of_a_batch_has_the_bits_of_its_parts(dtype: str, reduction: str, smoothing: float) -> None:
    rng = np.random.default_rng(0)
    how = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": 2}
    for rows in ROWS:
        for classes in (3, 40, 300) if rows < 1000 else (5,):
            x = pb.tensor(3 * rng.standard_normal((rows, classes))).astype(dtype)
            labels = pb.tensor(rng.integers(0, classes, rows))
            got = with_gradient(lambda x, y=labels: nn.cross_entropy(x, y, **how), x)
            wanted = with_gradient(lambda x, y=labels: in_parts(x, y, reduction, smoothing, 2), x)
            for one, other in zip(got, wanted):
                same(one, other)


@REDUCTIONS
@pytest.mark.parametrize("layout", ["apart", "across", "backwards"])
def test_the_cross_entropy_of_strided_logits_and_labels(layout: str, reduction: str) -> None:
    rng = np.random.default_rng(0)
    x, numbers = rng.standard_normal((65, 12)).astype(np.float32), rng.integers(0, 12, 65).astype(np.int32)
    wanted = with_gradient(lambda x: nn.cross_entropy(x, numbers.astype(np.int64), reduction=reduction), pb.tensor(x))
    if layout == "apart":
        logits, labels = pb.tensor(np.repeat(x, 2, axis=1))[:, ::2], pb.tensor(np.repeat(numbers, 3))[::3]
    elif layout == "across":
        logits, labels = pb.tensor(np.ascontiguousarray(x.T)).mT, pb.tensor(numbers)
    else:
        logits, labels = pb.tensor(x[::-1].copy())[::-1], pb.tensor(numbers[::-1].copy())[::-1]
    for one, other in zip(with_gradient(lambda x: nn.cross_entropy(x, labels, reduction=reduction), logits), wanted):
        same(one, other)


def network(sizes: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Returns a network of dense layers with relu between them, its optimizer and a training step."""
    pb.random.seed(0)
    layers = [layer for m, n in zip(sizes, sizes[1:]) for layer in (nn.Linear(m, n), nn.ReLU())][:-1]
    net = nn.Sequential(*layers)
    opt = optim.Adam(net.parameters())

    def step(x: Any, y: Any) -> Any:
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(net(x), y)
        opt.step(tape.gradient(loss, opt.parameters))
        return loss

    return net, opt, step


@pytest.mark.parametrize(
    ("sizes", "batch", "launches"), [((2, 16, 16, 2), 100, 7), ((784, 128, 10), 64, 5), ((784, 1024, 1024, 10), 8, 7)], ids=str
)
def test_the_launches_of_a_captured_training_step(sizes: tuple[int, ...], batch: int, launches: int, mode: str) -> None:
    """Each layer is a launch, and so are each pullback and Adam. The loss, its mean and its gradient join the last layer."""
    launches += not fuses_heads(mode)
    if devices.default_device() != "cpu" and max(sizes) > 1000:
        sizes = (20, 16, 16, 10)  # the same launches
    rng = np.random.default_rng(0)
    data = [
        (pb.tensor(rng.standard_normal((batch, sizes[0]), dtype=np.float32)), pb.tensor(rng.integers(0, sizes[-1], batch)))
        for _ in range(3)
    ]
    net, _, step = network(sizes)
    wanted = [step(*one) for one in data]
    right = [host(p) for p in net.parameters()]
    net, _, step = network(sizes)
    captured = pb.capture(step)
    for one, loss in zip(data, wanted):
        same(captured(*one), loss)
    for p, q in zip(net.parameters(), right):
        np.testing.assert_array_equal(host(p), q)
    stats = captured.stats()
    assert stats.kernels_per_replay == launches
    if devices.default_device() != "cpu":
        assert stats.graph_nodes == launches


def errors_in_parts(x: Any, target: Any, reduction: str) -> Any:
    wide = [t.astype("float32") if t.dtype.itemsize == 2 else t for t in (x, target)]
    errors = pb.square(wide[0] - wide[1])
    return (pb.mean(errors) if reduction == "mean" else pb.sum(errors)).astype(x.dtype)


@DTYPES
@REDUCTIONS
def test_the_squared_error_has_the_bits_of_its_parts(dtype: str, reduction: str) -> None:
    """A GPU's blocks take 2,048 elements each."""
    rng = np.random.default_rng(0)
    for shape in ((), (0, 3), (1,), (7,), (64, 10), (2049,), (3, 5, 700), (70_001,)):
        x, target = [pb.tensor(rng.standard_normal(shape)).astype(dtype) for _ in range(2)]
        for which in (0, 1):

            def of(f: Any, x: Any = x, target: Any = target, which: int = which) -> Any:
                operands = [x, target]
                return lambda t: f(*operands[:which], t, *operands[which + 1 :], reduction=reduction)

            got, wanted = [with_gradient(of(f), (x, target)[which]) for f in (nn.mse, errors_in_parts)]
            for one, other in zip(got, wanted):
                same(one, other)
    x, target = [pb.tensor(rng.standard_normal((33, 50))).astype(dtype).mT for _ in range(2)]
    for one, other in zip(*[with_gradient(lambda x, f=f: f(x, target, reduction=reduction), x) for f in (nn.mse, errors_in_parts)]):
        same(one, other)


@REDUCTIONS
def test_a_squared_error_and_its_gradient_are_one_kernel(reduction: str) -> None:
    rng = np.random.default_rng(0)

    def both(x: Any, target: Any) -> Any:
        with pb.GradientTape() as tape:
            tape.watch(x)
            loss = nn.mse(x * 2, target, reduction=reduction)
        return loss, tape.gradient(loss, x)

    captured = pb.capture(both)
    for _ in range(3):
        x, target = [pb.tensor(rng.standard_normal((9, 300), dtype=np.float32)) for _ in range(2)]
        for got, wanted in zip(captured(x, target), both(x, target)):
            same(got, wanted)
    assert ("squared_error", "squared_error_pullback") in [kernel.launches for kernel in captured.explain().kernels]


HEADS = [  # rows, terms of a product, classes, with a bias
    (1, 1, 2, True), (7, 5, 2, True), (64, 128, 10, True), (33, 256, 32, False), (9, 257, 3, True), (1024, 16, 10, True),
    (5, 700, 10, True), (3, 1300, 31, False), (2, 2048, 10, True), (2, 2049, 10, True), (1025, 8, 4, True), (6, 20, 33, True),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("head", HEADS, ids=str)
def test_a_head_has_the_bits_of_its_launches(head: tuple[int, int, int, bool], dtype: str, mode: str) -> None:
    """A GPU takes heads of at most 1,024 rows and 2,048 terms; there are at most 32 classes on any device."""
    rows, terms, classes, biased = head
    rng = np.random.default_rng(terms)
    w = pb.Parameter(rng.standard_normal((classes, terms)), dtype=dtype)
    b = pb.Parameter(rng.standard_normal(classes), dtype=dtype) if biased else None
    parameters = [w, b] if biased else [w]
    for how in ({}, {"reduction": "sum", "label_smoothing": 0.1, "ignore_index": 0}):

        def step(x: Any, y: Any, how: Any = how) -> Any:
            with pb.GradientTape() as tape:
                tape.watch(x)
                logits = nn.functional.linear(x, w, b)
                loss = nn.cross_entropy(logits, y, **how)
            return loss, logits, tape.gradient(loss, [x, *parameters])

        captured = pb.capture(step)
        for _ in range(2):
            x = pb.tensor(rng.standard_normal((rows, terms)), dtype=dtype)
            y = pb.tensor(rng.integers(0, classes, rows) if how else np.zeros(rows, np.int64))
            for got, wanted in zip(flatten(captured(x, y))[0], flatten(step(x, y))[0]):
                same(got, wanted)
        fused = ("linear", "cross_entropy_total", "cross_entropy_total_pullback")
        fits = classes <= 32 and fuses_heads(mode) and (devices.default_device() == "cpu" or (rows <= 1024 and terms <= 2048))
        assert (fused in [kernel.launches for kernel in captured.explain().kernels]) == fits


def test_a_head_of_rounded_factors_has_the_bits_of_its_launches(mode: str) -> None:
    rng = np.random.default_rng(0)
    x, w = pb.tensor(rng.standard_normal((20, 30), dtype=np.float32)), pb.Parameter(rng.standard_normal((6, 30), dtype=np.float32))
    y = pb.tensor(rng.integers(0, 6, 20))

    def step(x: Any, y: Any) -> Any:
        with pb.amp.autocast("bfloat16"), pb.GradientTape() as tape:
            loss = nn.cross_entropy(nn.functional.linear(x, w), y)
        return loss, tape.gradient(loss, w)

    captured = pb.capture(step)
    for _ in range(2):
        for got, wanted in zip(captured(x, y), step(x, y)):
            same(got, wanted)


def test_a_wrong_label_of_a_head_is_named() -> None:
    net, _, step = network((5, 4, 3))
    captured = pb.capture(step)
    x = pb.ones((6, 5))
    captured(x, pb.zeros(6, dtype=pb.int64))
    before = [host(p) for p in net.parameters()]
    if devices.default_device() == "cpu":
        with pytest.raises(IndexError, match="cross_entropy_total: index 3 at position 3 is out of range"):
            captured(x, pb.tensor([0, 1, 2, 3, 0, 1]))
        for p, q in zip(net.parameters(), before):
            np.testing.assert_array_equal(host(p), q)
