"""What is timed on a GPU, in groups that run.py gives a process each: `python workloads.py GROUP [--simulated] [--rounds 9]`
prints a JSON object a workload. Every time is that of whole calls as a user makes them, in pullback and in PyTorch by turns.
"""

from __future__ import annotations

import argparse
import importlib
import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import timing

import pullback as pb
from pullback import nn, optim

torch: Any = importlib.import_module("torch")  # the rival; where it has no GPU, on the CPU, and marked so


class Workload(NamedTuple):
    """One comparison: what to reach, the two runs, and what is moved or computed at least."""

    name: str
    make: Callable[[], tuple[Callable[[], Any], Callable[[], Any] | None]]
    target: dict[str, float]  # at most: ratio, us; at least: share (of the copy bandwidth), speed (theirs / ours)
    bytes: int = 0
    flops: int = 0


SMALL = False  # on the simulator


def size(n: int, small: int) -> int:
    return small if SMALL else n


def where() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Random numbers; the same million again and again, for the sake of time."""
    return np.resize(np.random.default_rng(seed).standard_normal(1_000_003, dtype=np.float32), shape)


def both(array: np.ndarray) -> tuple[Any, Any]:
    """The same numbers as a tensor of each library on its device."""
    return pb.tensor(array, device="cuda"), torch.from_numpy(array).to(where())


def differentiated(f: Callable[[Any], Any], x: Any, weight: Any) -> Callable[[], Any]:
    def run() -> Any:
        with pb.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x, output_gradients=weight)

    return run


# ---- steps of a small network, as a user writes them


def _step(sizes: tuple[int, ...], batch: int, captured: bool = False, steps: int = 0, **options: Any) -> tuple[Any, Any]:
    """A step in both: eager, or captured next to torch.compile with CUDA graphs. With steps, so many in one call of ours."""
    layers: list[Any] = []
    theirs: list[Any] = []
    for i, (m, n) in enumerate(zip(sizes, sizes[1:])):
        last = i + 2 == len(sizes)
        layers += [nn.Linear(m, n)] + ([] if last else [nn.ReLU()])
        theirs += [torch.nn.Linear(m, n)] + ([] if last else [torch.nn.ReLU()])
    model = nn.Sequential(*layers)
    opt = optim.Adam(model.parameters(), lr=1e-3)
    x, tx = both(floats(batch, sizes[0]))
    y, ty = both(np.random.default_rng(1).integers(0, sizes[-1], batch))

    def step(x: Any, y: Any) -> Any:
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(model(x), y)
        opt.step(tape.gradient(loss, opt.parameters))
        return loss

    if steps:
        xs, ys = pb.stack([x] * steps), pb.stack([y] * steps)
        step, x, y = pb.capture(step, steps=steps), xs, ys
    elif captured:
        step = pb.capture(step)

    def ours() -> None:
        step(x, y)

    net = torch.nn.Sequential(*theirs).to(where())
    other = torch.optim.Adam(net.parameters(), lr=1e-3, **options)

    def their() -> None:
        other.zero_grad()
        torch.nn.functional.cross_entropy(net(tx), ty).backward()
        other.step()

    return ours, torch.compile(their, mode="reduce-overhead") if captured and where() == "cuda" else their


def steps() -> Iterator[Workload]:
    yield Workload("MLP 784-128-10, batch 64, Adam step", lambda: _step((784, 128, 10), 64), {"ratio": 0.6})
    yield Workload("the same, torch with Adam(fused=True)", lambda: _step((784, 128, 10), 64, fused=where() == "cuda"), {})
    yield Workload("MLP 784-1024-1024-10, batch 512, Adam step", lambda: _step((784, 1024, 1024, 10), size(512, 8)), {})

    def chain() -> tuple[Any, Any]:
        x, tx = both(floats(8))
        c, tc = both(floats(8, seed=1))
        tx.requires_grad_()

        def ours() -> Any:
            with pb.GradientTape() as tape:
                tape.watch(x)
                y = x
                for _ in range(50):
                    y = pb.tanh(y) + c
                loss = pb.sum(y)
            return tape.gradient(loss, x)

        def theirs() -> Any:
            y = tx
            for _ in range(50):
                y = torch.tanh(y) + tc
            return torch.autograd.grad(y.sum(), tx)

        return ours, theirs

    yield Workload("50 x (tanh, add) on 8 numbers, forward and backward", chain, {})


def captured() -> Iterator[Workload]:
    graph = {"captured": True, "capturable": True} if where() == "cuda" else {"captured": True}
    small, large = (784, 128, 10), (784, 1024, 1024, 10)
    name = "captured, next to torch.compile: MLP"
    yield Workload(f"{name} 784-128-10, batch 64", lambda: _step(small, 64, **graph), {"us": 18, "ratio": 0.2})
    yield Workload("captured: 16 steps in one call (of 16)", lambda: _step(small, 64, steps=16), {})
    yield Workload(f"{name} 784-1024-1024-10, batch 512", lambda: _step(large, size(512, 8), **graph), {"us": 45, "ratio": 0.5})


# ---- the optimizer


def optimizer() -> Iterator[Workload]:
    count, each = 100, size(100_000, 100)

    def adam(how: dict[str, Any]) -> tuple[Any, Any]:
        params = [pb.Parameter(np.zeros(each, np.float32)) for _ in range(count)]
        opt = optim.Adam(params, lr=1e-3)
        gradients = [pb.tensor(floats(each, seed=k), device="cuda") for k in range(count)]
        theirs = [torch.nn.Parameter(torch.zeros(each, device=where())) for _ in range(count)]
        for k, p in enumerate(theirs):
            p.grad = torch.from_numpy(floats(each, seed=k)).to(where())
        return lambda: opt.step(gradients), torch.optim.Adam(theirs, lr=1e-3, **how).step

    moved = 28 * count * each
    yield Workload("Adam, 10 M parameters in 100 tensors, torch fused", lambda: adam({"fused": True}), {"us": 72}, moved)
    yield Workload("the same, torch foreach", lambda: adam({"foreach": True}), {}, moved)


# ---- one pass over memory


def elementwise() -> Iterator[Workload]:
    n = size(100_000_000, 10_000)

    def unary(f: Callable[[Any], Any], g: Callable[[Any], Any]) -> Callable[[], tuple[Any, Any]]:
        def make() -> tuple[Any, Any]:
            x, tx = both(floats(n))
            return lambda: f(x), lambda: g(tx)

        return make

    def add() -> tuple[Any, Any]:
        (x, tx), (y, ty) = both(floats(n)), both(floats(n, seed=1))
        return lambda: x + y, lambda: tx + ty

    functional = torch.nn.functional
    for name, f, g in [
        ("negative", pb.negative, torch.neg),
        ("exp", pb.exp, torch.exp),
        ("tanh", pb.tanh, torch.tanh),
        ("gelu", nn.functional.gelu, functional.gelu),
        ("multiply by a number", lambda x: x * 1.5, lambda x: x * 1.5),
    ]:
        yield Workload(f"{name}, 10^8 float32", unary(f, g), {"share": 0.85}, 8 * n)
    yield Workload("add, 10^8 float32", add, {"share": 0.85}, 12 * n)


def rows() -> Iterator[Workload]:
    functional = torch.nn.functional
    for n in (1024, 8192):
        m = size(100_000_000, 16384) // n

        def one(f: Callable[[Any], Any], g: Callable[[Any], Any], m: int = m, n: int = n) -> Callable[[], tuple[Any, Any]]:
            def make() -> tuple[Any, Any]:
                x, tx = both(floats(m, n))
                return lambda: f(x), lambda: g(tx)

            return make

        norm, their_norm = nn.LayerNorm(n), torch.nn.LayerNorm(n).to(where()).requires_grad_(False)
        for name, f, g, moved in [
            ("softmax", lambda x: nn.functional.softmax(x, axis=-1), lambda x: functional.softmax(x, -1), 8),
            ("log softmax", lambda x: nn.functional.log_softmax(x, axis=-1), lambda x: functional.log_softmax(x, -1), 8),
            ("layer norm", norm, their_norm, 8),
            ("sum of rows", lambda x: pb.sum(x, axis=-1), lambda x: x.sum(-1), 4),
            ("sum of columns", lambda x: pb.sum(x, axis=0), lambda x: x.sum(0), 4),
        ]:
            yield Workload(f"{name}, 10^8 float32 in rows of {n}", one(f, g), {"share": 0.85}, moved * m * n)


# ---- products


def _set_precision(name: str) -> None:
    """The precision of float32 products, in both libraries."""
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    kernels = importlib.import_module("pullback._cuda")
    kernels.set_matmul_precision({"exact": 0, "tf32": 1}[name])


def products() -> Iterator[Workload]:
    def square(n: int, dtype: str, precision: str) -> Callable[[], tuple[Any, Any]]:
        def make() -> tuple[Any, Any]:
            _set_precision(precision)
            (a, ta), (b, tb) = both(floats(n, n)), both(floats(n, n, seed=1))
            if dtype != "float32":
                a, b = a.astype(dtype), b.astype(dtype)
                ta, tb = ta.to(getattr(torch, dtype)), tb.to(getattr(torch, dtype))
            return lambda: a @ b, lambda: ta @ tb

        return make

    for n in (size(4096, 64), size(1024, 32), size(128, 16)):
        target = {"speed": 0.95} if n == 4096 else {}
        for dtype, precision in [("float32", "tf32"), ("bfloat16", "exact"), ("float32", "exact")]:
            name = "tf32" if precision == "tf32" else dtype
            yield Workload(f"product {n}^3, {name}", square(n, dtype, precision), target if name != "float32" else {}, 0, 2 * n**3)


# ---- the loss


def loss() -> Iterator[Workload]:
    m, n = size(8192, 32), size(1024, 64)

    def cross_entropy() -> tuple[Any, Any]:
        (x, tx), (y, ty) = both(floats(m, n)), both(np.random.default_rng(1).integers(0, n, m))
        tx.requires_grad_()

        def ours() -> Any:
            with pb.GradientTape() as tape:
                tape.watch(x)
                value = nn.cross_entropy(x, y)
            return tape.gradient(value, x)

        return ours, lambda: torch.autograd.grad(torch.nn.functional.cross_entropy(tx, ty), tx)

    yield Workload(f"softmax cross entropy {m} x {n}, forward and backward", cross_entropy, {"ratio": 0.5}, 8 * m * n)

    def layer_norm() -> tuple[Any, Any]:
        (x, tx), (g, tg) = both(floats(m, n)), both(floats(m, n, seed=1))
        norm, theirs = nn.LayerNorm(n), torch.nn.LayerNorm(n).to(where())
        tx.requires_grad_()
        return differentiated(norm, x, g), lambda: torch.autograd.grad(theirs(tx), tx, tg)

    yield Workload(f"layer norm {m} x {n}, forward and backward", layer_norm, {}, 20 * m * n)


GROUPS = {g.__name__: g for g in (steps, captured, optimizer, elementwise, rows, products, loss)}


# ---- running them


def ceiling(rounds: int) -> float:
    """GB/s of a copy on the device, bytes read and written: what a share is a share of."""
    x = torch.ones(size(100_000_000, 10_000), device=where())
    y = torch.empty_like(x)
    us = timing.compare(lambda: y.copy_(x), their_finish(), rounds=rounds)["ours_us"]["median"]
    return 8e-3 * x.numel() / us


def their_finish() -> Callable[[], Any]:
    return torch.cuda.synchronize if torch.cuda.is_available() else lambda: None


def agree(ours: Any, theirs: Any) -> float | None:
    """The largest difference of the two results over the largest of theirs, where they are one array each."""
    if not hasattr(ours, "numpy") or isinstance(theirs, (list, type(None))):
        return None
    value = theirs[0] if isinstance(theirs, tuple) else theirs
    if ours.shape != tuple(value.shape):
        raise ValueError(f"the shape is {ours.shape}, and torch's is {tuple(value.shape)}")
    some = 5_000_000  # of 10^8
    expected = value.detach().flatten()[:some].double().cpu().numpy()
    got = np.asarray(ours.numpy()).reshape(-1)[:some].astype(np.float64)
    difference = float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-30))
    if not difference < 1e-2:
        raise ValueError(f"the results differ by {difference} of the largest")
    return difference


def judge(workload: Workload, result: dict[str, Any]) -> None:
    us = result["ours_us"]["median"]
    reached = {}
    if workload.bytes:
        result["gb_per_s"] = workload.bytes * 1e-3 / us
        result["share"] = result["gb_per_s"] / result["copy_gb_per_s"]
    if workload.flops:
        result["tflop_per_s"] = workload.flops * 1e-6 / us
    for key, limit in workload.target.items():
        if key == "us":
            reached[key] = us <= limit
        elif key == "ratio" and "ratio" in result:
            reached[key] = result["ratio"]["median"] <= limit
        elif key == "share":
            reached[key] = result["share"] >= limit
        elif key == "speed" and "ratio" in result:
            reached[key] = 1 / result["ratio"]["median"] >= limit
    result["target"], result["reached"] = workload.target, {} if SMALL else reached


@contextmanager
def fresh_memory() -> Iterator[None]:
    try:
        yield
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def main() -> None:
    global SMALL
    parser = argparse.ArgumentParser()
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--rounds", type=int, default=timing.ROUNDS)
    options = parser.parse_args()
    SMALL = options.simulated
    finish = pb.cuda.synchronize
    with pb.use_device("cuda"):
        copy = ceiling(options.rounds)
        for workload in GROUPS[options.group]():
            result: dict[str, Any] = {"group": options.group, "name": workload.name, "rival": f"torch on {where()}"}
            result["copy_gb_per_s"] = copy
            try:
                with fresh_memory():
                    ours, theirs = workload.make()
                    result["difference"] = agree(ours(), theirs()) if theirs is not None else None
                    result |= timing.compare(ours, finish, theirs, their_finish(), options.rounds)
                    judge(workload, result)
                    del ours, theirs
            except Exception as error:
                result["error"] = f"{type(error).__name__}: {error}"[:2000]
                result["traceback"] = traceback.format_exc()[-2000:]
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
