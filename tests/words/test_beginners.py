"""Mistakes of the first days: the message says what the argument is, and what to write."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn, optim
from refused import refusal

X, SEQUENCE, IMAGES = pb.ones((5, 3)), pb.ones((6, 2, 4)), pb.ones((2, 32, 32, 3))
NET: Any = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
OPT: Any = optim.Adam(NET.parameters())
ANY: Any = nn
with pb.GradientTape(persistent=True) as TAPE_:
    LOSS = pb.mean(NET(X) ** 2)
TAPE: Any = TAPE_
PB: Any = pb


class Called(nn.Module):
    """A network that calls what is no function."""

    def __init__(self, mistake: Callable[[Any], Any]) -> None:
        self.mistake = mistake

    def forward(self, x: Any) -> Any:
        return self.mistake(x)


class Shifted(nn.Module):
    def __init__(self, start: float, by: float) -> None:
        self.start, self.by = start, by


def under_a_tape(mistake: Callable[[Any], Any]) -> None:
    with pb.GradientTape():
        mistake(X)


RESULTS: dict[str, Callable[[], Any]] = {
    "a tensor of shape (6, 2, 8) and a tuple, and not one array. Of a layer with several results, such as (output, state), take": (
        lambda: nn.Linear(8, 2)((pb.ones((6, 2, 8)), (pb.ones((1, 2, 8)), pb.ones((1, 2, 8)))))
    ),
    "Linear: x: a SequenceResult has fields, and is not made of numbers: take one of them, .output or .state.": (
        lambda: nn.Linear(8, 2)(ANY.LSTM(4, 8)(SEQUENCE))
    ),
    "GRU: x: this is a tuple of a tensor of shape (6, 2, 8) and a tensor of shape (1, 2, 8)": (
        lambda: nn.GRU(8, 8)(tuple(ANY.GRU(4, 8)(SEQUENCE)))
    ),
    "mse: x: a SequenceResult has": lambda: nn.mse(ANY.LSTM(4, 8)(SEQUENCE), pb.zeros((6, 2, 8))),
    "linear: x: an AttentionResult": lambda: nn.functional.linear(ANY.MultiheadAttention(4, 2)(SEQUENCE, SEQUENCE, SEQUENCE), X),
    "Sequential: item 0 returned 2 results, and item 1 (Linear) takes one tensor. Put a function between them that takes the one": (
        lambda: nn.Sequential(nn.LSTM(4, 8), nn.Linear(8, 2))(SEQUENCE)
    ),
    "Sequential: item 0 returned 2 results, and item 1 (Tanh)": lambda: nn.Sequential(nn.GRU(4, 8), nn.Tanh())(SEQUENCE[:1]),
    "sum: x: a TopK has fields, and is not made of numbers: take one of them, .values or .indices.": lambda: PB.sum(pb.topk(X, 2)),
    "add: b: a QRResult has fields": lambda: X + PB.linalg.qr(pb.eye(3)),
}

GRADIENTS: dict[str, Callable[[], Any]] = {
    "step: a GradientTape was given, and not a list of gradients. Write opt.step(tape.gradient(loss, opt.parameters)).": (
        lambda: OPT.step(TAPE)
    ),
    "add: a GradientTape was given": lambda: ANY and optim.Accumulator(NET.parameters()).add(TAPE),
    "step: the Parameters themselves were given for their gradients": lambda: OPT.step(NET.parameters()),
    "gradient: a source is a str, not a tensor. Give the tensor itself and not its name, such as net.weight, or net.parameters()": (
        lambda: TAPE.gradient(LOSS, "weight")
    ),
    "gradient: a source is a str": lambda: TAPE.gradient(LOSS, {"w": "weight", "b": "bias"}),
    "gradient: a source is an Adam, not a tensor. Give its Parameters: opt.parameters.": lambda: TAPE.gradient(LOSS, OPT),
    "gradient: a target is a str, not a tensor, so it cannot be on a tape. Give what was computed under the tape": (
        lambda: TAPE.gradient("loss", NET.parameters())
    ),
    "jacobian: a source is a str": lambda: TAPE.jacobian(LOSS, "weight"),
    "batch_jacobian: a source is a str": lambda: TAPE.batch_jacobian(X, "weight"),
    "batch_jacobian: a target is a Sequential": lambda: TAPE.batch_jacobian(NET, X),
    "diagnose: a source is a str": lambda: TAPE.diagnose(LOSS, "weight"),
    "diagnose: a target is a function": lambda: TAPE.diagnose(lambda: LOSS, NET.parameters()),
    "on_gradient: takes a tensor and a function, not a str and": lambda: TAPE.on_gradient("weight", print),
    "on_gradient: takes a tensor and a function, not a Tensor and a str": lambda: TAPE.on_gradient(LOSS, "print"),
    "watch: only floating-point tensors have gradients, this is a str. Give the tensor": lambda: PB.GradientTape().watch("x"),
}

AXES: dict[str, Callable[[], Any]] = {
    "conv2d: x (2, 32, 32, 3) has 32 channels, but weight (8, 3, 3, 3) with groups=1 needs 3: the weight must be (out, channels / "
    "groups, ...). The order is (N, C, H, W), and x looks like (N, H, W, C): pb.moveaxis(x, -1, 1) puts the channels first.": (
        lambda: nn.Conv2d(3, 8, 3)(IMAGES)
    ),
    "(C, H, W), and x looks like (H, W, C): pb.moveaxis(x, -1, 0)": lambda: nn.Conv2d(3, 8, 3)(IMAGES[0]),
    "(N, C, L), and x looks like (N, L, C): pb.moveaxis(x, -1, 1)": lambda: nn.Conv1d(3, 8, 3)(IMAGES[0]),
    "needs 3: the weight must be (channels, out / groups, ...). The order is (N, C, H, W)": (
        lambda: nn.ConvTranspose2d(3, 8, 3)(IMAGES)
    ),
    "num_features=3. The order is (N, C, H, W)": lambda: nn.BatchNorm2d(3)(IMAGES),
    "For 2 examples of one channel, add the axis of the channel: pb.expand_dims(x, axis=1).": (
        lambda: nn.Conv2d(1, 8, 3)(IMAGES[..., 0])
    ),
    "concat: axis=a Tensor of shape (5, 3) is not an integer. The arrays come in one list: pb.concat([a, b], axis=0).": (
        lambda: PB.concat(X, X)
    ),
    "stack: axis=an ndarray of shape (2,) is not an integer. The arrays come in one list": lambda: PB.stack(X, np.ones(2)),
    "max: axis=a Tensor of shape (5, 3) is not an integer. For two arrays, element by element, write pb.maximum(a, b).": (
        lambda: PB.max(X, X)
    ),
    "element by element, write pb.minimum(a, b).": lambda: PB.min(X, X),
    "element by element, write a + b.": lambda: PB.sum(X, X),
    "mean() takes one axis by position. Several axes are one tuple: axis=(0, 1).": lambda: PB.mean(X, 0, 1),
    "max() takes one axis by position. Several axes are one tuple: axis=(0, 1, 2).": lambda: PB.max(IMAGES, 0, 1, 2),
    "min() takes one axis by position. Write keepdims=True by keyword.": lambda: PB.min(X, 0, True),
    "max: axis=a Tensor of shape (2,) is not an integer. For two arrays, element by element, write pb.maximum(a, b).": (
        lambda: PB.max(pb.tensor([1, 2]), pb.tensor([0, 1]))
    ),
    "softmax: axis=a Tensor of shape (2,) is not an integer.": lambda: PB.softmax(X, pb.tensor([0, 1])),
    "the nested lists do not have equal lengths: one of them has 2 items, and another one 1.": lambda: PB.tensor([[1, 2], [3]]),
    "the nested lists of an index do not have equal lengths: one of them has 2 items": lambda: X[[[0, 1], [2]]],
    "argmax() takes one axis by position.": lambda: PB.argmax(X, 0, 1),
    "softmax: axis=a Tensor of shape (5, 3) is not an integer.": lambda: PB.softmax(X, X),
}

LAYERS: dict[str, Callable[[], Any]] = {
    "ReLU() takes no arguments: nothing is computed in place, and the tensor goes to ReLU()(x).": lambda: ANY.ReLU(X),
    "Softmax: an array was given to make the layer. The layer is called with it: Softmax(...)(x).": lambda: ANY.Softmax(X),
    "MaxPool2d: an array was given to make the layer": lambda: ANY.MaxPool2d(IMAGES),
    "BatchNorm2d: an array was given to make the layer": lambda: ANY.BatchNorm2d(IMAGES),
    "Linear needs out_features, too: Linear(in_features, out_features).": lambda: ANY.Linear(10),
    "Conv2d needs out_channels and kernel_size, too: Conv2d(in_channels, out_channels, kernel_size).": lambda: ANY.Conv2d(3),
    "Linear() takes in_features and out_features and bias by position, and 4 arguments were given by position. Pass what follows "
    "by keyword: dtype=, device=.": (
        lambda: ANY.Linear(3, 4, True, "relu")
    ),
    "Pruning needs schedule, too: Pruning(opt, schedule).": lambda: ANY and optim.Pruning(0.75),  # type: ignore[call-arg, arg-type]
    "Adam needs params, too: Adam(params).": lambda: optim.Adam(lr=0.1),  # type: ignore[call-arg]
    "Shifted() got an unexpected keyword argument 'other'. It takes start, by.": lambda: Shifted(1.0, other=X),  # type: ignore
    "Shifted needs by, too: Shifted(start, by).": lambda: Shifted(1.0),  # type: ignore[call-arg]
}

FLAGS: dict[str, Callable[[], Any]] = {
    "GradientTape: persistent=Linear(in_features=3, out_features=3, bias=True) must be True or False. A tape takes no network": (
        lambda: PB.GradientTape(nn.Linear(3, 3))
    ),
    "GradientTape: persistent=a Tensor of shape (5, 3) must be": lambda: PB.GradientTape(X),
    "profile: strict='kernel' must be True or False": lambda: PB.profile(strict="kernel"),
    "Parameter: trainable='no' must be": lambda: PB.Parameter(1.0, trainable="no"),
    "Parameter: trainable=0 must be": lambda: setattr(PB.Parameter(1.0), "trainable", 0),
    "MaxPool2d: ceil_mode=1 must be": lambda: ANY.MaxPool2d(2, ceil_mode=1),
    "Linear: training=0 must be True or False. net.train() and net.eval() set it": lambda: setattr(ANY.Linear(2, 2), "training", 0),
    "load_state_dict: strict='no' must be": lambda: NET.load_state_dict({}, strict="no"),
    "Sequential.eval is a method, which a bool would replace. Call it: net.eval().": lambda: setattr(NET, "eval", True),
    "Sequential.train is a method, which a bool would replace. Call it": lambda: setattr(NET, "train", False),
    "Sequential.modules is a method, which a list would replace. Give the attribute another name.": (
        lambda: setattr(NET, "modules", [nn.Tanh()])
    ),
    "Sequential.buffers is a method, which a Linear would replace": lambda: setattr(NET, "buffers", nn.Linear(2, 2)),
    "Sequential.forward is a method, which an int": lambda: setattr(NET, "forward", 3),
    "max_pool2d: x has shape (4, 4); it must be (..., C, H, W), with channels.": lambda: nn.MaxPool2d(2)(pb.ones((4, 4))),
    "avg_pool1d: x has shape (4,); it must be (..., C, L), with channels.": lambda: nn.AvgPool1d(2)(pb.ones(4)),
}

OTHERS: dict[str, Callable[[], Any]] = {
    "seed 'a' is not an integer: use one from 0 to 2**64 - 1.": lambda: PB.random.seed("a"),
    "seed None is not an integer": lambda: PB.random.Generator(None),
    "seed 1.5 is not an integer": lambda: PB.random.seed(1.5),
}

CASES = {words: call for cases in (RESULTS, GRADIENTS, AXES, LAYERS, FLAGS, OTHERS) for words, call in cases.items()}


@pytest.mark.parametrize("words", CASES)
def test_the_message_suffices_to_go_on(words: str) -> None:
    assert words in refusal(CASES[words])


CALLED: dict[str, Callable[[Any], Any]] = {
    "x.shape[0] is the length of the first axis": lambda x: x.shape(0),
    "x.size is an attribute, the number of elements; x.shape[0] is": lambda x: x.reshape(x.size(0), -1),
    "x.size is an attribute": lambda x: x.size(),
    "x.ndim is an attribute: write it without parentheses": lambda x: x.ndim(),
    "x.dtype is an attribute": lambda x: x.dtype(),
    "x.device is an attribute": lambda x: x.device(),
    "x.T is an attribute": lambda x: x.T(),
    "a layer is called with a tensor, layer(x), and a tensor is indexed, x[0]": lambda x: NET(x)(x),
}


@pytest.mark.parametrize("around", [lambda f: Called(f)(X), under_a_tape, lambda f: OPT.minimize(lambda: f(X))])
@pytest.mark.parametrize("words", CALLED)
def test_a_call_of_what_is_no_function_says_what_it_is(words: str, around: Callable[[Any], Any]) -> None:
    text = refusal(lambda: around(CALLED[words]))
    assert "object is not callable: " in text
    assert text.count(words) == 1


def test_another_call_of_what_is_no_function_stays_as_it_is() -> None:
    number: Any = 3
    assert refusal(lambda: under_a_tape(lambda _: number())) == "'int' object is not callable"


def test_a_tape_watches_several_tensors() -> None:
    x, y = pb.tensor(2.0), pb.tensor(3.0)
    with pb.GradientTape() as tape:
        tape.watch(x, y)
        z = x * y
    assert [float(g) for g in tape.gradient(z, [x, y])] == [3.0, 2.0]


# ---- flags: a generator of all constructors, with arguments that they take

MADE: dict[type, tuple[Any, ...]] = {
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d, nn.MaxPool1d, nn.MaxPool2d), (2,)),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.InstanceNorm2d, nn.LayerNorm, nn.RMSNorm), (4,)),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d), (3, 4, 2)), nn.Bilinear: (2, 3, 4), nn.GroupNorm: (2, 4),
    **dict.fromkeys((nn.RNN, nn.GRU, nn.LSTM, nn.RNNCell, nn.GRUCell, nn.LSTMCell, nn.MinGRU, nn.LRU, nn.Linear), (4, 2)),
    **dict.fromkeys((nn.MultiHeadAttention, nn.MultiheadAttention), (4, 2)), nn.PairwiseDistance: (),
}
WITH_FLAGS = [
    (kind, p.name)
    for kind in vars(nn).values() if isinstance(kind, type) and issubclass(kind, nn.Module)
    for p in inspect.signature(kind).parameters.values() if isinstance(p.default, bool)
]


@pytest.mark.parametrize(("kind", "name"), WITH_FLAGS, ids=lambda x: getattr(x, "__name__", x))
@pytest.mark.parametrize("value", [0, 1.0, "no", None, pb.ones(2)], ids=lambda x: type(x).__name__)
def test_a_flag_of_a_layer_is_a_bool(kind: type, name: str, value: Any) -> None:
    if name == "rotary" and isinstance(value, float):
        return  # the base of the angles
    assert name in refusal(lambda: kind(*MADE[kind], **{name: value}))
