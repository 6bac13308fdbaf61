"""The op and phase to which a launch is charged: outside tapes, next to them, in captures, and if nothing ran; and the Module."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import environment
from pullback import nn, optim
from pullback.profiling import Figures

X = pb.tensor(np.random.default_rng(0).standard_normal((64, 784)).astype(np.float32))


def test_a_launch_outside_tapes_is_charged_to_its_own_op() -> None:
    x = pb.tensor(np.ones(8, np.float32))
    for _ in range(2):  # The order changes, so that no attribution is right by chance.
        for names in (("exp", "logaddexp", "sum"), ("logaddexp", "sum", "exp")):
            with pb.profile() as prof:
                lines = [getattr(pb, name)(x, x) if name == "logaddexp" else getattr(pb, name)(x) for name in names]
            assert len(lines) == 3
            assert [(row.op, row.figures.launches) for row in prof.rows] == [(name, 1) for name in names]
            assert len({row.line for row in prof.rows}) == 1


def test_an_op_that_the_tape_does_not_watch_is_charged_to_itself() -> None:
    x, w = pb.tensor(np.ones(8, np.float32)), pb.Parameter(np.ones(8, np.float32))
    with pb.profile() as prof, pb.GradientTape():
        x.sum()
        w * 2
        pb.logaddexp(x, x)
        pb.exp(w)
    assert [(row.op, row.kernel) for row in prof.rows] == [(name, name) for name in ("sum", "multiply", "logaddexp", "exp")]


def test_with_a_tape_the_host_has_time_for_it_and_without_one_it_has_none() -> None:
    w = pb.Parameter(np.ones(1000, np.float32))
    with pb.profile(detail="kernel") as prof:
        for _ in range(20):
            pb.exp(w)
    assert prof.host.tape == 0
    with pb.profile(detail="kernel") as prof:
        for _ in range(20):
            with pb.GradientTape() as tape:
                loss = pb.sum(pb.exp(w))
            tape.gradient(loss, w)
    backward = sum([row.figures.seconds for row in prof.rows if row.phase == "backward"])
    recorded = prof._ledger.host["tape"] * 1e-9
    walked = max(0.0, prof.backward.seconds - backward) if prof.device == "cpu" else 0.0  # A GPU works at other times.
    assert prof.host.tape == pytest.approx(recorded + walked)
    assert (recorded > 0, walked > 0) == (True, prof.device == "cpu")
    assert sum(prof.host) == pytest.approx(prof.seconds)


@needs_kernels
def test_what_is_first_captured_in_a_backward_pass_is_charged_to_it_in_every_replay() -> None:
    w = pb.Parameter(np.ones(8, np.float32))
    captured = pb.capture(lambda g: pb.sin(g) + pb.exp(g))

    def step() -> Any:
        with pb.GradientTape() as tape:
            y = w * 2
            tape.on_gradient(y, captured)
            loss = pb.sum(y)
        return tape.gradient(loss, w)

    step()  # The function is recorded while no profile runs.
    for replays in range(1, 3):
        with pb.profile() as prof:
            step()
        assert captured.stats().replays == replays
        phases = {(row.kernel, row.phase) for row in prof.rows if row.kernel in ("sin", "exp")}
        assert phases == {("sin", "backward"), ("exp", "backward")}


def test_what_has_not_run_has_no_figures() -> None:
    assert Figures() == Figures(**dict.fromkeys(Figures.__dataclass_fields__, 0))
    with pb.profile() as prof:
        pb.exp(X)
    assert prof.backward == prof.optimizer == prof.data == Figures()


SPANS = """
import itertools
import numpy as np, pullback as pb
w = pb.Parameter(np.ones(3))
with pb.profile() as prof:
    with pb.GradientTape() as tape:
        y = pb.sum(pb.exp(w))
    tape.gradient(y, w)
    pb.exp(w)
whole = sum([span.end - span.begin for span in prof.spans])
phases = [phase for phase, _ in itertools.groupby([span.phase for span in prof.spans])]
print(phases, 0 < whole < 2 * prof.seconds)
"""


def test_phases_have_their_times_without_kernels_too() -> None:
    for backend in ("reference", "native"):
        variables = environment(PULLBACK_BACKEND=backend, PULLBACK_DEVICE="cpu")
        done = subprocess.run([sys.executable, "-c", SPANS], env=variables, capture_output=True, text=True)
        assert done.stdout.strip() == "['forward', 'backward', 'forward'] True", done.stderr


DRAWS = """
import pullback as pb
g = pb.random.Generator(0)
for dtype in ("float32", "float64"):
    for n in (1, 5, 6, 8):
        for draw in (g.uniform, g.normal, g.truncated_normal):
            with pb.profile(strict=True) as prof:
                draw((n,), dtype=dtype)
            total = prof.total
            print(draw.__name__, dtype, n, total.flops, total.special_ops, total.integer_ops, total.bytes_written)
