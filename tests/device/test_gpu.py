"""Device "cuda", a GPU or the simulator: memory, errors that are found late, and exchange with other libraries."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import environment, simulated
from pullback import nn, optim
from pullback.tensors import gpu

pytestmark = pytest.mark.skipif(not pb.cuda.is_available(), reason=f"no device cuda: {pb.cuda.why_not()}")


@pytest.fixture(autouse=True)
def on_cuda() -> Iterator[None]:
    with pb.use_device("cuda"):
        yield


def in_a_process(code: str, **variables: str) -> Any:
    return subprocess.run(
        [sys.executable, "-c", "import numpy as np, pullback as pb\n" + code], env=environment(PULLBACK_DEVICE="cuda", **variables),
        capture_output=True, text=True,
    )


def test_tensors_come_back_as_they_went() -> None:
    for dtype in ("bool", "int8", "uint64", "float16", "float32", "float64"):
        a = np.arange(12).reshape(3, 4).astype(dtype)
        t = pb.tensor(a)
        assert t.device == "cuda"
        assert t.numpy().tobytes() == a.tobytes()
        assert t.T.numpy().tolist() == a.T.tolist()
        assert t.to("cpu").device == "cpu"


@pytest.mark.parametrize("size", [10, 1000, 5_000_000])
def test_an_array_may_change_once_it_was_uploaded(size: int) -> None:
    a = np.arange(size, dtype=np.float32)
    t = pb.tensor(a)
    a[:] = -1
    np.testing.assert_array_equal(t.numpy(), np.arange(size, dtype=np.float32))
    b = np.arange(2 * size, dtype=np.float64)[::2]  # the uploaded copy is freed at once
    np.testing.assert_array_equal(pb.tensor(b).numpy(), b)
    c = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(pb.tensor(c).numpy(), c)


def test_two_devices_in_one_op_are_named() -> None:
    with pytest.raises(pb.DeviceError, match='"cpu" and on "cuda"'):
        pb.tensor([1.0]) + pb.tensor([1.0], device="cpu")


def test_a_device_that_there_is_not() -> None:
    with pytest.raises(pb.DeviceError, match="GPU"):
        pb.tensor([1.0], device="cuda:15")
    for name in ("cuda:x", "cuda:", "cuda:²", "cuda:-1"):
        with pytest.raises(pb.DeviceError, match=name):
            pb.tensor([1.0], device=name)
    for call in (pb.cuda.memory, pb.cuda.trim, pb.cuda.synchronize):
        with pytest.raises(pb.DeviceError, match='"cpu" is no GPU'):
            call("cpu")


def test_more_bytes_than_there_are_addresses() -> None:
    for shape in ((1 << 62, 4), (1 << 40, 1 << 40)):
        with pytest.raises(pb.OutOfMemoryError):
            pb.zeros(shape)


@pytest.mark.skipif(not simulated(), reason="the driver of a real GPU is what it is")
@pytest.mark.parametrize(("version", "words"), [
    ("12080", "the NVIDIA driver is too old: it knows CUDA 12.8, and 13.0 or later is needed; install a newer driver"),
    ("0", "no NVIDIA driver was found"),
])
def test_a_driver_that_does_not_do(version: str, words: str) -> None:
    code = "print(pb.cuda.is_available(), pb.cuda.why_not())\nassert pb.exp(pb.tensor(0.0)).item() == 1\npb.zeros(2, device='cuda')"
    done = subprocess.run(
        [sys.executable, "-c", "import pullback as pb\n" + code], env=environment(PULLBACK_DEVICE="cpu", CUDASIM_DRIVER=version),
        capture_output=True, text=True,
    )
    assert done.stdout.strip() == f"False {words}"
    assert re.search(f"DeviceError: .*{words}", done.stderr), done.stderr


def test_too_much_memory_is_told_with_figures_and_loses_nothing() -> None:
    t = pb.tensor([1.0, 2.0])
    with pytest.raises(pb.OutOfMemoryError) as caught:
        pb.exp(pb.broadcast_to(t, (2**40, 2)))
    for words in (r"8388608\.0 MiB were asked for", r"MiB are in use", r"MiB of \d+\.\d MiB are free", "stay valid"):
        assert re.search(words, str(caught.value)), caught.value
    assert pb.exp(t).numpy() == pytest.approx(np.exp([1.0, 2.0]))


def test_memory_is_counted() -> None:
    before = pb.cuda.memory()["live"]
    t = pb.zeros((1000, 1000)) + 1
    assert pb.cuda.memory()["live"] >= before + 4_000_000
    del t
    assert pb.cuda.memory()["live"] <= before + 4_000_000


LATE = "t = pb.tensor(np.arange(5.0))\ny = pb.take(t, pb.tensor([1, 9]), axis=0)\n"


def test_a_bad_index_is_raised_where_the_result_is_read() -> None:
    done = in_a_process(LATE + "print('launched')\ny.numpy()", PULLBACK_CUDA_SYNC="0")
    assert "launched" in done.stdout
    assert "IndexError: take: index 9 is out of range for an axis of length 5" in done.stderr
    assert "PULLBACK_CUDA_SYNC=1" in done.stderr


def test_a_bad_index_is_raised_at_once_when_every_kernel_is_waited_for() -> None:
    done = in_a_process(LATE + "print('launched')", PULLBACK_CUDA_SYNC="1")
    assert "launched" not in done.stdout
    assert "IndexError" in done.stderr


def test_after_a_bad_index_the_device_works_on() -> None:
    code = LATE + "try:\n    pb.cuda.synchronize()\nexcept IndexError:\n    print(pb.sum(t).item())"
    done = in_a_process(code, PULLBACK_CUDA_SYNC="0")
    assert done.stdout.strip() == "10.0", done.stderr


def test_a_training_step_never_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = gpu.need().kernels
    if kernels is None:
        pytest.skip(f"no CUDA kernels: {gpu.need().why_no_kernels}")
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    opt = optim.Adam(model.parameters(), lr=0.1, clip_norm=1.0)
    rng = np.random.default_rng(0)
    x, y = pb.tensor(rng.standard_normal((5, 6)).astype(np.float32)), pb.tensor(rng.integers(0, 3, 5))
    opt.minimize(lambda: nn.functional.cross_entropy(model(x), y))
    waits: list[int] = []
    count_waits(monkeypatch, waits)
    loss = opt.minimize(lambda: nn.functional.cross_entropy(model(x), y))
    assert waits == []
    assert np.isfinite(loss.item())


def count_waits(monkeypatch: pytest.MonkeyPatch, waits: list[int]) -> None:
    """Adds to `waits` whenever Python waits for the device: for copies to the host, and if CuPy or NumPy replaces a kernel."""
    from pullback.backends import reference
    from pullback.tensors import devices

    waiting: list[tuple[Any, str]] = [(devices, "to_host"), (reference, "run")]
    if simulated():
        from pullback.tensors import simulated as device

        waiting.append((device, "finish"))
    for module, name in waiting:
        original = getattr(module, name)

        def noted(*args: Any, original: Any = original) -> Any:
            waits.append(1)
            return original(*args)

        monkeypatch.setattr(module, name, noted)


def test_the_stream_orders_other_work_with_ours() -> None:
    xp = gpu.need().xp
    with pb.cuda.stream:
        a = xp.arange(6, dtype=xp.float32)
        t = pb.asarray(a) * 2
        b = t.array + 1
    pb.cuda.synchronize()
    assert pb.asarray(b).numpy().tolist() == [1, 3, 5, 7, 9, 11]


def test_arrays_of_the_device_are_shared() -> None:
    xp = gpu.need().xp
    a = xp.arange(6, dtype=xp.float32)
    t = pb.asarray(a)
    pointer = t.__cuda_array_interface__["data"][0]
    assert pointer == a.__cuda_array_interface__["data"][0]
    assert t.__dlpack_device__()[0] == 2


@pytest.mark.skipif(not simulated(), reason="a device without memory cannot be had from a real one")
def test_memory_kept_for_later_is_given_back_before_giving_up() -> None:
    pb.zeros((1 << 20,))
    gpu.need().kernels.trim()
    assert pb.cuda.memory()["cached"] == 0


def test_seeds_give_the_numbers_of_the_cpu() -> None:
    for draw in (lambda g: g.uniform((7, 3)), lambda g: g.normal((1001,)), lambda g: g.permutation(100)):
        here, there = (draw(pb.random.Generator(11, device=device)).numpy() for device in ("cuda", "cpu"))
        assert here.tobytes() == there.tobytes()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_tensor_that_a_forked_child_unpickles_is_on_its_cpu() -> None:
    program = """
import os, pickle, warnings
data = pickle.dumps([pb.tensor([1.0, 2.0]), pb.Parameter([3.0])])
if os.fork() == 0:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        x, p = pickle.loads(data)
    print(x.device, (x * 2).tolist(), type(p).__name__, p.device, len(warned), "forked" in str(warned[0].message), flush=True)
    os._exit(0)
os.wait()
"""
    assert in_a_process(program).stdout.split("\n")[0] == "cpu [2.0, 4.0] Parameter cpu 2 True"
