"""Layers, losses, initial weights, optimizers and random numbers with default arguments, and their values by formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

import pullback as pb
from pullback import nn, optim
from update_rules import lion

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
}  # fmt: skip
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


def steps_of(kind: str) -> Any:
    """Returns h after each of the two steps of `recurrent`, by the formulas."""
    h, c, found = np.zeros(2), np.zeros(2), []
    sigmoid = scipy.special.expit
    for x in X:
        a, p = np.full(2, x.sum() / 2), np.full(2, h.sum() / 2)
        if kind == "LSTM":
            c = sigmoid(a + p) * (c + np.tanh(a + p))
            h = sigmoid(a + p) * np.tanh(c)
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


FORMS = np.arange(18.0).reshape(2, 3, 3)
FORM = np.einsum("ni,oij,nj->no", X, FORMS, Y)
OVER_BATCH, RUNNING = standardized(CHANNELS, (0, 2, 3)), (np.arange(4.0), 1.0 + np.arange(4.0))
BY_RUNNING = (CHANNELS - RUNNING[0].reshape(4, 1, 1)) / np.sqrt(RUNNING[1].reshape(4, 1, 1) + 1e-5)
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
}  # fmt: skip

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


def spread(init: Any) -> tuple[float, float]:
    """Returns the mean, to two digits, and ten times the standard deviation, to one digit, of a weight of 300 × 400."""
    p = nn.init.zeros(pb.Parameter(np.ones((300, 400), np.float32)))
    pb.random.seed(0)
    assert init(p) is p
    return round(float(p.numpy().mean()), 2), round(float(p.numpy().std() * 10), 1)


def first_step(rule: Any) -> Any:
    p = pb.Parameter(np.array([1.0, 2.0]))
    rule([p]).step([pb.tensor(np.array([0.5, -1.0]))])
    return pb.tensor(p)


def first_step_of_a_matrix(rule: Any) -> Any:
    p, bias = pb.Parameter(np.array([[2.0]])), pb.Parameter(np.array([1.0]))
    rule([p, bias]).step([pb.tensor(np.array([[0.5]])), pb.tensor(np.array([0.5]))])
    return pb.tensor([p.item(), bias.item()], dtype="float64")


def orthogonalized(x: float) -> float:
    """Returns five of Muon's iterations of a matrix of one element."""
    for _ in range(5):
        x = 3.4445 * x - 4.775 * x**3 + 2.0315 * x**5
    return x


def updated(make: Any) -> list[Any]:
    """Returns, for two steps with the gradients G and -G, whether the Parameter is as the formula predicts."""
    p = pb.Parameter(X)
    opt, found = make([p]), list[Any]()
    for g in (G, -G):
        opt.step([pb.tensor(g)])
        found.append(p.numpy().copy())
    return [np.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(found, wanted_updates(type(opt).__name__))]


G = Y + 0.5


def wanted_updates(name: str) -> list[Any]:
    if name == "Lion":
        return lion(X, [G, -G])
    p, m, v, found = X, np.zeros_like(X), np.zeros_like(X), list[Any]()
    for t, g in enumerate((G, -G), 1):
        if name == "SGD":
            p = p - 1e-3 * g
        else:
            p = p * (1 - 1e-3 * 1e-2) if name == "AdamW" else p
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            p = p - 1e-3 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        found.append(p)
    return found


def moments(*must: Any) -> Callable[[Any], Any]:
    """Returns a function that computes the mean and standard deviation of 40,000 draws, to one digit, and the default shape."""

    def call(f: Any) -> Any:
        x = f(*must, (200, 200)).numpy() if not must else f(*must, None, (200, 200)).numpy()
        return round(float(x.mean()), 1), round(float(x.std()), 1), f(*must).shape

    return call


def philox_seeded(f: Any) -> Any:
    f(7)
    first = pb.random.uniform((3,)).numpy()
    return bool((first == pb.random.Generator(7).uniform((3,)).numpy()).all())


def epochs(kind: Any) -> Any:
    """Loads five rows in batches of two. Returns the batch lengths, the sorted rows, and two comparisons of their order.

    The comparisons are: equal to the order with explicit defaults, and equal to the original order.
    """
    batches = [b.numpy().tolist() for b in kind(np.arange(5), 2)]
    again = [b.numpy().tolist() for b in kind(np.arange(5), 2, shuffle=True, seed=0, drop_last=False)]
    rows = [row for batch in batches for row in batch]
    return [len(b) for b in batches], sorted(rows), batches == again, rows == list(range(5))


