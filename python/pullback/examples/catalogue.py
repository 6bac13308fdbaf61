"""The examples that `pullback train` knows, with their options. Importing this module imports none of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Option:
    """A keyword argument of an example's `train`, and the option of the command line that sets it.

    Attributes:
        name: the name of the argument. The option is --name, with - in place of _.
        default: the default value, whose type is that of the argument.
        help: what the argument is, for --help.
        choices: the values that are allowed, or () for any value.
    """

    name: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Example:
    """An example: what it trains, in one line for --help, and its options. Its name in EXAMPLES is that of its module."""

    summary: str
    options: tuple[Option, ...]


def _lr(default: float) -> Option:
    return Option("lr", default, "learning rate, falling to 0")


def _passes(default: int) -> tuple[Option, Option]:
    return Option("epochs", default, "passes over the training images"), Option("batch_size", 64, "images of a step")


def _steps(default: int) -> Option:
    return Option("steps", default, "number of training steps")


EXAMPLES: Final = {
    "digits": Example(
        "a dense network reads 1,797 handwritten digits, which are in the package",
        (Option("model", "mlp", "mlp"), *_passes(30), _lr(5e-3)),
    ),
    "cnn": Example(
        "a convolutional network reads the same digits",
        (*_passes(7), _lr(5e-3), Option("channels", 24, "channels of the first convolution; the second has twice as many")),
    ),
    "gru": Example(
        "a recurrent network adds two marked numbers of a long sequence",
        (_steps(800), Option("batch_size", 32, "sequences of a step"), _lr(2e-2), Option("length", 100, "numbers in a sequence"),
         Option("hidden", 32, "hidden units")),
    ),
    "gpt": Example(
        "a transformer continues a text, character by character",
        (_steps(2000), Option("batch_size", 12, "sequences of a step"), _lr(1e-3),
         Option("context", 64, "characters that it reads"), Option("layers", 4, "blocks of attention and linear layers"),
         Option("width", 128, "features of a character")),
    ),
    "copying": Example(
        "three recurrent networks copy the tokens of a sequence that matter",
        (_steps(1500), Option("batch_size", 32, "sequences of a step"), _lr(4e-3),
         Option("length", 48, "steps of a sequence before the output"), Option("tokens", 4, "tokens to copy"),
         Option("width", 48, "features of a token")),
    ),
    "pinn": Example(
        "a network solves the differential equation u'' = -u: second derivatives in the loss",
        (_steps(3000), _lr(1e-2), Option("points", 32, "points at which the equation is evaluated"),
         Option("hidden", 32, "units of each of two hidden layers")),
    ),
    "blackbox": Example(
        "a network aims a throw, trained through a simulator that has no gradient",
        (_steps(300), _lr(2e-2), Option("throws", 32, "throws of a step"), Option("hidden", 32, "units of each hidden layer"),
         Option("estimate", "central", "how the simulator's gradient is estimated", ("central", "spsa"))),
    ),
}
