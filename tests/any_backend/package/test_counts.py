"""Integers of any size for every integer argument: a result or an error in words, soon.

In the text of a call, {2} is an integer, and <2> is one by which the result grows. The text with these numbers must return. Then
each of them is replaced by large ones: by all of them if it is {2}, and if it is <2> by those for whose results no memory suffices.
"""

from __future__ import annotations

import itertools
import re
import time
import zlib
from typing import Any, Final

import numpy as np
import pytest

import pullback as pb
from pullback import data, nn, optim
from pullback.nn import functional as F
from pullback.tree import flatten
from random_arguments import CALLS, FUNCTIONS, call_of, outcome

LARGE: Final = (2**31 - 1, 2**31, 2**32, 2**40, 2**47, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30)
BELOW: Final = tuple([-n for n in (2**31, 2**31 + 1, 2**62, 2**63, 2**63 + 1, 2**64)])
LENGTHS: Final = tuple([n for n in (*LARGE, *BELOW) if abs(n) >= 2**47])
SECONDS: Final = 5.0  # of the processor's time, for one call

NAMES: Final[dict[str, Any]] = {
    "pb": pb, "nn": nn, "F": F, "optim": optim, "data": data, "np": np,
    "G": pb.random.Generator(1), "R": pb.tensor([1.0, 2.0, 3.0]), "X": pb.tensor(np.arange(12.0).reshape(3, 4)),
    "M": pb.tensor(np.eye(3) + 0.5), "I": pb.tensor([0, 2, 1]), "V": pb.tensor(np.arange(48.0).reshape(2, 4, 6)),
    "P": pb.tensor(np.arange(192.0).reshape(2, 4, 4, 6)), "W": pb.ones((4, 4, 3), dtype="float64"),
    "W2": pb.ones((4, 2, 3, 3), dtype="float64"),
}
TEXTS: Final = """
pb.zeros((<3>, <2>))
pb.ones(<3>)
pb.empty((<3>, 0))
pb.full((<3>, <2>), 1.0)
pb.arange(<3>)
pb.arange(<2>, <9>, <3>)
pb.arange(<-5>, <5>, {5}, dtype="int64")
pb.arange({0}, <9>, <3>, dtype="uint64")
pb.linspace(0.0, 1.0, <5>)
pb.eye(<3>, k={1})
pb.eye(<3>, <2>)
pb.eye(3, 3, k={1})
pb.diag(R, k=<1>)
pb.diag(M, k={1})
pb.tril(M, k={1})
pb.triu(M, k={1})
pb.diagonal(M, offset={1}, axis1={0}, axis2={1})
pb.trace(M, offset={1})
pb.linalg.diagonal(M, offset={1})
pb.linalg.matrix_power(M, {2})
pb.polygamma({1}, R)
pb.round(R, decimals={1})
pb.reshape(X, ({4}, {3}))
pb.reshape(X, (-1, {3}))
pb.reshape(pb.zeros((0, 3)), (0, <2>, <3>))
pb.broadcast_to(R, (<2>, 3))
pb.tile(R, (<2>, <2>))
pb.repeat(R, <2>)
pb.repeat(R, pb.tensor([1, 2, 3]), axis={0})
pb.repeat(R, [<1>, 2, 3])
pb.roll(X, {1}, axis={0})
pb.roll(X, ({1}, {2}), axis=({0}, {1}))
pb.rot90(X, k={1}, axes=({0}, {1}))
pb.pad(R, (<1>, <1>))
pb.pad(X, ((<1>, 0), (0, <1>)))
pb.split(X, {3})
pb.split(X, [{1}, {2}], axis={0})
pb.unfold(R, axis={0}, size={2}, step={1})
pb.stack([R, R], axis={0})
pb.concat([R, R], axis={0})
pb.expand_dims(R, axis={0})
pb.squeeze(X[:, :1], axis={1})
pb.moveaxis(V, {0}, {1})
pb.swapaxes(V, {0}, {1})
pb.permute_dims(X, ({1}, {0}))
pb.flip(X, axis={0})
pb.unstack(X, axis={0})
pb.take(X, I, axis={1})
pb.take_along_axis(X, pb.zeros((3, 1), dtype="int64"), axis={1})
pb.one_hot(I, <3>)
F.one_hot(I, <3>)
pb.topk(R, {2}, axis={0})
pb.sort(X, axis={1})
pb.argsort(X, axis={1})
pb.diff(R, n={1}, axis={0})
pb.cumulative_sum(X, axis={0})
pb.cummax(X, axis={0})
pb.logcumsumexp(X, axis={0})
pb.sum(X, axis={0})
pb.mean(X, axis=({0}, {1}))
pb.argmax(X, axis={0})
pb.softmax(X, axis={0})
pb.median(X, axis={0})
pb.quantile(X, 0.5, axis={0})
pb.tensordot(X, X, axes={2})
pb.tensordot(X, X, axes=([{0}], [{0}]))
pb.vecdot(X, X, axis={-1})
pb.segment_sum(R, I, <3>)
pb.segment_max(R, I, <3>)
pb.segment_mean(R, I, num_segments=<3>)
pb.segment_softmax(R, I, <3>)
pb.segment_logsumexp(R, I, <3>)
pb.segment_sum(R, pb.tensor([0, {1}, 0]), 3)
pb.linear_recurrence(X, X, axis={0})
pb.meshgrid(pb.broadcast_to(R[:1], (<2>,)), pb.broadcast_to(R[:1], (<2>,)))
pb.random.normal((<3>,))
pb.random.uniform((<3>, <2>))
pb.random.randint({0}, {5}, (3,))
pb.random.randint({5}, None, (3,))
G.normal((<3>,))
G.randint({0}, {5}, (3,))
G.permutation(<3>)
pb.random.randint(0, 5, <3>, dtype="uint8")
pb.random.bernoulli((<3>,))
pb.random.permutation(<3>)
pb.random.truncated_normal((<3>,))
pb.random.seed({3})
pb.random.Generator({3})
R[{1}]
R[{0}:{3}:{1}]
X[{1}, {2}]
X[[{0}, {1}]]
X[..., None, {0}]
R.at[{1}].add(1.0)
R.at[{0}:{2}:{1}].set(1.0)
X.at[[{0}, {1}]].multiply(2.0)
R.reshape(({3},))
X.sum(axis={0})
X.swapaxes({0}, {1})
F.conv1d(V, W, stride={1}, padding=<1>, dilation={1}, groups={1})
F.conv2d(P, W2, stride=({1}, {1}), padding=(<1>, <1>), dilation={1}, groups={2})
F.conv_transpose1d(V, W, stride=<2>, padding={1}, output_padding={1}, groups={1}, dilation=<1>)
F.conv_transpose2d(P, W2, stride=<2>, padding={1}, output_padding={1}, groups={2}, dilation=<1>)
F.max_pool1d(V, {2}, {1}, {1}, {1})
F.max_pool2d(P, ({2}, {2}), ({1}, {2}), {1}, {1})
F.avg_pool1d(V, {2}, {1}, {1})
F.avg_pool2d(P, {2}, {1}, {1}, divisor_override={3})
F.adaptive_avg_pool2d(P, (<2>, <3>))
F.group_norm(P, {2})
F.layer_norm(X, axis={1})
F.glu(X, axis={1})
F.normalize(X, axis={1})
F.cosine_similarity(X, X, axis={1})
F.cross_entropy(X, pb.tensor([0, 1, 3]), ignore_index={1})
F.cross_entropy(X, pb.tensor([0, {1}, 3]))
F.rotary(V, dims={4})
nn.Linear(<2>, <3>)
nn.Bilinear(<2>, <3>, <2>)
nn.Embedding(<4>, <3>, padding_idx={1})
nn.Conv1d(<4>, <4>, <3>, stride={1}, padding={1}, dilation={1}, groups={2})
nn.Conv2d(<4>, <4>, <3>, stride={1}, padding={1}, dilation={1}, groups={2})
nn.ConvTranspose2d(<4>, <4>, <3>, {2}, {1}, {1}, {2}, dilation={1})
nn.BatchNorm2d(<3>)
nn.LayerNorm((<3>, <2>))
nn.GroupNorm({2}, <4>)
nn.RMSNorm(<3>)
nn.MultiheadAttention(<4>, {2})
nn.MultiHeadAttention(<4>, {2}, num_kv_heads={2}, head_dim=<2>)
nn.GRU(<3>, <4>)
nn.RNNCell(<3>, <4>)
nn.MinGRU(<3>, <4>)
nn.LRU(<3>, <4>)
nn.PReLU(<3>)
nn.Flatten({1}, {-1})(V)
nn.Softmax({1})(X)
nn.AvgPool2d({2}, {2}, {1}, divisor_override={2})(P)
nn.MaxPool2d({2}, {2}, {1}, {1})(P)
nn.AdaptiveAvgPool2d((<2>, <2>))(P)
list(data.Loader((X.numpy(), X.numpy()), batch_size={2}, seed={1}))
pb.vmap(lambda x: x * 2, in_axes={0}, out_axes={0})(X)
pb.grad(lambda x, y: pb.sum(x * y), argnums={1})(X, X)
pb.jacobian(lambda x: x * x, chunk={2})(R)
pb.hessian(lambda x: pb.sum(x * x * x), argnums={0})(R)
pb.scan(lambda c, x: (c + x, c), pb.tensor(0.0, dtype="float64"), R, length={3})
pb.scan(lambda c, x: (c + x, c), pb.tensor(0.0, dtype="float64"), R, checkpoint={2})
pb.associative_scan(lambda a, b: a + b, X, axis={0})
pb.capture(lambda x: x + 1, steps={3})(X)
pb.capture(lambda x: x + 1, cache={3})(X)
pb.memo(lambda x: x + 1, size={3})(X)
pb.check_gradients(lambda x: x * x, (R,), order=1, seed={3})
optim.schedules.Cosine(0.1, steps={10})
optim.schedules.Step(0.1, every={3})
optim.schedules.OneCycle(0.1, steps={10})
optim.schedules.WarmupCosine(0.1, steps={100}, warmup={10})
optim.schedules.Polynomial(0.1, steps={10})
optim.schedules.CosineRestarts(0.1, steps={10}, growth={2})
optim.schedules.MultiStep(0.1, milestones=[{3}, {5}])
optim.constraints.Simplex(axis={0})
optim.constraints.UnitNorm(axis={0})
pb.tensor([{1}, 2])
pb.tensor([{1}, 2], dtype="int8")
X * {2}
pb.tensor([1, 2]) + {2}
pb.tensor([1, 2]) << {2}
pb.tensor([1, 2]) ** {2}
pb.tensor([3, 2], dtype="uint64") // {2}
pb.tensor([3, 2]) % {2}
pb.bitwise_left_shift(pb.tensor([1, 2]), pb.tensor([{2}, 2]))
pb.searchsorted(R, pb.tensor([{1}]))
pb.full((2,), {3}, dtype="int32")
pb.clip(pb.tensor([1, 2]), {0}, {5})
""".strip().splitlines()
PART: Final = re.compile(r"[{<](-?\d+)[}>]")


