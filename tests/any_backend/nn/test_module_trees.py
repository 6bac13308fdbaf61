"""Modules inside modules, lists and dicts. Each Parameter is found, named by its path, saved and loaded."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn, optim


class Nest(nn.Module):
    """A Module with Parameters and layers in attributes, and in lists, tuples and dicts."""

    def __init__(self) -> None:
        self.alone = pb.Parameter([1.0])
        self.several = [pb.Parameter([2.0]), {"deep": (pb.Parameter([3.0]), "text", None)}]
        self.named = {"a": pb.Parameter([4.0]), "layer": nn.Linear(2, 1, bias=False)}
        self.layers = [nn.Sequential(nn.Linear(1, 1, bias=False))]
        self.number = 5.0


PATHS = ["alone", "several.0", "several.1.deep.0", "named.a", "named.layer.weight", "layers.0.0.weight"]


def test_parameters_in_lists_and_dicts_are_found_and_named_by_their_path() -> None:
    net = Nest()
    assert [name for name, _ in net.named_parameters()] == PATHS
    assert sorted(net.state_dict()) == sorted(PATHS)
    assert len(net.parameters()) == 6
    assert net.parameters()[0] is net.alone


class _Array:
    """Another library's array that supports only NumPy's protocol."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._array


def test_a_state_may_be_of_tensors_or_of_arrays_of_any_library() -> None:
    net = Nest()
    state = {name: np.full(p.shape, k + 0.5, np.float32) for k, (name, p) in enumerate(net.named_parameters())}
    for wrap in (pb.tensor, np.asarray, _Array):
        other = Nest()
        other.load_state_dict({name: wrap(x) for name, x in state.items()})
        for name, p in other.named_parameters():
            np.testing.assert_array_equal(host(p), state[name])


def set_to(place: str, value: Any) -> Any:
    """Returns a function that assigns the value to `place`, an attribute or item of a Nest."""
    return lambda net: exec(f"net.{place} = value", {"net": net, "value": value})


@pytest.mark.parametrize("value", [pb.tensor([9.0]), np.ones(1), 9.0], ids=["tensor", "array", "number"])
@pytest.mark.parametrize("place", ["alone", "several", "several[0]", "several[1]['deep']", "named['a']", "named"])
@pytest.mark.parametrize("ask", [nn.Module.parameters, nn.Module.state_dict, lambda net: net.load_state_dict({}, strict=False)])
def test_a_parameter_that_something_else_took_the_place_of_is_not_lost_in_silence(ask: Any, place: str, value: Any) -> None:
    net = Nest()
    words = r"(?s)Nest\.(alone|several|named).* neither trained nor saved.*pb\.Parameter\(value\)"
    with pytest.raises(pb.PullbackError, match=words):
        ask(set_to(place, value)(net) or net)


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (set_to("several[0]", pb.Parameter([9.0])), 6),
        (set_to("several[0]", None), 5),
        (set_to("several", None), 4),
        (set_to("several[0]", nn.Linear(1, 1)), 7),
        (lambda net: net.several.insert(0, pb.ones(1)), 6),
        (lambda net: net.several.reverse(), 6),
        (lambda net: net.several.append(pb.Parameter([1.0])), 7),
        (lambda net: net.several.pop(), 5),
        (lambda net: [delattr(net, "several"), setattr(net, "several", [pb.ones(1), 2.0])], 4),
    ],
)
def test_parameters_in_a_list_may_come_and_go(change: Any, count: int) -> None:
    net = Nest()
    change(net)
    assert len(net.parameters()) == len(net.state_dict()) == count


def test_a_parameter_that_came_into_a_list_later_and_one_of_a_copy_are_not_lost_either() -> None:
    net = Nest()
    net.several.append(pb.Parameter([1.0]))
    assert len(net.parameters()) == 7
    for of in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        of.several[2] = pb.ones(1)
        with pytest.raises(pb.PullbackError, match=r"Nest\.several\.2 held a Parameter, and a Tensor"):
            of.parameters()


# ---- the items of a Sequential


