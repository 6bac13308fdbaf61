"""A captured function that does what a replay cannot repeat is refused with its line, and everything stays usable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import OPTIMIZERS, batches, needs_kernels, run, same, same_state, training
from pullback import nn, optim

pytestmark = needs_kernels


class _Cell(nn.Module):
    def __init__(self) -> None:
        self.p = pb.Parameter([1.0])


def _refused() -> dict[str, Callable[[Any], Any]]:
    cell = _Cell()
    opt = optim.SGD([pb.Parameter([1.0])], lr=0.1)
    box = pb.black_box(lambda x: np.asarray(x) * 2)
    outer = pb.GradientTape()
    outer.watch(t := pb.tensor([1.0]))
    generator = pb.random.Generator(0)
    return {
        "item()": lambda x: x[0].item(),
        "bool()": lambda x: 1 if x[0] > 0 else 2,
        "float()": lambda x: float(x[0]),
        "int()": lambda x: int(x[0]),
        "numpy()": lambda x: x.numpy(),
        "tolist()": lambda x: x.tolist(),
        "repr()": lambda x: print(x),
        "formatting": lambda x: f"{x[0]:.2f}",
        "in,": lambda x: 3.0 in x,
        "nonzero": lambda x: pb.nonzero(x),
        "unique": lambda x: pb.unique_values(x),
        "a mask": lambda x: x[x > 0],
        "counting segments": lambda x: pb.segment_sum(x, pb.tensor([0, 1, 1])),
        "repeat by counts": lambda x: pb.repeat(x, pb.tensor([1, 2, 0])),
        "a black box": lambda x: box(x),
        "setting _Cell.p": lambda x: setattr(cell, "p", pb.Parameter([2.0])),
        "train\\(\\) or eval\\(\\)": lambda x: cell.eval(),
        "Module.to": lambda x: cell.to(pb.float64),
        "setting lr": lambda x: setattr(opt, "lr", 0.5),
        "state_dict": lambda x: opt.state_dict(),
        "slots": lambda x: opt.slots(opt.parameters[0]),
        "copying an optimizer": lambda x: opt.__getstate__(),
        "a new SGD": lambda x: optim.SGD([pb.Parameter([1.0])], lr=0.1),
        "seeding": lambda x: generator.seed(3),
        "on_gradient": lambda x: outer.on_gradient(t, lambda g: g),
        "watch": lambda x: outer.watch(x),
        "stop_recording": lambda x: outer.stop_recording(),
    }


@pytest.mark.parametrize("what", _refused())
def test_what_a_replay_could_not_repeat_is_refused_and_leaves_all_usable(what: str) -> None:
    f = _refused()[what]
    captured = pb.capture(lambda x: f(x * 1.0))
    words = what.replace("()", "[(][)]")
    with pytest.raises(pb.CaptureError, match=f"(?s){words}.*test_capture_refusals.py.*, line .*replay could not repeat it"):
        captured(pb.tensor([1.0, -1.0, 2.0]))
    good = pb.capture(lambda x: pb.exp(x))
    for k in range(2):
        x = pb.tensor([float(k)])
        same(good(x), pb.exp(x))


def test_an_exception_in_the_middle_of_a_recording_leaves_all_usable() -> None:
    data = batches(3)
    _, eager, step = training(OPTIMIZERS["adam"])
    wanted = run(step, data)
    _, opt, step = training(OPTIMIZERS["adam"])
    fails = [True]

    def sometimes(x: Any, y: Any) -> Any:
        if fails.pop():
            pb.tanh(x)
            raise RuntimeError("no")
        fails.append(False)
        return step(x, y)

    captured = pb.capture(sometimes)
    with pytest.raises(RuntimeError, match="no"):
        captured(*data[0])
    fails.append(False)
    for got, right in zip(run(captured, data), wanted):
        same(got, right)
    same_state(opt, eager)


def test_bad_options_say_what_to_do() -> None:
    with pytest.raises(pb.PullbackError, match="'none', 'exact', 'fast'"):
        pb.capture(lambda x: x, fusion="most")
    with pytest.raises(pb.PullbackError, match="steps=0"):
        pb.capture(lambda x: x, steps=0)
    with pytest.raises(pb.PullbackError, match="not a function"):
        pb.capture(3)
    for f in (lambda x: x, pb.grad(lambda x: pb.sum(x * x))):
        with pytest.raises(pb.CaptureError, match=r"^capture: an argument .* \(1.*\), of 9 axes, .* at most 8\. Join axes"):
            pb.capture(f)(pb.ones((1,) * 9))
    for f in (lambda x: pb.reshape(x, (1,) * 9), lambda x: [pb.reshape(2 * x, (1,) * 9)]):
        with pytest.raises(pb.CaptureError, match=r"^capture: a result .* \(1.*\), of 9 axes, .* at most 8\. Return it with"):
            pb.capture(f)(pb.ones(1))
    with pytest.raises(pb.CaptureError, match="nothing is recorded yet"):
        pb.capture(lambda x: x).explain()


def test_the_warning_of_a_full_cache_says_what_changed() -> None:
    net = nn.Dropout(0.5)
    x = pb.ones(3)
    causes: dict[str, Callable[[Any], Any]] = {
        r"the recordings of a signature keep becoming invalid": lambda f: (f(x), net.eval(), f(x), net.train()),
        r"tensor 0 of the arguments had shape \(3,\), then \(4,\)": lambda f: (f(x), f(pb.ones(4))),
        r"tensor 0 of the arguments changed its dtype, layout or device": lambda f: (f(x), f(pb.ones(3, dtype=pb.float64))),
        r"argument leaf 1 was .*1.*, then .*2": lambda f: (f(x, 1), f(x, 2)),
        r"the structure of the arguments, .*, the precision or pb\.config\.reproducible keeps": lambda f: (f(x, [x]), f(x, (x,))),
    }
    for words, cause in causes.items():
        with pytest.warns(UserWarning, match=f"recorded for more than 1 signatures: {words}"):
            cause(pb.capture(lambda x, *rest: net(x), cache=1))


def test_a_captured_function_is_called_as_before() -> None:
    def named(x: Any) -> Any:
        """What it says."""
        return x + 1

    captured = pb.capture(named)
    assert (captured.__name__, captured.__doc__, captured.__wrapped__) == ("named", "What it says.", named)


def branching(x: Any) -> Any:
    return x if pb.sum(x) > 0 else -x


def looping(x: Any) -> Any:
    while pb.sum(x) < 10:
        x = x * 2
    return x


@pytest.mark.parametrize("f", [branching, looping])
def test_a_branch_or_a_loop_on_a_tensor_is_refused_with_what_to_write_instead(f: Any) -> None:
    told = r"(?s)bool\(\).*line \d+, in " + f.__name__ + r".*A branch or a loop.*pb\.where\(condition, a, b\).*pb\.scan.*outside"
    with pytest.raises(pb.CaptureError, match=told):
        pb.capture(f)(pb.ones(3))


def test_what_the_refusal_of_a_branch_advises_works() -> None:
    chosen = pb.capture(lambda x: pb.where(pb.sum(x) > 0, x, -x))
    for sign in (1.0, -1.0, 1.0):
        np.testing.assert_array_equal(chosen(pb.tensor([sign, sign])).numpy(), [1.0, 1.0])
    repeated = pb.capture(lambda x, xs: pb.scan(lambda c, y: (c + y, c), x, xs)[0])
    for k in (1.0, 2.0):
        assert float(repeated(pb.tensor(k), pb.tensor([k, k, k]))) == 4 * k
