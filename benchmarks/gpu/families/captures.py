"""Captured functions, which run as CUDA graphs. They must give the bits of the eager function on the same device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from training import training_step

import pullback as pb
from pullback import nn, optim

from .comparison import as_line, compared
from .values import FLOATS, SHORTEST, Case, floats, given, integers


def require_a_graph(captured: Any) -> None:
    """Raises RuntimeError if a captured function does not run as a CUDA graph. Its results alone would not show this."""
    if why := captured.explain().why_single:
        raise RuntimeError(f"a captured function does not run as a CUDA graph: {why}")


def require_equal(names: list[str], got: list[Any], wanted: list[Any], what: str) -> None:
    """Raises RuntimeError, which names the first tensor whose bits differ."""
    for place, (name, a, b) in enumerate(zip(names, got, wanted)):
        if found := compared(np.asarray(a.numpy()), np.asarray(b.numpy()), 0.0):
            raise RuntimeError(f"{what} has other bits than the eager step: {as_line(name, place, found)}")


Maker = Callable[[], tuple[Callable[..., Any], Callable[[], dict[str, Any]]]]


def _three_ways(make: Maker, batches: list[tuple[Any, ...]], calls: int = 6) -> list[Any]:
    """Runs a step eagerly, captured, and captured with steps=3. Returns the losses and the state of the last way.

    Raises RuntimeError if their bits differ, or if a captured step does not run as a CUDA graph.
    """
    ways: list[list[Any]] = []
    names: list[str] = []
    for steps in (0, None, 3):
        step, state = make()
        taken = [batches[i % len(batches)] for i in range(calls)]
        if steps == 0:
            losses = [step(*batch) for batch in taken]
        elif steps is None:
            captured = pb.capture(step)
            losses = [captured(*batch) for batch in taken]
            require_a_graph(captured)
        else:
            captured = pb.capture(step, steps=steps)
            at_once = [[pb.stack(column) for column in zip(*taken[i : i + steps])] for i in range(0, calls, steps)]
            losses = [loss for batch in at_once for loss in pb.unstack(captured(*batch))]
            require_a_graph(captured)
        found = state()
        names = [*[f"loss {i}" for i in range(calls)], *found]
        ways.append([*losses, *[pb.copy(value) for value in found.values()]])
        if len(ways) > 1:
            require_equal(names, ways[-1], ways[0], f"a captured step with steps={steps}")
    return ways[-1]


def _network(make: Callable[[], Any], rule: Callable[[Any], Any], loss_of: Any = nn.cross_entropy) -> Maker:
    """Returns a function that makes a network, the same each time, with its training step."""

    def made() -> tuple[Any, Any]:
        model = given(make(), 0.2)
        opt = rule(model.parameters())

        def step(x: Any, y: Any) -> Any:
            return opt.minimize(lambda: loss_of(model(x), y))

        return step, model.state_dict

    return made


class LastState(nn.Module):
    """A recurrent layer, and a linear layer that reads its last output."""

    def __init__(self, kind: str, width: int, hidden: int, classes: int) -> None:
        self.layer, self.head = getattr(nn, kind)(width, hidden), nn.Linear(hidden, classes)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(x)[0][-1])


def captured_step(n: int) -> Iterator[Case]:
    """Records a training step at its first call and replays it three times; then does the same with three steps per call."""

    def mlp(dtype: str) -> Any:
        return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5)).to(dtype)

    def once_and_thrice() -> list[Any]:
        model = given(mlp("float32"), 0.1)
        opt = optim.Adam(model.parameters(), lr=1e-2)
        step = training_step(model, opt)
        once, thrice = pb.capture(step), pb.capture(step, steps=3)
        count = min(n, 64)
        losses = [once(floats(count, 20), integers(5, count)) for _ in range(4)]
        for _ in range(2):
            losses.append(thrice(floats(3, count, 20), integers(5, 3, count)))
        for captured in (once, thrice):
            require_a_graph(captured)
        return [*losses, *[pb.copy(p) for p in model.parameters()]]

    yield "a network of two layers", once_and_thrice
    for dtype in ("float32", "bfloat16", "float64"):
        batches = [(floats(64, 20, seed=i, dtype=dtype), integers(5, 64, seed=i)) for i in range(2)]
        rule = partial(optim.AdamW, lr=0.01, clip_norm=1.0, ema=0.9)
        yield f"eager = captured {dtype}", partial(_three_ways, _network(partial(mlp, dtype), rule), batches)
    for dtype in FLOATS:
        batches = [(floats(70, 20, seed=i, dtype=dtype), floats(70, 5, seed=i + 5, dtype=dtype)) for i in range(2)]
        make = _network(partial(_with_norms, dtype), partial(optim.SGD, lr=0.01, momentum=0.9), nn.mse)
        yield f"norms of rows, and a squared error {dtype}", partial(_three_ways, make, batches)
    yield "fusion=fast", _fast
    count = 128 if n > 5000 else 16
    wide = partial(lambda: nn.Sequential(nn.Linear(20, 200), nn.Tanh(), nn.Linear(200, 300)))
    batches = [(floats(count, 20, seed=i), integers(300, count, seed=i)) for i in range(2)]
    yield "300 classes", partial(_three_ways, _network(wide, partial(optim.SGD, lr=0.01)), batches)
    for dtype in ("float32", "float64", "float16") if n > SHORTEST else ():  # rows that are not held in registers
        batches = [(floats(2, 2, dtype=dtype), integers(9000, 2))]
        make = _network(partial(nn.Linear, 2, 9000, dtype=dtype), partial(optim.SGD, lr=0.01))
        yield f"9,000 classes {dtype}", partial(_three_ways, make, batches, calls=3)


def _with_norms(dtype: str) -> Any:
    norms = nn.LayerNorm(40), nn.RMSNorm(40)
    return nn.Sequential(nn.Linear(20, 40), norms[0], nn.GELU(), nn.Linear(40, 40), norms[1], nn.Linear(40, 5)).to(dtype)


def _fast() -> list[Any]:
    """Captures with fusion="fast", which may round in another order: a weight that is used twice, and a bias that is added."""

    def loss_of(x: Any, w: Any, b: Any) -> Any:
        with pb.GradientTape() as tape:
            tape.watch([w, b])
            loss = pb.sum(pb.tanh(pb.tanh(x @ w + b) @ w) ** 2)
        return [loss, *tape.gradient(loss, [w, b])]

    captured = pb.capture(loss_of, fusion="fast")
    found = [captured(floats(40, 9, seed=i), floats(9, 9, seed=i), floats(9)) for i in range(2)]
    require_a_graph(captured)
    return [y for one in found for y in one]


def captured_norms(n: int) -> Iterator[Case]:
    """Trains a network with batch norm, whose running values a captured step writes in place.

    The convolutions have no biases, because their gradients would be sums of rounding errors, which Adam would enlarge.
    """
    count, side = (16, 9) if n > 5000 else (4, 5)

    def net(norm: Callable[[int], Any]) -> Any:
        return nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1, bias=False), norm(6), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 4, 3, padding=1, bias=False), norm(4), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
        )

    batches = [(floats(count, 2, side, side, seed=i), integers(3, count, seed=i)) for i in range(3)]
    norms = {
        "batch norm": nn.BatchNorm2d, "batch norm, means of all batches": partial(nn.BatchNorm2d, momentum=None),
        "group norm": partial(nn.GroupNorm, 2), "instance norm": partial(nn.InstanceNorm2d, affine=True),
    }
    for name, norm in norms.items():
        yield name, partial(_three_ways, _network(partial(net, norm), partial(optim.Adam, lr=0.01)), batches)


def captured_recurrent(n: int) -> Iterator[Case]:
    """Trains recurrent networks. A layer of T steps is 2 T launches of a graph."""
    steps, rows = (30, 16) if n > 5000 else (5, 3)
    batches = [(floats(steps, rows, 6, seed=i), integers(3, rows, seed=i)) for i in range(2)]
    for kind in ("RNN", "GRU", "LSTM"):
        make = _network(partial(LastState, kind, 6, 24, 3), partial(optim.Adam, lr=0.01, clip_norm=1.0))
        yield kind, partial(_three_ways, make, batches)


def captured_attention(n: int) -> Iterator[Case]:
    """Trains a small decoder of characters."""
    context, count = (32, 4) if n > 5000 else (8, 2)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            self.characters, self.norm = nn.Embedding(11, 16), nn.LayerNorm(16)
            self.attention, self.head = nn.MultiHeadAttention(16, 4, 2, causal=True, rotary=True), nn.Linear(16, 11)

        def forward(self, x: Any) -> Any:
            x = self.characters(x)
            return pb.reshape(self.head(x + self.attention(self.norm(x))), (-1, 11))

    batches = [(integers(11, count, context, seed=i), integers(11, count * context, seed=i + 7)) for i in range(2)]
    yield "a decoder", partial(_three_ways, _network(Decoder, partial(optim.AdamW, lr=0.01)), batches)


def captured_steps_with_state(n: int) -> Iterator[Case]:
    """Captures dropout, whose numbers advance, and a scaled loss, whose second step overflows."""

    def dropout(steps: int | None) -> list[Any]:
        pb.random.seed(3)
        captured = pb.capture(lambda x: pb.nn.functional.dropout(x, 0.4), steps=steps)
        x = floats(3, 50, 7)
        found = [captured(x) for _ in range(2)] if steps else [pb.stack([captured(row) for row in x]) for _ in range(2)]
        require_a_graph(captured)
        return found

    def scaled() -> Any:
        model = given(nn.Linear(8, 3), 0.1).to("float16")
        opt, scaler = optim.Adam(model.parameters(), lr=0.01, master_weights=True), pb.amp.LossScaler(64.0, growth_interval=3)

        def step(x: Any, y: Any) -> Any:
            return opt.minimize(lambda: nn.cross_entropy(model(x), y), scaler=scaler)

        return step, lambda: {**model.state_dict(), "scale": scaler.value, "skipped": scaler.skipped}

    for steps in (None, 3):
        yield f"dropout, steps={steps}", partial(dropout, steps)
    batches = [(x.astype("float16"), integers(3, 9)) for x in (floats(9, 8), 60000 * floats(9, 8), floats(9, 8, seed=1))]
    yield "a scaled loss", partial(_three_ways, scaled, batches)


def new_addresses(n: int) -> Iterator[Case]:
    """Keeps all arguments and results of a captured function, so that each call has new addresses and the graph copies them."""

    def run() -> list[Any]:
        captured = pb.capture(lambda x, rows: (pb.sum(x * x, axis=1), x[rows], pb.tanh(x)))
        arguments = [(floats(7, n // 7 + 1, seed=seed), integers(7, 5, seed=seed)) for seed in range(9)]
        results = [captured(x, rows) for x, rows in arguments]
        require_a_graph(captured)
        return [y for one in results for y in one]

    def under_a_tape() -> list[Any]:
        captured, out = pb.capture(lambda x, w: pb.tanh(x @ w) * 2), []
        for seed in range(4):
            x, w = floats(40, 9, seed=seed), floats(9, 5, seed=seed)
            with pb.GradientTape() as tape:
                tape.watch([x, w])
                loss = pb.sum(captured(x, w) ** 2)
            out += [loss, *tape.gradient(loss, [x, w])]
        require_a_graph(captured)
        return out

    yield "arguments that are kept", run
    yield "under a tape", under_a_tape


def loader(n: int) -> Iterator[Case]:
    """Reads batches from the host. On a GPU they are copied on a second stream while kernels run."""
    rows, width = (600, 300) if n > 5000 else (40, 20)
    x = np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)
    y = np.arange(rows)

    def epochs(**options: Any) -> list[Any]:
        out = []
        batches = pb.data.Loader((x, y), 16, seed=1, from_host=True, **options)
        for _ in range(2):
            for a, b in batches:
                for _ in range(3):
                    a = a * 1.5 + 1  # the batch is dropped while kernels that read it are still to run
                out += [pb.sum(a, axis=1), b + 0]
        return out

    def kept() -> list[Any]:
        return list(pb.data.Loader(x, 16, seed=2, from_host=True))

    def left_early() -> list[Any]:
        out, batches = [], pb.data.Loader(x, 16, seed=3, from_host=True)
        for _ in range(3):
            for batch in batches:
                out.append(batch + 0)
                break
        return out

    def captured() -> list[Any]:
        step = pb.capture(lambda a: pb.sum(a * a, axis=1), steps=2)
        batches = pb.data.Loader(x, 16, seed=4, from_host=True, drop_last=True)
        out = [step(batches) for _ in range(rows // 16)]
        require_a_graph(step)
        return out

    yield "two epochs", epochs
    yield "two epochs in order", partial(epochs, shuffle=False)
    yield "batches that are kept", kept
    yield "loops that are left early", left_early
    yield "a captured step that takes batches", captured
    yield "arrays on the device", lambda: [a + 0 for a in pb.data.Loader(x, 16, seed=5)]