def test_items_are_replaced_and_removed_as_in_pytorch(native: None) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    x = pb.tensor([[1.0, -2.0]])
    step = pb.capture(lambda x: net(x))
    step(x)
    net[1] = tanh = nn.Tanh()
    net[-1] = last = nn.Linear(3, 4)
    assert net[1] is tanh
    assert [path for path, _ in net.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    np.testing.assert_allclose(step(x).numpy(), last(pb.tanh(net[0](x))).numpy(), rtol=1e-6)
    del net[0]
    assert [*net] == [tanh, last]
    assert [*net.state_dict()] == ["1.weight", "1.bias"]
    del net[:1]
    assert [*net.append(tanh)] == [last, tanh]
    with pytest.raises(pb.CaptureError, match="setting item 1 of a Sequential"):
        pb.capture(lambda x: net.__setitem__(1, nn.ReLU()))(x)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda net: net.__setitem__(0, nn.ReLU), pb.PullbackError, r"item 0 is the class ReLU; give a layer"),
        (lambda net: net.__setitem__(0, 3), pb.PullbackError, "item 0 is a int; give Modules or functions"),
        (lambda net: net.__setitem__(2, nn.ReLU()), IndexError, "index 2 is out of range for 2 items"),
        (lambda net: net.__delitem__(-3), IndexError, "index -3 is out of range for 2 items"),
        (lambda net: net["relu"], TypeError, "an index is a str; give an integer"),
    ],
)
def test_items_that_cannot_be(change: Any, error: Any, message: str) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    before = [*net]
    with pytest.raises(error, match=message):
        change(net)
    assert [*net] == before


class _Tied(nn.Module):
    def __init__(self) -> None:
        self.tokens, self.head = nn.Embedding(5, 3), nn.Linear(3, 5)
        self.head.weight = self.tokens.weight
        self.again = self.head


def test_a_pattern_for_another_path_of_a_shared_parameter_says_how_it_is_listed() -> None:
    net = _Tied()
    with pytest.raises(pb.PullbackError, match=r"names no parameter\. head\.weight is listed as tokens\.weight\. The names are"):
        optim.AdamW(net.parameters(), groups={"head.w*": {"weight_decay": 0.0}})
    with pytest.raises(pb.PullbackError, match=r"no parameter\. again\.bias is listed as head\.bias\. The names are"):
        optim.AdamW(net.parameters(), groups={"again.bias": {"weight_decay": 0.0}})
    with pytest.raises(pb.PullbackError, match=r"no parameter\. The names are"):
        optim.AdamW(net.parameters(), groups={"heads.*": {"weight_decay": 0.0}})
    outer = nn.Sequential(net)
    outer.parameters()
    net.parameters()  # Names stay those of the outermost Module.
    twin = copy.deepcopy(outer)
    with pytest.raises(pb.PullbackError, match=r"0\.head\.weight is listed as 0\.tokens\.weight\. "):
        optim.AdamW(twin.parameters(), groups={"*head.weight": {"weight_decay": 0.0}})
    with pytest.raises(pb.PullbackError, match=r"which names no parameter\. 0\.head\.weight is listed as 0\.tokens\.weight\. The"):
        optim.Muon(outer.parameters(), auxiliary=optim.AdamW, auxiliary_names=["*head.weight"])


def test_a_tied_weight_is_saved_once_and_pytorch_wants_all_of_its_paths() -> None:
    """As state_dict's documentation says."""
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    theirs[1].weight = theirs[0].weight
    ours = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    ours[1].weight = ours[0].weight
    state = {name: torch.from_numpy(t.numpy().copy()) for name, t in ours.state_dict().items()}
    assert list(state) == ["0.weight", "0.bias", "1.bias"]
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: .1\.weight"):
        theirs.load_state_dict(state)
    theirs.load_state_dict(state | {"1.weight": state["0.weight"]})
    assert ours.load_state_dict(theirs.state_dict()) == ours.load_state_dict(ours.state_dict()) == ([], [])


def test_a_deep_nest_is_built_and_walked_without_recursion() -> None:
    net: Any = nn.Linear(1, 1)
    for _ in range(300):
        net = nn.Sequential(net)
    assert len(net.modules()) == 301
    assert list(net.state_dict()) == [f"{'0.' * 300}{name}" for name in ("weight", "bias")]
    assert net.modules()[-1]._path == "0" + ".0" * 299
    for _ in range(700):
        net = nn.Sequential(net)
    lines = repr(net).split("\n")
    assert lines[1] == "  (0): Sequential("
    assert lines[1000] == 1000 * "  " + "(0): Linear(in_features=1, out_features=1, bias=True)"
    assert lines[1001:] == [level * "  " + ")" for level in reversed(range(1000))]
    assert len(net.eval().parameters()) == 2


