"""One program per family of kernels. On the device it must compute what the CPU's kernels compute from the same numbers.

A program takes a length, from which it derives the sizes of its arrays, and returns tensors. It only calls ops that have native
kernels, on contiguous arrays, so that CuPy compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from training import training_step

import pullback as pb
from pullback import nn, optim
from pullback.nn import functional as F

Program = Callable[[int], list[Any]]


def floats(*shape: int, seed: int = 0) -> Any:
    return pb.tensor(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def integers(high: int, *shape: int, seed: int = 0, dtype: str = "int64") -> Any:
    return pb.tensor(np.random.default_rng(seed).integers(0, high, shape).astype(dtype))


def with_gradients(f: Callable[..., Any], *inputs: Any) -> list[Any]:
    """Returns f's value and the gradients of a weighted sum of this value."""
    with pb.GradientTape() as tape:
        tape.watch(inputs)
        y = f(*inputs)
        loss = pb.sum(y * floats(*y.shape, seed=9))
    return [y, *tape.gradient(loss, list(inputs))]


def radix_sort(n: int) -> list[Any]:
    """Sorts arrays of several tiles, because the block of a tile waits for the counts of the preceding blocks."""
    return [pb.sort(integers(2**31, 8 * n, dtype="int32")), pb.sort(floats(3, n)), pb.argsort(integers(50, n), descending=True)]


def select(n: int) -> list[Any]:
    return [*pb.topk(floats(4, n), 10), *pb.topk(integers(99, n), min(n, 300), largest=False)]


