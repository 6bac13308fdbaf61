"""Empty rows, several NaNs, infinite rows, means of one number: kernels and reference backend give the results of NumPy."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same
from conftest import environment, host
from pullback import nn
from pullback.autodiff.primitive import OPS

NAN, INF = float("nan"), float("inf")


# ---- empty rows


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0, 0)], ids=str)
def test_rows_without_elements_are_rows(backend: Any, name: str, shape: tuple[int, int]) -> None:
    got = backend.run(OPS[name], (np.zeros(shape, np.float32),), ())
    if name == "logsumexp":
        np.testing.assert_array_equal(got, np.full(shape[:1], -INF, np.float32))  # the logarithm of an empty sum is -inf
    else:
        assert got.shape == shape


def test_a_cross_entropy_of_no_classes_is_zero_where_every_label_is_ignored(backend: Any) -> None:
    inputs = (np.zeros((2, 0), np.float32), np.array([-100, -100]))
    np.testing.assert_array_equal(backend.run(OPS["cross_entropy"], inputs, (-100, 0.0)), np.zeros(2, np.float32))


# ---- NaNs and infinities


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_of_several_nans_the_first_is_the_extreme(name: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    for n in (2, 3, 7, 16, 33, 100, 1000, 70_001):
        for count in (2, 3, n // 2):
            x = rng.standard_normal(n).astype(dtype)
            x[rng.integers(0, n, count)] = NAN
            assert int(getattr(pb, name)(pb.tensor(x))) == getattr(np, name)(x), (n, count)
        table = rng.standard_normal((5, n)).astype(dtype)
        table[rng.random((5, n)) < 0.4] = NAN
        for axis in (0, 1):
            np.testing.assert_array_equal(host(getattr(pb, name)(pb.tensor(table), axis=axis)), getattr(np, name)(table, axis=axis))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nans_are_searched_among_nans_as_numpy_does(dtype: str) -> None:
    ordered = np.array([-1.0, 0.5, 0.5, INF, NAN, NAN, NAN], dtype)
    for n in range(len(ordered) + 1):
        for side in ("left", "right"):
            values = np.array([NAN, -2.0, 0.5, INF, NAN, 7.0], dtype)
            got = pb.searchsorted(pb.tensor(ordered[:n]), pb.tensor(values), side=side)
            np.testing.assert_array_equal(host(got), np.searchsorted(ordered[:n], values, side), err_msg=f"{n} {side}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("infinite", [INF, -INF])
def test_the_slope_of_a_logsumexp_at_infinity_leaves_the_others_out(dtype: str, infinite: float) -> None:
    """The slope is the softmax, also where its definition g * exp(x - y) has inf - inf."""
    for n in (2, 5, 70):
        x = np.zeros((3, n), dtype)
        x[1, 0] = infinite
        t = pb.tensor(x)
        with pb.GradientTape() as tape:
            tape.watch(t)
            y = pb.logsumexp(t, axis=-1)
        slope = host(tape.gradient(y, t, output_gradients=pb.ones_like(y)))
        np.testing.assert_allclose(slope[[0, 2]], 1 / n, rtol=1e-6)
        if infinite < 0:
            np.testing.assert_allclose(slope[1], [0.0, *[1 / (n - 1)] * (n - 1)], rtol=1e-6)
        else:
            np.testing.assert_array_equal(slope[1], [1.0, *[0.0] * (n - 1)])


def test_float32_denormals_are_flushed_in_every_thread_after_a_loop_in_float64() -> None:
    many = 3_000_000
    wide = pb.tensor(np.full(many, 1e-310))
    narrow = pb.tensor(np.full(many, 1e-40, np.float32))
    for _ in range(3):
        assert np.count_nonzero(host(wide * 1.0)) == many
        assert np.count_nonzero(host(narrow * 1.0)) == 0


# ---- the cost formula of a mean of one element


@needs_kernels
def test_the_mean_of_one_element_takes_no_division() -> None:
    for shape, axis, special in (((4, 1), 1, 0), ((1, 5), 0, 0), ((4, 3), 1, 4), ((1,), 0, 0)):
        with pb.profile(strict=True) as prof:
            pb.mean(pb.ones(shape), axis=axis)
        assert sum([row.figures.special_ops for row in prof.rows if row.kernel == "mean"]) == special, shape


# ---- replays


@needs_kernels
def test_an_index_past_int64_is_out_of_range_in_a_replay_too(on_cpu: None) -> None:
    """As an int64, 2**64 - 1 would be -1 and select the last element."""
    x = pb.tensor([1.0, 2.0, 3.0])
    captured = pb.capture(lambda x, i: pb.take(x, i))
    same(captured(x, pb.tensor([0, 2], dtype=pb.uint64)), pb.tensor([1.0, 3.0]))
    for wrong in (2**64 - 1, 2**63, 3):
        with pytest.raises(IndexError, match="out of range"):
            captured(x, pb.tensor(np.array([0, wrong], np.uint64)))
    same(captured(x, pb.tensor([1, 1], dtype=pb.uint64)), pb.tensor([2.0, 2.0]))


@needs_kernels
@pytest.mark.parametrize("fusion", ["exact", "fast"])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_sum_of_a_product_and_what_stays_adds_nothing_to_what_stays(fusion: str, swapped: bool) -> None:
    """A product may be added in place to a temporary, but not to an argument, a Parameter or a constant."""
    rng = np.random.default_rng(0)
    kept, w = pb.Parameter(rng.standard_normal((16, 16))), pb.tensor(rng.standard_normal((16, 16)))
    a, x = pb.tensor(rng.standard_normal((16, 16))), pb.tensor(rng.standard_normal((16, 16)))
    add = (lambda u, v: v + u) if swapped else (lambda u, v: u + v)
    for f in (lambda a, x: add(a, x @ w), lambda a, x: add(kept, x @ w), lambda a, x: add(w, x @ w)):
        captured, before = pb.capture(f, fusion=fusion), [host(t).copy() for t in (a, x, w, kept)]
        wanted = host(f(a, x))
        for _ in range(4):
            np.testing.assert_allclose(host(captured(a, x)), wanted, rtol=1e-12, atol=1e-12)
        for t, value in zip((a, x, w, kept), before):
            np.testing.assert_array_equal(host(t), value)


@needs_kernels
@pytest.mark.parametrize("fusion", ["exact", "none", "fast"])
@pytest.mark.parametrize("repeats", [1, 8])  # an outer product with many columns has a separate kernel
def test_an_outer_product_and_a_sum_keep_the_signs_of_zeros(fusion: str, repeats: int) -> None:
    a = pb.tensor([[0.0], [-0.0], [1.0]])
    b, c = [pb.tensor(row * repeats) for row in ([-1.0, 0.0, -0.0], [-0.0, -0.0, 0.0])]
    b = b[None]
    for f in (lambda a, b, c: a @ b + c, lambda a, b, c: nn.functional.linear(a, b.T, c), lambda a, b, c: pb.relu(a @ b + c)):
        captured = pb.capture(f, fusion=fusion)
        for _ in range(3):
            same(captured(a, b, c), f(a, b, c))


@needs_kernels
def test_reversed_views_of_one_array_are_not_taken_for_separate_ones() -> None:
    p = pb.Parameter(np.arange(8.0))

    def reversing() -> Any:
        before = p[::-1] * 1.0
        p.assign(p + 1)
        return before + p[::-1]

    captured = pb.capture(reversing)
    for k in range(4):
        same(captured(), pb.tensor(2 * np.arange(8.0)[::-1] + 2 * k + 1))


# ---- long runs


@needs_kernels
def test_labels_of_a_profile_are_right_beyond_32768_launches() -> None:
    x = pb.tensor(np.ones(3, np.float32))
    names = ("exp", "logaddexp", "sin")
    with pb.profile(strict=True) as prof:
        for _ in range(15_000):
            pb.exp(x), pb.logaddexp(x, x), pb.sin(x)
    assert {row.op: row.figures.launches for row in prof.rows} == dict.fromkeys(names, 15_000)
    assert {launch.kernel for launch in prof.launches} == set(names)


CACHED = """
import numpy as np, pullback as pb, pullback.backends.native as native
sizes = [int(1e6 * 1.01**k) for k in range(40)]
for n in sizes:
    pb.zeros(n) + 1
