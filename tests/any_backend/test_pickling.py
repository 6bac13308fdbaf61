"""pickle and processes: a tensor comes back with the same bits, and loading calls nothing but our constructor."""

from __future__ import annotations

import multiprocessing
import pickle
import pickletools

import numpy as np
import pytest

import pullback as pb
from conftest import host


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_a_tensor_that_was_pickled_has_the_same_bits(dtype: str, protocol: int) -> None:
    for value in (np.arange(6).reshape(2, 3), np.array(1.0), np.zeros((0, 2))):
        t = pb.tensor(value).astype(dtype)
        found = pickle.loads(pickle.dumps(t, protocol))
        assert (type(found), found.shape, found.dtype) == (pb.Tensor, t.shape, t.dtype)
        assert found.numpy().tobytes() == t.numpy().tobytes()
    transposed = pb.tensor(np.arange(6.0).reshape(2, 3)).T
    np.testing.assert_array_equal(host(pickle.loads(pickle.dumps(transposed))), transposed.numpy())


def test_a_parameter_that_was_pickled_keeps_what_it_is() -> None:
    p = pb.Parameter([1.0, 2.0], name="w", trainable=False)
    found = pickle.loads(pickle.dumps(p))
    assert (type(found), found.name, found.trainable, found.version) == (pb.Parameter, "w", False, 0)
    found.assign([3.0, 4.0])
    np.testing.assert_array_equal(host(p), [1.0, 2.0])
    buffer = pickle.loads(pickle.dumps(pb.nn.module.Buffer([1.0], "b")))
    assert (type(buffer).__name__, buffer.name) == ("Buffer", "b")
    np.testing.assert_array_equal(host(pickle.loads(pickle.dumps(p[1:]))), [2.0])
    assert pickle.loads(pickle.dumps({"net": pb.nn.Linear(2, 1)}))["net"](pb.ones((1, 2))).shape == (1, 1)


def test_unpickling_calls_nothing_but_our_constructor() -> None:
    called = {(word[1] if isinstance(word, tuple) else word) for op, word, _ in pickletools.genops(pickle.dumps(pb.ones(3), 2))
              if op.name == "GLOBAL"}  # fmt: skip
    assert called == {"pullback _rebuilt", "pullback Tensor", "_codecs encode"}


def test_a_queue_between_processes_takes_tensors() -> None:
    queue = multiprocessing.get_context("spawn").Queue()
    queue.put(pb.tensor([1.0, 2.0]))
    np.testing.assert_array_equal(host(queue.get(timeout=60)), [1.0, 2.0])