def scatter(n: int) -> list[Any]:
    rows = integers(n // 3 + 1, n)
    return [
        *with_gradients(lambda x: pb.take(x, rows, axis=0), floats(n // 3 + 1, 4)),
        *with_gradients(lambda x: pb.segment_sum(x, rows, n // 3 + 1), floats(n, 5)),
        pb.segment_max(floats(n, 2), rows, n // 3 + 1),
    ]


def elementwise(n: int) -> list[Any]:
    return [
        *with_gradients(lambda x, y: pb.tanh(x) * y + pb.exp(-x * x), floats(n), floats(n, seed=1)),
        *with_gradients(lambda x, y: F.gelu(x) / (1 + y * y), floats(7, n // 7), floats(n // 7, seed=1)),
        pb.where(floats(n) > 0, floats(n, seed=1), 0.0),
    ]


def reductions(n: int) -> list[Any]:
    x = floats(n // 50 + 1, 50)
    return [
        *with_gradients(lambda x: pb.sum(x, axis=0) * pb.max(x, axis=0), x),
        *[f(x, axis=axis) for f in (pb.mean, pb.min, pb.var, pb.argmax, pb.prod) for axis in (0, 1)],
        pb.sum(floats(n)),
    ]


def rows(n: int) -> list[Any]:
    x = floats(n // 64 + 1, 64)
    return [
        *with_gradients(lambda x: F.softmax(x, axis=-1), x),
        *with_gradients(lambda x: F.log_softmax(x, axis=-1), floats(3, n)),
        *with_gradients(lambda x, w, b: F.layer_norm(x, w, b), x, floats(64, seed=1), floats(64, seed=2)),
    ]


def cross_entropy(n: int) -> list[Any]:
    x, y = floats(n // 10 + 1, 10), integers(10, n // 10 + 1)
    with pb.GradientTape() as tape:
        tape.watch(x)
        loss = nn.cross_entropy(x, y)
    return [loss, tape.gradient(loss, x)]


def products(n: int) -> list[Any]:
    side = max(8, int(n**0.5))
    a, b = floats(side, 70), floats(70, side + 3, seed=1)
    out = with_gradients(lambda a, b: a @ b, a, b)
    out += with_gradients(lambda x, w, b: F.linear(x, w, b, "relu"), floats(side, 33), floats(40, 33, seed=1), floats(40, seed=2))
    out += [floats(3, side, 20) @ floats(3, 20, 9, seed=1), floats(1, 300) @ floats(300, 2, seed=1)]
    return out


def rounded_products(n: int) -> list[Any]:
    """Multiplies on tensor cores: tf32 has 10 bits of mantissa on a GPU and 23 elsewhere; the comparison allows for it."""
    side = max(16, int(n**0.5))
    out = []
    for precision in ("tf32", "bfloat16", "float16"):
        with pb.amp.autocast(precision):
            out += with_gradients(lambda a, b: a @ b, floats(side, 64), floats(64, side, seed=1))
    return [*out, (floats(side, 64).astype("bfloat16") @ floats(64, side, seed=1).astype("bfloat16")).astype("float32")]


def layouts(n: int) -> list[Any]:
    x = floats(n // 20 + 1, 20)
    return [
        pb.copy(pb.permute_dims(x, (1, 0))), pb.concat([x, x], axis=1), pb.copy(pb.flip(x, axis=0)), x.astype("float16"),
        x.astype("int32"), pb.copy(pb.broadcast_to(x[:1], (5, 20))), pb.stack([x, x]), pb.tril(floats(33, 33)),
    ]  # fmt: skip


def indexing(n: int) -> list[Any]:
    x, columns = floats(n // 8 + 1, 8), integers(8, n // 8 + 1, 3)
    found = pb.searchsorted(pb.sort(floats(n)), floats(100, seed=1))
    return [*with_gradients(lambda x: pb.take_along_axis(x, columns, axis=1), x), pb.one_hot(columns, 8), found]


def cumulative(n: int) -> list[Any]:
    near_one = 1 + 0.001 * floats(n)
    return [*with_gradients(lambda x: pb.cumulative_sum(x, axis=1), floats(3, n)), pb.cumulative_prod(near_one, axis=0)]


def random(n: int) -> list[Any]:
    """Draws random numbers, which are the same on every device."""
    pb.random.seed(5)
    draw = pb.random
    return [draw.uniform((n,)), draw.normal((n,)), draw.bernoulli((n,), 0.3), draw.randint(0, 9, (n,)), draw.permutation(n)]


def optimizers(n: int) -> list[Any]:
    out = []
    for make in (lambda p: optim.Adam(p, lr=0.1, clip_norm=1.0), lambda p: optim.SGD(p, lr=0.1, momentum=0.9)):
        parameters = [pb.Parameter(floats(*shape)) for shape in ((n,), (30, 4), (1,))]
        opt = make(parameters)
        for seed in (1, 2):
            opt.step([floats(*p.shape, seed=seed) for p in parameters])
        out += [pb.copy(p) for p in parameters]
    return out


def captured_step(n: int) -> list[Any]:
    """Records a training step at its first call and replays it three times; then does the same with three steps per call."""
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
    model.load_state_dict({name: floats(*p.shape, seed=3) / 10 for name, p in model.named_parameters()})
    opt = optim.Adam(model.parameters(), lr=1e-2)
    step = training_step(model, opt)
    once, thrice = pb.capture(step), pb.capture(step, steps=3)
    count = min(n, 64)
    losses = [once(floats(count, 20), integers(5, count)) for _ in range(4)]
    for _ in range(2):
        losses.append(thrice(floats(3, count, 20), integers(5, 3, count)))
    for captured in (once, thrice):
        _require_a_graph(captured)
    return [*losses, *[pb.copy(p) for p in model.parameters()]]


def new_addresses(n: int) -> list[Any]:
    """Keeps all arguments and results of a captured function, so that each call has new addresses and the graph copies them."""
    captured = pb.capture(lambda x, rows: (pb.sum(x * x, axis=1), x[rows], pb.tanh(x)))
    given = [(floats(7, n // 7 + 1, seed=seed), integers(7, 5, seed=seed)) for seed in range(9)]
    results = [captured(x, rows) for x, rows in given]
    _require_a_graph(captured)
    return [y for one in results for y in one]


def _require_a_graph(captured: Any) -> None:
    """Raises RuntimeError if a captured function does not run as a CUDA graph. Its results alone would not show this."""
    if why := captured.explain().why_single:
        raise RuntimeError(f"a captured function does not run as a CUDA graph: {why}")


# The radix sort comes first because its blocks wait for each other, so no other family could hang.
FAMILIES: dict[str, Program] = {
    f.__name__: f
    for f in (
        radix_sort, captured_step, new_addresses, select, scatter, elementwise, reductions, rows, cross_entropy, products,
        rounded_products, layouts, indexing, cumulative, random, optimizers,
    )
}  # fmt: skip
# relative to the largest element; 2e-5 for the other families, since sums may run in another order
TOLERANCES = {"rounded_products": 5e-3}


def difference(got: Any, wanted: Any) -> float:
    """Returns the largest difference of two arrays over the largest element, or inf if shapes, dtypes or infinities differ."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return float("inf")
    if got.dtype.kind in "iub":
        return 0.0 if np.array_equal(got, wanted) else float("inf")
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return float("inf")
    a, b = a[finite], b[finite]
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) if a.size else 0.0
