"""`gradient(aggregation=)`: how the contributions to the gradient of one tensor are summed."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

import pullback as pb
from captured_step import same
from conftest import host
from pullback.autodiff.tape import Aggregation

HOW = get_args(Aggregation)


def used(xs: Any, w: Any) -> Any:
    """Returns a persistent tape and targets that use w once for each of xs."""
    with pb.GradientTape(persistent=True) as tape:
        y = [pb.sum(w * x) for x in xs]
    return tape, y


@pytest.mark.parametrize("aggregation", HOW)
def test_a_weight_used_256_times(aggregation: Any) -> None:
    xs = np.random.default_rng(0).standard_normal((256, 8)).astype(np.float32)
    w = pb.Parameter(np.ones(8, np.float32))
    tape, y = used(xs, w)
    np.testing.assert_allclose(
        host(tape.gradient(y, w, aggregation=aggregation)), xs.astype(np.float64).sum(0), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_tree_is_the_closest_to_the_exact_sum(dtype: str) -> None:
    error = dict.fromkeys(HOW, 0.0)
    for seed in range(16):
        xs = np.random.default_rng(seed).uniform(0.5, 1.5, (256, 128)).astype(dtype)
        exact, w = xs.astype(np.longdouble).sum(0), pb.Parameter(np.ones(128, dtype))
        tape, y = used(xs, w)
        for name in HOW:
            found = host(tape.gradient(y, w, aggregation=name))
            error[name] += float(np.abs(found.astype(np.longdouble) - exact).sum())
    assert error["tree"] < 0.5 * error["accumulate"]
    if dtype != "float64":  # which has no wider dtype, and add_n sums pairs, too
        assert error["tree"] <= error["add_n"]
        assert error["tree"] <= 16 * 128 * 256 * float(np.finfo(dtype).eps) / 2  # half a unit in the last place of sums below 512


def pairwise(xs: Any) -> Any:
    """Returns the sum of pairs, of pairs of pairs, and so on; the last one of an odd number waits for the next round."""
    while len(xs) > 1:
        xs = [xs[i] + xs[i + 1] if i + 1 < len(xs) else xs[i] for i in range(0, len(xs), 2)]
    return xs[0]


@pytest.mark.parametrize("count", range(2, 20))
def test_a_tree_adds_pairs_in_the_order_of_their_arrival(count: int) -> None:
    xs = np.random.default_rng(count).standard_normal((count, 5))
    w = pb.Parameter(np.ones(5))
    tape, y = used(xs, w)
    same(tape.gradient(y, w, aggregation="tree"), pairwise(list(xs[::-1])))  # the backward pass begins with the last use


@pytest.mark.parametrize("aggregation", HOW)
def test_captured_code_has_the_bits_of_eager_code(aggregation: Any) -> None:
    rng = np.random.default_rng(1)
    w, x = pb.Parameter(rng.standard_normal((6, 6)).astype(np.float32)), pb.tensor(rng.standard_normal((4, 6)).astype(np.float32))

    def gradient(x: Any) -> Any:
        with pb.GradientTape() as tape:
            h = x
            for _ in range(11):
                h = pb.tanh(h @ w)
            y = pb.sum(h)
        return tape.gradient(y, w, aggregation=aggregation)

    captured = pb.capture(gradient)
    for _ in range(3):
        same(gradient(x), captured(x))


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("aggregation", HOW)
def test_second_derivatives(aggregation: Any, captured: bool) -> None:
    """The gradient of sum(w**3 + ... ) by each use, and its derivative: 7 uses of w**3 give 21 w**2 and 42 w."""
    w = pb.Parameter([1.0, -2.0, 3.0])

    def derivatives() -> Any:
        with pb.GradientTape() as outer:
            with pb.GradientTape() as inner:
                y = pb.sum(sum([w * w * w for _ in range(7)], start=pb.zeros(3)))
            g = inner.gradient(y, w, aggregation=aggregation)
            total = pb.sum(g)
        return g, outer.gradient(total, w, aggregation=aggregation)

    first, second = (pb.capture(derivatives) if captured else derivatives)()
    np.testing.assert_allclose(host(first), 21 * host(w) ** 2, rtol=1e-6)
    np.testing.assert_allclose(host(second), 42 * host(w), rtol=1e-6)


def test_an_unknown_aggregation_names_the_known_ones() -> None:
    x = pb.Parameter(1.0)
    with pb.GradientTape() as tape:
        y = x * x
    with pytest.raises(pb.TapeError, match="'accumulate', 'add_n', 'tree'"):
        tape.gradient(y, x, aggregation="mean")  # type: ignore[arg-type]
