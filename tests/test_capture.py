"""Capture: a step that is replayed gives the bits of the eager step, sees what has changed, and refuses what it could not repeat."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import backends, devices, nn, optim
from pullback.nn import functional as F

pytestmark = pytest.mark.skipif(
    backends.why_not(devices.default_device()) is not None, reason=f"no native kernels: {backends.why_not(devices.default_device())}"
)
ROWS, CLASSES = 12, 4


class Net(nn.Module):
    def __init__(self, dtype: Any = None) -> None:
        self.layers = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.LayerNorm(7), nn.Dropout(0.3), nn.Linear(7, CLASSES))
        if dtype is not None:
            self.to(dtype)

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def batches(count: int, dtype: Any = np.float32) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    return [
        (pb.tensor(rng.standard_normal((ROWS, 5)), dtype=dtype), pb.tensor(rng.integers(0, CLASSES, ROWS))) for _ in range(count)
    ]


def training(make: Callable[[Any], Any], dtype: Any = None) -> tuple[Any, Any, Any]:
    """A net, its optimizer and a step, the same every time."""
    pb.random.seed(3)
    net = Net(dtype)
    opt = make(net.parameters())

    def step(x: Any, y: Any) -> Any:
        with pb.GradientTape() as tape:
            loss = F.cross_entropy(net(x), y)
        opt.step(tape.gradient(loss, opt.parameters))
        return loss

    return net, opt, step


def run(step: Any, data: Any, seed: int = 1) -> list[Any]:
    pb.random.seed(seed)
    return [host(step(*batch)) for batch in data]


def same(a: Any, b: Any) -> None:
    np.testing.assert_array_equal(np.ascontiguousarray(host(a)).view(np.uint8), np.ascontiguousarray(host(b)).view(np.uint8))


def same_state(one: Any, other: Any) -> None:
    """Weights, slots, counts and versions of two optimizers."""
    assert one.steps == other.steps
    for p, q in zip(one.parameters, other.parameters):
        same(p, q)
        assert p.version == q.version
        for name, slot in one.slots(p).items():
            same(slot, other.slots(q)[name])


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda ps: optim.SGD(ps, lr=0.1),
    "momentum": lambda ps: optim.SGD(ps, lr=0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda ps: optim.SGD(ps, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda ps: optim.Adam(ps, lr=0.01),
    "adamw": lambda ps: optim.AdamW(ps, lr=optim.schedules.Cosine(0.01, 150), clip_norm=0.5),
    "clipped": lambda ps: optim.Adam(ps, lr=optim.schedules.WarmupCosine(0.01, 20, 180), clip_value=0.01),
}


@pytest.mark.parametrize("fusion", ["exact", "none"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_200_captured_steps_are_200_eager_steps_bit_for_bit(name: str, fusion: str) -> None:
    data = batches(8) * 25
    _, eager, step = training(OPTIMIZERS[name])
    wanted = run(step, data)
    _, opt, step = training(OPTIMIZERS[name])
    captured = pb.capture(step, fusion=fusion)
    for got, right in zip(run(captured, data), wanted):
        same(got, right)
    same_state(opt, eager)
    assert captured.stats()["captures"] == 1
    assert captured.stats()["replays"] == 199


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fast_fusion_is_within_rounding_of_eager_over_200_steps(name: str) -> None:
    data = batches(8) * 25
    _, eager, step = training(OPTIMIZERS[name])
    wanted = run(step, data)
    _, opt, step = training(OPTIMIZERS[name])
    got = run(pb.capture(step, fusion="fast"), data)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    for p, q in zip(opt.parameters, eager.parameters):
        np.testing.assert_allclose(host(p), host(q), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", [pb.float16, pb.bfloat16, pb.float64], ids=str)
def test_other_dtypes_keep_their_bits(dtype: Any) -> None:
    data = batches(20, dtype)
    _, eager, step = training(OPTIMIZERS["adam"], dtype)
    wanted = run(step, data)
    _, opt, step = training(OPTIMIZERS["adam"], dtype)
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
    assert plain.stats()["captures"] == 2


# ---- what is given back


def test_results_do_not_change_at_the_next_replay() -> None:
    f = pb.capture(lambda x: (x * 2, pb.sum(x), x[1:]))
    kept = [f(pb.full((1000,), float(k))) for k in range(5)]
    for k, (double, total, part) in enumerate(kept):
        same(double, np.full(1000, 2.0 * k, np.float32))
        assert total.item() == 1000.0 * k
        same(part, np.full(999, float(k), np.float32))


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
    assert f.stats()["captures"] == 1


# ---- what a replay sees


def test_a_new_learning_rate_holds_from_the_next_replay_on() -> None:
    data = batches(9)
    trained = []
    for wrap in (lambda f: f, pb.capture):
        _, opt, step = training(OPTIMIZERS["adam"])
        step = wrap(step)
        run(step, data[:3])
        opt.lr = 0.1
        run(step, data[3:6])
        opt.lr = optim.schedules.Exponential(0.05, 0.9)
        run(step, data[6:])
        trained.append(opt)
    same_state(*trained)
    assert step.stats()["captures"] == 1


def test_a_parameter_that_was_assigned_or_loaded_is_read_anew() -> None:
    net, _, _ = training(OPTIMIZERS["sgd"])
    net.eval()
    f, x = pb.capture(net), batches(1)[0][0]
    state = net.state_dict()
    f(x)
    net.layers[0].weight.assign(pb.full((7, 5), 0.25))
    same(f(x), net(x))
    net.load_state_dict(state)
    same(f(x), net(x))
    assert f.stats()["captures"] == 1


def test_a_parameter_that_moved_or_was_replaced_is_recorded_again() -> None:
    net, _, _ = training(OPTIMIZERS["sgd"])
    net.eval()
    f, x = pb.capture(net), batches(1)[0][0]
    f(x)
    net.layers[0].weight = pb.Parameter(np.full((7, 5), 0.5, np.float32))
    same(f(x), net(x))
    optim.Adam(net.parameters())  # moves the new one into an arena
    net.layers[0].weight.assign(pb.full((7, 5), -0.5))
    same(f(x), net(x))
    assert f.stats()["captures"] == 3


def test_training_mode_is_part_of_the_signature() -> None:
    net, _, _ = training(OPTIMIZERS["sgd"])
    f, x = pb.capture(net), batches(1)[0][0]
    for mode in (True, False, True, False):
        net.train(mode)
        pb.random.seed(4)
        got = f(x)
        pb.random.seed(4)
        same(got, net(x))
    assert f.stats()["captures"] == 2


def test_values_of_other_arguments_are_part_of_the_signature() -> None:
    f = pb.capture(lambda x, power, *, negative=False: -(x**power) if negative else x**power)
    x = pb.tensor([1.5, 2.0])
    for _ in range(2):
        same(f(x, 2), x**2)
        same(f(x, 3), x**3)
        same(f(x, 3, negative=True), -(x**3))
        same(f(x, 2.0), x**2.0)
    assert f.stats()["captures"] == 4
    with pytest.raises(pb.CaptureError, match="set.*cannot be compared"):
        f(x, {1})


def test_a_method_is_captured_for_each_object() -> None:
    class Scaled:
        def __init__(self, by: float) -> None:
            self.by = pb.tensor([by])

        @pb.capture
        def apply(self, x: Any) -> Any:
            return x * self.by

    one, two, x = Scaled(2.0), Scaled(3.0), pb.tensor([1.0, 4.0])
    for _ in range(2):
        same(one.apply(x), x * 2)
        same(two.apply(x), x * 3)


def test_many_signatures_warn_once_with_what_changes() -> None:
    f = pb.capture(lambda x: x + 1, cache=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(1, 8):
            same(f(pb.zeros((n,))), np.ones(n, np.float32))
    assert len(caught) == 1
    assert "shape (3,), then (4,)" in str(caught[0].message)
    assert f.stats()["recordings"] == 3


def test_an_error_in_a_replay_accounts_for_what_was_done() -> None:
    def rig() -> Any:
        net, opt, step = training(OPTIMIZERS["adam"])
        return opt, step

    good, bad = batches(2), (batches(1)[0][0], pb.tensor(np.full(ROWS, CLASSES)))
    eager, step = rig()
    run(step, good)
    if devices.default_device() == "cpu":
        with pytest.raises(IndexError, match="class"):
            step(*bad)
    after = [host(step(*batch)) for batch in good]
    opt, step = rig()
    captured = pb.capture(step)
    run(captured, good)
    if devices.default_device() == "cpu":
        with pytest.raises(IndexError, match="cross_entropy: index 4"):
            captured(*bad)
    for got, wanted in zip([captured(*batch) for batch in good], after):
        same(got, wanted)
    same_state(opt, eager)


def test_threads_may_share_a_captured_function() -> None:
    f = pb.capture(lambda x: pb.sum(pb.tanh(x) * x, axis=1))
    xs = [pb.tensor(np.random.default_rng(k).standard_normal((300, 40), dtype=np.float32)) for k in range(4)]
    wanted = [host(pb.sum(pb.tanh(x) * x, axis=1)) for x in xs]
    f(xs[0])
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(50):
            if not np.array_equal(host(f(xs[k])), wanted[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- with the rest of the library


def test_transforms_inside_replay() -> None:
    w = pb.Parameter(np.random.default_rng(0).standard_normal((3, 3)))
    f = lambda x: pb.sum(pb.tanh(w @ x) ** 2)  # noqa: E731
    cases: list[Callable[[Any], Any]] = [
        pb.grad(f), pb.hessian(f), pb.jacobian(lambda x: pb.tanh(w @ x)), pb.vmap(f, in_axes=0),
        lambda x: pb.hvp(f, x, pb.ones_like(x)), lambda x: pb.jvp(f, (x,), (pb.ones_like(x),)),
        lambda x: pb.scan(lambda c, row: (pb.tanh(c + row), c), pb.zeros((3,), dtype=pb.float64), pb.stack([x, 2 * x])),
        pb.grad(pb.checkpoint(f)), pb.grad(lambda x: f(pb.random.dropout(x, 0.5))),
        pb.grad(pb.checkpoint(lambda x: f(pb.random.dropout(x, 0.5)))),
        lambda x: pb.per_example_grad(lambda v, row: pb.sum(v * row) ** 2)(pb.ones((3,), dtype=pb.float64), pb.stack([x, 3 * x])),
    ]  # fmt: skip
    for case in cases:
        captured = pb.capture(case)
        for k in range(3):
            x = pb.tensor(np.random.default_rng(k).standard_normal(3 if case is not cases[3] else (4, 3)))
            pb.random.seed(k)
            got = captured(x)
            pb.random.seed(k)
            for a, b in zip(_leaves(got), _leaves(case(x))):
                same(a, b)
        assert captured.stats()["captures"] == 1


def _leaves(x: Any) -> list[Any]:
    return [leaf for part in x for leaf in _leaves(part)] if isinstance(x, (tuple, list)) else [x]


def test_memo_is_computed_again_at_every_replay() -> None:
    w = pb.Parameter([1.0, 2.0])
    half = pb.memo(lambda: w * 0.5)
    half()
    f = pb.capture(lambda x: x + half() + half())
    x = pb.tensor([0.0, 1.0])
    for value in (1.0, 5.0, 7.0):
        w.assign([value, 2 * value])
        same(f(x), x + w * 0.5 + w * 0.5)
    same(half(), w * 0.5)


def test_a_hook_inside_is_replayed() -> None:
    def f(x: Any) -> Any:
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            tape.on_gradient(y, lambda g: g * 3)
            z = pb.sum(y)
        return tape.gradient(z, x)

    captured = pb.capture(f)
    for k in range(3):
        x = pb.tensor([1.0 + k, 2.0])
        same(captured(x), 6 * x)


def test_a_constraint_holds_after_every_replay() -> None:
    p = pb.Parameter([0.5, -0.2, 1.0], constraint=lambda x: pb.maximum(x, 0.0))
    opt = optim.SGD([p], lr=1.0)
    captured = pb.capture(lambda g: opt.step([g]))
    wanted = np.array([0.5, -0.2, 1.0], np.float32)
    for k in range(4):
        g = np.array([0.3, -0.1, 0.6 - k], np.float32)
        captured(pb.tensor(g))
        wanted = np.maximum(wanted - g, 0)
        np.testing.assert_array_equal(host(p), wanted)


def test_deltas_and_previews_are_results_like_others() -> None:
    def rig() -> Any:
        p = pb.Parameter([1.0, 2.0, 3.0])
        opt = optim.Adam([p], lr=0.1)
        return lambda g: (opt.preview([g])[0], opt.step([g], return_delta=True)[0])

    eager, captured = rig(), pb.capture(rig())
    kept = []
    for k in range(4):
        g = pb.tensor([1.0, -2.0, float(k)])
        wanted, got = eager(g), captured(g)
        kept.append((got, [host(x) for x in wanted]))
    for got, wanted in kept:
        for a, b in zip(got, wanted):
            same(a, b)


def test_a_captured_function_inside_another_is_a_part_of_it() -> None:
    inner = pb.capture(lambda x: pb.tanh(x) + 1)
    outer = pb.capture(lambda x: inner(x) * inner(2 * x))
    for k in range(3):
        x = pb.tensor([0.1 * k, 1.0])
        same(outer(x), (pb.tanh(x) + 1) * (pb.tanh(2 * x) + 1))
    assert inner.stats()["captures"] == 0


def test_a_profile_counts_every_replay_as_an_eager_step() -> None:
    data = batches(3)
    _, _, step = training(OPTIMIZERS["adam"])
    with pb.profile() as wanted:
        run(step, data)
    _, _, step = training(OPTIMIZERS["adam"])
    captured = pb.capture(step)
    captured(*data[0])
    with pb.profile(strict=True) as got:
        run(captured, data)
    for phase in ("forward", "backward", "optimizer"):
        ours, theirs = getattr(got, phase), getattr(wanted, phase)
        assert (ours.flops, ours.matmul_flops, ours.special_ops) == (theirs.flops, theirs.matmul_flops, theirs.special_ops)
    with pb.profile() as first:
        pb.capture(step)(*data[0])
    assert 3 * first.total.flops == wanted.total.flops


# ---- K steps


def test_k_steps_in_one_replay_are_k_calls() -> None:
    data = batches(12)
    _, eager, step = training(OPTIMIZERS["adamw"])
    wanted = run(step, data)
    _, opt, step = training(OPTIMIZERS["adamw"])
    captured = pb.capture(step, steps=4)
    pb.random.seed(1)
    got = []
    for k in range(0, 12, 4):
        xs, ys = [pb.stack(list(part)) for part in zip(*data[k : k + 4])]
        got += list(host(captured(xs, ys)))
    same(np.stack(got), np.stack(wanted))
    same_state(opt, eager)
    assert captured.stats()["replays"] == 3  # the rest of the first call, and two more


def test_k_steps_need_the_axis_of_steps() -> None:
    captured = pb.capture(lambda x, by=2.0: x * by, steps=3)
    same(captured(pb.ones((3, 2))), np.full((3, 2), 2, np.float32))
    for x in (pb.ones((4, 2)), pb.ones(())):
        with pytest.raises(pb.ShapeError, match="first axis must have one entry for each of the 3 steps"):
            captured(x)
    with pytest.raises(pb.ShapeError, match="no tensor"):
        captured(1.0)


# ---- what is refused


class _Cell(nn.Module):
    def __init__(self) -> None:
        self.p = pb.Parameter([1.0])


def _refused() -> dict[str, Callable[[Any], Any]]:
    cell = _Cell()
    opt = optim.SGD([pb.Parameter([1.0])], lr=0.1)
    box = pb.black_box(lambda x: np.asarray(x) * 2)
    outer = pb.GradientTape()
    outer.watch(t := pb.tensor([1.0]))
    generator = pb.random.Generator(0)
    return {
        "item()": lambda x: x[0].item(),
        "bool()": lambda x: 1 if x[0] > 0 else 2,
        "float()": lambda x: float(x[0]),
        "int()": lambda x: int(x[0]),
        "numpy()": lambda x: x.numpy(),
        "tolist()": lambda x: x.tolist(),
        "repr()": lambda x: print(x),
        "formatting": lambda x: f"{x[0]:.2f}",
        "in,": lambda x: 3.0 in x,
        "nonzero": lambda x: pb.nonzero(x),
        "unique": lambda x: pb.unique_values(x),
        "a mask": lambda x: x[x > 0],
        "counting segments": lambda x: pb.segment_sum(x, pb.tensor([0, 1, 1])),
        "repeat by counts": lambda x: pb.repeat(x, pb.tensor([1, 2, 0])),
        "a black box": lambda x: box(x),
        "setting _Cell.p": lambda x: setattr(cell, "p", pb.Parameter([2.0])),
        "train\\(\\) or eval\\(\\)": lambda x: cell.eval(),
        "Module.to": lambda x: cell.to(pb.float64),
        "setting lr": lambda x: setattr(opt, "lr", 0.5),
        "state_dict": lambda x: opt.state_dict(),
        "slots": lambda x: opt.slots(opt.parameters[0]),
        "moving": lambda x: optim.SGD([pb.Parameter([1.0])], lr=0.1),
        "seeding": lambda x: generator.seed(3),
        "on_gradient": lambda x: outer.on_gradient(t, lambda g: g),
    }


@pytest.mark.parametrize("what", _refused())
def test_what_a_replay_could_not_repeat_is_refused_and_leaves_all_usable(what: str) -> None:
    f = _refused()[what]
    captured = pb.capture(lambda x: f(x * 1.0))
    with pytest.raises(pb.CaptureError, match=f"(?s){what.replace('()', '[(][)]')}.*test_capture.py.*, line .*replay could not repeat it"):
        captured(pb.tensor([1.0, -1.0, 2.0]))
    good = pb.capture(lambda x: pb.exp(x))
    for k in range(2):
        x = pb.tensor([float(k)])
        same(good(x), pb.exp(x))


def test_an_exception_in_the_middle_of_a_recording_leaves_all_usable() -> None:
    data = batches(3)
    _, eager, step = training(OPTIMIZERS["adam"])
    wanted = run(step, data)
    _, opt, step = training(OPTIMIZERS["adam"])
    fails = [True]

    def sometimes(x: Any, y: Any) -> Any:
        if fails.pop():
            pb.tanh(x)
            raise RuntimeError("no")
        fails.append(False)
        return step(x, y)

    captured = pb.capture(sometimes)
    with pytest.raises(RuntimeError, match="no"):
        captured(*data[0])
    fails.append(False)
    for got, right in zip(run(captured, data), wanted):
        same(got, right)
    same_state(opt, eager)


def test_a_tape_or_transform_around_the_call_is_refused() -> None:
    x = pb.tensor([1.0, 2.0])
    f = pb.capture(lambda x: x * x)
    f(x)
    with pb.GradientTape(), pytest.raises(pb.CaptureError, match="inside a GradientTape"):
        f(x)
    with pb.GradientTape(watch_parameters=False) as tape:
        tape.watch(x)
        with pytest.raises(pb.CaptureError, match="inside a GradientTape"):
            f(x)
    with pytest.raises(pb.CaptureError):
        pb.vmap(f)(pb.ones((3, 2)))
    with pytest.raises(pb.CaptureError):
        pb.jvp(f, (x,), (x,))
    with pb.GradientTape(watch_parameters=False) as tape:
        same(f(x), x * x)
    with pb.GradientTape() as tape, tape.stop_recording():
        same(f(x), x * x)


def test_bad_options_say_what_to_do() -> None:
    with pytest.raises(pb.PullbackError, match="'exact', 'fast', 'none'"):
        pb.capture(lambda x: x, fusion="most")
    with pytest.raises(pb.PullbackError, match="steps=0"):
        pb.capture(lambda x: x, steps=0)
    with pytest.raises(pb.PullbackError, match="not a function"):
        pb.capture(3)
    with pytest.raises(pb.CaptureError, match="nothing is recorded yet"):
        pb.capture(lambda x: x).explain()


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
    assert captured.stats()["kernels"] == 1
    assert captured.stats()["launches"] == 30
    assert captured.stats()["arena_bytes"] == 0  # what is in between never leaves the cache
    same(captured(2 * x), chain(2 * x))
    assert "30 launches in one pass" in str(captured.explain())


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
    assert plain.stats()["launches"] == 4


def test_temporaries_take_each_others_place() -> None:
    def deep(x: Any) -> Any:
        for _ in range(50):
            x = x @ x
        return x

    captured = pb.capture(deep)
    x = pb.eye(64)
    captured(x)
    assert captured.stats()["arena_bytes"] == 2 * 64 * 64 * 4
    same(captured(x), x)
