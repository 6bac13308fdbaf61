"""Nested structures: None is an empty node, and errors name the path to a leaf."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest

import pullback as pb
from conftest import close
from pullback import nn, optim, tree

W = pb.tensor([1.0, 2.0])
HOLED: Any = {"b": [W, None], "c": None}


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any


def loss(p: Any) -> Any:
    return pb.sum(pb.square(p["b"][0]))


def holed(p: Any) -> Any:
    return {"y": 3 * p["b"][0], "z": None}


def same(got: Any, wanted: Any) -> None:
    """Asserts that structure and numbers are equal, with None at equal places."""
    assert tree.structure(got) == tree.structure(wanted)
    for x, y in zip(tree.leaves(got), tree.leaves(wanted)):
        close(x, y)


def test_none_is_an_empty_node_of_every_transform() -> None:
    gradient = {"b": [2 * W, None], "c": None}
    same(pb.grad(loss)(HOLED), gradient)
    same(pb.value_and_grad(loss)(HOLED)[1], gradient)
    out, pullback = pb.vjp(holed, HOLED)
    same(out, {"y": 3 * W, "z": None})
    same(pullback({"y": W, "z": None})[0], {"b": [3 * W, None], "c": None})
    same(pb.jvp(holed, (HOLED,), (HOLED,))[1], {"y": 3 * W, "z": None})
    same(pb.linearize(holed, HOLED)[1](HOLED), {"y": 3 * W, "z": None})
    same(pb.hvp(loss, HOLED, HOLED), gradient)
    assert pb.hessian(loss)(HOLED)["b"][1] is None
    close(pb.hessian(loss)(HOLED)["b"][0]["b"][0], 2 * np.eye(2))
    same(pb.vmap(holed)(HOLED), {"y": 3 * W, "z": None})
    same(pb.vmap(holed, in_axes=({"b": [0, None], "c": None},))(HOLED), {"y": 3 * W, "z": None})
    assert pb.check_gradients(loss, [{"b": [np.array([1.0, 2.0]), None]}]) < 1e-8
    same(pb.checkpoint(holed)(HOLED), {"y": 3 * W, "z": None})
    same(pb.memo(holed)(HOLED), {"y": 3 * W, "z": None})


def test_none_is_an_empty_node_of_a_loop_and_of_per_example_gradients() -> None:
    last, each = pb.scan(lambda c, x: ({"a": c["a"] + x["x"], "n": None}, {"y": c["a"], "n": None}),
                         {"a": pb.tensor(0.0), "n": None}, {"x": W, "n": None})
    same((last, each), ({"a": pb.tensor(3.0), "n": None}, {"y": pb.tensor([0.0, 1.0]), "n": None}))
    assert pb.scan(lambda c, x: (c, None), W, None, length=2)[1] is None
    product, x = (lambda p, x: pb.sum(p["b"][0] * x)), pb.ones((3, 2))
    same(pb.per_example_grad(product)(HOLED, x), {"b": [x, None], "c": None})
    close(pb.per_example_norm(product)(HOLED, x), [2.0, 2.0, 2.0])
    same(pb.weighted_grad(product, pb.ones(3))(HOLED, x), {"b": [pb.tensor([3.0, 3.0]), None], "c": None})


def test_none_is_an_empty_node_of_sources_and_targets_of_a_tape() -> None:
    p = pb.Parameter([1.0, 2.0])
    with pb.GradientTape(persistent=True) as tape:
        tape.watch([None, {"a": None}])
        y = {"loss": pb.sum(p * p), "none": None}
    same(tape.gradient(y, {"w": p, "bias": None}), {"w": pb.tensor([2.0, 4.0]), "bias": None})
    same(tape.gradient(y, [p, None], {"loss": pb.tensor(2.0), "none": None}), [pb.tensor([4.0, 8.0]), None])
    assert tape.gradient(y, None) is None
    for nothing in (None, [], {"a": None}):
        with pytest.raises(pb.TapeError, match=r"no target.*return"):
            tape.gradient(nothing, p)


@pytest.mark.usefixtures("on_cpu", "native")
def test_none_is_an_empty_node_of_a_captured_function() -> None:
    f = pb.capture(lambda p, mask: {"y": 3 * p["b"][0] if mask is None else mask * p["b"][0], "z": None})
    for _ in range(3):
        same(f(HOLED, None), {"y": 3 * W, "z": None})
        same(f(HOLED, W), {"y": W * W, "z": None})
    assert f.stats().captures == 2


def test_a_gradient_of_none_is_a_parameter_without_one_or_an_empty_node() -> None:
    p, q = pb.Parameter([1.0]), pb.Parameter([1.0])
    optim.SGD([p, q], lr=1.0).step([None, pb.ones(1)])
    close(p, [1.0])
    close(q, [0.0])
    optim.SGD({"weight": q, "bias": None}, lr=1.0).step({"weight": pb.ones(1), "bias": None})
    optim.SGD([q, None], lr=1.0).step([pb.zeros(1)])
    close(q, [-1.0])


def test_a_pullback_of_its_own_takes_and_returns_none() -> None:
    @pb.custom_gradient
    def twice(p: Any) -> Any:
        return {"y": 2 * p["b"][0], "z": None}, lambda g: {"b": [2 * g["y"], None], "c": None}

    close(pb.grad(lambda w: pb.sum(twice({"b": [w, None], "c": None})["y"]))(W), [2.0, 2.0])
    close(pb.grad(lambda w: pb.sum(twice({"b": [w, w], "c": None})["y"]))(W), [2.0, 2.0])  # The second has no gradient.


def test_a_tangent_may_be_none_where_a_value_is() -> None:
    f = lambda p: p["b"][0] * p["b"][1]
    close(pb.jvp(f, ({"b": [W, W]},), ({"b": [W, None]},))[1], [1.0, 4.0])


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"b": [W, 3]}, r'argument 0\["b"\]\[1\] has dtype int64.*astype'), ({"b": [W, "x"]}, r'argument 0\["b"\]\[1\] is a str'),
        (Pair(W, (W, object())), r"argument 0\.second\[1\] is a object"), ([W, np.arange(2)], r"argument 0\[1\] has dtype int64"),
        (nn.Linear(2, 1), r"argument 0 is a Linear.*module\.parameters\(\)"), (["a"], r"argument 0\[0\] is a str"),
    ],
)
def test_errors_name_the_way_to_a_leaf(argument: Any, words: str) -> None:
    for name, ask in {
        "grad": pb.grad(lambda p: 0.0), "vjp": lambda p: pb.vjp(lambda p: p, p), "jvp": lambda p: pb.jvp(lambda p: p, (p,), (p,)),
        "jacobian": pb.jacobian(lambda p: p), "per_example_norm": lambda p: pb.per_example_norm(lambda p, x: x)(p, W),
    }.items():
        with pytest.raises((pb.TapeError, pb.DTypeError), match=f"^{name}: {words}"):
            ask(argument)


def test_errors_name_the_argument_among_several() -> None:
    with pytest.raises(pb.TapeError, match=r'argument 2\["k"\] has dtype int64'):
        pb.grad(lambda *xs: 0.0, argnums=(0, -1))(W, W, {"k": 3})


def test_map_and_leaves() -> None:
    same(tree.map(lambda x, y: x + y, HOLED, HOLED), {"b": [2 * W, None], "c": None})
    assert len(tree.leaves(HOLED)) == 1
    same(tree.map(lambda x: 2 * x, Pair(W, None)), Pair(2 * W, None))
    assert tree.map(lambda x: x, None) is None
    with pytest.raises(pb.ShapeError, match=r"structures .* differ"):
        tree.map(lambda x, y: x, HOLED, {"b": [W, W], "c": None})
    leaves, spec = tree.flatten(HOLED)
    same(tree.unflatten(spec, leaves), HOLED)


def test_a_message_shows_none_as_none() -> None:
    with pytest.raises(pb.ShapeError, match=r"structures \[\*, \*\] and \[\*, None\] differ"):
        pb.tree.map(lambda a, b: a, [1, 2], [1, None])
    assert [tree.shown(x) for x in (1, None, {"a": (None, 1)})] == ["*", "None", "{'a': (None, *)}"]


INSIDE = {  # functions of the module that other modules call and `dir(pb.tree)` does not show
    "with_nones": (lambda f: f({"b": [1, None], "a": (2,)}), [2, 1, None]),
    "in_order": (lambda f: f({"b": [1, None], "a": (2,)}), [1, 2]),
    "beside": (lambda f: f([1, (2, None)], [None, (4, None)]), [None, 4]),
    "paths": (lambda f: f({"b": [1, None, 2], "a": (2,)}), ['["a"][0]', '["b"][0]', '["b"][2]']),
    "named_leaves": (lambda f: f({"b": [1, None, 2], "a": (2,)}, "save"), [("a.0", 2), ("b.0", 1), ("b.2", 2)]),
    "structure": (lambda f: f([1, (2,)]) == f([3, (4,)]) != f([3, [4]]), True),
    "shown": (lambda f: f([1, (2,)]), "[*, (*,)]"),
    "prefix_leaves": (lambda f: f([0, 1], *reversed(tree.flatten([1, (2, 3)])), "axes"), [0, 1, 1]),
}


@pytest.mark.parametrize("name", INSIDE)
def test_a_function_for_the_package(name: str) -> None:
    call, wanted = INSIDE[name]
    assert name not in dir(tree)
    assert call(getattr(tree, name)) == wanted


class Point(NamedTuple):
    x: Any
    y: Any


TREES: list[Any] = [
    W, [W, W], (W,), [], {"b": W, "a": [W, None]}, Point(W, (1.0, 2)), Pair(W, {"k": 3.0}), [Pair(Point(1, None), [W])], None,
    [None], collections.OrderedDict(b=1.0, a=2.0), [[[W]], ()], "text", [nn.Linear(2, 1)],
]


@pytest.mark.parametrize("given", TREES, ids=lambda x: str(x)[:30])
def test_flatten_and_unflatten_are_inverse_and_map_keeps_the_structure(given: Any) -> None:
    found, spec = tree.flatten(given)
    assert tree.leaves(given) == found
    again = tree.unflatten(spec, found)
    assert type(again) is type(given)
    assert tree.structure(again) == tree.structure(given)
    assert all([x is y for x, y in zip(tree.leaves(again), found)])
    mapped = tree.map(lambda x: x, given)
    assert type(mapped) is type(given)
    assert tree.structure(mapped) == tree.structure(given)
    for count in (len(found) + 1, len(found) - 1):
        if count >= 0:
            with pytest.raises(pb.ShapeError, match=f"{count} leaves for a structure of {len(found)}"):
                tree.unflatten(spec, [W] * count)


def test_the_leaves_are_those_that_jax_finds() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    for given in ({"b": [1.0, None], "a": (2.0, {"z": 3.0, "c": 4.0})}, Point(1.0, [2.0, ()]), [[], {}, (None,)], 5.0, None):
        assert tree.leaves(given) == jax.tree.leaves(given)
        found, spec = tree.flatten(given)
        assert tree.unflatten(spec, [2 * x for x in found]) == jax.tree.map(lambda x: 2 * x, given)


def test_a_new_list_is_returned() -> None:
    given = [W, W]
    found, spec = tree.flatten(given)
    assert found is not given
    assert tree.unflatten(spec, found) is not found
    assert tree.map(lambda x: x, given) is not given