def calls_of(text: str) -> list[tuple[str, bool]]:
    """Returns the call with one of its numbers replaced, for each number and each large one; and whether the call must return."""
    plain = PART.sub(r"\1", text)
    found = [(plain, True)]
    for part in PART.finditer(text):
        for n in LENGTHS if part[0][0] == "<" else (*LARGE, *BELOW):
            found.append((PART.sub(r"\1", text[: part.start()]) + f"({n})" + PART.sub(r"\1", text[part.end() :]), False))
    return found


def fault_of(text: str, must: bool) -> str | None:
    began = time.process_time()
    fault, result = outcome(lambda: eval(text, dict(NAMES)))
    spent = time.process_time() - began
    if must and fault is None and result is None and "seed" not in text:
        fault = "refused"
    return f"{spent:.0f} s" if spent > SECONDS else fault


@pytest.mark.parametrize("text", TEXTS)
def test_an_integer_of_any_size_gives_a_result_or_an_error_in_words(text: str) -> None:
    faults = [f"{call}: {fault}" for call, must in calls_of(text) if (fault := fault_of(call, must))]
    assert not faults, "\n".join(faults[:20])


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64", "float64"])
def test_arange_has_the_numbers_of_a_range_or_says_which_does_not_fit(dtype: str) -> None:
    edges = (0, 100, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**20)
    for start, count, step in itertools.product((*edges, *[-n for n in edges]), (1, 3), (1, 2**62, -1, -(2**62))):
        wanted = range(start, start + count * step, step)
        fits = dtype == "float64" or all([np.iinfo(dtype).min <= x <= np.iinfo(dtype).max for x in wanted])
        try:
            got = pb.arange(wanted.start, wanted.stop, step, dtype=dtype).numpy()
        except pb.DTypeError:
            assert not fits
        else:
            assert fits
            assert got.tolist() == [float(x) if dtype == "float64" else x for x in wanted] or dtype == "float64"
            np.testing.assert_allclose(got.astype(np.float64), [float(x) for x in wanted], rtol=1e-15)


