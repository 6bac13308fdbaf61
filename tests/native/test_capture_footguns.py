"""The known traps of compiled functions, by name: what a captured function reads is checked before each replay.

The names are those of "The Sharp Bits" and the questions about `jit` in JAX's documentation, the guide to `tf.function`, and the
pages on `torch.compile`. `benchmarks/footguns.py` runs the traps that several libraries share.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same
from footguns import Settings, X, follows
from pullback import nn, optim

pytestmark = needs_kernels
GAIN: Any = 2.0


class Mode(Enum):
    FAST = 2.0
    SLOW = 3.0


def scaled(x: Any) -> Any:
    return x * 2.0


# ---- what is read: globals, closures, attributes, items


def test_a_global_that_is_rebound(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[__name__]
    follows(lambda x: x * GAIN, *(lambda v=v: monkeypatch.setattr(module, "GAIN", v) for v in (3.0, pb.tensor(4.0), True, 2.0)))


def test_a_closure_variable_that_is_rebound() -> None:
    gain = 2.0

    def rebind() -> None:
        nonlocal gain
        gain = 3.0

    follows(lambda x: x * gain, rebind)


def test_closures_that_a_loop_makes_each_read_their_own_variable() -> None:
    late = [pb.capture(lambda x: x * k) for k in range(3)]  # noqa: B023 the trap: all of them read the last k
    early = [pb.capture(lambda x, k=k: x * k) for k in range(3)]
    for _ in range(2):
        assert [float(f(X)[0, 0]) for f in late] == [1.0, 1.0, 1.0]
        assert [float(f(X)[0, 0]) for f in early] == [0.0, 0.5, 1.0]


def test_a_default_that_is_replaced() -> None:
    def helper(x: Any, gain: float = 2.0) -> Any:
        return x * gain

    follows(lambda x: helper(x), lambda: setattr(helper, "__defaults__", (3.0,)))


@pytest.mark.parametrize("under", [lambda f: f, pb.vmap, pb.grad, lambda f: lambda x: pb.jvp(f, (x,), (x,))[1]])
def test_a_default_of_the_captured_function_that_is_replaced(under: Any) -> None:
    def f(x: Any, gain: float = 2.0, *, offset: float = 1.0) -> Any:
        return pb.sum(x * gain * x + offset * x)

    captured = under(pb.capture(f))
    for gain, offset in ((2.0, 1.0), (3.0, 1.0), (3.0, -1.0)):
        f.__defaults__, f.__kwdefaults__ = (gain,), {"offset": offset}
        same(captured(X), under(f)(X))


def test_attributes_of_self() -> None:
    class Model:
        gain = 2.0

        def step(self, x: Any) -> Any:
            return x * self.gain

    model = Model()
    follows(model.step, lambda: setattr(model, "gain", 3.0), lambda: delattr(model, "gain"), lambda: setattr(Model, "gain", 4.0))


def test_a_captured_method_of_two_objects() -> None:
    class Model:
        def __init__(self, gain: float) -> None:
            self.gain = gain

        def step(self, x: Any) -> Any:
            return x * self.gain

        captured = pb.capture(step)

    one, other = Model(2.0), Model(3.0)
    for _ in range(3):
        same(Model.captured(one, X), X * one.gain)
        same(Model.captured(other, X), X * other.gain)
        one.gain += 1.0


def test_an_attribute_of_an_argument() -> None:
    settings, f = Settings(2.0), pb.capture(lambda x, s: x * s.p)
    for gain in (2.0, 3.0, 3.0, 2.0):
        settings.p = gain
        same(f(X, settings), X * gain)


def test_an_argument_that_equals_an_earlier_one_but_is_another_object() -> None:
    class Alike(Settings):
        __hash__ = lambda self: 0
        __eq__ = lambda self, other: isinstance(other, Alike)

    f = pb.capture(lambda x, s: x * s.p)
    for gain in (2.0, 3.0, 4.0):
        same(f(X, Alike(gain)), X * gain)


def test_an_object_at_the_address_of_an_earlier_one() -> None:
    f = pb.capture(lambda x, s: x * s.p)
    for gain in range(20):
        same(f(X, Settings(float(gain))), X * float(gain))
        gc.collect()


def test_numbers_that_are_equal_but_not_the_same() -> None:
    f = pb.capture(lambda x, v: x * 2 if v is True else x * 3 if isinstance(v, int) else x * np.copysign(1.0, v))
    for v in (True, 1, 1.0, 0.0, -0.0, True, -0.0):
        same(f(X, v), X * 2 if v is True else X * 3 if isinstance(v, int) else X * np.copysign(1.0, v))
    settings = Settings(1)
    follows(
        lambda x: x * 2 if settings.p is True else x * np.copysign(3.0, settings.p),
        *(lambda v=v: setattr(settings, "p", v) for v in (True, 1.0, 0.0, -0.0)),
    )


def test_nan_equals_itself() -> None:
    """Otherwise each call would be recorded."""
    settings = Settings(float("nan"))
    f = follows(lambda x: x if settings.p != settings.p else x * 2, lambda: setattr(settings, "p", float("nan")))
    assert f.stats().recordings == 1


def test_items_of_lists_and_dicts() -> None:
    config: dict[str, Any] = {"w": [2.0, 3.0], "p": Settings({"q": 1.0})}
    follows(
        lambda x: x * config["w"][0] + config["p"].p["q"] * len(config["w"]),
        lambda: config["w"].__setitem__(0, 4.0),
        lambda: config["p"].p.update(q=2.0),
        lambda: config["w"].append(1.0),
        lambda: config.update(w=[1.0]),
        lambda: config.update(p=Settings({"q": 5.0})),
    )


def test_a_list_that_is_looped_over() -> None:
    gains = [Settings(2.0)]
    follows(lambda x: sum(x * s.p for s in gains), lambda: gains.append(Settings(3.0)), lambda: setattr(gains[0], "p", 5.0))


def test_an_item_of_a_large_list_by_a_constant_index() -> None:
    gains = [float(k) for k in range(1000)]
    follows(lambda x: x * gains[500], lambda: gains.__setitem__(500, 2.0), lambda: gains.insert(0, 7.0))


def test_none_strings_and_enums() -> None:
    settings = Settings(None)

    def f(x: Any) -> Any:
        p = settings.p
        return x if p is None else x * p.value if isinstance(p, Mode) else getattr(pb, p)(x)

    follows(f, *(lambda v=v: setattr(settings, "p", v) for v in (Mode.FAST, Mode.SLOW, "tanh", "sin", None)))


def test_an_attribute_that_is_set_through_vars() -> None:
    class Net(nn.Module):
        p = 1.0

        def forward(self, x: Any) -> Any:
            return x * self.p

    net = Net()
    follows(net, lambda: vars(net).update(p=3.0))


def test_an_attribute_that_is_deleted_or_added() -> None:
    settings = Settings(2.0)
    follows(lambda x: x * getattr(settings, "q", 3.0), lambda: setattr(settings, "q", 4.0), lambda: delattr(settings, "q"))


def test_a_property_that_ends_in_an_attribute() -> None:
    class Model:
        raw = 2.0

        @property
        def gain(self) -> float:
            return self.raw * 2

    model = Model()
    follows(lambda x: x * model.gain, lambda: setattr(model, "raw", 3.0))


def test_an_array_that_the_caller_writes_to() -> None:
    array = np.ones(3, "float32")
    follows(lambda x: x * array, lambda: array.__setitem__(0, 5.0))


def test_a_number_of_an_array_that_the_caller_writes_to() -> None:
    array = np.ones(3, "float32")
    follows(lambda x: x * float(array[0]), lambda: array.__setitem__(0, 5.0))
    follows(lambda x: x * float(array.max()), lambda: array.__setitem__(0, 7.0))


def test_a_number_among_the_results() -> None:
    settings, f = Settings(2), pb.capture(lambda x: (x * settings.p, settings.p, x.shape))
    for p in (2, 3, 3.0, True, 2):
        settings.p = p
        value, number, shape = f(X)
        same(value, X * p)
        assert (number, type(number), shape) == (p, type(p), X.shape)


def test_a_number_that_changes_in_each_call_is_right_and_warned_of() -> None:
    settings = Settings(0.0)
    f = pb.capture(lambda x: x * settings.p)

    def run() -> None:
        for k in range(40):
            settings.p = float(k)
            same(f(X), X * float(k))

    with pytest.warns(UserWarning, match=r"\bp\b"):
        run()


def test_what_changes_back_needs_no_new_recording() -> None:
    settings, f = Settings(2.0), pb.capture(lambda x: x * settings.p)
    for k in range(10):
        settings.p = float(k % 2)
        same(f(X), X * settings.p)
    assert f.stats().recordings == 2


def test_what_only_the_caller_counts_and_logs_needs_no_new_recording() -> None:
    settings = Settings(2.0)
    log, settings.calls = [], 0  # type: ignore
    f = pb.capture(lambda x: x * settings.p)
    for k in range(10):
        log.append(float(f(X)[0, 0]))
        settings.calls = k  # type: ignore
    assert (log, f.stats().recordings) == ([1.0] * 10, 1)


# ---- functions, layers and optimizers


def test_a_helper_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[__name__]
    follows(lambda x: scaled(x), lambda: monkeypatch.setattr(module, "scaled", pb.tanh))


def test_a_helper_whose_code_is_replaced() -> None:
    """This is what reloading a module in a notebook does."""

    def helper(x: Any) -> Any:
        return x * 2

    def newer(x: Any) -> Any:
        return x * 3

    follows(lambda x: helper(x), lambda: setattr(helper, "__code__", newer.__code__))


def test_a_method_that_is_patched() -> None:
    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2

    net = Net()
    follows(net, lambda: setattr(Net, "forward", lambda self, x: x * 3))
    follows(lambda x: net(x), lambda: setattr(Net, "forward", lambda self, x: x * 4))


def test_modes_and_settings_of_layers() -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3), nn.LeakyReLU(0.1))
    net.eval()
    follows(
        net,
        lambda: setattr(net[1], "eps", 0.5),
        lambda: setattr(net[2], "negative_slope", 0.5),
        lambda: setattr(net[1], "eps", 0.1),
    )
    drop = nn.Dropout(0.5)
    f = pb.capture(lambda x: drop(x))
    for p in (0.5, 0.25, 0.0, 0.5):
        drop.p = p
        pb.random.seed(1)
        got = f(X)
        pb.random.seed(1)
        same(got, drop(X))


def test_momentum_of_a_batch_norm() -> None:
    norms = [nn.BatchNorm1d(3) for _ in range(2)]
    f = pb.capture(lambda x: norms[0](x))
    for momentum in (0.1, 0.5, None, 0.1):
        for norm in norms:
            norm.momentum = momentum
        same(f(X), norms[1](X))
        same(norms[0].running_mean, norms[1].running_mean)
        same(norms[0].running_var, norms[1].running_var)


def test_layers_of_a_list_a_dict_and_an_attribute() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.layers, self.named, self.last = [nn.Linear(3, 3)], {"a": nn.Linear(3, 3)}, nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            for layer in (*self.layers, *self.named.values()):
                x = layer(x)
            return self.last(x)

    net = Net()
    follows(
        lambda x: net(x),
        lambda: net.layers.append(nn.Tanh()),
        lambda: net.layers.__setitem__(0, nn.Linear(3, 3)),
        lambda: net.named.update(a=nn.ReLU()),
        lambda: setattr(net, "layers", []),
        lambda: setattr(net, "last", nn.Linear(3, 3)),
        lambda: setattr(net.last, "bias", None),
    )


def test_weights_that_are_tied_loaded_and_replaced() -> None:
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    follows(
        lambda x: b(a(x)),
        lambda: setattr(a, "weight", b.weight),
        lambda: a.load_state_dict(nn.Linear(3, 3).state_dict()),
        lambda: setattr(a, "weight", pb.Parameter(np.eye(3, dtype="float32"))),
    )


def training(rule: Callable[[Any], Any]) -> types.SimpleNamespace:
    pb.random.seed(3)
    model = nn.Linear(3, 3)
    run = types.SimpleNamespace(model=model, opt=rule(model.parameters()))
    run.step = lambda x: run.opt.minimize(lambda: pb.mean(pb.square(run.model(x))))
    return run


def test_an_optimizer_and_a_model_that_are_replaced() -> None:
    both = [training(lambda ps: optim.SGD(ps, lr=0.1)) for _ in range(2)]
    captured = pb.capture(both[0].step)
    for k in range(9):
        for run in both:
            if k == 3:
                run.opt = optim.Adam(run.model.parameters(), lr=0.05)
            if k == 6:
                pb.random.seed(4)
                run.model = nn.Linear(3, 3)
                run.opt = optim.SGD(run.model.parameters(), lr=0.1)
        same(captured(X), both[1].step(X))
        same(both[0].model.weight, both[1].model.weight)


def test_hyper_parameters_of_an_optimizer() -> None:
    both = [training(lambda ps: optim.Adam(ps, lr=0.1)) for _ in range(2)]
    captured = pb.capture(both[0].step)
    changes = {2: ("lr", 0.01), 4: ("betas", (0.5, 0.9)), 6: ("clip_norm", 0.01), 8: ("weight_decay", 0.1), 10: ("clip_norm", None)}
    for k in range(12):
        for run in both:
            setattr(run.opt, *changes.get(k, ("lr", run.opt.lr)))
        same(captured(X), both[1].step(X))
        same(both[0].model.weight, both[1].model.weight)
