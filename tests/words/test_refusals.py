"""Impossible requests: each function raises the right class of error with its own name in the message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
import pullback.tree
from pullback import nn, optim
from pullback.autodiff.primitive import Rule
from pullback.nn import functional as F
from pullback.optim import schedules

T = pb.tensor
ONE, ROWS, CUBE, SIX = T(1.0), T([[1.0, 2.0], [3.0, 4.0]]), pb.ones((2, 3, 4)), pb.ones(6)
IDS = T([0, 1])


def parameter(*shape: int) -> pb.Parameter:
    return pb.Parameter(np.ones(shape, np.float32), name="p")


def made_trainable(p: pb.Parameter) -> pb.Parameter:
    p.trainable = True
    return p


def state_of(change: Any) -> Any:
    """Returns a function that loads an optimizer's state after `change` has changed the state."""
    opt = optim.Adam([parameter(2)])
    state = opt.state_dict()
    change(state)
    return lambda: opt.load_state_dict(state)


def tape_of(f: Any) -> Any:
    with pb.GradientTape(persistent=True) as tape:
        tape.watch(ROWS)
        y = f(ROWS)
    return tape, y


SHAPES: list[tuple[str, Any]] = [
    ("permute_dims", lambda: pb.permute_dims(ROWS, (0, 0))),
    ("matrix_transpose", lambda: pb.matrix_transpose(SIX)),
    ("moveaxis", lambda: pb.moveaxis(ROWS, (0, 0), (0, 1))),
    ("broadcast_to", lambda: pb.broadcast_to(ROWS, (3, 3))),
    ("broadcast_to", lambda: pb.broadcast_to(ROWS, (2,))),
    ("squeeze", lambda: pb.squeeze(ROWS, 0)),
    ("roll", lambda: pb.roll(ROWS, (1, 2), axis=(0, 1, 0))),
    ("concat", lambda: pb.concat([])),
    ("concat", lambda: pb.concat([ROWS, CUBE])),
    ("concat", lambda: pb.concat([ROWS, pb.ones((3, 3))])),
    ("stack", lambda: pb.stack([ROWS, SIX])),
    ("split", lambda: pb.split(SIX, 4)),
    ("pad", lambda: pb.pad(ROWS, (1, 2, 3))),
    ("pad", lambda: pb.pad(ROWS, -1)),
    ("reshape", lambda: pb.reshape(SIX, (4,))),
    ("reshape", lambda: pb.reshape(SIX, (-2, -3))),
    ("reshape", lambda: pb.reshape(SIX, (-1, -1))),
    ("reshape", lambda: pb.reshape(SIX, (-1, 4))),
    ("reshape", lambda: pb.reshape(SIX, (-1, 0))),
    ("take", lambda: pb.take(ROWS, IDS)),
    ("take_along_axis", lambda: pb.take_along_axis(ROWS, IDS)),
    ("nonzero", lambda: pb.nonzero(ONE)),
    ("at", lambda: ROWS.at[0].set(pb.ones(3))),
    ("matmul", lambda: pb.matmul(ONE, ROWS)),
    ("matmul", lambda: pb.matmul(ROWS, pb.ones((3, 2)))),
    ("outer", lambda: pb.outer(ROWS, SIX)),
    ("vecdot", lambda: pb.vecdot(ROWS, ROWS, axis=0)),
    ("vecdot", lambda: pb.vecdot(SIX, ROWS, axis=-2)),
    ("vecdot", lambda: pb.vecdot(SIX, pb.ones(1))),
    ("vecdot", lambda: pb.vecdot(SIX, pb.ones(5))),
    ("tensordot", lambda: pb.tensordot(ROWS, SIX, axes=2)),
    ("tensordot", lambda: pb.tensordot(ROWS, SIX, axes=1)),
    ("einsum", lambda: pb.einsum("ij,jk->ik", ROWS, pb.ones((3, 2)))),
    ("einsum", lambda: pb.einsum("ij->i", ROWS, ROWS)),
    ("einsum", lambda: pb.einsum("ijk->i", ROWS)),
    ("einsum", lambda: pb.einsum("ij->ii", ROWS)),
    ("einsum", lambda: pb.einsum("ij->k", ROWS)),
    ("an axis of the ellipsis has lengths 8 and 7", lambda: pb.einsum("...i,...j->...", pb.ones((8, 4)), pb.ones((7, 3)))),
    ("einsum", lambda: pb.einsum("iij->j", CUBE)),
    ("topk", lambda: pb.topk(ROWS, 3)),
    ("topk", lambda: pb.topk(ROWS, -1)),
    ("searchsorted", lambda: pb.searchsorted(ROWS, SIX)),
    ("searchsorted", lambda: pb.searchsorted(SIX, SIX, side="middle")),
    ("segment_sum", lambda: pb.segment_sum(SIX, IDS)),
    ("segment_mean", lambda: pb.segment_mean(ONE, T(0))),
    ("max", lambda: pb.max(pb.ones((2, 0)), axis=1)),
    ("min", lambda: pb.min(pb.ones((0,)))),
    ("argmax", lambda: pb.argmax(pb.ones((2, 0)), axis=1)),
    ("argmin", lambda: pb.argmin(pb.ones((0,)))),
    ("sum", lambda: pb.sum(ROWS, axis=2)),
    ("sum", lambda: pb.sum(ROWS, axis=(0, 0))),
    ("sum", lambda: pb.sum(ROWS, axis="x")),
    ("sum", lambda: pb.sum(ONE, axis=0)),
    ("softmax", lambda: pb.softmax(ONE)),
    ("logsumexp", lambda: pb.logsumexp(ROWS, axis=(0, -2))),
    ("layer_norm", lambda: F.layer_norm(ROWS, weight=pb.ones(3))),
    ("layer_norm", lambda: F.layer_norm(ROWS, bias=pb.ones(3))),
    ("rms_norm", lambda: F.rms_norm(ROWS, weight=pb.ones((2, 2)))),
    ("cross_entropy", lambda: nn.cross_entropy(ROWS, T([0, 1, 1]))),
    ("cross_entropy", lambda: nn.cross_entropy(ROWS, pb.ones((2, 3)))),
    ("cross_entropy", lambda: nn.cross_entropy(ROWS, IDS, weight=pb.ones(3))),
    ("nll", lambda: nn.nll(ROWS, T([0, 1, 1]))),
    ("nll", lambda: nn.nll(ROWS, IDS, weight=pb.ones(3))),
    ("mse", lambda: nn.mse(ROWS, SIX)),
    ("kl_div", lambda: nn.kl_div(ROWS, SIX)),
    ("bce_with_logits", lambda: nn.bce_with_logits(ROWS, SIX)),
    ("cumulative_sum", lambda: pb.cumulative_sum(ROWS)),
    ("cumulative_prod", lambda: pb.cumulative_prod(ROWS)),
    ("add", lambda: ROWS + pb.ones(3)),
    ("where", lambda: pb.where(pb.ones(3) > 0, ROWS, 0.0)),
    ("tile", lambda: pb.tile(ROWS, (2, -1))),
    ("repeat", lambda: pb.repeat(ROWS, -1, axis=0)),
    ("repeat", lambda: pb.repeat(ROWS, 1.5, axis=0)),
    ("repeat", lambda: pb.repeat(ROWS, [1, 2, 3], axis=0)),
    ("tril", lambda: pb.tril(SIX)),
    ("triu", lambda: pb.triu(SIX)),
    ("shape", lambda: pb.random.normal((2, -1))),
    ("shape", lambda: pb.zeros("ab")),
    ("shape", lambda: pb.zeros((2, -1))),
    ("arange", lambda: pb.arange(0, 5, 0)),
    ("tensor", lambda: T([[1.0], [1.0, 2.0]])),
    ("linear", lambda: F.linear(ROWS, SIX)),
    ("linear", lambda: F.linear(ROWS, pb.ones((3, 3)))),
    ("linear", lambda: F.linear(ONE, pb.ones((3, 3)))),
    ("linear", lambda: F.linear(ROWS, ROWS, pb.ones(3))),
    ("diagonal", lambda: pb.linalg.diagonal(SIX)),
    ("trace: x has shape", lambda: pb.linalg.trace(SIX)),
    ("cross", lambda: pb.linalg.cross(ROWS, ROWS)),
    ("cross", lambda: pb.linalg.cross(pb.ones(3), pb.ones(4))),
    ("cross", lambda: pb.linalg.cross(pb.ones(4), pb.ones(3))),
    ("matrix_norm", lambda: pb.linalg.matrix_norm(SIX)),
    ("init", lambda: nn.init.kaiming_normal(parameter(3))),
    ("init", lambda: nn.init.xavier_uniform(parameter(3))),
    ("orthogonal", lambda: nn.init.orthogonal(parameter(3))),
    ("Linear", lambda: nn.Linear(0, 3)),
    ("Linear", lambda: nn.Linear(3, 1.5)),  # pyright: ignore[reportArgumentType]
    ("Embedding", lambda: nn.Embedding(0, 3)),
    ("LayerNorm", lambda: nn.LayerNorm(0)),
    ("LayerNorm", lambda: nn.LayerNorm(())),
    ("RMSNorm", lambda: nn.RMSNorm(3)(ROWS)),
    ("LayerNorm", lambda: nn.LayerNorm((2, 2))(SIX)),
    ("Flatten", lambda: nn.Flatten(1, 0)(ROWS)),
    ("step", lambda: optim.SGD([parameter(2)]).step([])),
    ("step", lambda: optim.SGD([parameter(2)]).step([pb.ones(3)])),
    ("step", lambda: optim.SGD([pb.Parameter([1.0], constraint=lambda x: pb.ones(2))]).step([pb.ones(1)])),
    ("assign", lambda: parameter(2).assign(pb.ones(3))),
    ("item", lambda: ROWS.item()),
    ("bool", lambda: bool(ROWS)),
    ("float", lambda: float(ROWS)),
    ("gradient", lambda: (made := tape_of(lambda x: x * 2))[0].gradient(made[1], ROWS, pb.ones(3))),
    ("grad", lambda: pb.grad(lambda x: x)(ROWS)),
    ("vjp", lambda: pb.vjp(lambda x: (x, x), ROWS)[1]((ROWS,))),
    ("jvp", lambda: pb.jvp(pb.sin, (ROWS,), (SIX,))),
    ("jvp", lambda: pb.jvp(pb.sin, (ROWS,), (ROWS, ROWS))),
    ("linearize", lambda: pb.linearize(pb.sin, ROWS)[1](ROWS, ROWS)),
    ("vmap", lambda: pb.vmap(pb.add, in_axes=(0,))(ROWS, ROWS)),
    ("vmap", lambda: pb.vmap(pb.sin, in_axes=2)(ROWS)),
    ("vmap", lambda: pb.vmap(pb.sin, in_axes=None)(ROWS)),
    ("vmap", lambda: pb.vmap(pb.add)(ROWS, SIX)),
    ("vmap: in_axes", lambda: pb.vmap(lambda t: t[0], in_axes=([0],))((ROWS, ROWS))),
    ("scan", lambda: pb.scan(lambda c, x: (c, x), ONE, [ROWS, SIX])),
    ("scan", lambda: pb.scan(lambda c, x: (c, x), ONE)),
    ("scan", lambda: pb.scan(lambda c, x: (c, x), ONE, pb.ones((0, 2)))),
    ("scan", lambda: pb.scan(lambda c, x: (pb.ones(2), x), ONE, SIX)),
    ("capture", lambda: pb.capture(lambda: 1.0, steps=2)()),
    ("capture", lambda: pb.capture(lambda x: x, steps=3)(ROWS)),
    ("straight_through", lambda: pb.straight_through(pb.sum)(ROWS)),
    ("np.ravel", lambda: np.ravel(ROWS, order="F")),
    ("black_box", lambda: pb.black_box(lambda x, y: x, batch="rows")(ROWS, SIX)),
    ("Loader", lambda: pb.data.Loader([np.zeros(3), np.zeros(4)], 2)),
]

