"""A captured function is an op: tapes and transforms around its call differentiate it, with the bits of the eager function."""

from __future__ import annotations

import copy
import threading
import traceback
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import agree, alike, needs_kernels, normal, same
from pullback import nn, optim
from pullback.tensors import devices

pytestmark = [needs_kernels, pytest.mark.filterwarnings("ignore::pullback.errors.ZeroGradientWarning")]


def small_net(*more: Any) -> Any:
    pb.random.seed(0)
    return nn.Sequential(nn.Linear(4, 5), *more, nn.Tanh(), nn.Linear(5, 3))


def squares(net: Any, captures: bool) -> Any:
    f = lambda x: pb.sum(pb.square(net(x)))
    return pb.capture(f) if captures else f


# ---- results and arguments


def test_values_of_any_structure() -> None:
    def f(x: Any, y: Any) -> Any:
        return {"a": (x * y, None), "b": [pb.argmax(x), 3, "word", x], "c": pb.sum(y), "d": pb.sin(x).mT}

    def run(g: Any, k: int) -> Any:
        x, y = normal(k, 3, 2), normal(k + 9, 3, 2)
        with pb.GradientTape(persistent=True) as tape:
            tape.watch([x, y])
            r = g(x, y)
            z = pb.sum(r["a"][0] * r["b"][3]) + r["c"] + pb.sum(r["d"] @ x)
        assert r["b"][3] is x
        return [r, tape.gradient(z, [x, y]), tape.gradient(r["a"][0], [x, y], output_gradients=x)]

    agree(f, run)


def test_each_result_depends_on_its_own_arguments() -> None:
    captured = pb.capture(lambda x, y: (pb.sum(x * x), pb.sum(y * y), pb.sum(pb.sign(x) * y)))
    for k in range(3):
        x, y = normal(k, 3), normal(k + 9, 3)
        with pb.GradientTape(persistent=True) as tape:
            tape.watch([x, y])
            a, b, c = captured(x, y)
        with pytest.raises(pb.UnconnectedError, match="source 1"):
            tape.gradient(a, [x, y])
        same(tape.gradient(a, x), 2 * x)
        assert tape.gradient(b, [x, y], unconnected="none")[0] is None
        with pytest.warns(pb.ZeroGradientWarning):
            same(tape.gradient(c, x), pb.zeros_like(x))


def test_arguments_and_parameters_that_are_returned_stay_what_they_are() -> None:
    p = pb.Parameter([1.0, 2.0, 3.0])

    def run(g: Any, k: int) -> Any:
        x = normal(k, 3, dtype=pb.float32)
        with pb.GradientTape() as tape:
            tape.watch(x)
            y, q, z = g(x)
            total = pb.sum(y * q * z * x)
        assert y is x
        assert q is p
        return tape.gradient(total, [x, p])

    agree(lambda x: (x, p, x * p), run)


def test_options_arrays_and_one_tensor_twice() -> None:
    p = pb.Parameter([1.0, 2.0, 3.0])

    def f(x: Any, y: Any = None, scale: float = 1.0) -> Any:
        return pb.sum(pb.tanh(x * p) * scale) if y is None else pb.sum(pb.tanh(x) * y + x * pb.sin(y) * p)

    def run(g: Any, k: int) -> Any:
        x, array = normal(k, 3, dtype=pb.float32), np.full(3, k + 1, np.float32)
        with pb.GradientTape(persistent=True) as tape:
            tape.watch(x)
            found = [g(array, scale=2.0), g(array, y=x), g(x, x), g(y=x, x=x * 2)]
        array[:] = 7
        return [[y, *tape.gradient(y, [x, p], unconnected="zero")] for y in found]

    agree(f, run)


def test_an_array_from_outside_is_read_when_the_function_runs() -> None:
    array = np.ones(3, np.float32)
    captured = pb.capture(lambda x: pb.sum(pb.sin(x) * array))
    with devices.use_device("cpu"):  # arrays are copied to a GPU once, when the function is recorded
        for k in range(3):
            array[:] = k + 1
            x = pb.ones(3)
            with pb.GradientTape() as tape:
                tape.watch(x)
                y = captured(x)
            array[:] = 100
            same(tape.gradient(y, x), pb.cos(x) * (k + 1.0))


def test_a_tensor_from_outside_gets_gradients_while_it_is_watched() -> None:
    a = normal(0, 3)

    def run(g: Any, k: int) -> Any:
        x, sources = normal(k, 3), [a]
        with pb.GradientTape() as tape:
            tape.watch([x, a] if k % 2 else x)
            b = x * 2
            y = pb.sum(g(x) * b)
            sources = [x, a] if k % 2 else [x]
        return [y, tape.gradient(y, sources)]

    agree(lambda x: pb.sin(a) * x, run, 5)


