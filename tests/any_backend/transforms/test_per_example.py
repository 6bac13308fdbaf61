"""Per-example gradients against a loop over the examples, and norms and weighted sums that do not form the gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import close, host
from pullback import nn
from pullback.ops import factors
from pullback.tensors.tensor import Tensor

BATCH = 5
Loss = Callable[..., Tensor]


class Tied(nn.Module):
    """A network whose embedding is also the last layer's weight, with a residual block and norms in between."""

    def __init__(self, words: int, width: int) -> None:
        self.table = pb.Parameter(np.random.default_rng(0).standard_normal((words, width)), dtype="float64")
        self.norm = nn.LayerNorm(width).to("float64")
        self.layer = nn.Linear(width, width).to("float64")
        self.rms = nn.RMSNorm(width).to("float64")

    def __call__(self, words: Tensor) -> Tensor:
        h = pb.take(self.table, words, axis=0)
        h = h + pb.tanh(self.layer(self.norm(h)))
        return self.rms(h) @ self.table.mT


class Attention(nn.Module):
    """One attention head over the rows of an example."""

    def __init__(self) -> None:
        self.queries, self.keys, self.values = [nn.Linear(6, 4).to("float64") for _ in range(3)]

    def __call__(self, x: Tensor) -> Tensor:
        return pb.softmax(self.queries(x) @ self.keys(x).mT * 0.5) @ self.values(x)


def cases() -> dict[str, tuple[list[pb.Parameter], Loss, tuple[Any, ...]]]:
    """Returns cases by name: parameters, the loss of one example, and a batch."""
    rng = np.random.default_rng(1)
    attention = Attention()
    dense = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to("float64")
    tied, plain = Tied(7, 4), pb.Parameter(rng.standard_normal((4, 3)))
    scale = pb.Parameter(rng.standard_normal(4))
    x, words = rng.standard_normal((BATCH, 6)), rng.integers(0, 7, (BATCH, 9))
    pairs, triples = rng.standard_normal((BATCH, 2, 8)), rng.standard_normal((BATCH, 3, 4))
    sequences, labels = rng.standard_normal((BATCH, 9, 6)), rng.integers(0, 3, BATCH)
    p = lambda model: list(model.parameters())
    return {
        "dense": (p(dense), lambda _, x, y: nn.functional.cross_entropy(dense(x), y), (x, labels)),
        "dense over rows": (p(dense), lambda _, x, y: pb.sum(pb.sin(dense(x))), (sequences, labels)),
        "attention": (p(attention), lambda _, x: pb.sum(pb.square(attention(x))), (sequences,)),
        "tied, residual, norms": (p(tied), lambda _, w: nn.functional.cross_entropy(tied(w[:-1]), w[1:]), (words,)),
        "a product with itself": (p(dense)[2:3], lambda q, x: pb.sum(pb.tanh(pb.relu(x) @ (q[0].mT @ q[0]))), (pairs,)),
        "products": ([plain], lambda q, v: pb.sum(pb.square(pb.tanh(v[:2] @ q[0]) @ q[0].mT)), (triples,)),
        "elementwise": ([scale], lambda q, v: pb.sum(pb.exp(0.1 * q[0] * v) * q[0]), (rng.standard_normal((BATCH, 4)),)),
    }


CASES = list(cases())


