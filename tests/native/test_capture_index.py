"""Capture takes each index that eager code takes, unless the shape of the result depends on values."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same

pytestmark = needs_kernels

SHAPE = (3, 4, 5)
# Each form is called with x of this shape and indices: of shape (2, 3) along axes of length 3, of shape (3,) along axes of
# length 4, and of shape () along axes of length 3.
FORMS: dict[str, Callable[..., Any]] = {
    "True": lambda x, i, j, k: x[True], "False": lambda x, i, j, k: x[False], "None, True": lambda x, i, j, k: x[None, True],
    "0, True": lambda x, i, j, k: x[0, True], "np.bool_": lambda x, i, j, k: x[np.bool_(True)],
    "True, i": lambda x, i, j, k: x[True, i],
    ":, j": lambda x, i, j, k: x[:, j], "1:, j": lambda x, i, j, k: x[1:, j], "::-1, j": lambda x, i, j, k: x[::-1, j],
    "..., i": lambda x, i, j, k: x[..., :3][..., i], "..., j, :": lambda x, i, j, k: x[..., j, :],
    "None, i": lambda x, i, j, k: x[None, i], "i, None": lambda x, i, j, k: x[i, None],
    "i, j": lambda x, i, j, k: x[i, j], "i, :, j": lambda x, i, j, k: x[i, :, j], "i, 1:3": lambda x, i, j, k: x[i, 1:3],
    "i, ..., 2": lambda x, i, j, k: x[i, ..., 2], "1, :, j": lambda x, i, j, k: x[1, :, j],
    "k, :, j": lambda x, i, j, k: x[k, :, j],
    "k": lambda x, i, j, k: x[k], ":, k": lambda x, i, j, k: x[:, k], "k, 1:, k": lambda x, i, j, k: x[k, 1:, k],
    "list, list": lambda x, i, j, k: x[[0, -1], [1, 2]], ":, list": lambda x, i, j, k: x[:, [0, -1]],
    "list of bools": lambda x, i, j, k: x[[True, False, True]], ":, bools": lambda x, i, j, k: x[:, [True, False, True, True]],
    "bools, j": lambda x, i, j, k: x[[True, True, True], j], "tuple": lambda x, i, j, k: x[(slice(None), i, j)],
}


def _indices(seed: int, dtype: str = "int64") -> list[pb.Tensor]:
    rng = np.random.default_rng(seed)
    low = 0 if dtype[0] == "u" else -1
    draws = (rng.integers(3 * low, 3, (2, 3)), rng.integers(4 * low, 4, 3), rng.integers(3 * low, 3))
    return [pb.tensor(draw, dtype=dtype) for draw in draws]


def _x(seed: int) -> pb.Tensor:
    return pb.tensor(np.random.default_rng(seed).standard_normal(SHAPE))


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8"])
@pytest.mark.parametrize("form", FORMS)
def test_an_index_is_numpys_eager_and_in_replays(form: str, dtype: str) -> None:
    f = FORMS[form]
    captured = pb.capture(f)
    for seed in range(3):
        x, indices = _x(seed), _indices(seed, dtype)
        wanted = f(x.numpy(), *[i.numpy() for i in indices])
        np.testing.assert_array_equal(f(x, *indices).numpy(), wanted, strict=True)
        same(captured(x, *indices), f(x, *indices))
    assert captured.stats().captures == 1


@pytest.mark.parametrize("form", FORMS)
def test_the_gradient_of_an_index_is_that_of_eager_code(form: str) -> None:
    def gradient(x: pb.Tensor, *indices: pb.Tensor) -> Any:
        return pb.grad(lambda x: pb.sum(pb.sin(FORMS[form](x, *indices))))(x)

    captured = pb.capture(gradient)
    for seed in range(2):
        same(captured(_x(seed), *_indices(seed)), gradient(_x(seed), *_indices(seed)))


@pytest.mark.parametrize("method", ["set", "add", "max", "min", "multiply"])
@pytest.mark.parametrize("form", [":, j", "i, :, j", "..., j, :", "True", ":, bools", "k, 1:, k"])
def test_a_write_at_an_index_is_that_of_eager_code(form: str, method: str) -> None:
    class Written:
        def __init__(self, x: pb.Tensor) -> None:
            self.x = x

        def __getitem__(self, key: Any) -> Any:
            return getattr(self.x.at[key], method)(1.5)

    f = lambda x, *indices: FORMS[form](Written(x), *indices)
    captured = pb.capture(f)
    for seed in range(2):
        same(captured(_x(seed), *_indices(seed)), f(_x(seed), *_indices(seed)))


@pytest.mark.parametrize(("form", "which", "bad"), [
    (":, j", 1, 4), (":, j", 1, -5), ("i, j", 0, 3), ("i, j", 1, 4), ("i, j", 1, -5), ("i, :, j", 1, 5), ("k, :, j", 2, -4),
    (":, k", 2, 4),
])
def test_an_index_out_of_range_is_found_in_a_replay(form: str, which: int, bad: int) -> None:
    """An index past the end of its axis must not read the next row."""
    captured = pb.capture(FORMS[form])
    indices = _indices(0)
    captured(_x(0), *indices)
    wrong = np.array(indices[which].numpy())
    wrong[(0,) * wrong.ndim] = bad
    for f in (FORMS[form], captured):
        with pytest.raises(IndexError):
            f(_x(0), *indices[:which], pb.tensor(wrong), *indices[which + 1 :]).numpy()
    same(captured(_x(1), *_indices(1)), FORMS[form](_x(1), *_indices(1)))


@pytest.mark.parametrize("f", [
    lambda x, i: x[i], lambda x, i: x[:, i], lambda x, i: pb.take(x, i, axis=0), lambda x, i: x.at[i].set(0.0),
])
def test_examples_of_a_batch_are_indexed_from_the_end_in_replays(f: Any) -> None:
    captured = pb.capture(lambda x, i: pb.vmap(f)(x, i))
    x = _x(0)[..., :4]
    for i in ([[0, 1], [1, 2], [3, 0]], [[-1, 0], [-4, 2], [3, -2]]):
        index = pb.tensor(i)
        wanted = pb.stack([f(x[k], index[k]) for k in range(3)])
        same(pb.vmap(f)(x, index), wanted)
        same(captured(x, index), wanted)
    for bad in (4, -5):
        with pytest.raises(IndexError):
            captured(x, pb.tensor([[0, 1], [bad, 2], [3, 0]])).numpy()


def test_segments_of_a_batch_have_no_negative_numbers() -> None:
    f = lambda x, ids: pb.vmap(lambda x, ids: pb.segment_sum(x, ids, 3))(x, ids)
    captured, x = pb.capture(f), pb.ones((2, 4))
    same(captured(x, pb.tensor([[0, 1, 2, 2], [1, 1, 0, 0]])), f(x, pb.tensor([[0, 1, 2, 2], [1, 1, 0, 0]])))
    for run in (f, captured):
        with pytest.raises(IndexError):
            run(x, pb.tensor([[0, 1, 2, 2], [1, -1, 0, 0]])).numpy()


def test_an_array_from_outside_is_read_by_every_replay_even_if_it_is_0_dimensional() -> None:
    for index in (np.array(1), np.array([1])):
        f = pb.capture(lambda x, index=index: x[index])
        f(_x(0))
        index[...] = 2
        np.testing.assert_array_equal(f(_x(0)).numpy(), _x(0).numpy()[index])


# ---- masks

MASKED: dict[str, Callable[..., Any]] = {
    "m": lambda at, m, v: at[m > 0], "first axis": lambda at, m, v: at[m[:, 0, 0] > 0],
    "first axes": lambda at, m, v: at[m[..., 0] > 0],
    "last axis": lambda at, m, v: at[..., m[0, 0] > 0], "middle": lambda at, m, v: at[:, m[0, :, 0] > 0],
    "middle, ...": lambda at, m, v: at[:, m[0, :, 0] > 0, ...],
    "..., middle, :": lambda at, m, v: at[..., m[0, :, 0] > 0, :],
    "0-d": lambda at, m, v: at[m[0, 0, 0] > 0],
}
VALUES: dict[str, Any] = {"number": 1.5, "zero": 0.0, "0-d": np.array(-0.5), "of one": np.array([2.0])}


def _numpy_write(x: Any, key: Any, method: str, value: Any) -> Any:
    x = x.copy()
    ufunc = {"add": np.add, "max": np.maximum, "min": np.minimum, "multiply": np.multiply}.get(method)
    x[key] = value if ufunc is None else ufunc(x[key], value)
    return x


class _Keys:
    """Returns the key that it is indexed with."""

    def __getitem__(self, key: Any) -> Any:
        return key


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("method", ["set", "add", "max", "min", "multiply"])
@pytest.mark.parametrize("form", MASKED)
def test_a_masked_write_of_one_value_is_numpys_eager_and_in_replays(form: str, method: str, value: str) -> None:
    given = VALUES[value]
    v = pb.tensor(given) if isinstance(given, np.ndarray) else given
    f = lambda x, m: getattr(x.at[MASKED[form](_Keys(), m, v)], method)(v)
    captured = pb.capture(f)
    for seed in range(2):
        x = _x(seed).numpy()
        x.flat[:4] = -0.0, np.inf, -np.inf, np.nan  # values outside the mask must not change
        m = _x(seed + 7)
        with np.errstate(all="ignore"):
            wanted = _numpy_write(x, MASKED[form](_Keys(), m.numpy(), given), method, given)
        y = f(pb.tensor(x), m)
        np.testing.assert_array_equal(y.numpy(), wanted)
        assert (np.signbit(y.numpy()) == np.signbit(wanted))[~np.isnan(wanted)].all()
        same(captured(pb.tensor(x), m), y)


def test_a_masked_write_of_a_row_broadcasts_along_the_mask() -> None:
    f = lambda x, m, v: x.at[m].add(v)
    captured, x, v = pb.capture(f), _x(0), _x(1)[0]
    for k in range(2):
        mask = np.array([k, 1, 1 - k], bool)
        wanted = x.numpy().copy()
        wanted[mask] += v.numpy()
        np.testing.assert_array_equal(f(x, pb.tensor(mask), v).numpy(), wanted)
        same(captured(x, pb.tensor(mask), v), f(x, pb.tensor(mask), v))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool"])
@pytest.mark.parametrize("method", ["set", "add", "max", "min", "multiply"])
def test_a_masked_write_keeps_the_dtype_and_wraps_around(method: str, dtype: str) -> None:
    f = lambda x, m: getattr(x.at[m], method)(True if dtype == "bool" else 3)
    x, mask = np.array([0, 1, 254]).astype(dtype), np.array([True, False, True])
    wanted = _numpy_write(x, mask, method, np.array(3).astype(dtype))
    for run in (f, pb.capture(f)):
        np.testing.assert_array_equal(run(pb.tensor(x), pb.tensor(mask)).numpy(), wanted, strict=True)


@pytest.mark.parametrize("method", ["set", "add", "max", "min", "multiply"])
def test_gradients_of_a_masked_write_are_those_of_single_elements(method: str) -> None:
    """The derivative by x and by the value, compared with the write at the indices of the mask's elements."""
    x, v = _x(0), pb.tensor(0.25, dtype="float64")
    mask = pb.tensor(_x(1).numpy() > 0)
    where = tuple(pb.tensor(i) for i in np.nonzero(mask.numpy()))
    loss = lambda x, v, key: pb.sum(pb.sin(getattr(x.at[key], method)(v)))
    found = pb.grad(loss, argnums=(0, 1))(x, v, mask)
    captured = pb.capture(lambda x, v, m: pb.grad(loss, argnums=(0, 1))(x, v, m))(x, v, mask)
    for g, of_captured, wanted in zip(found, captured, pb.grad(lambda x, v: loss(x, v, where), argnums=(0, 1))(x, v)):
        np.testing.assert_allclose(g.numpy(), wanted.numpy(), rtol=1e-13)
        same(of_captured, g)


