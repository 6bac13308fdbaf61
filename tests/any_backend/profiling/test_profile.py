"""pb.profile: the figures of a phase are the cost formulas of the launches that ran, each counted once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn, optim
from pullback.autodiff.primitive import Op
from pullback.backends import reference
from pullback.data import Loader
from pullback.launch import door
from pullback.ops.declare import per_element
from pullback.ops.kinds import OWN
from pullback.profiling import Figures, Profile


def mlp() -> Any:
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


X = pb.tensor(np.random.default_rng(0).standard_normal((64, 784)).astype(np.float32))
Y = pb.tensor(np.arange(64) % 10)


def test_the_products_of_an_mlp_are_counted_exactly() -> None:
    net = mlp()
    opt = optim.SGD(net.parameters(), lr=0.1)
    with pb.profile(strict=True) as prof:
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(net(X), Y)
        gradients = tape.gradient(loss, opt.parameters)
    assert prof.forward.matmul_flops == 2 * 64 * (784 * 128 + 128 * 10) == 13_008_896
    assert prof.backward.matmul_flops == 13_008_896 + 2 * 64 * 128 * 10 == 13_172_736  # not twice: no input gradient
    assert (prof.coverage, prof.unknown) == (1.0, {})
    assert prof.forward.flops > prof.forward.matmul_flops
    assert prof.forward.special_ops >= 64 * 10
    with pb.profile() as prof:
        opt.step(gradients)
    assert prof.optimizer.launches == prof.total.launches == 1


def test_the_gradient_of_the_input_doubles_the_products() -> None:
    net = mlp()
    with pb.profile() as prof, pb.GradientTape() as tape:
        tape.watch(X)
        tape.gradient(nn.cross_entropy(net(X), Y), [X, *net.parameters()])
    assert prof.backward.matmul_flops == 26_017_792


def test_a_loop_counts_every_time_round() -> None:
    a = pb.tensor(np.ones((8, 8)))
    with pb.profile() as once:
        a @ a
    with pb.profile() as often:
        for _ in range(100):
            a @ a
    assert once.forward.flops == 2 * 8**3
    assert (often.forward.flops, often.forward.launches) == (100 * once.forward.flops, 100)


def test_phases_are_apart_and_add_up() -> None:
    net = mlp()
    opt = optim.Adam(net.parameters())
    with pb.profile() as prof:
        for x, y in Loader((X, Y), 32):
            with pb.GradientTape() as tape:
                loss = nn.cross_entropy(net(x), y)
            opt.step(tape.gradient(loss, opt.parameters))
    phases = [getattr(prof, name) for name in door.PHASES]
    for figure in Figures.__dataclass_fields__:
        assert sum(getattr(phase, figure) for phase in phases) == pytest.approx(getattr(prof.total, figure)), figure
    assert prof.data.bytes_written >= X.nbytes
    assert prof.recompute == prof.other == Figures()
    assert prof.total.seconds > 0


def test_bytes_count_a_broadcast_axis_once() -> None:
    with pb.profile() as prof:
        pb.tensor(np.ones((4, 8), np.float32)) + pb.tensor(np.ones(8, np.float32))
    assert (prof.total.bytes_read, prof.total.bytes_written, prof.total.flops) == (4 * 8 * 4 + 8 * 4, 4 * 8 * 4, 32)


def test_the_name_of_a_modules_path_is_on_its_launches() -> None:
    net = nn.Sequential(nn.LayerNorm(784), nn.Linear(784, 4), nn.Tanh())
    net.parameters()
    with pb.profile() as prof:
        net(X)
    assert [row.module for row in prof.rows] == ["0", "1"]


def test_the_cotangent_of_a_loss_is_made_in_the_backward_pass() -> None:
    w = pb.Parameter(np.ones(3, np.float32))
    with pb.profile() as prof:
        with pb.GradientTape() as tape:
            loss = pb.sum(w * w)
        tape.gradient(loss, w)
    assert prof.forward.launches == 2


def test_backward_passes_of_per_example_gradients_are_charged_as_such() -> None:
    w, x = pb.Parameter(np.ones(3, np.float32)), pb.ones((5, 3))
    with pb.profile() as prof:
        pb.per_example_norm(lambda w, v: pb.sum(w * v))(w, x)
    assert prof.forward.launches == 2
    assert prof.backward.launches > 0


def test_a_launch_of_unknown_cost_is_named_and_strict_refuses_it() -> None:
    mystery = Op("mystery", kind=OWN, names=("x",), rules=(None,), pullback=None, reference=lambda xp, x: x)

    def run() -> None:
        reference.run(mystery, [np.ones(3)], ())
        pb.exp(X)

    with pb.profile() as prof:
        run()
    assert (prof.unknown, prof.coverage) == ({"mystery": 1}, 0.5)
    assert "not known: mystery" in str(prof)
    with pytest.raises(pb.PullbackError, match="mystery"), pb.profile(strict=True):
        run()


def test_an_error_inside_is_not_hidden_and_the_ledger_stops() -> None:
    with pytest.raises(KeyError), pb.profile(strict=True):
        raise KeyError
    assert door.state.ledger is None


def test_a_used_profile_is_refused() -> None:
    with pb.profile() as prof:
        pass
    with pytest.raises(pb.PullbackError, match="used"):
        prof.__enter__()


def test_profile_makes_a_profile_that_prints_as_a_table() -> None:
    assert isinstance(pb.profile(), Profile)
    with pb.profile() as prof:
        X @ X.T
    lines = str(prof).splitlines()
    assert lines[0].split()[0] == "FLOPs"
    assert any(line.startswith("forward") for line in lines)
    assert lines[-1] == "cost known for 100.0% of launches"


def test_a_layers_backward_pass_is_charged_to_the_layer() -> None:

    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    parameters = model.parameters()  # This call gives the layers their paths.
    with pb.profile() as prof:
        with pb.GradientTape() as tape:
            loss = pb.sum(model(pb.ones((5, 3))))
        grads = tape.gradient(loss, parameters)
    assert len(grads) == 4
    charged = {(row.phase, row.module) for row in prof.rows if row.figures.matmul_flops}
    assert charged == {(phase, scope) for phase in ("forward", "backward") for scope in ("0", "1")}


def test_what_no_kernel_does_is_on_the_ledger_too() -> None:
    x, p = pb.tensor([1.0, 0.0, 1.0]), pb.Parameter([1.0, 2.0])
    with pb.profile(strict=True) as prof:
        pb.unique_values(x)
        pb.nonzero(x)
        pb.ones((2, 3))
        p.assign([3.0, 4.0])
    written = {launch.kernel: launch.bytes_written for launch in prof.launches}
    (filled,) = {*written} & {"fill", "full", "ones"}  # the name of the kernel, or of NumPy's function
    assert written == {"unique": 2 * (4 + 8 + 8) + 3 * 8, "nonzero": 2 * 8, filled: 6 * 4, "assign": 2 * 4}


@pytest.mark.skipif(door.host_kernels is None, reason="the reference does what its formulas say")
def test_what_is_executed_has_the_padding() -> None:
    """Vectors have 1 to 16 lanes, depending on the SIMD level. A GPU's smallest tiles have 16 rows and columns and steps of 64. See
    test_counted.py.
    """
    with pb.profile() as prof:
        pb.matmul(pb.ones((9, 7)), pb.ones((7, 9)))
    assert prof.total.flops == 2 * 9 * 7 * 9
    whole = [2 * 9 * 7 * -(-9 // lanes) * lanes for lanes in (1, 2, 4, 8, 16)] + [2 * 16 * 16 * 64]
    assert prof.total.executed_flops in whole


@pytest.mark.skipif(door.host_kernels is None, reason="capture needs kernels")
def test_a_replays_time_is_that_of_its_phases() -> None:
    """This holds also if a step is one CUDA graph: under a profile there is one graph per phase."""
    net = mlp()
    opt = optim.SGD(net.parameters(), 0.1)

    @pb.capture
    def step(x: Any, y: Any) -> Any:
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(net(x), y)
        opt.step(tape.gradient(loss, net.parameters()))
        return loss

    before = step(X, Y)
    with pb.profile() as prof:
        losses = [step(X, Y) for _ in range(20)]
    assert float(losses[-1]) < float(losses[0]) < float(before)
    phases = ["forward", "backward", "optimizer"]
    ran = [span.phase for span in prof.spans if span.phase in phases]
    once = ran[: ran.index("optimizer") + 1]
    assert set(once) == set(phases)
    assert ran[: 20 * len(once)] == 20 * once
    assert prof.total.seconds == pytest.approx(sum([getattr(prof, phase).seconds for phase in phases]) + prof.other.seconds)
    assert prof.other.seconds < 0.1 * prof.total.seconds
    assert prof.total.executed_flops > 0


def test_a_profile_may_be_looked_at_before_its_end() -> None:
    with pb.profile() as prof:
        assert prof.total.launches == 0
        assert prof.spans == []
        pb.exp(X)
    assert prof.total.launches == 1
    assert prof.total.seconds > 0


def test_the_hosts_time_is_told_apart() -> None:
    net = mlp()
    with pb.profile(detail="kernel") as prof:
        for _ in range(5):
            with pb.GradientTape() as tape:
                loss = nn.cross_entropy(net(X), Y)
            tape.gradient(loss, net.parameters())
    host = prof.host
    assert sum(host) == pytest.approx(prof.seconds)
    assert min(host.launches, host.tape, host.python) > 0
    assert host.copies >= 0 <= host.waiting
    with pb.profile() as prof:
        pass
    with pytest.raises(pb.PullbackError, match='detail="kernel"'):
        prof.host  # noqa: B018
    with pytest.raises(pb.PullbackError, match="'count', 'phase', 'kernel'"):
        pb.profile(detail="all")


def test_an_elementwise_op_without_a_functor_has_an_unknown_cost() -> None:
    assert per_element("an op without a row") is None
    x = pb.ones(3)
    with pb.profile() as prof:
        pb.nextafter(x, x)  # it has no row either, and no arithmetic
    assert (prof.total.flops, prof.coverage) == (0, 1.0)
