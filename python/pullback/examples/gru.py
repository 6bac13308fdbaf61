"""A recurrent network solves the adding problem: `pullback train gru`.

A sequence has a number from [-1, 1] and a mark at each step. Two numbers are marked, one of the first ten and one of the other
numbers in the first half, so the network must remember them for at least half of the sequence. After the last step it outputs
their sum. A sequence counts as wrong if the output is off by more than 0.16.

Hochreiter and Schmidhuber trained an LSTM of 93 weights on sequences of 100 to 110 steps, until it was right in 2,000 of them in
a row. That took 74,000 sequences, and then 1 of 2,560 new sequences was wrong (means of 10 trials; never more than 3). Here all
sequences have 100 steps. There, the first and the last step have a mark of -1 in addition, and the target is 0.5 + sum / 4, with a
tolerance of 0.04, which is 0.16 of the sum.

Source: S. Hochreiter, J. Schmidhuber: Long Short-Term Memory, Neural Computation 9 (1997), Experiment 4 and Table 7.
"""

from __future__ import annotations

from typing import Any, Final

import pullback as pb
from pullback import nn, optim

from .run import BLUE, ORANGE, Measure, Result, Run, check

REFERENCE: Final = "1 of 2,560 wrong: LSTM after 74,000 sequences of 100 to 110 steps (Hochreiter & Schmidhuber 1997, table 7)"
FIRST, TOLERANCE, TESTED = 10, 0.16, 2560  # as in the paper


class Adder(nn.Module):
    """A GRU that reads the sequence, and a linear layer that reads its last state: 3,489 parameters with 32 hidden units.

    The biases of the update gates begin 3 higher than usual, so that the state decays slowly. Otherwise the gradient of the first
    steps vanishes, and the loss stays at that of a constant output. (The paper closes the input gates at the beginning, by -3, -6.)
    """

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(2, hidden), nn.Linear(hidden, 1)
        bias = dict(self.gru.named_parameters())["bias_ih_l0"]  # of the reset gates, of the update gates, of the candidates
        bias.assign(bias + 3.0 * pb.repeat(pb.tensor([0.0, 1.0, 0.0]), hidden))

    def forward(self, x: pb.Tensor) -> pb.Tensor:
        _, last = self.gru(x)  # (layers, N, hidden)
        return self.head(last[0])[:, 0]


def sequences(count: int, length: int) -> tuple[pb.Tensor, pb.Tensor]:
    """Draws sequences of shape (length, count, 2), and returns them with the sums of their marked numbers, of shape (count,)."""
    numbers = pb.random.uniform((length, count), -1.0, 1.0)
    first, second = pb.random.randint(0, FIRST, (count,)), pb.random.randint(FIRST, length // 2, (count,))
    marks = (pb.one_hot(first, length) + pb.one_hot(second, length)).T
    return pb.stack([numbers, marks], axis=2), pb.sum(numbers * marks, axis=0)


def train(run: Run, *, steps: int = 800, batch_size: int = 32, lr: float = 2e-2, length: int = 100, hidden: int = 32) -> Result:
    """Trains the network with Adam on sequences that are drawn anew in each step, and tests it on 2,560 others.

    Args:
        lr: the initial learning rate, which falls to 0 along a cosine.
        length: the number of steps of a sequence.
        hidden: the number of hidden units.

    Raises: PullbackError, DeviceError.
    """
    check(lr, steps=steps, batch_size=batch_size, hidden=hidden)
    if length < 2 * FIRST + 2:
        raise pb.PullbackError(
            f"train: length={length} must be {2 * FIRST + 2} or more, so that the first half has room for both marks."
        )
    with run:
        net = Adder(hidden)
        opt = optim.Adam(net.parameters(), lr=optim.schedules.Cosine(lr, steps), betas=(0.9, 0.99), clip_norm=1.0)

        @pb.capture  # a replay draws other random numbers than the recording
        def step() -> pb.Tensor:
            x, sums = sequences(batch_size, length)
            return opt.minimize(lambda: nn.mse(net(x), sums))

        run.repeat(step, steps)
        x, sums = sequences(TESTED, length)
        outputs, targets = net(x).numpy(), sums.numpy()
        errors = outputs - targets
        wrong, square = TESTED - int((abs(errors) <= TOLERANCE).sum()), float((errors**2).mean())  # NaN is wrong
        measures = {
            "wrong": Measure(
                wrong, f"{wrong:,} of {TESTED:,}, off by more than {TOLERANCE}, after {steps * batch_size:,} sequences"
            ),
            "squared error": Measure(square, f"{square:.2g}, and {2 / 3:.2f} if all outputs were 0"),
        }
        return run.result(net, measures, reference=REFERENCE, draw=lambda figure: draw(figure, targets, outputs))


def draw(figure: Any, targets: Any, outputs: Any) -> None:
    """Draws the outputs against the targets."""
    axes = figure.subplots()
    axes.plot(targets, outputs, ".", color=BLUE, markersize=3, label="test sequences")
    for offset in (-TOLERANCE, TOLERANCE):
        axes.plot([-2, 2], [offset - 2, offset + 2], "--", color=ORANGE, label="tolerance" if offset > 0 else None)
    axes.set(xlabel="sum of the marked numbers", ylabel="output", title="adding two marked numbers")
    axes.legend()
