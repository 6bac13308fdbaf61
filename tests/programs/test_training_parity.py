"""The same weights and batches give the same loss curves here and in torch, over 200 steps of float32 on the digits.

Every step amplifies the rounding differences of the steps before it. The learning rates are ones that a user would train with: the
loss falls to less than a tenth of the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn, optim
from pullback.tensors import devices

torch: Any = pytest.importorskip("torch", reason="torch is not installed: there is no other library to train with")
pytestmark = [
    pytest.mark.usefixtures("native", "one_torch_thread"),
    pytest.mark.skipif(devices.default_device() != "cpu", reason="1,200 steps take minutes on the simulator; the CPU runs them"),
]
STEPS, BATCH, SEED = 200, 32, 0


def mlp(n: Any) -> Any:
    return n.Sequential(n.Flatten(), n.Linear(64, 64), n.ReLU(), n.Linear(64, 64), n.Tanh(), n.Linear(64, 10))


def cnn(n: Any) -> Any:
    """Returns a network whose first convolution has no bias, because the batch norm subtracts it again.

    The gradient of such a bias would be 0 but for rounding. Adam divides it by its size, and so would move the bias at random.
    """
    return n.Sequential(
        n.Conv2d(1, 8, 3, padding=1, bias=False), n.BatchNorm2d(8), n.ReLU(), n.MaxPool2d(2),
        n.Conv2d(8, 16, 3, padding=1), n.ReLU(), n.AvgPool2d(2), n.Flatten(), n.Linear(64, 10),
    )


def gru(n: Any) -> Any:
    """Reads an image row by row, and classifies it by the states after all rows."""

    class Reader(n.Module):
        def __init__(self) -> None:
            if n is torch.nn:
                super().__init__()
            self.rows, self.classes = n.GRU(8, 32, batch_first=True), n.Linear(8 * 32, 10)

        def forward(self, x: Any) -> Any:
            return self.classes(self.rows(x)[0].reshape(-1, 8 * 32))

    return Reader()


class Case(NamedTuple):
    make: Callable[[Any], Any]
    shape: tuple[int, ...]  # of an image
    optimizer: str
    options: dict[str, float]


SGD, ADAM = {"lr": 0.05, "momentum": 0.9}, {"lr": 0.01}
CASES = {
    "mlp, sgd": Case(mlp, (8, 8), "SGD", SGD), "mlp, adam": Case(mlp, (8, 8), "Adam", ADAM),
    "cnn, sgd": Case(cnn, (1, 8, 8), "SGD", SGD), "cnn, adam": Case(cnn, (1, 8, 8), "Adam", ADAM),
    "gru, sgd": Case(gru, (8, 8), "SGD", SGD), "gru, adam": Case(gru, (8, 8), "Adam", ADAM),
}


def batches(shape: tuple[int, ...]) -> list[tuple[Any, Any]]:
    """Returns the images and labels of all steps, in epochs of random order, and then those of the test set."""
    data, rng = pb.data.digits(), np.random.default_rng(SEED)
    x, y = host(data.x_train).reshape(-1, *shape), host(data.y_train)
    rows = np.concatenate([rng.permutation(len(x)) for _ in range(STEPS * BATCH // len(x) + 1)])
    found = [(x[part], y[part]) for part in rows[: STEPS * BATCH].reshape(STEPS, BATCH)]
    return [*found, (host(data.x_test).reshape(-1, *shape), host(data.y_test))]


def torch_losses(case: Case, net: Any) -> list[float]:
    """Trains torch's network. Returns the loss of each step, and that of the test set in evaluation mode."""
    opt = getattr(torch.optim, case.optimizer)(net.parameters(), **case.options)
    *steps, test = [(torch.tensor(x), torch.tensor(y)) for x, y in batches(case.shape)]
    losses = []
    for x, y in steps:
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    net.eval()
    return [*losses, torch.nn.functional.cross_entropy(net(test[0]), test[1]).item()]


def our_losses(case: Case, weights: dict[str, Any], captured: bool) -> list[float]:
    net = case.make(nn)
    net.load_state_dict(weights)
    opt = getattr(optim, case.optimizer)(net.parameters(), **case.options)

    def step(x: Any, y: Any) -> Any:
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(net(x), y)
        opt.step(tape.gradient(loss, opt.parameters))
        return loss

    run = pb.capture(step) if captured else step
    *steps, test = [(pb.tensor(x), pb.tensor(y)) for x, y in batches(case.shape)]
    losses = [run(x, y).item() for x, y in steps]
    net.eval()
    return [*losses, nn.cross_entropy(net(test[0]), test[1]).item()]


@pytest.mark.parametrize("name", CASES)
def test_loss_curves_are_those_of_torch(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(SEED)
    theirs = case.make(torch.nn)
    weights = {key: value.numpy().copy() for key, value in theirs.state_dict().items()}
    wanted = torch_losses(case, theirs)
    assert np.mean(wanted[STEPS - 20 : STEPS]) < wanted[0] / 10
    for captured in (False, True):
        found = our_losses(case, weights, captured)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=0, err_msg="captured" if captured else "eager")
