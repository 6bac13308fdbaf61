"""Arrays of NumPy that a captured function reads from outside, and that change between its calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same
from footguns import Settings, X, follows, told, unseen
from pullback import nn
from pullback.tensors import devices

pytestmark = needs_kernels
on_cpu = pytest.mark.skipif(devices.default_device() != "cpu", reason="arrays of the host are copied to a GPU, and compared")

W = np.ones(3, "float32")
ROWS = np.ones((2, 3), "float32")
N = np.array([0, 1, 2])
MASK = np.array([True, False, True])
NESTED = {"a": [W, N], "b": W}
OWNER = Settings(W)
DTYPES = ("bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64")


def change(seed: int) -> None:
    random = np.random.default_rng(seed)
    W[:], ROWS[:] = random.uniform(-2, 2, 3), random.uniform(-2, 2, (2, 3))
    N[:], MASK[:] = np.roll(N, 1), ~MASK


@pytest.fixture(autouse=True)
def first() -> None:
    change(0)
    N[:], MASK[:] = [0, 1, 2], [True, False, True]


class Weighted(nn.Module):
    def __init__(self) -> None:
        self.w = W

    def forward(self, x: Any) -> Any:
        return sum(float(k) for k in self.w) * x


def by_index(x: Any) -> Any:
    for k in range(3):
        x = x * W[k]
    return x


def by_items(x: Any) -> Any:
    for k in range(2):
        x = x * float([ROWS[0], W][k][1]) + float(NESTED["a"][k][2])
    return x


class Shown:
    @property
    def nested(self) -> Any:
        return NESTED


weighted, shown = Weighted(), Shown()

# What replays read in place. None of these is recorded again for other elements.
TAKEN: dict[str, Callable[[Any], Any]] = {
    "operand": lambda x: x * W,
    "copy": lambda x: x * pb.tensor(W),
    "copy in another dtype": lambda x: x * pb.tensor(W, dtype="float64"),
    "another dtype": lambda x: x * pb.asarray(W, dtype="float64"),
    "another dtype, returned": lambda x: pb.asarray(W, dtype="float64"),
    "copy, returned": lambda x: pb.tensor(W),
    "integers as floats": lambda x: x * pb.asarray(N, dtype="float32"),
    "floats as integers": lambda x: x * pb.asarray(W, dtype="int32"),
    "list": lambda x: x * [W, W],
    "tensor of a list": lambda x: x * pb.tensor([W, W]),
    "list with numbers": lambda x: x * pb.tensor([W, (1, 2.5, 3)]),
    "nested list": lambda x: x * pb.tensor([[W, W], [W, W]]),
    "integers in a list": lambda x: x * pb.tensor([N, N]),
    "integers and floats in a list": lambda x: x * pb.tensor([N, W]),
    "stack": lambda x: x * pb.stack([W, W]),
    "view": lambda x: x[:, :2] * W[1:],
    "rows": lambda x: sum(x * row for row in ROWS),
    "row": lambda x: x * ROWS[1],
    "take": lambda x: pb.take(x, N, axis=1),
    "take by a copy": lambda x: pb.take(x, pb.tensor(N), axis=1),
    "index": lambda x: x[:, N],
    "index by a copy": lambda x: x[:, pb.tensor(N)],
    "mask": lambda x: pb.where(MASK, x, 0.0),
    "copy of a mask": lambda x: pb.where(pb.tensor(MASK), x, 0.0),
    "in a dict": lambda x: x * NESTED["b"],
    "Parameter": lambda x: x * pb.Parameter(W),
}

# What Python or NumPy reads.
READ: dict[str, Callable[[Any], Any]] = {
    "zip": lambda x: sum(k * loss for k, loss in zip(W, [pb.sum(x), pb.sum(x * x)])),
    "enumerate": lambda x: sum(W[k] * loss for k, loss in enumerate([pb.sum(x), pb.sum(x * x)])),
    "index in a loop": by_index,
    "index that is computed": lambda x: x * float(W[x.ndim - 1]),
    "max": lambda x: x * max(W),
    "sum": lambda x: x * sum(W),
    "star": lambda x: x * max(*W),
    "list of its numbers": lambda x: x * list(W),
    "tolist": lambda x: x * pb.tensor(W.tolist()),
    "indices": lambda x: x * W[[0, 1, 1]],
    "comparison": lambda x: pb.where(W > 0, x, 0.0),
    "arithmetic": lambda x: x * (1 - W),
    "ufunc": lambda x: x * np.exp(W),
    "function of NumPy": lambda x: x * np.max(W),
    "another dtype by NumPy": lambda x: x * W.astype("float64"),
    "inverted mask": lambda x: pb.where(~MASK, x, 0.0),
    "mask as a list": lambda x: pb.where(list(MASK), x, 0.0),
    "counts": lambda x: pb.repeat(x, N, axis=1),
    "list of indices": lambda x: x[:, list(N)],
    "index as a number": lambda x: x[:, int(N[x.ndim]) :],
    "condition": lambda x: x * 2 if N[x.ndim - 1] else x,
    "fill": lambda x: x * pb.full((3,), W[:1]),
    "attribute": lambda x: x * max(OWNER.p),
    "in containers": lambda x: x * max(NESTED["a"][0]),
    "in containers by number": by_items,
    "in containers of a property": lambda x: x * shown.nested["a"][0].max(),
    "Module": lambda x: weighted(x),
    "default": lambda x, w=W: x * max(w),
    "argument of another function": lambda x: (lambda w: x * max(w))(W),
    "integers in a list of a narrow dtype": lambda x: x * pb.tensor([N, N], dtype="int8"),
    "operand and numbers of a loop": lambda x: x * W + sum(k for k in W),
    "operand and numbers of a method": lambda x: x * W + W.max(),
}


@pytest.mark.parametrize("name", [*TAKEN, *READ])
def test_elements_that_change(name: str) -> None:
    f = follows({**TAKEN, **READ}[name], lambda: change(1), lambda: change(2))
    if name in TAKEN and devices.default_device() == "cpu":
        assert f.stats().captures == 1


@pytest.mark.parametrize("name", [*TAKEN, *READ])
def test_elements_that_change_under_a_tape_and_under_vmap(name: str) -> None:
    f = {**TAKEN, **READ}[name]
    captured = pb.capture(f)

    def pulled(f: Callable[[Any], Any]) -> list[Any]:
        with pb.GradientTape() as tape:
            tape.watch(X)
            y = f(X)
        return [y, *tape.gradient(pb.sum(y), [X], unconnected="zero")]

    for seed in range(3):
        change(seed)
        for y, wanted in zip(pulled(captured), pulled(f)):
            same(y, wanted)
        if name != "Parameter":
            same(pb.vmap(captured)(pb.stack([X, X + 1])), pb.vmap(f)(pb.stack([X, X + 1])))


@pytest.mark.parametrize(("have", "want"), list(itertools.product(DTYPES, (*DTYPES, "bfloat16"))))
def test_conversions_of_arrays_have_the_bits_of_the_eager_ones(have: str, want: str) -> None:
    a, b = np.zeros(4, have), np.ones(4, want if want != "bfloat16" else "float32")
    halves = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-24 + 2.0**-50, -3.7])  # nearly, so rounded up
    whole = {
        1: [0, 1, 70, 120],
        2: [1, 3, 2049, 30001],
        4: [7, 257, 2049, 2**24 + 1],
        8: [7, 2**24 + 1, 2**53 + 1, 2**40 + 2**16 + 1],
    }

    def draw(seed: int) -> None:
        a[:] = np.roll(whole[a.itemsize] if a.dtype.kind in "iu" else halves, seed)

    programs: list[Callable[[Any], Any]] = [lambda x: pb.asarray(a, dtype=want), lambda x: pb.tensor(a, dtype=want)]
    if not ("uint64" in (have, want) and "i" in (a.dtype.kind, b.dtype.kind)):  # they have no common dtype
        programs.append(lambda x: pb.tensor([a, b, [1, 2, 3.5, 4]]))
    for f in programs:
        follows(f, lambda: draw(1), lambda: draw(2))


def test_an_array_that_the_function_makes_and_writes_to() -> None:
    def filled(holder: Any) -> Any:
        holder.p[0][1] += 2
        for buffer in holder.p:
            buffer[0] += 1
        return max(holder.p[0]) + holder.p[1]

    def f(x: Any) -> Any:
        return x + filled(Settings([np.zeros(3, "float32"), np.zeros(3, "float32")]))

    assert follows(f).stats().captures == 1


def test_an_array_in_a_list_that_the_function_writes_to() -> None:
    buffers = [np.zeros(3, "float32")]

    def f(x: Any) -> Any:
        for k in range(1):
            buffers[k][0] += 1
            x = x + float(buffers[k][0])
        return x

    assert "it writes to the array" in told(f, lambda k: X + (k + 1.0))


@on_cpu
def test_large_arrays_of_which_ops_take_copies_are_read_in_place() -> None:
    large = np.ones(3000, "float32")
    programs = [
        lambda x: x[0, 0] * pb.tensor(large), lambda x: x[0, 0] * pb.asarray(large, dtype="float64"),
        lambda x: x[0, 0] * pb.tensor([large, large]),
    ]
    for f in programs:
        large[:] = 1.0
        assert follows(f, lambda: large.__setitem__(0, 5.0)).stats().captures == 1


def test_elements_that_numpy_reads_of_an_operand_cannot_be_seen() -> None:
    array = np.ones(3, "float32")
    f = lambda x: x * array + np.max(array)
    if devices.default_device() == "cpu":
        captured = pb.capture(f)
        same(captured(X), X * array + 1.0)
        array[:] = 5.0
        same(captured(X), X * array + 1.0)


def test_elements_of_a_large_array_that_a_loop_reads_cannot_be_seen() -> None:
    array = np.ones(3000, "float32")
    unseen(lambda x: x * float(array[x.ndim]), lambda: array.__setitem__(2, 5.0))
