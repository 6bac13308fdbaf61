"""Arrays that other code writes to. pullback never sees an implicit argument change, and results share no memory with arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn
from pullback.launch import door
from pullback.tree import flatten

W = np.array([[0.3, -1.2, 0.7], [1.1, 0.4, -0.6], [-0.9, 0.8, 0.2]])
A = np.array([[0.5, 1.5, -0.8], [2.0, -0.4, 1.1], [0.9, 0.6, -1.7]])
IDS = np.array([0, 2, 1])


@pb.custom_gradient
def squared_by(w: Any, a: Any) -> Any:
    """Returns w * w * a and a pullback that reads the array argument as it was passed."""
    return w * w * a, lambda g: (2 * g * w * a, None)


def given_torch(a: Any) -> Any:
    return pytest.importorskip("torch").from_dlpack(a)


# name: (a loss of the weight and an array, the array). All of their pullbacks read the array.
USES: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "operand": (lambda w, a: w * a, A),
    "operand before": (lambda w, a: a * w, A),
    "matmul": (lambda w, a: a @ w, A),
    "power": (lambda w, a: pb.exp(w) ** a, A),
    "maximum": (pb.maximum, A),
    "where's condition": (lambda w, a: pb.where(a, w, -w), A > 0),
    "where's branch": (lambda w, a: pb.where(w > 0, w * a, a), A),
    "einsum": (lambda w, a: pb.einsum("ij,kj->ik", a, w), A),
    "numpy's function": (lambda w, a: np.matmul(a, w), A),
    "linear": (nn.functional.linear, A),
    "layer_norm's weight": (lambda w, a: nn.functional.layer_norm(w, a), A[0]),
    "a list of arrays": (lambda w, a: w * pb.stack([a, a])[1], A),
    "reshaped": (lambda w, a: w * pb.reshape(a, (3, 3)), A.reshape(-1)),
    "transposed": (lambda w, a: w @ a.T, A),
    "strided": (lambda w, a: w[:, :2] * a[:, ::2], A),
    "take": (lambda w, a: pb.take(pb.sin(w), a, axis=0), IDS),
    "take_along_axis": (lambda w, a: pb.take_along_axis(pb.sin(w), a, axis=1), np.array([[0], [2], [1]])),
    "index": (lambda w, a: pb.sin(w)[a], IDS),
    "two indices": (lambda w, a: pb.sin(w)[a, a], IDS),
    "mask": (lambda w, a: pb.sin(w)[a], A > 0),
    "at.set": (lambda w, a: (w * w).at[0].set(a) * w, A[0]),
    "at.max": (lambda w, a: (w * w).at[:].max(a), A),
    "at's index": (lambda w, a: pb.sin(w).at[a].add(w[0]), IDS[:2]),
    "segment ids": (lambda w, a: pb.segment_sum(pb.sin(w), a, 3) * w, IDS),
    "mse's target": (nn.mse, A),
    "labels": (nn.cross_entropy, IDS),
    "Module": (lambda w, a: pb.sum(nn.functional.linear(nn.Flatten()(a), w)), A),
    "scan's xs": (lambda w, a: pb.scan(lambda h, x: (pb.tanh(h * x + w), h), w, a)[0], A),
    "scan's init": (lambda w, a: pb.scan(lambda h, x: (pb.tanh(h * w), h), a, length=2)[0], A),
    "checkpoint's argument": (pb.checkpoint(lambda w, a: pb.sin(w * a)), A),
    "checkpoint's index": (pb.checkpoint(lambda w, a: pb.sin(w)[a]), IDS),
    "custom_gradient's argument": (squared_by, A),
    "vmap's argument": (pb.vmap(lambda w, a: pb.sin(w) * a), A),
    "black box": (lambda w, a: pb.black_box(lambda x: x**2)(w * a), A),
    "torch": (lambda w, a: w * given_torch(a), A),
    "memoryview": (lambda w, a: w * memoryview(a), A),
}


def loss(f: Any, w: Any, a: Any) -> Any:
    y = f(w, a)
    return pb.sum(y * pb.asarray(np.linspace(0.5, 1.5, max(1, y.size)).reshape(y.shape)))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("name", USES)
def test_a_gradient_is_of_the_values_that_an_array_had_in_the_forward_pass(name: str, persistent: bool) -> None:
    f, value = USES[name]
    array, w = value.copy(), pb.Parameter(W)
    with pb.GradientTape(persistent=persistent) as tape:
        y = loss(f, w, array)
    array[...] = 1 if array.dtype.kind == "i" else ~array if array.dtype.kind == "b" else 7
    found = tape.gradient(y, w).numpy()
    step = 1e-5
    for place in np.ndindex(*W.shape):
        moved = np.zeros_like(W)
        moved[place] = step
        above, below = [loss(f, pb.tensor(W + sign * moved), value).item() for sign in (1, -1)]
        assert found[place] == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-7)


def test_a_linear_layer_keeps_the_observation_that_it_was_given() -> None:
    observation, layer = np.ones((1, 3), np.float32), nn.Linear(3, 1, bias=False)
    with pb.GradientTape() as tape:
        y = pb.sum(layer(observation))
    observation[:] = 7
    assert tape.gradient(y, layer.weight).numpy().tolist() == [[1, 1, 1]]


def test_primals_cotangents_and_tangents_are_those_of_the_call() -> None:
    x, t = A.copy(), A.copy()
    _, pullback = pb.vjp(lambda x: x * x, x)
    _, derivative = pb.linearize(lambda x: x * x, t)
    x[:], t[:] = 7, 7
    assert np.array_equal(pullback(pb.ones((3, 3), dtype=pb.float64))[0].numpy(), 2 * A)
    assert np.array_equal(derivative(pb.ones((3, 3), dtype=pb.float64)).numpy(), 2 * A)
    cotangent = A.copy()
    results = [pb.vjp(lambda x: x + 1, A)[1](cotangent), pb.jvp(lambda x: x, (A,), (cotangent,))]
    results += [pb.vmap(lambda x: x)(cotangent), pb.scan(lambda h, x: (h, x), cotangent, length=2)]
    with pb.GradientTape() as tape:
        w = pb.Parameter(W)
        y = w + 1
        tape.on_gradient(y, lambda g: cotangent)
    results.append(tape.gradient(y, w, output_gradients=cotangent))
    assert not shared(results, [cotangent])


def test_a_black_box_may_use_the_memory_of_its_result_again() -> None:
    memory = np.zeros((3, 3))

    def measure(x: Any) -> Any:
        memory[:] = 2 * x
        return memory

    y = pb.black_box(measure, batch=False)(pb.tensor(A))
    memory[:] = 0
    assert np.array_equal(y.numpy(), 2 * A)


def shared(results: Any, arrays: list[Any]) -> bool:
    """True if a tensor among the results shares memory with one of the arrays."""
    tensors = [y for y in flatten(results)[0] if isinstance(y, pb.Tensor) and y.device == "cpu"]
    return any([np.shares_memory(y.array, array) for y in tensors for array in arrays])


def functions() -> list[tuple[str, Any]]:
    found: dict[str, Any] = {}
    for space in (pb, pb.linalg, nn.functional, pb.random):
        for name in dir(space):
            f = getattr(space, name)
            if inspect.isfunction(f) and f.__module__.startswith("pullback") and not name.startswith("_"):
                found.setdefault(f"{space.__name__}.{name}", f)
    zero_copy = ("pullback.asarray", "pullback.from_dlpack")
    return [(name, f) for name, f in found.items() if name not in zero_copy]


def calls() -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    square, vector, ids = (A @ A.T).astype(np.float32), np.arange(3, dtype=np.float32), np.arange(3)
    zero, one, mask = np.ones((), np.float32), np.ones((1, 1), np.float32), np.array([True, False])
    alone = [(square,), (square.astype(np.float64),), (vector,), (ids,), (zero,), (one,), (mask,), ([square],), ([square, square],)]
    shapes: list[Any] = [(3, 3), (9,), (2, 3, 3), (1, 0), 0, 1, 2, 0.0, "float32"]
    pairs = [(square, square), (square, ids), (ids, square), ("ij->ji", square), *[(square, other) for other in shapes]]
    more = [(square, 0, 1), (square, None, None), (square, 0.0, False), (square, square, square)]
    options: list[dict[str, Any]] = [{}, {"axis": 0}, {"axis": ()}, {"axis": None}, {"dtype": pb.float32}]
    return [(args, option) for args in (*alone, *pairs, *more) for option in options]


@pytest.mark.filterwarnings("ignore")
def test_no_result_of_a_function_lies_in_the_memory_of_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # pb.save may write a file, because it accepts any string as a file name.
    done: set[str] = set()
    wrong: set[str] = set()
    for name, f in functions():
        for args, options in calls():
            try:
                result = f(*args, **options)
            except Exception:  # The arguments are for other functions.
                continue
            done.add(name)
            arrays = [a for x in args for a in (x if isinstance(x, list) else [x]) if isinstance(a, np.ndarray)]
            if shared(result, arrays):
                wrong.add(name)
    assert not wrong
    assert len(done) > 150


@pytest.mark.parametrize("module", [nn.Flatten(0), nn.Dropout().eval(), nn.Sequential(nn.Flatten(), nn.Flatten(0))], ids=str)
def test_no_result_of_a_module_lies_in_the_memory_of_its_input(module: Any) -> None:
    array = A.astype(np.float32)
    assert not shared(module(array), [array])


def test_asarray_alone_shares_memory(on_cpu: None) -> None:
    array = A.copy()
    assert shared(pb.asarray(array), [array])
    assert not shared(pb.tensor(array), [array])


def copies(run: Callable[[], Any]) -> dict[str, int]:
    """Returns the number of launches of the kernel `copy`, by phase."""
    with pb.profile() as profile:
        run()
    return {phase: of.launches for row in profile.by("kernel") if row.name == "copy" for phase, of in row.phases.items()}


@pytest.mark.skipif(door.host_kernels is None or pb.ones(1).device != "cpu", reason="the kernel `copy` of the CPU is counted")
def test_an_array_is_copied_where_a_tape_listens_and_nowhere_else() -> None:
    w, array = pb.Parameter(W), A.copy()

    def recorded() -> None:
        with pb.GradientTape():
            pb.sum(w * array)

    def paused() -> None:
        with pb.GradientTape() as tape, tape.stop_recording():
            pb.sum(w * array)

    assert copies(lambda: pb.sum(w * array)) == {}
    assert copies(paused) == {}
    assert copies(recorded) == {"data": 1}


def test_memory_that_nobody_can_write_is_not_copied(on_cpu: None) -> None:
    memory = A.tobytes()
    fixed = np.frombuffer(memory).reshape(3, 3)
    assert np.shares_memory(pb.reshape(fixed, (9,)).array, fixed)
    own = A.copy()
    own.flags.writeable = False
    assert np.shares_memory(pb.reshape(own, (9,)).array, own)
    array = A.copy()
    window = array.view()
    window.flags.writeable = False  # The array that it views is still writeable.
    assert not np.shares_memory(pb.reshape(window, (9,)).array, array)
    changing = np.frombuffer(bytearray(memory)).reshape(3, 3)
    assert not np.shares_memory(pb.reshape(changing, (9,)).array, changing)


@pytest.mark.parametrize("steps", [None, 3])
def test_no_result_of_a_captured_function_lies_in_the_memory_of_its_arguments(steps: int | None) -> None:
    array = A.copy()
    f = pb.capture(lambda a: (a, pb.reshape(a, (-1,)), a + 1), steps=steps)
    for _ in range(3):
        result = f(array)
        assert not shared(result, [array])
        assert np.array_equal(result[0].numpy(), A)
    assert not shared(pb.capture(lambda x: pb.reshape(array, (9,)) if x is not None else x)(pb.ones(1)), [array])


def test_a_captured_function_takes_a_tensor_back_out_as_it_is() -> None:
    f, x = pb.capture(lambda a: (a, a * 2)), pb.ones(3)
    f(x)
    assert f(x)[0] is x


def test_a_captured_function_reads_an_array_at_each_replay(on_cpu: None) -> None:
    weight = pb.Parameter(W)

    @pb.capture
    def slope(a: Any) -> Any:
        with pb.GradientTape() as tape:
            y = pb.sum(weight * a * constant)
        return tape.gradient(y, weight)

    array, constant = A.copy(), np.ones((3, 3))
    for i in range(4):
        array[:], constant[:] = A * i, i + 1
        assert np.allclose(slope(array).numpy(), A * i * (i + 1), rtol=1e-12)


def test_a_captured_function_takes_arrays_of_other_libraries_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    f = pb.capture(lambda a: a * 2)
    for i in range(3):
        assert f(torch.full((3,), float(i))).tolist() == [2.0 * i] * 3


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_batch_that_a_loader_gave_out_does_not_change(shuffle: bool, on_cpu: None) -> None:
    array = np.arange(6.0)
    batches = iter(pb.data.Loader(array, 2, shuffle=shuffle))
    first = next(batches)
    before = first.numpy()
    array[:] = -1
    assert np.array_equal(first.numpy(), before)
    assert next(batches).numpy().tolist() == [-1, -1]
    rows = pb.arange(6.0)
    if not shuffle:
        assert np.shares_memory(next(iter(pb.data.Loader(rows, 2, shuffle=False))).array, rows.array)


def test_watch_refuses_an_array() -> None:
    with pytest.raises(pb.TapeError, match="ndarray"), pb.GradientTape() as tape:
        tape.watch(A)