def test_a_masked_write_of_each_example_is_that_of_the_examples() -> None:
    f = lambda x, m: x.at[m].set(0.0)
    x, m = _x(0), pb.tensor(_x(1).numpy() > 0)
    same(pb.vmap(f)(x, m), f(x, m))


def test_values_outside_a_mask_do_not_become_nan_on_the_way() -> None:
    x, mask = pb.tensor([np.inf, 1.0]), pb.tensor([False, True])
    with pb.debug_nans():
        for method, value in (("multiply", 0.0), ("add", -np.inf), ("set", 2.0)):
            assert getattr(x.at[mask], method)(value)[0].item() == np.inf


@pytest.mark.parametrize("f", [
    lambda x, m: x[m], lambda x, m: x[:, m[0]], lambda x, m: x[m[:, 0], 0], lambda x, m: x.at[m].set(pb.ones(2)),
    lambda x, m: x[m[0, 0]],
])
def test_a_mask_whose_result_has_a_shape_that_depends_on_values_is_refused_with_where(f: Any) -> None:
    mask = pb.tensor([[True, False], [False, True]])
    f(pb.ones((2, 2)), mask)
    words = r"(?s)a mask, whose result has a shape.*test_capture_index.py.*pb\.where\(mask, x, 0\)"
    with pytest.raises(pb.CaptureError, match=words):
        pb.capture(f)(pb.ones((2, 2)), mask)


