"""Attention: values and derivatives of every form of mask, in every dtype; what a query without keys gives; wrong calls."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import FLOATS, dtype_of, host
from pullback.nn import functional as F
from pullback.nn.functional import rotary, scaled_dot_product_attention as attend
from pullback.ops import attention_parts

BOUNDS = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 4e-2}
MASKS = ("none", "bools", "floats", "causal", "causal bools")
_rng: list[Any] = []


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    _rng[:] = [np.random.default_rng(0)]


def normal(*shape: int, dtype: str = "float64") -> Any:
    return _rng[0].standard_normal(shape).astype(dtype_of(dtype))


def mask_of(kind: str, heads: int, queries: int, keys: int, dtype: str = "float64") -> dict[str, Any]:
    """Returns the arguments of a kind of mask. Each query sees at least one key."""
    given: dict[str, Any] = {"is_causal": kind.startswith("causal")}
    if kind.endswith("bools"):
        given["attn_mask"] = (_rng[0].random((2, 1, queries, keys)) < 0.6) | (np.arange(keys) == 0)
    if kind == "floats":
        given["attn_mask"] = normal(heads, 1, keys, dtype=dtype)
    return given


def expected(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False, scale: float | None = None) -> Any:
    """Attention by its formula in float64; a query without keys gives 0."""
    q, k, v = [np.asarray(x, np.float64) for x in (q, k, v)]
    k, v = [np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (k, v)]
    s = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        m = np.asarray(attn_mask)
        s = np.where(m, s, -np.inf) if m.dtype == bool else s + m.astype(np.float64)
    if is_causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    e = np.exp(s - np.maximum(s.max(axis=-1, keepdims=True), -1e300))
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total) @ v


def gradients(f: Any, *inputs: Any, g: Any) -> list[Any]:
    xs = [pb.tensor(x) for x in inputs]
    with pb.GradientTape() as tape:
        for x in xs:
            tape.watch(x)
        y = f(*xs)
    return [y.numpy(), *[gx.numpy() for gx in tape.gradient(y, xs, output_gradients=pb.tensor(g))]]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mask", MASKS)
def test_values_are_those_of_the_formula(mask: str, dtype: str) -> None:
    for heads, groups, queries, keys, width, out in ((4, 2, 5, 7, 3, 2), (2, 2, 37, 33, 17, 9), (3, 1, 20, 50, 8, 16)):
        q, k, v = normal(2, heads, queries, width, dtype=dtype), *[normal(2, groups, keys, n, dtype=dtype) for n in (width, out)]
        given = mask_of(mask, heads, queries, keys, dtype)
        y = attend(q, k, v, enable_gqa=True, **given)
        assert y.dtype == dtype_of(dtype)
        np.testing.assert_allclose(host(y).astype(np.float64), expected(q, k, v, **given), atol=BOUNDS[dtype])


@pytest.mark.parametrize("mask", MASKS)
def test_gradients_are_those_of_torch(mask: str) -> None:
    torch = pytest.importorskip("torch")
    for heads, groups, queries, keys, width, out in ((4, 2, 5, 7, 3, 2), (2, 1, 40, 60, 17, 9), (2, 2, 300, 280, 4, 5)):
        q, k, v = normal(2, heads, queries, width), normal(2, groups, keys, width), normal(2, groups, keys, out)
        given, g = mask_of(mask, heads, queries, keys), normal(2, heads, queries, out)
        theirs = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
        allowed: Any = np.tri(queries, keys, dtype=bool) if given["is_causal"] else None
        m = given.get("attn_mask")
        m = allowed if m is None else m if allowed is None else m & allowed
        t = torch.nn.functional.scaled_dot_product_attention
        y = t(*theirs, attn_mask=None if m is None else torch.tensor(m), enable_gqa=True)
        y.backward(torch.tensor(g))
        found = gradients(lambda q, k, v: attend(q, k, v, enable_gqa=True, **given), q, k, v, g=g)  # noqa: B023
        for ours, wanted in zip(found, [y.detach(), *[x.grad for x in theirs]]):
            np.testing.assert_allclose(ours, wanted.numpy(), atol=1e-11)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_gradients_of_other_dtypes_are_those_of_float64(dtype: str) -> None:
    q, k, v, g = [normal(2, 2, 9, 6, dtype=dtype) for _ in range(4)]
    found = gradients(lambda *xs: attend(*xs, is_causal=True), q, k, v, g=g)
    wanted = gradients(lambda *xs: attend(*xs, is_causal=True), *[x.astype(np.float64) for x in (q, k, v)], g=g.astype(np.float64))
    for ours, exact in zip(found, wanted):
        assert ours.dtype == dtype_of(dtype)
        np.testing.assert_allclose(ours.astype(np.float64), exact, atol=3 * BOUNDS[dtype])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_mask_in_float32_keeps_its_digits_beside_half_precision(dtype: str) -> None:
    """The scores are computed in float32, so masks whose numbers half precision lacks are added as they are."""
    q, k, v, g = [normal(2, 2, 9, 6, dtype=dtype) for _ in range(4)]
    mask = (normal(2, 9, 9) - 70001).astype(np.float32)
    found = gradients(lambda q, k, v, m: attend(q, k, v, m), q, k, v, mask, g=g)
    assert [x.dtype for x in found] == [dtype_of(dtype)] * 4 + [np.float32]
    wide = [x.astype(np.float64) for x in (q, k, v, mask)]
    np.testing.assert_allclose(found[0].astype(np.float64), expected(*wide), atol=BOUNDS[dtype])
    wanted = gradients(lambda q, k, v, m: attend(q, k, v, m), *wide, g=g.astype(np.float64))
    for ours, exact in zip(found, wanted):
        np.testing.assert_allclose(ours.astype(np.float64), exact, atol=3 * BOUNDS[dtype])
    moves = [normal(*x.shape, dtype=str(x.dtype)) for x in (q, k, v, mask)]
    _, moved = pb.jvp(lambda *xs: attend(*xs), (q, k, v, mask), tuple(moves))
    _, exact = pb.jvp(lambda *xs: attend(*xs), tuple(wide), tuple([x.astype(np.float64) for x in moves]))
    np.testing.assert_allclose(host(moved).astype(np.float64), host(exact), atol=6 * BOUNDS[dtype])


@pytest.mark.parametrize("mask", MASKS)
def test_derivatives_are_right_to_second_order(mask: str) -> None:
    given = mask_of(mask, 2, 3, 4)
    shared = given.pop("attn_mask", None)

    def f(q: Any, k: Any, v: Any, *m: Any) -> Any:
        return attend(q, k, v, m[0] if m else shared, enable_gqa=True, **given)

    biased = [pb.tensor(shared)] if mask == "floats" else []
    xs = [pb.tensor(x) for x in (normal(2, 2, 3, 2), normal(2, 1, 4, 2), normal(2, 1, 4, 3))]
    assert pb.check_gradients(f, [*xs, *biased], order=2) < 1e-6


def test_tangents_are_products_with_the_gradients() -> None:
    q, k, v, g = [normal(2, 3, 6, 4) for _ in range(4)]
    ts = [normal(2, 3, 6, 4) for _ in range(3)]
    y, t = pb.jvp(lambda *xs: attend(*xs, is_causal=True), [pb.tensor(x) for x in (q, k, v)], [pb.tensor(x) for x in ts])
    _, *gs = gradients(lambda *xs: attend(*xs, is_causal=True), q, k, v, g=g)
    np.testing.assert_allclose((t.numpy() * g).sum(), sum([(a * b).sum() for a, b in zip(ts, gs)]), rtol=1e-10)
    np.testing.assert_allclose(y.numpy(), expected(q, k, v, is_causal=True), atol=1e-12)


def test_the_definition_in_parts_is_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts are halves of the batch, and then of the heads that share keys."""
    q, k, v = [pb.tensor(x) for x in (normal(2, 4, 3, 2), normal(2, 2, 3, 2), normal(2, 2, 3, 2))]
    m = pb.tensor(normal(4, 1, 3))

    def hessian(*xs: Any) -> Any:
        return pb.grad(lambda *ys: sum([(g * g).sum() for g in pb.grad(loss, argnums=(0, 1, 2, 3))(*ys)]), argnums=(0, 1, 2, 3))(
            *xs
        )

    def loss(*xs: Any) -> Any:
        return pb.sin(attend(*xs, enable_gqa=True)).sum()

    t = [pb.tensor(normal(*x.shape)) for x in (q, k, v, m)]
    whole, moved = hessian(q, k, v, m), pb.jvp(lambda *xs: attend(*xs, enable_gqa=True), [q, k, v, m], t)[1]
    monkeypatch.setattr(attention_parts, "BLOCK", 10)
    for a, b in zip([*whole, moved], [*hessian(q, k, v, m), pb.jvp(lambda *xs: attend(*xs, enable_gqa=True), [q, k, v, m], t)[1]]):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-12)