def test_a_parameter_that_is_frozen_or_trained_later() -> None:
    p, q = pb.Parameter([1.0, 2.0]), pb.Parameter([3.0, 4.0], trainable=False)
    f = lambda x: pb.sum(p * q * x)
    captured = pb.capture(f)
    for k in range(4):
        q.trainable = k >= 2
        found = []
        for g in (captured, f):
            with pb.GradientTape() as tape:
                y = g(pb.ones(2) * (k + 1))
            found.append([y, tape.gradient(y, [p, q] if k >= 2 else [p])])
        alike(*found)


def test_a_parameter_that_only_the_function_reads() -> None:
    p, q = pb.Parameter([1.0, 2.0, 3.0]), pb.Parameter([4.0, 5.0, 6.0])

    def run(g: Any, k: int) -> Any:
        x = normal(k, 3, dtype=pb.float32)
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = pb.sum(g(x) * x)
        return tape.gradient(y, [p, q], unconnected="zero")  # x is watched, and not a source

    agree(lambda x: pb.tanh(p * x) + p, run)


# ---- several calls


def test_f_of_f_and_two_batches_before_the_first_gradient() -> None:
    p = pb.Parameter(np.linspace(-1, 1, 9).reshape(3, 3), dtype=pb.float64)

    def run(g: Any, k: int) -> Any:
        with pb.GradientTape() as first:
            y = pb.sum(g(g(normal(k, 2, 3)))) + pb.sum(p * p)
        with pb.GradientTape() as second:
            z = pb.sum(g(normal(k + 9, 2, 3)))
        return [y, z, first.gradient(y, p), second.gradient(z, p)]

    agree(lambda x: pb.tanh(x @ p), run, 4)


@pytest.mark.parametrize("aggregation", ["accumulate", "add_n", "tree"])
def test_contributions_from_inside_and_outside_are_summed_in_the_order_of_the_eager_run(aggregation: Any) -> None:
    p = pb.Parameter(normal(3, 3, 3, dtype=pb.float32))

    def run(g: Any, k: int) -> Any:
        x = normal(k, 3, 3, dtype=pb.float32)
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = pb.sum(p * x) + g(x) + pb.sum(pb.exp(p))
        with pb.GradientTape() as alone:
            z = g(x)
        return [tape.gradient(y, [p, x], aggregation=aggregation), alone.gradient(z, [p], aggregation=aggregation)]

    agree(lambda x: pb.sum(pb.tanh(x @ p) * pb.sin(p) + p * p / 3 + pb.cos(p)), run)


@pytest.mark.parametrize("aggregation", ["accumulate", "add_n", "tree"])
def test_contributions_to_blocks_of_an_argument_are_added_to_those_from_outside(aggregation: Any) -> None:
    p = pb.Parameter(normal(3, 4, 3, dtype=pb.float32))

    def run(g: Any, k: int) -> Any:
        x = normal(k, 4, 3, dtype=pb.float32)
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = pb.sum(pb.exp(x)) + g(x) + pb.sum(x * p)
        return tape.gradient(y, [x, p], aggregation=aggregation)

    agree(lambda x: pb.sum(pb.tanh(x[0]) * pb.sin(x[2]) + p[1] * x[0]), run)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("aggregation", ["accumulate", "add_n", "tree"])
def test_contributions_to_values_inside_are_summed_as_in_the_eager_run(aggregation: Any, checkpointed: bool) -> None:
    p = pb.Parameter(normal(3, 4, 3, dtype=pb.float32))

    def several(x: Any) -> Any:
        z = pb.tanh(x * p)
        return pb.sum(z * pb.max(z, axis=0) * pb.sin(z)), z

    def run(g: Any, k: int) -> Any:
        x = normal(k, 4, 3, dtype=pb.float32)
        with pb.GradientTape() as tape:
            tape.watch(x)
            y, z = (pb.checkpoint(g) if checkpointed else g)(x)
            total = y + pb.sum(z * 3) + pb.sum(z * z)
        return tape.gradient(total, [p, x], aggregation=aggregation)

    agree(several, run)


def test_an_unknown_aggregation_is_an_error_also_for_a_single_call() -> None:
    captured, x = pb.capture(lambda x: pb.sum(x * x)), pb.ones(3)
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = captured(x)
    with pytest.raises(pb.TapeError, match="aggregation"):
        tape.gradient(y, x, aggregation="mean")  # type: ignore[arg-type]


def test_a_parameter_that_changed_after_the_call_is_an_error() -> None:
    p = pb.Parameter([1.0, 2.0])
    captured = pb.capture(lambda x: pb.sum(p * p * x))
    for _ in range(3):
        with pb.GradientTape() as tape:
            y = captured(pb.ones(2))
        p.assign(p * 1.5)
        with pytest.raises(pb.StaleValueError, match="changed in place after the forward pass"):
            tape.gradient(y, p)


def test_an_assignment_of_a_watched_value_inside_is_an_error_with_its_line() -> None:
    p = pb.Parameter([1.0, 2.0])
    captured = pb.capture(lambda x: pb.sum(p.assign(x * 2) * x))
    x = pb.ones(2)
    captured(x)
    for _ in range(2):
        tape = pb.GradientTape()
        tape.watch(x)
        with tape, pytest.raises(pb.TapeError, match="a tape that records watches the new value"):
            captured(x)


