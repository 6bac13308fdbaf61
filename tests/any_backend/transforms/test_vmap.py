"""vmap: equal to a Python loop over the examples for every op, with tapes inside and around it, and nested in itself."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import call, close, example, host, ops, rng_for, takes
from pullback import nn
from pullback.autodiff.primitive import ZERO, Op
from pullback.ops.batch_rules import no_rule
from pullback.tensors import dtypes
from pullback.tensors.tensor import Tensor

SIZE = 3
DRAWS = [op for op in ops() if op.names[:1] == ("state",)]  # Tests below cover random numbers.
ALL = [op for op in ops() if op not in DRAWS and op.name not in ("to_device",)]
DIFFERENTIABLE = [op for op in ALL if op.pullback is not None and op.pullback is not ZERO]


def examples(op: Op, count: int) -> tuple[list[list[np.ndarray[Any, Any]]], tuple[Any, ...]]:
    """Returns the inputs of `count` calls and their common parameters.

    Integers (indices, labels) are rolled by one position from call to call.
    """
    rng, calls, params = rng_for(op), [], ()
    for k in range(count):
        inputs, params = example(op, np.float64 if "float64" in takes(op) else np.int64, rng)
        calls.append([np.asarray(x) if dtypes.is_float(np.asarray(x).dtype) else np.roll(x, k, -1) for x in inputs])
    if op.name == "dropout":
        for inputs in calls:
            inputs[1] = calls[0][1]
    return calls, params


def batched_inputs(op: Op, count: int) -> list[tuple[bool, ...]]:
    """Returns every choice of inputs that have a batch axis, except none. The state of a generator has no batch axis."""
    states = [op.names[i] == "state" for i in range(min(count, len(op.names)))] + [False] * count
    return [on for on in product([False, True], repeat=count) if any(on) and not any(b and s for b, s in zip(on, states))]


def axes(on: tuple[bool, ...]) -> tuple[int | None, ...]:
    return tuple([0 if b else None for b in on])


def loop(f: Any, on: tuple[bool, ...], arrays: list[Any]) -> Any:
    """Applies f to each example in a Python loop and stacks the results."""
    size = next(len(x) for x, b in zip(arrays, on) if b)
    return np.stack([host(f(*[pb.tensor(x[k] if b else x) for x, b in zip(arrays, on)])) for k in range(size)])


def stacked(calls: list[list[Any]], on: tuple[bool, ...]) -> list[Any]:
    return [np.stack([inputs[i] for inputs in calls]) if b else calls[0][i] for i, b in enumerate(on)]


def tensors(arrays: list[Any]) -> list[Tensor]:
    return [pb.tensor(x) for x in arrays]


@pytest.mark.parametrize("op", ops(), ids=str)
def test_every_op_has_a_batching_rule(op: Op) -> None:
    assert op.batch is not no_rule


@pytest.mark.parametrize("op", ALL, ids=str)
def test_vmap_is_a_loop(op: Op) -> None:
    calls, params = examples(op, SIZE)

    def f(*inputs: Tensor) -> Tensor:
        return call(op, inputs, params)

    for on in batched_inputs(op, len(calls[0])):
        arrays = stacked(calls, on)
        got = pb.vmap(f, in_axes=axes(on))(*tensors(arrays))
        wanted = loop(f, on, arrays)
        assert got.shape == wanted.shape
        close(got, wanted, rtol=1e-12)


def gradients(op: Op, params: Any, weights: Any) -> Any:
    """Returns a function that computes the gradient of a weighted sum of the result for each floating-point input."""

    def f(*inputs: Tensor) -> list[Tensor]:
        free = [x for x, rule in zip(inputs, op.rules * len(inputs) if op.joint else op.rules) if dtypes.is_float(x.dtype) and rule]
        with pb.GradientTape() as tape:
            tape.watch(free)
            y = pb.sum(call(op, inputs, params) * weights)
        return tape.gradient(y, free, unconnected="zero")

    return f


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_vmap_of_gradients_is_a_loop_over_gradients(op: Op) -> None:
    calls, params = examples(op, SIZE)
    weights = rng_for(op).standard_normal(call(op, tensors(calls[0]), params).shape)
    f = gradients(op, params, weights)
    for on in batched_inputs(op, len(calls[0])):
        arrays = stacked(calls, on)
        got = pb.vmap(f, in_axes=axes(on))(*tensors(arrays))
        for i, gradient in enumerate(got):
            close(gradient, loop(lambda *inputs, i=i: f(*inputs)[i], on, arrays), rtol=1e-10)


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_gradients_of_vmap_are_those_of_each_example(op: Op) -> None:
    calls, params = examples(op, SIZE)
    weights = rng_for(op).standard_normal(call(op, tensors(calls[0]), params).shape)
    on = (True,) * len(calls[0])
    if op.name == "dropout":
        on = (True, False)
    arrays = stacked(calls, on)
    inputs = tensors(arrays)
    rules = op.rules * len(inputs) if op.joint else op.rules
    free = [i for i, x in enumerate(inputs) if dtypes.is_float(x.dtype) and rules[i]]
    with pb.GradientTape() as tape:
        tape.watch([inputs[i] for i in free])
        y = pb.sum(pb.vmap(lambda *xs: call(op, xs, params), in_axes=axes(on))(*inputs) * weights)
    got = tape.gradient(y, [inputs[i] for i in free], unconnected="zero")
    f = gradients(op, params, weights)
    for i, gradient in enumerate(got):
        close(gradient, loop(lambda *xs, i=i: f(*xs)[i], on, arrays), rtol=1e-10)


@pytest.mark.parametrize("op", ALL, ids=str)
def test_vmap_of_vmap_is_two_loops(op: Op) -> None:
    calls, params = examples(op, 2 * SIZE)

    def f(*inputs: Tensor) -> Tensor:
        return call(op, inputs, params)

    count = len(calls[0])
    for outer, inner in product(batched_inputs(op, count), repeat=2):
        if count > 2 and (not all(outer) or not all(inner)) and sum(outer) + sum(inner) != count:
            continue  # For three inputs, not every choice is tested.
        both = [np.stack([np.stack([calls[SIZE * a + b][i] for b in range(SIZE)]) for a in range(2)]) for i in range(count)]
        arrays = [x if a and b else x[:, 0] if a else x[0] if b else x[0, 0] for x, a, b in zip(both, outer, inner)]
        got = pb.vmap(pb.vmap(f, in_axes=axes(inner)), in_axes=axes(outer))(*tensors(arrays))
        rows = [loop(f, inner, [x[a] if b else x for x, b in zip(arrays, outer)]) for a in range(2)]
        close(got, np.stack(rows), rtol=1e-12)


# ---- composition


def test_a_tape_inside_gives_a_gradient_per_example() -> None:
    rng = np.random.default_rng(0)
    w = pb.Parameter(rng.standard_normal((4, 3)))
    xs = pb.tensor(rng.standard_normal((5, 3)))

    def one(x: Tensor) -> Tensor:
        with pb.GradientTape() as tape:
            loss = pb.sum(pb.tanh(w @ x))
        return tape.gradient(loss, w)

    slope = 1 - np.tanh(host(xs) @ host(w).T) ** 2
    close(pb.vmap(one)(xs), slope[:, :, None] * host(xs)[:, None, :], rtol=1e-12)


def test_second_derivatives_pass_through_a_vmap_between_two_tapes() -> None:
    xs = pb.tensor(np.linspace(-1, 1, 5))
    with pb.GradientTape() as outer:
        outer.watch(xs)

        def slope(x: Tensor) -> Tensor:
            with pb.GradientTape() as inner:
                inner.watch(x)
                y = pb.sin(x) * x
            return inner.gradient(y, x)

        total = pb.sum(pb.vmap(slope)(xs))
    x = host(xs)
    close(outer.gradient(total, xs), 2 * np.cos(x) - x * np.sin(x), rtol=1e-12)


def test_gradients_inside_of_two_vmaps_are_those_of_each_example() -> None:
    rng = np.random.default_rng(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(pb.float64)
    params, labels = model.parameters(), rng.integers(0, 3, (2, 3))
    xs = rng.standard_normal((2, 3, 4))

    def f(scale: Tensor, x: Tensor, label: Tensor) -> Any:
        return pb.grad(lambda params, x: nn.cross_entropy(scale * model(x), label), argnums=(0, 1))(params, x)

    scales = np.array([0.5, 2.0])
    inner = pb.vmap(f, in_axes=(None, 0, 0))
    got = pb.vmap(inner)(pb.tensor(scales), pb.tensor(xs), pb.tensor(labels))
    for i, j in product(range(2), range(3)):
        alone = f(pb.tensor(scales[i]), pb.tensor(xs[i, j]), pb.tensor(labels[i, j]))
        for a, b in zip([*got[0], got[1]], [*alone[0], alone[1]]):
            close(host(a)[i, j], host(b), rtol=1e-10)


@pytest.mark.parametrize("on", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("turned", [False, True])
def test_products_with_a_vector_and_their_gradients(on: tuple[bool, bool], turned: bool) -> None:
    """The matrix and the vector may each be batched or shared, and the vector stands on the right or on the left."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((SIZE, 4, 5) if on[0] else (4, 5)), rng.standard_normal((SIZE, 5) if on[1] else 5)]

    def f(a: Tensor, x: Tensor) -> Any:
        y = x @ a.mT if turned else a @ x
        return [y, *pb.grad(lambda a, x: pb.sum(pb.tanh(x @ a.mT if turned else a @ x)), argnums=(0, 1))(a, x)]

    got = pb.vmap(f, in_axes=axes(on))(*tensors(arrays))
    for i, y in enumerate(got):
        close(y, loop(lambda *inputs, i=i: f(*inputs)[i], on, arrays), rtol=1e-12)
    y, ga, gx = [np.asarray(host(t)) for t in f(*tensors([x[0] if b else x for x, b in zip(arrays, on)]))]
    a, x = [v[0] if b else v for v, b in zip(arrays, on)]
    slope = 1 - np.tanh(a @ x) ** 2
    for mine, known in ((y, a @ x), (ga, np.outer(slope, x)), (gx, a.T @ slope)):
        close(mine, known, rtol=1e-12)