# ---- random keys


def _key(rng: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Returns a key for an array of this shape; some of these NumPy refuses."""
    items: list[Any] = []
    wide = [(), (2,), (3, 2), (1, 2)]
    for n in shape[: int(rng.integers(len(shape) + 1))]:
        kind = int(rng.integers(5))
        if kind == 0:
            items.append(int(rng.integers(-n, n)))
        elif kind == 1:
            low, high = sorted(int(b) for b in rng.integers(0, n + 1, 2))
            items.append(slice(low, high, int(rng.integers(1, 3))) if rng.random() < 0.7 else slice(None, None, -1))
        elif kind == 2 and rng.random() < 0.3:
            items.append([bool(b) for b in rng.random(n) < 0.6])
        else:
            items.append(pb.tensor(rng.integers(-n, n, wide[int(rng.integers(4))])))
        if rng.random() < 0.15:
            items.append([None, True, False, ...][int(rng.integers(4))])
    return tuple(items)


@pytest.mark.parametrize("seed", range(10))
def test_random_keys_are_numpys_eager_and_in_replays(seed: int) -> None:
    done = 0
    for k in itertools.count():
        rng = np.random.default_rng([seed, k])
        shape = tuple(int(n) for n in rng.integers(1, 5, int(rng.integers(1, 5))))
        key, x = _key(rng, shape), pb.tensor(np.arange(float(np.prod(shape))).reshape(shape))
        varying = [item for item in key if isinstance(item, pb.Tensor)]

        def f(x: pb.Tensor, *given: pb.Tensor, key: Any = key) -> Any:
            left = iter(given)
            return x[tuple(next(left) if isinstance(item, pb.Tensor) else item for item in key)]

        captured = pb.capture(f)
        try:
            wanted = x.numpy()[tuple(item.numpy() if isinstance(item, pb.Tensor) else item for item in key)]
        except IndexError:
            for run in (f, captured):
                with pytest.raises((IndexError, pb.ShapeError)):
                    run(x, *varying).numpy()
            continue
        np.testing.assert_array_equal(f(x, *varying).numpy(), wanted, strict=True)
        same(captured(x, *varying), f(x, *varying))
        again = [pb.tensor(np.where(item.numpy() > 0, item.numpy() - 1, item.numpy())) for item in varying]
        same(captured(x, *again), f(x, *again))
        done += 1
        if done == 40:
            return


BEYOND = np.array([2**64 - 1], np.uint64)  # as int64 it is -1


@pytest.mark.parametrize(
    "read",
    [
        lambda x, i: x[i], lambda x, i: x[0, i], lambda x, i: x[:, i], lambda x, i: x[i, i], lambda x, i: x[::2, i, None],
        lambda x, i: x.at[0, i].set(9.0), lambda x, i: x.at[i].add(9.0), lambda x, i: pb.vmap(lambda r: r[i])(x),
    ],
)
def test_an_unsigned_index_beyond_int64_is_out_of_range(read: Callable[..., Any]) -> None:
    x, f = pb.tensor(np.arange(6.0).reshape(2, 3)), pb.capture(read)
    with pytest.raises(IndexError):
        read(x, BEYOND).numpy()
    with pytest.raises(IndexError):
        f(x, pb.tensor(BEYOND)).numpy()  # a GPU tells it when a value is read
    f(x, pb.tensor([1], dtype="uint64"))
    with pytest.raises(IndexError):
        f(x, pb.tensor(BEYOND)).numpy()


def test_an_unsigned_index_of_each_example_is_out_of_range_too() -> None:
    x, i = pb.tensor(np.arange(6.0).reshape(2, 3)), pb.tensor([0, 2**64 - 1], dtype="uint64")
    for f in (lambda x, i: pb.vmap(lambda a, j: a[j])(x, i), lambda x, i: pb.vmap(pb.capture(lambda a, j: a[j]))(x, i)):
        for g in (f, pb.capture(f)):
            with pytest.raises(IndexError):
                g(x, i).numpy()
