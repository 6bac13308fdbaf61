"""A transformer learns to continue a text, character by character: `pullback train gpt`.

It reads 64 characters of Shakespeare's plays and outputs the probability of the next one at each of them. The network and the
training are those of a small GPT-2: positions are learned, a block adds what its attention and its two linear layers compute from
normalized activations, and the last layer shares its weight with the embedding of characters. After the training it writes a few
lines of its own.

nanoGPT trains the same network on the same text on a CPU, for 2,000 steps of 12 sequences, to a validation loss of 1.88. (It uses
bias-free layers, as here, and an estimate of the loss from 20 batches; here all of the validation text counts.)

Source: https://github.com/karpathy/nanoGPT, "I only have a macbook"; A. Radford et al., Language Models are Unsupervised Multitask
Learners (2019).
"""

from __future__ import annotations

import math
from typing import Any, Final

import pullback as pb
from pullback import nn, optim

from .run import BLUE, GREY, ORANGE, Measure, Result, Run, check, smoothed

REFERENCE: Final = "validation loss 1.88 of nanoGPT, the same network, text and number of steps (github.com/karpathy/nanoGPT)"
PUBLISHED: Final = 1.88
WARMUP: Final = 100  # steps in which the learning rate rises
AT_ONCE: Final = 4096  # characters of the validation text that are read together
WRITTEN: Final = 300  # characters that the trained network writes


class AttentionBlock(nn.Module):
    """Adds to x what attention to the characters so far computes from it, and then what two linear layers compute."""

    def __init__(self, width: int, heads: int) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attention = nn.MultiHeadAttention(width, heads, bias=False, causal=True)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: pb.Tensor) -> pb.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(pb.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A decoder of 4 blocks for 65 characters and sequences of up to 64: 804,096 parameters.

    Args:
        tied: the last layer uses the weight of the embedding.
    """

    def __init__(
        self, characters: int = 65, context: int = 64, layers: int = 4, heads: int = 4, width: int = 128, tied: bool = True
    ) -> None:
        self.characters, self.positions = nn.Embedding(characters, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[AttentionBlock(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = None if tied else nn.Linear(width, characters, bias=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:  # the layers that end in a sum begin smaller, so that the sum of all blocks has the usual size
                ends = name.endswith(("down.weight", "out_proj.weight"))
                nn.init.normal(p, std=0.02 / math.sqrt(2 * layers) if ends else 0.02)

    def forward(self, numbers: pb.Tensor) -> pb.Tensor:
        """Returns the logits (N, T, characters) of the next character at each place of the sequences (N, T)."""
        x = self.characters(numbers) + self.positions.weight[: numbers.shape[1]]
        x = self.norm(self.blocks(x))
        return x @ self.characters.weight.T if self.head is None else self.head(x)


def loss_of(net: nn.Module, sequences: pb.Tensor) -> pb.Tensor:
    """Returns the mean cross entropy of all characters of the sequences (N, T + 1) but the first ones."""
    logits = net(sequences[:, :-1])
    return nn.cross_entropy(pb.reshape(logits, (-1, logits.shape[-1])), pb.reshape(sequences[:, 1:], (-1,)))


def train(
    run: Run, *, steps: int = 2000, batch_size: int = 12, lr: float = 1e-3, context: int = 64, layers: int = 4, width: int = 128
) -> Result:
    """Trains the network with AdamW on sequences from random places of the text.

    Args:
        lr: the highest learning rate. It is reached after 100 steps, and falls to a tenth along a cosine.
        context: the number of characters that the network reads.
        width: the number of features of a character, a multiple of 4, because there are 4 heads.

    Raises: PullbackError, DeviceError.
    """
    check(lr, steps=steps, batch_size=batch_size, context=context, layers=layers, width=width)
    if width % 4:
        raise pb.PullbackError(f"train: width={width} must be a multiple of 4, because there are 4 heads of attention.")
    with run:
        text = pb.data.shakespeare()
        if context >= text.validation.size:
            raise pb.PullbackError(f"train: context={context} must be shorter than the validation text, {text.validation.size:,}.")
        net = GPT(len(text.characters), context, layers, 4, width)
        schedule = optim.schedules.WarmupCosine(lr, steps=max(steps, WARMUP + 1), warmup=WARMUP, end=0.1 * lr)
        decayed = {"*norm*": {"weight_decay": 0.0}}
        opt = optim.AdamW(net.parameters(), lr=schedule, betas=(0.9, 0.99), weight_decay=0.1, clip_norm=1.0, groups=decayed)
        places = pb.arange(context + 1)

        @pb.capture  # a replay draws other places
        def step() -> pb.Tensor:
            first = pb.random.randint(0, text.train.size - context, (batch_size, 1))
            return opt.minimize(lambda: loss_of(net, pb.take(text.train, first + places)))

        run.repeat(step, steps)
        loss = validate(net.eval(), text.validation, context)
        measures = {
            "validation": Measure(loss, f"loss {loss:.3f}, or {loss / math.log(2):.2f} bits a character"),
            "text": Measure(WRITTEN, " ".join(text.decode(write(net, context)).split())),
        }
        return run.result(net, measures, reference=REFERENCE, draw=lambda figure: draw(figure, run.losses, loss))


def validate(net: nn.Module, numbers: pb.Tensor, context: int) -> float:
    """Returns the mean cross entropy of a text, which is read in pieces that follow one another."""
    count, at_once = (numbers.size - 1) // context, max(1, AT_ONCE // context)
    sequences = pb.unfold(numbers, 0, context + 1)[: count * context : context]
    mean = pb.capture(lambda sequences: loss_of(net, sequences))
    parts = [sequences[i : i + at_once] for i in range(0, count, at_once)]
    return sum([mean(part).item() * len(part) for part in parts]) / count


def write(net: nn.Module, context: int, length: int = WRITTEN) -> pb.Tensor:
    """Returns `length` characters, each drawn with the probability that the network gives it after those before it."""

    @pb.capture
    def draw_next(window: pb.Tensor, last: pb.Tensor) -> pb.Tensor:
        logits = pb.take(net(window[None])[0], last, axis=0)
        return pb.argmax(logits - pb.log(-pb.log(pb.random.uniform(logits.shape, 1e-7, 1.0))), axis=-1)  # Gumbel's trick

    window, written = pb.zeros(context, dtype="int32"), []  # number 0 is a line break
    for i in range(length):
        last = min(i, context - 1)
        new = draw_next(window, pb.tensor([last])).astype("int32")
        written.append(new)
        before, after = (window[1:], window[:0]) if last == context - 1 else (window[: last + 1], window[last + 2 :])
        window = pb.concat([before, new, after])
    return pb.concat(written)


def draw(figure: Any, losses: list[float], validation: float) -> None:
    """Draws the loss of the training, smoothed, next to that of the validation text and the published one."""
    axes = figure.subplots()
    steps, means, size = smoothed(losses)
    axes.plot(steps, means, color=BLUE, label=f"training, means of {size} steps")
    axes.axhline(validation, color=ORANGE, label="validation text")
    axes.axhline(PUBLISHED, color=GREY, linestyle="--", label="nanoGPT")
    axes.set(xlabel="step", ylabel="cross entropy of a character", title="a character model of Shakespeare")
    axes.legend()