def test_axes_and_structures() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 5)), rng.standard_normal((5, 3))
    got = pb.vmap(lambda pair, k: {"dot": pair["a"][0] * k + pair["b"], "k": k}, in_axes=({"a": 1, "b": 0}, None),
                  out_axes={"dot": 1, "k": 0})({"a": pb.tensor(a), "b": pb.tensor(b)}, 2.0)
    close(got["dot"], (a[0][:, None] * 2 + b).T)
    assert got["k"].shape == (5,)
    close(pb.vmap(lambda x, *, y: x + y)(pb.tensor(b), y=pb.tensor(b)), 2 * b)


def test_an_unbatched_matrix_does_not_meet_the_batch_axis() -> None:
    x, m = np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3) * 10
    close(pb.vmap(lambda v: v + pb.tensor(m))(pb.tensor(x)), x[:, None, :] + m)


@pytest.mark.parametrize("how", ["uniform", "normal", "truncated_normal", "bernoulli", "permutation", "dropout"])
def test_random_numbers_differ_from_example_to_example(how: str) -> None:
    stream = pb.random.Generator(3)

    def draw(x: Tensor) -> Tensor:
        if how == "dropout":
            return nn.functional.dropout(pb.ones(64) + 0 * x, 0.5, generator=stream)
        return stream.permutation(64) if how == "permutation" else getattr(stream, how)((64,))

    rows = host(pb.vmap(draw)(pb.zeros(4)))
    assert len({row.tobytes() for row in rows}) == 4
    if how == "permutation":
        assert (np.sort(rows, axis=1) == np.arange(64)).all()
    nested = host(pb.vmap(pb.vmap(draw))(pb.zeros((2, 3))))
    assert len({row.tobytes() for row in nested.reshape(6, -1)}) == 6


