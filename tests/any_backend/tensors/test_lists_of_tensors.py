"""A list of tensors is a stack of them wherever a function takes an array: values, gradients, batches, recordings, dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from list_calls import CASES

pytestmark = pytest.mark.filterwarnings("ignore::pullback.ZeroGradientWarning")


def listed(x: Any) -> Any:
    """Returns the tensor as nested lists of 0-d tensors."""
    return [listed(row) for row in x] if x.ndim else x


def rows(x: Any) -> Any:
    """Returns the tensor as a tuple of its rows, the first of them a list with a number in it."""
    return tuple(x) if x.ndim else x


def total(f: Any, xs: Any, make: Any = lambda x: x, only: int | None = None) -> Any:
    """Returns a sum over the results of f, of a list for each argument (or for one), and over the arguments themselves."""
    y = f(*[make(x) if only in (None, i) else x for i, x in enumerate(xs)])
    results = [pb.sum(pb.sin(leaf.astype(pb.float64))) for leaf in pb.tree.leaves(y)]
    return sum(results) + sum([pb.sum(x * x) for x in xs if x.dtype == pb.float64])


@pytest.mark.parametrize("make", [listed, rows])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_stack(name: str, make: Any) -> None:
    f, arrays = CASES[name]
    xs = [pb.tensor(x) for x in arrays]
    which = tuple([i for i, x in enumerate(xs) if x.dtype == pb.float64])
    if not which:
        np.testing.assert_array_equal(host(f(*[make(x) for x in xs])), host(f(*xs)))
        return
    for only in (None, *range(len(xs))):
        found = pb.value_and_grad(lambda *xs, only=only: total(f, xs, make, only), which)(*xs)
        wanted = pb.value_and_grad(lambda *xs: total(f, xs), which)(*xs)
        for a, b in zip(pb.tree.leaves(found), pb.tree.leaves(wanted)):
            np.testing.assert_allclose(host(a), host(b), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("way", ["captured", "vmap", "jvp", "hessian"])
@pytest.mark.parametrize("name", [name for name, (_, arrays) in CASES.items() if arrays[0].dtype == float])
def test_transforms(name: str, way: str) -> None:
    f, arrays = CASES[name]
    xs = [pb.tensor(x) for x in arrays]
    if name == "arange" and way in ("captured", "vmap"):
        return  # its length depends on the values
    lists, stacks = [lambda x, make=make: total(f, (x, *xs[1:]), make) for make in (listed, lambda x: x)]
    run = {
        "captured": lambda g: pb.capture(pb.grad(g))(xs[0]),
        "vmap": lambda g: pb.vmap(pb.grad(g))(pb.stack([xs[0], xs[0] * 1.01])),
        "jvp": lambda g: pb.jvp(g, (xs[0],), (xs[0] * 0.7,)),
        "hessian": lambda g: pb.hessian(g)(xs[0]),
    }[way]
    for a, b in zip(pb.tree.leaves(run(lists)), pb.tree.leaves(run(stacks))):
        np.testing.assert_allclose(host(a), host(b), rtol=1e-12, atol=1e-14)


NUMBERS = {"full": lambda a: pb.full(3, a), "full_like": lambda a: pb.full_like(pb.ones(3, dtype=pb.float64), a),
           "linspace": lambda a: pb.linspace(0, a, 4), "linspace without end": lambda a: pb.linspace(a, 5, 4, endpoint=False),
           "arange": lambda a: pb.arange(a, 9.1, 2 * a), "pad": lambda a: pb.pad(pb.ones(2, dtype=pb.float64), 1, value=a),
           "normal": lambda a: pb.random.Generator(0).normal((4,), a, a * a, dtype=pb.float64),
           "normal of lists": lambda a: pb.random.Generator(0).normal((2,), [a, 1.0], [1.0, a], dtype=pb.float64),
           "uniform": lambda a: pb.random.Generator(0).uniform((4,), -a, a, dtype=pb.float64),
           "truncated_normal": lambda a: pb.random.Generator(0).truncated_normal((4,), a, a, dtype=pb.float64)}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_are_tensors_get_gradients(name: str) -> None:
    function = lambda a: pb.sum(NUMBERS[name](a).astype(pb.float64) ** 2) * a
    a = pb.tensor(2.0, dtype=pb.float64)
    wanted = (host(function(a + 1e-4)) - host(function(a - 1e-4))) / 2e-4
    for found in (pb.grad(function)(a), pb.jvp(function, (a,), (pb.ones_like(a),))[1]):
        np.testing.assert_allclose(host(found), wanted, rtol=1e-5)
    if name in ("full", "full_like", "linspace", "pad"):  # examples draw other numbers, and arange reads its length
        np.testing.assert_allclose(host(pb.vmap(pb.grad(function))(pb.stack([a, a]))), [wanted] * 2, rtol=1e-5)


def test_numbers_that_are_tensors_give_what_numbers_give() -> None:
    a = pb.tensor(0.3)
    for found, wanted in [
        (pb.full((2, 3), a), pb.full((2, 3), 0.3)),
        (pb.full_like(pb.ones(2, dtype="float16"), a), pb.full(2, 0.3, dtype="float16")),
        (pb.full(2, pb.tensor(True)), pb.full(2, True)), (pb.full(2, pb.tensor([7])), pb.full(2, 7)),
        (pb.arange(pb.tensor(2), 9, pb.tensor(3)), pb.arange(2, 9, 3)), (pb.arange(pb.tensor(5)), pb.arange(5)),
        (pb.arange(pb.tensor(5, dtype="int16")), pb.arange(5, dtype="int16")),
        (pb.linspace(pb.tensor(0), pb.tensor(1), 5), pb.linspace(0, 1, 5)),
        (pb.pad(pb.ones((2, 2)), 1, constant_values=[a, 1.0]), pb.pad(pb.ones((2, 2)), 1, constant_values=[0.3, 1.0])),
    ]:
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(host(found), host(wanted))


def test_the_dtype_is_that_of_an_op_on_the_tensors_and_numbers() -> None:
    half, single, double = [pb.tensor(1.0, dtype=name) for name in ("float16", "float32", "float64")]
    for items, wanted in [
        ([single, 2], pb.float32), ([half, 2.5], pb.float16), ([single, np.float64(2)], pb.float32), ([half, single], pb.float32),
        ([single, np.ones((), "f8")], pb.float64), ([single, double], pb.float64), ([pb.tensor(1), 2.5], pb.float32),
        ([pb.tensor(True), 2], pb.int64), ([pb.tensor(np.uint8(1)), 255], pb.uint8),
        ([pb.tensor(1.0, dtype="bfloat16"), 1], pb.bfloat16),
    ]:
        assert pb.tensor(items).dtype == wanted
        assert pb.tensor(items, dtype="float64").dtype == pb.float64
    with pytest.raises(pb.DTypeError, match="256"):
        pb.tensor([pb.tensor(np.uint8(1)), 256])


def test_lists_that_do_not_fit_together() -> None:
    a = pb.ones(2)
    for lists in ([a, 1.0], [a, [1.0]], [[a], a], [a, pb.ones(3)]):
        with pytest.raises(pb.ShapeError, match="the nested lists do not have equal lengths: their items have the shapes"):
            pb.sum(lists)
    with pytest.raises(pb.DTypeError, match="a str is not made of numbers"):
        pb.sum([a[0], "1"])
    with pytest.raises(ValueError, match="needs a copy"):
        pb.asarray([a], copy=False)
    assert pb.tensor([[], []]).shape == (2, 0)
    assert pb.tensor([a[:0], a[:0]]).shape == (2, 0)


def test_a_parameter_in_a_list_is_a_snapshot() -> None:
    p = pb.Parameter([1.0, 2.0])
    listed_of_p, filled = pb.tensor([p]), pb.full(2, p[0])
    p.assign([5.0, 6.0])
    np.testing.assert_array_equal(host(listed_of_p), [[1.0, 2.0]])
    np.testing.assert_array_equal(host(filled), [1.0, 1.0])


def test_indices_in_a_list_may_be_tensors() -> None:
    x, i = pb.arange(5.0), pb.tensor(3)
    f = lambda x, i: x[[i, 0]] + pb.take(x, [i, 1])
    for found in (f(x, i), pb.capture(f)(x, i), pb.vmap(f, in_axes=(None, 0))(x, pb.stack([i, i]))[1]):
        np.testing.assert_array_equal(host(found), [6.0, 1.0])


def test_draws_whose_parameters_are_tensors_have_the_numbers_of_a_seed() -> None:
    for name, first, second in (("normal", 0.5, 2.0), ("uniform", -1.0, 2.0), ("truncated_normal", 0.5, 2.0)):
        by_numbers = getattr(pb.random.Generator(1), name)((50,), first, second)
        by_tensors = getattr(pb.random.Generator(1), name)((50,), pb.full((50,), first), second)
        np.testing.assert_allclose(host(by_tensors), host(by_numbers), rtol=1e-6, atol=1e-6)
    drawn = pb.random.Generator(1).bernoulli((2, 4000), pb.tensor([[0.2], [0.9]]))
    np.testing.assert_allclose(host(drawn).mean(1), [0.2, 0.9], atol=0.03)
    with pytest.raises(pb.ShapeError, match=r"normal: the parameters have the shape \(2, 3\), which does not broadcast to \(3,\)"):
        pb.random.normal((3,), pb.ones((2, 1)))
