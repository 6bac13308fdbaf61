"""Calls of layers, losses, optimizers, loaders and files as other libraries have them: the error says how it is written here."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn, optim
from refused import refusal

X = pb.ones((5, 3))
LABELS = pb.tensor([0, 1, 2, 1, 0])
NET = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


LAYERS: dict[str, tuple[Callable[[], Any], str]] = {
    "an activation as the bias": (lambda: nn.Linear(3, 24, "tanh"), "nn.Sequential(nn.Linear(2, 8), nn.Tanh())"),  # type: ignore[arg-type]
    "a number as a flag": (lambda: nn.LayerNorm(3, 1e-5, 3), "elementwise_affine=3 must be True or False"),  # type: ignore[arg-type]
    "RMSNorm's flag": (lambda: nn.RMSNorm(3, None, "no"), "elementwise_affine='no' must be True or False"),  # type: ignore[arg-type]
    "LayerNorm's bias": (lambda: nn.LayerNorm(3, bias=pb.ones(3)), "must be True or False"),  # type: ignore[arg-type]
    "a string as a probability": (lambda: nn.Dropout("0.5"), "p='0.5' is not a real number"),  # type: ignore[arg-type]
    "a mode as a probability": (lambda: nn.Dropout(True), "p=True is not a probability"),
    "a class for a layer": (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU), "item 1 is the class ReLU; give a layer"),
    "data for a mode": (lambda: NET.train(X), "training itself is a loop around opt.minimize(f)"),  # type: ignore[arg-type]
    "weights of integers": (lambda: NET.to(pb.int32), "weights of dtype int32 could not be trained"),
    "a device and a dtype": (lambda: NET.to("cpu", pb.float64), "Module.to() takes device_or_dtype by position"),  # type: ignore[call-arg]
    "a list of weights": (lambda: NET.load_state_dict(NET.parameters()), "the state is a list; give a dict"),  # type: ignore[arg-type]
    "the path of weights": (lambda: NET.load_state_dict("net.safetensors"), "the state is a str; give a dict"),  # type: ignore[arg-type]
    "too many tensors": (lambda: nn.Tanh()(X, X), "Tanh(...)() takes x by position, and 2 arguments were given"),
}


@pytest.mark.parametrize("case", LAYERS)
def test_a_wrong_call_of_a_layer_says_what_to_write(case: str) -> None:
    before = NET.state_dict()
    call, words = LAYERS[case]
    assert words in refusal(call)
    assert NET.training
    assert pb.hash(NET.state_dict()) == pb.hash(before)


def test_numpys_bools_are_flags() -> None:
    assert nn.Linear(2, 2, bias=np.bool_(False)).bias is None
    assert NET.train(np.bool_(True)).training is True


def test_an_error_inside_a_called_function_stays_as_it_is() -> None:
    class Broken(nn.Module):
        def forward(self, x: Any) -> Any:
            return self.helper(x, 2)

        def helper(self, x: Any) -> Any:
            return x

    broken: Any = nn.Sequential(Broken())
    with pytest.raises(TypeError, match=r"helper\(\) takes 2 positional arguments but 3 were given"):
        broken(X)


# ---- optimizers


def trained() -> tuple[Any, Any, list[Any]]:
    net: Any = nn.Linear(2, 1)
    return net, optim.SGD(net.parameters(), lr=0.5), [pb.ones(p.shape) for p in net.parameters()]


STEPS: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "nothing": (lambda net, opt, g: opt.step(), "opt.step(tape.gradient(loss, opt.parameters))"),
    "None": (lambda net, opt, g: opt.step(None), "Parameters keep none"),
    "a closure": (lambda net, opt, g: opt.step(lambda: pb.sum(net.weight)), "opt.minimize(f) calls a function f"),
    "pairs": (lambda net, opt, g: opt.step(zip(g, net.parameters())), "and not opt.step(zip(gradients, parameters))"),
    "pairs in a list": (lambda net, opt, g: opt.preview([*zip(g, net.parameters())]), "the Parameters: opt.step(gradients)"),
    "variables": (lambda net, opt, g: opt.minimize(lambda: pb.sum(net.weight), [net.weight]), "so write opt.minimize(f)"),
    "a list of variables": (lambda net, opt, g: opt.minimize(lambda: pb.sum(net.weight), var_list=[]), "opt.step(gradients)"),
    "one beta": (lambda net, opt, g: optim.Adam(net.parameters(), 1e-3, 0.9, 0.999), "betas=0.9; it must be a pair of numbers"),
    "a word as nesterov": (lambda net, opt, g: optim.SGD(net.parameters(), 0.1, 0.9, 0, "yes"), "must be True or False"),
    "the rate alone": (lambda net, opt, g: optim.Adam(1e-3), "optim.Adam(model.parameters(), lr=1e-3)"),
    "a schedule of an optimizer": (lambda net, opt, g: optim.schedules.Cosine(opt, 100), "base is a SGD; it must be a number"),
    "names with the parameters": (lambda net, opt, g: optim.SGD(net.named_parameters()), "optim.SGD(model.parameters(), lr=1e-3)"),
    "a shape to initialize": (lambda net, opt, g: nn.init.normal((3, 2)), "p = nn.init.normal(pb.Parameter(pb.zeros((3, 2))))"),
    "a gain without weights": (lambda net, opt, g: nn.init.xavier_uniform(1.0), "not a Parameter to set in place"),
    "another library's state": (lambda net, opt, g: opt.load_state_dict({"state": {}, "param_groups": []}), "has entries for"),
}


@pytest.mark.parametrize("case", STEPS)
def test_a_wrong_call_of_an_optimizer_says_what_to_write_and_changes_nothing(case: str) -> None:
    net, opt, g = trained()
    before = pb.hash({"net": net, "opt": opt})
    call, words = STEPS[case]
    assert words in refusal(lambda: call(net, opt, g))
    assert pb.hash({"net": net, "opt": opt}) == before


def test_gradients_may_come_from_a_generator() -> None:
    net, opt, g = trained()
    weight, bias = [p.numpy() for p in net.parameters()]
    opt.step(2 * x for x in g)
    np.testing.assert_allclose(net.weight.numpy(), weight - 1.0, rtol=1e-6)
    np.testing.assert_allclose(net.bias.numpy(), bias - 1.0, rtol=1e-6)


def test_parameters_and_gradients_may_be_the_values_of_dicts() -> None:
    named = {"w": pb.Parameter([1.0, 2.0]), "b": pb.Parameter(3.0)}
    opt = optim.SGD(named.values(), lr=1.0)
    opt.step({"w": pb.ones(2), "b": pb.tensor(5.0)}.values())
    assert [p.tolist() for p in named.values()] == [[0.0, 1.0], -2.0]


def test_an_error_inside_the_function_of_the_loss_stays_as_it_is() -> None:
    net, opt, _ = trained()

    def loss(p: Any) -> Any:
        return pb.sum(p * net.weight) + len(3)  # type: ignore[arg-type]

    assert refusal(lambda: opt.minimize(loss, net.weight)) == "object of type 'int' has no len()"
    assert "minimize" not in refusal(lambda: opt.minimize(loss, X, X))


def test_a_schedule_is_a_function_of_the_step() -> None:
    schedule = optim.schedules.Cosine(0.1, steps=100)
    assert [schedule(t) for t in (0, 50, 100)] == [schedule.rate(t) for t in (0, 50, 100)]
    assert schedule(0) == 0.1
    assert schedule(50) == pytest.approx(0.05)


# ---- files


def test_the_order_of_save_is_told(tmp_path: Path) -> None:
    file = tmp_path / "net.safetensors"
    save: Any = pb.save
    for call in (lambda: save(NET.state_dict(), file), lambda: save(X, file), lambda: save(NET, file)):
        assert refusal(call) == f"save: the path comes first, and then what is saved: pb.save({str(file)!r}, tree)."
    assert not file.exists()
    assert "what was given is a Sequential" in refusal(lambda: save(file, NET))
    assert 'what is at "net" is a Sequential' in refusal(lambda: save(file, {"net": NET}))


@pytest.mark.parametrize(
    "write", [np.save, np.savez, lambda path, x: path.write_bytes(pickle.dumps(x))], ids=["npy", "npz", "pickle"]
)
def test_a_file_of_another_library_is_told(tmp_path: Path, write: Any) -> None:
    file = tmp_path / ("x.npz" if write is np.savez else "x.npy")
    write(file, np.ones(100))
    assert "Read it with the library that wrote it, and save the arrays" in refusal(lambda: pb.load(file))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("pb.mean(X, dtype='float64')", "convert before: pb.mean(t.astype(dtype))."),
        ("optim.SGD([pb.Parameter([1.0])], 0.1, dtype='float64')", "net.to(dtype) for a Module."),
        ("pb.sum(X, initial=3)", "write pb.sum(t) + initial."),
        ("pb.max(X, initial=3)", "write pb.maximum(pb.max(t), initial)."),
        ("X.at[0].set(1.0, mode='drop')", "At.set() got an unexpected keyword argument 'mode': an index that is out of"),
        ("X.at[0].add(1.0, unique_indices=True)", "leave it out."),
        ("pb.round(X, digits=2)", "It takes x, decimals."),
    ],
)
def test_keywords_of_other_libraries_are_answered(call: str, words: str) -> None:
    with pytest.raises(TypeError, match=re.escape(words)):
        eval(call, {"pb": pb, "optim": optim, "X": X})