# ---- layers with state, modes and random numbers


def test_random_numbers_repeat_in_the_pullback_and_go_on_after_the_call() -> None:
    net = small_net(nn.Dropout(0.5))
    f = lambda x: pb.sum(net(x) * pb.random.normal((6, 3)))

    def run(g: Any, k: int) -> Any:
        with pb.GradientTape() as tape:
            y = g(normal(k, 6, 4, dtype=pb.float32))
        return [y, *tape.gradient(y, net.parameters())]

    assert agree(f, run, 4).stats().captures == 2  # forward and backward


def test_running_values_of_batch_norm_and_the_modes_of_layers() -> None:
    pb.random.seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    found = []
    for captures in (True, False):
        one = copy.deepcopy(net)
        g, values = squares(one, captures), []
        for k in range(6):
            one.train(k not in (3, 4))
            with pb.GradientTape() as tape:
                y = g(normal(k, 5, 1, 4, 4, dtype=pb.float32))
            values += [pb.copy(v) for v in [y, *tape.gradient(y, one.parameters()), *one.state_dict().values()]]
        found.append(values)
    alike(*found)


@pytest.mark.parametrize("inside", [True, False])
def test_autocast(inside: bool) -> None:
    net = small_net()

    def f(x: Any) -> Any:
        with pb.amp.autocast("bfloat16" if inside else "float32"):
            return pb.sum(pb.square(net(x)))

    def run(g: Any, k: int) -> Any:
        with pb.amp.autocast("float32" if inside else "bfloat16"), pb.GradientTape() as tape:
            y = g(normal(k, 2, 4, dtype=pb.float32))
        return [y, *tape.gradient(y, net.parameters())]

    agree(f, run)


# ---- steps, tapes inside, updates and threads


def test_several_steps_under_a_tape() -> None:
    p = pb.Parameter(normal(3, 3))
    f = lambda x: pb.tanh(x * p)
    captured = pb.capture(f, steps=4)
    for k in range(3):
        x, found = normal(k, 4, 3), []
        for g in (captured, lambda x: pb.stack([f(x[i]) for i in range(4)])):
            with pb.GradientTape() as tape:
                tape.watch(x)
                y = pb.sum(g(x) ** 2)
            found.append([y, *tape.gradient(y, [p, x])])
        alike(*found)


def test_several_steps_of_a_function_that_no_recording_serves() -> None:
    @pb.custom_gradient
    def doubled(x: Any) -> Any:
        return x * 2, lambda g: g * 2

    x = normal(0, 4, 3)
    captured = pb.capture(lambda x: pb.sum(doubled(x) * x), steps=4)
    for _ in range(3):
        same(pb.grad(lambda x: pb.sum(captured(x)))(x), x * 4)


def test_a_wrong_choice_is_refused_under_the_shortest_tape() -> None:
    p, captured = pb.Parameter([1.0]), pb.capture(lambda x: pb.sum(p * x))
    for wrong in ({"aggregation": "most"}, {"unconnected": "most"}):
        with pb.GradientTape() as tape:
            y = captured(pb.ones(1))
        with pytest.raises(pb.TapeError, match="most"):
            tape.gradient(y, p, **wrong)


def test_a_tape_inside() -> None:
    def f(x: Any) -> Any:
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = pb.sum(pb.tanh(x) * x)
        return pb.sum(pb.square(tape.gradient(y, x)))

    agree(f, lambda g, k: pb.grad(g)(normal(k, 3)))


def test_what_belongs_to_a_tape_around_the_call_is_refused_inside() -> None:
    tape = pb.GradientTape()
    for f in (lambda x: tape.watch(x * 1), lambda x: tape.stop_recording(), lambda x: tape.on_gradient(x, lambda g: g)):
        with (
            tape,
            pytest.raises(pb.CaptureError, match=r"on a tape from outside inside .*, at .*test_captured_op\.py"),
        ):
            pb.capture(f)(pb.ones(3))


@pytest.mark.parametrize("gate", ["graph", "op"])
def test_training_with_a_captured_loss(gate: Any) -> None:
    net, found = small_net(nn.LayerNorm(5)), []
    for captures in (True, False):
        one = copy.deepcopy(net)
        opt = optim.Adam(one.parameters(), lr=0.01)
        f = squares(one, captures)
        for k in range(5):
            opt.minimize(f, normal(k, 6, 4, dtype=pb.float32), gate=gate)
        found.append(list(one.parameters()))
    alike(*found)


def test_threads() -> None:
    p = pb.Parameter(normal(3, 3, 3))
    f = lambda x: pb.sum(pb.tanh(x @ p) @ p)
    captured, errors = pb.capture(f), []

    def work(seed: int) -> None:
        try:
            for k in range(10):
                x, found = normal(100 * seed + k, 2, 3), []
                for g in (captured, f):
                    with pb.GradientTape() as tape:
                        tape.watch(x)
                        y = g(x)
                    found.append([y, *tape.gradient(y, [p, x])])
                alike(*found)
        except Exception:
            errors.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
