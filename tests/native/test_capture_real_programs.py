"""Programs that people write: each gives captured what it gives eagerly, or is told what to write instead."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same
from pullback import nn, optim

pytestmark = needs_kernels
VOCABULARY, WIDTH, ROWS, STEPS = 11, 8, 3, 5


class LanguageModel(nn.Module):
    """A word-level model whose hidden state goes from batch to batch."""

    def __init__(self) -> None:
        pb.random.seed(0)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.start()

    def start(self) -> None:
        self.hidden: Any = pb.zeros((1, ROWS, WIDTH))

    def keep(self, hidden: Any) -> None:
        self.hidden = pb.stop_gradient(hidden)

    def forward(self, words: Any) -> Any:
        y, hidden = self.gru(self.embedding(words), pb.copy(self.hidden))  # it changes before the backward pass
        self.keep(hidden)
        return self.head(y)


class WithBuffer(LanguageModel):
    def start(self) -> None:
        self.hidden = nn.Buffer(pb.zeros((1, ROWS, WIDTH)))

    def keep(self, hidden: Any) -> None:
        self.hidden.assign(hidden)


def train(make: Callable[[], Any], wrap: Callable[[Any], Any]) -> list[Any]:
    model = make()
    opt, rng = optim.Adam(model.parameters(), lr=0.01), np.random.default_rng(0)

    def step(words: Any, following: Any) -> Any:
        return opt.minimize(
            lambda w, f: nn.cross_entropy(pb.reshape(model(w), (-1, VOCABULARY)), pb.reshape(f, (-1,))), words, following
        )

    step, losses = wrap(step), []
    for _ in range(6):
        text = pb.tensor(rng.integers(0, VOCABULARY, (ROWS, STEPS + 1)))
        losses.append(step(text[:, :-1], text[:, 1:]))
    return [*losses, *model.parameters()]


def test_a_hidden_state_in_an_attribute_is_told_and_in_a_buffer_it_is_right() -> None:
    with pytest.raises(pb.CaptureError, match=r"LanguageModel\.hidden.*line.*nn\.Buffer"):
        train(LanguageModel, pb.capture)
    for got, wanted in zip(train(WithBuffer, pb.capture), train(LanguageModel, lambda f: f), strict=True):
        same(got, wanted)


@pytest.mark.parametrize("update", ["replaced", "loaded"])
def test_a_target_network_that_is_replaced_or_loaded_is_followed(update: str) -> None:
    class Agent:
        def __init__(self) -> None:
            pb.random.seed(1)
            self.network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
            self.target, self.gamma = copy.deepcopy(self.network), 0.9
            self.optimizer = optim.SGD(self.network.parameters(), lr=0.1)

        def learn(self, states: Any, actions: Any, rewards: Any, following: Any) -> Any:
            def loss() -> Any:
                best = pb.stop_gradient(pb.max(self.target(following), axis=1))
                chosen = pb.take_along_axis(self.network(states), pb.expand_dims(actions, axis=1), axis=1)[:, 0]
                return nn.functional.mse(chosen, rewards + self.gamma * best)

            return self.optimizer.minimize(loss)

    found = []
    for wrap in (pb.capture, lambda f: f):
        agent, rng = Agent(), np.random.default_rng(2)
        learn = wrap(agent.learn)
        losses = []
        for k in range(9):
            draw = lambda *shape: pb.tensor(rng.standard_normal(shape).astype(np.float32))  # noqa: B023
            losses.append(learn(draw(6, 4), pb.tensor(rng.integers(0, 2, 6)), draw(6), draw(6, 4)))
            if k % 3 == 2:
                if update == "replaced":
                    agent.target = copy.deepcopy(agent.network)
                else:
                    agent.target.load_state_dict(agent.network.state_dict())
            agent.gamma = 0.9 if k < 5 else 0.8
        found.append([*losses, *agent.network.parameters()])
        if wrap is pb.capture:
            assert learn.stats().captures <= 4  # of nine calls
    for got, wanted in zip(*found, strict=True):
        same(got, wanted)