print(native.module.cache_use()[0])
"""


@needs_kernels
def test_the_cache_gives_its_oldest_blocks_back_at_the_limit() -> None:
    limit = 20_000_000
    variables = environment(PULLBACK_CACHE_BYTES=str(limit), PULLBACK_DEVICE="cpu")
    done = subprocess.run([sys.executable, "-c", CACHED], env=variables, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= limit


@needs_kernels
def test_a_broadcast_of_nothing_has_no_bytes() -> None:
    nothing = pb.broadcast_to(pb.ones((1, 3)), (0, 3))
    with pb.profile(strict=True) as prof:
        pb.exp(nothing)
        nothing + 1.0
    assert (prof.total.bytes_read, prof.total.bytes_written, prof.total.flops) == (0, 0, 0)


# ---- bools with bytes other than 0 and 1, which a kernel might add up

ODD = np.array([0, 1, 2, 255], np.uint8)


def _as_captured(a: Any) -> Any:
    f = pb.capture(lambda x: (pb.logical_not(x), pb.logical_or(x, x)))
    f(np.zeros(4, bool))
    return f(a)[1]


@pytest.mark.parametrize(
    "take_in",
    [pb.asarray, pb.tensor, pb.from_dlpack, lambda a: pb.logical_or(a, a), lambda a: pb.asarray(a[::-1])[::-1], _as_captured],
)
def test_a_bool_is_true_whatever_its_byte_is(take_in: Any) -> None:
    t = take_in(ODD.view(bool))
    assert t.numpy().view(np.uint8).tolist() == [0, 1, 1, 1]
    assert (int(pb.sum(t)), bool(pb.all(t[1:])), pb.logical_not(t).numpy().tolist()) == (3, True, [True, False, False, False])
    assert t.astype(pb.int32).numpy().tolist() == [0, 1, 1, 1]


def test_one_bool_is_true_whatever_its_byte_is() -> None:
    assert int(pb.sum(pb.asarray(np.array(2, np.uint8).view(bool)))) == 1


def test_bools_of_a_file_are_zeros_and_ones(tmp_path: Any) -> None:
    pb.save(tmp_path / "mask", {"mask": pb.asarray(np.array([False, True, True, True]))})
    data = (tmp_path / "mask").read_bytes()
    assert data.count(b"\x00\x01\x01\x01") == 1
    (tmp_path / "mask").write_bytes(data.replace(b"\x00\x01\x01\x01", ODD.tobytes()))
    assert int(pb.sum(pb.load(tmp_path / "mask")["mask"])) == 3


# ---- the rules of the array API


def test_triangles_of_bools_are_bools() -> None:
    for function, numpys in ((pb.tril, np.tril), (pb.triu, np.triu)):
        y = function(pb.ones((3, 3), dtype=pb.bool)).numpy()
        assert y.dtype == np.bool_
        assert (y == numpys(np.ones((3, 3), bool))).all()


def test_quotients_of_and_by_infinity_are_those_of_the_array_api(backend: Any) -> None:
    del backend
    inf = np.inf
    for dtype in ("float32", "float64"):
        a, b = np.array([inf, -inf, inf, 1, -1, 1, -1], dtype), np.array([1, 1, -1, -inf, -inf, inf, inf], dtype)
        y = pb.floor_divide(pb.tensor(a), pb.tensor(b)).numpy()
        wanted = np.array([inf, -inf, -inf, -0.0, 0.0, 0.0, -0.0], dtype)
        assert np.array_equal(y, wanted)
        assert np.array_equal(np.signbit(y), np.signbit(wanted))
        assert not np.signbit(pb.sign(pb.tensor(np.array([-0.0, 0.0], dtype))).numpy()).any()


def test_arguments_of_the_array_api_are_taken() -> None:
    x = pb.ones((2, 3))
    assert x.astype(pb.float64, device="cpu").dtype == pb.float64
    assert pb.expand_dims(x, 0).shape == (1, 2, 3)
    assert {type(getattr(pb.finfo("float32"), field)) for field in ("eps", "max", "min", "smallest_normal")} == {float}


@pytest.mark.parametrize("equation", ["i(j->i", "i*->i", "i1->i", "i....->i"])
def test_an_equation_has_letters(equation: str) -> None:
    with pytest.raises(pb.PullbackError, match="einsum"):
        pb.einsum(equation, pb.ones((2, 2)))


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i2", ">u8"])
def test_numbers_of_the_other_byte_order_are_taken_in(dtype: str) -> None:
    a = np.arange(6).reshape(2, 3).astype(dtype)
    for take_in in (pb.tensor, pb.asarray):
        t = take_in(a)
        assert t.dtype.isnative
        assert t.numpy().tolist() == a.tolist()


@pytest.mark.parametrize("size", [1e6, 1e7, 1e30])
def test_the_log_softmax_of_large_equal_logits_is_that_of_their_number(backend: Any, size: float) -> None:
    y = backend.run(OPS["log_softmax"], [np.array([[size, size]], np.float32)], ())
    assert np.allclose(y, -np.log(2), rtol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: pb.sort(pb.ones(3), descending=np.array([True, False])),
        lambda: pb.argsort(pb.ones(3), descending=np.array([True, False])),
        lambda: pb.topk(pb.ones(3), 1, largest=np.array([True, False])),
        lambda: pb.pad(pb.ones(3, dtype=pb.bool), 64, value=pb.zeros((0,))),
        lambda: pb.searchsorted(pb.ones(3), pb.ones(2), side=np.array(["left", "right"])),
        lambda: pb.cumulative_prod(pb.ones(3), include_initial=np.array([True, False])),
    ],
)
def test_a_flag_that_is_no_bool_is_refused_in_words(call: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"[a-z]{2,} [a-z]{2,}"):
        call()


def test_indices_that_are_a_view_larger_than_any_memory_are_refused(on_cpu: None) -> None:
    calls = (lambda x, i: pb.take(x, i), lambda x, i: x[pb.asarray(i)], lambda x, i: pb.one_hot(i, 5))
    for value, number in ((1, 3), (-1, 2)):
        indices = np.broadcast_to(np.array([value]), (2**50,))
        for call in calls[:number]:
            with pytest.raises(pb.OutOfMemoryError):
                call(pb.arange(5.0), indices)
    x = pb.arange(5.0)
    assert pb.take(x, np.broadcast_to(np.array([[-1], [2]]), (2, 3))).numpy().tolist() == [[4, 4, 4], [2, 2, 2]]
    with pytest.raises(IndexError, match=r"index 9 at position \[1, 0\]"):
        pb.take(x, np.broadcast_to(np.array([[1], [9]]), (2, 3)))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int64])
def test_negative_indices_of_a_narrow_dtype_reach_the_end_of_a_long_axis(dtype: Any) -> None:
    x = pb.arange(70_000.0)
    assert pb.take(x, np.array([-1, 0], dtype)).numpy().tolist() == [69_999, 0]


@pytest.mark.parametrize(("dtypes", "wanted"), [
    (("float32", "float64", None), "float64"), (("float64", "float32", "float32"), "float64"),
    (("int32", "float32", None), "float32"), (("float32", "float32", "float64"), "float64"),
    (("int64", "float16", "int8"), "float16"),
])
def test_a_layer_of_mixed_dtypes_is_in_their_common_one(dtypes: tuple[Any, ...], wanted: str) -> None:
    rng = np.random.default_rng(0)
    arrays = [None if d is None else rng.integers(-4, 5, n).astype(d) for d, n in zip(dtypes, ((2, 3), (4, 3), (4,)))]
    x, w, b = [None if a is None else pb.tensor(a) for a in arrays]
    got = nn.functional.linear(x, w, b)
    assert got.dtype == wanted
    np.testing.assert_array_equal(host(got), arrays[0] @ arrays[1].T + (0 if b is None else arrays[2]))


@needs_kernels
@pytest.mark.parametrize("other", [{"label_smoothing": 0.25}, {"ignore_index": 1}], ids=str)
@pytest.mark.parametrize("fusion", ["exact", "fast"])
def test_a_loss_is_not_taken_for_that_of_the_gradient_of_another(fusion: str, other: dict[str, Any]) -> None:
    """One kernel computes a loss and its pullback, but only if both have the same logits, labels and options."""
    logits, labels = pb.tensor(np.random.default_rng(0).standard_normal((6, 3))), pb.tensor([0, 1, 2, 1, 0, 2])

    def f(x: Any) -> Any:
        plain = nn.functional.cross_entropy(x, labels)
        with pb.GradientTape() as tape:
            tape.watch(x)
            loss = nn.functional.cross_entropy(x, labels, **other)
        return plain, loss, tape.gradient(loss, x)

    captured = pb.capture(f, fusion=fusion)
    for _ in range(2):
        for got, wanted in zip(captured(logits), f(logits), strict=True):
            same(got, wanted)