DTYPES: list[tuple[str, Any]] = [
    ("pad", lambda: pb.pad(T([1]), 1, value=1.5)),
    ("take", lambda: pb.take(SIX, T([0.5]))),
    ("index", lambda: ROWS[T([0.5])]),
    ("at", lambda: T([1, 2]).at[0].set(T(1.5))),
    ("segment_sum", lambda: pb.segment_sum(SIX, pb.zeros(6))),
    ("cross_entropy", lambda: nn.cross_entropy(ROWS, T([True, False]))),
    ("nll", lambda: nn.nll(ROWS, pb.zeros(2))),
    ("bitwise_and", lambda: pb.bitwise_and(SIX, SIX)),
    ("linear", lambda: F.linear(T([[1, 2]]), T([[1, 2]]))),
    ("randint", lambda: pb.random.randint(3, dtype="float32")),
    ("normal", lambda: pb.random.normal((2,), dtype="int32")),
    ("uniform", lambda: pb.random.uniform((2,), dtype="int32")),
    ("add", lambda: T([1], dtype="int8") + 1000),
    ("uint64", lambda: T([1], dtype="uint64") + T([1], dtype="int64")),
    ("add", lambda: ROWS + np.complex64(1j)),
    ("Python objects", lambda: T(np.array([object()]))),
    ("str", lambda: T("abc")),
    ("1000", lambda: T([1000], dtype="int8")),
    ("1000", lambda: pb.full(2, 1000, dtype="int8")),
    ("1000", lambda: pb.full(2, 10**30, dtype="int64")),
    ("float99", lambda: pb.ones(2, dtype="float99")),
    ("complex64", lambda: pb.ones(2, dtype="complex64")),
    ("Embedding: ", lambda: nn.Embedding(3, 2)(pb.zeros(2))),
    ("step", lambda: optim.SGD([parameter(2)]).step([pb.ones(2, dtype="float64")])),
    ("Parameter", lambda: pb.Parameter([1, 2])),
    ("SGD", lambda: optim.SGD([made_trainable(pb.Parameter([1, 2], trainable=False))])),
    ("float32", lambda: [1, 2][ONE]),
]

