"""Captured functions as CUDA graphs: new addresses, a driver that rejects a graph, and the work before the first replay."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import environment, simulated
from pullback import nn, optim
from pullback.tensors import gpu

pytestmark = pytest.mark.skipif(
    not pb.cuda.is_available() or gpu.need().kernels is None, reason=f"no CUDA kernels: {pb.cuda.why_not() or 'the reference runs'}"
)
only_simulated = pytest.mark.skipif(not simulated(), reason="a real driver does not fail on demand")


@pytest.fixture(autouse=True)
def on_cuda() -> Iterator[None]:
    with pb.use_device("cuda"):
        yield


def state(captured: Any) -> tuple[int, int, int, str | None]:
    """Returns (number of graphs, nodes of the last graph, kernels among them, why launches run one by one or None)."""
    (replays,) = captured._replays.values()
    return replays[0].state()


def training() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    model = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3))
    for p in model.parameters():
        p.assign(rng.standard_normal(p.shape).astype(np.float32))
    opt = optim.Adam(model.parameters(), lr=0.01)

    def step(x: Any, y: Any) -> Any:
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(model(x), y)
        opt.step(tape.gradient(loss, opt.parameters))
        return loss, model(x)

    return step, model


def batches(count: int, lead: tuple[int, ...] = ()) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(1)
    return [
        (rng.standard_normal((*lead, 6, 7)).astype(np.float32), rng.integers(0, 3, (*lead, 6)))
        for _ in range(count)
    ]


def test_arguments_and_results_at_new_addresses_need_few_graphs() -> None:
    eager, _ = training()
    wanted = [[t.numpy() for t in eager(pb.tensor(x), pb.tensor(y))] for x, y in batches(40)]
    step, _ = training()
    captured = pb.capture(step)
    kept = [(pb.tensor(x), pb.tensor(y)) for x, y in batches(40)]  # all are alive, at forty addresses
    results = [captured(x, y) for x, y in kept]  # the results stay alive too
    for (loss, logits), (loss_wanted, logits_wanted) in zip(results, wanted):
        assert loss.numpy().tobytes() == loss_wanted.tobytes()
        assert logits.numpy().tobytes() == logits_wanted.tobytes()
    graphs, nodes, kernels, why = state(captured)
    assert why is None
    assert graphs <= 5
    assert nodes == kernels == captured.stats().kernels_per_replay + 2  # two more kernels copy the arguments and the results


def test_several_steps_in_one_call_at_new_addresses() -> None:
    eager, model = training()
    wanted = [[t.numpy() for t in eager(pb.tensor(x[k]), pb.tensor(y[k]))] for x, y in batches(9, (4,)) for k in range(4)]
    weights = [p.numpy() for p in model.parameters()]
    step, model = training()
    captured = pb.capture(step, steps=4)
    kept = [(pb.tensor(x), pb.tensor(y)) for x, y in batches(9, (4,))]
    results = [captured(x, y) for x, y in kept]
    for i, (loss, logits) in enumerate(results):
        for k in range(4):
            assert loss[k].numpy().tobytes() == wanted[4 * i + k][0].tobytes()
            assert logits[k].numpy().tobytes() == wanted[4 * i + k][1].tobytes()
    for p, wanted_p in zip(model.parameters(), weights):
        assert p.numpy().tobytes() == wanted_p.tobytes()


def test_steps_may_lie_apart() -> None:
    """The leading axis of an argument may have a different stride in each call."""
    captured = pb.capture(lambda x: x * 2 + 1, steps=3)
    values = np.random.default_rng(4).standard_normal((12, 6, 5)).astype(np.float32)
    t = pb.tensor(values)
    for k in range(8):
        step = 1 + k % 3
        got = captured(t[k % 2 : k % 2 + 3 * step : step])
        np.testing.assert_array_equal(got.numpy(), values[k % 2 : k % 2 + 3 * step : step] * 2 + 1)


@pytest.mark.parametrize(("length", "steps", "passes_of_graph"), [(1000, 16, 5), (10_000, 2, 1)])
def test_a_graph_of_several_steps_has_a_limited_number_of_nodes(length: int, steps: int, passes_of_graph: int) -> None:
    """A recurrent layer is one step of the plan, and two nodes for each step of time. A single pass is one graph in any case.

    The first call records one step and replays the others. Fifteen steps are three launches of graphs
    of five, of which one has fixed addresses and serves once.
    """
    layer = nn.GRU(2, 3)
    captured = pb.capture(lambda x: layer(x)[0], steps=steps)
    x = pb.tensor(np.random.default_rng(0).standard_normal((steps, length, 1, 2)).astype(np.float32))
    y = captured(x)
    graphs, nodes, _, why = state(captured)
    assert why is None
    assert graphs == (2 if passes_of_graph > 1 else 1)
    assert 2 * length * passes_of_graph < nodes < (2 * length + 10) * passes_of_graph
    for k in (1, steps - 1):
        assert y[k].numpy().tobytes() == layer(x[k])[0].numpy().tobytes()


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (1000, 31), (0, 4)], ids=str)
def test_copies_into_a_graph_are_whole(dtype: str, shape: tuple[int, ...]) -> None:
    f = pb.capture(lambda x: (pb.astype(x, "float64") + 1, x.reshape(-1)))
    rng = np.random.default_rng(2)
    arrays = [rng.integers(0, 2, shape).astype(dtype) for _ in range(9)]
    kept = [pb.tensor(a) for a in arrays]
    for a, (plus, flat) in zip(arrays, [f(x) for x in kept]):
        np.testing.assert_array_equal(plus.numpy(), a.astype(np.float64) + 1)
        np.testing.assert_array_equal(flat.numpy(), a.reshape(-1))


def test_rows_of_one_array_are_given_where_they_lie() -> None:
    """The addresses have any alignment, and there are more arguments than one copying kernel takes."""
    f = pb.capture(lambda *xs: sum(xs[1:], xs[0]) * 2)
    values = np.random.default_rng(3).standard_normal((40, 20, 3)).astype(np.float32)
    t = pb.tensor(values)
    for k in range(8):
        got = f(*[t[i + k] for i in range(19)])
        np.testing.assert_allclose(got.numpy(), values[k : k + 19].sum(0) * 2, rtol=1e-4, atol=1e-5)


@only_simulated
@pytest.mark.parametrize("fail", [
    "cudaStreamBeginCapture=900", "cudaStreamEndCapture=901", "cudaGraphInstantiate=801", "cudaMalloc=2",
    "cudaGraphExecKernelNodeSetParams=1",
])
def test_without_a_graph_kernels_are_launched_one_by_one(fail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    eager, _ = training()
    wanted = [[t.numpy() for t in eager(pb.tensor(x), pb.tensor(y))] for x, y in batches(9)]
    step, _ = training()
    captured = pb.capture(step)
    kept = [(pb.tensor(x), pb.tensor(y)) for x, y in batches(9)]
    results = [captured(*kept[0])]
    monkeypatch.setenv("CUDASIM_FAIL", fail)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        results += [captured(x, y) for x, y in kept[1:]]
    monkeypatch.delenv("CUDASIM_FAIL")
    for got, right in zip(results, wanted):
        assert [t.numpy().tobytes() for t in got] == [a.tobytes() for a in right]
    if fail.startswith("cudaMalloc") and not seen:
        return  # the graph did not have to allocate memory
    assert len(seen) == 1
    assert seen[0].category is RuntimeWarning
    assert seen[0].filename == __file__
    assert "launched one by one" in str(seen[0].message)
    *_, why = state(captured)
    assert why is not None
    assert "kernel went wrong" not in why  # no kernel failed
    assert why in str(captured.explain())
    assert "one by one" in str(captured.explain())


@only_simulated
def test_single_launches_are_counted_as_a_graph_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def counts() -> Any:
        step, _ = training()
        captured = pb.capture(step)
        x, y = (pb.tensor(a) for a in batches(1)[0])
        captured(x, y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pb.profile() as prof:
                for _ in range(3):
                    captured(x, y)
        parts = (prof.forward, prof.backward, prof.optimizer)
        return [(p.flops, p.executed_flops, p.special_ops, p.bytes_read, p.bytes_written, p.launches) for p in parts]

    wanted = counts()
    monkeypatch.setenv("CUDASIM_FAIL", "cudaGraphInstantiate=801")
    assert counts() == wanted


def in_a_process(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    head = "import numpy as np, pullback as pb\n"
    return subprocess.run(
        [sys.executable, "-c", head + code], env=environment(PULLBACK_DEVICE="cuda", **variables), capture_output=True, text=True,
        timeout=120,
    )


def test_graphs_can_be_turned_off() -> None:
    code = """