def test_a_deep_nest_is_copied_and_listed() -> None:
    inner = nn.Linear(2, 2)
    net: Any = inner
    for _ in range(600):
        net = nn.Sequential(net)
    copied = copy.deepcopy(net)
    (path, weight), (_, bias) = copied.named_parameters()
    assert path == ".".join(["0"] * 600) + ".weight"
    assert list(copied.state_dict()) == list(net.state_dict())
    assert weight is not inner.weight
    np.testing.assert_array_equal(host(weight), host(inner.weight))
    np.testing.assert_array_equal(host(bias), host(inner.bias))


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_deep_nest_is_pickled_and_loaded(protocol: int) -> None:
    """Pickles, and state dictionaries that were loaded, called themselves for each level."""
    net: Any = nn.Linear(2, 2)
    for k in range(1000):
        net = nn.Sequential(net) if k % 2 else nn.Sequential({"a": [net]}["a"][0], nn.Tanh())
    loaded = pickle.loads(pickle.dumps(net.eval(), protocol))
    assert [path for path, _ in loaded.named_modules()] == [path for path, _ in net.named_modules()]
    assert [type(module) for module in loaded.modules()] == [type(module) for module in net.modules()]
    assert not any(module.training for module in loaded.modules())
    for (path, p), (other, q) in zip(net.named_parameters(), loaded.named_parameters()):
        assert path == other
        np.testing.assert_array_equal(host(p), host(q))
    state = {path: value + 1 for path, value in net.state_dict().items()}
    assert loaded.load_state_dict(state) == ([], [])
    for path, value in loaded.state_dict().items():
        np.testing.assert_array_equal(host(value), host(state[path]))


class Held(nn.Module):
    def __init__(self, inner: Any) -> None:
        self.inner, self.others = inner, []

    def forward(self, x: Any) -> Any:
        return self.inner(x)


def test_a_deep_nest_that_is_cyclic_is_pickled() -> None:
    first: Any = Held(nn.Linear(2, 2))
    net = first
    for _ in range(120):
        net = Held(net)
    first.others.append(net)
    loaded = pickle.loads(pickle.dumps(net))
    *_, innermost, _ = loaded.modules()
    assert innermost.others[0] is loaded
    assert len(loaded.modules()) == 122
    assert repr(loaded).count("...") == 1


def test_a_call_that_is_too_deep_says_how_to_raise_the_limit() -> None:
    net: Any = nn.Linear(2, 2)
    for _ in range(1000):
        net = nn.Sequential(net)
    told = r"^maximum recursion depth exceeded[^.]*\. Each level of Modules takes three.* sys\.setrecursionlimit\(10_000\)\.$"
    with pytest.raises(RecursionError, match=told):
        net(pb.ones((1, 2)))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        y, (gradient,) = pb.value_and_grad(lambda x: pb.sum(net(x)), argnums=(0,))(pb.ones((1, 2)))
    finally:
        sys.setrecursionlimit(limit)
    assert np.isfinite(host(y))
    np.testing.assert_allclose(host(gradient)[0], host(net.parameters()[0]).sum(0), rtol=1e-6)


def test_building_a_deep_nest_takes_a_walk_of_bounded_length_for_each_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took a walk over all Modules inside."""
    given: list[int] = []
    give = nn.paths.put
    monkeypatch.setattr(nn.paths, "put", lambda inside: given.append(len(inside)) or give(inside))
    net: Any = nn.Linear(1, 1)
    for _ in range(100):
        net = nn.Sequential(net)
    assert max(given) < 60
    assert net.modules()[-1]._path.count("0") < 60
    with pb.profile():
        net(pb.ones((1, 1)))
    assert net.modules()[-1]._path == "0" + ".0" * 99


def test_copies_keep_what_is_shared_cyclic_and_copied_in_its_own_way() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            self.layer, self.copies = nn.Linear(2, 2), 0

        def __deepcopy__(self, memo: Any) -> Any:
            made = memo[id(self)] = Own()
            made.copies = self.copies + 1
            return made

    class Child(nn.Module):
        def __init__(self) -> None:
            self.weight, self.owner = pb.Parameter(pb.ones(2)), []

    class Parent(nn.Module):
        def __init__(self) -> None:
            self.child, self.own = Child(), Own()
            self.again, self.tied = self.child, self.child.weight
            self.child.owner.append(self.describe)

        def describe(self) -> str:
            return type(self).__name__

    parent = Parent()
    found = copy.deepcopy(parent)
    assert found.child is found.again is not parent.child
    assert found.tied is found.child.weight is not parent.tied
    assert found.own.copies == 1
    assert found.child.owner[0].__self__ is found
    assert not found.eval().training
    assert parent.training
