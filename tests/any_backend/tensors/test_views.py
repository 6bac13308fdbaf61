"""A view of a Parameter never changes silently. After an update it is stale, and every read of it raises."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn, optim

START = np.arange(6, dtype=np.float32).reshape(2, 3)

VIEWS: dict[str, Callable[[Any], pb.Tensor]] = {
    "T": lambda w: w.T,
    "mT": lambda w: w.mT,
    "row": lambda w: w[0],
    "slice": lambda w: w[:, 1:],
    "all of it": lambda w: w[...],
    "reshape": lambda w: w.reshape(-1),
    "reshape to its shape": lambda w: w.reshape(2, 3),
    "flatten": lambda w: w.flatten(),
    "flip": lambda w: pb.flip(w),
    "squeeze": lambda w: pb.squeeze(w),
    "split": lambda w: pb.split(w, 2)[1],
    "unstack": lambda w: pb.unstack(w)[0],
    "broadcast": lambda w: pb.broadcast_to(w, (4, 2, 3)),
    "broadcast to its shape": lambda w: pb.broadcast_to(w, (2, 3)),
    "broadcast_arrays": lambda w: pb.broadcast_arrays(w, pb.ones((2, 3)))[0],
    "asarray": lambda w: pb.asarray(w),
    "asarray, copy=False": lambda w: pb.asarray(w, copy=False),
    "asarray, its dtype": lambda w: pb.asarray(w, dtype=pb.float32, device=w.device),
    "from_dlpack": lambda w: pb.from_dlpack(w),
    "to its device": lambda w: w.to(w.device),
    "to its dtype": lambda w: w.to(pb.float32),
    "astype, copy=False": lambda w: w.astype(pb.float32, copy=False),
    "view of a view": lambda w: w.T[1:][0],
    "asarray of a view": lambda w: pb.asarray(w.T),
}
SNAPSHOTS: dict[str, Callable[[Any], pb.Tensor]] = {
    "stop_gradient": lambda w: pb.stop_gradient(w),
    "stop_gradient of a view": lambda w: pb.stop_gradient(w.T).T,
    "astype": lambda w: w.astype(pb.float32),
    "astype of a view": lambda w: w.T.astype(pb.float32).T,
    "copy": lambda w: pb.copy(w),
    "tensor": lambda w: pb.tensor(w),
    "asarray, copy=True": lambda w: pb.asarray(w, copy=True),
    "reshape, copy=True": lambda w: pb.reshape(w, (2, 3), copy=True),
    "reshape that has to copy": lambda w: pb.reshape(w.T, (6,)).reshape(3, 2).T,
    "deepcopy of a view": lambda w: copy.deepcopy(w.T).T,
    "an op": lambda w: w * 1,
    "indices": lambda w: w[pb.tensor([0, 1])],
    "clip without limits": lambda w: pb.clip(w),
    "clip of a view": lambda w: pb.clip(w.T).T,
    "roll by nothing": lambda w: pb.roll(w, 0, axis=1),
    "roll of all by nothing": lambda w: pb.roll(w, 0),
    "tile once": lambda w: pb.tile(w, 1),
    "repeat once": lambda w: pb.repeat(w, 1, axis=0),
    "pad by nothing": lambda w: pb.pad(w, 0),
    "concat of one": lambda w: pb.concat([w]),
    "stack of one": lambda w: pb.stack([w])[0],
    "no differences": lambda w: pb.diff(w, n=0),
    "logsumexp over no axes": lambda w: pb.logsumexp(w, axis=()),
    "sum over no axes": lambda w: pb.sum(w, axis=()),
    "einsum that moves nothing": lambda w: pb.einsum("ij", w),
    "einsum of a view": lambda w: pb.einsum("ij->ji", w.T),
    "dropout of nothing": lambda w: nn.functional.dropout(w, 0.0),
}
READS: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda v: v + 1,
    "on the right": lambda v: 2.0 - v,
    "unary": pb.exp,
    "reduction": pb.sum,
    "max": pb.max,
    "view": lambda v: v[0],
    "reshape": lambda v: pb.reshape(v, (-1,)),
    "T": lambda v: pb.transpose(v),
    "iteration": lambda v: [row + 1 for row in v],
    "concat": lambda v: pb.concat([v, v]),
    "stack": lambda v: pb.stack([v, v]),
    "take": lambda v: pb.take(v, [0], axis=0),
    "sort": pb.sort,
    "softmax": lambda v: pb.softmax(v, axis=-1),
    "where": lambda v: pb.where(v > 0, v, 0.0),
    "einsum": lambda v: pb.einsum("...i,...i->...", v, v),
    "copy": pb.copy,
    "astype": lambda v: v.astype(pb.float64),
    "stop_gradient": pb.stop_gradient,
    "at": lambda v: v.at[0].set(0.0),
    "NumPy's function": lambda v: np.sin(v),
    "numpy()": lambda v: v.numpy(),
    "tolist()": lambda v: v.tolist(),
    "in": lambda v: 1.0 in v,
    "DLPack": lambda v: v.__dlpack__(),
    "deepcopy": copy.deepcopy,
    "tensor": pb.tensor,
    "asarray": lambda v: pb.asarray(v).numpy(),
    "nested list": lambda v: pb.tensor([v, v]),
    "Parameter": pb.Parameter,
    "assign": lambda v: pb.Parameter(np.zeros(v.shape, np.float32)).assign(v),
    "vmap over it": lambda v: pb.vmap(lambda row: row + 1)(v),
    "vmap beside it": lambda v: pb.vmap(lambda s: s + v)(pb.ones(2)),
    "jvp": lambda v: pb.jvp(pb.sin, (v,), (pb.ones(v.shape),)),
    "grad": lambda v: pb.grad(lambda x: pb.sum(x * x))(v),
    "tape": lambda v: _gradient_beside(v),
    "captured argument": lambda v: pb.capture(lambda x: x + 1)(v),
    "captured constant": lambda v: pb.capture(lambda x: x + v)(pb.ones(v.shape)),
}


def _gradient_beside(v: Any) -> Any:
    x = pb.ones(v.shape)
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = pb.sum(x * v)
    return tape.gradient(y, x)


@pytest.fixture
def w() -> pb.Parameter:
    return pb.Parameter(START, name="w")


def values(t: Any) -> np.ndarray[Any, Any]:
    return t.numpy()


# ---- views and snapshots


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_has_the_values_of_its_time_or_raises(w: pb.Parameter, name: str) -> None:
    view = VIEWS[name](w)
    expected = VIEWS[name](pb.tensor(START)).numpy()
    assert view is not w
    np.testing.assert_array_equal(view.numpy(), expected)
    w.assign(START + 10)
    with pytest.raises(pb.StaleValueError, match=r'view of Parameter "w".*Take the view again.*pb\.copy\(p\)'):
        view.numpy()
    np.testing.assert_array_equal(VIEWS[name](w).numpy(), VIEWS[name](pb.tensor(START + 10)).numpy())


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_snapshot_keeps_the_values_of_its_time(w: pb.Parameter, name: str) -> None:
    snapshot = SNAPSHOTS[name](w)
    assert snapshot is not w
    w.assign(START + 10)
    np.testing.assert_array_equal(snapshot.numpy(), START)
    np.testing.assert_array_equal((snapshot + 1).numpy(), START + 1)


@pytest.mark.parametrize("name", READS)
def test_whatever_reads_a_stale_view_raises(w: pb.Parameter, name: str) -> None:
    view = w[...]
    READS[name](view)
    w.assign(START + 1)
    with pytest.raises(pb.StaleValueError, match='view of Parameter "w"'):
        READS[name](view)


def test_a_view_of_one_element_is_stale_for_python_too(w: pb.Parameter) -> None:
    one = w[0, 1]
    assert (float(one), one.item(), bool(one), f"{one:.1f}") == (1.0, 1.0, True, "1.0")
    w.assign(START + 1)
    for read in (float, int, bool, complex, lambda v: v.item()):
        with pytest.raises(pb.StaleValueError):
            read(one)


def test_a_stale_view_says_what_it_is(w: pb.Parameter) -> None:
    view = w.T
    w.assign(START + 1)
    assert repr(view) == f"{view}" == '<stale view of Parameter "w", shape=(3, 2), dtype=float32>'
    assert (view.shape, view.dtype, view.ndim, view.size, view.nbytes) == ((3, 2), pb.float32, 2, 6, 24)
    assert view.device == w.device
    unnamed = pb.Parameter(START)
    view = unnamed.T
    unnamed.assign(START)
    with pytest.raises(pb.StaleValueError, match="view of an unnamed Parameter, of shape"):
        view.numpy()


def test_a_parameter_itself_is_never_stale(w: pb.Parameter) -> None:
    w.assign(START + 1)
    np.testing.assert_array_equal(w.numpy(), START + 1)
    np.testing.assert_array_equal((w + 1).numpy(), START + 2)
    rows = iter(w)
    next(rows)
    w.assign(START + 2)
    np.testing.assert_array_equal(next(rows).numpy(), START[1] + 2)  # This view is made after the update.


def test_gradients_pass_views_and_snapshots_but_not_stop_gradient(w: pb.Parameter) -> None:
    makers = {**VIEWS, **SNAPSHOTS}
    for name in ("asarray", "to its device", "to its dtype", "reshape to its shape", "astype", "copy", "tensor", "roll by nothing"):
        with pb.GradientTape() as tape:
            y = pb.sum(makers[name](w) * pb.tensor(START))
        np.testing.assert_array_equal(tape.gradient(y, w).numpy(), START, err_msg=name)
    with pb.GradientTape() as tape:
        y = pb.sum(pb.stop_gradient(w) * w)
    np.testing.assert_array_equal(tape.gradient(y, w).numpy(), START)


def test_a_tensor_that_cannot_change_is_handed_out_as_it_is() -> None:
    t = pb.tensor(START)
    for same in (t.to(t.device), t.to(pb.float32), t.astype(pb.float32), pb.asarray(t), t.reshape(2, 3), pb.roll(t, 0, axis=0)):
        assert same is t
    assert pb.stop_gradient(t).array is t.array


@pytest.mark.parametrize("capture", [lambda f: f, pb.capture], ids=["eager", "captured"])
@pytest.mark.parametrize("size", [3, 200])
def test_a_parameter_takes_the_values_of_a_view_of_itself(size: int, capture: Any) -> None:
    start = np.arange(size * size, dtype=np.float32).reshape(size, size)
    for view in (lambda x: x.T, lambda x: x[::-1], lambda x: x[::-1, ::-1], lambda x: x[:1], lambda x: x):
        w, expected = pb.Parameter(start), start
        assign = capture(lambda w=w, view=view: w.assign(pb.broadcast_to(view(w), w.shape)))
        for _ in range(3):
            assign()
            expected = np.broadcast_to(view(expected), start.shape)
        np.testing.assert_array_equal(w.numpy(), expected)


INDEXED: dict[str, Callable[[Any, Any], pb.Tensor]] = {
    "index": lambda x, i: x[i],
    "two indices": lambda x, i: pb.stack([x, x])[i, i],
    "take": lambda x, i: pb.take(x, i),
    "take_along_axis": lambda x, i: pb.take_along_axis(x, i),
    "at": lambda x, i: x.at[i].multiply(2.0),
    "segment": lambda x, i: pb.segment_sum(x[:2], i, num_segments=2),
}


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("part", [lambda i: i, lambda i: i[...]], ids=["Buffer", "view"])
def test_a_gradient_at_indices_that_changed_is_right_or_raises(name: str, part: Any) -> None:
    x, indices = pb.Parameter(np.arange(3.0)), nn.Buffer(np.array([0, 1]), name="i")

    def gradient(change: bool) -> Any:
        indices.assign([0, 1])
        with pb.GradientTape() as tape:
            y = pb.sum(INDEXED[name](x, part(indices)) ** 2)
        if change:
            indices.assign([1, 0] if name == "two indices" else [1, 1])
        return tape.gradient(y, x).numpy()

    expected = gradient(change=False)
    try:
        found = gradient(change=True)
    except pb.StaleValueError as error:
        assert '"i" was changed in place' in str(error)  # noqa: PT017
    else:
        np.testing.assert_array_equal(found, expected)


# ---- all ways to change a Parameter


def _by_step(w: pb.Parameter) -> None:
    optim.SGD([w], lr=0.1).step([pb.ones((2, 3))])


def _by_replay(w: pb.Parameter) -> None:
    captured = pb.capture(lambda x: w.assign(w + x))
    captured(pb.ones((2, 3)))
    view = w.T
    captured(pb.ones((2, 3)))
    with pytest.raises(pb.StaleValueError):
        view.numpy()


def _by_loading(w: pb.Parameter) -> None:
    _module(w).load_state_dict({"w": START + 1})


def _by_moving(w: pb.Parameter) -> None:
    _module(w).to(pb.float64)


def _module(w: pb.Parameter) -> nn.Module:
    module = nn.Module()
    module.w = w
    return module


@pytest.mark.parametrize("change", [_by_step, _by_replay, _by_loading, _by_moving])
def test_every_change_makes_views_stale(w: pb.Parameter, change: Callable[[pb.Parameter], None]) -> None:
    view = w.T
    change(w)
    with pytest.raises(pb.StaleValueError, match='"w"'):
        view.numpy()


def test_moving_into_an_optimizers_memory_changes_no_view(w: pb.Parameter) -> None:
    view = w.T
    optimizer = optim.Adam([w], lr=0.1)
    np.testing.assert_array_equal(view.numpy(), START.T)
    optimizer.step([None])  # Without gradients nothing changes.
    np.testing.assert_array_equal((view + 1).numpy(), START.T + 1)
    optimizer.step([pb.ones((2, 3))])
    with pytest.raises(pb.StaleValueError):
        pb.exp(view)


def test_a_target_network_stays_where_it_is() -> None:
    online = nn.Linear(3, 2)
    optimizer = optim.SGD(online.parameters(), lr=0.5)
    target = [pb.stop_gradient(p) for p in online.parameters()]
    before = [p.numpy() for p in online.parameters()]
    optimizer.step([pb.ones(p.shape) for p in online.parameters()])
    for kept, value, p in zip(target, before, online.parameters()):
        np.testing.assert_array_equal(kept.numpy(), value)
        assert not np.array_equal(p.numpy(), value)


def test_state_dicts_and_files_hold_snapshots(w: pb.Parameter, tmp_path: Path) -> None:
    module = _module(w)
    state, view = module.state_dict(), w.T
    pb.save(tmp_path / "view", {"v": view})
    w.assign(START + 1)
    np.testing.assert_array_equal(state["w"].numpy(), START)
    np.testing.assert_array_equal(pb.load(tmp_path / "view")["v"].numpy(), START.T)
    with pytest.raises(pb.StaleValueError):
        pb.save(tmp_path / "stale", {"v": view})
    assert not (tmp_path / "stale").exists()


def test_views_of_buffers_are_stale_too() -> None:
    buffer = nn.Buffer(START, name="running")
    view = buffer[0]
    buffer.assign(START + 1)
    with pytest.raises(pb.StaleValueError, match=r'view of Buffer "running".* after the Buffer was changed'):
        pb.sum(view)
    assert repr(view).startswith('<stale view of Buffer "running"')
    assert {x.storage.label() for x in (copy.copy(buffer), pickle.loads(pickle.dumps(buffer)))} == {'Buffer "running"'}
    x = pb.ones((2, 3))
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = pb.sum(x * buffer)
    buffer.assign(START)
    with pytest.raises(pb.StaleValueError, match='gradient: Buffer "running" was changed in place'):
        tape.gradient(y, x)


def test_a_tape_that_kept_a_view_raises_at_the_gradient(w: pb.Parameter) -> None:
    with pb.GradientTape() as tape:
        y = pb.sum(pb.sin(w.T))
    w.assign(START + 1)
    with pytest.raises(pb.StaleValueError, match=r"sin.*test_views\.py"):
        tape.gradient(y, w)


def test_a_tape_that_kept_no_value_gives_its_gradient(w: pb.Parameter) -> None:
    with pb.GradientTape() as tape:
        y = pb.sum(w[0] * 3.0)
    w.assign(START + 1)
    np.testing.assert_array_equal(tape.gradient(y, w).numpy(), [[3, 3, 3], [0, 0, 0]])


def test_views_that_are_gone_are_forgotten(w: pb.Parameter) -> None:
    kept = w.T
    for _ in range(100):
        w.T + 1
    assert len(w.storage.views) == 1
    del kept
    assert not w.storage.views


def test_views_that_threads_make_are_stale_after_an_update() -> None:
    w = pb.Parameter(np.zeros((4, 4), np.float32))
    made: list[list[pb.Tensor]] = [[] for _ in range(4)]

    def work(mine: list[pb.Tensor]) -> None:
        for _ in range(500):
            mine.append(w.T)
            if len(mine) % 50 == 0:
                w.assign(np.ones((4, 4), np.float32))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    w.assign(np.zeros((4, 4), np.float32))
    for view in [view for mine in made for view in mine]:
        with pytest.raises(pb.StaleValueError):
            view.numpy()
    assert not w.storage.views