OTHERS: list[tuple[type[Exception], str, Any]] = [
    (pb.ArgumentError, "reshape", lambda: pb.reshape(ROWS.T, (4,), copy=False)),
    (pb.ArgumentError, "asarray", lambda: pb.asarray([1.0], copy=False)),
    (pb.ArgumentError, "asarray", lambda: pb.asarray(ROWS, dtype="float64", copy=False)),
    (ValueError, "asarray", lambda: np.asarray(ROWS.numpy() if pb.ones(1).device != "cpu" else ROWS, dtype="float64", copy=False)),
    (pb.ArgumentError, "linear", lambda: F.linear(ROWS, ROWS, activation="gelu")),
    (pb.ArgumentError, "autocast", lambda: pb.amp.autocast("float8")),
    (IndexError, "take", lambda: pb.take(SIX, T([6]))),
    (IndexError, "index", lambda: ROWS[2]),
    (IndexError, "index", lambda: ROWS[0, 0, 0]),
    (IndexError, "index", lambda: ROWS["a"]),
    (IndexError, "index", lambda: ROWS[T([True, False, True])]),
    (IndexError, "segment", lambda: pb.segment_sum(SIX, T([0, 1, 2, 3, 4, 5]), 3).numpy()),
    (IndexError, "cross_entropy", lambda: nn.cross_entropy(ROWS, T([0, 2])).numpy()),
    (IndexError, "nll" if ROWS.device == "cpu" else "take_along_axis", lambda: nn.nll(ROWS, T([0, 2])).numpy()),
    (TypeError, "np.take: mode", lambda: np.take(ROWS, [0], mode="clip")),
    (TypeError, "np.einsum", lambda: np.einsum(ROWS, [0, 1], [1, 0])),
    (TypeError, "a pullback keeps 'z'", lambda: Rule(lambda g, z: g, "op", ("x", "y"), 1)),
    (TypeError, "len", lambda: len(ONE)),
    (TypeError, "iteration", lambda: iter(ONE)),
    *[(TypeError, r"Tensor: a (float|list|Tensor|float32|NoneType|str) .*pb\.tensor.*pb\.asarray", lambda x=x: pb.Tensor(x))
      for x in (1.0, [1.0], ROWS, np.float32(1), None, "a")],
    (TypeError, "immutable", lambda: ROWS.__setitem__(0, 1.0)),
    (TypeError, "out=", lambda: np.add(ROWS, 1.0, out=np.zeros((2, 2)))),
    (TypeError, "np", lambda: np.bitwise_count(T([1]))),
    (pb.PullbackError, "black_box: step", lambda: pb.black_box(lambda x: x, step=0.0)),
    (pb.PullbackError, "black_box: step", lambda: pb.black_box(lambda x: x, samples=0)),
    (pb.PullbackError, "seed", lambda: pb.random.Generator(-1)),
    (pb.PullbackError, "seed", lambda: pb.random.Generator(2**64)),
    (pb.PullbackError, "uniform", lambda: pb.random.uniform((2,), 2.0, 1.0)),
    (pb.PullbackError, "normal", lambda: pb.random.normal((2,), 0.0, -1.0)),
    (pb.PullbackError, "truncated_normal", lambda: pb.random.truncated_normal((2,), low=1.0, high=1.0)),
    (pb.PullbackError, "bernoulli", lambda: pb.random.bernoulli((2,), 1.5)),
    (pb.PullbackError, "randint", lambda: pb.random.randint(3, 3)),
    (pb.PullbackError, "dropout", lambda: F.dropout(ROWS, -0.1)),
    (pb.PullbackError, "Dropout", lambda: nn.Dropout(1.1)),
    (pb.PullbackError, "gelu", lambda: F.gelu(ROWS, "fast")),
    (pb.PullbackError, "calculate_gain", lambda: nn.init.calculate_gain("swish")),
    (pb.PullbackError, "kaiming", lambda: nn.init.kaiming_normal(parameter(2, 3), mode="fan")),
    (pb.PullbackError, "Sequential", lambda: nn.Sequential(3)),
    (pb.PullbackError, "reduction", lambda: nn.mse(ROWS, ROWS, reduction="max")),
    (pb.PullbackError, "huber", lambda: nn.huber(ROWS, ROWS, delta=0.0)),
    (pb.PullbackError, "cross_entropy", lambda: nn.cross_entropy(ROWS, IDS, label_smoothing=1.5)),
    (pb.PullbackError, "load_state_dict", lambda: nn.Linear(2, 2).load_state_dict({"weight": ROWS})),
    (pb.PullbackError, "load_state_dict", lambda: nn.Linear(2, 2).load_state_dict({"weight": ROWS, "bias": "x"})),
    (pb.PullbackError, "clip_norm", lambda: optim.SGD([parameter(2)], clip_norm=0.0)),
    (pb.PullbackError, "clip_value", lambda: optim.SGD([parameter(2)], clip_value=-1.0)),
    (pb.PullbackError, "not a parameter", lambda: optim.SGD([parameter(2)]).slots(parameter(2))),
    (pb.PullbackError, "trainable", lambda: optim.SGD([])),
    (pb.PullbackError, "trainable", lambda: optim.SGD([pb.Parameter([1.0], trainable=False)])),
    (pb.PullbackError, "SGD", lambda: optim.SGD([ROWS])),
    (pb.PullbackError, "momentum", lambda: optim.SGD([parameter(2)], momentum=-1)),
    (pb.PullbackError, "nesterov", lambda: optim.SGD([parameter(2)], nesterov=True)),
    (pb.PullbackError, "nesterov", lambda: optim.SGD([parameter(2)], momentum=0.9, dampening=0.1, nesterov=True)),
    (pb.PullbackError, "betas", lambda: optim.Adam([parameter(2)], betas=(1.0, 0.9))),
    (pb.PullbackError, "eps", lambda: optim.Adam([parameter(2)], eps=-1.0)),
    (pb.PullbackError, "^SGD: lr=-1.0; it must be", lambda: optim.SGD([parameter(2)], lr=-1.0)),
    (pb.PullbackError, "lr", lambda: optim.SGD([parameter(2)], lr="fast")),  # pyright: ignore[reportArgumentType]
    (pb.PullbackError, "Cosine", lambda: schedules.Cosine(0.1, steps=0)),
    (pb.PullbackError, "Step", lambda: schedules.Step(0.1, every=0)),
    (pb.PullbackError, "rule", state_of(lambda state: state.update(rule="SGD"))),
    (pb.PullbackError, "load_state_dict", state_of(lambda state: state.update(more=1))),
    (pb.PullbackError, "load_state_dict", state_of(lambda state: state.update(slots=3))),
    (pb.PullbackError, "memo", lambda: pb.memo(pb.sin, size=0)),
    (pb.PullbackError, "memo", lambda: pb.memo(pb.sin)(np.ones(2))),
    (pb.PullbackError, "scan", lambda: pb.scan(lambda c, x: (c, x), ONE, SIX, checkpoint=-1)),
    (pb.PullbackError, "scan", lambda: pb.scan(lambda c, x: c, ONE, SIX)),
    (pb.PullbackError, "scan", lambda: pb.scan(lambda c, x: ((c, c), x), ONE, SIX)),
    (pb.PullbackError, "scan", lambda: pb.scan(lambda c, x: (c + 1, x if c.item() > 1 else (x, x)), ONE, SIX)),
    (pb.PullbackError, "flops", lambda: pb.flops(pb.sin, ROWS, argnums=3)),
    (pb.TapeError, "watch", lambda: pb.GradientTape().watch(T([1]))),
    (pb.TapeError, "on_gradient", lambda: pb.GradientTape().on_gradient(ROWS, print)),
    (pb.TapeError, "unconnected", lambda: (made := tape_of(pb.sum))[0].gradient(made[1], ROWS, unconnected="x")),
    (pb.TapeError, "aggregation", lambda: (made := tape_of(pb.sum))[0].gradient(made[1], ROWS, aggregation="x")),
    (pb.TapeError, "output_gradients", lambda: (made := tape_of(pb.sum))[0].gradient([made[1]] * 2, ROWS, [ONE] * 3)),
    (pb.TapeError, "source", lambda: (made := tape_of(pb.sum))[0].gradient(made[1], [1.0])),
    (pb.TapeError, "target", lambda: tape_of(pb.sum)[0].gradient(1.0, ROWS)),
    (pb.TapeError, "argnums", lambda: pb.grad(pb.sum, argnums=1)(ROWS)),
    (pb.TapeError, "int64", lambda: pb.grad(pb.sum)(T([1]))),
    (pb.TapeError, "check_gradients", lambda: pb.check_gradients(pb.sum, T([1]))),
    (pb.TapeError, "check_gradients", lambda: pb.check_gradients(lambda x: 3, ROWS)),
    (pb.VmapError, "out_axes", lambda: pb.vmap(pb.sin, out_axes=None)(ROWS)),
    (pb.DeviceError, "is no GPU", lambda: pb.cuda.synchronize("cpu")),
    (pb.TapeError, "jacobian: the target", lambda: tape_of(pb.sum)[0].jacobian(1.0, ROWS)),
    (pb.DeviceError, "tpu", lambda: pb.ones(2, device="tpu")),
    (NotImplementedError, "forward", lambda: nn.Module()(ROWS)),
    (AttributeError, "no_such_name", lambda: pb.no_such_name),
]

