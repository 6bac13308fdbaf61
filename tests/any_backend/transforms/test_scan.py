"""scan: a Python loop's values and gradients to the last bit, structures, checkpointed steps and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import watched
from pullback import nn
from pullback.autodiff.node import all_kept

N = 10
XS = np.random.default_rng(0).standard_normal((N, 2, 3)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((4, 7)).astype(np.float32) / 2


def rnn(w: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = pb.tanh(pb.concat([h, x], axis=1) @ w)
        return h, {"h": h[:, :1], "squares": (h * h,)}

    return step


def gradients(run: Any) -> list[Any]:
    w = pb.Parameter(W.T)
    with pb.GradientTape() as tape:
        xs, h = watched(XS, tape), watched(np.ones((2, 4), np.float32), tape)
        last, ys = run(rnn(w), h, xs)
        loss = pb.sum(last) + pb.sum(pb.sin(ys["h"])) + pb.sum(ys["squares"][0] * ys["h"])
    return [last.numpy(), ys["h"].numpy(), ys["squares"][0].numpy(), *[g.numpy() for g in tape.gradient(loss, [w, xs, h])]]


def loop(f: Any, carry: Any, xs: Any) -> Any:
    ys = []
    for i in range(len(xs)):
        carry, y = f(carry, xs[i])
        ys.append(y)
    return carry, {"h": pb.stack([y["h"] for y in ys]), "squares": (pb.stack([y["squares"][0] for y in ys]),)}


@pytest.mark.parametrize("checkpoint", [False, True, 1, 3, 100])
def test_values_and_gradients_are_those_of_the_loop_bit_for_bit(checkpoint: Any) -> None:
    ours = gradients(lambda f, h, xs: pb.scan(f, h, xs, checkpoint=checkpoint))
    for got, wanted in zip(ours, gradients(loop)):
        np.testing.assert_array_equal(got, wanted)


def test_the_values_are_those_of_a_cumulative_sum_from_either_end() -> None:
    xs = np.arange(1.0, 6.0)
    for reverse in (False, True):
        last, ys = pb.scan(lambda c, x: (c + x, c + x), 0.0, pb.tensor(xs), reverse=reverse)
        wanted = np.cumsum(xs[::-1])[::-1] if reverse else np.cumsum(xs)
        np.testing.assert_array_equal(ys.numpy(), wanted)
        assert last.item() == 15.0


def test_nested_scans_and_second_derivatives_are_right() -> None:
    def f(a: Any, xs: Any) -> Any:
        def outer(c: Any, row: Any) -> Any:
            c, inner = pb.scan(lambda c, x: (pb.sin(c * x) + a, c * c), c, row, checkpoint=2)
            return c, pb.sum(inner)

        return pb.scan(outer, a, xs, checkpoint=True)

    pb.check_gradients(f, (np.array(0.4), np.linspace(0.2, 1.0, 6).reshape(2, 3)), order=2)


def test_no_xs_and_no_y() -> None:
    last, ys = pb.scan(lambda c, x: ((c[0] + 1, c[1] * 2), None), (pb.tensor(0), pb.tensor(1.0)), None, length=5)
    assert (last[0].item(), last[1].item(), ys) == (5, 32.0, None)


def test_slices_that_nothing_depends_on_have_a_gradient_of_zero() -> None:
    with pb.GradientTape() as tape:
        xs = watched([1.0, 2.0, 3.0], tape)
        _, ys = pb.scan(lambda c, x: (c, x * x), pb.tensor(0.0), xs)
        y = ys[1]
    np.testing.assert_array_equal(tape.gradient(y, xs).numpy(), [0.0, 4.0, 0.0])


def kept(tape: Any) -> int:
    """Returns the bytes that a tape's nodes keep, counting each block of memory once."""
    arrays = [value.array for value in all_kept(tape.nodes) if hasattr(value, "array")]
    blocks: dict[int, int] = {}
    for a in arrays:
        block = id(a if a.base is None else a.base)
        blocks[block] = max(blocks.get(block, 0), a.nbytes)
    return sum(blocks.values())


def test_a_tape_keeps_as_many_carries_as_there_are_checkpoints() -> None:
    n, carry = 100, np.zeros(1000)

    def bytes_kept(checkpoint: Any) -> int:
        with pb.GradientTape() as tape:
            pb.scan(lambda c, x: (pb.tanh(pb.sin(pb.exp(c * x))), None), watched(carry, tape), pb.ones(n), checkpoint=checkpoint)
        return kept(tape)

    assert bytes_kept(False) >= 2 * n * carry.nbytes
    assert bytes_kept(True) <= 10.1 * carry.nbytes
    assert bytes_kept(50) <= 2.1 * carry.nbytes


def test_gradients_reach_the_parameters_of_a_module() -> None:
    cell = nn.Linear(3, 3)
    results = []
    for checkpoint in (False, True):
        with pb.GradientTape() as tape:
            last, _ = pb.scan(lambda c, x: (pb.tanh(cell(c) + x), None), pb.zeros((2, 3)), pb.tensor(XS), checkpoint=checkpoint)
            loss = pb.sum(last)
        results.append([g.numpy().tobytes() for g in tape.gradient(loss, cell.parameters())])
    assert results[0] == results[1]


# ---- refusals


