"""The known traps of compiled functions, by name: what a call leaves behind, random numbers, memory and errors."""

from __future__ import annotations

import functools
import itertools
import random
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same
from footguns import Settings, X, follows, told
from pullback import nn, optim

pytestmark = needs_kernels
GAIN: Any = 2.0


# ---- what is left behind


def test_a_value_that_leaks_into_an_attribute() -> None:
    settings = Settings(None)

    def f(x: Any) -> Any:
        settings.p = x * 2
        return x + 1

    told(f, lambda k: X + 1)


def test_results_that_are_also_held() -> None:
    history: list[Any] = []

    def f(x: Any) -> Any:
        history.append(pb.sum(x))
        return history[-1]

    told(f, lambda k: pb.sum(X))


def test_a_hidden_state_in_an_attribute_is_told_with_the_remedy() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            self.hidden = pb.zeros(3)

        def forward(self, x: Any) -> Any:
            self.hidden = pb.tanh(self.hidden + x[0])
            return self.hidden * 1.0

    states = list(itertools.accumulate(range(4), lambda h, _: pb.tanh(h + X[0]), initial=pb.zeros(3)))[1:]
    message = told(Cell(), lambda k: states[k])
    assert "hidden" in message
    assert "Buffer" in message
    assert "assign" in message
    assert "line" in message


def test_a_hidden_state_in_a_buffer() -> None:
    hidden = nn.Buffer(np.zeros(3, "float32"))
    f = pb.capture(lambda x: pb.copy(hidden.assign(pb.tanh(hidden + x[0]))))
    state = pb.zeros(3)
    for _ in range(4):
        state = pb.tanh(state + X[0])
        same(f(X), state)
    assert f.stats().recordings == 1


def test_a_variable_of_a_closure_that_is_carried() -> None:
    last = 1.0

    def f(x: Any) -> Any:
        nonlocal last
        last = last * 2
        return x * last

    told(f, lambda k: X * 2.0 ** (k + 1))


def test_a_global_that_is_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "GAIN", 1.0)

    def f(x: Any) -> Any:
        global GAIN
        GAIN = GAIN * 2
        return x * GAIN

    told(f, lambda k: X * 2.0 ** (k + 1))


def test_items_that_are_carried() -> None:
    state: dict[str, Any] = {"w": [1.0]}

    def f(x: Any) -> Any:
        state["w"][0] = state["w"][0] * 2
        return x * state["w"][0]

    told(f, lambda k: X * 2.0 ** (k + 1))


def test_a_default_that_is_mutated() -> None:
    def f(x: Any, memory: list[int] = []) -> Any:  # noqa: B006 the trap
        memory.append(1)
        return x * len(memory)

    told(f, lambda k: X * (k + 1))


def test_a_flag_that_flips() -> None:
    settings = Settings(False)

    def f(x: Any) -> Any:
        settings.p = not settings.p
        return x * 2 if settings.p else x * 3

    told(f, lambda k: X * 3 if k % 2 else X * 2)


def test_a_queue_that_is_consumed() -> None:
    queue = [2.0, 3.0, 4.0, 5.0]
    told(lambda x: x * queue.pop(0), lambda k: X * (k + 2.0))


def test_an_outside_array_that_the_function_writes_to() -> None:
    array = np.zeros(3, "float32")

    def f(x: Any) -> Any:
        array[0] += 1
        return x + array

    told(f, lambda k: X + np.array([k + 1, 0, 0], "float32"))


def test_a_generator_that_is_resumed() -> None:
    numbers = (float(k) for k in range(2, 100))
    told(lambda x: x * next(numbers), lambda k: X * (k + 2.0))


def test_a_counter_stands_still_and_is_warned_of() -> None:
    settings = Settings(2.0)
    settings.calls = 0  # type: ignore

    def f(x: Any) -> Any:
        settings.calls += 1  # type: ignore
        return x * settings.p

    captured = pb.capture(f)

    def run() -> None:
        for _ in range(5):
            same(captured(X), X * 2.0)

    with pytest.warns(UserWarning, match="calls"):
        run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one warning is enough
        run()


def test_a_counter_that_is_read() -> None:
    settings = Settings(0)

    def f(x: Any) -> Any:
        settings.p += 1
        return x * settings.p

    told(f, lambda k: X * (k + 1))


def test_what_is_set_and_set_back() -> None:
    settings = Settings(2.0)

    def f(x: Any) -> Any:
        before, settings.p = settings.p, 3.0
        try:
            return x * settings.p
        finally:
            settings.p = before

    follows(f)
    assert settings.p == 2.0


def test_tables_that_are_made_once() -> None:
    memo: dict[Any, Any] = {}
    settings = Settings(None)

    @functools.cache
    def table(n: int) -> Any:
        return pb.arange(n, dtype="float32")

    def f(x: Any) -> Any:
        if settings.p is None:
            settings.p = pb.ones(3) * 2
        if x.shape not in memo:
            memo[x.shape] = pb.ones(x.shape) * 3
        return x * settings.p + memo[x.shape] + table(x.shape[-1])

    captured = pb.capture(f)
    for _ in range(4):
        same(captured(X), X * 2 + 3 + pb.arange(3, dtype="float32"))
    assert captured.stats().replays >= 2
    settings.p = pb.ones(3)
    same(captured(X), X + 3 + pb.arange(3, dtype="float32"))