def one_by_one(parameters: list[pb.Parameter], loss: Loss, batch: tuple[Any, ...]) -> list[list[np.ndarray[Any, Any]]]:
    """Returns the gradients of each example for each parameter, computed by one tape per example."""
    rows = []
    for k in range(BATCH):
        with pb.GradientTape() as tape:
            y = loss(parameters, *[pb.tensor(x[k]) for x in batch])
        rows.append([host(g) for g in tape.gradient(y, parameters, unconnected="zero")])
    return rows


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_one_example_at_a_time(case: str) -> None:
    parameters, loss, batch = cases()[case]
    got = pb.per_example_grad(loss)(parameters, *[pb.tensor(x) for x in batch])
    for i, of_all in enumerate(got):
        assert of_all.shape == (BATCH, *parameters[i].shape)
        close(of_all, np.stack([row[i] for row in one_by_one(parameters, loss, batch)]), rtol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_norms_are_those_of_the_gradients(case: str) -> None:
    parameters, loss, batch = cases()[case]
    wanted = [sum(float(np.sum(g * g)) for g in row) for row in one_by_one(parameters, loss, batch)]
    close(pb.per_example_norm(loss)(parameters, *[pb.tensor(x) for x in batch]), wanted, rtol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_a_weighted_sum_is_that_of_the_gradients(case: str) -> None:
    parameters, loss, batch = cases()[case]
    rows = one_by_one(parameters, loss, batch)
    norms = np.array([sum(float(np.sum(g * g)) for g in row) for row in rows])
    clip = np.minimum(1, np.sqrt(np.median(norms) / norms))
    tensors = [pb.tensor(x) for x in batch]
    for weights in (pb.tensor(clip), lambda n: pb.minimum(1.0, pb.sqrt(float(np.median(norms)) / n))):
        got = pb.weighted_grad(loss, weights)(parameters, *tensors)
        for i, g in enumerate(got):
            close(g, sum(c * row[i] for c, row in zip(clip, rows)), rtol=1e-9)


# ---- all kinds of uses of one parameter, in random programs


@pb.custom_gradient
def cubed(x: Tensor) -> Any:
    return x * x * x, lambda g: g * 3.0 * x * x


@pb.custom_gradient
def times(x: Tensor, y: Tensor) -> Any:
    return x * y, lambda g: (None, g * x)


def looped(w: Tensor, x: Tensor) -> Tensor:
    """Uses w row by row, in a scan."""
    last, each = pb.scan(lambda carry, row: (pb.tanh(carry + pb.sum(row)), carry * row), pb.sum(x), w)
    return last + pb.sum(each)


def product(w: Tensor, x: Tensor, turned: bool = False) -> Tensor:
    """Uses w as a matrix in a product. If w already is a matrix, its per-example gradient stays in factors."""
    m = w if w.ndim == 2 else pb.reshape(w, (-1, w.shape[-1]))
    m = m.mT if turned else m
    return pb.sum(pb.sin(pb.outer(x, pb.ones(m.shape[0], dtype="float64")) @ m))


def layer(w: Tensor, x: Tensor) -> Tensor:
    m = w if w.ndim == 2 else pb.reshape(w, (w.shape[0], -1))
    return pb.sum(nn.functional.linear(pb.outer(x, pb.ones(m.shape[1], dtype="float64")), m, m[:, 0], "tanh"))


USES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "an element": lambda w, x, i: pb.sum(pb.sin(w[i[0]])),
    "rows": lambda w, x, i: pb.sum(pb.exp(0.1 * w[i])) * x[0],
    "rows at indices of two axes": lambda w, x, i: pb.sum(pb.take(w, pb.stack([i, i]), axis=0) * x[1]),
    "a column": lambda w, x, i: pb.sum(pb.square(pb.take(w, i % w.shape[-1], axis=-1))),
    "a slice": lambda w, x, i: pb.sum(w[1:] * x[0]),
    "a penalty": lambda w, x, i: 0.5 * pb.sum(w * w),
    "nothing but itself": lambda w, x, i: pb.sum(w) * x[2],
    "twice in one concat": lambda w, x, i: pb.sum(pb.square(pb.concat([w, w * x[0], w]))),
    "thrice in one stack": lambda w, x, i: pb.sum(pb.cos(pb.stack([w, w, x[0] * w]))),
    "repeated": lambda w, x, i: pb.sum(pb.repeat(w, 2, axis=0) * x[1]),
    "broadcast": lambda w, x, i: pb.sum(pb.outer(x, pb.ones(w.size, dtype="float64")) * pb.reshape(w, (1, -1))),
    "where": lambda w, x, i: pb.sum(pb.where(w > x[0], w, w * w)),
    "a pullback of its own": lambda w, x, i: pb.sum(cubed(w) * x[0]),
    "a pullback without a gradient": lambda w, x, i: pb.sum(times(w, w + x[0])),
    "a loop": lambda w, x, i: looped(w, x),
    "a loop in checkpoints": lambda w, x, i: pb.checkpoint(looped)(w, x),
    "a product": lambda w, x, i: product(w, x),
    "a product with the transpose": lambda w, x, i: product(w, x, turned=True),
    "a layer": lambda w, x, i: layer(w, x),
    "a checkpoint": lambda w, x, i: pb.checkpoint(lambda v: pb.sum(pb.tanh(v[i] * x[0])) + pb.sum(v * v))(w),
}
SHAPES = [(4,), (4, 3), (3, 4), (4, 4), (4, 1), (4, 2, 3), (3, 1, 2)]  # Some lengths equal that of the batch.


@pytest.mark.parametrize("seed", range(48))
def test_norms_and_weighted_sums_are_right_whatever_a_parameter_is_used_for(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = [SHAPES[k] for k in rng.integers(0, len(SHAPES), 2)]
    parameters = [pb.Parameter(0.5 * rng.standard_normal(shape)) for shape in shapes]
    chosen = [[list(USES)[k] for k in rng.choice(len(USES), rng.integers(1, 5), replace=False)] for _ in shapes]
    size = int(rng.choice([1, 3, 4, 5]))
    x, i = rng.standard_normal((size, 3)), rng.integers(0, 3, (size, int(rng.integers(1, 5))))

    def loss(q: Any, x: Tensor, i: Tensor) -> Tensor:
        return pb.sum(pb.stack([pb.asarray(USES[use](w, x, i)) for w, uses in zip(q, chosen) for use in uses]))

    rows = []
    for k in range(size):
        with pb.GradientTape() as tape:
            y = loss(parameters, pb.tensor(x[k]), pb.tensor(i[k]))
        rows.append([host(g) for g in tape.gradient(y, parameters, unconnected="zero")])
    batch, weights = (pb.tensor(x), pb.tensor(i)), rng.standard_normal(size)
    norms = [sum(float(np.sum(g * g)) for g in row) for row in rows]
    close(pb.per_example_norm(loss)(parameters, *batch), norms, rtol=1e-9)
    for place, g in enumerate(pb.weighted_grad(loss, weights)(parameters, *batch)):
        close(g, sum(c * row[place] for c, row in zip(weights, rows)), rtol=1e-9)
    for place, g in enumerate(pb.per_example_grad(loss)(parameters, *batch)):
        close(g, np.stack([row[place] for row in rows]), rtol=1e-9)


def test_a_weighted_sum_takes_one_forward_and_two_backward_passes() -> None:
    forwards: list[int] = []
    parameters, loss, batch = cases()["dense"]

    def counted(*args: Any) -> Tensor:
        forwards.append(1)
        return loss(*args)

    pb.weighted_grad(counted, lambda n: 1 / n)(parameters, *[pb.tensor(x) for x in batch])
    assert len(forwards) == 1


def test_norms_never_form_the_gradients_of_large_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model, words = Tied(90, 32), np.random.default_rng(0).integers(0, 90, (BATCH, 9))
    parameters, batch = list(model.parameters()), (words,)
    loss = lambda _, w: nn.functional.cross_entropy(model(w[:-1]), w[1:])
    formed: list[tuple[int, ...]] = []
    original = factors._by_forming

    def noted(a: Any, b: Any) -> Tensor:
        formed.append(a.all.shape if isinstance(a, factors.Dense) else ("formed",))
        return original(a, b)

    monkeypatch.setattr(factors, "_by_forming", noted)
    got = pb.per_example_norm(loss)(parameters, pb.tensor(words))
    assert set(formed) == {(BATCH, 32)}  # These are biases, and the weights of norms.
    close(got, [sum(float(np.sum(g * g)) for g in row) for row in one_by_one(parameters, loss, batch)], rtol=1e-9)


def test_many_rows_are_formed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    w = pb.Parameter(np.random.default_rng(0).standard_normal((3, 2)))
    x = np.random.default_rng(1).standard_normal((BATCH, 50, 3))
    loss = lambda q, v: pb.sum(pb.sin(v @ q))
    whole = host(pb.per_example_norm(loss)(w, pb.tensor(x)))
    monkeypatch.setattr(factors, "CHUNK_ELEMENTS", 12)
    wide = factors.Outer(pb.tensor(x), pb.ones((BATCH, 50, 2)))
    assert not factors._thin(wide, wide)
    close(pb.per_example_norm(loss)(w, pb.tensor(x)), whole)
    close(whole, [np.sum((v.T @ np.cos(v @ host(w))) ** 2) for v in x])


def test_gradients_that_are_formed_in_chunks_meet_those_that_are_formed_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a weight in a product and beside it: the cross term takes the same examples of both."""
    w = pb.Parameter(np.random.default_rng(0).standard_normal((3, 2)))
    x = np.random.default_rng(1).standard_normal((BATCH, 4, 3))
    loss = lambda q, v: pb.sum(pb.sin(v @ q)) + pb.sum(pb.cos(q) * v[0, 0])
    monkeypatch.setattr(factors, "CHUNK_ELEMENTS", 12)
    wanted = [np.sum((v.T @ np.cos(v @ host(w)) - np.sin(host(w)) * v[0, 0]) ** 2) for v in x]
    close(pb.per_example_norm(loss)(w, pb.tensor(x)), wanted)


def test_structures_and_several_arguments() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((BATCH, 3))
    a, b = {"w": pb.tensor(rng.standard_normal(3))}, pb.tensor(2.0, dtype="float64")
    loss = lambda p, v, k: pb.sum(p["w"] * v) * k
    got = pb.per_example_grad(loss, argnums=(0, 2))(a, pb.tensor(x), b)
    close(got[0]["w"], 2 * x)
    close(got[1], x @ host(a["w"]))
    close(pb.per_example_norm(loss, argnums=(0, 2))(a, pb.tensor(x), b), (4 * x * x).sum(1) + (x @ host(a["w"])) ** 2)


ZEROS: dict[str, Any] = {
    "unused": lambda q, v: pb.sum(v), "a constant": lambda q, v: 3, "sign": lambda q, v: pb.sum(pb.sign(q) * v),
    "numbers": lambda q, v: pb.sum(v) * q.tolist()[0],
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("case", ZEROS)
def test_norms_of_an_argument_that_nothing_depends_on_are_zero_with_the_warning_of_the_gradients(case: str, dtype: str) -> None:
    loss, q, x = ZEROS[case], pb.ones(3, dtype=dtype), pb.ones((BATCH, 3), dtype=dtype)
    texts = []
    for transform in (pb.per_example_grad, pb.per_example_norm, lambda f: pb.weighted_grad(f, lambda norms: norms)):
        with pytest.warns(pb.ZeroGradientWarning) as caught:
            got = transform(loss)(q, x)
        assert (got.dtype, host(got).any()) == (pb.zeros(1, dtype).dtype, False)
        texts.append([str(warning.message) for warning in caught])
    assert texts[0] == texts[1] == texts[2]
    with pytest.warns(pb.ZeroGradientWarning, match="argument 1"):
        close(pb.per_example_norm(lambda q, r, v: pb.sum(q * v), argnums=(0, 1))(q, q, x), np.full(BATCH, 3.0))
    assert pb.per_example_norm(lambda q, v: pb.sum(v))([], x).shape == (BATCH,)


def test_refusals() -> None:
    w, x = pb.Parameter(np.ones(3)), pb.tensor(np.ones((BATCH, 3)))
    with pytest.raises(pb.ShapeError, match=r"returned shape \(3,\)"):
        pb.per_example_norm(lambda q, v: q * v)(w, x)
    with pytest.raises(pb.ShapeError, match="one for each of 5"):
        pb.weighted_grad(lambda q, v: pb.sum(q * v), pb.ones(4))(w, x)
    running = pb.Parameter(np.zeros(3))
    with pytest.raises(pb.VmapError, match="differs from example to example"):
        pb.per_example_grad(lambda q, v: pb.sum(q * (v - running.assign(v))))(w, x)


@pytest.mark.parametrize("axis", [0, 1])
def test_norms_of_gathers_along_any_axis_are_those_of_the_gradients(axis: int) -> None:
    rng = np.random.default_rng(4)
    w, at = pb.Parameter(rng.standard_normal((4, 4))), rng.integers(0, 4, (BATCH, 3))
    g = pb.tensor(rng.standard_normal((BATCH, *((3, 4) if axis == 0 else (4, 3)))))
    loss = lambda w, i, g: pb.sum(pb.take(w, i, axis=axis) * g)
    each = host(pb.per_example_grad(loss)(w, pb.tensor(at), g))
    wanted = np.zeros((BATCH, 4, 4))
    for k in range(BATCH):
        np.add.at(wanted[k], at[k] if axis == 0 else (slice(None), at[k]), host(g)[k])
    close(each, wanted)
    close(pb.per_example_norm(loss)(w, pb.tensor(at), g), (wanted**2).sum((1, 2)))