ONE = optim.schedules.Schedule(0.5)
DIRECTION = np.array([0.5 / (0.5 + 1e-6), -1 / (1 + 1e-6)])
STEP_OF_LAMB = np.array([1.0, 2.0]) - 1e-3 * np.sqrt(5) / np.sqrt((DIRECTION**2).sum()) * DIRECTION


def of_ten_gradients(accumulator: Any) -> Any:
    acc = accumulator([pb.Parameter([0.0, 0.0])])
    return [acc.add([pb.tensor([float(k), 2.0 * k])]) for k in range(1, 11)], acc.take()


RULES: dict[str, Row] = {
    **{f"optim.{name}": (updated, [True, True]) for name in ("SGD", "Adam", "AdamW", "Lion")},
    "optim.rule": (lambda f: first_step(f(lr=0.5)(lambda p, g, h: -h.lr * g)), np.array([0.75, 2.5])),
    # torch.optim 2.13 gives these numbers with float64 as its default dtype.
    "optim.Adadelta": (first_step, np.array([0.9968377855834876, 2.0031622618488987])),
    "optim.Adagrad": (first_step, np.array([0.990000000002, 2.009999999999])),
    "optim.Adamax": (first_step, np.array([0.99800000004, 2.0019999999800002])),
    "optim.NAdam": (first_step, np.array([0.9978870964855473, 2.002112903535582])),
    "optim.RAdam": (first_step, np.array([0.9995, 2.001])),
    # By hand, for the gradients 0.5 and -1.
    "optim.LAMB": (first_step, STEP_OF_LAMB),
    "optim.ScheduleFreeSGD": (first_step, np.array([0.5, 3.0])),
    "optim.ScheduleFreeAdamW": (first_step, np.array([1 - 0.0025 / (1 + 2e-8 / 0.001**0.5), 2 + 0.0025 / (1 + 1e-8 / 0.001**0.5)])),
    "optim.Adafactor": (first_step, np.array([1.0, 2.0]) - 1e-2 * np.sqrt(2.5) * np.array([1.0, -1.0])),
    "optim.Muon": (
        first_step_of_a_matrix,
        np.array([2 - 1e-3 * (0.1 * 2 + orthogonalized(1.0)), 1 - 1e-3 * (1e-2 + 0.5 / (0.5 + 1e-8))]),
    ),
    "optim.RMSprop": (first_step, np.array([0.900000019999996, 2.099999990000001])),
    "optim.Accumulator": (of_ten_gradients, ([False] * 9 + [True], [np.array([5.5, 11.0])])),
    "schedules.Schedule": (lambda f: [f(0.5).rate(t) for t in (0, 3)], [0.5, 0.5]),
    "schedules.Constant": (lambda f: [round(f(0.6).rate(t), 12) for t in (0, 4, 5)], [0.2, 0.2, 0.6]),
    "schedules.Lambda": (lambda f: [f(0.5, lambda t: 1 / (1 + t), 3).rate(t) for t in (0, 1, 2, 9)], [0.5, 0.25, 0.5 / 3, 0.5 / 3]),
    "schedules.Multiplicative": (lambda f: [f(0.5, lambda t: 0.5, 3).rate(t) for t in (0, 1, 2, 9)], [0.5, 0.25, 0.125, 0.125]),
    "schedules.Product": (lambda f: [f(ONE, ONE).rate(t) for t in (0, 2)], [0.25, 0.25]),
    "schedules.ReduceOnPlateau": (lambda f: [f(0.5).rate(t) for t in (0, 20)], [0.5, 0.5]),
    "schedules.Sequential": (lambda f: [f([ONE, optim.schedules.Schedule(0.1)], [2]).rate(t) for t in (0, 1, 2)], [0.5, 0.5, 0.1]),
    "schedules.Table": (lambda f: [f([0.5, 0.25]).rate(t) for t in (0, 1, 9)], [0.5, 0.25, 0.25]),
    "schedules.Step": (lambda f: [f(0.5, 3).rate(t) for t in (0, 6)], [0.5, 0.5 * 0.1**2]),
    "schedules.Exponential": (lambda f: [f(0.5).rate(t) for t in (0, 2)], [0.5, 0.5 * 0.99**2]),
    "schedules.Cosine": (lambda f: [round(f(0.5, 2).rate(t), 12) for t in (0, 1, 2)], [0.5, 0.25, 0.0]),
    "schedules.Linear": (lambda f: [f(0.5, 2).rate(t) for t in (0, 1, 2)], [0.5, 0.25, 0.0]),
    "schedules.Polynomial": (lambda f: [f(0.5, 4).rate(t) for t in (0, 1, 4, 5)], [0.5, 0.375, 0.0, 0.0]),
    "schedules.MultiStep": (lambda f: [f(0.5, [9]).rate(t) for t in (0, 9)], [0.5, 0.05]),
    "schedules.OneCycle": (lambda f: [round(f(0.5, 11).rate(t), 12) for t in (0, 10)], [0.02, 2e-6]),
    "schedules.CosineRestarts": (lambda f: [f(0.5, 2).rate(t) for t in (0, 1, 2)], [0.5, 0.25, 0.5]),
    "schedules.Cyclic": (lambda f: [round(f(0.5).rate(t), 12) for t in (0, 2000, 4000)], [0.5, 0.1, 0.5]),
    "schedules.WarmupStableDecay": (lambda f: [f(0.5, 4).rate(t) for t in (0, 3, 4)], [0.5, 0.5, 0.0]),
    "schedules.WarmupCosine": (lambda f: [round(f(0.5, 2).rate(t), 12) for t in (0, 1, 2)], [0.5, 0.25, 0.0]),
    "schedules.PolynomialSparsity": (lambda f: [f(0.0, 0.5, 1, 3).sparsity(t) for t in (0, 1, 2, 3)], [0.0, 0.0, 0.0, 0.5]),
    "optim.Pruning": (lambda f: f(optim.SGD([pb.Parameter(X)]), 0.5).report(), {"parameter0": 0.0}),
    "constraints.NonNegative": (lambda f: f()(pb.tensor(X)), np.maximum(X, 0)),
    "constraints.Box": (lambda f: f(-0.1, 0.2)(pb.tensor(X)), np.clip(X, -0.1, 0.2)),
    "constraints.MaxNorm": (lambda f: f(1e6, 0)(pb.tensor(X)), X),
    "constraints.UnitNorm": (lambda f: f(0)(pb.tensor(X)), X / np.linalg.norm(X, axis=0)),
    "constraints.Simplex": (lambda f: f(0)(pb.tensor([[3.0, 0.5], [1.0, 0.5]])), np.array([[1.0, 0.5], [0.0, 0.5]], np.float32)),
    "init.zeros": (spread, (0.0, 0.0)),
    "init.ones": (spread, (1.0, 0.0)),
    "init.constant": (lambda f: f(pb.Parameter(X), 2.5), np.full_like(X, 2.5)),
    "init.uniform": (spread, (0.5, round(10 / math.sqrt(12), 1))),
    "init.normal": (spread, (0.0, 10.0)),
    "init.truncated_normal": (spread, (0.0, 8.8)),
    "init.xavier_uniform": (spread, (0.0, round(10 * math.sqrt(2 / 700), 1))),
    "init.xavier_normal": (spread, (0.0, round(10 * math.sqrt(2 / 700), 1))),
    "init.kaiming_uniform": (spread, (0.0, round(10 * math.sqrt(2 / 400), 1))),
    "init.kaiming_normal": (spread, (0.0, round(10 * math.sqrt(2 / 400), 1))),
    "init.orthogonal": (lambda f: bool(np.allclose((q := f(pb.Parameter(X)).numpy()) @ q.T, np.eye(2), atol=1e-12)), True),
    "init.lsuv": (lambda f: round(float(f(nn.Linear(3, 2).to(pb.float64), pb.tensor(X))(pb.tensor(X)).numpy().std()), 6), 1.0),
    "init.calculate_gain": (lambda f: [f("leaky_relu"), f("tanh")], [math.sqrt(2 / (1 + 0.01**2)), 5 / 3]),
    "init.fans": (of((2, 3, 5)), (15, 10)),
    "random.uniform": (moments(), (0.5, 0.3, ())),
    "random.normal": (moments(), (0.0, 1.0, ())),
    "random.truncated_normal": (moments(), (0.0, 0.9, ())),
    "random.bernoulli": (moments(), (0.5, 0.5, ())),
    "random.randint": (moments(10), (4.5, 2.9, ())),
    "random.permutation": (lambda f: sorted(f(9).tolist()), list(range(9))),
    "random.seed": (philox_seeded, True),
    "random.state_dict": (lambda f: (pb.random.seed(7), f())[1], {"seed": 7, "serial": 0}),
    "random.load_state_dict": (lambda f: (f({"seed": 5, "serial": 3}), pb.random.state_dict())[1], {"seed": 5, "serial": 3}),
    "random.Generator": (lambda f: f().state_dict(), {"seed": 0, "serial": 0}),
    "data.digits": (lambda f: [len(x) for x in vars(f()).values()], [1442, 1442, 355, 355]),
    "data.Loader": (epochs, ([2, 2, 1], [0, 1, 2, 3, 4], True, False)),
}
