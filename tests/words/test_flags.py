"""Every option of a function that is True or False refuses other values, and no number may be a bool."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn
from refused import refusal

F: Any = nn.functional
PB: Any = pb
X, VECTOR = pb.tensor([[3.0, 1.0], [1.0, 2.0]]), pb.tensor([3.0, 1.0, 2.0])
ARGUMENTS: dict[str, tuple[Any, ...]] = {  # of functions that a matrix alone is not enough for
    **dict.fromkeys(("grad", "value_and_grad", "jacobian", "hessian"), (pb.sum,)),
    "vjp": (pb.sum, X), "jvp": (pb.sum, [X], [X]), "associative_scan": (pb.add, X), "scan": (lambda c, x: (c, x), 0.0, VECTOR),
    "linear_recurrence": (X, X), "isclose": (X, X), "linspace": (0, 1, 3), "topk": (X, 1), "reshape": (X, (4,)),
    "astype": (X, "float64"), "cumulative_sum": (VECTOR,), "cumulative_prod": (VECTOR,),
    "solve_triangular": (X, VECTOR[:2]), "GradientTape": (),
    **dict.fromkeys(("quantile", "nanquantile", "percentile", "nanpercentile"), (X, 0.5)),
    "batch_norm": (X, VECTOR[:2], VECTOR[:2]), "kl_div": (X, X), "pairwise_distance": (X, X),
    "scaled_dot_product_attention": (X, X, X), "instance_norm": (pb.ones((2, 3, 4)), VECTOR, VECTOR), "rotary": (X,),
    **dict.fromkeys(("avg_pool1d", "max_pool1d"), (X, 1)), **dict.fromkeys(("avg_pool2d", "max_pool2d"), (pb.ones((1, 2, 2)), 1)),
}
OTHER = {"scan": {"checkpoint"}, "black_box": {"batch"}, "profile": {"strict"}, "from_dlpack": {"copy"}}  # not only True or False


def flags() -> Iterator[tuple[str, Callable[..., Any], str]]:
    for space in (pb, PB.linalg, F):
        for name in space.__all__ if hasattr(space, "__all__") else dir(space):
            function = getattr(space, name)
            if name.startswith("_") or not callable(function) or inspect.ismodule(function):
                continue
            try:
                parameters = inspect.signature(function).parameters
            except (TypeError, ValueError):
                continue
            for option, parameter in parameters.items():
                is_flag = isinstance(parameter.default, bool) or option in ("copy", "upper")
                if is_flag and option not in OTHER.get(name, ()):
                    yield name, function, option


FLAGS = {f"{name}: {option}": (function, ARGUMENTS.get(name, (X,)), option) for name, function, option in flags()}


def test_the_flags_are_found() -> None:
    assert {
        "sum: keepdims",
        "sort: descending",
        "topk: largest",
        "isclose: equal_nan",
        "linspace: endpoint",
        "asarray: copy",
    } < set(FLAGS)
    assert len(FLAGS) > 70


@pytest.mark.parametrize("words", FLAGS)
def test_a_flag_is_true_or_false(words: str) -> None:
    function, args, option = FLAGS[words]
    asked = {"upper": True} if words.startswith("solve_triangular") else {}
    for bad in ("no", "False", 2, 0.0, [True], pb.tensor(True)):
        text = refusal(lambda bad=bad: function(*args, **{**asked, option: bad}))
        assert option in text
        assert "must be True or False" in text
    for good in (False, np.False_, *((0,) if option == "keepdims" and "pairwise" not in words else ())):
        with contextlib.suppress(ValueError):  # what copy=False is for
            function(*args, **{**asked, option: good})


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "sum: axis": lambda true: pb.sum(X, axis=true),
    "mean: axis": lambda true: pb.mean(X, axis=(true,)),
    "sort: axis": lambda true: pb.sort(X, axis=true),
    "softmax: axis": lambda true: pb.softmax(X, axis=true),
    "topk: k": lambda true: pb.topk(X, true),
    "std: correction": lambda true: pb.std(X, correction=true),
    "BatchNorm1d: eps": lambda true: nn.BatchNorm1d(3, true),
    "BatchNorm1d: momentum": lambda true: nn.BatchNorm1d(3, 0.1, true),
    "LayerNorm: eps": lambda true: nn.LayerNorm(3, true),
    "huber: delta": lambda true: nn.huber(X, X, delta=true),
    "cross_entropy: label_smoothing": lambda true: nn.cross_entropy(X, X, label_smoothing=true),
    "cross_entropy: ignore_index": lambda true: nn.cross_entropy(X, [0, 1], ignore_index=true),
}


@pytest.mark.parametrize("words", NUMBERS)
def test_a_bool_is_no_number(words: str) -> None:
    for true in (True, np.bool_(True)):
        text = refusal(lambda true=true: NUMBERS[words](true))
        assert text.startswith(words) or (words.split(": ")[1] in text and "True" in text)
