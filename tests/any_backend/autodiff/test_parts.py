"""Gradients of slices are joined: their values, their launches, and reshapes that need no copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb

SLICES: dict[str, list[Any]] = {
    "one part": [np.s_[2:5]],
    "all of it": [np.s_[:], np.s_[:]],
    "parts side by side": [np.s_[:3], np.s_[3:4], np.s_[4:]],
    "in another order": [np.s_[4:], np.s_[:3], np.s_[3:4]],
    "with gaps": [np.s_[5:6], np.s_[1:2], np.s_[3:4]],
    "steps": [np.s_[i] for i in range(7)],
    "along the last axis": [np.s_[..., :2], np.s_[..., 2:3], np.s_[..., 3:]],
    "of a part": [np.s_[1:4, :, 2:4], np.s_[1:4, :, 0:1]],
    "with a new axis": [np.s_[None, 0:2], np.s_[3:, None]],
    "overlap": [np.s_[2:], np.s_[1:-1], np.s_[:-2]],
    "twice the same": [np.s_[1], np.s_[2], np.s_[1]],
    "two axes": [np.s_[:3, :2], np.s_[3:, 2:], np.s_[3:, :2]],
    "empty ones": [np.s_[3:3], np.s_[:2], np.s_[5:5], np.s_[2:]],
    "only empty ones": [np.s_[3:3], np.s_[5:5]],
    "other steps": [np.s_[::2], np.s_[:2], np.s_[2:]],
    "backwards": [np.s_[::-1], np.s_[:3], np.s_[3:]],
    "one element each": [np.s_[0, 0, 0], np.s_[0, 0, 1], np.s_[6, 4, 3]],
}
SHAPE = (7, 5, 4)


def total(x: Any, keys: list[Any], xp: Any, after: int) -> Any:
    """Returns a sum over slices of x. The whole of x is used as well, after this many slices, unless that is negative."""
    y: Any = 0
    for i, key in enumerate(keys):
        if i == after:
            y = y + xp.sum(x * x * x)
        y = y + (i + 1) * xp.sum(xp.sin(x[key] * (i + 2)))
    return y


def expected(x: Any, keys: list[Any], after: int) -> Any:
    g = np.zeros_like(x)
    for i, key in enumerate(keys):
        g[key] += (i + 1) * (i + 2) * np.cos(x[key] * (i + 2))
    return g + 3 * x * x if 0 <= after < len(keys) else g


@pytest.mark.parametrize("aggregation", ["accumulate", "add_n", "tree"])
@pytest.mark.parametrize("after", [-1, 0, 1])
@pytest.mark.parametrize("name", SLICES)
def test_gradients_of_slices(name: str, after: int, aggregation: Any) -> None:
    keys = SLICES[name]
    numbers = np.random.default_rng(0).standard_normal(SHAPE)
    x = pb.tensor(numbers)
    with pb.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = total(x, keys, pb, after)
    g = tape.gradient(y, x, aggregation=aggregation)
    np.testing.assert_allclose(g.numpy(), expected(numbers, keys, after), rtol=1e-12, atol=1e-12)
    with pb.GradientTape() as outer:  # the definitions of the pullbacks run, which pad and add
        outer.watch(x)
        with tape:
            y = total(x, keys, pb, after)
        padded = tape.gradient(y, x, aggregation=aggregation)
    assert np.array_equal(padded.numpy(), g.numpy())


@pytest.mark.parametrize("name", SLICES)
def test_transforms_of_slices(name: str) -> None:
    keys = SLICES[name]
    numbers = np.random.default_rng(1).standard_normal((3, *SHAPE))
    wanted = [expected(part, keys, 1) for part in numbers]
    x = pb.tensor(numbers)
    g = pb.vmap(pb.grad(lambda x: total(x, keys, pb, 1)))(x)
    np.testing.assert_allclose(g.numpy(), wanted, rtol=1e-12, atol=1e-12)
    rows = pb.jacobian(lambda x: pb.stack([total(x, keys, pb, 1), total(x, keys[:1], pb, -1)]), mode="reverse")(x[0])
    np.testing.assert_allclose(rows.numpy(), [wanted[0], expected(numbers[0], keys[:1], -1)], rtol=1e-12, atol=1e-12)


def test_joined_parts_have_the_zeros_of_a_sum() -> None:
    x = pb.tensor([1.0, 2.0, 3.0])
    seeds = [pb.tensor([-0.0]), pb.tensor([-0.0, 5.0])]
    g = pb.vjp(lambda x: (x[:1], x[1:]), x)[1](tuple(seeds))
    signs = np.signbit(g.numpy() if isinstance(g, pb.Tensor) else g[0].numpy())
    assert signs.tolist() == [False, False, False]  # -0 + 0 is 0


def launches(f: Callable[[Any], Any], x: pb.Tensor) -> list[str]:
    """Returns the names of the kernels of the backward pass of f."""
    with pb.profile() as prof:
        pb.grad(f)(x)
    return [launch.kernel for launch in prof.launches if launch.phase == 1]


def test_a_loop_over_steps_joins_its_gradients_once() -> None:
    x = pb.tensor(np.random.default_rng(0).standard_normal((20, 3)))
    found = launches(lambda x: total(x, [np.s_[i] for i in range(20)], pb, -1), x)
    assert found.count("concat") == 1
    assert "pad" not in found


def test_the_bytes_of_a_loop_grow_with_its_length() -> None:
    moved = []
    for n in (50, 100):
        x = pb.tensor(np.random.default_rng(0).standard_normal((n, 64)))
        with pb.profile() as prof:
            pb.grad(lambda x, n=n: total(x, [np.s_[i] for i in range(n)], pb, -1))(x)
        moved.append(prof.backward.bytes_written)
    assert moved[1] < 2.1 * moved[0]


RESHAPES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], bool]] = {
    "of columns, cut": (lambda x: x[:, :, :2], (7, 5, 2, 1), True),
    "of columns, cut in two": (lambda x: x[:, :, :2].T, (2, 1, 5, 7), True),
    "of rows": (lambda x: x[1:5], (20, 4), True),
    "of columns, merged": (lambda x: x[:, :, :2], (35, 2), True),
    "of some rows, merged": (lambda x: x[:, 1:], (28, 4), False),
    "transposed, merged": (lambda x: x.T, (20, 7), False),
    "every other row": (lambda x: x[::2], (2, 2, 20), True),
}


@pytest.mark.parametrize("name", RESHAPES)
def test_a_reshape_copies_only_if_elements_must_move(name: str) -> None:
    cut, shape, in_place = RESHAPES[name]
    numbers = np.arange(140, dtype=np.float32).reshape(SHAPE)
    x = pb.tensor(numbers)
    with pb.profile() as prof:
        y = pb.reshape(cut(x), shape)
    assert np.array_equal(y.numpy(), cut(numbers).reshape(shape))
    assert [launch.kernel for launch in prof.launches] == ([] if in_place else ["copy"])
    if in_place:
        assert np.array_equal(pb.reshape(cut(x), shape, copy=False).numpy(), y.numpy())
    else:
        with pytest.raises(ValueError, match="these strides need a copy"):
            pb.reshape(cut(x), shape, copy=False)