# ---- structures that contain themselves

ITSELF: list[Any] = [1.0]
ITSELF.append(ITSELF)
DICT: dict[str, Any] = {}
DICT["a"] = [DICT]
TAKERS: Final = (
    "pb.tensor(s)", "pb.asarray(s)", "pb.stack(s)", "pb.concat(s)", "pb.sum(s)", "pb.exp(s)", "pb.where(s, s, s)", "R + s", "R[s]",
    "R.at[s].add(1.0)", "pb.Parameter(s)", "pb.zeros_like(s)", "pb.matmul(s, s)", "pb.full((2,), s)", "pb.take(R, s, axis=0)",
    "pb.segment_sum(s, I)", "pb.grad(lambda a: 1.0)(s)", "pb.vmap(lambda a: a)(s)", "pb.jvp(lambda a: a, (s,), (s,))", "pb.hash(s)",
    "pb.capture(lambda a: a)(s)", "pb.checkpoint(lambda a: a)(s)", "pb.tree.map(lambda a: a, s)", "pb.tree.leaves(s)",
    "pb.save('/nonexistent', s)", "data.Loader(s, batch_size=2)",
)


@pytest.mark.parametrize("text", TAKERS)
def test_a_structure_that_contains_itself_is_a_value_error(text: str) -> None:
    for structure in (ITSELF, DICT):
        fault, _ = outcome(lambda: eval(text, {**NAMES, "s": structure}))  # noqa: B023
        assert fault is None


