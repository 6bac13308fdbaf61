"""Capture: a replayed step gives the bits of the eager step, and later replays do not change what earlier ones returned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import CLASSES, OPTIMIZERS, ROWS, batches, needs_kernels, run, same, same_state, training
from conftest import host, simulated
from pullback.nn import functional as F
from pullback.tensors import devices
from pullback.tree import flatten

pytestmark = needs_kernels
STEPS = 24 if simulated() else 200  # the simulated device takes milliseconds for each launch


@pytest.mark.parametrize("fusion", ["exact", "none"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_captured_steps_are_eager_steps_bit_for_bit(name: str, fusion: str) -> None:
    data = batches(8) * (STEPS // 8)
    _, eager, step = training(OPTIMIZERS[name])
    wanted = run(step, data)
    _, opt, step = training(OPTIMIZERS[name])
    captured = pb.capture(step, fusion=fusion)
    for got, right in zip(run(captured, data), wanted):
        same(got, right)
    same_state(opt, eager)
    assert captured.stats().captures == 1
    assert captured.stats().replays == STEPS - 1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fast_fusion_is_within_rounding_of_eager(name: str) -> None:
    data = batches(8) * (STEPS // 8)
    _, eager, step = training(OPTIMIZERS[name])
    wanted = run(step, data)
    _, opt, step = training(OPTIMIZERS[name])
    got = run(pb.capture(step, fusion="fast"), data)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    for p, q in zip(opt.parameters, eager.parameters):
        np.testing.assert_allclose(host(p), host(q), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["adam", "lion"])
@pytest.mark.parametrize("dtype", [pb.float16, pb.bfloat16, pb.float64], ids=str)
def test_other_dtypes_keep_their_bits(dtype: Any, name: str) -> None:
    data = batches(20, dtype)
    _, eager, step = training(OPTIMIZERS[name], dtype)
    wanted = run(step, data)
    _, opt, step = training(OPTIMIZERS[name], dtype)
    for got, right in zip(run(pb.capture(step), data), wanted):
        same(got, right)
    same_state(opt, eager)


def test_precision_of_products_is_recorded_and_part_of_the_signature() -> None:
    data = batches(3)
    net, _, _ = training(OPTIMIZERS["sgd"])
    net.eval()

    def forward(x: Any) -> Any:
        with pb.amp.autocast("bfloat16"):
            rounded = net(x)
        return rounded, net(x)

    captured = pb.capture(forward)
    for x, _ in data:
        for got, wanted in zip(captured(x), forward(x)):
            same(got, wanted)
    plain = pb.capture(net)
    x = data[0][0]
    plain(x)
    with pb.amp.autocast("bfloat16"):
        same(plain(x), net(x))
        same(plain(x), net(x))
    same(plain(x), net(x))
    assert plain.stats().captures == 2


# ---- results


def test_results_do_not_change_at_the_next_replay() -> None:
    f = pb.capture(lambda x: (x * 2, pb.sum(x), x[1:]))
    kept = [f(pb.full((1000,), float(k))) for k in range(5)]
    for k, (double, total, part) in enumerate(kept):
        same(double, np.full(1000, 2.0 * k, np.float32))
        assert total.item() == 1000.0 * k
        same(part, np.full(999, float(k), np.float32))


def test_arguments_and_results_may_be_anywhere() -> None:
    for steps in (None, 3):
        f = pb.capture(lambda x, y: (pb.tanh(x) @ y, pb.sum(x * y)), steps=steps)
        rng, kept = np.random.default_rng(0), []
        for _ in range(20):  # more calls than the number of address sets for which a GPU keeps graphs
            x, y = [pb.tensor(rng.standard_normal((*([steps] if steps else []), 4, 4), dtype=np.float32)) for _ in range(2)]
            kept.append((x, y, f(x, y)))
        for x, y, (product, total) in kept:
            same(product, pb.tanh(x) @ y)
            same(total, pb.sum(x * y, axis=(-2, -1)))
        assert f.stats().captures == 1


def test_results_keep_their_structure_and_what_is_no_tensor() -> None:
    p = pb.Parameter([1.0, 2.0])
    f = pb.capture(lambda x: {"x": x, "p": p, "both": [x + p, None, "words"], "twice": (s := pb.sum(x), s)})
    for k in range(3):
        x = pb.tensor([float(k), 1.0])
        out = f(x)
        same(out["x"], x)
        assert out["p"] is p
        same(out["both"][0], x + p)
        assert out["both"][1:] == [None, "words"]
        assert [t.item() for t in out["twice"]] == [k + 1.0, k + 1.0]


def test_strided_arguments_are_taken_as_they_are() -> None:
    base = pb.tensor(np.arange(24.0, dtype=np.float32).reshape(4, 6))
    f = pb.capture(lambda x: pb.sum(pb.square(x), axis=0))
    for x in (base, base.T, base[:, ::2], base[::-1], pb.broadcast_to(base[0], (4, 6)), base[1:3]):
        for _ in range(2):
            same(f(x), pb.sum(pb.square(x), axis=0))


def test_arguments_that_are_the_same_tensor_are_apart_at_the_next_call() -> None:
    f = pb.capture(lambda a, b: a - 2 * b)
    a, b = pb.tensor([1.0, 2.0]), pb.tensor([5.0, 7.0])
    same(f(a, a), a - 2 * a)
    same(f(a, b), a - 2 * b)
    same(f(b, a), b - 2 * a)


def test_an_argument_is_apart_from_the_same_tensor_outside() -> None:
    fixed = pb.tensor([1.0, 2.0])
    f = pb.capture(lambda x: x + 10 * fixed)
    same(f(fixed), 11 * fixed)
    other = pb.tensor([3.0, 3.0])
    same(f(other), other + 10 * fixed)


def test_numpy_arrays_are_tensors() -> None:
    f = pb.capture(lambda x: pb.square(x))
    for k in range(3):
        x = np.arange(4.0, dtype=np.float32) + k
        same(f(x), x * x)
    assert f.stats().captures == 1


# ---- several steps per call


def test_k_steps_in_one_replay_are_k_calls() -> None:
    data = batches(12)
    _, eager, step = training(OPTIMIZERS["scheduled"])
    wanted = run(step, data)
    _, opt, step = training(OPTIMIZERS["scheduled"])
    captured = pb.capture(step, steps=4)
    pb.random.seed(1)
    got = []
    for k in range(0, 12, 4):
        xs, ys = [pb.stack(list(part)) for part in zip(*data[k : k + 4])]
        got += list(host(captured(xs, ys)))
    same(np.stack(got), np.stack(wanted))
    same_state(opt, eager)
    assert captured.stats().replays == 3  # the rest of the first call, and two more calls


def test_k_steps_need_the_axis_of_steps() -> None:
    captured = pb.capture(lambda x, by=2.0: x * by, steps=3)
    same(captured(pb.ones((3, 2))), np.full((3, 2), 2, np.float32))
    for x in (pb.ones((4, 2)), pb.ones(())):
        with pytest.raises(pb.ShapeError, match="first axis must have one entry for each of the 3 steps"):
            captured(x)
    with pytest.raises(pb.ShapeError, match="no tensor"):
        captured(1.0)


def test_a_loader_is_shuffled_and_gathered_inside() -> None:
    rng = np.random.default_rng(0)
    arrays = pb.tensor(rng.standard_normal((60, 5), dtype=np.float32)), pb.tensor(rng.integers(0, CLASSES, 60))
    _, _, step = training(OPTIMIZERS["adam"])
    pb.random.seed(1)
    loader = pb.data.Loader(arrays, batch_size=ROWS, seed=7)
    wanted = [host(step(*batch)) for _ in range(3) for batch in loader]
    for steps in (None, 1, 4):
        _, _, step = training(OPTIMIZERS["adam"])
        captured, loader = pb.capture(step, steps=steps), pb.data.Loader(arrays, batch_size=ROWS, seed=7)
        pb.random.seed(1)
        got: list[Any] = []
        while len(got) < 12:
            got += list(host(captured(loader)).reshape(-1))
        same(np.array(got), np.array(wanted[:12]))
        assert loader.state_dict().items() >= {"epoch": 2, "batches": 2, "seed": 7}.items()
        assert captured.stats().captures == 1
    with pb.profile() as prof:
        captured(loader)
    assert prof.data.bytes_read > 0
    with pytest.raises(pb.PullbackError, match="drop_last=True"):
        captured(pb.data.Loader(arrays, batch_size=7))


# ---- the plan


@pytest.mark.skipif(devices.default_device() != "cpu", reason="a GPU's elementwise kernels are not fused yet")
def test_elementwise_ops_that_follow_each_other_are_one_pass() -> None:
    def chain(x: Any) -> Any:
        for _ in range(10):
            x = pb.tanh(x) * 2.0 + x
        return x

    captured = pb.capture(chain)
    x = pb.tensor(np.random.default_rng(0).standard_normal(50_000, dtype=np.float32))
    captured(x)
    assert captured.stats().kernels_per_replay == 1
    assert captured.stats().launches == 30
    assert captured.stats().arena_bytes == 0  # intermediate values never leave the cache
    same(captured(2 * x), chain(2 * x))
    assert "30 launches in one pass" in str(captured.explain())


def test_a_loss_and_its_gradient_are_one_kernel() -> None:
    rng = np.random.default_rng(0)
    for reduction, smoothing, dtype in [("mean", 0.0, pb.float32), ("sum", 0.1, pb.float64), ("mean", 0.2, pb.float16)]:

        def both(x: Any, y: Any, reduction: str = reduction, smoothing: float = smoothing) -> Any:
            with pb.GradientTape() as tape:
                tape.watch(x)
                loss = F.cross_entropy(x * 2, y, reduction=reduction, label_smoothing=smoothing, ignore_index=1)
            return loss, tape.gradient(loss, x)

        captured = pb.capture(both)
        for classes in (3, 40):
            for _ in range(3):
                x = pb.tensor(rng.standard_normal((9, classes)), dtype=dtype)
                y = pb.tensor(rng.integers(0, 3, 9))
                for got, wanted in zip(captured(x, y), both(x, y)):
                    same(got, wanted)
            kernels = [kernel.launches for kernel in captured.explain().kernels]
            assert ("cross_entropy_total", "cross_entropy_total_pullback") in kernels


@pytest.mark.parametrize("name", ["relu", "tanh", "sigmoid", "exp"])
@pytest.mark.parametrize("shape", [(100, 2, 16), (64, 200, 128), (1, 3, 5), (7, 2, 1), (4, 3, 3), (33, 17, 90)], ids=str)
def test_a_product_a_bias_and_an_activation_are_one_kernel(shape: tuple[int, int, int], name: str) -> None:
    m, k, n = shape
    rng = np.random.default_rng(0)
    for dtype in (pb.float32, pb.float64):
        w, b = pb.Parameter(rng.standard_normal((k, n)), dtype=dtype), pb.Parameter(rng.standard_normal(n), dtype=dtype)

        def layer(x: Any, w: Any = w, b: Any = b) -> Any:
            with pb.GradientTape() as tape:
                y = getattr(pb, name)(x @ w + b)
            return y, tape.gradient(y, [w, b], output_gradients=pb.ones_like(y))

        captured = pb.capture(layer)
        for _ in range(3):
            x = pb.tensor(rng.standard_normal((m, k)), dtype=dtype)
            (y, grads), (wanted, right) = captured(x), layer(x)
            same(y, wanted)
            for got, gradient in zip(grads, right):
                same(got, gradient)
        first = captured.explain().kernels[0].launches
        assert first[:2] == ("matmul", "add")
        assert len(first) == (2 if name == "exp" else 3)


@pytest.mark.parametrize("fusion", ["exact", "fast"])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_product_added_to_itself_or_read_twice_is_not_fused_away(rows: int, fusion: str) -> None:
    w = pb.tensor(np.random.default_rng(0).standard_normal((3, 3)))
    for f in (lambda x: (y := x @ w) + y, lambda x: (y := x @ w) + pb.tanh(y), lambda x: pb.relu(y := x @ w + w[0]) - y):
        captured = pb.capture(f, fusion=fusion)
        for k in range(3):
            x = pb.tensor(np.random.default_rng(k).standard_normal((rows, 3)))
            same(captured(x), f(x))


@pytest.mark.parametrize("cell", ["products", "layers"])
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-6), ("float64", 1e-14)])
def test_fast_fusion_sums_gradients_inside_the_product(cell: str, dtype: Any, rtol: float) -> None:
    rng = np.random.default_rng(0)
    w, b, c = [pb.Parameter(rng.standard_normal(shape) / 5, dtype=dtype) for shape in ((20, 20), (20,), (20, 20))]

    def advance(h: Any, x: Any) -> Any:
        return pb.tanh(h @ w + x @ c) if cell == "products" else F.linear(h, w, b, "tanh") + F.linear(x, c)

    def unrolled(x: Any) -> Any:
        with pb.GradientTape() as tape:
            tape.watch(x)
            h = x
            for _ in range(4):
                h = advance(h, x)
            loss = pb.sum(pb.exp(h))
        return loss, tape.gradient(loss, [w, b, c, x], unconnected="zero")

    captured, exact = pb.capture(unrolled, fusion="fast"), pb.capture(unrolled)
    for _ in range(3):
        x = pb.tensor(rng.standard_normal((30, 20)), dtype=dtype)
        for got, kept, wanted in zip(flatten(captured(x))[0], flatten(exact(x))[0], flatten(unrolled(x))[0]):
            scale = float(pb.max(pb.abs(wanted)))
            np.testing.assert_allclose(host(got), host(wanted), rtol=rtol, atol=rtol * scale)
            same(kept, wanted)
    backward = [kernel.launches for kernel in captured.explain().kernels if kernel.phase == "backward"]
    inside = sum([names.count("add") for names in backward if names[0] in ("matmul", "linear_pullback")])
    assert inside == 10  # w, c and x three times each, and the initial state, which is x
    assert backward.count(("add",)) == (0 if cell == "products" else 3)


@pytest.mark.parametrize("fusion", ["exact", "fast"])
def test_a_cotangent_that_its_own_product_is_added_to_stays_whole(fusion: str) -> None:
    rng = np.random.default_rng(0)
    w = pb.Parameter(rng.standard_normal((40, 40)) / 5)

    @pb.capture(fusion=fusion)
    def residual(x: Any) -> Any:
        with pb.GradientTape() as tape:
            tape.watch(x)
            h = x
            for _ in range(3):
                h = h + F.linear(h, w)
            loss = pb.sum(h * h)
        return tape.gradient(loss, [x, w])

    for _ in range(3):
        x = pb.tensor(rng.standard_normal((30, 40)))
        for got, wanted in zip(residual(x), residual.__wrapped__(x)):
            np.testing.assert_allclose(host(got), host(wanted), rtol=1e-12, atol=1e-12 * float(pb.max(pb.abs(wanted))))


def test_what_nobody_needs_is_not_computed() -> None:
    def wasteful(x: Any) -> Any:
        pb.sum(pb.exp(x) @ x)
        return x * 2

    captured = pb.capture(wasteful)
    x = pb.ones((8, 8))
    captured(x)
    same(captured(3 * x), 6 * x)
    assert captured.explain().dead == 3
    plain = pb.capture(wasteful, fusion="none")
    plain(x)
    assert plain.stats().launches == 4


def test_temporaries_take_each_others_place() -> None:
    def deep(x: Any) -> Any:
        for _ in range(50):
            x = x @ x
        return x

    captured = pb.capture(deep)
    x = pb.eye(64)
    captured(x)
    assert captured.stats().arena_bytes == 2 * 64 * 64 * 4
    same(captured(x), x)
