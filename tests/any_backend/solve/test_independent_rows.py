"""Jacobians of residuals whose rows are independent equal the general ones, and functions that mix rows are recognised."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn
from pullback.solve.rowwise import row_jacobian

ROWS = 12


def normal(*shape: int) -> pb.Tensor:
    return pb.random.normal(shape, dtype=pb.float64)


pb.random.seed(0)
NET = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).to(pb.float64)
WIDE = nn.Sequential(nn.Linear(2, 4), nn.Sigmoid(), nn.Linear(4, 3)).to(pb.float64)
X = normal(ROWS, 2)
W, B, V, C = pb.Parameter(normal(5, 2)), pb.Parameter(normal(5)), pb.Parameter(normal(5)), pb.Parameter(normal())
EACH = pb.Parameter(normal(ROWS))


def derivatives() -> Any:
    """Returns the residuals of a differential equation: their derivatives by x are inside."""

    def slope(x: Any) -> Any:
        return pb.grad(lambda x: pb.sum(NET(x)))(x)

    return pb.grad(lambda x: pb.sum(slope(x)[:, 0]))(X)[:, :1] + slope(X)[:, 1:] ** 2 - NET(X)


INDEPENDENT = {
    "network": lambda: NET(X) - X[:, :1],
    "one axis": lambda: (NET(X) - X[:, :1])[:, 0],
    "three outputs": lambda: WIDE(X),
    "three outputs, flat": lambda: pb.reshape(WIDE(X), (-1,)),
    "products": lambda: pb.tanh(X @ W.mT + B) @ V * C,
    "reductions": lambda: pb.where(X[:, 0] > 0, (X @ W.mT) @ V, C * pb.mean((X @ W.mT + B) ** 2, axis=1)),
    "softmax": lambda: pb.softmax(X @ W.mT + B) @ pb.exp(V),
    "two tensors": lambda: [NET(X), {"b": NET(2 * X[:9])}],
    "differential equation": derivatives,
    "their mean": lambda: NET(X) - pb.mean(NET(X)),  # a value that all rows share
}
MIXED = {
    "one unknown for each row": lambda: EACH * NET(X)[:, 0],
    "sums along rows": lambda: pb.cumulative_sum(NET(X)[:, 0]),
    "order": lambda: pb.flip(NET(X), axis=0),
    "products of rows": lambda: NET(X).mT @ NET(X),
    "few rows": lambda: NET(X[:3]),
}
SOURCES = [*NET.parameters(), *WIDE.parameters(), W, B, V, C]


@pytest.mark.parametrize("name", INDEPENDENT)
def test_the_blocks_are_those_of_the_general_jacobian(name: str) -> None:
    f = INDEPENDENT[name]
    found = row_jacobian(f, SOURCES)
    assert found is not None

    def flat(_: Any) -> Any:
        values = f()
        values = values if isinstance(values, pb.Tensor) else pb.concat([values[0], values[1]["b"]])
        return pb.reshape(values, (-1,))

    general = pb.jacobian(flat, mode="reverse")(SOURCES)
    for x, mine, other in zip(SOURCES, found[0], general):
        assert mine.shape == other.shape == (found[0][0].shape[0], *x.shape)
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", MIXED)
def test_functions_that_mix_rows_are_left_to_the_general_way(name: str) -> None:
    assert row_jacobian(MIXED[name], [*SOURCES, EACH]) is None


def test_formulas_of_users_are_left_to_the_general_way() -> None:
    @pb.custom_gradient
    def doubled(x: Any) -> Any:
        return 2 * x, lambda g: 2 * g

    assert row_jacobian(lambda: doubled(NET(X)), SOURCES) is None


def flipped(f: Any) -> Any:
    return pb.flip(f(), axis=0)


@pytest.mark.parametrize("name", ["network", "sums along rows"])
@pytest.mark.parametrize("capture", [False, True])
def test_steps_do_not_depend_on_the_way(name: str, capture: bool) -> None:
    start = [p.numpy() for p in NET.parameters()]
    costs = []
    for hidden in (False, True):
        for p, value in zip(NET.parameters(), start):
            p.assign(value)
        lm = pb.solve.LevenbergMarquardt(NET, capture=capture and not hidden)
        f = (INDEPENDENT | MIXED)[name]
        if hidden:  # flipped rows hide the independence, and change the order of residuals only
            f = partial(flipped, f)
        costs.append([lm.step(f).cost for _ in range(3)])
    for p, value in zip(NET.parameters(), start):
        p.assign(value)
    np.testing.assert_allclose(costs[0], costs[1], rtol=1e-9)


def test_least_squares_of_a_tree_of_unknowns() -> None:
    pb.random.seed(1)
    x = np.linspace(-1.0, 1.0, 40)[:, None]
    x0 = {"w": normal(10, 1), "b": normal(10), "v": normal(10, 1), "a": pb.zeros((10,), dtype=pb.float64)}

    def f(p: Any, x: Any) -> Any:
        return pb.tanh(x @ p["w"].mT + p["b"] + p["a"]) @ p["v"] - pb.sin(3 * x)

    ways: Any = [("auto", False), ("auto", True), ("reverse", False)]
    found = [pb.solve.least_squares(f, x0, (x,), mode=mode, max_nfev=8, capture=capture) for mode, capture in ways]
    np.testing.assert_allclose(found[0].cost, found[2].cost, rtol=1e-6)
    np.testing.assert_array_equal(found[0].jac.numpy(), found[1].jac.numpy())
    assert found[0].jac.shape == (40, 40)


class Instances(nn.Module):
    """Instance norm of each feature over three positions, of which the first is returned."""

    def __init__(self, features: int) -> None:
        self.mean, self.variance = nn.Buffer(pb.zeros(features)), nn.Buffer(pb.ones(features))

    def forward(self, x: pb.Tensor) -> pb.Tensor:
        x = pb.expand_dims(x, axis=-1) * pb.tensor([1.0, 2.0, -1.0]) + pb.tensor([0.0, 0.5, 0.25])
        return nn.functional.instance_norm(x, self.mean, self.variance, use_input_stats=self.training)[..., 0]


@pytest.mark.parametrize("options", [{}, {"solver": "qr"}, {"solver": "cg"}, {"capture": True}, {"geodesic": True}], ids=str)
@pytest.mark.parametrize("rows", [6, 40])
def test_a_step_moves_running_statistics_once(options: dict[str, Any], rows: int) -> None:
    """Each evaluation of the residuals moved them. They are those of one forward pass at the Parameters before the step."""
    rng = np.random.default_rng(0)
    x, y = pb.tensor(rng.standard_normal((rows, 3))), pb.tensor(rng.standard_normal((rows, 1)))
    norm = nn.BatchNorm1d(4)
    net = nn.Sequential(nn.Linear(3, 4), norm, nn.Tanh(), Instances(4), nn.Linear(4, 1)).to(pb.float64)
    lm = pb.solve.LevenbergMarquardt(net, **options)
    residuals = lambda x, y: net(x) - y
    for step in range(1, 4):
        twin = copy.deepcopy(net)
        assert lm.step(residuals, x, y).trials
        twin(x)
        assert int(norm.num_batches_tracked.numpy()) == step
        for p, q in zip(net.buffers(), twin.buffers()):
            np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-13)
    net.eval()
    lm.step(residuals, x, y)
    assert int(norm.num_batches_tracked.numpy()) == 3
