"""Shared by the tests of capture: a reproducible small training step, and the comparison of bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import backends, nn, optim
from pullback.nn import functional as F
from pullback.tensors import devices
from pullback.tree import flatten
from update_rules import RULES

REASON = backends.why_not(devices.default_device())
needs_kernels = pytest.mark.skipif(REASON is not None, reason=f"no native kernels: {REASON}")
# These ops have no kernel, or on a GPU none there. Capture refuses them by name.
UNREPEATABLE = (
    "nextafter", "place", "to_device", *(
        "cholesky", "solve", "solve_triangular", "det", "slogdet", "cofactors", "qr", "eigh", "eigvalsh", "svd", "svdvals", "pinv",
    ) * (devices.default_device() != "cpu"),
)
ROWS, CLASSES = 12, 4


class Net(nn.Module):
    def __init__(self, dtype: Any = None) -> None:
        self.layers = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.LayerNorm(7), nn.Dropout(0.3), nn.Linear(7, CLASSES))
        if dtype is not None:
            self.to(dtype)

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def batches(count: int, dtype: Any = np.float32) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    return [
        (pb.tensor(rng.standard_normal((ROWS, 5)), dtype=dtype), pb.tensor(rng.integers(0, CLASSES, ROWS))) for _ in range(count)
    ]


def training(make: Callable[[Any], Any], dtype: Any = None) -> tuple[Any, Any, Any]:
    """Returns a network, its optimizer and a training step. Every call returns equal ones."""
    pb.random.seed(3)
    net = Net(dtype)
    opt = make(net.parameters())

    def step(x: Any, y: Any) -> Any:
        with pb.GradientTape() as tape:
            loss = F.cross_entropy(net(x), y)
        opt.step(tape.gradient(loss, opt.parameters))
        return loss

    return net, opt, step


def run(step: Any, data: Any, seed: int = 1) -> list[Any]:
    pb.random.seed(seed)
    return [host(step(*batch)) for batch in data]


def same(a: Any, b: Any) -> None:
    """Asserts that shape, dtype and bits are equal."""
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    np.testing.assert_array_equal(np.ascontiguousarray(host(a)).view(np.uint8), np.ascontiguousarray(host(b)).view(np.uint8))


def same_state(one: Any, other: Any) -> None:
    """Asserts that weights, slots, step counts and versions of two optimizers are equal."""
    assert one.steps == other.steps
    for p, q in zip(one.parameters, other.parameters):
        same(p, q)
        assert p.version == q.version
        for name, slot in one.slots(p).items():
            same(slot, other.slots(q)[name])


# ---- captured functions under tapes and transforms


def normal(seed: int, *shape: int, dtype: Any = pb.float64) -> Any:
    return pb.tensor(np.random.default_rng(seed).standard_normal(shape), dtype=dtype)


def alike(got: Any, wanted: Any) -> None:
    """Asserts that two trees have equal leaves, and tensors equal bits."""
    for a, b in zip(flatten(got)[0], flatten(wanted)[0], strict=True):
        same(a, b) if isinstance(a, pb.Tensor) else None
        assert isinstance(a, pb.Tensor) or a == b


def agree(f: Callable[..., Any], run: Callable[[Any, int], Any], calls: int = 3) -> Any:
    """Asserts that run(f, k) is the same for f captured and eager, in a recording and in replays. Returns the captured f."""
    captured = pb.capture(f)
    for k in range(calls):
        found = []
        for g in (captured, f):
            pb.random.seed(k)
            found.append([run(g, k), pb.random.uniform((2,))])  # as many random numbers were drawn
        alike(*found)
    return captured


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    **{name: partial(cls, **options) for name, (cls, options) in RULES.items()},
    "scheduled": lambda ps: optim.AdamW(ps, lr=optim.schedules.Cosine(0.01, 150), clip_norm=0.5),
    "muon": lambda ps: optim.Muon(ps, lr=0.01, clip_norm=0.5, ema=0.9),
    "adafactor": lambda ps: optim.Adafactor(ps, lr=0.1, weight_decay=0.1, clip_value=0.02),
    "clamped": lambda ps: optim.Adam(ps, lr=optim.schedules.WarmupCosine(0.01, 180, warmup=20), clip_value=0.01),
}
