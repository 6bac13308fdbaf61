"""Layers and losses with default arguments, and their values by formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

import pullback as pb
from pullback import nn

Row = tuple[Callable[[Any], Any], Any]
X = np.array([[0.3, -0.7, 25.0], [-1.9, 0.3, -0.1]])
Y = np.array([[0.5, 0.25, 1.0], [0.0, 0.3, 0.6]])
PROBABILITIES = np.array([[0.5, 0.25, 0.25], [0.1, 0.3, 0.6]])
LABELS = np.array([2, 0])
LOGS = scipy.special.log_softmax(X, -1)
WEIGHT, BIAS = np.array([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]]), np.array([0.5, -0.5])


def of(*args: Any) -> Callable[[Any], Any]:
    return lambda f: f(*[pb.tensor(x) if isinstance(x, np.ndarray) else x for x in args])


def layer(*options: Any) -> Callable[[Any], Any]:
    """Returns a function that makes a layer with its required arguments, in float64, and calls it."""

    def call(kind: Any) -> Any:
        return kind(*options).to(pb.float64)(pb.tensor(X))

    return call


def normed(x: Any, eps: float, centre: bool) -> Any:
    z = x - x.mean(-1, keepdims=True) if centre else x
    return z / np.sqrt((z * z).mean(-1, keepdims=True) + eps)


def dropped(f: Any) -> bool:
    """True if about half of the elements become zero and the other elements double."""
    x = np.arange(1.0, 10_001)
    y = f(pb.tensor(x)).numpy()
    return set(np.unique(y / x)) == {0.0, 2.0} and abs((y == 0).mean() - 0.5) < 0.03


ACTIVATIONS = {
    "relu": np.maximum(X, 0), "leaky_relu": np.where(X > 0, X, 0.01 * X), "elu": np.where(X > 0, X, np.expm1(X)),
    "gelu": X * scipy.special.ndtr(X), "silu": X * scipy.special.expit(X), "sigmoid": scipy.special.expit(X), "tanh": np.tanh(X),
    "relu6": np.clip(X, 0, 6), "hardtanh": np.clip(X, -1, 1), "hardsigmoid": np.clip(X / 6 + 0.5, 0, 1),
    "hardswish": X * np.clip(X / 6 + 0.5, 0, 1), "mish": X * np.tanh(np.logaddexp(X, 0)), "celu": np.where(X > 0, X, np.expm1(X)),
    "selu": 1.0507009873554805 * np.where(X > 0, X, 1.6732632423543772 * np.expm1(X)), "softsign": X / (1 + np.abs(X)),
    "softshrink": X - np.clip(X, -0.5, 0.5), "hardshrink": np.where(np.abs(X) > 0.5, X, 0), "tanhshrink": X - np.tanh(X),
    "softplus": np.where(X > 20, X, np.log1p(np.exp(X))), "softmax": scipy.special.softmax(X, -1), "log_softmax": LOGS,
}
CLASSES = {kind: name for kind in nn.__all__ for name in ACTIVATIONS if kind.lower() == name.replace("_", "")}


def linear_layer(kind: Any) -> Any:
    made = kind(3, 2)
    assert (made.weight.shape, made.weight.dtype, made.bias.shape) == ((2, 3), pb.float32, (2,))
    made.to(pb.float64)
    made.weight.assign(WEIGHT), made.bias.assign(BIAS)
    return made(pb.tensor(X))


def embedding(kind: Any) -> Any:
    made = kind(5, 2)
    assert abs(kind(1000, 100).weight.numpy().std() - 1) < 0.02
    made.weight.assign(np.arange(10.0).reshape(5, 2))
    return made(pb.tensor([4, 0]))


def recurrent(sequence: bool) -> Any:
    """Returns a function that runs a layer or a cell with weights of 0.5 and biases of 0 on X, as two steps or two rows."""

    def run(kind: Any) -> Any:
        made = kind(3, 2, dtype=pb.float64)
        for p in made.parameters():
            p.assign(np.full(p.shape, 0.5 if p.ndim == 2 else 0.0))
        result = made(pb.tensor(X))
        result = result[0] if isinstance(result, tuple) else result
        return result if sequence else result[:1]

    return run


def lru(kind: Any) -> Any:
    """Runs a layer whose Parameters are all 0.5 on X, as two steps."""
    made = kind(3, 2, dtype=pb.float64)
    for p in made.parameters():
        p.assign(np.full(p.shape, 0.5))
    return made(pb.tensor(X))[0]


def steps_of(kind: str) -> Any:
    """Returns the result after each of the two steps of `recurrent` or `lru`, by the formulas."""
    h, c, found = np.zeros(2), np.zeros(2), []
    sigmoid = scipy.special.expit
    for x in X:
        a, p = np.full(2, x.sum() / 2), np.full(2, h.sum() / 2)
        if kind == "LSTM":
            c = sigmoid(a + p) * (c + np.tanh(a + p))
            h = sigmoid(a + p) * np.tanh(c)
        elif kind == "MinGRU":
            h = (1 - sigmoid(a)) * h + sigmoid(a) * a
        elif kind == "LRU":
            rates = np.exp(-np.exp(0.5)) * np.exp(1j * np.exp(0.5))  # every Parameter is 0.5
            h = rates * h + np.exp(0.5) * (0.5 + 0.5j) * x.sum()
            found.append((h.sum() * (0.5 + 0.5j)).real + 0.5 * x)
            continue
        elif kind == "GRU":
            gate = sigmoid(a + p)
            h = (1 - gate) * np.tanh(a + gate * p) + gate * h
        else:
            h = np.tanh(a + p)
        found.append(h)
    return np.array(found)


def prelu_layer(kind: Any) -> Any:
    made = kind()
    assert (made.weight.shape, made.weight.dtype) == ((1,), pb.float32)
    return made.to(pb.float64)(pb.tensor(X))


IMAGE = np.arange(24.0).reshape(1, 2, 3, 4)
KERNELS = np.arange(12.0).reshape(3, 2, 1, 2) - 5
CONVOLVED = np.einsum("nchwk,ock->nohw", np.stack([IMAGE[..., :-1], IMAGE[..., 1:]], -1), KERNELS[:, :, 0])
SPREAD = np.einsum("nchw,cok->nohwk", IMAGE, KERNELS[:2, :, 0])
TRANSPOSED = np.pad(SPREAD[..., 0], ((0, 0),) * 3 + ((0, 1),)) + np.pad(SPREAD[..., 1], ((0, 0),) * 3 + ((1, 0),))


def conv_layer(transposed: bool = False, axes: int = 2) -> Callable[[Any], Any]:
    """Returns a function that makes a layer, sets its weights and its bias, and convolves the image or its first row."""
    weight, bias = KERNELS[:2] if transposed else KERNELS, BIAS if transposed else WEIGHT[0]
    weight, x = (weight, IMAGE) if axes == 2 else (weight[:, :, 0], IMAGE[:, :, 0])

    def call(kind: Any) -> Any:
        made = kind(2, len(bias), weight.shape[2:])
        assert (made.weight.shape, made.bias.shape) == (weight.shape, bias.shape)
        made.to(pb.float64)
        made.weight.assign(weight), made.bias.assign(bias)
        return made(pb.tensor(x))

    return call


CHANNELS = np.arange(32.0).reshape(2, 4, 2, 2) ** 2
WINDOWS = CHANNELS.reshape(2, 4, 1, 2, 1, 2)


def standardized(x: Any, axes: Any) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def image_layer(*options: Any) -> Callable[[Any], Any]:
    return lambda kind: kind(*options).to(pb.float64)(pb.tensor(CHANNELS))


def grouped(groups: int) -> Any:
    return standardized(CHANNELS.reshape(2, groups, -1), 2).reshape(CHANNELS.shape)


def bilinear_layer(kind: Any) -> Any:
    made = kind(3, 3, 2).to(pb.float64)
    assert (made.weight.shape, made.bias.shape) == ((2, 3, 3), (2,))
    made.weight.assign(FORMS), made.bias.assign(BIAS)
    return made(pb.tensor(X), pb.tensor(Y))


def attention_layer(kind: Any) -> Any:
    """Returns a layer with one head, float64 and projections that change nothing."""
    made = kind(3, 1).to(pb.float64)
    assert (made.in_proj_weight.shape, made.in_proj_bias.shape, made.out_proj.weight.shape) == ((9, 3), (9,), (3, 3))
    made.in_proj_weight.assign(np.tile(np.eye(3), (3, 1))), made.out_proj.weight.assign(np.eye(3))
    return made


def turned(x: Any) -> Any:
    """Returns rows (n, 2), turned by their positions."""
    z = (x[:, 0] + 1j * x[:, 1]) * np.exp(1j * np.arange(len(x)))
    return np.stack([z.real, z.imag], axis=1)


FORMS = np.arange(18.0).reshape(2, 3, 3)
FORM = np.einsum("ni,oij,nj->no", X, FORMS, Y)
OVER_BATCH, RUNNING = standardized(CHANNELS, (0, 2, 3)), (np.arange(4.0), 1.0 + np.arange(4.0))
BY_RUNNING = (CHANNELS - RUNNING[0].reshape(4, 1, 1)) / np.sqrt(RUNNING[1].reshape(4, 1, 1) + 1e-5)
ATTENDED = scipy.special.softmax(X @ X.T / np.sqrt(3), -1)
GATED = X[0] * scipy.special.expit(X[1])
COSINE = (X * Y).sum(1) / np.linalg.norm(X, axis=1) / np.linalg.norm(Y, axis=1)
DISTANCE = np.linalg.norm(X - Y + 1e-6, axis=1)

LAYERS: dict[str, Row] = {
    **{f"F.{name}": (of(X), y) for name, y in ACTIVATIONS.items()},
    **{f"nn.{kind}": (layer(), ACTIVATIONS[name]) for kind, name in CLASSES.items()},
    "F.glu": (lambda f: f(pb.tensor(X.reshape(6))), GATED),
    "nn.GLU": (lambda kind: kind()(pb.tensor(X.reshape(6))), GATED),
    "F.threshold": (of(X, 0.2, 7.0), np.where(X > 0.2, X, 7.0)),
    "nn.Threshold": (layer(0.2, 7.0), np.where(X > 0.2, X, 7.0)),
    "F.prelu": (of(X, WEIGHT[0]), np.where(X > 0, X, WEIGHT[0] * X)),
    "nn.PReLU": (prelu_layer, np.where(X > 0, X, 0.25 * X)),
    "F.normalize": (of(X), X / np.linalg.norm(X, axis=1, keepdims=True)),
    "F.cosine_similarity": (of(X, Y), COSINE),
    "nn.CosineSimilarity": (lambda kind: kind()(pb.tensor(X), pb.tensor(Y)), COSINE),
    "F.pairwise_distance": (of(X, Y), DISTANCE),
    "nn.PairwiseDistance": (lambda kind: kind()(pb.tensor(X), pb.tensor(Y)), DISTANCE),
    "F.logsumexp": (of(X), scipy.special.logsumexp(X)),
    "F.one_hot": (of(LABELS, 3), np.eye(3, dtype=np.float32)[LABELS]),
    "F.linear": (of(X, WEIGHT), X @ WEIGHT.T),
    "F.conv1d": (of(IMAGE[:, :, 0], KERNELS[:, :, 0]), CONVOLVED[:, :, 0]),
    "F.conv2d": (of(IMAGE, KERNELS), CONVOLVED),
    "F.conv_transpose1d": (of(IMAGE[:, :, 0], KERNELS[:2, :, 0]), TRANSPOSED[:, :, 0]),
    "F.conv_transpose2d": (of(IMAGE, KERNELS[:2]), TRANSPOSED),
    "nn.Conv1d": (conv_layer(axes=1), CONVOLVED[:, :, 0] + WEIGHT[0][:, None]),
    "nn.Conv2d": (conv_layer(), CONVOLVED + WEIGHT[0][:, None, None]),
    "nn.ConvTranspose2d": (conv_layer(transposed=True), TRANSPOSED + BIAS[:, None, None]),
    "F.layer_norm": (of(X), normed(X, 1e-5, True)),
    "F.rms_norm": (of(X), normed(X, 1e-6, False)),
    "F.dropout": (dropped, True),
    "nn.Dropout": (lambda kind: dropped(kind()) and bool(pb.all(kind().eval()(pb.ones(9)) == 1)), True),
    "nn.Linear": (linear_layer, X @ WEIGHT.T + BIAS),
    "nn.Embedding": (embedding, np.array([[8.0, 9.0], [0.0, 1.0]], np.float32)),
    **{f"nn.{kind}": (recurrent(True), steps_of(kind)) for kind in ("RNN", "LSTM", "GRU")},
    "nn.MinGRU": (recurrent(True), steps_of("MinGRU")), "nn.LRU": (lru, steps_of("LRU")),
    **{f"nn.{kind}Cell": (recurrent(False), steps_of(kind)[:1]) for kind in ("RNN", "LSTM", "GRU")},
    "nn.LayerNorm": (layer(3), normed(X, 1e-5, True)),
    "nn.RMSNorm": (layer(3), normed(X, float(np.finfo(np.float64).eps), False)),
    "F.batch_norm": (of(CHANNELS, *RUNNING), BY_RUNNING),
    "F.group_norm": (of(CHANNELS, 2), grouped(2)),
    "F.instance_norm": (of(CHANNELS), grouped(4)),
    "nn.BatchNorm1d": (lambda kind: kind(3).to(pb.float64)(pb.tensor(X)), standardized(X, 0)),
    "nn.BatchNorm2d": (image_layer(4), OVER_BATCH),
    "nn.GroupNorm": (image_layer(2, 4), grouped(2)),
    "nn.InstanceNorm2d": (image_layer(4), grouped(4)),
    "F.scaled_dot_product_attention": (of(X, X, X), ATTENDED @ X),
    "nn.MultiHeadAttention": (lambda kind: attention_layer(kind)(X), ATTENDED @ X),
    "nn.MultiheadAttention": (lambda kind: list(attention_layer(kind)(X, X, X)), [ATTENDED @ X, ATTENDED]),
    "F.rotary": (of(X[:, :2]), turned(X)),
    "F.bilinear": (of(X, Y, FORMS), FORM),
    "nn.Bilinear": (bilinear_layer, FORM + BIAS),
    "F.max_pool1d": (of(X, 2), X[:, :2].max(1, keepdims=True)),
    "nn.MaxPool1d": (layer(2), X[:, :2].max(1, keepdims=True)),
    "F.avg_pool1d": (of(X, 2), X[:, :2].mean(1, keepdims=True)),
    "nn.AvgPool1d": (layer(2), X[:, :2].mean(1, keepdims=True)),
    "F.max_pool2d": (of(CHANNELS, 2), WINDOWS.max((3, 5))),
    "nn.MaxPool2d": (image_layer(2), WINDOWS.max((3, 5))),
    "F.avg_pool2d": (of(CHANNELS, 2), WINDOWS.mean((3, 5))),
    "nn.AvgPool2d": (image_layer(2), WINDOWS.mean((3, 5))),
    "F.adaptive_avg_pool2d": (of(CHANNELS, (2, 1)), CHANNELS.mean(3, keepdims=True)),
    "nn.AdaptiveAvgPool2d": (image_layer(1), WINDOWS.mean((3, 5))),
    "nn.stack": (lambda f: f([nn.Linear(3, 2), nn.Linear(3, 2)])["weight"].shape, (2, 2, 3)),
    "nn.functional_call": (lambda f: f(nn.Linear(3, 2), {"weight": WEIGHT, "bias": BIAS}, pb.tensor(X)), X @ WEIGHT.T + BIAS),
    "nn.Flatten": (lambda kind: kind()(pb.ones((2, 3, 4, 5))).shape, (2, 60)),
    "nn.Identity": (layer(), X),
    "nn.Sequential": (lambda kind: [kind()(3), kind(nn.Tanh(), nn.ReLU())(pb.tensor(X))], [3, np.maximum(np.tanh(X), 0)]),
    "nn.Buffer": (lambda kind: [kind(X), kind(X).trainable, kind(X).name], [X, False, None]),
}

D = X - Y
PER_LOSS = {
    "mse": (of(X, Y), (D**2).mean()),
    "l1": (of(X, Y), np.abs(D).mean()),
    "huber": (of(X, Y), np.where(np.abs(D) < 1, D**2 / 2, np.abs(D) - 0.5).mean()),
    "smooth_l1": (of(X, Y), np.where(np.abs(D) < 1, D**2 / 2, np.abs(D) - 0.5).mean()),
    "binary_cross_entropy": (of(PROBABILITIES, Y), -(Y * np.log(PROBABILITIES) + (1 - Y) * np.log(1 - PROBABILITIES)).mean()),
    "bce_with_logits": (of(X, Y), (np.logaddexp(0, X) - X * Y).mean()),
    "kl_div": (of(LOGS, PROBABILITIES), (PROBABILITIES * (np.log(PROBABILITIES) - LOGS)).mean()),
    "nll": (of(LOGS, LABELS), -LOGS[[0, 1], LABELS].mean()),
    "cross_entropy": (of(X, LABELS), -LOGS[[0, 1], LABELS].mean()),
}
LOSSES: dict[str, Row] = {f"{space}.{name}": row for space in ("nn", "F") for name, row in PER_LOSS.items()}
