"""A network solves a differential equation: `pullback train pinn`.

The equation is u'' = -u on [0, 3π/2] with u(0) = 0 and u(3π/2) = -1. Its exact solution is sin(x). The network N enters through

    u(x) = -x / b + x (b - x) N(x),    b = 3π/2

which has the right values at both ends whatever N is. The loss is the mean square of u'' + u at a few points. It contains the
second derivative by x, and the optimizer needs the gradient of that by the weights: a derivative of third order.

Source of the method: I. E. Lagaris, A. Likas, D. I. Fotiadis: Artificial Neural Networks for Solving Ordinary and Partial
Differential Equations, IEEE Transactions on Neural Networks 9 (1998).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import pullback as pb
from pullback import nn, optim

from .run import BLUE, ORANGE, Measure, Result, Run, check

END: Final = 1.5 * math.pi
REFERENCE: Final = "the exact solution sin(x)"
Function = Callable[[pb.Tensor], pb.Tensor]


def network(hidden: int = 32) -> nn.Module:
    """Returns a network from one number to one number with two hidden layers: 1,153 parameters with 32 units in each."""
    return nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))


def solution(net: nn.Module) -> Function:
    """Returns u, as a function of points of shape (N, 1)."""
    return lambda x: -x / END + x * (END - x) * net(2 * x / END - 1)


def derivative(f: Function) -> Function:
    """Returns f'. Each row of f(x) depends on the same row of x only, so the gradient of the sum holds the slopes of all rows."""
    return pb.grad(lambda x: pb.sum(f(x)))


def train(run: Run, *, steps: int = 3000, lr: float = 1e-2, points: int = 32, hidden: int = 32) -> Result:
    """Trains the network with Adam, and compares u with the exact solution at 1,001 points.

    Args:
        lr: the initial learning rate, which falls to 0 along a cosine.
        points: the number of points at which the equation is evaluated.
        hidden: the number of units of each hidden layer.

    Raises: PullbackError, DeviceError.
    """
    check(lr, steps=steps, points=points, hidden=hidden)
    with run:
        net = network(hidden)
        u = solution(net)
        curvature = derivative(derivative(u))
        x = pb.linspace(0.0, END, points)[:, None]
        opt = optim.Adam(net.parameters(), lr=optim.schedules.Cosine(lr, steps), betas=(0.9, 0.99))
        step = pb.capture(lambda: opt.minimize(lambda: pb.mean(pb.square(curvature(x) + u(x)))))
        run.repeat(step, steps)
        x = pb.linspace(0.0, END, 1001)[:, None]
        found, exact = u(x), pb.sin(x)
        error = float(pb.max(pb.abs(found - exact)))
        shown = [t.numpy()[:, 0] for t in (x, found, exact)]
        return run.result(
            net, {"largest error": Measure(error, f"{error:.1e}")}, reference=REFERENCE, draw=lambda figure: draw(figure, *shown)
        )


def draw(figure: Any, x: Any, found: Any, exact: Any) -> None:
    """Draws both solutions, and below them their difference."""
    above, below = figure.subplots(2, sharex=True)
    above.plot(x, exact, color=ORANGE, linewidth=4, alpha=0.5, label="sin(x)")
    above.plot(x, found, color=BLUE, label="network")
    above.set(ylabel="u", title="u'' = -u")
    above.legend()
    below.plot(x, found - exact, color=BLUE)
    below.set(xlabel="x", ylabel="error")