def test_lengths_that_differ_are_named() -> None:
    a, b = pb.ones((3, 2)), pb.ones(4)
    with pytest.raises(pb.ShapeError, match=r"equally long.*\(3, 2\), \(4,\)"):
        pb.scan(lambda c, x: (c, x), 0.0, (a, b))
    with pytest.raises(pb.ShapeError, match=r"xs has 3 steps along its first axis, but length=5\. Leave length out"):
        pb.scan(lambda c, x: (c, x), 0.0, a, length=5)
    with pytest.raises(pb.ShapeError, match=r"shapes \[\(\)\], and a number has no axis.*first carry comes before xs"):
        pb.scan(lambda c, x: (c, x), a, 0.0)
    with pytest.raises(pb.ShapeError, match=r"shapes \[\(\), \(\)\], and a number has no axis.*A list is a tree of tensors"):
        pb.scan(lambda c, x: (c, x), a, [1.0, 2.0])
    with pytest.raises(pb.ShapeError, match=r"xs has no tensors, and there is no length.*length="):
        pb.scan(lambda c, x: (c, x), 0.0)
    with pytest.raises(pb.ShapeError, match="no steps"):
        pb.scan(lambda c, x: (c, x), 0.0, pb.ones((0, 2)))
    for length in (-1, 0):
        with pytest.raises(pb.ShapeError, match=f"scan: length={length}, but there must be one step or more"):
            pb.scan(lambda c, x: (c, 0.0), 0.0, length=length)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_y_that_changes_its_shape_is_named_with_its_step(reverse: bool) -> None:
    steps, xs = iter([2, 1, 0] if reverse else [0, 1, 2]), pb.ones(3)
    words = r"scan: <lambda>.* returned a y of shape \(3,\) in step 2, and of shape \(1,\) in step 0"
    with pytest.raises(pb.ShapeError, match=words):
        pb.scan(lambda c, x: (c, {"y": pb.ones((1, 1, 3)[next(steps)])}), 0.0, xs, reverse=reverse)
    with pytest.raises(pb.ShapeError, match=r"y of shape \(\) in step 1, and of shape \(2,\) in step 0"):
        pb.scan(lambda c, _: (1.0, pb.ones(2) if c == 0 else 1.0), 0, length=2)


def test_a_carry_that_changes_is_named_with_its_step() -> None:
    xs = pb.ones(3)
    with pytest.raises(pb.ShapeError, match=r"the carry went from shape \(1,\) to \(2,\) in step 0"):
        pb.scan(lambda c, x: (pb.concat([c, c]), x), pb.ones(1), xs)
    with pytest.raises(pb.PullbackError, match=r"structure in step 0, from \* to \(\*, \*\)"):
        pb.scan(lambda c, x: ((c, c), x), pb.ones(1), xs)
    with pytest.raises(pb.PullbackError, match=r"must return two things.* returned a Tensor"):
        pb.scan(lambda c, x: c, pb.ones(1), xs)
    with pytest.raises(pb.PullbackError, match="checkpoint=0"):
        pb.scan(lambda c, x: (c, x), pb.ones(1), xs, checkpoint=0)
    with pytest.raises(pb.PullbackError, match="a y of another structure in some steps"):
        pb.scan(lambda c, x: (c + 1, [x] * (1 + int(float(c[0])))), pb.zeros(1), xs)


def test_a_carry_keeps_its_dtype_and_a_number_takes_one() -> None:
    halves = pb.tensor([0.5, 0.5])

    def add(c: Any, x: Any) -> Any:
        return c + x, c

    with pytest.raises(pb.DTypeError, match=r"the carry went from dtype int64 to float32 in step 0.*astype\(pb.float32\)"):
        pb.scan(add, pb.tensor(0), halves)
    with pytest.raises(pb.DTypeError, match="leaf 1 of the carry went from dtype float32 to float64 in step 0"):
        pb.scan(lambda c, x: ((c[0], c[1] + x), x), (pb.tensor(0), pb.tensor(0.0)), halves.astype(pb.float64))
    with pytest.raises(pb.DTypeError, match="int64 to float32 in step 0"):
        pb.scan(lambda c, x: (1.5, c), pb.tensor(0), halves)
    with pytest.raises(pb.ShapeError, match=r"shape \(2,\) to \(\) in step 0"):
        pb.scan(lambda c, x: (0.0, c), pb.zeros(2), halves)
    last, ys = pb.scan(add, 0, halves)
    assert (last.item(), last.dtype, ys.tolist()) == (1.0, pb.float32, [0.0, 0.5])
    last, ys = pb.scan(lambda c, x: (c + 1, 0.25 if c else 3), 0, halves)
    assert (last.item(), last.dtype, last.shape) == (2, pb.int64, ())
    assert ys.tolist() == [3.0, 0.25]  # as np.array([3, 0.25])


def test_the_last_carry_has_tensors_where_all_steps_returned_numbers() -> None:
    last, ys = pb.scan(lambda h, x: (h + 1, h), 0.0, length=5)
    assert (last.shape, last.dtype, last.item(), ys.tolist()) == ((), pb.float32, 5.0, [0.0, 1.0, 2.0, 3.0, 4.0])
    start = {"n": 2, "done": False, "name": "a", "none": None}
    for checkpoint in (False, 2):
        last, _ = pb.scan(lambda c, x: ({**c, "n": c["n"] * 2}, x), start, pb.ones(3), checkpoint=checkpoint)
        assert (last["n"].item(), last["n"].dtype, last["done"].dtype) == (16, pb.int64, pb.bool)
        assert (last["name"], last["none"]) == ("a", None)
    last, ys = pb.scan(lambda c, x: (2.0, c), pb.tensor(1.0, dtype=pb.float64), length=2)
    assert (last.dtype, last.item(), ys.tolist()) == (pb.float64, 2.0, [1.0, 2.0])
