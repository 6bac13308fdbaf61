"""Random functions have the same bits under checkpoints, whatever they return: a tensor twice, an argument, a view."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb

SIDE = 24
UNARY: list[Callable[[Any], Any]] = [
    pb.tanh, pb.sin, lambda x: x * x, lambda x: x[::-1], lambda x: x.T, lambda x: x + x[:1], lambda x: pb.softmax(x, axis=0),
    lambda x: pb.where(x > 0, x, 0.1 * x), lambda x: pb.concat([x[3:], x[:3]]), lambda x: pb.reshape(x, (SIDE, SIDE)),
    lambda x: pb.stop_gradient(x), lambda x: x[:], lambda x: 0.5 * x,
]
BINARY: list[Callable[[Any, Any], Any]] = [operator.add, operator.sub, operator.mul, lambda x, y: x @ y * 0.2, pb.maximum]


def random_function(rng: Any, parameters: list[Any]) -> Callable[..., list[Any]]:
    """Returns a function of two matrices that returns some matrices, which may be the same, arguments or Parameters."""
    program = []
    for made in range(rng.integers(1, 6)):
        count = 2 + len(parameters) + made
        if rng.random() < 0.5:
            program.append((UNARY[rng.integers(len(UNARY))], [rng.integers(count)]))
        else:
            program.append((BINARY[rng.integers(len(BINARY))], list(rng.integers(count, size=2))))
    total = 2 + len(parameters) + len(program)
    returned = [total - 1, *rng.integers(total, size=rng.integers(1, 4))]
    rng.shuffle(returned)

    def f(a: Any, b: Any) -> list[Any]:
        values = [a, b, *parameters]
        for op, places in program:
            values.append(op(*[values[place] for place in places]))
        return [values[place] for place in returned]

    return f


def random_use(rng: Any) -> Callable[[list[Any], Any, Any], Any]:
    """Returns a scalar function of what the first function returned and of its arguments, which uses some of them many times."""
    uses = [(rng.integers(99), UNARY[rng.integers(len(UNARY))], rng.integers(99)) for _ in range(rng.integers(2, 8))]
    weights = [pb.tensor(rng.standard_normal((SIDE, SIDE)), dtype="float32") for _ in uses]

    def use(found: list[Any], a: Any, b: Any) -> Any:
        values = [*found, a, b]
        for (place, op, other), w in zip(uses, weights):
            values.append(op(values[place % len(values)]) * w + values[other % len(values)])
        return sum([pb.sum(v * w) for v, w in zip(values[::-1], weights)])

    return use


@pytest.fixture(params=["machine", "everywhere"])
def mode(request: Any) -> Iterator[str]:
    if request.param == "everywhere" and (reason := pb.config.why_not()):
        pytest.skip(reason)
    before, pb.config.reproducible = pb.config.reproducible, request.param
    yield request.param
    pb.config.reproducible = before


def bits(values: Any) -> list[bytes]:
    return [x.numpy().tobytes() for x in values]


@pytest.mark.filterwarnings("ignore::pullback.errors.ZeroGradientWarning")
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("aggregation", ["accumulate", "add_n", "tree"])
def test_a_checkpoint_has_the_bits_of_the_function(aggregation: Any, captured: bool, mode: str) -> None:
    for seed in range(24):
        rng = np.random.default_rng(seed)
        a, b = [pb.tensor(rng.standard_normal((SIDE, SIDE)), dtype="float32") for _ in range(2)]
        w = pb.Parameter(rng.standard_normal((SIDE, SIDE)), dtype="float32")
        inner, outer, use = random_function(rng, [w]), random_function(rng, [w, w.T if rng.random() < 0.2 else w]), random_use(rng)

        def gradients(wrap: Any, inner: Any = inner, outer: Any = outer, use: Any = use, w: Any = w) -> Any:
            def step(x: Any, y: Any) -> Any:
                with pb.GradientTape() as tape:
                    tape.watch((x, y))
                    first = wrap(inner)(x, pb.sin(y))
                    second = wrap(lambda x, y: [*wrap(outer)(y, x), x])(first[0], first[-1])
                    loss = use([*first, *second], x, y)
                return [loss, *tape.gradient(loss, [x, y, w], unconnected="zero", aggregation=aggregation)]

            return pb.capture(step) if captured else step

        plain, ours = gradients(lambda f: f), gradients(pb.checkpoint)
        for _ in range(1 + captured):
            assert bits(ours(a, b)) == bits(plain(a, b)), f"seed {seed}"


@pytest.mark.filterwarnings("ignore::pullback.errors.ZeroGradientWarning")
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_a_scan_has_the_bits_of_the_loop(captured: bool, mode: str) -> None:
    for seed in range(16):
        rng = np.random.default_rng(seed)
        carry, w = rng.standard_normal((SIDE, SIDE)), pb.Parameter(rng.standard_normal((SIDE, SIDE)), dtype="float32")
        xs, weights = rng.standard_normal((2, 5, SIDE, SIDE))
        body = random_function(rng, [w])

        def step(h: Any, x: Any, body: Any = body) -> Any:
            *found, last = body(h, x)
            return pb.tanh(last) if last is not h else h, [last, *found]

        def loop(h: Any, xs: Any, step: Any = step) -> Any:
            outputs = []
            for k in range(5):
                h, y = step(h, xs[k])
                outputs.append(y)
            return h, [pb.stack(column) for column in zip(*outputs)]

        def gradients(run: Callable[[Any, Any], Any], w: Any = w, weights: Any = weights) -> Any:
            def of(h: Any, data: Any) -> Any:
                with pb.GradientTape() as tape:
                    tape.watch((h, data))
                    last, ys = run(pb.sin(h), data)
                    loss = pb.sum(last * last) + sum([pb.sum(y * weights) for y in ys])
                return [loss, *tape.gradient(loss, [h, data, w], unconnected="zero")]

            return pb.capture(of) if captured else of

        arguments = pb.tensor(carry, dtype="float32"), pb.tensor(xs, dtype="float32")
        wanted = bits(gradients(loop)(*arguments))
        for checkpoint in (False, 1, 2, 3, True):
            run = gradients(lambda h, xs, step=step, checkpoint=checkpoint: pb.scan(step, h, xs, checkpoint=checkpoint))
            for _ in range(1 + captured):
                assert bits(run(*arguments)) == wanted, (seed, checkpoint)


@pytest.mark.filterwarnings("ignore::pullback.errors.ZeroGradientWarning")
def test_examples_have_the_bits_of_the_function() -> None:
    """In both orders of gradient and vmap."""
    for seed in range(16):
        rng = np.random.default_rng(seed)
        xs = pb.tensor(rng.standard_normal((3, SIDE, SIDE)), dtype="float32")
        f, use = random_function(rng, [pb.tensor(rng.standard_normal((SIDE, SIDE)), dtype="float32")]), random_use(rng)

        def loss(wrap: Any, f: Any = f, use: Any = use) -> Callable[[Any], Any]:
            return lambda a: use(wrap(f)(a, pb.sin(a)), a, a)

        ways = [
            lambda g: pb.vmap(pb.grad(g)),
            lambda g: pb.grad(lambda all_of_them: pb.sum(pb.vmap(g)(all_of_them))),
            lambda g: pb.jacobian(lambda a: pb.stack([g(a), g(a * a)]), mode="reverse"),
        ]
        for way, x in zip(ways, (xs, xs, xs[0])):
            assert bits([way(loss(pb.checkpoint))(x)]) == bits([way(loss(lambda f: f))(x)]), seed


def test_a_constant_that_the_function_returns_is_no_way_to_its_arguments() -> None:
    for wrap in (lambda f: f, pb.checkpoint):
        with pb.GradientTape() as tape:
            x = pb.tensor([0.5, 0.25])
            tape.watch(x)
            y, constant = wrap(lambda x: (x * x, pb.stop_gradient(x * x)))(x)
            loss = pb.sum(constant)
        assert (tape.knows(y), tape.knows(constant)) == (True, False)
        with pytest.raises(pb.UnconnectedError):
            tape.gradient(loss, x)


def test_what_a_function_has_not_made_is_returned_as_it_is() -> None:
    constant, p = pb.tensor([1.0, 2.0]), pb.Parameter([3.0, 4.0])
    with pb.GradientTape() as tape:
        x = pb.tensor([0.5, 0.25])
        tape.watch(x)
        same, twice, again, number, parameter = pb.checkpoint(lambda x: (x, z := x * p, z, constant, p))(x)
        loss = pb.sum(twice * again)
    assert (same is x, twice is again, number is constant, parameter is p) == (True, True, True, True)
    gx, gp = tape.gradient(loss, [x, p])
    np.testing.assert_allclose(gx.numpy(), 2 * x.numpy() * p.numpy() ** 2)
    np.testing.assert_allclose(gp.numpy(), 2 * x.numpy() ** 2 * p.numpy())
