"""Warnings name the user's line, so Python shows them once per line and filters match the user's module."""

from __future__ import annotations

import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels
from conftest import environment
from pullback import nn

ARRAY = np.ones((2, 3))


def zero_slope(_: Any = None) -> Any:
    return pb.grad(lambda x: pb.sum(pb.sign(x)))(pb.ones(3))


def zero_slope_of_a_tape() -> Any:
    x = pb.Parameter([1.0, 2.0])
    with pb.GradientTape() as tape:
        y = pb.sum(pb.round(x))
    return tape.gradient(y, x)


def zero_slope_deep_inside() -> Any:
    x = pb.Parameter([1.0, 2.0])
    opt = pb.optim.SGD([x])
    return opt.minimize(pb.checkpoint(lambda: pb.sum(pb.floor(x))))


def blind_surrogate() -> Any:
    measure = pb.black_box(lambda z: z * 2, gradient="surrogate")
    return pb.grad(lambda x: pb.sum(measure(x)))(pb.ones(3))


def many_signatures() -> Any:
    f = pb.capture(lambda x: x * 2, cache=1)
    for n in range(1, 4):
        f(pb.ones(n))


def float64_array() -> Any:
    return nn.Linear(3, 1)(ARRAY)


ISSUES: list[tuple[Callable[[], Any], type[Warning]]] = [
    (zero_slope, pb.ZeroGradientWarning),
    (zero_slope_of_a_tape, pb.ZeroGradientWarning),
    (zero_slope_deep_inside, pb.ZeroGradientWarning),
    (blind_surrogate, pb.ZeroGradientWarning),
    pytest.param(many_signatures, UserWarning, marks=needs_kernels),  # nothing is recorded without kernels
    (float64_array, pb.PrecisionWarning),
]


@pytest.mark.parametrize(("issue", "category"), ISSUES, ids=lambda x: x.__name__)
def test_a_warning_names_the_line_of_the_user(issue: Callable[[], Any], category: type[Warning]) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        issue()
    (warning,) = [w for w in seen if w.category is category]
    first, last = issue.__code__.co_firstlineno, max([line or 0 for *_, line in issue.__code__.co_lines()])
    assert warning.filename == __file__
    assert first < warning.lineno <= last