def test_vmap_and_gradients_of_each_example_are_a_loop_over_the_examples() -> None:
    q, k, v = [pb.tensor(normal(3, 2, 5, 4)) for _ in range(3)]
    m = pb.tensor(np.tri(5, dtype=bool))

    def loss(q: Any, k: Any, v: Any) -> Any:
        return pb.sin(attend(q, k, v, m)).sum()

    each = pb.vmap(pb.grad(loss, argnums=(0, 1, 2)), in_axes=(0, None, 0))(q, k[0], v)
    for i in range(3):
        for all_of_them, one in zip(each, pb.grad(loss, argnums=(0, 1, 2))(q[i], k[0], v[i])):
            np.testing.assert_allclose(all_of_them[i].numpy(), one.numpy(), atol=1e-13)
    nested = pb.vmap(lambda q, k: pb.vmap(lambda a: attend(a[None], k[None], k[None]))(q))(q, k[:, 0])
    np.testing.assert_allclose(nested[1, 0, 0].numpy(), attend(q[1, 0], k[1, 0], k[1, 0]).numpy(), atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_query_without_keys_gives_zero_and_has_the_gradient_zero(dtype: str) -> None:
    q, k, v, g = [normal(1, 2, 4, 3, dtype=dtype) for _ in range(4)]
    sees = np.ones((4, 4), bool)
    sees[2] = False
    added = np.where(sees, 0, -np.inf).astype(dtype)
    for m in (sees, added):
        y, gq, gk, gv = gradients(lambda q, k, v: attend(q, k, v, m), q, k, v, g=g)  # noqa: B023
        assert not y[:, :, 2].any()
        assert not gq[:, :, 2].any()
        assert np.isfinite(gk).all()
        assert np.isfinite(gv).all()
        rest = [x[:, :, [0, 1, 3]] for x in (q, g)]
        wanted = gradients(lambda a, k, v: attend(a, k, v), rest[0], k, v, g=rest[1])
        for ours, other in zip((y[:, :, [0, 1, 3]], gq[:, :, [0, 1, 3]], gk, gv), wanted):
            np.testing.assert_allclose(ours, other, atol=BOUNDS[dtype])
    hessian = pb.grad(lambda q: (pb.grad(lambda q: pb.sin(attend(q, k, v, sees)).sum())(q) ** 2).sum())(pb.tensor(q))
    assert np.isfinite(hessian.numpy()).all()


def test_nan_and_infinity_stay_in_their_rows() -> None:
    q, k, v = [normal(1, 1, 40, 3) for _ in range(3)]
    q[0, 0, 3, 0] = np.nan
    y = attend(q, k, v).numpy()
    assert np.isnan(y[0, 0, 3]).all()
    assert np.isfinite(np.delete(y[0, 0], 3, axis=0)).all()
    y = attend(q, k, v, np.where(np.arange(40) == 5, np.inf, 0.0)).numpy()
    assert np.isnan(y).all()  # inf - inf, as in a softmax


def test_arrays_without_elements() -> None:
    for lead, heads, queries, keys, width, out in ((2, 2, 0, 3, 4, 4), (2, 2, 3, 0, 4, 4), (0, 2, 3, 3, 4, 4), (2, 0, 3, 3, 4, 4),
                                                   (2, 2, 3, 3, 0, 4), (2, 2, 3, 3, 4, 0)):
        q, k, v = normal(lead, heads, queries, width), normal(lead, heads, keys, width), normal(lead, heads, keys, out)
        g = normal(lead, heads, queries, out)
        y, *gs = gradients(attend, q, k, v, g=g)
        assert y.shape == g.shape
        assert [x.shape for x in gs] == [q.shape, k.shape, v.shape]
        assert np.isfinite(y).all()
        assert all([np.isfinite(x).all() for x in gs])
        if not keys:
            assert not y.any()
        if not width:
            np.testing.assert_allclose(gs[2], np.broadcast_to(g.mean(axis=-2, keepdims=True), gs[2].shape))
        if not queries:
            assert not gs[1].any()
            assert not gs[2].any()


def test_operands_that_are_not_contiguous_and_leading_axes_that_broadcast() -> None:
    q, k, v = (
        normal(5, 4, 3, 2).transpose(2, 1, 0, 3),
        normal(1, 6, 1, 4).transpose(0, 2, 1, 3)[..., ::2],
        normal(3, 4, 12, 3)[:, :, ::-2],
    )
    wide = [np.ascontiguousarray(np.broadcast_to(x, (3, 4, *x.shape[2:]))) for x in (q, k, v)]
    g = normal(3, 4, 5, 3)
    found, wanted = gradients(attend, q, k, v, g=g), gradients(attend, *wide, g=g)
    wanted[2] = wanted[2].sum(axis=(0, 1), keepdims=True)
    for ours, other in zip(found, wanted):
        np.testing.assert_allclose(ours, other, atol=1e-13)
    np.testing.assert_allclose(found[0], expected(*wide), atol=1e-13)


def test_two_axes_are_one_head() -> None:
    q, k, v = normal(5, 3), normal(4, 3), normal(4, 2)
    np.testing.assert_allclose(attend(q, k, v).numpy(), expected(q[None], k[None], v[None])[0], atol=1e-13)
    np.testing.assert_allclose(attend(q, k, v, scale=0.25).numpy(), expected(q[None], k[None], v[None], scale=0.25)[0], atol=1e-13)


def test_dropout_keeps_the_mean_and_the_seed_decides() -> None:
    q, k, v = [pb.tensor(normal(1, 2, 30, 4)) for _ in range(3)]
    pb.random.seed(3)
    first = attend(q, k, v, dropout_p=0.5).numpy()
    pb.random.seed(3)
    np.testing.assert_array_equal(first, attend(q, k, v, dropout_p=0.5).numpy())
    assert abs(first - attend(q, k, v).numpy()).max() > 0.1
    assert not attend(q, k, v, dropout_p=1.0).numpy().any()


def test_a_captured_call_gives_the_same_bits() -> None:
    if pb.backends.why_not("cpu"):
        pytest.skip("only native kernels are captured")
    q, k, v, g = [pb.tensor(normal(2, 2, 20, 6, dtype="float32")) for _ in range(4)]

    def step(q: Any, k: Any, v: Any) -> Any:
        with pb.GradientTape() as tape:
            for x in (q, k, v):
                tape.watch(x)
            y = attend(q, k, v, is_causal=True)
        return [y, *tape.gradient(y, [q, k, v], output_gradients=g)]

    captured, eager = pb.capture(step), step(q, k, v)
    for _ in range(3):
        for a, b in zip(captured(q, k, v), eager):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_autocast_rounds_the_factors() -> None:
    q, k, v, g = [normal(1, 2, 20, 8, dtype="float32") for _ in range(4)]
    exact = gradients(attend, q, k, v, g=g)
    for precision, bound in (("bfloat16", 0.05), ("float16", 0.005)):
        with pb.amp.autocast(precision):
            found = gradients(attend, q, k, v, g=g)
        for a, b in zip(found, exact):
            assert a.dtype == np.float32
            assert 0 < abs(a - b).max() < bound


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_positions_turn_pairs_of_features(interleaved: bool) -> None:
    x, at = normal(2, 3, 5, 8), np.array([4, 0, 7, 2, 2])
    y = rotary(x, at, base=100.0, interleaved=interleaved, dims=6).numpy()
    for i in range(3):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + 3)
        turned = (x[..., a] + 1j * x[..., b]) * np.exp(1j * at * 100.0 ** (-2 * i / 6))
        np.testing.assert_allclose(y[..., a], turned.real, atol=1e-13)
        np.testing.assert_allclose(y[..., b], turned.imag, atol=1e-13)
    np.testing.assert_array_equal(y[..., 6:], x[..., 6:])
    np.testing.assert_array_equal(rotary(x).numpy(), rotary(x, np.arange(5)).numpy())
    assert pb.check_gradients(lambda x: rotary(x, interleaved=interleaved), [x[0, 0]]) < 1e-6