def test_the_backward_pass_of_dropout_has_the_mask_of_each_example() -> None:
    xs = pb.ones((4, 32))

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = nn.functional.dropout(x, 0.5)
            total = pb.sum(y)
        return y, tape.gradient(total, x)

    y, gradient = pb.vmap(f)(xs)
    assert (host(y) == host(gradient)).all()
    assert len({row.tobytes() for row in host(y)}) == 4


def test_indices_of_each_example() -> None:
    table = np.arange(24.0).reshape(4, 3, 2)
    i, j = np.array([0, 3, 1, 1, -1]), np.array([2, 0, -3, 1, 1])
    f = pb.vmap(lambda i, j: pb.tensor(table)[i, j])
    close(f(pb.tensor(i), pb.tensor(j)), table[i, j])
    close(pb.vmap(lambda x, i: x.at[i].set(0.0))(pb.tensor(table), pb.tensor(i[:4] % 3)),
          np.stack([np.where(np.arange(3)[:, None] == k % 3, 0.0, x) for x, k in zip(table, i)]))


def test_an_index_out_of_range_of_one_example_is_found_and_reads_no_other_example() -> None:
    x, i = pb.tensor(np.arange(12.0).reshape(4, 3)), pb.tensor(np.array([0, 2, 3, 1]))
    for f in (lambda x, i: x[i], lambda x, i: x.at[i].set(0.0), lambda x, i: pb.one_hot(i, 3)):
        with pytest.raises(IndexError, match="out of range"):
            host(pb.vmap(f)(x, i))


