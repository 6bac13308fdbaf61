"""The profiler's counts equal the textbook formulas for networks, loops, recurrent cells, attention and convolution."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import simulated
from pullback import nn, optim
from pullback.nn import functional as F
from pullback.profiling import Figures
from pullback.tensors import devices

RNG = np.random.default_rng(0)
TIMES = 1000 if devices.default_device() == "cpu" else 10  # a step takes a quarter of a second on the simulator


def normal(*shape: int) -> Any:
    return pb.tensor(RNG.standard_normal(shape), dtype=pb.float32)


def parameter(*shape: int) -> pb.Parameter:
    return pb.Parameter(RNG.standard_normal(shape), dtype=pb.float32)


def mlp() -> Any:
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


IMAGES, LABELS = normal(64, 784), pb.tensor(np.arange(64) % 10)


def forward_of(f: Callable[[], Any]) -> Figures:
    with pb.profile(strict=True) as prof:
        f()
    return prof.forward


# ---- a network


@pytest.mark.parametrize(("argnums", "backward"), [((), 13_172_736), ((0,), 26_017_792)])
def test_a_multilayer_perceptron(argnums: Any, backward: int) -> None:
    net = mlp()
    with pb.profile(strict=True) as prof, pb.GradientTape() as tape:
        if argnums:
            tape.watch(IMAGES)
        tape.gradient(nn.cross_entropy(net(IMAGES), LABELS), [*net.parameters(), *([IMAGES] if argnums else [])])
    assert (prof.forward.matmul_flops, prof.backward.matmul_flops) == (13_008_896, backward)
    counted = pb.flops(lambda x: nn.cross_entropy(net(x), LABELS), IMAGES, argnums=argnums)
    for phase in ("forward", "backward"):
        ran, formula = getattr(prof, phase), getattr(counted, phase)
        assert (ran.flops, ran.matmul_flops, ran.special_ops) == (formula.flops, formula.matmul_flops, formula.special_ops)


def test_per_example_gradients_of_it() -> None:
    net = mlp()
    with pb.profile(strict=True) as prof:
        pb.per_example_grad(lambda parameters, x, y: nn.cross_entropy(net(x), y))(net.parameters(), IMAGES, LABELS)
    assert prof.total.matmul_flops == 26_181_632


@needs_kernels
def test_a_captured_step_counts_at_every_replay() -> None:
    net = mlp()
    opt = optim.Adam(net.parameters())

    def step(x: Any, y: Any) -> Any:
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(net(x), y)
        opt.step(tape.gradient(loss, opt.parameters))
        return loss

    step(IMAGES, LABELS)
    with pb.profile(strict=True) as eager:
        step(IMAGES, LABELS)
    captured = pb.capture(step)
    captured(IMAGES, LABELS)
    with pb.profile(strict=True, detail="count") as prof:
        for _ in range(TIMES):
            captured(IMAGES, LABELS)
    for phase in ("forward", "backward", "optimizer"):
        once, often = getattr(eager, phase), getattr(prof, phase)
        for figure in ("flops", "matmul_flops", "special_ops"):
            assert getattr(often, figure) == TIMES * getattr(once, figure), (phase, figure)
    assert prof.forward.matmul_flops == TIMES * 13_008_896
    assert {row.module for row in prof.rows} == {row.module for row in eager.rows}


# ---- products, and the ops that are made of them


@pytest.mark.parametrize("n", [1, 10, 100])
def test_a_loop_of_products(n: int) -> None:
    a = normal(64, 64)

    def loop() -> None:
        x = a
        for _ in range(n):
            x = x @ a

    assert forward_of(loop).matmul_flops == 524_288 * n


def test_a_matrix_times_a_vector() -> None:
    a, x = normal(100, 1000), normal(1000)
    assert forward_of(lambda: a @ x).matmul_flops == 200_000


def test_einsum() -> None:
    a, b = normal(4, 8, 16), normal(4, 16, 8)
    assert forward_of(lambda: pb.einsum("bij,bjk->bik", a, b)).matmul_flops == 8_192


@pytest.mark.parametrize(("gates", "flops"), [(4, 8_388_608), (3, 6_291_456)], ids=["lstm", "gru"])
def test_a_recurrent_layer(gates: int, flops: int) -> None:
    """The layer has 64 units over 64 numbers, 16 steps and batch 8.

    The products of all gates with the input and the state count.
    """
    w, u, x = parameter(64, gates * 64), parameter(64, gates * 64), normal(16, 8, 64)

    def lstm() -> None:
        h = c = pb.zeros((8, 64), dtype=pb.float32)
        for t in range(16):
            i, f, o, g = pb.split(x[t] @ w + h @ u, 4, axis=1)
            c = F.sigmoid(f) * c + F.sigmoid(i) * pb.tanh(g)
            h = F.sigmoid(o) * pb.tanh(c)

    def gru() -> None:
        h = pb.zeros((8, 64), dtype=pb.float32)
        for t in range(16):
            (xr, xz, xn), (hr, hz, hn) = [pb.split(v, 3, axis=1) for v in (x[t] @ w, h @ u)]
            r, z = F.sigmoid(xr + hr), F.sigmoid(xz + hz)
            h = (1 - z) * pb.tanh(xn + r * hn) + z * h

    assert forward_of(lstm if gates == 4 else gru).matmul_flops == flops


def test_causal_attention() -> None:
    """Attention has batch 1, 2 heads and 32 × 16 numbers. Each query meets the keys up to its position, as in a fused kernel."""
    q, k, v = [normal(1, 2, 32, 16) for _ in range(3)]

    def rows() -> None:
        for t in range(32):
            scores = q[:, :, t : t + 1] @ pb.swapaxes(k[:, :, : t + 1], 2, 3)
            F.softmax(scores / 4, axis=-1) @ v[:, :, : t + 1]

    assert forward_of(rows).matmul_flops == 67_584


def test_a_convolution() -> None:
    """The convolution has 3 → 8 channels, 3 × 3 filters, same padding, 16 × 16 pixels and batch 2. Taps in the padding count."""
    x, w = normal(2, 3, 16, 16), parameter(8, 3, 3, 3)

    def convolve() -> None:
        padded = pb.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        patches = pb.stack([padded[:, :, i : i + 16, j : j + 16] for i in range(3) for j in range(3)], axis=2)
        pb.reshape(w, (8, 27)) @ pb.reshape(patches, (2, 27, 256))

    assert forward_of(convolve).matmul_flops == 221_184


# ---- comparison with torch's counter


def torch_counts(loss: Callable[[], Any]) -> tuple[int, int]:
    counter = pytest.importorskip("torch.utils.flop_counter")
    with counter.FlopCounterMode(display=False) as forward:
        y = loss()
    with counter.FlopCounterMode(display=False) as backward:
        y.backward()
    return forward.get_total_flops(), backward.get_total_flops()


def our_counts(loss: Callable[[], Any], parameters: Any) -> tuple[int, int]:
    with pb.profile(strict=True) as prof:
        with pb.GradientTape() as tape:
            y = loss()
        tape.gradient(y, parameters)
    return prof.forward.matmul_flops, prof.backward.matmul_flops


def test_a_multilayer_perceptron_as_torch_counts_it() -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = [
        of.Sequential(of.Linear(20, 30), of.Tanh(), of.Linear(30, 30), of.Tanh(), of.Linear(30, 5)) for of in (nn, torch.nn)
    ]
    x, y = normal(7, 20), pb.tensor(np.arange(7) % 5)
    images, labels = torch.zeros(7, 20), torch.zeros(7, dtype=torch.int64)
    wanted = torch_counts(lambda: torch.nn.functional.cross_entropy(theirs(images), labels))
    assert our_counts(lambda: nn.cross_entropy(ours(x), y), ours.parameters()) == wanted


def test_a_convolutional_net_as_torch_counts_it() -> None:
    torch = pytest.importorskip("torch")
    shapes = [(8, 3, 3, 3), (12, 8, 3, 3)]
    theirs = [torch.zeros(shape, requires_grad=True) for shape in shapes] + [torch.zeros(10, 12 * 8 * 8, requires_grad=True)]
    ours = [parameter(*shape) for shape in shapes] + [parameter(10, 12 * 8 * 8)]
    x, images = normal(2, 3, 8, 8), torch.zeros(2, 3, 8, 8)

    def convolve(v: Any, w: Any) -> Any:
        padded = pb.pad(v, ((0, 0), (0, 0), (1, 1), (1, 1)))
        patches = pb.stack([padded[:, :, i : i + 8, j : j + 8] for i in range(3) for j in range(3)], axis=2)
        y = pb.reshape(w, (w.shape[0], -1)) @ pb.reshape(patches, (2, w.shape[1] * 9, 64))
        return pb.relu(pb.reshape(y, (2, w.shape[0], 8, 8)))

    def loss() -> Any:
        h = convolve(convolve(x, ours[0]), ours[1])
        return pb.sum(pb.reshape(h, (2, -1)) @ ours[2].T)

    def torch_loss() -> Any:
        h = images
        for w in theirs[:2]:
            h = torch.relu(torch.nn.functional.conv2d(h, w, padding=1))
        return (h.reshape(2, -1) @ theirs[2].T).sum()

    assert our_counts(loss, ours) == torch_counts(torch_loss)


def test_a_small_gpt_as_torch_counts_it() -> None:
    torch = pytest.importorskip("torch")
    length, width, heads, words = 12, 16, 2, 20
    shapes = {"e": (words, width), "qkv": (width, 3 * width), "o": (width, width), "up": (width, 64), "down": (64, width)}
    ours = {name: parameter(*shape) for name, shape in shapes.items()}
    theirs = {name: torch.zeros(shape, requires_grad=True) for name, shape in shapes.items()}
    text = np.arange(2 * length).reshape(2, length) % words

    def forward(p: Any, h: Any, xp: Any, softmax: Any, relu: Any) -> Any:
        for _ in range(2):
            parts = (h @ p["qkv"]).reshape(2, length, 3, heads, width // heads)
            q, k, v = [xp.swapaxes(parts[:, :, i], 1, 2) for i in range(3)]
            a = softmax(q @ xp.swapaxes(k, 2, 3)) @ v
            h = h + xp.swapaxes(a, 1, 2).reshape(2, length, width) @ p["o"]
            h = h + relu(h @ p["up"]) @ p["down"]
        return (h @ p["e"].T).sum()

    def loss() -> Any:
        return forward(ours, pb.take(ours["e"], pb.tensor(text), axis=0), pb, lambda s: F.softmax(s, axis=-1), pb.relu)

    def torch_loss() -> Any:
        embedded = theirs["e"][torch.tensor(text)]
        return forward(theirs, embedded, torch, lambda s: torch.softmax(s, -1), torch.relu)

    assert our_counts(loss, list(ours.values())) == torch_counts(torch_loss)


# ---- by op, module, line and order


def test_rows_tell_op_module_line_and_order() -> None:
    net = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))
    net.parameters()
    x, y = normal(5, 8), pb.tensor([0, 1, 2, 0, 1])
    with pb.profile(strict=True) as prof, pb.GradientTape() as tape:
        loss = nn.cross_entropy(net(x), y)
        tape.gradient(loss, net.parameters())
    modules = {group.name: group.phases for group in prof.by("module")}
    assert modules["0"]["forward"].matmul_flops == modules["0"]["backward"].matmul_flops == 2 * 5 * 8 * 6
    assert modules["2"]["backward"].matmul_flops == 2 * modules["2"]["forward"].matmul_flops == 4 * 5 * 6 * 3
    lines = {group.name for group in prof.by("line") if group.total.matmul_flops}
    assert len(lines) == 1
    assert "test_rows_tell_op_module_line_and_order" in next(iter(lines))
    assert {group.name for group in prof.by("order") if group.total.launches} >= {"0", "1"}
    for axis in ("op", "module", "line", "kernel", "order", "dtype"):
        groups = prof.by(axis)
        assert sum([group.total.flops for group in groups]) == prof.total.flops
        assert sum([group.total.launches for group in groups]) == prof.total.launches
    with pytest.raises(pb.PullbackError, match="'op', 'module'"):
        prof.by("weather")


def test_second_derivatives_are_apart() -> None:
    x = normal(1000)
    with pb.profile(strict=True) as prof:
        with pb.GradientTape() as outer:
            outer.watch(x)
            with pb.GradientTape() as inner:
                inner.watch(x)
                y = pb.sum(pb.tanh(x))
            slope = pb.sum(inner.gradient(y, x) ** 2)
        outer.gradient(slope, x)
    orders = {group.name: group for group in prof.by("order")}
    assert set(orders) == {"0", "1", "2"}
    assert set(orders["2"].phases) == {"backward"}
    assert orders["2"].total.flops > 0
    assert {row.op for row in prof.rows if row.order == 2} >= {"tanh"}


def test_arithmetic_on_integers_is_apart() -> None:
    a, b = pb.tensor([1, 2, 3]), pb.tensor([4, 5, 6])
    with pb.profile(strict=True) as prof:
        (a * b + a) @ b
    assert (prof.total.flops, prof.total.special_ops, prof.total.matmul_flops) == (0, 0, 0)
    assert prof.total.integer_ops == 3 + 3 + 2 * 3
    with pb.profile() as prof:
        normal(4) * 2
        pb.tensor([1.0, 2.0], dtype=pb.float64) * 2
    assert {group.name: group.total.flops for group in prof.by("dtype")} == {"float32": 4, "float64": 2}


# ---- pb.flops


def test_flops_runs_no_kernel_and_changes_nothing() -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 3))
    opt = optim.Adam(net.parameters())
    x, y = normal(4, 6), pb.tensor([0, 1, 2, 0])

    def step(x: Any, y: Any) -> Any:
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(net(x), y)
        opt.step(tape.gradient(loss, opt.parameters))
        return loss

    before = [np.array(p.numpy()) for p in opt.parameters]
    versions, state = [p.storage.version for p in opt.parameters], pb.random.state_dict()
    counted = pb.flops(step, x, y)
    assert all([np.array_equal(a, p.numpy()) for a, p in zip(before, opt.parameters)])
    assert (opt.steps, [p.storage.version for p in opt.parameters]) == (0, versions)
    assert pb.random.state_dict() == state
    with pb.profile(strict=True) as prof:
        step(x, y)
    for phase in ("forward", "backward", "optimizer"):
        ran, formula = getattr(prof, phase), getattr(counted, phase)
        assert (ran.flops, ran.special_ops, ran.integer_ops) == (formula.flops, formula.special_ops, formula.integer_ops), phase
    assert counted.spans == []
    assert counted.total.seconds == 0


@needs_kernels
@pytest.mark.skipif(devices.default_device() != "cpu", reason="on a GPU a broadcast array takes its whole size")
def test_flops_of_a_product_too_large_to_be_computed() -> None:
    a = pb.asarray(np.broadcast_to(np.float32(0), (200_000, 200_000)))  # would take 160 GB, but a broadcast array stores one number
    assert pb.flops(lambda x: pb.sum(x @ x[:, :1]), a).forward.matmul_flops == 2 * 200_000**2


def test_flops_refuses_what_depends_on_values() -> None:
    x = normal(4)
    with pytest.raises(pb.PullbackError, match=r"test_flop_counts\.py.*shapes only"):
        pb.flops(lambda v: v if float(pb.sum(v)) > 0 else -v, x)
    with pytest.raises(pb.PullbackError, match="argnums"):
        pb.flops(lambda v: v, x, argnums=1)
    assert pb.flops(lambda v: v + 1, x).total.flops == 4


# ---- time


def test_phases_add_up_to_the_whole_time() -> None:
    net = mlp()
    opt = optim.Adam(net.parameters())
    begin = time.perf_counter()
    with pb.profile(strict=True) as prof:
        for _ in range(TIMES // 5):
            with pb.GradientTape() as tape:
                loss = nn.cross_entropy(net(IMAGES), LABELS)
            opt.step(tape.gradient(loss, opt.parameters))
        seconds = time.perf_counter() - begin
    assert prof.total.seconds == pytest.approx(prof.seconds, rel=0.02)
    if pb.ones(1).device == "cpu" or simulated():  # a GPU still works while the host goes on
        assert prof.seconds == pytest.approx(seconds, rel=0.02)
    assert [span.begin for span in prof.spans[1:]] == pytest.approx([span.end for span in prof.spans[:-1]])
    assert {span.phase for span in prof.spans} == {"forward", "backward", "optimizer"}


@pytest.mark.skipif(devices.default_device() != "cpu", reason="so many launches take a minute on the simulator")
def test_what_is_not_kept_is_still_summed_up() -> None:
    x = normal(3)
    with pb.profile(strict=True) as prof:
        for _ in range(40_000):
            x + 1
    assert (prof.total.launches, prof.total.flops) == (40_000, 120_000)
    assert 16_384 <= len(prof.launches) < 40_000
    assert prof.dropped == 40_000 - len(prof.launches)


def test_counting_flops_leaves_views_as_they_are() -> None:
    start = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    w = pb.Parameter(start)
    view, optimizer = w.T, optim.SGD([w], lr=0.1)

    def step(x: Any) -> Any:
        with pb.GradientTape() as tape:
            loss = pb.sum(w * x)
        optimizer.step([tape.gradient(loss, w)])
        return loss

    pb.flops(step, pb.ones((2, 3)))
    np.testing.assert_array_equal(view.numpy(), start.T)
    step(pb.ones((2, 3)))
    with pytest.raises(pb.StaleValueError):
        view.numpy()
