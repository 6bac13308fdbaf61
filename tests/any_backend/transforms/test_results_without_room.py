"""Derivatives that no memory can hold are refused before they are computed piece by piece, which filled the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import pullback as pb
from pullback.transforms import room

N: Final = 1000
CASES: Final[dict[str, tuple[Callable[[pb.Tensor], Any], str]]] = {
    "jacobian": (lambda x: pb.jacobian(pb.sin)(x), r"jacobian: a result of 1,000 times 1,000 numbers.*pb\.vjp"),
    "jacobian, reverse": (lambda x: pb.jacobian(pb.sin, mode="reverse", chunk=1)(x), r"jacobian: .*A smaller chunk does not help"),
    "jacobian, forward": (lambda x: pb.jacobian(pb.sin, mode="forward")(x), r"jacobian: .*pb\.jvp from the right"),
    "jacobian of two": (lambda x: pb.jacobian(lambda x, y: [x + y, x], argnums=(0, 1))(x, x), r"2,000 times 2,000"),
    "hessian": (lambda x: pb.hessian(lambda x: pb.sum(x**3))(x), r"hessian: .*pb\.hvp\(f, x, v\) multiplies it by a vector"),
    "captured": (lambda x: pb.capture(pb.jacobian(pb.sin))(x), r"jacobian: a result"),
    "vmap": (lambda x: pb.vmap(pb.jacobian(pb.sin))(x[None]), r"jacobian: a result"),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the device a memory of 1 MiB."""
    monkeypatch.setattr(room, "memory_of", lambda device: 2**20)
    monkeypatch.setattr(room, "LEAST_BYTES", 0)


@pytest.mark.parametrize("name", CASES)
def test_a_matrix_that_no_memory_holds_is_refused(name: str, small: None) -> None:
    call, words = CASES[name]
    with pytest.raises(pb.OutOfMemoryError, match=words):
        call(pb.ones(N))


def test_the_memory_of_this_machine_holds_no_matrix_of_a_million_million_numbers() -> None:
    with pytest.raises(pb.OutOfMemoryError, match=r"jacobian: a result of 1,000,000 times 1,000,000 numbers.* 14\.6 TiB"):
        pb.jacobian(lambda x: 2 * x)(pb.ones(10**6, dtype="float64"))


def test_methods_of_tapes_refuse_it_too(small: None) -> None:
    x = pb.ones((2, N // 2))
    with pb.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = pb.sin(x)
    with pytest.raises(pb.OutOfMemoryError, match="jacobian: a result of 1,000 times 1,000"):
        tape.jacobian(y, x)
    with pytest.raises(pb.OutOfMemoryError, match="batch_jacobian: a result of 500 times 1,000"):
        tape.batch_jacobian(y, x)


def test_gradients_of_examples_that_no_memory_holds_are_refused(small: None) -> None:
    w, x = pb.ones(N), pb.ones(N)
    with pytest.raises(pb.OutOfMemoryError, match=r"per_example_grad: the gradients of 1,000 examples.*pb\.weighted_grad"):
        pb.per_example_grad(lambda w, x: pb.sum(w * x))(w, x)


def test_a_gradient_of_many_numbers_is_no_large_matrix(small: None) -> None:
    assert pb.jacobian(lambda x: pb.sum(x * x))(pb.ones(N)).shape == (N,)
    assert pb.jacobian(lambda s: s * pb.ones(N))(pb.tensor(2.0)).shape == (N,)
    assert pb.jacobian(pb.sin)(pb.zeros(0)).shape == (0, 0)


def test_a_chunk_that_needs_more_than_the_memory_is_refused(small: None) -> None:
    x = pb.ones(300)
    for mode in ("reverse", "forward"):
        f = lambda x: pb.sin(pb.sum(pb.broadcast_to(x, (1000, 300)) ** 2, axis=0))
        if mode == "reverse":
            with pytest.raises(pb.OutOfMemoryError, match=r'chunk=300 would take .*Give a smaller chunk, or chunk="auto"'):
                pb.jacobian(f, mode=mode, chunk=300)(x)
        assert pb.jacobian(lambda x: 2 * x, mode=mode, chunk=10)(x).shape == (300, 300)
    with pytest.raises(pb.OutOfMemoryError, match=r"a result of 600 times 600 numbers, with a copy that joins"):
        pb.jacobian(lambda x: 2 * x, chunk=10)(pb.ones(600))


def test_the_memory_of_the_host_is_that_of_the_machine_or_less() -> None:
    assert 2**28 < room.memory_of("cpu") < 2**50


def test_matrices_that_fit_are_as_before() -> None:
    x = np.random.default_rng(0).standard_normal(50)
    for mode in ("forward", "reverse"):
        np.testing.assert_allclose(pb.jacobian(pb.sin, mode=mode, chunk=7)(pb.tensor(x)).numpy(), np.diag(np.cos(x)), rtol=1e-12)
