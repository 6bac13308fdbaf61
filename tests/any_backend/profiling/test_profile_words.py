"""What a profile says where a figure is not measured or has two definitions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from pullback import nn, optim
from pullback.launch.ledger import PHASES
from pullback.profiling.figures import Figures
from pullback.profiling.record import record

X, LABELS = pb.ones((16, 8)), pb.tensor(np.arange(16) % 4)


def trained() -> Any:
    pb.random.seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    opt = optim.Adam(net.parameters())
    return lambda: opt.minimize(lambda: nn.cross_entropy(net(X), LABELS))


def profiled(step: Any, **options: Any) -> Any:
    with pb.profile(**options) as prof:
        step()
    return prof


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("detail", ["count", "phase"])
def test_the_memory_of_a_replay_is_not_measured(detail: str) -> None:
    step = pb.capture(trained())
    step()
    prof = profiled(step, detail=detail)
    assert prof.memory == ([], None, None, {})
    assert prof.replayed == prof.total.launches == prof.dropped > 0
    assert record(prof)["replayed"] == prof.replayed
    assert record(prof)["memory"] == {"samples": [], "live": None, "peak": None, "peaks": {}}


@pytest.mark.usefixtures("native")
def test_the_memory_of_a_replay_beside_other_launches_is_not_that_of_those_launches_alone() -> None:
    step = pb.capture(trained())
    step()
    prof = profiled(lambda: (step(), pb.sum(X)))
    assert 0 < prof.replayed < prof.total.launches
    assert (prof.memory.live, prof.memory.peak, prof.memory.peaks) == (None, None, {})


@pytest.mark.usefixtures("native")
def test_detail_kernel_measures_the_memory_of_a_replay() -> None:
    plain, step = profiled(trained()).memory, pb.capture(trained())
    step()
    prof = profiled(step, detail="kernel")
    assert prof.replayed == 0
    assert prof.memory.peak > 0
    assert plain.peak > 0
    assert len(prof.memory.samples) == prof.total.launches


@needs_kernels
def test_memory_is_not_read_inside_the_statement() -> None:
    with pb.profile() as prof:
        pb.sum(X)
        with pytest.raises(pb.PullbackError, match="memory is known after the end of the `with`"):
            _ = prof.memory
    assert (prof.memory.peak or 0) > 0
    assert prof.replayed == 0


def test_the_ratio_names_both_definitions() -> None:
    prof = profiled(trained())
    of_all, of_products = re.search(r"backward (\S+) × forward \((\S+) × in products\)", str(prof)).groups()  # type: ignore[union-attr]
    assert float(of_all) == pytest.approx(prof.backward.flops / prof.forward.flops, abs=0.005)
    assert float(of_products) == pytest.approx(prof.backward.matmul_flops / prof.forward.matmul_flops, abs=0.005)
    assert record(prof)["ratio"].startswith(f"backward {of_all} × forward ({of_products} × in products): ")


def test_a_group_has_every_phase() -> None:
    group = next(group for group in profiled(lambda: pb.tanh(X)).by("op") if group.name == "tanh")
    assert group.forward == group.phases["forward"] == group.total
    assert [*group.phases] == ["forward"]
    assert "backward" not in group.phases
    for phase in PHASES[1:]:
        assert getattr(group, phase) == group.phases[phase] == Figures()
    with pytest.raises(KeyError, match="forwards"):
        group.phases["forwards"]


def test_a_roofline_shows_whole_names() -> None:
    prof = profiled(trained(), detail="kernel")
    found = prof.roofline()
    lines = str(found).splitlines()
    first = [line.split()[0] for line in lines[2 : 2 + len(found.rows)]]
    assert [*first] == [row.kernel for row in found.rows]
    assert {len(line) for line in lines[1:2]} >= {max(map(len, lines[2 : 2 + len(found.rows)]))}
