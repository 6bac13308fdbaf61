"""Integers that no dtype holds, and options that must not be negative."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb

F = pb.nn.functional
HUGE = 10**400
X = pb.ones((2, 3, 4))


@pytest.mark.parametrize(("call", "words"), [
    (lambda: pb.tensor([10**30]), r"tensor: obj: 10{30} does not fit int64 .* pass dtype=pb.float64"),
    (lambda: pb.tensor([2**63, -1]), r"tensor: obj: 9223372036854775808 does not fit int64 .* pass dtype=pb.float64"),
    (lambda: pb.tensor([[10**30]], dtype="int8"), "does not fit int8"),
    (lambda: pb.tensor(10**5000), "tensor: obj: an integer of 5001 digits does not fit float64 .* No dtype holds it"),
    (lambda: pb.tensor([HUGE, math.nan]), "tensor: obj: an integer of 401 digits does not fit float64"),
    (lambda: pb.ones(2) * [HUGE, 1], "multiply: b: an integer of 401 digits"),
    (lambda: pb.ones(2) + HUGE, "add: an integer of 401 digits"),
    (lambda: pb.maximum(HUGE, pb.ones(2)), "maximum: an integer of 401 digits"),
    (lambda: pb.clip(pb.ones(2), 0, HUGE), "clip: an integer of 401 digits"),
    (lambda: pb.where(True, pb.ones(2), HUGE), "where: an integer of 401 digits"),
    (lambda: pb.full(2, HUGE), "No dtype holds it"),
    (lambda: pb.linspace(0, HUGE, 3), "linspace: an integer of 401 digits"),
    (lambda: pb.ones(2).at[0].set(HUGE), r"at\[...\].set: an integer of 401 digits"),
    (lambda: pb.random.normal((2,), HUGE), "normal: mean=an integer of 401 digits is not a number"),
    (lambda: F.layer_norm(X, eps=HUGE), "layer_norm: eps=an integer of 401 digits is not a real number"),
])
def test_integers_that_no_dtype_holds_are_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(pb.DTypeError, match=words):
        call()


def test_large_integers_that_a_dtype_holds() -> None:
    cases: list[tuple[list[Any], Any]] = [([2**63, 1], pb.uint64), ([2**63, True], pb.uint64), ([2**62, -1], pb.int64)]
    for numbers, dtype in cases:
        x = pb.tensor(numbers)
        assert x.dtype == dtype
        assert x.tolist() == numbers
    for numbers in ([10**30, 0.5], [10**30, math.nan], [1e30, 1]):
        assert pb.tensor(numbers).dtype == pb.float32
    np.testing.assert_array_equal(pb.tensor([10**30], dtype="float64").numpy(), [1e30])
    np.testing.assert_array_equal((pb.ones(1, dtype="float64") * [10**30]).numpy(), [1e30])
    for x in (pb.ones(1), pb.ones(1, dtype="int8"), pb.ones(1, dtype="float16")):
        assert (x < HUGE).item()
        assert not (x < -HUGE).item()


def test_an_order_that_is_a_tensor_is_refused_in_words() -> None:
    order: Any = pb.tensor(2.0)
    for norm in (pb.linalg.vector_norm, pb.linalg.norm):
        with pytest.raises(pb.DTypeError, match=r"norm: ord is a Tensor, and no gradient passes to it.* give ord.item\(\)"):
            norm(pb.ones(3), ord=order)
    with pytest.raises(pb.ArgumentError, match=r"matrix_norm: ord=.* It must be a Python number: give ord.item\(\)"):
        pb.linalg.matrix_norm(pb.ones((2, 2)), ord=order)


EPSILONS: list[Callable[[float], Any]] = [
    lambda e: F.layer_norm(X, eps=e), lambda e: F.rms_norm(X, eps=e), lambda e: F.group_norm(X, 1, eps=e),
    lambda e: F.instance_norm(X, eps=e),
    lambda e: F.batch_norm(X, None, None, training=True, eps=e), lambda e: F.batch_norm(X, pb.zeros(3), pb.ones(3), eps=e),
    lambda e: F.normalize(X, eps=e), lambda e: F.cosine_similarity(X, X, eps=e), lambda e: F.pairwise_distance(X, X, eps=e),
    lambda e: pb.logit(X, eps=e), lambda e: pb.nn.LayerNorm(3, eps=e), lambda e: pb.nn.RMSNorm(3, eps=e),
    lambda e: pb.nn.BatchNorm1d(3, eps=e), lambda e: pb.nn.InstanceNorm2d(3, eps=e), lambda e: pb.nn.GroupNorm(1, 3, eps=e),
    lambda e: pb.nn.CosineSimilarity(eps=e), lambda e: pb.nn.PairwiseDistance(eps=e),
]


@pytest.mark.parametrize("make", EPSILONS)
def test_a_negative_eps_is_refused(make: Callable[[float], Any]) -> None:
    for value in (-1.0, -1e-300, -1):
        with pytest.raises(pb.ArgumentError, match=r"eps=-1\S* is negative\. .* Give a small positive number, or 0\."):
            make(value)
    make(0.0)
    make(0)


def test_adafactor_takes_none_and_no_negative_number_for_its_default() -> None:
    p = [pb.Parameter(pb.ones((2, 2)))]
    for eps in ((-1.0, 1e-3), (1e-3, -1.0)):
        with pytest.raises(pb.PullbackError, match="Adafactor: eps="):
            pb.optim.Adafactor(p, eps=eps)
    opt = pb.optim.Adafactor(p, groups={"*": {"eps": (None, 1e-2)}})
    assert "(None, 0.01)" in repr(opt.groups[0])
    opt.load_state_dict(opt.state_dict())
    assert opt.eps == (None, 1e-3)
    with pytest.raises(pb.PullbackError, match="Adafactor: eps="):
        opt.eps = (-1.0, 1e-3)
