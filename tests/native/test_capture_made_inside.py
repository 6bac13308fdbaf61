"""Parameters, Buffers and Modules that a captured function makes are made anew by every replay, as by every eager call."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import alike, needs_kernels, normal
from made_inside import FUSIONS, Function, descend, replays_like_eager, train
from pullback import nn, optim
from pullback.tensors import devices

pytestmark = needs_kernels
ON_CPU = devices.default_device() == "cpu"


# ---- Parameters and Buffers

W = normal(0, 6, 4, dtype=pb.float32)
P, B = pb.Parameter(W, name="outside"), nn.Buffer(W)
PICKLED = pickle.dumps(P)
SOURCES: dict[str, Callable[[Any], Any]] = {
    "an array": lambda x: pb.Parameter(np.ones((6, 4), np.float32)),
    "a transposed array": lambda x: pb.Parameter(np.arange(24.0, dtype=np.float32).reshape(4, 6).T),
    "an array, converted": lambda x: pb.Parameter(np.full((6, 4), 1 / 3), dtype=pb.float32),
    # Rounded to float32 before, it would be 1.0.
    "an array, rounded once": lambda x: pb.Parameter(np.full((6, 4), 1 + 2.0**-8 + 2.0**-40), dtype=pb.bfloat16),
    "a number": lambda x: pb.Parameter(2.0),
    "a NumPy number": lambda x: pb.Parameter(np.float64(2.0)),
    "a list": lambda x: pb.Parameter([1.0, 2.0, 3.0, 4.0]),
    "a list, converted": lambda x: pb.Parameter([1 / 3, 2.0, 3.0, 4.0], dtype=pb.float64),
    "nothing": lambda x: pb.Parameter(np.ones((0, 4), np.float32)),
    "zeros": lambda x: pb.Parameter(pb.zeros((6, 4))),
    "a tensor from outside": lambda x: pb.Parameter(W),
    "a transposed tensor": lambda x: pb.Parameter(W.T),
    "the argument": lambda x: pb.Parameter(x),
    "a computed value": lambda x: pb.Parameter(x * 2.0),
    "a Parameter": lambda x: pb.Parameter(P),
    "a view of a Parameter": lambda x: pb.Parameter(P[1:3]),
    "a Buffer of an array": lambda x: nn.Buffer(np.ones((6, 4), np.float32)),
    "a Buffer of a number": lambda x: nn.Buffer(0.0),
    "a Buffer of integers": lambda x: nn.Buffer(np.arange(4)),
    "a copy": lambda x: copy.copy(P),
    "a deep copy": lambda x: copy.deepcopy(P),
    "a copy of a Buffer": lambda x: copy.copy(B),
    "a copy of a copy": lambda x: copy.deepcopy(copy.copy(P)),
    "copies in a list": lambda x: copy.deepcopy([P, {"a": P}])[1]["a"],
    "a pickle": lambda x: pickle.loads(PICKLED),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_parameter_is_made_anew(source: str) -> None:
    def make() -> Any:
        P.assign(W)
        B.assign(W)

        def f(x: Any) -> Any:
            q = SOURCES[source](x)
            before = q * 2
            q.assign(q + 1)
            q += 1
            return before, q + 0, q[..., 1:] * 2 if q.ndim else q * 2, type(q).__name__, q.trainable

        return f, lambda k: (P.assign(P + 1), B.assign(B * 2))

    replays_like_eager(make)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "bfloat16", "float64"])
def test_parameters_of_every_dtype_are_made_anew(dtype: str) -> None:
    numbers = pb.tensor([0, 1, 0, 1, 1, 1], dtype=dtype)
    fixed = numbers.dtype.kind != "f" and dtype != "bfloat16"

    def f(x: Any) -> Any:
        made = [pb.Parameter(np.array(numbers.array) if ON_CPU else numbers, trainable=not fixed), nn.Buffer(numbers)]
        for q in [*made, *copy.deepcopy(made)]:
            q.assign(x[0] > 0)
        return [q * 1 for q in made], pb.Parameter(numbers, trainable=not fixed) + 0

    replays_like_eager(lambda: f)


@pytest.mark.skipif(not ON_CPU, reason="a GPU copies arrays of the host when it records")
def test_an_array_is_read_when_the_parameter_is_made() -> None:
    def make() -> Any:
        a = np.ones(6, np.float32)
        return lambda x: (pb.Parameter(a) * x, pb.Parameter(a, dtype=pb.float64) * 1), lambda k: a.__iadd__(1)

    replays_like_eager(make)


def test_copies_of_tensors_are_made_anew() -> None:
    def make() -> Any:
        p = pb.Parameter(W)
        return lambda x: (copy.deepcopy(x * 2), copy.deepcopy([x, W]), copy.deepcopy(p[1:])), lambda k: p.assign(p + 1)

    replays_like_eager(make)


def test_what_is_made_between_writes_holds_the_values_of_that_time() -> None:
    def make() -> Any:
        p = pb.Parameter(np.ones(6, np.float32))

        def f(x: Any) -> Any:
            first = copy.copy(p)
            p.assign(p + pb.mean(x, axis=0))
            second = copy.copy(p)
            second.assign(second * first)
            first.assign(second + p)
            return first + 0, second + 0, p + 0

        return f

    replays_like_eager(make)


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_of_copies_and_writes_replay_with_their_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plan = [(int(rng.integers(5)), int(rng.integers(100)), int(rng.integers(100))) for _ in range(rng.integers(4, 20))]

    def make() -> Any:
        outside = [pb.Parameter(normal(i, 4, 6, dtype=pb.float32)) for i in range(2)]

        def f(x: Any) -> Any:
            values: list[Any] = [*outside]
            for action, a, b in plan:
                p, q = values[a % len(values)], values[b % len(values)]
                if action == 0:
                    values.append(copy.copy(p))
                elif action == 1:
                    values.append(pb.Parameter(pb.tanh(p) * x))
                elif action == 2:
                    values.append(pb.Parameter(np.full((4, 6), a / 100, np.float32)))
                elif action == 3:
                    p.assign(pb.tanh(p + q * 0.5))
                else:
                    p -= pb.sin(q)
            return [value * 1.0 for value in values]

        return f, lambda k: outside[0].assign(outside[0] + 1)

    replays_like_eager(make)


# ---- Modules


class Own(nn.Module):
    """A Module with all that a Module may hold."""

    def __init__(self) -> None:
        self.weight = pb.Parameter(normal(1, 6, dtype=pb.float32))
        self.tied = self.weight
        self.scales = [pb.Parameter(normal(2, 6, dtype=pb.float32), constraint=optim.constraints.NonNegative())]
        self.inner = {"a": nn.Linear(6, 6), "norm": nn.BatchNorm1d(6)}
        self.inner["a"].bias = self.weight
        self.fixed = pb.Parameter(normal(3, 6, dtype=pb.float32), name="mine", trainable=False)
        self.count = nn.Buffer(0)
        self.helper = pb.checkpoint(self.help)  # refers to the Module itself

    def help(self, x: Any) -> Any:
        return x * self.weight

    def forward(self, x: Any) -> Any:
        self.count.assign(self.count + 1)
        return self.inner["norm"](self.inner["a"](x) * self.scales[0]) + self.tied + self.helper(x) * self.fixed


NETS: dict[str, Callable[[], Any]] = {
    "Linear": lambda: nn.Linear(6, 3),
    "half precision": lambda: nn.Linear(6, 3, dtype=pb.bfloat16),
    "float64": lambda: nn.Linear(6, 3, dtype=pb.float64),
    "nested": lambda: nn.Sequential(nn.Linear(6, 5), nn.Sequential(nn.LayerNorm(5), nn.Tanh()), nn.Linear(5, 2, bias=False)),
    "running statistics": lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2)),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5)),
    "PReLU": lambda: nn.Sequential(nn.PReLU(), nn.RMSNorm(6)),
    "own": Own,
    "transforms of layers": lambda: nn.Sequential(pb.checkpoint(nn.Linear(6, 5)), pb.capture(nn.Linear(5, 3))),
}
COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "of a copy": lambda net: copy.deepcopy(copy.copy(net)),
    "in a dict": lambda net: copy.deepcopy({"net": net, "again": net})["again"],
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", NETS)
def test_a_copy_of_a_module_starts_from_its_present_weights(name: str, how: str) -> None:
    def make() -> Any:
        net = NETS[name]()
        dtype = net.parameters()[0].dtype

        def f(x: Any) -> Any:
            x, fast = x.astype(dtype), COPIES[how](net)
            for _ in range(2):
                descend(fast, x)
            return fast(x), [b + 0 for b in fast.buffers()], [p + 0 for p in net.parameters()], list(fast.state_dict())

        return f, lambda k: train(net)

    replays_like_eager(make)


def test_a_copy_is_tied_named_and_constrained_as_the_module_is() -> None:
    net = Own()
    net.parameters()

    def f(x: Any) -> Any:
        fast = copy.deepcopy(net)
        assert fast.tied is fast.weight is fast.inner["a"].bias
        assert [p.name for p in fast.parameters()] == [p.name for p in net.parameters()]
        assert [(p.trainable, p.constraint) for p in fast.parameters()] == [(p.trainable, p.constraint) for p in net.parameters()]
        assert not {id(p) for p in fast.parameters()} & {id(p) for p in net.parameters()}
        return fast(x)

    pb.capture(f)(normal(0, 4, 6, dtype=pb.float32))


def test_a_shallow_copy_shares_what_is_not_replaced() -> None:
    def make() -> Any:
        net = nn.Linear(6, 3)

        def f(x: Any) -> Any:
            other = copy.copy(net)
            other.weight = pb.Parameter(net.weight * 2)
            descend(other, x)
            return other(x), net(x)

        return f

    replays_like_eager(make)


def test_a_copy_has_the_mode_that_the_module_has_at_the_call() -> None:
    def make() -> Any:
        net = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5))  # it is never called itself
        return lambda x: copy.deepcopy(net)(x), lambda k: net.train(k % 2 == 1)

    replays_like_eager(make, recordings=2)


def test_a_copy_can_be_changed_as_a_module_can_outside() -> None:
    def make() -> Any:
        net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())

        def f(x: Any) -> Any:
            other = copy.deepcopy(net).eval()
            other[0].trainable = False
            other[1].weight.constraint = optim.constraints.NonNegative()
            other[2] = nn.Tanh()
            other.append(nn.Linear(5, 2))
            other[0].bias = None
            descend(other, x)
            y = other(x)
            return y, other.train()(x), net(x)

        return f

    replays_like_eager(make)


def test_what_was_not_made_inside_cannot_be_changed_there() -> None:
    net, x = nn.Sequential(nn.Linear(6, 5)), normal(0, 4, 6, dtype=pb.float32)
    refused: list[Function] = [
        lambda x: copy.copy(net).eval(),  # the layers are shared
        lambda x: setattr(copy.copy(net)[0].weight, "trainable", False),
        lambda x: setattr(net, "0", other),
        lambda x: setattr(net[0], "weight", other.weight),
    ]
    other = nn.Linear(6, 5)
    for f in refused:
        with pytest.raises(pb.CaptureError, match=r"test_capture_made_inside\.py"):
            pb.capture(f)(x)
    assert (net[0].training, net[0].weight.trainable) == (True, True)


GENERATOR = pb.random.Generator(3)
LAYERS: dict[str, Callable[[Any], Any]] = {
    "Linear": lambda x: nn.Linear(6, 3)(x),
    "Sequential": lambda x: nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.LayerNorm(5), nn.PReLU())(x),
    "BatchNorm1d": lambda x: nn.BatchNorm1d(6)(x),
    "Conv2d": lambda x: nn.Conv2d(1, 2, 3)(pb.reshape(x, (1, 1, 4, 6))),
    "Embedding": lambda x: nn.Embedding(5, 3)(pb.tensor([0, 1, 4])),
    "LSTM": lambda x: nn.LSTM(6, 3)(pb.expand_dims(x, 0))[0],
    "MultiheadAttention": lambda x: nn.MultiheadAttention(6, 2)(*[pb.expand_dims(x, 0)] * 3)[0],
    "Own": lambda x: Own()(x),
    "init": lambda x: nn.init.truncated_normal(nn.init.constant(pb.Parameter(np.ones((3, 6))), 2.0)) + 0,
    "with a generator": lambda x: nn.init.normal(pb.Parameter(np.ones((3, 6))), generator=GENERATOR) + 0,
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_new_module_draws_its_weights_anew(name: str) -> None:
    def make() -> Any:
        GENERATOR.seed(3)

        def f(x: Any) -> Any:
            before = LAYERS[name](x)
            net = nn.Linear(6, 2)
            descend(net, x)
            return before, net(x)

        return f

    replays_like_eager(make)


def test_weights_that_the_host_computes_are_refused() -> None:
    with pytest.raises(pb.CaptureError, match=r"orthogonal.*made_inside\.py.*, line .*outside"):
        pb.capture(lambda x: nn.init.orthogonal(nn.Linear(6, 3).weight))(pb.ones(2))


def test_several_steps_of_one_call_each_make_their_own() -> None:
    def make() -> Any:
        net = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 2))

        def f(x: Any) -> Any:
            fast, q = copy.deepcopy(net), pb.Parameter(np.ones(6, np.float32))
            q.assign(q + pb.mean(x))
            descend(fast, x * q)
            descend(net, x)
            return fast(x), q

        return f

    xs = normal(0, 3, 3, 4, 6, dtype=pb.float32)
    for fusion in FUSIONS:
        pb.random.seed(2)
        f = make()
        wanted = [[pb.stack(list(column)) for column in zip(*[[y, q + 0] for y, q in map(f, x)])] for x in xs]
        pb.random.seed(2)
        captured = pb.capture(make(), steps=3, fusion=fusion)
        alike([list(captured(x)) for x in xs], wanted)
