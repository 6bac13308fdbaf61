"""Memory shared with PyTorch on a GPU: each library waits for the other's results, and memory stays while it is read."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import simulated

if not pb.cuda.is_available() or simulated():
    pytest.skip(f"no GPU: {pb.cuda.why_not() or 'the device is simulated'}", allow_module_level=True)
torch: Any = pytest.importorskip("torch", reason="PyTorch, the other library, is not installed")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no GPU", allow_module_level=True)

SIZE = 20_000_000  # filling this many elements takes longer than launching the kernel that reads them


@pytest.fixture(autouse=True)
def on_cuda() -> Iterator[None]:
    with pb.use_device("cuda"):
        yield


@pytest.fixture(params=["default stream", "side stream"])
def stream(request: pytest.FixtureRequest) -> Iterator[None]:
    with torch.cuda.stream(torch.cuda.Stream() if request.param == "side stream" else torch.cuda.default_stream()):
        yield


def slowly(value: float) -> Any:
    """Returns a tensor of that value which the GPU is still computing."""
    x = torch.zeros(SIZE, device="cuda")
    for _ in range(20):
        x = x + value / 20
    return x


def test_what_torch_is_still_computing_is_waited_for(stream: None) -> None:
    for value in (20.0, 40.0, 60.0):
        assert float(pb.max(pb.abs(pb.asarray(slowly(value)) - value))) < 1e-3


def test_torch_waits_for_what_is_still_being_computed(stream: None) -> None:
    for value in (20.0, 40.0):
        t = pb.zeros(SIZE)
        for _ in range(20):
            t = t + value / 20
        assert float((torch.from_dlpack(t) - value).abs().max()) < 1e-3


def test_memory_of_torch_stays_while_it_is_read(stream: None) -> None:
    for value in (20.0, 40.0):
        t = pb.asarray(slowly(value))
        y = t + 1
        del t
        gc.collect()
        torch.full((SIZE,), -1.0, device="cuda")  # torch's pool would hand out the same memory
        assert float(pb.max(pb.abs(y - (value + 1)))) < 1e-3


def test_our_memory_stays_while_torch_reads_it(stream: None) -> None:
    for value in (20.0, 40.0):
        t = pb.zeros(SIZE) + value
        slowly(1.0)  # delays torch's stream, so that it reads t late
        y = torch.from_dlpack(t) + 1
        del t
        gc.collect()
        others = [pb.zeros(SIZE) - 1 for _ in range(3)]
        assert float((y - (value + 1)).abs().max()) < 1e-3
        del others


@pytest.mark.parametrize("name", ["bool", "uint8", "int64", "float16", "bfloat16", "float32", "float64"])
def test_dtypes_go_both_ways(name: str) -> None:
    x = torch.arange(12, device="cuda").reshape(3, 4).to(getattr(torch, name))
    t = pb.asarray(x)
    assert str(t.dtype) == name
    wanted = x.to(torch.float64).cpu().numpy()
    np.testing.assert_array_equal(t.numpy().astype(np.float64), wanted)
    back = torch.from_dlpack(pb.asarray(t.numpy(), device="cuda"))
    assert back.dtype == x.dtype
    np.testing.assert_array_equal(back.to(torch.float64).cpu().numpy(), wanted)


def test_transposed_and_empty_tensors() -> None:
    x = torch.arange(12.0, device="cuda").reshape(3, 4).T
    np.testing.assert_array_equal(pb.asarray(x).numpy(), x.cpu().numpy())
    assert pb.asarray(torch.zeros((0, 3), device="cuda")).shape == (0, 3)
    assert tuple(torch.from_dlpack(pb.zeros((0, 3))).shape) == (0, 3)