def test_a_variable_that_the_first_call_makes() -> None:
    class Net(nn.Module):
        weight: Any = None

        def forward(self, x: Any) -> Any:
            if self.weight is None:
                self.weight = pb.Parameter(np.full(3, 2.0, "float32"))
            return x * self.weight

    net = Net()
    captured = pb.capture(net)
    for gain in (2.0, 2.0, 4.0, 8.0):
        if gain > 2.0:
            net.weight.assign(net.weight * 2)
        same(captured(X), X * gain)


def test_a_variable_that_each_call_makes() -> None:
    def f(x: Any) -> Any:
        p = pb.Parameter(np.full(3, 2.0, "float32"))
        p.assign(p * x[0])
        return x * p

    follows(f)


def test_an_optimizer_that_the_function_makes() -> None:
    model = nn.Linear(3, 3)

    def f(x: Any) -> Any:
        return optim.SGD(model.parameters(), lr=0.1, momentum=0.9).minimize(lambda: pb.mean(model(x)))

    with pytest.raises(pb.CaptureError, match="SGD"):
        pb.capture(f)(X)


# ---- random numbers, time and other states


DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "Random": random.Random(3).random,
    "Generator": np.random.default_rng(3).random,
    "numpy.random": np.random.rand,
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_of_the_host(name: str) -> None:
    """Two recordings of one signature that draw are one too many, because a replay would repeat the numbers of its recording."""
    drawn: list[Any] = []
    captured = pb.capture(lambda x: x * DRAWS[name]())
    with pytest.raises(pb.CaptureError, match="random"):
        drawn.extend(captured(X) for _ in range(4))
    assert len({float(value[0, 0]) for value in drawn}) == len(drawn)


def test_random_numbers_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    captured = pb.capture(lambda x: x * torch.rand(3).numpy())
    with pytest.raises(pb.CaptureError, match="random"):
        [captured(X) for _ in range(4)]


def test_random_numbers_of_pullback() -> None:
    captured = pb.capture(lambda x: x * pb.random.normal((3,)))
    pb.random.seed(1)
    got = [captured(X) for _ in range(3)]
    pb.random.seed(1)
    for value in got:
        same(value, X * pb.random.normal((3,)))


# ---- values, shapes, memory, errors, threads


@pytest.mark.parametrize("read", [
    lambda x: x if pb.sum(x) > 0 else -x, lambda x: x * float(x[0, 0]), lambda x: x[x > 0], lambda x: x * x.numpy().max(),
    lambda x: [print(x), x][1], lambda x: x[: int(x[0, 0]) + 1],
], ids=["if", "float", "mask", "numpy", "print", "slice"])
def test_values_that_are_read_on_the_host(read: Callable[[Any], Any]) -> None:
    with pytest.raises(pb.CaptureError, match="line"):
        pb.capture(read)(X)


def test_numbers_that_depend_on_the_shape() -> None:
    f = pb.capture(lambda x: x * (1.0 / x.shape[0]) + len(x))
    for rows in (1, 2, 3, 2, 1):
        x = pb.ones((rows, 3))
        same(f(x), x * (1.0 / rows) + rows)


def test_results_of_earlier_calls_stay() -> None:
    f = pb.capture(lambda x: (x * 2, x))
    kept = [f(X + k) for k in range(5)]
    for k, (twice, once) in enumerate(kept):
        same(twice, (X + k) * 2)
        same(once, X + k)


def test_an_argument_whose_memory_is_written_after_the_call() -> None:
    array, f = np.ones((2, 3), "float32"), pb.capture(lambda x: (x + 0, x * 2))
    for k in range(4):
        array[...] = k
        once, twice = f(array)
        array[...] = 9.0
        same(once, pb.full((2, 3), float(k)))
        same(twice, pb.full((2, 3), 2.0 * k))


def test_the_same_tensor_as_two_arguments() -> None:
    f = pb.capture(lambda a, b: a * 2 + b)
    for a, b in ((X, X), (X, X + 1), (X, X)):
        same(f(a, b), a * 2 + b)


def test_an_exception_in_the_middle_leaves_what_an_eager_call_leaves() -> None:
    settings, buffer = Settings(False), nn.Buffer(np.zeros((), "float32"))

    def f(x: Any) -> Any:
        buffer.assign(buffer + 1)
        if settings.p:
            raise ValueError("asked for")
        return x + buffer

    captured = pb.capture(f)
    for k in range(1, 8):
        settings.p = k in (3, 4, 6)
        if settings.p:
            with pytest.raises(ValueError, match="asked for"):
                captured(X)
        else:
            same(captured(X), X + float(k))
        assert float(buffer) == k


def test_two_threads() -> None:
    settings, found = Settings(2.0), []
    f = pb.capture(lambda x: x * settings.p)

    def run(k: int) -> None:
        for _ in range(20):
            found.append((k, f(X + k)))

    threads = [threading.Thread(target=run, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    for k, value in found:
        same(value, (X + k) * 2.0)
