"""What a captured function makes is made anew by every replay, as by every eager call, or refused with its line."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import alike, needs_kernels, normal, same
from pullback import nn, optim
from pullback.tensors import devices
from pullback.tree import flatten

pytestmark = needs_kernels
FUSIONS = ("exact", "fast", "none")
ON_CPU = devices.default_device() == "cpu"

Function = Callable[[Any], Any]
Between = Callable[[int], Any]


def results_of(make: Callable[[], Any], wrap: Callable[[Function], Any], calls: int = 5) -> tuple[list[Any], Any]:
    """Returns what calls return of the function that `make` returns, which starts from the same state each time, and the function.

    make() may also return what changes the state outside after call number k.
    """
    pb.random.seed(5)
    made = make()
    function, between = made if isinstance(made, tuple) else (made, lambda k: None)
    f, found = wrap(function), []
    for k in range(calls):
        found.append(f(normal(k, 4, 6, dtype=pb.float32)))
        between(k)
    return [*found, pb.random.uniform((2,))], f  # as many random numbers were drawn


def replays_like_eager(make: Callable[[], Any], recordings: int = 1) -> None:
    """Asserts that captured calls return the bits of eager ones, with every fusion, and are recorded that often."""
    wanted, _ = results_of(make, lambda f: f)
    for fusion in FUSIONS:
        got, f = results_of(make, lambda f, fusion=fusion: pb.capture(f, fusion=fusion))
        alike(got, wanted)
        assert f.stats().captures == recordings


def train(net: nn.Module) -> None:
    for p in net.parameters():
        p.assign(p * 0.5 + 0.1)


def descend(net: Any, x: Any, lr: float = 0.01) -> None:
    """Does a step of gradient descent on all Parameters that are trainable."""
    with pb.GradientTape() as tape:
        loss = pb.mean(net(x) ** 2)
    parameters = [p for p in net.parameters() if p.trainable]
    for p, g in zip(parameters, tape.gradient(loss, parameters, unconnected="zero")):
        p.assign(p - lr * g)


# ---- Parameters and Buffers

W = normal(0, 6, 4, dtype=pb.float32)
P, B = pb.Parameter(W, name="outside"), nn.Buffer(W)
PICKLED = pickle.dumps(P)
SOURCES: dict[str, Callable[[Any], Any]] = {
    "an array": lambda x: pb.Parameter(np.ones((6, 4), np.float32)),
    "a transposed array": lambda x: pb.Parameter(np.arange(24.0, dtype=np.float32).reshape(4, 6).T),
    "an array, converted": lambda x: pb.Parameter(np.full((6, 4), 1 / 3), dtype=pb.float32),
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
        lambda x: setattr(net, "0", nn.Linear(6, 5)),
        lambda x: setattr(net[0], "weight", pb.Parameter(np.ones((5, 6)))),
    ]
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


# ---- under tapes and transforms

AROUND: dict[str, Callable[[Function, Any], Any]] = {
    "tape": lambda f, x: pb.value_and_grad(lambda x: pb.sum(f(x) ** 2))(x),
    "jvp": lambda f, x: pb.jvp(f, (x,), (x * 0.5,)),
    "vmap": lambda f, x: pb.vmap(f)(pb.stack([x, x * 2])),
    "jacobian": lambda f, x: pb.jacobian(f)(x),
    "hvp": lambda f, x: pb.hvp(lambda x: pb.sum(f(x) ** 2), x, x),
    "gradient of each": lambda f, x: pb.vmap(pb.grad(lambda x: pb.sum(f(x) ** 2)))(pb.stack([x, x * 2])),
    "checkpoint": lambda f, x: pb.grad(lambda x: pb.sum(pb.checkpoint(f)(x) ** 2))(x),
}
INSIDE: dict[str, Callable[[Any, Any], Any]] = {
    "a Parameter": lambda net, x: pb.Parameter(np.full(6, 0.5, np.float32)) * x * x,
    "an assigned Parameter": lambda net, x: pb.Parameter(np.full(6, 0.5, np.float32)).assign(net[0].bias[:1] + pb.zeros(6)) * x * x,
    "a copy": lambda net, x: copy.deepcopy(net)(x) * net(x),
    "a copy of a Parameter": lambda net, x: pb.tanh(x @ copy.copy(net[0].weight).T),
    "a new Module": lambda net, x: nn.Tanh()(net(x)),
}


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("around", AROUND)
def test_it_is_made_anew_under_tapes_and_transforms(around: str, inside: str) -> None:
    found = []
    for wrap in (lambda f: f, pb.capture):
        pb.random.seed(1)
        net = nn.Sequential(nn.Linear(6, 5), nn.Tanh())
        f, results = wrap(lambda x, net=net: INSIDE[inside](net, x)), []
        for k in range(4):
            results.append(AROUND[around](f, normal(k, 4, 6, dtype=pb.float32)))
            train(net)
        found.append(results)
    alike(*found)


def test_a_tape_around_gives_the_gradients_of_parameters_outside() -> None:
    found = []
    for wrap in (lambda f: f, pb.capture):
        pb.random.seed(1)
        net, results = nn.Linear(6, 2), []

        def f(x: Any, net: Any = net) -> Any:
            q = pb.Parameter(np.ones(2, np.float32))
            q.assign(pb.stop_gradient(q * pb.mean(x)))
            return pb.sum((net(x) * q) ** 2)

        f = wrap(f)
        for k in range(4):
            with pb.GradientTape() as tape:
                loss = f(normal(k, 4, 6, dtype=pb.float32))
            gradients = tape.gradient(loss, net.parameters())
            results.append([loss, gradients])
            for p, g in zip(net.parameters(), gradients):
                p.assign(p - 0.1 * g)
        found.append(results)
    alike(*found)


# ---- what is used after the call


def test_what_is_made_once_and_stored_goes_on_living() -> None:
    def make() -> Any:
        stored: dict[str, Any] = {}

        def f(x: Any) -> Any:
            if not stored:
                stored["count"], stored["layer"] = nn.Buffer(0), nn.Linear(6, 2)
            stored["count"].assign(stored["count"] + 1)
            descend(stored["layer"], x)
            return stored["count"] + 0, stored["layer"](x)

        return f

    replays_like_eager(make, recordings=2)


@pytest.mark.parametrize(
    "returned",
    [
        lambda x: pb.Parameter(x),
        lambda x: pb.Parameter(x)[1:],
        lambda x: {"p": pb.Parameter(np.zeros((4, 6), np.float32)).assign(x)},
        lambda x: nn.Buffer(x),
        lambda x: copy.copy(P).assign(P + x[0, 0]),
    ],
)
def test_what_is_returned_is_not_changed_by_later_calls(returned: Function) -> None:
    f = pb.capture(returned)
    xs = [normal(k, 4, 6, dtype=pb.float32) for k in range(4)]
    found = [f(x) for x in xs]
    wanted = [returned(x) for x in xs]
    alike(found, wanted)
    assert [type(y) for y in flatten(found)[0]] == [type(y) for y in flatten(wanted)[0]]


def test_a_module_that_is_returned_is_a_new_one_each_time_with_a_warning() -> None:
    net, x = nn.Linear(6, 2), pb.ones(2)
    f = pb.capture(lambda x: copy.deepcopy(net))
    first, old = f(x), pb.copy(net.weight)
    for _ in range(8):
        f(x)
    net.weight.assign(net.weight + 1)
    with pytest.warns(UserWarning, match=r"10 recordings cannot be replayed, because the Linear made at .*made_inside\.py.*, line .*pb\.copy"):
        second = f(x)
    same(second.weight, net.weight)
    assert f.stats().captures == 10
    same(first.weight, old)


def test_several_steps_cannot_keep_what_they_make() -> None:
    kept: list[Any] = []
    f = pb.capture(lambda x: kept.append(pb.Parameter(x)), steps=2)
    with pytest.raises(pb.CaptureError, match=r"Parameter made at .*made_inside\.py.*Make it outside"):
        f(pb.ones((2, 3)))


def test_a_recording_keeps_no_copy_alive() -> None:
    net, made = nn.Sequential(nn.Linear(6, 2), nn.Dropout(0.5)), []

    def f(x: Any) -> Any:
        fast = copy.deepcopy(net)
        made.extend([weakref.ref(fast), weakref.ref(fast[0].weight)])
        return fast(x)

    captured = pb.capture(f)
    captured(normal(0, 4, 6, dtype=pb.float32))
    gc.collect()
    assert [found() for found in made] == [None, None]
    assert captured.stats().recordings == 1


# ---- what keeps state


def stateful() -> dict[str, Function]:
    net, x = nn.Linear(6, 2), np.ones((8, 2), np.float32)
    opt, other = optim.Adam(net.parameters()), optim.SGD([pb.Parameter(np.ones((2, 2)))], lr=0.1)
    accumulator, scaler = optim.Accumulator(net.parameters()), pb.amp.LossScaler()
    generator, loader = pb.random.Generator(3), pb.data.Loader(x, 2)
    batches, rows = iter(loader), pb.capture(lambda x: x)
    next(batches)
    pruned = optim.SGD([pb.Parameter(np.ones((2, 2)))], lr=0.1)
    pruning = optim.Pruning(pruned, 0.5)
    makers: dict[str, Function] = {
        "a new Adam,": lambda x: optim.Adam(net.parameters(), lr=0.1),
        "a new SGD,": lambda x: optim.SGD(net.parameters(), lr=optim.schedules.Cosine(0.1, 9)),
        "a new Muon,": lambda x: optim.Muon(other.parameters),
        "a new ScheduleFreeSGD,": lambda x: optim.ScheduleFreeSGD(net.parameters()),
        "a new Adafactor,": lambda x: optim.Adafactor(net.parameters()),
        "a new Accumulator,": lambda x: optim.Accumulator(net.parameters()),
        "a new LossScaler,": lambda x: pb.amp.LossScaler(),
        "a new Pruning,": lambda x: optim.Pruning(other, 0.5),
        "a new Generator,": lambda x: pb.random.Generator(3),
        "a new Loader,": lambda x: pb.data.Loader(np.ones((4, 2)), 2),
        "taking batches of a Loader": lambda x: next(iter(loader)),
        "taking batches of a Loader (in a loop)": lambda x: [x + b for b in loader],
        "taking batches of a Loader (begun outside)": lambda x: next(batches),
        "taking batches of a Loader (rows)": lambda x: loader.next_rows(),
        "taking batches of a Loader (for a call inside)": lambda x: rows(loader),
        "state_dict() of a Loader": lambda x: loader.state_dict(),
        "loading a Loader's state": lambda x: loader.load_state_dict({"epoch": 0, "batches": 0, "seed": 0}),
    }
    for name, it in {"a new Generator,": generator, "a new Loader,": loader, "a new Pruning,": pruning}.items():
        makers[f"{name} (copied)"] = lambda x, it=it: copy.copy(it)
    for name, it in {"optimizer": opt, "Accumulator": accumulator, "LossScaler": scaler}.items():
        makers[f"copying an? {name}"] = lambda x, it=it: copy.copy(it)
        makers[f"copying an? {name} (deep)"] = lambda x, it=it: copy.deepcopy([net, it])
    makers["a new Generator, (deep)"] = lambda x: copy.deepcopy(generator).normal((1,))
    makers["a new Loader, (deep)"] = lambda x: copy.deepcopy(loader)
    return makers


@pytest.mark.parametrize("what", stateful())
def test_what_keeps_state_is_refused_with_the_line_that_makes_it(what: str) -> None:
    f = stateful()[what]
    words = what.partition(" (")[0].replace("()", "[(][)]")
    with pytest.raises(pb.CaptureError, match=f'(?s)^{words}.*made_inside.py", line .*replay could not repeat it'):
        pb.capture(lambda x: f(x * 1.0))(pb.ones(2))
    assert pb.capture(lambda x: x * 2)(pb.ones(1)).tolist() == [2.0]


def test_the_error_of_an_optimizer_says_what_an_inner_step_is() -> None:
    net = nn.Linear(2, 2)
    with pytest.raises(pb.CaptureError, match=r"Make it outside; an inner step is p.assign\(p - lr \* g\)"):
        pb.capture(lambda x: optim.Adam(net.parameters()))(pb.ones(2))


def test_what_keeps_no_state_may_be_made_inside() -> None:
    def f(x: Any) -> Any:
        rate = optim.schedules.Cosine(0.1, 10)(3) * optim.schedules.Product(optim.schedules.Step(1.0, 5, 0.5), 2.0)(7)
        y = nn.Sequential(nn.ReLU(), nn.Dropout(0.5))(x) * rate + pb.vmap(lambda x: x * 2)(x)
        y = y + pb.grad(lambda x: pb.sum(x * x))(x) + pb.checkpoint(lambda x: x * 3)(x) + pb.memo(lambda x: x * 4)(x)
        return y + pb.capture(lambda x: x * 5)(x) + optim.constraints.NonNegative()(x), copy.deepcopy(nn.Dropout(0.5))(x)

    replays_like_eager(lambda: f)


# ---- programs


def meta_learning() -> tuple[Any, Function]:
    """First-order MAML: two inner steps on a copy, whose last gradient moves the network (Finn et al. 2017)."""
    pb.random.seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    opt = optim.Adam(net.parameters(), lr=0.01)

    def outer(x: Any, y: Any) -> Any:
        fast = copy.deepcopy(net)
        for _ in range(2):
            with pb.GradientTape() as tape:
                loss = nn.mse(fast(x[0]), y[0])
            for p, g in zip(fast.parameters(), tape.gradient(loss, fast.parameters())):
                p.assign(p - 0.1 * g)
        with pb.GradientTape() as tape:
            loss = nn.mse(fast(x[1]), y[1])
        opt.step(tape.gradient(loss, fast.parameters()))
        return loss

    return net, outer


def test_meta_learning_with_deepcopy_has_the_bits_of_the_eager_run() -> None:
    xs, ys = normal(0, 20, 2, 4, 6, dtype=pb.float32), normal(1, 20, 2, 4, 1, dtype=pb.float32)
    net, outer = meta_learning()
    wanted = [outer(x, y) for x, y in zip(xs, ys)]
    captured_net, step = meta_learning()
    step = pb.capture(step)
    alike([step(x, y) for x, y in zip(xs, ys)], wanted)
    assert step.stats().captures == 1
    stepped_net, steps = meta_learning()
    steps = pb.capture(steps, steps=5)
    same(pb.concat([steps(xs[k : k + 5], ys[k : k + 5]) for k in range(0, 20, 5)]), pb.stack(wanted))
    for other in (captured_net, stepped_net):
        alike(other.parameters(), net.parameters())


def by_state(target: Any, net: Any) -> None:
    target.load_state_dict(net.state_dict())


def by_values(target: Any, net: Any) -> None:
    for t, p in zip(target.parameters(), net.parameters()):
        t.assign(p)


def by_average(target: Any, net: Any) -> None:
    target.load_state_dict({name: 0.9 * value + 0.1 * net.state_dict()[name] for name, value in target.state_dict().items()})


@pytest.mark.parametrize("follow", [by_state, by_values, by_average])
def test_a_target_network_follows_in_every_replay(follow: Callable[[Any, Any], None]) -> None:
    def make() -> Any:
        net, target = [nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2)]
        opt = optim.Adam(net.parameters(), lr=0.05)

        def f(x: Any) -> Any:
            follow(target, net)
            wanted = pb.max(target(x[1:]), axis=1)
            with pb.GradientTape() as tape:
                loss = nn.mse(net(x[:-1])[:, 0], wanted)
            opt.step(tape.gradient(loss, opt.parameters))
            return loss, target(x)

        return f, lambda k: train(net)

    replays_like_eager(make)


def test_several_paths_to_one_tensor_are_not_compared_inside() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            self.a = self.b = pb.Parameter(np.ones(2, np.float32))

    net, ones = Tied(), pb.ones(2)
    net.load_state_dict({"a": ones, "b": ones * 1.0})
    pb.capture(lambda x: net.load_state_dict({"a": x, "b": x}))(ones * 2)
    assert net.a.numpy().tolist() == [2.0, 2.0]
    with pytest.raises(pb.CaptureError, match='loading "b" and "a", which are one tensor'):
        pb.capture(lambda x: net.load_state_dict({"a": x, "b": x * 2}))(ones)
