"""pullback's side of the turns: builds the training steps and the single kernels. `python ours.py` serves them (serving.py).

No other library is imported. pb.random creates the large arrays on the device, so no large array is uploaded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from serving import Prepared, Server
from singles import Single, exact, singles
from training import training_step

import device
import pullback as pb
from pullback import nn, optim
from pullback.examples.gpt import GPT
from pullback.nn import functional as F
from workloads import BATCHES, EAGER, LEARNING_RATE, SEVERAL, STEPS, Decoder, Net, Recurrent, layers_of, named, relative_error

EVERYWHERE = "everywhere"  # stands beside the precisions: float32 in the mode that gives the same bits on every machine
PART = 16  # compared with float64: the first 16 rows of a product, or the first 16 blocks of 4,096 elements


@contextmanager
def precision_of(precision: str) -> Iterator[None]:
    """Enters the autocast of a precision, or the mode "everywhere" with float32 products."""
    before = pb.config.reproducible
    if precision == EVERYWHERE:
        pb.config.reproducible = EVERYWHERE
    try:
        with pb.amp.autocast("float32" if precision == EVERYWHERE else precision):
            yield
    finally:
        pb.config.reproducible = before


# ---- training steps


class Reader(nn.Module):
    """Reads sequences with a GRU and classifies them by its last state."""

    def __init__(self, inputs: int, hidden: int) -> None:
        self.rows, self.classes = nn.GRU(inputs, hidden, batch_first=True), nn.Linear(hidden, 10)

    def forward(self, x: Any) -> Any:
        return self.classes(self.rows(x)[0][:, -1])


class Characters(nn.Module):
    """A GPT whose logits are rows, one for each character."""

    def __init__(self, net: Decoder) -> None:
        self.decoder = GPT(net.characters, net.context, net.layers, net.heads, net.width)

    def forward(self, x: Any) -> Any:
        return pb.reshape(self.decoder(x), (-1, self.decoder.characters.weight.shape[0]))


def model_of(net: Any) -> nn.Module:
    """Returns the network of a Workload with its weights."""
    weights = {name: pb.tensor(value) for name, value in net.weights().items()}
    model: nn.Module
    if isinstance(net, Recurrent):
        model = Reader(net.inputs, net.hidden)
    elif isinstance(net, Decoder):
        model, weights = Characters(net), {f"decoder.{name}": value for name, value in weights.items()}
    else:
        model = nn.Sequential(*layers_of(net, nn))
    model.load_state_dict(weights)
    return model


def batches_of(net: Any, count: int) -> tuple[Any, Any]:
    """Returns `count` batches and their labels as tensors, with the labels of a batch in one axis."""
    x, y = net.batches(count)
    return pb.tensor(x), pb.tensor(y.reshape(count, -1))


def network(net: Any) -> tuple[Any, Any, Callable[[Any, Any], Any], Any, Any]:
    """Returns the model, its optimizer, a training step, and the first batch, on the default device."""
    model = model_of(net)
    opt = optim.Adam(model.parameters(), lr=LEARNING_RATE)
    x, y = batches_of(net, 1)
    return model, opt, training_step(model, opt), pb.copy(x[0]), pb.copy(y[0])


def runner(step: Any, x: Any, y: Any, way: str) -> tuple[Callable[[], Any], int, Any]:
    """Returns a function that runs the step this way with the next batch, the number of calls that see all batches, and what was
    captured.

    x, y: all batches, a multiple of STEPS.
    """
    if way == SEVERAL:
        step = captured = pb.capture(step, steps=STEPS)
        given = [(pb.copy(x[k : k + STEPS]), pb.copy(y[k : k + STEPS])) for k in range(0, x.shape[0], STEPS)]
    else:
        captured = None if way == EAGER else pb.capture(step)
        step = captured or step
        given = [(pb.copy(x[k]), pb.copy(y[k])) for k in range(x.shape[0])]
    turn = itertools.cycle(given)
    return lambda: step(*next(turn)), len(given), captured


def prepare_step(case: Mapping[str, Any], simulated: bool) -> Prepared:
    net, precision, way = named(case["name"], simulated), case["precision"], case["way"]
    within = partial(precision_of, precision)
    with within():
        model, _, step, x, y = network(net)
        logits = model(x)
        facts = {"loss_first": nn.cross_entropy(logits, y).item()}
        facts |= {"error": net.error(logits.numpy())} if isinstance(net, Net) else {}
        call, warm, captured = runner(step, *batches_of(net, BATCHES), way)
        call()
    if captured is not None:
        facts["kernels"] = captured.stats().kernels_per_replay

    def after() -> Mapping[str, Any]:
        with within():
            return {"loss_after": float(np.mean(call().numpy()))}

    return Prepared(call, pb.cuda.synchronize, warm, STEPS if way == SEVERAL else 1, facts, after, within)


# ---- single kernels

Made = tuple[Callable[..., Any], tuple[Any, ...]]  # the op, and its operands


def unary(f: Callable[[Any], Any]) -> Callable[[Single], Made]:
    return lambda single: (f, (pb.random.normal(single.shape),))


def add(single: Single) -> Made:
    return pb.add, (pb.random.normal(single.shape), pb.random.normal(single.shape))


def memcpy(single: Single) -> Made:
    x, y = pb.random.normal(single.shape), pb.empty(single.shape)
    return lambda x: y.array.data.copy_from_device_async(x.array.data, x.nbytes, pb.cuda.stream), (x,)


def layer_norm(single: Single) -> Made:
    return unary(nn.LayerNorm(single.shape[-1]))(single)


def product(single: Single) -> Made:
    (side,) = single.shape
    dtype = "bfloat16" if single.precision == "bfloat16" else "float32"
    return pb.matmul, tuple([pb.random.normal((side, side)).astype(dtype) for _ in range(2)])


def adam(single: Single) -> Made:
    count, each = single.shape
    opt = optim.Adam([pb.Parameter(pb.zeros(each)) for _ in range(count)], lr=LEARNING_RATE)
    return lambda *gradients: opt.step(list(gradients)), tuple([pb.random.normal((each,)) for _ in range(count)])


def cross_entropy(single: Single) -> Made:
    def run(x: Any, y: Any) -> Any:
        with pb.GradientTape() as tape:
            tape.watch(x)
            loss = nn.cross_entropy(x, y)
        return tape.gradient(loss, x)

    return run, (pb.random.normal(single.shape), pb.random.randint(0, single.shape[1], (single.shape[0],)))


def layer_norm_gradient(single: Single) -> Made:
    norm = nn.LayerNorm(single.shape[-1])

    def run(x: Any, g: Any) -> Any:
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = norm(x)
        return tape.gradient(y, x, output_gradients=g)

    return run, (pb.random.normal(single.shape), pb.random.normal(single.shape))


MAKE: dict[str, Callable[[Single], Made]] = {
    "copy": unary(pb.copy), "memcpy": memcpy,
    "negative": unary(pb.negative), "exp": unary(pb.exp), "tanh": unary(pb.tanh), "gelu": unary(F.gelu),
    "scale": unary(lambda x: x * 1.5), "add": add, "product": product, "adam": adam,
    "softmax": unary(lambda x: F.softmax(x, axis=-1)), "log_softmax": unary(lambda x: F.log_softmax(x, axis=-1)),
    "layer_norm": layer_norm, "sum_rows": unary(lambda x: pb.sum(x, axis=-1)), "sum_columns": unary(lambda x: pb.sum(x, axis=0)),
    "cross_entropy": cross_entropy, "layer_norm_gradient": layer_norm_gradient,
}


def error_of(single: Single, op: Callable[..., Any], operands: tuple[Any, ...]) -> float | None:
    """Returns the relative error of the first part of the result against float64, or None if `exact` cannot compute the op."""
    if exact(single.kind, np.ones((1, 1)), np.ones((1, 1))) is None:
        return None
    rows = PART if len(single.shape) > 1 or single.kind == "product" else PART * 4096
    part = lambda x: np.asarray(x[:rows].numpy()).astype(np.float64)
    others = [np.asarray(x.numpy()).astype(np.float64) if single.kind == "product" else part(x) for x in operands[1:]]
    return relative_error(part(op(*operands)), exact(single.kind, part(operands[0]), *others))


def prepare_single(case: Mapping[str, Any], simulated: bool) -> Prepared:
    single = next(single for single in singles(simulated) if (single.name, single.precision) == (case["name"], case["precision"]))
    op, operands = MAKE[single.kind](single)
    # Factors in bfloat16 are used as they are, and need no autocast.
    within = partial(pb.amp.autocast, "tf32" if single.precision == "tf32" else "float32")
    with within():
        error = error_of(single, op, operands)
    call, times = lambda: op(*operands), max(1, single.launches)
    if single.launches:

        def several(*operands: Any) -> Any:
            for _ in range(times):
                last = op(*operands)  # each result takes the memory of the one before
            return last

        captured = pb.capture(several, fusion="none")  # keeps the launches whose results are not used
        call = lambda: captured(*operands)
    return Prepared(call, pb.cuda.synchronize, steps=times, facts={"error": error}, within=within)


def main() -> None:
    options = device.arguments(__doc__)
    device.require_native(options.simulated)
    prepare = lambda case: (prepare_step if case["way"] else prepare_single)(case, options.simulated)
    with pb.use_device("cuda"):
        Server(prepare).run(version=pb.__version__)


if __name__ == "__main__":
    main()