# ---- refusals


def test_reading_an_element_is_refused_in_words() -> None:
    for read in (lambda x: x.item(), lambda x: bool(x > 0), lambda x: x.numpy(), lambda x: np.asarray(x), float, pb.unique_values):
        with pytest.raises(pb.VmapError, match="differ from example to example"):
            pb.vmap(read)(pb.ones(3))
    pb.exp(pb.ones(3))  # The failed call leaves no state behind.


def test_lengths_and_axes_are_checked() -> None:
    f = pb.vmap(lambda x, y: x + y)
    with pytest.raises(pb.ShapeError, match="argument 0 has 3, argument 1 has 4"):
        f(pb.ones(3), pb.ones(4))
    with pytest.raises(pb.ShapeError, match=r"shape \(\), and no axis 0"):
        f(pb.ones(3), pb.tensor(1.0))
    with pytest.raises(pb.ShapeError, match="no argument has an axis"):
        f(1.0, 2.0)
    with pytest.raises(pb.ShapeError, match="in_axes has 1 entries for 2"):
        pb.vmap(lambda x, y: x, in_axes=(0,))(pb.ones(2), pb.ones(2))
    with pytest.raises(pb.ShapeError, match="does not have the structure"):
        pb.vmap(lambda x: x, in_axes=({"a": 0},))([pb.ones(2)])
    with pytest.raises(pb.VmapError, match="out_axes is None"):
        pb.vmap(lambda x: x, out_axes=None)(pb.ones(2))


def test_keyword_arguments_come_in_any_order() -> None:
    x = pb.tensor([[1.0, 2.0], [3.0, 4.0]])
    y = pb.vmap(lambda x, b, a: x * a + b["n"], in_axes=1)(x, b={"n": pb.tensor([10.0, 20.0]), "m": 3.0}, a=2.0)
    np.testing.assert_array_equal(host(y), [[12.0, 16.0], [24.0, 28.0]])


def test_a_parameter_cannot_be_made_of_one_example() -> None:
    for make in (nn.Linear(3, 2).weight.assign, pb.Parameter):
        with pytest.raises(pb.VmapError, match=r"value.* differs from example to example.* a Parameter holds one value"):
            pb.vmap(make)(pb.ones((4, 2, 3)))
    with pytest.raises(pb.VmapError, match="Make Parameters and layers outside"):
        pb.vmap(lambda x: nn.GRU(3, 5)(x)[0])(pb.ones((4, 2, 3)))
    shared = pb.vmap(lambda x: x + pb.Parameter([1.0, 2.0]))(pb.ones((4, 2)))  # the same for every example
    np.testing.assert_array_equal(host(shared), [[2.0, 3.0]] * 4)


def test_a_value_that_left_its_vmap_is_refused() -> None:
    kept: list[Tensor] = []
    pb.vmap(lambda x: kept.append(x) or x)(pb.ones(3))
    with pytest.raises(pb.VmapError, match="after its vmap had ended"):
        kept[0] + 1


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_a_gradient_inside_keeps_the_dtype_of_its_source(dtype: str) -> None:
    """The conversions of a promotion are recorded, so that the gradient is converted back."""

    def slopes(s: Any, x: Any) -> Any:
        with pb.GradientTape() as tape:
            sources = [s, x] if pb.isdtype(s.dtype, "real floating") else [x]
            tape.watch(sources)
            y = pb.sum(pb.minimum(x * s, s))
        return tape.gradient(y, sources)

    s = pb.tensor(np.random.default_rng(0).integers(-3, 3, (2, 5)), dtype=dtype)
    x = pb.tensor(np.random.default_rng(1).standard_normal((4, 5)), dtype="float32")
    together = pb.vmap(slopes, in_axes=(0, None))(s, x)
    for i in range(2):
        for one, all_ in zip(slopes(s[i], x), together, strict=True):
            assert one.dtype == all_.dtype
            assert np.array_equal(host(one), host(all_[i]))
            assert np.array_equal(np.signbit(host(one)), np.signbit(host(all_[i])))
