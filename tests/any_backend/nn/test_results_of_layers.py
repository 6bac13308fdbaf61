"""Results of layers with several: no op takes all of them as one array, and they are tuples in every transform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn

X = np.random.default_rng(0).standard_normal((4, 4, 4)).astype(np.float32)
LAYERS: dict[str, Any] = {
    **{name: getattr(nn, name)(4, 4, batch_first=True) for name in ("RNN", "GRU", "LSTM", "MinGRU", "LRU")},
    "LSTMCell": nn.LSTMCell(4, 4),
    "MultiheadAttention": nn.MultiheadAttention(4, 2, batch_first=True),
    "MaxPool1d": nn.MaxPool1d(3, 1, 1, return_indices=True),
    "MaxPool2d": nn.MaxPool2d(3, 1, 1, return_indices=True),
}
OPS: dict[str, Any] = {
    "add": lambda r: pb.tensor(X) + r,
    "radd": lambda r: r + pb.tensor(X),
    "sum": pb.sum,
    "tensor": pb.tensor,
    "Linear": lambda r: nn.Linear(4, 1)(r),
    "GRU": lambda r: nn.GRU(4, 1)(r),
    "mse": lambda r: nn.mse(r, X),
    "cross_entropy": lambda r: nn.cross_entropy(r, np.zeros((2, 4), int)),
    "Sequential": lambda r: nn.Sequential(nn.Tanh())(r),
    "in a list": lambda r: pb.sum([r, r]),
}


def results_of(name: str, x: Any) -> Any:
    layer = LAYERS[name]
    return layer(x, x, x) if "Multihead" in name else layer(x[0]) if "Cell" in name else layer(x)


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", LAYERS)
def test_no_op_takes_all_results_as_one_array(name: str, op: str, captured: bool) -> None:
    def run(x: Any) -> Any:
        return OPS[op](results_of(name, x))

    with pytest.raises(pb.DTypeError, match=r"(Result|State) has fields, and is not made of numbers: take one of them, \."):
        (pb.capture(run) if captured else run)(pb.tensor(X))


@pytest.mark.parametrize("name", LAYERS)
def test_results_stay_tuples_in_transforms(name: str) -> None:
    def run(x: Any) -> Any:
        return results_of(name, x)

    wanted = run(pb.tensor(X))
    first, second = wanted
    assert isinstance(wanted, tuple)
    assert wanted[1] is second
    captured = pb.capture(run)
    found = [captured(pb.tensor(X)) for _ in range(3)][-1], pb.checkpoint(run)(pb.tensor(X))
    batch = pb.tensor(np.stack([X, X]))
    by_plain = pb.vmap(run, out_axes=(1, 0))(batch)  # axes as a plain tuple
    pairs = [(pb.tree.leaves(y), pb.tree.leaves(wanted)) for y in found]
    pairs.append(([by_plain[0][:, 1], pb.tree.leaves(by_plain[1])[0][1]], [first, pb.tree.leaves(second)[0]]))
    for mine, expected in pairs:
        for a, b in zip(mine, expected):
            np.testing.assert_allclose(host(a), host(b), rtol=1e-5, atol=1e-6)
    plain = tuple([tuple(part) if isinstance(part, tuple) else part for part in wanted])
    total = pb.tree.map(lambda a, b: a - b, wanted, plain)
    assert all([not host(leaf).any() for leaf in pb.tree.leaves(total)])


def test_a_plain_pair_is_the_first_carry_of_a_cell() -> None:
    cell, xs = LAYERS["LSTMCell"], pb.tensor(X)
    zeros = pb.zeros((4, 4))
    (h, c), ys = pb.scan(lambda state, x: (cell(x, state), state[0]), (zeros, zeros), xs)
    state: Any = (zeros, zeros)
    for x in xs:
        state = cell(x, state)
    for a, b in zip((h, c), state):
        np.testing.assert_array_equal(host(a), host(b))
    assert ys.shape == (4, 4, 4)


def test_a_gradient_in_plain_tuples_fits_results() -> None:
    gru = LAYERS["GRU"]

    @pb.custom_gradient
    def doubled(results: Any) -> Any:
        return 2 * results[0], lambda g: ((2 * g, pb.zeros_like(results[1])),)

    g = pb.grad(lambda x: pb.sum(doubled(gru(x))))(pb.tensor(X))
    np.testing.assert_allclose(host(g), host(pb.grad(lambda x: 2 * pb.sum(gru(x)[0]))(pb.tensor(X))), rtol=1e-5)
