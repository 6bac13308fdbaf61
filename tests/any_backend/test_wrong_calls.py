"""Calls of layers, losses, optimizers, loaders and files as other libraries have them: the error says how it is written here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn, optim
from pullback.interop.wrong_calls import explained

X = pb.ones((5, 3))
LABELS = pb.tensor([0, 1, 2, 1, 0])
NET = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def refusal(call: Callable[[], Any]) -> str:
    """Returns the message of the call's error, which is of pullback or a TypeError."""
    with pytest.raises((pb.PullbackError, TypeError)) as caught:
        call()
    return str(caught.value)


LAYERS: dict[str, tuple[Callable[[], Any], str]] = {
    "an activation as the bias": (lambda: nn.Linear(3, 24, "tanh"), "nn.Sequential(nn.Linear(2, 8), nn.Tanh())"),  # type: ignore[arg-type]
    "a number as a flag": (lambda: nn.LayerNorm(3, 1e-5, 3), "elementwise_affine=3 must be True or False"),  # type: ignore[arg-type]
    "RMSNorm's flag": (lambda: nn.RMSNorm(3, None, "no"), "elementwise_affine='no' must be True or False"),  # type: ignore[arg-type]
    "LayerNorm's bias": (lambda: nn.LayerNorm(3, bias=pb.ones(3)), "must be True or False"),  # type: ignore[arg-type]
    "a string as a probability": (lambda: nn.Dropout("0.5"), "p='0.5' is not a probability"),  # type: ignore[arg-type]
    "a mode as a probability": (lambda: nn.Dropout(True), "p=True is not a probability"),
    "a class for a layer": (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU), "item 1 is the class ReLU; give a layer"),
    "data for a mode": (lambda: NET.train(X), "training itself is a loop around opt.minimize(f)"),  # type: ignore[arg-type]
    "weights of integers": (lambda: NET.to(pb.int32), "weights of dtype int32 could not be trained"),
    "a device and a dtype": (lambda: NET.to("cpu", pb.float64), "Module.to() takes device_or_dtype by position"),  # type: ignore[call-arg]
    "a list of weights": (lambda: NET.load_state_dict(NET.parameters()), "the state is a list; give a dict"),  # type: ignore[arg-type]
    "the path of weights": (lambda: NET.load_state_dict("net.safetensors"), "the state is a str; give a dict"),  # type: ignore[arg-type]
    "too many tensors": (lambda: nn.Tanh()(X, X), "Activation.forward() takes x by position, and 2 arguments were given"),
}  # fmt: skip


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


def test_an_explained_function_keeps_its_signature_and_python_tells_what_is_missing() -> None:
    @explained
    def f(x: int, y: int = 2, *, z: int = 3) -> int:
        return x + y + z

    assert [*inspect.signature(f).parameters] == ["x", "y", "z"]
    assert (f(1), f(1, 1, z=1)) == (6, 3)
    wrong: Any = f
    text = refusal(lambda: wrong(1, 2, 3))
    assert text.endswith("f() takes x and y by position, and 3 arguments were given by position. Pass what follows by keyword: z=.")
    assert refusal(lambda: wrong(1, zz=1)).endswith("f() got an unexpected keyword argument 'zz'. Did you mean: 'z'?")
    assert refusal(lambda: wrong()).endswith("f() missing 1 required positional argument: 'x'")
    assert refusal(lambda: wrong(1, x=1)).endswith("f() got multiple values for argument 'x'")
