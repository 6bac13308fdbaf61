"""A network learns to aim through a simulator without a gradient: `pullback train blackbox`.

A ball is thrown at 20 m/s against a resistance that is proportional to its speed. The network reads the distance of a target and
outputs the angle of the throw. A simulator in NumPy steps through the flight and returns where the ball lands; `pb.black_box`
estimates its slope from throws at slightly different angles, so the loss is the square of the miss.

This throw has an exact solution, which neither the network nor the simulator uses. The miss of a throw by that solution says how
well the network aims, and includes the error of the simulator.

Source of the solution: E. W. Packel, D. S. Yuen: Projectile Motion with Resistance and the Lambert W Function, The College
Mathematics Journal 35 (2004).
"""

from __future__ import annotations

import math
from typing import Any, Final, Literal

import numpy as np

import pullback as pb
from pullback import nn, optim

from .run import BLUE, ORANGE, Measure, Result, Run, check

GRAVITY, SPEED, RESISTANCE = 9.81, 20.0, 0.5  # m/s², m/s, 1/s
NEAR, FAR = 5.0, 18.0  # m; no throw lands further than 20.8 m away
REFERENCE: Final = "0 m, by the exact range of a throw with linear resistance (Packel & Yuen 2004)"


def simulate(angles: Any, dt: float = 0.02) -> Any:
    """Returns how many metres away balls land that are thrown at these angles, by the midpoint rule with steps of dt seconds."""
    x, y, landing = np.zeros_like(angles), np.zeros_like(angles), np.full_like(angles, np.nan)
    u, v = SPEED * np.cos(angles), SPEED * np.sin(angles)
    for _ in range(round(2 * SPEED / GRAVITY / dt)):  # no flight takes longer
        u_mid, v_mid = u - dt / 2 * RESISTANCE * u, v - dt / 2 * (GRAVITY + RESISTANCE * v)
        x_next, y_next = x + dt * u_mid, y + dt * v_mid
        lands = np.isnan(landing) & (y_next <= 0)
        share = y[lands] / (y - y_next)[lands]  # of the step, on the straight line between the two positions
        landing[lands] = x[lands] + share * (x_next - x)[lands]
        u, v = u - dt * RESISTANCE * u_mid, v - dt * (GRAVITY + RESISTANCE * v_mid)
        x, y = x_next, y_next
        if not np.isnan(landing).any():
            break
    return landing


def exact(angles: Any) -> Any:
    """Returns the exact distances. The time of flight, which Lambert's W gives, is found by Newton's method."""
    u, v = SPEED * np.cos(angles), SPEED * np.sin(angles)
    time = 2 * v / GRAVITY  # of a flight without resistance, which is longer
    for _ in range(20):
        height = (v + GRAVITY / RESISTANCE) / RESISTANCE * -np.expm1(-RESISTANCE * time) - GRAVITY / RESISTANCE * time
        speed = (v + GRAVITY / RESISTANCE) * np.exp(-RESISTANCE * time) - GRAVITY / RESISTANCE
        time = time - height / np.minimum(speed, -1e-300)  # the ball falls; it has no speed if it is thrown at no angle at all
    return u / RESISTANCE * -np.expm1(-RESISTANCE * time)


class Aim(nn.Module):
    """The angle, from 0 to 45 degrees in radians, for each distance in metres: 1,153 parameters with 32 hidden units."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1), nn.Sigmoid()
        )

    def forward(self, distance: pb.Tensor) -> pb.Tensor:
        return math.pi / 4 * self.layers(2 * (distance - NEAR) / (FAR - NEAR) - 1)


def train(
    run: Run, *, steps: int = 300, lr: float = 2e-2, throws: int = 32, hidden: int = 32,
    estimate: Literal["central", "spsa"] = "central",
) -> Result:
    """Trains the network with Adam, and throws once at each of 131 targets at the end.

    Args:
        lr: the initial learning rate, which falls to 0 along a cosine.
        throws: the number of targets, at equal distances, that a step throws at.
        hidden: the number of units of each hidden layer.
        estimate: the `gradient` of the black box.

    Raises: PullbackError, DeviceError.
    """
    check(lr, steps=steps, throws=throws, hidden=hidden)
    with run:
        net = Aim(hidden)
        land = pb.black_box(simulate, gradient=estimate, step=1e-2, samples=1, batch="rows")
        opt = optim.Adam(net.parameters(), lr=optim.schedules.Cosine(lr, steps), betas=(0.9, 0.99))

        targets = pb.linspace(NEAR, FAR, throws)[:, None]
        # The step is not captured: a replay runs kernels, and the simulator consists of none.
        run.repeat(lambda: opt.minimize(lambda: nn.mse(land(net(targets)), targets)), steps)
        targets = pb.linspace(NEAR, FAR, 131)[:, None]
        angles = net(targets).numpy().astype(np.float64)
        misses = np.abs(exact(angles) - targets.numpy())
        measures = {
            "largest miss": Measure(float(misses.max()), f"{misses.max():.3f} m, {misses.mean():.3f} m on average"),
            "simulator": Measure(land.stats.evaluations, f"{land.stats.evaluations:,} throws in {land.stats.calls:,} calls"),
        }
        return run.result(net, measures, reference=REFERENCE, draw=lambda figure: draw(figure, targets.numpy(), angles))


def draw(figure: Any, targets: Any, angles: Any) -> None:
    """Draws the exact paths of some throws."""
    axes = figure.subplots()
    for target, angle in zip(targets[::26, 0], angles[::26, 0]):
        rise = SPEED * math.sin(angle)
        time = np.linspace(0, 2 * rise / GRAVITY, 400)
        fade = -np.expm1(-RESISTANCE * time) / RESISTANCE
        x, y = SPEED * math.cos(angle) * fade, (rise + GRAVITY / RESISTANCE) * fade - GRAVITY / RESISTANCE * time
        axes.plot(x[y >= 0], y[y >= 0], color=BLUE, label="throw" if target == NEAR else None)
        axes.plot(target, 0, "v", color=ORANGE, label="target" if target == NEAR else None)
    axes.set(xlabel="distance, m", ylabel="height, m", title="throws of the trained network")
    axes.set_ylim(bottom=0)
    axes.legend()