CASES = [
    *[(pb.ShapeError, words, ask) for words, ask in SHAPES],
    (pb.ArgumentError, "matrix_norm", lambda: pb.linalg.matrix_norm(ROWS, ord=3)),
    *[(pb.DTypeError, words, ask) for words, ask in DTYPES],
    *OTHERS,
]


@pytest.mark.parametrize(("error", "words", "ask"), CASES, ids=[f"{e.__name__} {w} {k}" for k, (e, w, _) in enumerate(CASES)])
def test_what_cannot_be_is_refused_by_name(error: type[Exception], words: str, ask: Any) -> None:
    with pytest.raises(error, match=f"(?s){words}"):
        ask()


def test_what_is_entered_cannot_be_entered_again() -> None:
    for context in (pb.GradientTape(), pb.debug_nans()):
        with context, pytest.raises(pb.TapeError):
            context.__enter__()


def test_an_example_does_not_outlive_its_vmap() -> None:
    kept: list[Any] = []
    pb.vmap(lambda x: kept.append(x) or x)(ROWS)
    with pytest.raises(pb.VmapError, match="after its vmap had ended"):
        pb.sin(kept[0])


def test_a_hook_keeps_the_shape_of_a_gradient() -> None:
    with pb.GradientTape() as tape:
        tape.watch(ROWS)
        y = ROWS * 2
        tape.on_gradient(y, lambda g: pb.ones(3))
        z = pb.sum(y)
    with pytest.raises(pb.TapeError, match="on_gradient"):
        tape.gradient(z, ROWS)
