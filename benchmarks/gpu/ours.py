"""pullback's times: `python ours.py tf32` for the training steps in that precision, or the name of a group of single kernels.

No other library is imported. Each precision and each group has a separate process, because an error inside a kernel ends all work
of its process. pb.random creates the large arrays on the device, so no large array is uploaded.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import timing
from training import training_step

import device
import pullback as pb
from pullback import nn, optim
from pullback.examples.gpt import GPT
from pullback.nn import functional as F
from workloads import GROUPS, PRECISIONS, STEPS, WAYS, Decoder, Net, Single, decoders, exact, nets, relative_error, singles

SIDE = "pullback"
PART = 16  # compared with float64: the first 16 rows of a product, or the first 16 blocks of 4,096 elements


def network(net: Net) -> tuple[Any, Any, Callable[[Any, Any], Any], Any, Any]:
    """Returns the model, its optimizer, a training step, and its batch, on the default device."""
    layers: list[Any] = []
    for place, (m, n) in enumerate(zip(net.sizes, net.sizes[1:])):
        layers += ([nn.ReLU()] if place else []) + [nn.Linear(m, n)]
    model = nn.Sequential(*layers)
    model.load_state_dict({name: pb.tensor(value) for name, value in net.weights().items()})
    opt = optim.Adam(model.parameters(), lr=1e-3)
    x, y = net.examples()
    return model, opt, training_step(model, opt), pb.tensor(x), pb.tensor(y)


def decoder(net: Decoder) -> tuple[Any, Any, Callable[[Any, Any], Any], Any, Any]:
    """Returns the same of a character model."""
    model = GPT(net.characters, net.context, net.layers, net.heads, net.width)
    opt = optim.AdamW(model.parameters(), lr=1e-3)
    x, y = net.examples()

    def step(x: Any, y: Any) -> Any:
        return opt.minimize(lambda: nn.cross_entropy(pb.reshape(model(x), (-1, net.characters)), pb.reshape(y, (-1,))))

    return model, opt, step, pb.tensor(x), pb.tensor(y)


def runner(step: Any, x: Any, y: Any, way: str) -> tuple[Callable[[], Any], int, Any]:
    """Returns a function that runs the step this way, the number of steps in one call, and the captured function or None."""
    if way == "eager":
        return lambda: step(x, y), 1, None
    if way == "captured":
        captured = pb.capture(step)
        return lambda: captured(x, y), 1, captured
    captured = pb.capture(step, steps=STEPS)
    xs, ys = pb.stack([x] * STEPS), pb.stack([y] * STEPS)
    return lambda: captured(xs, ys), STEPS, captured


def time_step(net: Net | Decoder, precision: str, way: str, effort: timing.Effort) -> dict[str, Any]:
    with pb.amp.autocast(precision):
        model, _, step, x, y = network(net) if isinstance(net, Net) else decoder(net)
        error = net.error(model(x).numpy()) if isinstance(net, Net) else None
        call, steps, captured = runner(step, x, y, way)
        begin = time.perf_counter()
        call()
        pb.cuda.synchronize()
        first = time.perf_counter() - begin
        figures = timing.measure(call, pb.cuda.synchronize, effort, steps)
        loss = float(np.mean(call().numpy()))
    more = {"kernels": captured.stats().kernels_per_replay} if captured is not None else {}
    return {**figures, "error": error, "first_call_s": round(first, 3), "loss_after": loss, **more}


def steps(precision: str, simulated: bool) -> None:
    effort = timing.DRY if simulated else timing.FULL
    for net in [*nets(simulated), *decoders(simulated)]:
        for way in WAYS:
            row = {"name": net.name, "precision": precision, "way": way, "does": PRECISIONS[precision][SIDE]}
            put("steps", row, lambda net=net, way=way: time_step(net, precision, way, effort))


def put(group: str, row: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> None:
    """Prints what was measured, or a row with the error if the measurement failed."""
    try:
        found = measure()
    except Exception as error:
        found = {"failed": f"{type(error).__name__}: {error}"[:1500], "traceback": traceback.format_exc()[-1500:]}
    device.put(side=SIDE, group=group, **row, **found)


# ---- single kernels

Made = tuple[Callable[[], Any], tuple[Any, ...]]  # the call, and its inputs if `exact` can compute the op (otherwise none)


def unary(f: Callable[[Any], Any]) -> Callable[[Single], Made]:
    def make(single: Single) -> Made:
        x = pb.random.normal(single.shape)
        return lambda: f(x), (x,)

    return make


def add(single: Single) -> Made:
    x, y = pb.random.normal(single.shape), pb.random.normal(single.shape)
    return lambda: x + y, (x, y)


def layer_norm(single: Single) -> Made:
    return unary(nn.LayerNorm(single.shape[-1]))(single)


def product(single: Single) -> Made:
    (side,) = single.shape
    dtype = "bfloat16" if single.precision == "bfloat16" else "float32"
    a, b = pb.random.normal((side, side)).astype(dtype), pb.random.normal((side, side)).astype(dtype)

    def run() -> Any:
        with pb.amp.autocast("tf32" if single.precision == "tf32" else "float32"):
            return a @ b

    return run, (a, b)


def adam(single: Single) -> Made:
    count, each = single.shape
    opt = optim.Adam([pb.Parameter(pb.zeros(each)) for _ in range(count)], lr=1e-3)
    gradients = [pb.random.normal((each,)) for _ in range(count)]
    return lambda: opt.step(gradients), ()


def cross_entropy(single: Single) -> Made:
    x, y = pb.random.normal(single.shape), pb.random.randint(0, single.shape[1], (single.shape[0],))

    def run() -> Any:
        with pb.GradientTape() as tape:
            tape.watch(x)
            loss = nn.cross_entropy(x, y)
        return tape.gradient(loss, x)

    return run, ()


def layer_norm_gradient(single: Single) -> Made:
    norm, x, g = nn.LayerNorm(single.shape[-1]), pb.random.normal(single.shape), pb.random.normal(single.shape)

    def run() -> Any:
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = norm(x)
        return tape.gradient(y, x, output_gradients=g)

    return run, ()


MAKE: dict[str, Callable[[Single], Made]] = {
    "negative": unary(pb.negative), "exp": unary(pb.exp), "tanh": unary(pb.tanh), "gelu": unary(F.gelu),
    "scale": unary(lambda x: x * 1.5), "add": add, "product": product, "adam": adam,
    "softmax": unary(lambda x: F.softmax(x, axis=-1)), "log_softmax": unary(lambda x: F.log_softmax(x, axis=-1)),
    "layer_norm": layer_norm, "sum_rows": unary(lambda x: pb.sum(x, axis=-1)), "sum_columns": unary(lambda x: pb.sum(x, axis=0)),
    "cross_entropy": cross_entropy, "layer_norm_gradient": layer_norm_gradient,
}  # fmt: skip


def error_of(single: Single, y: Any, inputs: tuple[Any, ...]) -> float | None:
    """Returns the relative error of the first part of the result against float64, or None if `exact` cannot compute the op."""
    if not inputs or exact(single.kind, np.ones((1, 1)), np.ones((1, 1))) is None:
        return None
    rows = PART if len(single.shape) > 1 or single.kind == "product" else PART * 4096
    part = lambda x: np.asarray(x[:rows].numpy()).astype(np.float64)
    others = [np.asarray(x.numpy()).astype(np.float64) if single.kind == "product" else part(x) for x in inputs[1:]]
    return relative_error(part(y), exact(single.kind, part(inputs[0]), *others))


def time_single(single: Single, effort: timing.Effort, copy: float) -> dict[str, Any]:
    call, inputs = MAKE[single.kind](single)
    found = timing.measure(call, pb.cuda.synchronize, effort)
    found |= single.figures(found["us"]["median"])
    found |= {"share": found["gb_per_s"] / copy} if single.bytes else {}
    try:
        return {**found, "error": error_of(single, call(), inputs)}
    except Exception as error:  # the measured time is still reported
        return {**found, "not_compared": f"{type(error).__name__}: {error}"[:500]}


def ceiling(simulated: bool, effort: timing.Effort) -> float:
    """Prints the GB/s of each way to copy, counting bytes read and written.

    Returns the fastest rate, which shares are relative to.
    """
    n = 10_000 if simulated else 100_000_000
    x, y = pb.random.normal((n,)), pb.empty((n,))
    by_runtime = lambda: y.array.data.copy_from_device_async(x.array.data, 4 * n, pb.cuda.stream)
    ways = {"copy by pullback's kernel": lambda: pb.copy(x)} | ({} if simulated else {"copy by cudaMemcpyAsync": by_runtime})
    rates = [1e-9]
    for name, call in ways.items():

        def measured(call: Callable[[], Any] = call) -> dict[str, Any]:
            found = timing.measure(call, pb.cuda.synchronize, effort)
            rates.append(8e-3 * n / found["us"]["median"])
            return {**found, "gb_per_s": rates[-1]}

        put("copy", {"name": f"{name}, {n:,} float32", "precision": "float32"}, measured)
    return max(rates)


def main() -> None:
    options = device.arguments(__doc__, "group")
    device.require_native(options.simulated)
    effort = timing.DRY if options.simulated else timing.FULL
    with pb.use_device("cuda"):
        if options.group in PRECISIONS:
            steps(options.group, options.simulated)
            return
        if options.group not in GROUPS:
            raise SystemExit(f"there is no group {options.group!r}: use {', '.join([*PRECISIONS, *GROUPS])}")
        copy = ceiling(options.simulated, effort)
        for single in [single for single in singles(options.simulated) if single.group == options.group]:
            row = {"name": single.name, "precision": single.precision}
            put(single.group, row, lambda single=single: time_single(single, effort, copy))


if __name__ == "__main__":
    main()