f = pb.capture(lambda x: pb.sum(x * x))
print([float(f(pb.tensor([1.0, k]))) for k in range(3)])
print(f.explain())
"""
    done = in_a_process(code, PULLBACK_CUDA_GRAPHS="0")
    assert done.stdout.startswith("[1.0, 2.0, 5.0]"), done.stderr
    assert "launched one by one: PULLBACK_CUDA_GRAPHS=0" in done.stdout
    assert done.stderr == ""


@only_simulated
def test_counters_are_cleared_before_a_capture_can_be_their_first_use() -> None:
    code = """
from pullback.tensors import gpu
x = pb.tensor(np.ones(300_000, np.float32))
nodes = gpu.need().kernels.simulator.capture(lambda: pb.sum(x))  # a graph that never runs
print(nodes > 0, float(pb.sum(x)))
"""
    done = in_a_process(code, PULLBACK_CUDA_SYNC="0")
    assert done.stdout.strip() == "True 300000.0", done.stdout + done.stderr


@only_simulated
def test_a_bad_index_is_told_again_after_it_was_raised() -> None:
    code = """
t = pb.tensor(np.arange(5.0))
for index in (9, 7):
    y = pb.take(t, pb.tensor([1, index]), axis=0)
    try:
        y.numpy()
    except IndexError as error:
        print(error)
