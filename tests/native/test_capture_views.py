"""Captured functions and views of Parameters: a replay gives the result of the eager run, or raises the same error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends import why_not
from pullback.tensors.devices import default_device

START = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def w() -> pb.Parameter:
    return pb.Parameter(START, name="w")


needs_kernels = pytest.mark.skipif(
    why_not(default_device()) is not None, reason=f"a captured function runs as it is: {why_not(default_device())}"
)


@pytest.mark.parametrize("use", [lambda x, v: x + v, lambda x, v: x @ v.T, lambda x, v: pb.sum(v) + x, lambda x, v: x + v[0]])
def test_a_captured_function_does_not_replay_a_view_from_outside_after_the_update(w: pb.Parameter, use: Any) -> None:
    view, x = w[...], pb.ones((2, 3))
    captured = pb.capture(lambda x: use(x, view))
    expected = use(x, pb.tensor(START)).numpy()
    for _ in range(3):
        np.testing.assert_allclose(captured(x).numpy(), expected)
    w.assign(START + 1)
    with pytest.raises(pb.StaleValueError, match='"w"'):
        captured(x)
    view = w[...]  # the function reads this name again, because it is recorded again
    np.testing.assert_allclose(captured(x).numpy(), use(x, pb.tensor(START + 1)).numpy())


@needs_kernels
def test_views_made_inside_a_captured_function_are_made_by_every_replay(w: pb.Parameter) -> None:
    captured = pb.capture(lambda x: x @ w.T)
    for k in range(4):
        np.testing.assert_allclose(captured(pb.ones((1, 3))).numpy(), (START + k).sum(1)[None])
        w.assign(START + k + 1)
    assert captured.stats().captures == 1


@needs_kernels
def test_a_view_that_a_recording_does_not_read_does_not_end_it(w: pb.Parameter) -> None:
    captured = pb.capture(lambda x: pb.sum(w * x))
    for k in range(4):
        view = w.T
        assert captured(pb.ones((2, 3))).item() == START.sum() + 6 * k
        np.testing.assert_array_equal(view.numpy(), START.T + k)
        w.assign(w + 1)
    assert captured.stats().captures == 1


@needs_kernels
def test_recordings_whose_view_is_stale_are_forgotten(w: pb.Parameter) -> None:
    views = [w.T]
    captured = pb.capture(lambda x: x + views[0])
    for k in range(5):
        np.testing.assert_array_equal(captured(pb.zeros((3, 2))).numpy(), START.T + k)
        w.assign(w + 1)
        views[0] = w.T
    assert captured.stats().captures == 5
    assert captured.stats().recordings == 1


@pytest.mark.parametrize("capture", [lambda f: f, pb.capture], ids=["eager", "captured"])
def test_within_one_function_a_view_from_before_the_update_is_stale(w: pb.Parameter, capture: Any) -> None:
    def update(x: Any) -> Any:
        view = w.T
        w.assign(w + 1)
        return view + x

    with pytest.raises(pb.StaleValueError, match='"w"'):
        capture(update)(pb.ones((3, 2)))


@pytest.mark.parametrize("take", [lambda w: w.T, lambda w: w[...], lambda w: w[::-1]], ids=["T", "all", "reversed"])
def test_an_argument_that_is_a_view_of_what_the_function_writes_is_read_as_it_came(take: Any) -> None:
    start = np.arange(9, dtype=np.float32).reshape(3, 3)
    w = pb.Parameter(start)

    def update(x: Any) -> Any:
        y = x * 2
        w.assign(pb.exp(y - y) + w)
        return y, x * 10 if type(x) is pb.Tensor else None

    captured = pb.capture(update)
    for k in range(4):
        expected = take(start + k)
        doubled, after = captured(take(w))
        np.testing.assert_array_equal(doubled.numpy(), expected * 2)
        np.testing.assert_array_equal(w.numpy(), start + k + 1)
        if after is not None:
            np.testing.assert_array_equal(after.numpy(), expected * 10)
