"""Ids and classes count from 0: a negative one is an IndexError everywhere, of every dtype, and only indices count from the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import INTEGERS, host
from pullback import nn

COUNT = 5  # rows of each table, classes, segments
SIGNED = [dtype for dtype in INTEGERS if dtype[0] == "i"]
NUMBERS = np.random.default_rng(0).standard_normal((4, COUNT))

SEGMENTS = ("segment_sum", "segment_mean", "segment_max", "segment_min", "segment_softmax", "segment_logsumexp")

# Functions of four ids.
CALLS: dict[str, Callable[[Any], Any]] = {
    "Embedding": nn.Embedding(COUNT, 3),
    "Embedding with padding": nn.Embedding(COUNT, 3, padding_idx=-1),
    "one_hot": lambda ids: pb.one_hot(ids, COUNT),
    "F.one_hot": lambda ids: nn.functional.one_hot(ids, COUNT),
    "cross_entropy": lambda ids: nn.cross_entropy(NUMBERS, ids),
    "cross_entropy of rows": lambda ids: nn.cross_entropy(NUMBERS, ids, reduction="none"),
    "cross_entropy with weights": lambda ids: nn.cross_entropy(NUMBERS, ids, weight=np.arange(1.0, 1 + COUNT)),
    "nll": lambda ids: nn.nll(NUMBERS, ids),
    "nll with weights": lambda ids: nn.nll(NUMBERS, ids, weight=np.arange(1.0, 1 + COUNT)),
    **{name: lambda ids, name=name: getattr(pb, name)(NUMBERS, ids, COUNT) for name in SEGMENTS},
}
MODES: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "eager": lambda f: f,
    "captured": pb.capture,
    "vmap": lambda f: lambda ids: pb.vmap(f)(pb.stack([pb.zeros_like(ids), ids])),
    "captured vmap": lambda f: pb.capture(lambda ids: pb.vmap(f)(pb.stack([pb.zeros_like(ids), ids]))),
}
WRONG = [(dtype, wrong) for dtype in SIGNED for wrong in (-1, -COUNT, -COUNT - 1, int(np.iinfo(dtype).min))]
WRONG += [(dtype, wrong) for dtype in INTEGERS for wrong in (COUNT, int(np.iinfo(dtype).max))]
WRONG += [("uint64", 2**64 - k) for k in (2, COUNT, 100)]  # -2, -5 and ignore_index, if they were read as int64


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CALLS)
def test_an_id_outside_the_range_is_an_index_error(name: str, mode: str) -> None:
    for dtype, wrong in WRONG:
        f = MODES[mode](CALLS[name])
        host(f(pb.tensor(np.array([0, 1, 2, COUNT - 1], dtype))))  # records, if the mode does
        with pytest.raises(IndexError, match=r"out of range|is not a class"):
            host(f(pb.tensor(np.array([0, wrong, 2, 1], dtype))))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("mode", MODES)
def test_ids_in_the_range_are_rows(mode: str, dtype: str) -> None:
    layer, ids = nn.Embedding(COUNT, 3), pb.tensor(np.array([0, COUNT - 1, 2, 2], dtype))
    for f, table in ((layer, layer.weight.numpy()), (CALLS["one_hot"], np.eye(COUNT, dtype=np.float32))):
        found = host(MODES[mode](f)(ids))
        assert (found if found.ndim == 2 else found[1]).tolist() == table[[0, COUNT - 1, 2, 2]].tolist()


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_the_padding_row_is_never_trained(captured: bool) -> None:
    layer = nn.Embedding(10, 3, padding_idx=-1)
    assert layer.padding_idx == 9
    opt = pb.optim.SGD(layer.parameters(), lr=0.1)

    def step(ids: Any) -> Any:
        return opt.minimize(lambda: pb.sum(layer(ids)))

    run = pb.capture(step) if captured else step
    for _ in range(3):
        run(pb.tensor([3, 4, 9, 9]))
    assert layer.weight.numpy()[9].tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(IndexError, match="index -1"):
        host(run(pb.tensor([3, 4, -1, -1])))


@pytest.mark.usefixtures("on_cpu")
def test_the_error_names_the_id_and_says_what_to_do() -> None:
    for name, f in (("Embedding", CALLS["Embedding"]), ("one_hot", CALLS["one_hot"])):
        words = rf"^{name}: index -2 at position \[1\] is out of range for axis -?\d of length 5 \(from 0 to 4\)\. Negative ids"
        with pytest.raises(IndexError, match=words):
            f(pb.tensor([1, -2]))
        with pytest.raises(IndexError, match=r"\(from 0 to 4\)\.( \(in .*)?$"):
            f(pb.tensor([5]))


def test_indices_of_arrays_still_count_from_the_end() -> None:
    x, at = pb.tensor(NUMBERS[0]), np.array([-1, 0, -COUNT])
    for f in (lambda x, at: x[at], lambda x, at: pb.take(x, at), lambda x, at: pb.take_along_axis(x, at)):
        for call in (f, pb.capture(f)):
            np.testing.assert_array_equal(host(call(x, pb.tensor(at))), NUMBERS[0][at])
