"""Reports, profiles, memory and long trainings of a captured function that is called under a tape."""

from __future__ import annotations

import copy
import gc
import os
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same
from pullback import nn, optim
from pullback.backends import kernels_on
from pullback.nn import functional as F
from pullback.tensors import devices

pytestmark = needs_kernels
SIZES = [
    (2, 16, 16, 2),
    (20, 32, 10),
    *([(784, 128, 10), (784, 1024, 1024, 10)] if "PULLBACK_LONG_TRAININGS" in os.environ else []),
]


class Net(nn.Module):
    def __init__(self) -> None:
        self.first, self.norm, self.last = nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        return self.last(pb.tanh(self.norm(self.first(x))) * 2)


def gradients(f: Any, x: Any, net: Any) -> list[Any]:
    with pb.GradientTape() as tape:
        y = f(x) * 3
    return [y, *tape.gradient(y, net.parameters())]


def test_reports_of_the_tape_are_those_of_the_eager_run() -> None:
    net = Net()
    f = lambda x: pb.sum(pb.square(net(x)))
    captured, x = pb.capture(f), pb.ones((2, 4))
    for _ in range(3):
        found = []
        for g in (captured, f):
            with pb.GradientTape() as tape:
                y = g(x)
            check = tape.check(y)
            reports = [str(tape.explain(y)), str(tape.diagnose(y, net.parameters())), check.ok, len(check.rows)]
            found.append((reports, tape.gradient(y, net.parameters())))
        assert found[0][0] == found[1][0]
        assert "tanh" in found[0][0][0]
        for a, b in zip(found[0][1], found[1][1]):
            same(a, b)


@pytest.mark.parametrize("detail", ["count", "phase", "kernel"])
def test_a_profile_counts_the_launches_of_the_eager_run(detail: Any) -> None:
    net, x = Net(), pb.ones((2, 4))
    f = lambda x: pb.sum(pb.square(net(x)))
    captured = pb.capture(f)
    with pb.profile():
        gradients(f, x, net)  # names the Modules
    for _ in range(3):
        found = []
        for g in (captured, f):
            with pb.profile(detail=detail) as profile:
                gradients(g, x, net)
            rows = sorted([(row.kernel, row.op, row.module, row.line, row.order, row.phase, row.dtype) for row in profile.rows])
            counts = [f"{part.flops} {part.bytes_read} {part.launches}" for part in (profile.forward, profile.backward)]
            found.append((rows, counts))
        assert found[0] == found[1]


def test_explain_and_stats_count_both_passes() -> None:
    net, x = Net(), pb.ones((2, 4))
    captured = pb.capture(lambda x: pb.sum(pb.square(net(x))))
    for _ in range(3):
        gradients(captured, x, net)
    explanation, stats = captured.explain(), captured.stats()
    assert {kernel.phase for kernel in explanation.kernels} == {"forward", "backward"}
    assert (stats.captures, stats.recordings, stats.replays) == (2, 2, 4)
    assert stats.launches == explanation.launches
    captured.clear()
    assert captured.stats().recordings == 0
    gradients(captured, x, net)


def live_bytes() -> int:
    return int(kernels_on(devices.default_device()).live_bytes())


def test_a_tape_keeps_what_an_eager_tape_keeps() -> None:
    pb.random.seed(0)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.2), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 5))
    f = lambda x: pb.sum(pb.square(net(x)))
    x, kept = pb.ones((512, 20)), []
    for g in (pb.capture(f), f):
        for _ in range(3):
            with pb.GradientTape() as tape:
                y = g(x)
            tape.gradient(y, net.parameters())
        tape = y = None
        gc.collect()
        before = live_bytes()
        with pb.GradientTape() as first:
            y = g(x)
        one = live_bytes() - before
        with pb.GradientTape() as second:
            z = g(x)
        two = live_bytes() - before
        first.gradient(y, net.parameters())
        kept.append((one, two, live_bytes() - before))
        del first, second, y, z
    np.testing.assert_allclose(kept[0], kept[1], atol=64)  # the state of the generator
    assert kept[0][0] > 300_000
    assert abs(kept[0][2] - kept[0][0]) < 64


def test_memory_does_not_grow_and_is_freed_without_the_garbage_collector() -> None:
    net, x = Net(), pb.ones((2, 4))
    f = pb.capture(lambda x: pb.sum(pb.square(net(x))))

    def call() -> None:
        gradients(f, x, net)
        pb.grad(f)(x)
        pb.vmap(f)(pb.stack([x, x]))
        pb.jvp(f, (x,), (x,))

    for _ in range(20):
        call()
    before, recordings = live_bytes(), f.stats().recordings
    gc.disable()
    try:
        for _ in range(int(os.environ.get("PULLBACK_CALLS", "100"))):
            call()
        after = live_bytes()
    finally:
        gc.enable()
    assert after == before
    assert f.stats().recordings == recordings


def train(net: Any, captures: bool, data: list[tuple[Any, Any]]) -> None:
    opt, loss_of = optim.Adam(net.parameters(), lr=0.003), lambda x, y: F.cross_entropy(net(x), y)
    f = pb.capture(loss_of) if captures else loss_of
    for k in range(200):
        with pb.GradientTape() as tape:
            loss = f(*data[k % len(data)])
        opt.step(tape.gradient(loss, opt.parameters))


def test_kinds_of_transforms_are_limited_as_signatures_are() -> None:
    f = pb.capture(lambda x: pb.sum(pb.tanh(x)), cache=3)
    batches = [pb.ones((size, 2)) for size in range(1, 8)]
    with pytest.warns(UserWarning, match="more than 3 kinds of tapes and transforms: batches of other sizes") as told:
        found = [pb.vmap(f)(batch) for batch in batches]
    assert len(told) == 1
    for y, batch in zip(found, batches):
        same(y, pb.sum(pb.tanh(batch), axis=1))
    assert f.stats().recordings == 3


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_200_steps_with_a_captured_loss_have_the_bits_of_eager_ones(sizes: tuple[int, ...]) -> None:
    pb.random.seed(1)
    layers = [layer for i, n in enumerate(sizes[1:]) for layer in (nn.Linear(sizes[i], n), nn.ReLU())][:-1]
    nets, rng = [nn.Sequential(*copy.deepcopy(layers)) for _ in range(2)], np.random.default_rng(0)
    rows = 512 if sizes[-2] == 1024 else 64
    data = [
        (pb.tensor(rng.standard_normal((rows, sizes[0]), np.float32)), pb.tensor(rng.integers(0, sizes[-1], rows)))
        for _ in range(4)
    ]
    for captures, net in zip((True, False), nets):
        train(net, captures, data)
    for p, q in zip(*[net.parameters() for net in nets]):
        same(p, q)