# ---- empty batches


def is_real(x: Any) -> bool:
    return isinstance(x, pb.Tensor) and bool(pb.isdtype(x.dtype, "real floating"))


def differentiated(f: Any, order: int) -> Any:
    """Returns the function x -> the sum of the squares of f(x), or its gradient of that order."""

    def total(x: Any) -> Any:
        results = [y for y in flatten(f(x))[0] if is_real(y)]
        return sum([pb.sum(y * y) for y in results], pb.tensor(0.0))

    for _ in range(order):
        inner = total
        total = pb.grad(lambda x, inner=inner: pb.sum(inner(x)))
    return total


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_of_an_empty_batch(name: str) -> None:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    faults = []
    for _ in range(CALLS):
        positional, named = call_of(FUNCTIONS[name], rng)
        places = [
            i for i, x in enumerate(positional) if isinstance(x, pb.Tensor) and pb.isdtype(x.dtype, "real floating") and x.ndim
        ]
        if not places:
            continue
        place = int(rng.choice(places))
        x = positional[place]
        empty = pb.zeros((0, *x.shape[1:]), dtype=x.dtype) if rng.random() < 0.7 else pb.zeros((*x.shape[:-1], 0), dtype=x.dtype)
        same = [empty if y is x else y for y in positional]  # Equal arguments are more often accepted.

        def call(z: Any, same: list[Any] = same, named: dict[str, Any] = named) -> Any:
            return FUNCTIONS[name](*[z if y is empty else y for y in same], **named)  # noqa: B023

        for order in (1, 2):
            fault, gradient = outcome(lambda: differentiated(call, order)(empty))  # noqa: B023
            if fault is None and gradient is not None and gradient.shape != empty.shape:
                fault = f"a gradient of shape {gradient.shape}"
            if fault:
                faults.append(f"{name}, order {order}, {empty.shape}, {empty.dtype}, {positional}, {named}: {fault}"[:400])
    assert not faults, "\n".join(faults[:20])