print(pb.take(t, pb.tensor([1, 2]), axis=0).numpy().tolist())
"""
    done = in_a_process(code, PULLBACK_CUDA_SYNC="0")
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stdout + done.stderr
    assert "index 9 is out of range" in lines[0]
    assert "index 7 is out of range" in lines[1]
    assert lines[2] == "[1.0, 2.0]"


def test_a_forked_child_is_told_what_to_do() -> None:
    code = """
import os
x = pb.tensor([1.0, 2.0])
print(float(pb.sum(x)), flush=True)
if (child := os.fork()) == 0:
    for work in (lambda: pb.sum(x), lambda: pb.tensor([1.0]), x.numpy, lambda: pb.zeros(3), pb.cuda.synchronize):
        try:
            work()
            print("it worked", flush=True)
        except pb.DeviceError as error:
            print("spawn" in str(error), flush=True)
    with pb.use_device("cpu"), pb.profile() as prof:
        print(float(pb.sum(pb.ones(3))), flush=True)
    print(prof.total.adds, prof.total.seconds > 0, flush=True)
    del x
    os._exit(0)
os.waitpid(child, 0)
print(float(pb.sum(x)))
"""
    done = in_a_process(code)
    assert done.stdout.split() == ["3.0", *["True"] * 5, "3.0", "2", "True", "3.0"], done.stdout + done.stderr


@only_simulated
def test_only_a_kernel_that_went_wrong_is_blamed() -> None:
    code = """
import os
x = pb.tensor([1.0, 2.0])
f = pb.capture(lambda x: x * 2)
f(x)
for error in (700, 801):
    os.environ["CUDASIM_FAIL"] = f"cudaGraphLaunch={error}"
    try:
        f(x)
    except pb.DeviceError as error:
        print("A kernel went wrong" in str(error))
