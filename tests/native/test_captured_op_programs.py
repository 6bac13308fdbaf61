"""Random programs of which a random part is captured: values and derivatives have the bits of the eager program."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same
from random_programs import Program, input_of

pytestmark = needs_kernels
COUNT = int(os.environ.get("PULLBACK_CAPTURED_PROGRAMS", "12"))


class Parted(Program):
    """A random program whose steps `first` to `last` are one function, which is captured unless `capture` is the identity."""

    def __init__(self, seed: int, draws: bool = True) -> None:
        super().__init__(seed, draws)
        rng = np.random.default_rng(seed + 7)
        self.first, last = sorted(rng.integers(0, len(self.steps) + 1, 2).tolist())
        self.last = max(last, min(self.first + 1, len(self.steps)))
        self.keeps_inside = rng.random() < 0.3  # the captured part then reads Parameters from outside, not as arguments

    def part(self, parameters: Sequence[Any], capture: Callable[[Any], Any], checkpoint: bool = False) -> Callable[..., Any]:
        """Returns a function of the values before the part, which returns those that the part makes."""

        def run(*values: Any) -> list[Any]:
            found = [values[0], *parameters, *values[1:]] if self.keeps_inside else list(values)
            return self._run(found, self.first, self.last)[len(found) :]

        return capture(pb.checkpoint(run) if checkpoint else run)

    def _run(self, values: list[Any], first: int, last: int) -> list[Any]:
        values = list(values)
        for f, taken in self.steps[first:last]:
            values.append(f(*[values[i] for i in taken]))
        return values

    def loss(self, part: Callable[..., Any], x: Any, parameters: Sequence[Any]) -> Any:
        values = self._run([x, *parameters], 0, self.first)
        given = [values[0], *values[1 + len(parameters) :]] if self.keeps_inside else values
        values = self._run([*values, *part(*given)], self.last, len(self.steps))
        results = [pb.copy(values[i]) for i in self.returned]  # a captured part returns no view of a Parameter
        return sum([pb.sum(pb.tanh(y) * y) for y in results[1:]], pb.sum(results[0]))


def gradients(program: Parted, part: Any, x: Any, parameters: Sequence[Any]) -> list[Any]:
    with pb.GradientTape() as tape:
        tape.watch(x)
        loss = program.loss(part, x, parameters)
    return [loss, *tape.gradient(loss, [x, *parameters], unconnected="zero")]


def second(program: Parted, part: Any, x: Any, parameters: Sequence[Any]) -> list[Any]:
    with pb.GradientTape() as outer:
        outer.watch(x)
        total = sum([pb.sum(pb.sin(g)) for g in gradients(program, part, x, parameters)[1:]], pb.tensor(0.0, pb.float64))
    return [total, *outer.gradient(total, [x, *parameters], unconnected="zero")]


def pushed(program: Parted, part: Any, x: Any, parameters: Sequence[Any]) -> list[Any]:
    return list(pb.jvp(lambda u: program.loss(part, u, parameters), (x,), (pb.cos(x),)))


def vectorized(program: Parted, part: Any, x: Any, parameters: Sequence[Any]) -> list[Any]:
    both = pb.stack([x, pb.sin(x), -x])
    f = lambda u: program.loss(part, u, parameters)
    return [pb.vmap(f)(both), pb.vmap(pb.grad(f))(both)]


def hessian(program: Parted, part: Any, x: Any, parameters: Sequence[Any]) -> list[Any]:
    return [pb.hessian(lambda u: program.loss(part, u, parameters))(x)]


WAYS = {"gradient": gradients, "second": second, "jvp": pushed, "vmap": vectorized, "hessian": hessian}


def check(seed: int, way: str, checkpoint: bool = False) -> None:
    program = Parted(seed, draws=way in ("gradient", "second", "jvp"))
    if not program.steps:
        return
    parameters = program.parameters(seed)
    eager, captured = [program.part(parameters, capture, checkpoint) for capture in (lambda f: f, pb.capture)]
    for k in range(3):
        x = input_of(program, 10 * seed + k)
        found = []
        for part in (captured, eager):
            pb.random.seed(seed + k)
            found.append(WAYS[way](program, part, x, parameters))
        for got, wanted in zip(*found, strict=True):
            same(got, wanted)


@pytest.mark.filterwarnings("ignore::pullback.errors.ZeroGradientWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(COUNT))
def test_a_program_with_a_captured_part_has_its_bits(seed: int, way: str) -> None:
    check(seed, way)


@pytest.mark.filterwarnings("ignore::pullback.errors.ZeroGradientWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(COUNT))
def test_a_program_with_a_captured_checkpoint_has_its_bits(seed: int, way: str) -> None:
    check(seed, way, checkpoint=True)
