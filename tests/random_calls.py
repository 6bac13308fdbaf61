"""Random calls of every kernel, on random shapes, layouts and dtypes.

`FAMILIES[family][name](rng)` calls a kernel and, if the op is differentiable, the kernels of its pullback.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import pullback as pb
import watched
from conftest import FLOATS, INTEGERS, call, draw, dtype_of, ops, takes
from pullback import optim
from pullback.autodiff.primitive import OPS, Op
from pullback.launch.refusal import Refused
from pullback.nn import functional
from pullback.ops.losses import divide_by_count
from pullback.optim import constraints, sets
from pullback.optim.program import MEMBER, WATCH
from pullback.tensors.dtypes import is_float
from random_layers import layers
from update_rules import RULES

Call = Callable[[Any], Any]
KERNELS: Any = watched.MODULE
ARITIES = {"unary": 1, "binary": 2, "select": 3}


# ---- operands


def shape_of(rng: Any, axes: int | None = None, most: int = 9) -> tuple[int, ...]:
    return tuple(rng.integers(1, most + 1, rng.integers(0, 4) if axes is None else axes).tolist())


def length(rng: Any) -> int:
    """Returns a random length: mostly short, sometimes longer than a lane-parallel row, a block of lanes, or a block of rows."""
    return int(rng.integers(1, rng.choice([4, 10, 40, 100, 1100], p=[0.3, 0.3, 0.2, 0.15, 0.05])))


def laid_out(rng: Any, x: Any) -> Any:
    """Returns a tensor of the same numbers with a random memory layout."""
    way = rng.integers(0, 5)
    if x.ndim == 0 or way < 2:
        return pb.asarray(x)
    if way == 2:
        return pb.permute_dims(pb.asarray(x.T.copy()), tuple(reversed(range(x.ndim))))
    if way == 3:
        return pb.asarray(np.repeat(x, 2, axis=-1))[..., ::2]
    return pb.flip(pb.asarray(np.flip(x, 0).copy()), axis=0)


def tensor(rng: Any, shape: tuple[int, ...], dtype: str = "", low: float = -2.0, high: float = 2.0) -> Any:
    return laid_out(rng, np.asarray(rng.uniform(low, high, shape)).astype(dtype_of(dtype or rng.choice(FLOATS))))


def broadcastable(rng: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    kept = shape[rng.integers(0, len(shape) + 1) :] if rng.random() < 0.4 else shape
    return tuple([1 if rng.random() < 0.2 else n for n in kept])


def along(rng: Any, dtype: str = "") -> tuple[Any, int]:
    """Returns a contiguous tensor and one of its axes. Contiguous, because some kernels first copy any other tensor."""
    x = pb.asarray(tensor(rng, shape_of(rng, int(rng.integers(1, 4)), 20), dtype, 0, 9), copy=True)
    return x, int(rng.integers(0, x.ndim))


def with_gradients(rng: Any, run: Callable[..., Any], *inputs: Any) -> None:
    """Runs the op on these inputs, and its pullback for the floating-point inputs."""
    sources = [x for x in inputs if isinstance(x, pb.Tensor) and is_float(x.dtype)]
    with pb.GradientTape() as tape:
        tape.watch(sources)
        y = run(*inputs)
    if sources and is_float(y.dtype):
        g = pb.asarray(rng.uniform(0.5, 1, y.shape), dtype=y.dtype)
        tape.gradient(y, sources, output_gradients=g, unconnected="zero")


# ---- elements, reductions


def elementwise(name: str) -> Call:
    """Returns a function that calls an elementwise kernel directly.

    A pullback uses g and at most one other operand, so all of its operands are the same array.
    """
    base, pulls, _ = name.partition("_pullback")
    op = OPS[base]
    arity = ARITIES[op.kind.name]
    kernel = getattr(KERNELS, name)

    def operands(rng: Any, dtype: Any) -> list[Any]:
        shape = shape_of(rng)
        shapes = [shape] + [broadcastable(rng, shape) for _ in range(arity - 1)]
        xs: list[Any] = [laid_out(rng, np.asarray(draw(op, dtype, s, rng))) for s in shapes]
        if pulls:
            return xs[:1] * (arity + 2)
        if op.kind.name == "select":
            xs[0] = pb.asarray(rng.random(shapes[0]) < 0.5)
        if arity > 1 and rng.random() < 0.1 and dtype in ("float32", "float64"):
            xs[-1] = 0.5
        return xs

    def run(rng: Any) -> None:
        dtype = rng.choice(takes(op) if rng.random() < 0.5 and not pulls else [d for d in FLOATS if d in takes(op)] or takes(op))
        try:
            kernel(*operands(rng, dtype_of(dtype)))
        except Refused:  # For this dtype the op runs another kernel, after a conversion.
            kernel(*operands(rng, dtype_of("float32")))

    return run


def gradients(op: Op) -> Call:
    def run(rng: Any) -> None:
        shape, dtype = shape_of(rng), dtype_of(rng.choice(FLOATS))
        xs = [laid_out(rng, np.asarray(draw(op, dtype, s, rng))) for s in (shape, broadcastable(rng, shape))]
        with_gradients(rng, lambda *xs: call(op, xs, ()), *xs[: ARITIES[op.kind.name]])

    return run


def reduction(op: Op) -> Call:
    def run(rng: Any) -> None:
        shape = shape_of(rng, axes=rng.integers(1, 5), most=8)
        if len(shape) <= 2 and rng.random() < 0.5:
            shape = tuple([n * int(rng.integers(1, 20)) for n in shape])
        axes = tuple(sorted(rng.choice(len(shape), rng.integers(1, len(shape) + 1), replace=False).tolist()))
        dtypes = FLOATS if op.name == "length" else takes(op)  # lengths of 0 are measured again
        x = laid_out(rng, np.asarray(draw(op, dtype_of(rng.choice(dtypes)), shape, rng)))
        with_gradients(rng, lambda x: call(op, (x,), (axes if "axes" in op.names else axes[0], False)[: op.params]), x)

    return run


def scan(name: str) -> Call:
    def run(rng: Any) -> None:
        x, axis = along(rng, rng.choice([*FLOATS, *INTEGERS]))
        getattr(KERNELS, name)(laid_out(rng, x.numpy()).array, axis, bool(rng.random() < 0.5))

    return run


# ---- rows, products


def rows(op: Op) -> Call:
    def run(rng: Any) -> None:
        x = tensor(rng, (*shape_of(rng, 1, 5), length(rng), 1 + length(rng))[rng.integers(0, 3) :], "", -1, 1)
        with_gradients(rng, lambda x: call(op, (x,), (1.25,) * op.params), x)

    return run


def norm(function: Any, vectors: int) -> Call:
    def run(rng: Any) -> None:
        n = 1 + length(rng)
        x = tensor(rng, (length(rng), n))
        given = [tensor(rng, (n,), str(x.dtype)) if rng.random() < 0.7 else None for _ in range(vectors)]
        with_gradients(rng, lambda *xs: function(*xs), x, *given)

    return run


def cross_entropy(rng: Any) -> None:
    labels = pb.asarray(rng.integers(0, classes := 1 + length(rng), n := length(rng)))
    how = {"reduction": str(rng.choice(["mean", "sum", "none"])), "label_smoothing": rng.choice([0.0, 0.1])}
    with_gradients(rng, lambda x: functional.cross_entropy(x, labels, **how), tensor(rng, (n, classes), "", -1, 1))


def divided_by_count(rng: Any) -> None:
    divide_by_count(tensor(rng, (n := length(rng),)), pb.asarray(rng.integers(-1, 3, (n, length(rng)))), -1)


def squared_error(rng: Any) -> None:
    shape, dtype = shape_of(rng) if rng.random() < 0.5 else (length(rng), length(rng)), str(rng.choice(FLOATS))
    how = {"reduction": str(rng.choice(["mean", "sum"]))}
    with_gradients(rng, lambda x, target: functional.mse(x, target, **how), tensor(rng, shape, dtype), tensor(rng, shape, dtype))


def sizes(rng: Any) -> list[int]:
    return [int(rng.integers(1, rng.choice([5, 20, 70]))) for _ in range(3)]


def matmul(rng: Any) -> None:
    dtype = rng.choice([*FLOATS, "int32", "uint8", "int64"], p=[0.1, 0.1, 0.35, 0.3, 0.05, 0.05, 0.05])
    m, k, n = sizes(rng)
    batch = shape_of(rng, int(rng.integers(0, 3)), 3)
    a, b = [tensor(rng, (*s, *last), dtype, 0, 9) for s, last in ((batch, (m, k)), (broadcastable(rng, batch), (k, n)))]
    if rng.random() < 0.3:
        a = tensor(rng, (*batch, k, m), dtype, 0, 9).mT
    if rng.random() < 0.3:
        b = tensor(rng, (n, k), dtype, 0, 9).mT
    with_gradients(rng, lambda a, b: a @ b, a, b)


def linear(rng: Any) -> None:
    dtype = rng.choice(FLOATS)
    m, k, n = sizes(rng)
    x, w = tensor(rng, (*shape_of(rng, int(rng.integers(0, 2)), 3), m, k), dtype), tensor(rng, (n, k), dtype)
    bias = tensor(rng, (n,), dtype) if rng.random() < 0.6 else None
    activation = str(rng.choice(["relu", "tanh", "sigmoid"])) if rng.random() < 0.5 else None
    with_gradients(rng, lambda *xs: functional.linear(*xs, activation=activation), x, w, bias)


# ---- updates


def step(make: Callable[..., Any], masked: bool = False) -> Call:
    """Returns a function that does steps of an optimizer, and previews, with masks if `masked`."""

    def run(rng: Any) -> None:
        shapes = [shape_of(rng) for _ in range(rng.integers(1, 5))]
        dtypes = [rng.choice(FLOATS) for _ in shapes]
        opt = make([pb.Parameter(tensor(rng, s, d)) for s, d in zip(shapes, dtypes)])
        grads = [tensor(rng, s, d) if rng.random() < 0.9 else None for s, d in zip(shapes, dtypes)]
        if masked:
            opt._memory.masks = [pb.asarray(rng.random(s) < 0.5).array for s in shapes]
        opt.step(grads, return_delta=bool(rng.random() < 0.3))
        opt.lr = 0.01
        opt.step(grads)
        if rng.random() < 0.3:
            opt.preview(grads)

    return run


def added(rng: Any) -> None:
    changes, table = tensor(rng, shape_of(rng), "float32"), pb.ones((1, 32), dtype="float64").array
    plan = KERNELS.update_plan([pb.ones(changes.shape).array], [], None, None, None, 1)
    KERNELS.add_step(plan, [changes.array], table, None, False, 0)


def projected(limit: Any) -> Call:
    """Returns a function that does steps with a constraint, also with masks, averages, deltas and masters.

    The vectors of distributions are nearly uniform, so that the first round finds their threshold: further ones are not counted.
    """

    def run(rng: Any) -> None:
        shapes = [shape_of(rng) for _ in range(rng.integers(1, 4))]
        dtypes = [rng.choice(FLOATS) for _ in shapes]
        near = limit is constraints.Simplex
        limits = [limit(*([1.0] if limit is constraints.MaxNorm else []), int(rng.integers(len(s))) if s else None) for s in shapes]
        params = [
            pb.Parameter(tensor(rng, s, d) * (1e-3 if near else 1.0), constraint=k) for s, d, k in zip(shapes, dtypes, limits)
        ]
        opt = optim.SGD(params, 1e-5, ema=0.9 if rng.random() < 0.5 else None, master_weights=bool(rng.random() < 0.5))
        if rng.random() < 0.5:
            opt._memory.masks = [pb.asarray(rng.random(s) < 0.9).array for s in shapes]
        grads = [tensor(rng, s, d) for s, d in zip(shapes, dtypes)]
        opt.step(grads, return_delta=bool(rng.random() < 0.5))
        opt.preview(grads)

    return run


def begun(rng: Any) -> None:
    sets = pb.ones((3, 32), dtype="float64")
    KERNELS.begin_steps(sets.array, pb.zeros_like(sets).array, 3)


def observed(rng: Any) -> None:
    """Observes with a table in which all rows after the sets are states of reduce-on-plateau."""
    members = int(rng.integers(1, 5))
    table = np.zeros((2 * members, sets.SIZE))
    table[members:, [sets.SCHEDULE, MEMBER]] = np.stack([np.full(members, WATCH), np.arange(members)], axis=1)
    metric = tensor(rng, (members,) if rng.random() < 0.5 else (), rng.choice(FLOATS))
    KERNELS.observe(pb.tensor(table, dtype="float64").array, metric.array, members, members)


# ---- indices, moves


def take(rng: Any) -> None:
    x, axis = along(rng)
    at = pb.asarray(rng.permutation(x.shape[axis])[: rng.integers(1, x.shape[axis] + 1)])
    with_gradients(rng, lambda x: pb.take(x, at, axis=axis), x)


def take_along_axis(rng: Any) -> None:
    x, axis = along(rng)
    order = np.argsort(rng.random(x.shape), axis=axis)
    at = pb.asarray(np.take(order, range(rng.integers(1, x.shape[axis] + 1)), axis=axis))
    with_gradients(rng, lambda x: pb.take_along_axis(x, at, axis=axis), x)


def write(name: str) -> Call:
    def run(rng: Any) -> None:
        x, axis = along(rng)
        at = pb.asarray(rng.permutation(x.shape[axis])[: rng.integers(1, x.shape[axis] + 1)])
        u = tensor(rng, (*x.shape[:axis], at.size, *x.shape[axis + 1 :]), str(x.dtype))
        with_gradients(rng, lambda x, u: call(OPS[name], (x, u, at), (axis,)), x, u)

    return run


def segments(op: Op) -> Call:
    def run(rng: Any) -> None:
        x = tensor(rng, shape_of(rng, int(rng.integers(1, 4)), 40))
        ids = pb.asarray(rng.integers(0, 5, x.shape[0]))
        with_gradients(rng, lambda x: call(op, (x, ids), (5,)), x)

    return run


def moved(run: Callable[[Any, Any, int], Any]) -> Call:
    """Returns a function that calls run(rng, x, axis) on a tensor of a random dtype."""

    def call_it(rng: Any) -> None:
        x = tensor(rng, shape_of(rng, int(rng.integers(1, 4)), 12), rng.choice([*FLOATS, *INTEGERS]), 0, 9)
        run(rng, x, int(rng.integers(0, x.ndim)))

    return call_it


def searchsorted(rng: Any) -> None:
    x = pb.sort(tensor(rng, (length(rng),), "float32"))
    KERNELS.searchsorted(x.array, tensor(rng, shape_of(rng), "float32").array, True)


# ---- random numbers


def drawn(draws: Callable[..., Any]) -> Call:
    return lambda rng: draws(pb.random.Generator(int(rng.integers(100))), shape_of(rng, most=20), rng.choice(FLOATS))


def state(rng: Any) -> Any:
    return pb.asarray(rng.integers(0, 9, 2).astype(np.uint64)).array


FAMILIES: dict[str, dict[str, Call]] = {
    "map": {name: elementwise(name) for name in watched.elementwise()},
    "gradients": {op.name: gradients(op) for op in ops("unary", "binary") if "float64" in takes(op)},
    "reduce": {
        **{op.name: reduction(op) for op in ops("reduce")},
        **{name: scan(name) for name in ("cumulative_sum", "cumulative_prod", "cumulative_max", "cumulative_min")},
    },
    "rows": {
        **{op.name: rows(op) for op in ops("rows")},
        "layer_norm": norm(functional.layer_norm, 2),
        "rms_norm": norm(functional.rms_norm, 1),
        "cross_entropy": cross_entropy,
        "squared_error": squared_error,
        "divide_by_count": divided_by_count,
    },
    "products": {"matmul": matmul, "linear": linear},
    **layers(tensor, with_gradients),
    "updates": {
        **{name: step(partial(cls, **options)) for name, (cls, options) in RULES.items()},
        "clamped": step(partial(optim.SGD, momentum=0.9, clip_value=1.0)),
        "clipped by units": step(partial(optim.SGD, clip_adaptive=0.1)),
        "clipped": step(partial(optim.AdamW, clip_norm=1.0)),
        "averaged": step(partial(optim.Adam, ema=0.9)),
        "rounded": step(partial(optim.Adam, ema=0.9, stochastic_rounding=True)),
        "masked": step(partial(optim.SGD, momentum=0.9, ema=0.9), masked=True),
        "add": added,
        **{limit.__name__: projected(limit) for limit in (constraints.MaxNorm, constraints.UnitNorm, constraints.Simplex)},
        "begin_steps": begun,
        "observe": observed,
    },
    "indices": {
        "take": take,
        "take_along_axis": take_along_axis,
        **{name: write(name) for name in ("index_add", "index_set", "index_max", "index_min")},
        **{name: segments(OPS[name]) for name in ("segment_sum", "segment_max", "segment_min")},
        "one_hot": lambda rng: functional.one_hot(pb.asarray(rng.integers(0, 7, shape_of(rng))), 7),
        "search": searchsorted,
    },
    "moves": {
        "copy": moved(lambda rng, x, axis: pb.asarray(x, copy=True)),
        "cast": moved(lambda rng, x, axis: x.astype(dtype_of(rng.choice([*FLOATS, *INTEGERS, "bool"])))),
        "concat": moved(lambda rng, x, axis: pb.concat([x, x], axis=axis)),
        "pad": moved(lambda rng, x, axis: pb.pad(x, [(1, 2)] * x.ndim)),
        "fill": moved(lambda rng, x, axis: KERNELS.fill(x.shape, x.dtype, 1)),
        "assign": moved(lambda rng, x, axis: KERNELS.assign(pb.zeros(x.shape, dtype=x.dtype).array, x.array)),
        "nonzero": moved(lambda rng, x, axis: KERNELS.nonzero_flat(x.array)),
        "sort": moved(lambda rng, x, axis: pb.sort(x, axis=axis, descending=bool(rng.random() < 0.5))),
        "argsort": moved(lambda rng, x, axis: pb.argsort(x, axis=axis)),
        "topk": moved(lambda rng, x, axis: pb.topk(pb.asarray(x, copy=True), 1, axis=axis)),
    },
    "random": {
        "uniform": drawn(lambda g, s, d: g.uniform(s, dtype=d)),
        "normal": drawn(lambda g, s, d: g.normal(s, dtype=d)),
        "truncated_normal": drawn(lambda g, s, d: g.truncated_normal(s, dtype=d)),
        "bernoulli": drawn(lambda g, s, d: g.bernoulli(s)),
        "randint": drawn(lambda g, s, d: g.randint(0, 9, s)),
        "permutation": drawn(lambda g, s, d: g.permutation(20)),
        "dropout": lambda rng: with_gradients(rng, lambda x: functional.dropout(x, 0.3), tensor(rng, shape_of(rng))),
        "write_settings": lambda rng: KERNELS.write_settings(pb.ones((3, 32), dtype="float64").array, 0, 2, 2, 2, [0.5, 0.25]),
        "random_keys": lambda rng: KERNELS.random_keys(state(rng), length(rng)),
        "random_state": lambda rng: KERNELS.random_state(state(rng), 3),
        "advance_state": lambda rng: KERNELS.advance_state(state(rng), 3),
    },
}
