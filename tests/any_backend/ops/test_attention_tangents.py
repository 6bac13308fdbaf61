"""Tangents of attention: those of the formula, in every form of mask and dtype; transforms of them; what they cost."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import FLOATS, dtype_of
from pullback.nn.functional import scaled_dot_product_attention as attend

BOUNDS = {"float64": 1e-12, "float32": 1e-5, "float16": 5e-3, "bfloat16": 5e-2}
MASKS = ("none", "bools", "floats", "causal", "causal bools")
SIZES = ((4, 2, 5, 7, 3, 2), (2, 1, 37, 33, 17, 9), (2, 2, 20, 270, 8, 16))  # heads, groups, queries, keys, width, value width


def formula(xs: list[Any], ts: list[Any], causal: bool) -> Any:
    """The tangent in float64, from query, key, value and the mask or None, and their tangents or None."""
    wide = [None if x is None else x if x.dtype == bool else np.asarray(x, np.float64) for x in (*xs, *ts)]
    q, k, v, m, tq, tk, tv, tm = wide
    shared, scale = q.shape[-3] // k.shape[-3], q.shape[-1] ** -0.5
    k, v, tk, tv = [None if x is None else np.repeat(x, shared, axis=-3) for x in (k, v, tk, tv)]
    s, ds = q @ np.swapaxes(k, -1, -2) * scale, np.zeros((*q.shape[:-1], k.shape[-2]))
    ds = ds if tq is None else ds + tq @ np.swapaxes(k, -1, -2) * scale
    ds = ds if tk is None else ds + q @ np.swapaxes(tk, -1, -2) * scale
    ds = ds if tm is None else ds + tm
    s = s if m is None else np.where(m, s, -np.inf) if m.dtype == bool else s + m
    s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf) if causal else s
    e = np.exp(s - np.maximum(s.max(axis=-1, keepdims=True), -1e300))
    p = e / np.maximum(e.sum(axis=-1, keepdims=True), 1e-300)
    y = p * (ds - (p * ds).sum(axis=-1, keepdims=True)) @ v
    return y if tv is None else y + p @ tv


def operands(kind: str, sizes: tuple[int, ...], dtype: str) -> tuple[list[Any], list[Any]]:
    """Returns the query, the key, the value and the mask or None, and tangents. One query sees no key, unless it is causal."""
    rng = np.random.default_rng(0)
    heads, groups, queries, keys, width, out = sizes
    shapes = [(2, heads, queries, width), (2, groups, keys, width), (2, groups, keys, out)]
    if kind == "floats":
        shapes.append((heads, 1, keys))
    xs, ts = [[rng.standard_normal(shape).astype(dtype_of(dtype)) for shape in shapes] for _ in range(2)]
    if kind.endswith("bools"):
        xs.append((rng.random((2, 1, queries, keys)) < 0.6) & (np.arange(queries) != 3)[:, None])
    return [*xs, *[None] * (4 - len(xs))], [*ts, *[None] * (4 - len(ts))]


def pushed(xs: list[Any], ts: list[Any], causal: bool) -> Any:
    """Returns the tangent by pb.jvp."""
    given = [x for x in xs if x is not None and x.dtype != bool]
    fixed = xs[3] if xs[3] is not None and xs[3].dtype == bool else None

    def f(q: Any, k: Any, v: Any, m: Any = fixed) -> Any:
        return attend(q, k, v, m, is_causal=causal, enable_gqa=True)

    return pb.jvp(f, [pb.tensor(x) for x in given], [None if t is None else pb.tensor(t) for t in ts[: len(given)]])[1].numpy()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mask", MASKS)
def test_a_tangent_is_that_of_the_formula(mask: str, dtype: str) -> None:
    for sizes in SIZES if dtype in ("float64", "float32") else SIZES[:1]:
        xs, ts = operands(mask, sizes, dtype)
        found = pushed(xs, ts, mask.startswith("causal"))
        assert found.dtype == dtype_of(dtype)
        wanted = formula(xs, ts, mask.startswith("causal"))
        np.testing.assert_allclose(found.astype(np.float64), wanted, atol=4 * BOUNDS[dtype])


def test_any_operands_may_have_no_tangent() -> None:
    xs, ts = operands("floats", SIZES[0], "float64")
    for kept in itertools.product((False, True), repeat=4):
        if any(kept):
            some = [t if keep else None for t, keep in zip(ts, kept)]
            np.testing.assert_allclose(pushed(xs, some, False), formula(xs, some, False), atol=1e-13)


def test_a_query_without_keys_has_the_tangent_zero() -> None:
    for kind in ("bools", "floats"):
        xs, ts = operands(kind, SIZES[0], "float32")
        if kind == "floats":
            xs[3] = np.where(np.arange(5)[:, None] == 3, -np.inf, np.zeros((4, 5, 7))).astype(np.float32)
            ts[3] = np.ones_like(xs[3])
        assert not pushed(xs, ts, False)[:, :, 3].any()


def test_arrays_without_elements_have_tangents_without_elements() -> None:
    for lead, heads, queries, keys, width, out in ((2, 2, 0, 3, 4, 4), (2, 2, 3, 0, 4, 4), (0, 2, 3, 3, 4, 4), (2, 0, 3, 3, 4, 4),
                                                   (2, 2, 3, 3, 0, 4), (2, 2, 3, 3, 4, 0)):
        xs = [np.ones((lead, heads, n, d)) for n, d in ((queries, width), (keys, width), (keys, out))]
        found = pushed([*xs, None], [*xs, None], False)
        assert found.shape == (lead, heads, queries, out)
        np.testing.assert_allclose(found, 1.0 if keys else 0.0)


def test_tangents_of_other_layouts_are_read_where_they_are() -> None:
    rng = np.random.default_rng(0)
    shape = (2, 3, 5, 4)
    plain = [rng.standard_normal(shape) for _ in range(6)]
    others = [np.ascontiguousarray(x.transpose(3, 1, 2, 0)).transpose(3, 1, 2, 0) for x in plain]
    others[4] = np.repeat(plain[4], 2, axis=-1)[..., ::2]
    wanted = pushed([*plain[:3], None], [*plain[3:], None], True)
    xs, ts = [[pb.asarray(x) for x in of] for of in (others[:3], others[3:])]
    _, found = pb.jvp(lambda *a: attend(*a, is_causal=True), xs, ts)
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-14)


def test_vmap_of_tangents_is_a_loop_over_the_directions() -> None:
    rng = np.random.default_rng(0)
    q, k, v = [pb.tensor(rng.standard_normal((2, 5, 4))) for _ in range(3)]
    directions, keys = pb.tensor(rng.standard_normal((3, 2, 5, 4))), pb.tensor(rng.standard_normal((3, 2, 5, 4)))

    def push(t: Any, key: Any) -> Any:
        return pb.jvp(lambda a, b: attend(a, b, v, is_causal=True), [q, key], [t, None])[1]

    both = pb.vmap(lambda key: pb.vmap(push, in_axes=(0, None))(directions, key))(keys)
    for i, j in itertools.product(range(3), repeat=2):
        np.testing.assert_allclose(both[i, j].numpy(), push(directions[j], keys[i]).numpy(), atol=1e-14)
    forward, reverse = [pb.jacobian(lambda a: attend(a, k, v), mode=mode)(q[:, :2]) for mode in ("forward", "reverse")]
    np.testing.assert_allclose(forward.numpy(), reverse.numpy(), atol=1e-14)


def test_derivatives_of_tangents_are_those_of_the_composition() -> None:
    rng = np.random.default_rng(0)
    q, k, v, t = [pb.tensor(rng.standard_normal((1, 3, 2))) for _ in range(4)]

    def loss(a: Any, b: Any) -> Any:
        return pb.sin(pb.jvp(lambda x: attend(x, b, v, is_causal=True), [a], [t])[1]).sum()

    assert pb.check_gradients(loss, [q, k]) < 1e-6
    forward = pb.jvp(lambda a: pb.grad(lambda x: pb.sin(attend(x, k, v)).sum())(a), [q], [t])[1]
    step = 1e-5
    ahead, behind = [pb.grad(lambda x: pb.sin(attend(x, k, v)).sum())(q + h * t).numpy() for h in (step, -step)]
    np.testing.assert_allclose(forward.numpy(), (ahead - behind) / (2 * step), atol=1e-8)


def test_a_captured_tangent_has_the_same_bits() -> None:
    if pb.backends.why_not("cpu"):
        pytest.skip("only native kernels are captured")
    xs, ts = operands("none", SIZES[1], "float32")
    given = [[pb.tensor(x) for x in of[:3]] for of in (xs, ts)]

    def push(primals: Any, tangents: Any) -> Any:
        return pb.jvp(lambda *a: attend(*a, is_causal=True, enable_gqa=True), primals, tangents)

    captured, eager = pb.capture(push), push(*given)
    for _ in range(3):
        for a, b in zip(captured(*given), eager):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_autocast_rounds_the_factors_of_a_tangent() -> None:
    xs, ts = operands("none", (2, 2, 20, 20, 8, 8), "float32")
    exact = pushed(xs, ts, False)
    for precision, bound in (("bfloat16", 0.1), ("float16", 0.01)):
        with pb.amp.autocast(precision):
            found = pushed(xs, ts, False)
        assert 0 < abs(found - exact).max() < bound


@pytest.mark.parametrize("causal", [False, True])
def test_the_work_is_that_of_the_tangents_that_are_given(causal: bool) -> None:
    """Each tangent of a factor of the scores is one product; those of the scores are one more, as is that of the values."""
    queries, keys, width, out = 12, 9, 5, 3
    rng = np.random.default_rng(0)
    shapes = (2, 4, queries, width), (2, 2, keys, width), (2, 2, keys, out), (1, 4, queries, keys)
    xs, ts = [[pb.tensor(rng.standard_normal(shape), dtype="float32") for shape in shapes] for _ in range(2)]
    rows, visible = 8 * queries, sum([min(i + 1, keys) for i in range(queries)]) if causal else queries * keys
    scores = 8 * visible

    def f(*a: Any) -> Any:
        return attend(*a, is_causal=causal, enable_gqa=True)

    with pb.profile(strict=True) as before:
        f(*xs)
    for given in ("q", "k", "v", "m", "qk", "qv", "qkvm"):
        with pb.profile(strict=True) as prof:
            pb.jvp(f, xs, [t if name in given else None for name, t in zip("qkvm", ts)])
        sides, moves = ("q" in given) + ("k" in given), given != "v"
        products = scores * (sides * width + (moves + ("v" in given)) * out)
        adds = moves * (scores * (len(set(given) & set("qkm")) + 1) - rows) + (moves and "v" in given) * rows * out
        multiplies = rows * (sides * width + out) + moves * (2 * scores + rows)
        assert prof.total.matmul_flops - before.total.matmul_flops == 2 * products
        assert prof.total.flops - before.total.flops == 2 * products + adds + multiplies
        assert prof.total.special_ops == before.total.special_ops
        assert math.isclose(prof.coverage, 1.0)
