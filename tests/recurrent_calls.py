"""Random calls of recurrent layers, like those of random_calls.py."""

from __future__ import annotations

from typing import Any

import pullback as pb
from conftest import FLOATS
from pullback.ops import recurrent as layers
from random_calls import Call, along, tensor, with_gradients


def recurrent(name: str) -> Call:
    """Returns a function that runs a recurrent op with its gradients; some shapes share the weight among rows, some do not."""

    def run(rng: Any) -> None:
        gates, dtype = {"rnn": 1, "lstm": 4, "gru": 3}[name], rng.choice(FLOATS)
        steps, rows = [int(rng.integers(0 if rng.random() < 0.1 else 1, 12)) for _ in range(2)]
        hidden = int(rng.integers(1, rng.choice([5, 20, 70])))
        x, weight = tensor(rng, (steps, rows, gates * hidden), dtype), tensor(rng, (gates * hidden, hidden), dtype)
        states = [tensor(rng, (rows, hidden), dtype) for _ in range(2 if name == "lstm" else 1)]
        bias = tensor(rng, (gates * hidden,), dtype) if rng.random() < 0.6 else None
        options = [bool(rng.random() < 0.5) for _ in range(2 if name == "rnn" else 1)]
        with_gradients(rng, lambda *xs: getattr(layers, name)(*xs, *options), x, *states, weight, bias)

    return run


def linear_recurrence(rng: Any) -> None:
    b, axis = along(rng, rng.choice(FLOATS))
    a, reverse = tensor(rng, b.shape, b.dtype), bool(rng.random() < 0.5)
    with_gradients(rng, lambda a, b: pb.linear_recurrence(a, b, axis, reverse=reverse), a, b)


RECURRENT: dict[str, Call] = {
    **{name: recurrent(name) for name in ("rnn", "lstm", "gru")}, "linear_recurrence": linear_recurrence,
}
