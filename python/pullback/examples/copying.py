"""Three recurrent networks copy the tokens of a sequence that matter: `pullback train copying`.

Four tokens out of eight kinds lie at random places among blanks. After the sequence there are four marks, at which the network
outputs the four tokens in order. So at each step it must decide by what it reads whether to keep it.

The networks differ only in their recurrent layers, and learn from the same sequences. The gates of a MinGRU are functions of the
input, so it can let blanks pass. Those of a GRU depend on its state, too. An LRU decays and turns its state in the same way at
every step, whatever it reads, so it cannot choose. Gu and Dao gave this as the reason for selective state space models, and Feng et
al. trained MinGRUs on such sequences.

Source: A. Gu, T. Dao: Mamba, Linear-Time Sequence Modeling with Selective State Spaces (2023); L. Feng et al.: Were RNNs All We
Needed? (2024).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final

import pullback as pb
from pullback import nn, optim

from .run import BLUE, GREY, ORANGE, Measure, Result, Run, check, smoothed

KINDS: Final = 8  # of tokens; then follow the blank and the mark
BLANK, MARK = KINDS, KINDS + 1
TESTED: Final = 512  # sequences
LONGER: Final = (1, 2, 4, 8)  # times the length of the training sequences, at which the networks are tested
COLOURS: Final = {"MinGRU": BLUE, "GRU": GREY, "LRU": ORANGE}


class RecurrentBlock(nn.Module):
    """Adds to x what a recurrent layer and a linear one compute from normalized activations."""

    def __init__(self, recurrent: nn.Module, width: int, hidden: int) -> None:
        self.norm, self.recurrent, self.down = nn.RMSNorm(width), recurrent, nn.Linear(hidden, width)

    def forward(self, x: pb.Tensor) -> pb.Tensor:
        states, _ = self.recurrent(self.norm(x))
        return x + self.down(pb.gelu(states))


class Copier(nn.Module):
    """Two blocks of recurrent layers, which read the sequence, and a linear layer, which reads their last activations."""

    def __init__(self, layer: str, width: int) -> None:
        self.tokens = nn.Embedding(KINDS + 2, width)
        self.blocks = nn.Sequential(*[_block(layer, width) for _ in range(2)])
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, KINDS)

    def forward(self, x: pb.Tensor, count: int) -> pb.Tensor:
        """Returns the logits (N, count, KINDS) of the tokens at the last `count` steps of the sequences (N, T)."""
        return self.head(self.norm(self.blocks(self.tokens(x))[:, -count:]))


def _block(layer: str, width: int) -> RecurrentBlock:
    """Returns a block. With a width of 48 the networks have 29,144 (MinGRU), 33,944 (GRU) and 29,216 parameters (LRU)."""
    if layer == "MinGRU":
        return RecurrentBlock(nn.MinGRU(width, 2 * width, batch_first=True), width, 2 * width)
    if layer == "GRU":
        return RecurrentBlock(nn.GRU(width, width, batch_first=True), width, width)
    return RecurrentBlock(nn.LRU(width, 5 * width // 4, batch_first=True), width, width)


def sequences(count: int, length: int, tokens: int) -> tuple[pb.Tensor, pb.Tensor]:
    """Draws sequences (count, length + tokens), the marks included, and returns them with their tokens (count, tokens)."""
    kept = pb.random.randint(0, KINDS, (count, tokens))
    drawn = pb.random.uniform((count, length))
    places = drawn <= pb.sort(drawn, axis=1)[:, tokens - 1 : tokens]  # those of the smallest numbers
    number = pb.clip(pb.cumulative_sum(places.astype("int64"), axis=1) - 1, 0, tokens - 1)
    read = pb.where(places, pb.take_along_axis(kept, number, axis=1), BLANK)
    return pb.concat([read, pb.full((count, tokens), MARK, dtype=read.dtype)], axis=1), kept


def train(
    run: Run, *, steps: int = 1500, batch_size: int = 32, lr: float = 4e-3, length: int = 48, tokens: int = 4, width: int = 48
) -> Result:
    """Trains the three networks with AdamW on sequences that are drawn anew in each step, and tests them on longer ones, too.

    Args:
        lr: the highest learning rate. It is reached after a tenth of the steps, and falls to 0 along a cosine.
        length: the number of steps of a sequence before the marks.
        tokens: the number of tokens to copy.
        width: the number of features of a token.

    Raises: PullbackError, DeviceError.
    """
    check(lr, steps=steps, batch_size=batch_size, length=length, tokens=tokens, width=width)
    if tokens > length:
        raise pb.PullbackError(f"train: tokens={tokens} do not fit in length={length} steps.")
    with run:
        nets = {layer: Copier(layer, width) for layer in COLOURS}
        warmup = max(1, steps // 10)
        schedule = optim.schedules.WarmupCosine(lr, steps=max(steps, warmup + 1), warmup=warmup, end=0.0)
        optimizers = {layer: optim.AdamW(net.parameters(), lr=schedule, clip_norm=1.0) for layer, net in nets.items()}

        @pb.capture  # a replay draws other sequences
        def step() -> list[pb.Tensor]:
            x, kept = sequences(batch_size, length, tokens)
            return [optimizers[layer].minimize(partial(loss_of, net, x, kept)) for layer, net in nets.items()]

        losses: list[list[pb.Tensor]] = []

        def work() -> pb.Tensor:
            losses.append(step())
            return losses[-1][0]  # of the MinGRU

        run.repeat(work, steps)
        right = {layer: [share(net, length * times, tokens) for times in LONGER] for layer, net in nets.items()}
        longest = LONGER[-1] * length
        measures = {
            layer: Measure(shares[0], f"{shares[0]:.1%} of the tokens right, and {shares[-1]:.1%} in sequences of {longest:,}")
            for layer, shares in right.items()
        }
        curves = {layer: pb.stack([of_step[i] for of_step in losses]).tolist() for i, layer in enumerate(nets)}
        return run.result(nets["MinGRU"], measures, draw=lambda figure: draw(figure, curves, right, length))


def loss_of(net: nn.Module, x: pb.Tensor, kept: pb.Tensor) -> pb.Tensor:
    """Returns the mean cross entropy of the tokens that were to be copied."""
    return nn.cross_entropy(pb.reshape(net(x, kept.shape[1]), (-1, KINDS)), pb.reshape(kept, (-1,)))


def share(net: nn.Module, length: int, tokens: int) -> float:
    """Returns the share of tokens that the network copies rightly, in new sequences of this length."""
    x, kept = sequences(TESTED, length, tokens)
    return pb.mean((pb.argmax(net(x, tokens), axis=-1) == kept).astype("float32")).item()


def draw(figure: Any, curves: dict[str, list[float]], right: dict[str, list[float]], length: int) -> None:
    """Draws the losses of the training, smoothed, and the shares of tokens that are right by the length of the sequence."""
    training, tested = figure.subplots(1, 2)
    for layer, losses in curves.items():
        steps, means, _ = smoothed(losses)
        training.plot(steps, means, color=COLOURS[layer], label=layer)
        tested.plot([length * times for times in LONGER], right[layer], "o-", color=COLOURS[layer], label=layer)
    training.axhline(math.log(KINDS), color=GREY, linestyle="--", label="guessing")
    training.set(xlabel="step", ylabel="cross entropy of a token", ylim=(0, None), title="training")
    tested.set(xlabel="steps of a sequence", ylabel="share of tokens that are right", ylim=(0, 1.05), title="test")
    training.legend()
