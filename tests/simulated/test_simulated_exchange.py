"""Memory shared with libraries that use other streams: pullback waits for data it reads, and keeps memory that others read.

The other library's stream works as late as CUDA allows, and so does pullback's stream in the tests that need it. A missing wait, or
memory that is reused too early, therefore gives wrong numbers every time.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import simulated
from other_library import LEGACY, Array, Both, ByDLPack, ByInterface, ByOldInterface, Library
from pullback.tensors import gpu, leases
from pullback.tensors.tensor import Tensor


def _why_not() -> str:
    if not simulated() or gpu.need().kernels is None:
        return "device cuda is not simulated: build with PULLBACK_CUDA=SIM"
    if os.environ.get("PULLBACK_CUDA_SYNC", "0") not in ("", "0"):
        return "every kernel is waited for (PULLBACK_CUDA_SYNC), so that no race can show"
    return ""


pytestmark = pytest.mark.skipif(bool(_why_not()), reason=_why_not())
VALUES = np.arange(1.0, 5001.0, dtype=np.float32).reshape(50, 100)


@pytest.fixture(autouse=True)
def on_cuda() -> Iterator[None]:
    with pb.use_device("cuda"):
        yield
    leases.settle(wait=True)


@pytest.fixture(params=["default stream", "a separate stream"])
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    found = Library(legacy=request.param == "default stream")
    yield found
    found.close()


@pytest.fixture
def late() -> Iterator[None]:
    """Makes pullback's stream late too."""
    kernels = gpu.need().kernels
    kernels.simulator.make_late(kernels.stream(0), True)
    yield
    kernels.simulator.make_late(kernels.stream(0), False)


def test_the_other_library_really_is_late(library: Library) -> None:
    array = library.array(VALUES, ByInterface)
    # without a wait the read comes too early
    assert np.isnan((Tensor(gpu.need().from_interface(array)) * 2).numpy()).all()
    np.testing.assert_array_equal(array.values(), VALUES)


@pytest.mark.parametrize("kind", [ByDLPack, ByInterface, Both], ids=lambda kind: kind.__name__)
def test_what_another_library_is_still_writing_is_waited_for(kind: type[Array], library: Library) -> None:
    t = pb.asarray(library.array(VALUES, kind))
    np.testing.assert_array_equal((t * 2).numpy(), VALUES * 2)


def test_an_interface_without_a_stream_means_the_default_stream() -> None:
    library = Library(legacy=True)
    np.testing.assert_array_equal((pb.asarray(library.array(VALUES, ByOldInterface)) + 1).numpy(), VALUES + 1)
    library.close()


@pytest.mark.parametrize("take", [pb.tensor, pb.asarray, lambda a: pb.asarray(a, dtype=pb.float64)], ids=["copy", "share", "cast"])
def test_copies_and_casts_are_ordered_with_both(take: Any, library: Library) -> None:
    t = take(library.array(VALUES, Both))
    np.testing.assert_array_equal(t.numpy(), VALUES)


def test_nothing_is_copied(library: Library) -> None:
    array = library.array(VALUES, Both)
    assert pb.asarray(array, copy=False).array.__array_interface__["data"][0] == array.pointer
    with pytest.raises(ValueError, match="copy=False"):
        pb.asarray(array, dtype=pb.float64, copy=False)


@pytest.mark.parametrize("kind", [ByDLPack, ByInterface], ids=lambda kind: kind.__name__)
def test_another_librarys_memory_is_kept_until_our_stream_has_passed(kind: type[Array], library: Library, late: None) -> None:
    array = library.array(VALUES, kind)
    t = pb.asarray(array)
    y = pb.exp(t / 5000)
    del t, array
    gc.collect()
    library.sim.synchronize(library.stream)  # from here on the library's pool does not wait for pullback's stream
    np.testing.assert_allclose(y.numpy(), np.exp(VALUES / 5000), rtol=1e-6)


@pytest.mark.parametrize("read", ["from_dlpack", "from_interface"])
def test_our_memory_is_kept_until_the_other_stream_has_passed(read: str, library: Library) -> None:
    t = pb.tensor(VALUES) * 3
    copy = getattr(library, read)(t)
    del t
    gc.collect()
    other = [pb.zeros((50, 100)) for _ in range(3)]  # these would reuse the memory
    np.testing.assert_array_equal(copy.values(), VALUES * 3)
    del other


