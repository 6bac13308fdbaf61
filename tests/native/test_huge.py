"""Sizes that exceed any memory, counts beyond int64, many axes, and memory that changes while a kernel reads it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import pullback as pb

MOST = 2**63 - 1
ONE, ROW = pb.ones(1), pb.ones(3)
COLUMN = pb.broadcast_to(pb.ones((1, 1)), (2**40, 1))
HUGE: list[Callable[[], Any]] = [
    lambda: pb.pad(pb.ones(10), [(MOST, MOST)]),
    lambda: pb.pad(pb.ones(200_000), [(MOST - 50_000, MOST)]),
    lambda: pb.pad(ROW, 2**70),
    lambda: pb.zeros((1 << 62, 4)),
    lambda: pb.zeros((2**40, 2**40)),
    lambda: pb.zeros((0, 2**62, 2**62)),
    lambda: pb.ones(2**63),
    lambda: pb.ones(2**50),
    lambda: pb.full_like(pb.broadcast_to(ONE, (2**50,)), 1),
    lambda: pb.arange(2**62),
    lambda: pb.arange(1e30),
    lambda: pb.arange(2**46),
    lambda: pb.linspace(0, 1, 2**70),
    lambda: pb.linspace(0, 1, 2**46),
    lambda: pb.eye(2**40),
    lambda: pb.eye(2**70),
    lambda: pb.eye(2**24),
    lambda: pb.repeat(ROW, 2**62),
    lambda: pb.repeat(ROW, 2**46),
    lambda: pb.repeat(pb.ones(2), [2**62, 2**62]),
    lambda: pb.tile(ROW, 2**62),
    lambda: pb.tile(ROW, (2**40, 2**40)),
    lambda: pb.broadcast_to(ONE, (2**40, 2**40)),
    lambda: pb.broadcast_to(ONE, (2**70,)),
    lambda: pb.concat([pb.broadcast_to(pb.ones(1, dtype="int8"), (2**62,))] * 3),
    lambda: COLUMN + COLUMN.mT,
    lambda: COLUMN @ COLUMN.mT,
    lambda: pb.one_hot(pb.tensor([0]), 2**70),
    lambda: pb.one_hot(pb.tensor([0]), 2**62),
    lambda: pb.one_hot(pb.tensor([0]), 2**46),
    lambda: pb.segment_sum(ROW, pb.tensor([0, 0, 0]), 2**70),
    lambda: pb.segment_max(ROW, pb.tensor([0, 0, 0]), 2**62),
    lambda: pb.segment_sum(ROW, pb.tensor([0, MOST, 0])),
    lambda: pb.random.normal((2**40, 2**40)),
    lambda: pb.random.uniform(2**70),
    lambda: pb.random.randint(0, 5, (2**63,)),
    lambda: pb.random.bernoulli(2**46),
    lambda: pb.random.permutation(2**70),
    lambda: pb.reshape(pb.ones((0, 3)), (0, 2**62, 2**62)),
    lambda: pb.meshgrid(pb.broadcast_to(ONE, (2**40,)), pb.broadcast_to(ONE, (2**40,))),
]


@pytest.mark.parametrize("ask", HUGE, ids=lambda ask: inspect.getsource(ask).strip().removeprefix("lambda: ").rstrip(","))
def test_what_no_memory_holds_is_an_out_of_memory_error(ask: Callable[[], Any]) -> None:
    with pytest.raises(pb.OutOfMemoryError):
        ask()


def test_a_shape_that_no_memory_holds_is_named() -> None:
    with pytest.raises(pb.OutOfMemoryError, match=r"shape \(4611686018427387904, 4\)"):
        pb.zeros((1 << 62, 4))


@pytest.mark.parametrize(("ask", "words"), [
    (lambda: pb.one_hot(pb.tensor([0]), -1), "depth=-1 is negative"),
    (lambda: pb.segment_sum(ROW, pb.tensor([0, 0, 0]), -2), "num_segments=-2 is negative"),
    (lambda: pb.random.permutation(-1), "x=-1 is negative"),
    (lambda: pb.diff(ROW, n=-1), "n=-1 is negative"),
    (lambda: pb.arange(float("inf")), "no finite number of elements"),
])
def test_counts_that_make_no_sense_are_named(ask: Callable[[], Any], words: str) -> None:
    with pytest.raises(pb.ShapeError, match=words):
        ask()


def test_differences_end_when_nothing_is_left() -> None:
    assert pb.diff(ROW, n=2**70).shape == (0,)


def test_bounds_that_the_dtype_cannot_hold_are_refused() -> None:
    for high, dtype in ((2**70, None), (300, "int8"), (-1, "uint8")):
        with pytest.raises(pb.DTypeError, match="does not fit"):
            pb.random.randint(high - 5, high, (3,), dtype=dtype)
    assert int(pb.max(pb.random.randint(127, 128, (3,), dtype="int8"))) == 127


def test_scatters_take_more_axes_than_numpys() -> None:
    many = (1,) * 33
    x = pb.broadcast_to(pb.ones(many), (2, *many[1:]))
    ids = pb.tensor([0, 0])
    assert_array_equal(pb.segment_sum(x, ids).numpy(), np.full(many, 2, "f4"))
    assert_array_equal(pb.ones(many).at[ids].add(x * 2).numpy(), np.full(many, 5, "f4"))
    index = pb.zeros((2, *many[1:]), dtype="int64")
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = pb.sum(pb.take_along_axis(x, index, axis=0) * 3)
    assert_array_equal(tape.gradient(y, x).numpy().reshape(2), [6, 0])


@pytest.mark.parametrize("ask", [
    lambda flag: pb.sort(ROW, descending=flag),
    lambda flag: pb.argsort(ROW, descending=flag),
    lambda flag: pb.topk(ROW, 1, largest=flag),
    lambda flag: pb.pad(ROW > 0, 64, value=flag),
    lambda flag: pb.sum(ROW, keepdims=flag),
])
def test_a_flag_without_a_truth_value_is_told_in_words(ask: Callable[[Any], Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        ask(np.array([True, False]))


COUNTS = """
import inspect
from contextlib import suppress
from pullback.backends import native
kept = {"scope", "live_bytes", "plan_length", "plan_abort", "ledger_end", "ledger_take"}
for name in dir(native.module):
    kernel = getattr(native.module, name)
    if not inspect.isbuiltin(kernel):
        continue
    for count in (*range(12), 40):
        if not (name in kept and count == 0) and not (name == "scopes_by" and count == 1):  # it takes anything, and keeps it
            with suppress(TypeError, ValueError):
                kernel(*[None] * count)
