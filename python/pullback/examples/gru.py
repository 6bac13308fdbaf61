"""A recurrent network solves the adding problem: `pullback train gru`.

A sequence has a number from [-1, 1] and a mark at each step. Two numbers are marked, one of the first ten and one of the other
numbers in the first half, so that the network must remember both for at least half of the sequence. After the last step it should
output 0.5 + (the sum of the marked numbers) / 4. A sequence counts as wrong if it is off by more than 0.04.

Hochreiter and Schmidhuber trained an LSTM of 93 weights on sequences of 100 to 110 steps, until it was right in 2,000 of them in a
row. That took 74,000 sequences, and then 1 of 2,560 new sequences was wrong (means of 10 trials; never more than 3). The sequences
here have 100 steps, and -1 does not mark the first and the last step as it does there. Who always outputs 0.5 has a mean squared
error of 1/24 = 0.0417: the numbers have a variance of 1/3, their sum of 2/3, and a quarter of it of 1/24.

Source: S. Hochreiter, J. Schmidhuber: Long Short-Term Memory, Neural Computation 9 (1997), Experiment 4 and Table 7.
"""

from __future__ import annotations

from typing import Any, Final

import pullback as pb
from pullback import nn, optim

from .run import Measure, Result, Run, positive

REFERENCE: Final = "1 of 2,560 wrong: LSTM after 74,000 sequences of 100 to 110 steps (Hochreiter & Schmidhuber 1997, table 7)"
FIRST, TOLERANCE, TESTED = 10, 0.04, 2560  # as in the paper


class Adder(nn.Module):
    """A GRU that reads the sequence, and a linear layer that reads its last state: 3,489 parameters with 32 hidden units."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(2, hidden), nn.Linear(hidden, 1)

    def forward(self, x: pb.Tensor) -> pb.Tensor:
        _, last = self.gru(x)  # (layers, N, hidden)
        return self.head(last[0])[:, 0]


def sequences(count: int, length: int) -> tuple[pb.Tensor, pb.Tensor]:
    """Draws sequences of shape (length, count, 2) and their targets of shape (count,)."""
    numbers = pb.random.uniform((length, count), -1.0, 1.0)
    first, second = pb.random.randint(0, FIRST, (count,)), pb.random.randint(FIRST, length // 2, (count,))
    marks = (pb.one_hot(first, length) + pb.one_hot(second, length)).T
    return pb.stack([numbers, marks], axis=2), 0.5 + pb.sum(numbers * marks, axis=0) / 4


def train(
    run: Run, *, steps: int = 800, batch_size: int = 64, lr: float = 1e-2, length: int = 100, hidden: int = 32
) -> Result:
    """Trains the network with Adam on sequences that are drawn anew in each step, and tests it on 2,560 others.

    Args:
        lr: the initial learning rate, which falls to 0 along a cosine.
        length: the number of steps of a sequence.
        hidden: the number of hidden units.

    Raises: PullbackError, DeviceError.
    """
    positive(steps=steps, batch_size=batch_size, hidden=hidden)
    if length < 2 * FIRST + 2:
        raise pb.PullbackError(f"train: length={length} must be {2 * FIRST + 2} or more, so that both halves have places for marks.")
    with run:
        net = Adder(hidden)
        opt = optim.Adam(net.parameters(), lr=optim.schedules.Cosine(lr, steps), clip_norm=1.0)

        @pb.capture  # a replay draws other random numbers than the recording
        def step() -> pb.Tensor:
            x, y = sequences(batch_size, length)
            return opt.minimize(lambda: nn.mse(net(x), y))

        run.repeat(step, steps)
        x, y = sequences(TESTED, length)
        outputs, targets = net(x).numpy(), y.numpy()
        errors = abs(outputs - targets)
        wrong, square = int((errors > TOLERANCE).sum()), float((errors**2).mean())
        measures = {
            "wrong": Measure(wrong, f"{wrong:,} of {TESTED:,}, off by more than {TOLERANCE}, after {steps * batch_size:,} sequences"),
            "squared error": Measure(square, f"{square:.2g}, and {1 / 24:.2g} if all outputs were 0.5"),
        }
        return run.result(net, measures, reference=REFERENCE, draw=lambda figure: draw(figure, targets, outputs))


def draw(figure: Any, targets: Any, outputs: Any) -> None:
    """Draws the outputs against the targets."""
    axes = figure.subplots()
    axes.plot(targets, outputs, ".", color="#2f81f7", markersize=3, label="test sequences")
    for offset in (-TOLERANCE, TOLERANCE):
        axes.plot([0, 1], [offset, 1 + offset], "--", color="#e8710a", label="tolerance" if offset > 0 else None)
    axes.set(xlabel="target", ylabel="output", title="adding two marked numbers")
    axes.legend()