def test_the_consumer_waits_for_what_we_have_launched(library: Library, late: None) -> None:
    t = pb.tensor(VALUES)
    copy = library.from_dlpack(pb.exp(t / 5000))
    np.testing.assert_allclose(copy.values(), np.exp(VALUES / 5000), rtol=1e-6)


def test_views_and_parameters_keep_their_memory_too(library: Library) -> None:
    p = pb.Parameter(VALUES)
    copies = [library.from_dlpack(pb.tensor(VALUES)[10:20]), library.from_dlpack(p), library.from_interface(pb.tensor(VALUES)[5:])]
    del p
    gc.collect()
    for copy, wanted in zip(copies, (VALUES[10:20], VALUES, VALUES[5:])):
        np.testing.assert_array_equal(copy.values(), wanted)


def test_memory_comes_back_once_the_other_stream_has_passed() -> None:
    library = Library(legacy=True)
    leases.settle(wait=True)
    before = pb.cuda.memory()["live"]
    t = pb.tensor(VALUES) * 3
    copy = library.from_dlpack(t)
    del t
    assert pb.cuda.memory()["live"] >= before + VALUES.nbytes  # the stream has not read t yet
    copy.values()
    assert pb.cuda.memory()["live"] == before
    assert leases.waiting_bytes(0) == 0
    library.close()


def test_memory_lent_to_an_unknown_stream_does_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(leases, "BUDGET", 3 * VALUES.nbytes)
    most, copies = 0, []
    for k in range(20):
        t = pb.tensor(VALUES) * k
        copies.append(library.from_dlpack(t))
        del t
        most = max(most, leases.waiting_bytes(0))
    assert 0 < most <= 5 * VALUES.nbytes
    for k, copy in enumerate(copies):
        np.testing.assert_array_equal(copy.values(), VALUES * k)
    library.close()


def test_memory_that_waits_is_used_before_the_device_is_full(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    t = pb.tensor(np.ones(4 << 20, np.float32)) * 2
    copy = library.from_dlpack(t)
    del t
    use = pb.cuda.memory()
    monkeypatch.setenv("CUDASIM_BYTES", str(use["total"] - use["free"] + (10 << 20)))
    big = pb.zeros(5 << 20)  # 20 MiB, which only fit if the lent memory is reused
    assert float(pb.sum(big)) == 0
    assert (copy.values() == 2).all()


def test_memory_that_went_through_several_hands_comes_back_at_once() -> None:
    class Forwards:
        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def __dlpack__(self, **options: Any) -> Any:
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

    leases.settle(wait=True)
    before = pb.cuda.memory()["live"]
    t = pb.tensor(VALUES)
    for _ in range(6):
        t = pb.from_dlpack(Forwards(t))
    np.testing.assert_array_equal(t.numpy(), VALUES)
    del t
    gc.collect()
    pb.cuda.trim()
    assert pb.cuda.memory()["live"] == before


def test_trim_gives_back_what_waits(library: Library) -> None:
    leases.settle(wait=True)
    copy = library.from_dlpack(pb.tensor(VALUES) * 2)
    assert leases.waiting_bytes(0) == VALUES.nbytes
    assert pb.cuda.trim() >= 0
    assert leases.waiting_bytes(0) == 0
    np.testing.assert_array_equal(copy.values(), VALUES * 2)


def test_our_own_arrays_are_not_wrapped() -> None:
    t = pb.tensor(VALUES)
    assert pb.asarray(t.array).array is t.array
    again = pb.asarray(pb.from_dlpack(t))
    assert pb.asarray(again.array).array is again.array  # returned memory already has a lease


def test_a_captured_function_takes_another_librarys_arrays(library: Library) -> None:
    f = pb.capture(lambda x: pb.sum(x * x, axis=1))
    for k in range(12):
        x = library.array(VALUES + k, Both)
        np.testing.assert_allclose(f(pb.asarray(x)).numpy(), ((VALUES + k).astype(np.float64) ** 2).sum(1), rtol=1e-6)


def test_empty_arrays_pass() -> None:
    library = Library(legacy=True)
    t = pb.zeros((0, 3))
    assert t.__dlpack__(stream=LEGACY) is not None
    library.close()
