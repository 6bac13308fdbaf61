"""The CPU's kernels of factorisations: replays and their errors, bits, costs, and large matrices."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import same as same_bits
from conftest import close, host
from pullback.autodiff.primitive import OPS
from pullback.backends import native as kernels
from pullback.tree import flatten

RNG = np.random.default_rng(9)
L = pb.linalg
KERNELS: Any = kernels.module
pytestmark = pytest.mark.usefixtures("native", "on_cpu")


def positive(*shape: int) -> Any:
    x = RNG.standard_normal(shape)
    return x @ x.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])


S, B = positive(3, 6, 6), RNG.standard_normal((3, 6, 2))


# ---- replays


def test_a_step_with_every_function_is_captured_with_its_gradients() -> None:
    def loss(x: Any, b: Any) -> Any:
        parts = [L.cholesky(x), L.solve(x, b), L.solve_triangular(x, b, upper=True), L.inv(x), L.det(x), L.slogdet(x).logabsdet]
        parts += [*L.qr(x), *L.eigh(x), L.eigvalsh(x), *L.svd(x), L.svdvals(x), L.pinv(x), L.lstsq(x, b).solution]
        return sum([pb.sum(pb.sin(y)) for y in parts])

    for f in (loss, lambda x, b: pb.grad(loss, (0, 1))(x, b), lambda x, b: pb.jvp(loss, [x, b], [b @ b.mT, b])[1]):
        captured = pb.capture(f)
        for x in (S, positive(3, 6, 6)):
            given = [pb.tensor(x), pb.tensor(B)]
            for a, b in zip(flatten(captured(*given))[0], flatten(f(*given))[0], strict=True):
                same_bits(a, b)
        assert captured.stats().captures == 1


@pytest.mark.parametrize(
    ("f", "bad", "words"),
    [
        (L.cholesky, -np.eye(6), "cholesky: matrix 1 of the batch is not positive definite: its leading 1 x 1 block"),
        (lambda x: L.solve(x, np.ones(6)), np.ones((6, 6)), "solve: matrix 1 of the batch is singular"),
        (lambda x: L.solve_triangular(x, np.ones(6), upper=True), np.ones((6, 6)) - np.eye(6), "diagonal element 0 is 0"),
        (L.svdvals, np.full((6, 6), np.inf), "svdvals: matrix 1 of the batch has an element that is NaN or infinite"),
    ],
)
def test_a_replay_that_meets_a_bad_matrix_names_the_op_and_can_go_on(f: Callable[..., Any], bad: Any, words: str) -> None:
    count = pb.Parameter(0.0)

    def step(x: Any) -> Any:
        count.assign(count + 1)
        y = f(x)
        count.assign(count + 10)
        return y

    captured, wrong = pb.capture(step), S.copy()
    wrong[1:] = bad
    wanted = host(captured(pb.tensor(S)))
    with pytest.raises(pb.LinAlgError, match=f"{words}.*found in a replay"):
        captured(pb.tensor(wrong))
    assert count.item() == 12  # the launches before the op ran, as in an eager call
    assert (host(captured(pb.tensor(S))) == wanted).all()
    assert captured.stats().captures == 1


def test_the_first_bad_matrix_is_named_whatever_the_number_of_threads() -> None:
    x = np.tile(np.eye(4), (40, 50, 1, 1))
    x[20, 7] = x[30, 0] = 0
    x[20, 7, 0, 0] = 1
    with pytest.raises(pb.LinAlgError, match=r"matrix \(20, 7\) of the batch is not positive definite: its leading 2 x 2"):
        L.cholesky(x)
    with pytest.raises(pb.LinAlgError, match=r"matrix \(20, 7\) of the batch is singular"):
        L.inv(x)
    x[35, 1] = np.nan
    with pytest.raises(pb.LinAlgError, match=r"matrix \(35, 1\) of the batch has an element that is NaN"):
        L.cholesky(x)


# ---- bits


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [3, 17, 32])
def test_a_small_matrix_has_the_same_bits_alone_and_in_any_batch(rows: int, dtype: str) -> None:
    x, b = positive(21, rows, rows).astype(dtype), RNG.standard_normal((21, rows, 2)).astype(dtype)
    for f in (lambda x, b: L.cholesky(x), L.solve, lambda x, b: L.solve_triangular(x, b, upper=False)):
        together = host(f(x, b))
        for k in (0, 5, 20):
            assert (host(f(x[k], b[k])) == together[k]).all()


def by_the_book(x: Any) -> Any:
    """Returns the Cholesky factor by the steps that docs/reproducibility.md states."""
    fma = lambda a, b, c: np.float32(np.float64(a) * np.float64(b) + np.float64(c))
    y, n = np.tril(x), len(x)
    for j in range(n):
        y[j, j] = np.sqrt(y[j, j])
        y[j + 1 :, j] /= y[j, j]
        for i in range(j + 1, n):
            y[i, j + 1 : i + 1] = fma(-y[i, j], y[j + 1 : i + 1, j], y[i, j + 1 : i + 1])
    return y


@pytest.mark.skipif(kernels.simd_level() in ("x86-64-v2",), reason="level v2 has no fused multiply-add")
def test_the_order_of_sums_is_the_documented_one() -> None:
    x = RNG.integers(-8, 9, (5, 12, 12)).astype(np.float32)  # products of such numbers are exact in float64, so it rounds once
    x = x @ x.swapaxes(-1, -2) + 100 * np.eye(12, dtype=np.float32)
    for k, y in enumerate(host(L.cholesky(x))):
        close(y, by_the_book(x[k]), 2e-7)


SYSTEMS = [((1, 1), (1, 1)), ((4, 4), (7, 4, 3)), ((9, 17, 17), (17, 1)), ((2, 32, 32), (32, 128)), ((5, 5), (2, 5, 0)),
           ((0, 0), (0, 2)), ((2, 33, 33), (33, 2)), ((40, 40), (40, 0)), ((5, 5), (5, 200))]


@pytest.mark.parametrize(("rows", "columns"), SYSTEMS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_the_pullback_of_solve_in_one_launch_is_its_definition(rows: Any, columns: Any, dtype: str) -> None:
    """A matrix that the small kernels take has the bits of the definition, too. Half precision is rounded once."""
    rule: Any = OPS["solve"].rules[0]
    a = pb.tensor(RNG.standard_normal(rows) + 6 * np.eye(rows[-1]), dtype=dtype)
    y = L.solve(a, pb.tensor(RNG.standard_normal(columns), dtype=dtype))
    g = pb.tensor(RNG.standard_normal(y.shape), dtype=dtype)
    for needs in ([True, True], [True, False], [False, True]):
        if dtype == "bfloat16":
            wide = rule.fused(*[x.astype(pb.float32) for x in (g, a, y)], needs)
            wanted = [None if x is None else x.astype(pb.bfloat16) for x in wide]
        else:
            wanted = rule.definition(g, a, y, needs)
        for x, w in zip(rule.fused(g, a, y, needs), wanted, strict=True):
            assert (x is None) == (w is None)
            if w is not None and (dtype == "bfloat16" or (rows[-1] <= 32 and y.shape[-1] <= 128)):
                same_bits(x, w)
            elif w is not None:
                unit = (1e-5 if dtype == "float32" else 1e-13) * np.abs(host(w)).max(initial=1)
                assert (np.abs(host(x) - host(w)) <= unit).all()


def test_a_singular_matrix_spoils_only_its_own_gradients() -> None:
    for n in (3, 33):
        a, g = pb.tensor(np.stack([np.zeros((n, n)), np.eye(n)])), pb.ones((2, n, 1), dtype="float64")
        ga, gb = [host(x) for x in OPS["solve"].rules[0].fused(g, a, g, [True, True])]  # type: ignore[union-attr]
        assert np.isnan(np.concatenate([ga[0], gb[0]], -1)).all()
        assert (np.concatenate([-ga[1], gb[1]], -1) == 1).all()


def test_any_number_of_threads_gives_the_same_bits() -> None:
    x, large = positive(50, 12, 12), positive(500, 500)
    before, found = KERNELS.thread_count(), []
    try:
        for threads in (1, 2, 3):
            KERNELS.set_thread_count(threads)
            found.append([host(y) for y in (L.cholesky(x), L.solve(x, x), L.cholesky(large), *L.eigh(x), L.svdvals(x))])
    finally:
        KERNELS.set_thread_count(before)
    for other in found[1:]:
        assert all([(a == b).all() for a, b in zip(found[0], other, strict=True)])


@pytest.mark.parametrize("rows", [383, 384, 385, 640])
def test_a_large_cholesky_factor(rows: int) -> None:
    x = positive(rows, rows)
    close(L.cholesky(x), np.linalg.cholesky(x), 1e-11)
    assert not np.triu(host(L.cholesky(x)), 1).any()
    x[rows - 3, rows - 3] = -1
    with pytest.raises(pb.LinAlgError, match=f"leading {rows - 2} x {rows - 2} block"):
        L.cholesky(x)


def test_calls_from_several_threads() -> None:
    x = positive(20, 40, 40)
    wanted = [host(y) for y in (L.svdvals(x), L.cholesky(x), *L.eigh(x))]

    def work(_: int) -> bool:
        return all([(host(y) == w).all() for y, w in zip((L.svdvals(x), L.cholesky(x), *L.eigh(x)), wanted)])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


# ---- costs


def cube(n: int) -> int:
    return n**3


@pytest.mark.parametrize(
    ("f", "fmas", "special"),
    [
        (L.cholesky, 3 * (cube(6) // 6), 18),
        (lambda x: L.solve(x, pb.ones((6, 2), dtype="float64")), 3 * (cube(6) // 3) + 3 * 12 * 6, 36),
        (lambda x: L.solve_triangular(x, pb.ones((6, 2), dtype="float64"), upper=True), 3 * 12 * 3, 36),
        (L.det, 3 * (cube(6) // 3), 18),
        (lambda x: L.slogdet(x)[0], 3 * (cube(6) // 3), 18),
        (lambda x: L.qr(x)[0], 3 * (cube(6) - cube(6) // 3), 18),
        (L.eigvalsh, 3 * (2 * cube(6) // 3), 0),
        (lambda x: L.eigh(x)[0], 3 * (9 * cube(6) // 2), 0),
        (L.svdvals, 3 * min(4 * cube(6) // 3, 2 * cube(6)), 0),
        (lambda x: L.svd(x)[0], 3 * (21 * cube(6) // 2), 0),
        (lambda x: L.svd(x[:, :4])[0], 3 * (min(4 * 36 * 4 + 8 * 6 * 16 + 9 * 64, 4 * 36 * 4 + 22 * 64) // 2), 0),
    ],
)
def test_costs_are_those_of_the_textbook(f: Callable[..., Any], fmas: int, special: int) -> None:
    with pb.profile(strict=True) as profile:
        f(pb.tensor(S))
    assert (profile.total.flops, profile.total.special_ops) == (2 * fmas, special)
    replayed = pb.capture(f)
    replayed(pb.tensor(S))
    with pb.profile(strict=True) as profile:
        replayed(pb.tensor(S))
    assert (profile.total.flops, profile.total.special_ops) == (2 * fmas, special)