"""


@needs_kernels
def test_draws_cost_the_same_by_both_backends_in_every_dtype() -> None:
    told = []
    for backend in ("reference", "native"):
        variables = environment(PULLBACK_BACKEND=backend, PULLBACK_DEVICE="cpu")
        told.append(subprocess.run([sys.executable, "-c", DRAWS], env=variables, capture_output=True, text=True, check=True).stdout)
    assert told[0] == told[1]


class _Pair(nn.Module):
    def __init__(self) -> None:
        self.encoder = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
        self.heads: list[nn.Module] = []
        self.heads.append(nn.Linear(3, 2))  # after the attribute was set

    def forward(self, x: pb.Tensor) -> pb.Tensor:
        return self.heads[0](self.encoder(x))


def _products(run: Callable[[], object]) -> dict[str, int]:
    with pb.profile() as prof:
        run()
    return {group.name: group.total.matmul_flops for group in prof.by("module") if group.total.matmul_flops}


VISITS: list[Callable[[Any], object]] = [
    lambda _: None, lambda net: net.parameters(), lambda net: net.eval(), lambda net: net.encoder.state_dict(),
    lambda net: optim.SGD(net.parameters()), lambda net: copy.deepcopy(net.encoder).parameters(),
]


@pytest.mark.parametrize("visit", VISITS)
def test_modules_have_their_paths_whatever_has_visited_the_network(visit: Callable[[Any], object]) -> None:
    net, x, h = _Pair(), pb.ones((5, 4)), pb.ones((5, 3))
    visit(net)
    assert _products(lambda: net.encoder(x)) == {"encoder.0": 2 * 5 * 4 * 3}
    assert _products(lambda: net.encoder[0](x)) == {"encoder.0": 2 * 5 * 4 * 3}
    assert _products(lambda: net(x)) == {"encoder.0": 2 * 5 * 4 * 3, "heads.0": 2 * 5 * 3 * 2}
    assert _products(lambda: net.heads[0](h)) == {"heads.0": 2 * 5 * 3 * 2}


def test_paths_are_those_of_the_network_that_is_called() -> None:
    inner, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), pb.ones((1, 4))
    outer = nn.Sequential(nn.Tanh(), inner)
    other = nn.Sequential(inner[1], copy.deepcopy(inner[0]))
    assert list(_products(lambda: outer(x))) == ["1.0", "1.1"]
    assert list(_products(lambda: other(x))) == ["0", "1"]
    assert _products(lambda: [outer(x), other(x), outer(x)]) == {"1.0": 64, "1.1": 64, "0": 32, "1": 32}
    del outer[0]
    assert list(_products(lambda: outer[0](x))) == ["0.0", "0.1"]
    inner[0].owner = inner  # a cycle
    inner.parameters()
    assert list(_products(lambda: outer(x))) == ["0.0", "0.1"]


@needs_kernels  # the definition is made of several ops
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.BatchNorm1d(6), (8, 6)), (lambda: nn.BatchNorm1d(6, momentum=None), (8, 6)),
        (lambda: nn.BatchNorm2d(6), (4, 6, 3, 3)), (lambda: nn.BatchNorm2d(6, track_running_stats=False), (4, 6, 3, 3)),
        (lambda: nn.GroupNorm(2, 6), (4, 6, 3, 3)), (lambda: nn.InstanceNorm2d(6, affine=True), (4, 6, 3, 3)),
        (lambda: nn.LayerNorm(6), (8, 6)), (lambda: nn.RMSNorm(6), (8, 6)),
    ],
)
def test_a_norm_has_one_op_forward_and_backward(make: Callable[[], Any], shape: tuple[int, ...], captured: bool) -> None:
    net, x = make(), pb.tensor(np.random.default_rng(0).standard_normal(shape), dtype="float32")

    def step(x: Any) -> Any:
        with pb.GradientTape() as tape:
            y = net(x)
        return y, tape.gradient(y, net.parameters(), output_gradients=pb.ones_like(y))

    run = pb.capture(step) if captured else step
    run(x)
    with pb.profile() as prof:
        run(x)
    forward, backward = [
        {group.name for group in prof.by("op") if phase in group.phases and group.phases[phase].special_ops}
        for phase in ("forward", "backward")
    ]
    assert len(forward) == 1, forward
    assert backward <= forward