"""


@pytest.mark.usefixtures("native")
def test_every_kernel_counts_its_arguments() -> None:
    """Runs in a separate process, which the wrong calls may leave in any state.

    A crash, or an exception other than TypeError and ValueError, ends it with an error status.
    """
    done = subprocess.run([sys.executable, "-c", COUNTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


RACE = """
import threading, numpy as np, pullback as pb
from pullback.backends import native
n, stop = 1 << 18, threading.Event()
index, bits = np.zeros(n, "i8"), np.zeros(n, "u4")
t, it, xt = pb.arange(1000.0), pb.asarray(index), pb.asarray(bits.view("f4"))
logits, along = pb.ones((n, 4)), pb.broadcast_to(t, (1, 1000))

def write():
    while not stop.is_set():
        index[::4096] = 2**40
        bits[::3] = 0x7F7FFFFF
        index[::4096] = 0
        bits[::3] = 0

threading.Thread(target=write, daemon=True).start()
calls = [lambda: pb.take(t, it), lambda: t.at[it].add(1.0), lambda: pb.one_hot(it, 3), lambda: pb.nn.cross_entropy(logits, it),
         lambda: pb.take_along_axis(along, pb.reshape(it, (1, -1)), axis=1), lambda: pb.segment_sum(xt, it, 5),
         lambda: pb.sort(xt), lambda: pb.argsort(xt), lambda: native.module.nonzero_flat(bits.view("f4")), lambda: pb.sum(t[it]),
         lambda: pb.random.Generator(0) and pb.searchsorted(xt[:100], xt)]
for k in range(ROUNDS):
    for call in calls:
        try:
            call()
        except IndexError:
            pass
stop.set()
print("alive")
"""


@pytest.mark.usefixtures("native")
def test_indices_that_another_thread_writes_do_not_reach_other_memory() -> None:
    run = subprocess.run([sys.executable, "-c", RACE.replace("ROUNDS", "15")], capture_output=True, text=True, check=False)
    assert run.stdout == "alive\n", f"{run.returncode}\n{run.stderr}"
