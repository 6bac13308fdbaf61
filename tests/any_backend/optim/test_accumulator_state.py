"""The state of an Accumulator, with gradients that wait: saved, loaded, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import host
from pullback import nn, optim

SHAPES = ((3, 2), (4,), ())
DTYPES = ("float32", "bfloat16", "float64")


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_a_state_holds_the_gradients_that_wait(tmp_path: Path, reduce: str) -> None:
    """A run that is saved in the middle of an update, and resumed by others, ends as one without an interruption."""
    rng = np.random.default_rng(0)
    grads = [[pb.tensor(rng.standard_normal(s), dtype=d) for s, d in zip(SHAPES, DTYPES)] for _ in range(7)]
    grads[1][0] = grads[4][2] = None

    def made() -> tuple[nn.Module, Any, Any]:
        net = nn.Module()
        for k, (shape, dtype) in enumerate(zip(SHAPES, DTYPES)):
            setattr(net, f"p{k}", pb.Parameter(np.ones(shape), dtype=dtype))
        opt = optim.Adam(net.parameters(), lr=0.1)
        return net, opt, optim.Accumulator(opt.parameters, every=3, reduce=reduce)

    def run(opt: Any, acc: Any, some: Any) -> None:
        for k, g in enumerate(some):
            if acc.add(g, count=k + 1):
                opt.step(acc.take())

    whole, first, second = made(), made(), made()
    run(*whole[1:], grads[:5])
    run(*first[1:], grads[:5])
    path = tmp_path / "training.safetensors"
    pb.save_training(path, *first[:2], acc=first[2].state_dict())
    second[2].load_state_dict(pb.load_training(path, *second[:2])["acc"])
    assert second[2].stats == first[2].stats == (5, 0, 2)
    assert second[2].step == 1
    for _, opt, acc in (whole, second):
        run(opt, acc, grads[5:])
    for p, q in zip(whole[0].parameters(), second[0].parameters()):
        np.testing.assert_array_equal(host(p).astype(np.float64), host(q).astype(np.float64))
    assert second[2].state_dict()["step"] == whole[2].step == 2


@needs_kernels
def test_a_recording_goes_on_with_a_loaded_state() -> None:
    p = pb.Parameter([1.0, 2.0])
    opt = optim.SGD([p], lr=1.0)
    acc = optim.Accumulator([p], every=2)
    step = pb.capture(lambda g: opt.step(acc.take()) if acc.add([g]) else None)
    for _ in range(3):
        step(pb.ones(2))
    state, value = acc.state_dict(), host(p).copy()
    step(pb.ones(2))
    acc.load_state_dict(state)
    p.assign(value)
    step(pb.ones(2))
    assert (acc.step, acc.stats) == (2, (4, 0, 0))
    np.testing.assert_array_equal(host(p), value - 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reduce": "sum"}, "reduce='sum', and this one has reduce='mean'"),
        ({"sums": {}}, r"the dict of sums has entries for \[\]"),
        ({"sums": {"w": np.ones(3)}}, r"sum of .w. has shape \(3,\)"),
        ({"weights": {"float64": np.ones(1)}}, "dict of weights"),
        ({"waiting": [[1, ["v"]]]}, "waiting is"),
        ({"waiting": 3}, "waiting is"),
        ({"accepted": 0}, "1 gradients wait, but only 0 were accepted"),
        ({"accepted": True}, "accepted is True; it must be a count"),
        ({"waiting": [[-2, ["w"]]]}, "waiting is"),
        ({"waiting": [[1, ["w", "w"]]]}, "waiting is"),
        ({"waiting": []}, "the weight of float32 is 1; it must be 0, because none waits"),
        ({"weights": {"float32": np.zeros(1)}}, "the weight of float32 is 0; it must be positive"),
        ({"weights": {"float32": np.full(1, np.nan)}}, "the weight of float32 is nan"),
        ({"reduce": np.ones(2)}, "and this one has reduce='mean'"),
        ({"step": -1}, "step is -1"),
        ({"more": 1}, "has entries for"),
    ],
)
def test_states_that_do_not_fit_are_refused_and_change_nothing(change: dict[str, Any], words: str) -> None:
    p = pb.Parameter([1.0, 2.0], name="w")
    acc = optim.Accumulator([p], every=3)
    acc.add([pb.ones(2)])
    with pytest.raises(pb.PullbackError, match=words):
        acc.load_state_dict({**acc.state_dict(), **change})
    assert acc.stats == (1, 0, 1)
    acc.add([pb.ones(2) * 3])
    np.testing.assert_array_equal(host(acc.take()[0]), [2, 2])