def in_a_module(source: str, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(pb=pb, nn=nn, ARRAY=ARRAY)
    exec(compile(source, f"{name}.py", "exec"), vars(module))
    return module


TWO_LINES = """
def run():
    for _ in range(3):
        pb.grad(lambda x: pb.sum(pb.sign(x)))(pb.ones(3))
        layer(ARRAY)
layer = nn.Linear(3, 1)
"""


def test_a_warning_comes_once_per_line_and_filters_see_the_module() -> None:
    quiet, loud = in_a_module(TWO_LINES, "quiet"), in_a_module(TWO_LINES, "loud")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        warnings.filterwarnings("ignore", module="quiet")
        quiet.run()
        loud.run()
    assert [(w.filename, w.category) for w in seen] == [("loud.py", pb.ZeroGradientWarning), ("loud.py", pb.PrecisionWarning)]


# ---- float64 arrays and networks of float32


def messages(run: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in seen if w.category is pb.PrecisionWarning]


class Nested(nn.Module):
    def __init__(self) -> None:
        self.inside = nn.Sequential(nn.Flatten(), nn.Linear(3, 2), nn.LayerNorm(2))

    def forward(self, x: Any) -> Any:
        return {"y": self.inside(x)}


class Converting(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.layer(pb.tensor(x, dtype=pb.float32))


NETWORKS = [nn.Linear(3, 1), nn.Sequential(nn.Flatten(), nn.Linear(3, 1)), Nested()]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda x: type(x).__name__)
def test_a_float64_array_in_a_network_of_float32_warns_once(network: Any) -> None:
    (message,) = messages(lambda: network(ARRAY))
    assert "float64" in message
    assert ".astype(np.float32)" in message
    (_,) = messages(lambda: network(ARRAY))  # The next call warns again.


@pytest.mark.parametrize(
    "run",
    [
        lambda: nn.Linear(3, 1)(ARRAY.astype(np.float32)),
        lambda: nn.Linear(3, 1)(pb.tensor(ARRAY, dtype=pb.float64)),
        lambda: nn.Linear(3, 1).to(pb.float64)(ARRAY),
        lambda: nn.Flatten()(ARRAY),
        lambda: nn.Embedding(3, 2)(np.array([0, 1])),
        lambda: Converting()(ARRAY),
        lambda: nn.mse(nn.Linear(3, 1)(pb.ones((2, 3))), np.ones((2, 1))),
    ],
)
def test_what_is_asked_for_or_harmless_does_not_warn(run: Callable[[], Any]) -> None:
    assert messages(run) == []


def test_a_network_that_fails_warns_the_next_time() -> None:
    layer = nn.Linear(3, 1)
    with pytest.raises(pb.ShapeError):
        layer(np.ones((2, 4)))
    assert len(messages(lambda: layer(ARRAY))) == 1


LAYER = nn.Linear(3, 1)


def captured_step(x: Any, y: Any) -> Any:
    with pb.GradientTape() as tape:
        loss = nn.mse(LAYER(x), y)
    return tape.gradient(loss, LAYER.parameters())


@pytest.mark.parametrize(
    "run",
    [
        lambda x: pb.capture(captured_step)(x, np.ones((2, 1))),
        lambda x: pb.capture(lambda x: LAYER(x), steps=2)(x),
        lambda x: pb.vmap(LAYER)(x),
        lambda x: pb.grad(lambda x: pb.sum(LAYER(x)))(x),
        lambda x: pb.jvp(LAYER, (x,), (np.ones((2, 3)),)),
        lambda x: pb.jacobian(LAYER)(x),
        lambda x: pb.grad(lambda x: pb.sum(pb.vmap(LAYER)(x)))(x),
    ],
)
def test_a_float64_array_warns_also_as_the_argument_of_a_captured_or_transformed_function(run: Callable[[Any], Any]) -> None:
    (_,) = {*messages(lambda: run(ARRAY))}  # without kernels, once for each step
    assert messages(lambda: run(ARRAY.astype(np.float32))) == []
    assert messages(lambda: run(pb.tensor(ARRAY, dtype=pb.float64))) == []


# ---- transforms of functions that read their argument as numbers

ONE, TWO = pb.tensor(2.0), pb.tensor([1.0, 2.0])


def logs_only(a: Any) -> Any:
    print(a, f"{a}", bool(a[0] > 0))
    return pb.tensor(3.0)


def slope_warnings(run: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        run()
    return [w for w in seen if w.category is pb.ZeroGradientWarning]


@pytest.mark.parametrize(
    ("run", "how"),
    [
        (lambda: pb.grad(lambda a: float(pb.sum(a**2)))(TWO), "float()"),
        (lambda: pb.value_and_grad(lambda a: a.item() ** 2)(ONE), "item()"),
        (lambda: pb.grad(lambda a: pb.tensor(np.sum(a.numpy() ** 2)))(TWO), "numpy()"),
        (lambda: pb.grad(lambda a, b: pb.sum(a) * np.asarray(b).sum(), (0, 1))(TWO.to("cpu"), TWO.to("cpu")), "np.asarray()"),
        (lambda: pb.jacobian(lambda a: pb.tensor(a.numpy() ** 2))(TWO), "numpy()"),
        (lambda: pb.jacobian(lambda a: pb.tensor(a.numpy() ** 2), mode="forward", chunk=2)(TWO), "numpy()"),
        (lambda: pb.jvp(lambda a: pb.tensor(a.numpy() ** 2), (TWO,), (TWO,)), "numpy()"),
        (lambda: pb.hvp(lambda a: float(a) ** 2, ONE, ONE), "float()"),
        (lambda: pb.hessian(lambda a: float(a) ** 2)(ONE), "float()"),
        (lambda: pb.vjp(lambda a: pb.tensor(a.tolist()), ONE)[1](ONE), "tolist()"),
    ],
)
def test_a_transform_warns_where_an_argument_left_as_numbers(run: Callable[[], Any], how: str) -> None:
    (warning,) = slope_warnings(run)
    line = run.__code__.co_firstlineno
    assert (warning.filename, warning.lineno) == (__file__, line)
    assert f'by {how} at "{__file__}", line {line}' in str(warning.message)


@pytest.mark.parametrize(
    "run",
    [
        lambda: pb.jvp(logs_only, (TWO,), (TWO,)),
        lambda: pb.grad(lambda a: pb.sum(a) * (1 + float(pb.sum(a))))(TWO),
        lambda: pb.jvp(lambda a: a * (1 + float(pb.sum(a))), (TWO,), (TWO,)),
        lambda: pb.hvp(lambda a: pb.sum(a) + 0 * len(a.numpy()), TWO, TWO),
        lambda: pb.grad(lambda a: pb.sum(pb.stop_gradient(a)))(TWO),
    ],
)
def test_a_transform_is_silent_where_zeros_are_meant(run: Callable[[], Any]) -> None:
    assert slope_warnings(run) == []


@pytest.mark.parametrize("variables", [{}, {"PULLBACK_BACKEND": "reference"}], ids=["default", "reference"])
@pytest.mark.parametrize(("dtype", "big"), [("float16", 1e30), ("float32", 1e60), ("bfloat16", 1e60)])
def test_a_number_that_is_too_large_is_infinite_and_nothing_warns(dtype: str, big: float, variables: dict[str, str]) -> None:
    program = f"""
import warnings, pullback as pb
warnings.simplefilter("error")
x, big = pb.ones(2, dtype="{dtype}"), {big}
made = [pb.full((2,), big, dtype=x.dtype), pb.full_like(x, big), pb.full_like(x, -big), pb.tensor([big], dtype=x.dtype),
        pb.asarray(big, dtype=x.dtype), pb.arange(0, 2 * big, big, dtype=x.dtype)[1:], pb.linspace(big, big, 2, dtype=x.dtype),
        x + big, x * big, big - x, pb.where(x > 2, x, big), pb.maximum(x, big), pb.pad(x, 1, value=big)[:1],
        x.astype("float64") * big, pb.Parameter(x).assign(pb.full((2,), big, dtype="float64"))]
if not {variables}:
    made.append(pb.capture(lambda: pb.full((2,), big, dtype=x.dtype))())
print(all([bool(pb.all(pb.abs(y.astype("float64")) >= big)) for y in made]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment(**variables))
    assert (done.stdout, done.stderr) == ("True\n", "")


def _text_of_zero(make: Callable[[], Any]) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    (text,) = [str(warning.message) for warning in caught if warning.category is pb.ZeroGradientWarning]
    return text


@pytest.mark.parametrize(("f", "names"), [
    (pb.max, ["the derivative of max"]), (lambda x: pb.sum(pb.relu(x)), ["the derivative of relu"]),
    (lambda x: pb.sum(pb.sort(x) * 2.0), ["the derivative of sort"]), (lambda x: pb.sum(pb.topk(x, 2).values), ["topk"]),
    (lambda x: pb.quantile(x, 0.3), ["quantile", "the derivative of sort"]), (lambda x: pb.sum(pb.cummax(x).values), ["cummax"]),
    (lambda x: pb.linalg.vector_norm(x, ord=1), ["vector_norm"]), (lambda x: pb.nn.l1(x, pb.zeros(3)), ["the derivative of abs"]),
    (lambda x: pb.segment_max(x, [0, 0, 0])[0], ["the derivative of segment_max"]),
])
def test_the_warning_of_a_second_derivative_names_the_public_function_and_its_line(
    f: Callable[[Any], Any], names: list[str]
) -> None:
    x = pb.tensor([1.0, 2.0, 3.0])

    def second() -> Any:
        with pb.GradientTape() as outer:
            outer.watch(x)
            with pb.GradientTape() as inner:
                inner.watch(x)
                y = f(x)
            z = pb.sum(inner.gradient(y, x) * 2.0)
        return outer.gradient(z, x)

    text = _text_of_zero(second)
    listed = text[text.index("everywhere (") + 12 : text.rindex(")")]
    assert [part.partition(",")[0] for part in listed.split("; ")] == names
    assert all([f'recorded at "{__file__}"' in part for part in listed.split("; ")])
    assert text.endswith("because it is the second derivative of a function of straight pieces.")


def test_the_warning_of_a_first_derivative_names_the_public_function() -> None:
    x = pb.tensor([1.0, 2.0, 3.0])
    for f, name in (
        (lambda x: pb.sum(pb.heaviside(x, 0.5)), "heaviside"),
        (lambda x: pb.sum(pb.where(x > 1, 1.0, 2.0)), "greater"),
    ):
        text = _text_of_zero(lambda f=f: pb.grad(f)(x))
        assert f'zero everywhere ({name}, recorded at "{__file__}"' in text
        assert text.endswith("pb.straight_through(f) lets gradients pass.")