"""
    assert in_a_process(code).stdout.split() == ["True", "False"]


@only_simulated
def test_the_capture_of_another_library_is_not_disturbed() -> None:
    """PyTorch captures in a mode that forbids other threads to allocate, unless these use relaxed mode."""
    begun, done = threading.Event(), threading.Event()
    nodes = []

    def other_library() -> None:
        def work() -> None:
            begun.set()
            assert done.wait(60)

        nodes.append(gpu.need().kernels.simulator.capture(work, 0))  # 0: cudaStreamCaptureModeGlobal

    x = pb.tensor(np.arange(1000.0))
    thread = threading.Thread(target=other_library)
    thread.start()
    assert begun.wait(60)
    total = pb.sum(x * 2 + pb.tensor(np.ones(1000)))
    f = pb.capture(lambda x: pb.sum(pb.exp(x / 1000)))
    values = [float(f(x)) for _ in range(3)]
    done.set()
    thread.join()
    assert nodes == [0]  # the other library's capture ended without an error
    assert float(total) == 1_000_000
    np.testing.assert_allclose(values, np.exp(np.arange(1000.0) / 1000).sum())


# ---- memory


def test_memory_says_who_has_it() -> None:
    use = pb.cuda.memory()
    assert set(use) == {"live", "cached", "peak", "free", "total", "by"}
    assert set(use["by"]) == {"tensors", "recordings", "graphs", "scratch", "CuPy", "others"}
    before = use["by"]
    t = pb.zeros((1000, 1000)) + 1
    f = pb.capture(lambda x: pb.sum(pb.exp(x) @ x))
    f(t), f(t)
    use = pb.cuda.memory()
    assert use["by"]["tensors"] >= before["tensors"] + 4_000_000
    assert use["by"]["recordings"] >= before["recordings"] + 4_000_000
    assert use["live"] == sum(use["by"][name] for name in ("tensors", "recordings", "graphs", "scratch", "CuPy"))
    assert use["peak"] >= use["live"] - use["by"]["CuPy"]
    f.clear()
    assert pb.cuda.memory()["by"]["recordings"] <= use["by"]["recordings"] - 4_000_000


def test_the_peak_can_be_reset() -> None:
    t = pb.zeros((1 << 20,)) + 1
    del t
    assert pb.cuda.memory(reset_peak=True)["peak"] >= 8 << 20
    use = pb.cuda.memory()
    assert use["peak"] == use["live"] - use["by"]["CuPy"]
    pb.zeros((1 << 18,))
    assert pb.cuda.memory()["peak"] >= use["peak"] + (1 << 20)


@only_simulated
def test_the_cache_has_a_cap_and_gives_the_oldest_sizes_back_first() -> None:
    code = """
def cached(): return pb.cuda.memory()["cached"]
for k in range(1, 200):  # ever new sizes
    t = pb.zeros((k * 5000,))
    del t
    assert cached() <= 10 << 20, cached()
assert cached() > 3 << 20
live = pb.cuda.memory()["live"]
t = pb.zeros((199 * 5000,)) + 1  # the newest size is still there
print(pb.cuda.trim() > 0, cached(), float(pb.sum(t)), pb.cuda.memory()["live"] > live)
"""
    done = in_a_process(code, PULLBACK_CUDA_CACHE_BYTES=str(10 << 20))
    assert done.stdout.split() == ["True", "0", "995000.0", "True"], done.stdout + done.stderr


@only_simulated
def test_training_is_the_same_with_a_cache_that_hands_memory_out_again() -> None:
    code = """
import hashlib
from pullback import nn, optim
rng = np.random.default_rng(0)
pb.random.seed(0)
model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4))
opt = optim.Adam(model.parameters(), lr=0.01)
def step(x, y):
    with pb.GradientTape() as tape:
        loss = nn.cross_entropy(model(x), y)
    opt.step(tape.gradient(loss, opt.parameters))
    return loss
captured = pb.capture(step)
for k in range(12):
    x, y = pb.tensor(rng.standard_normal((16, 20)).astype(np.float32)), pb.tensor(rng.integers(0, 4, 16))
    (step if k < 5 else captured)(x, y)
print(hashlib.sha256(b"".join(p.numpy().tobytes() for p in model.parameters())).hexdigest())
"""
    runs = [in_a_process(code, PULLBACK_CUDA_CACHE_BYTES=size, PULLBACK_CUDA_SYNC="0", CUDASIM_SEED=seed)
            for size, seed in (("0", "0"), ("1000000000", "0"), ("1000000000", "3"))]
    assert len({run.stdout for run in runs}) == 1, [run.stderr for run in runs]
    assert len(runs[0].stdout.strip()) == 64, runs[0].stderr