def test_products_of_turned_vectors_depend_on_their_distance() -> None:
    q, k = normal(6, 4), normal(6, 4)
    first, later = [(rotary(q, np.arange(6) + n).numpy() @ rotary(k, np.arange(6) + n).numpy().T) for n in (0, 11)]
    np.testing.assert_allclose(first, later, atol=1e-12)


X = np.ones((2, 4, 5, 6))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: attend(X, X[..., :3], X), pb.ShapeError, "the last axes of query and key must have the same length"),
        (lambda: attend(X, X[:, :, :3], X), pb.ShapeError, "the same number of keys"),
        (lambda: attend(X, X[0], X[0]), pb.ShapeError, "need the same number of axes, at least two"),
        (lambda: attend(X[0, 0, 0], X[0, 0, 0], X[0, 0, 0]), pb.ShapeError, "at least two"),
        (lambda: attend(X, X[:, :2], X[:, :2]), pb.ShapeError, "Pass enable_gqa=True if heads share keys"),
        (lambda: attend(X, X[:, :3], X[:, :3]), pb.ShapeError, "heads cannot share 3 heads of keys evenly; 3 must divide 4"),
        (lambda: attend(X, X[:, :3], X[:, :3], enable_gqa=True), pb.ShapeError, "3 must divide 4"),
        (lambda: attend(X, X[:, :2], X[:, :3], enable_gqa=True), pb.ShapeError, "key and value must have the same number of heads"),
        (lambda: attend(X, np.ones((3, 4, 5, 6)), np.ones((3, 4, 5, 6))), pb.ShapeError, "leading axes do not broadcast"),
        (
            lambda: attend(X, X, X, np.ones((4, 5), bool)),
            pb.ShapeError,
            r"attn_mask has shape \(4, 5\), which does not .* \(5, 5\) for",
        ),
        (lambda: attend(X, X, X, np.ones((1, 2, 4, 5, 5), bool)), pb.ShapeError, "does not broadcast"),
        (lambda: attend(X, X, X, np.ones((5, 5), int)), pb.DTypeError, "attn_mask has dtype int64. Give bools"),
        (lambda: attend(X.astype(int), X, X), pb.DTypeError, "must be floats, but one has dtype int64"),
        (lambda: attend(X, X, X, dropout_p=2.0), pb.PullbackError, "dropout_p=2.0 is not a probability"),
        (lambda: attend(X, X, X, is_causal=1), pb.DTypeError, "is_causal"),
        (lambda: attend(X, X, X, scale="big"), pb.DTypeError, "scale"),
        (lambda: attend(X, X), TypeError, "value"),
        (lambda: F.rotary(X, dims=5), pb.ShapeError, "dims=5 must be an even number up to the 6 features"),
        (lambda: F.rotary(X, dims=8), pb.ShapeError, "up to the 6 features"),
        (lambda: F.rotary(X, np.arange(3)), pb.ShapeError, r"positions \(3,\) do not fit"),
        (lambda: F.rotary(X, np.ones((2, 3, 5))), pb.ShapeError, r"rotary: positions \(2, 3, 5\) do not .* broadcast to \(2, 4\)"),
        (lambda: F.rotary(X, np.ones(5, bool)), pb.DTypeError, "rotary: positions are bools"),
        (lambda: F.rotary(X[0, 0, 0]), pb.ShapeError, "rotary: x has shape"),
        (lambda: F.rotary(X.astype(int)), pb.DTypeError, "must be floats"),
        (lambda: F.rotary(X, base=np.inf), pb.PullbackError, "base=inf must be positive and finite"),
        (lambda: F.rotary(X, base=-1.0), pb.PullbackError, "base=-1.0 must be positive"),
    ],
)
def test_wrong_calls_are_explained(call: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_weights_of_a_long_row_keep_their_digits() -> None:
    """The scores of 1,100 keys are several blocks of the order of sums."""
    q, k, v = normal(1, 1, 3, 5), normal(1, 1, 1100, 5), normal(1, 1, 1100, 5)
    np.testing.assert_allclose(attend(q, k, v).numpy(), expected(q, k, v), atol=1e-13)
    assert math.isclose(float(attend(q, k, np.ones_like(v)).numpy()[0, 0, 0, 0]), 1.0, rel_tol=1e-14)


@pytest.mark.parametrize(("name", "value"), [("scale", "p"), ("dropout_p", "p"), ("scale", "0.5"), ("dropout_p", "0.1")])
def test_a_tensor_or_a_str_is_no_number_of_attention(name: str, value: str) -> None:
    p: Any = pb.Parameter(0.5) if value == "p" else value
    q = pb.ones((2, 3, 4))
    words = "no gradient passes to it" if value == "p" else "is not a real number"
    with pytest.raises(pb.DTypeError, match=f"scaled_dot_product_attention: {name}.*{words}"):
        attend(q, q, q, **{name: p})
