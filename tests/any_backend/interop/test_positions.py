"""Positional arguments: a function takes them where NumPy's function of the same name does, otherwise where PyTorch's does."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host

A = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
M, V, I = A[0], np.array([3.0, 1.0, 2.0], np.float32), np.array([1, 0])

# Calls that NumPy understands. `x` is A, as an array or as a tensor.
CALLS = {
    **dict.fromkeys(["sum", "prod", "mean", "max", "min", "any", "all", "argmax", "argmin", "count_nonzero", "std", "var"], (A, 1)),
    **dict.fromkeys(["sort", "argsort", "flip", "expand_dims"], (A, 0)), "sum of several axes": ("sum", A, (0, 2)),
    "sum in float64": ("sum", M, 0, np.float64), "prod in float64": ("prod", M, 0, np.float64),
    "squeeze": (A[:, :1], 1), "concat": ([A, A], 2), "stack": ([M, M], 1), "split": (A, 2, 2), "split at": ("split", A, [1, 3], 2),
    "take": (A, I, 1), "take_along_axis": (M, np.argsort(M, 1), 1), "roll": (A, 2, 1), "roll of two": ("roll", A, (1, 2), (0, 2)),
    "repeat": (A, 2, 1), "tile": (M, (2, 1)), "moveaxis": (A, 0, 2), "swapaxes": (A, 0, 2), "diff": (A, 2, 1),
    "tril": (M, -1), "triu": (M, 1), "clip": (A, -0.5, 0.5), "tensordot": (A, A.T, 1), "searchsorted": (np.sort(V), V, "right"),
    "eye": (3, 4, 1), "arange": (1, 7, 2, np.int32), "full": ((2, 3), 1.5, np.float64), "zeros": ((2, 3), np.int64),
    "ones": ((2, 3), np.int64), "zeros_like": (A, np.float64), "ones_like": (A, np.int32), "full_like": (A, 2, np.int32),
    "asarray": (V, np.float64), "round": (A,), "reshape": (A, (4, 6)), "outer": (V, V), "where": (M > 0, M, 0.0),
    "broadcast_to": (V, (2, 3)), "linspace": (0.0, 1.0, 5), "isclose": (A, A + 1e-3, 1e-2, 1e-2), "linalg.norm": (A, 2, 1),
    "matrix_transpose": (A,), "permute_dims": (A, (2, 0, 1)), "unstack": (A,), "vecdot": (A, A),
}


def ours(x: Any) -> Any:
    """Returns an argument with tensors in the place of arrays."""
    if isinstance(x, np.ndarray):
        return pb.tensor(x)
    return [ours(part) for part in x] if isinstance(x, list) else x


def function_of(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


@pytest.mark.parametrize("case", CALLS)
def test_positions_are_those_of_numpy(case: str) -> None:
    args = CALLS[case]
    name, args = (args[0], args[1:]) if isinstance(args[0], str) else (case, args)
    expected = function_of(np, name)(*args)
    found = function_of(pb, name)(*[ours(x) for x in args])
    for mine, numpys in zip(found, expected) if isinstance(expected, (list, tuple)) else [(found, expected)]:
        numpys = np.asarray(numpys)
        assert mine.shape == numpys.shape
        assert mine.dtype.kind == numpys.dtype.kind
        np.testing.assert_allclose(host(mine), numpys, rtol=2e-6, atol=1e-6)


TORCHS = {
    "softmax": (0,), "log_softmax": (1,), "logsumexp": (2,), "topk": (2, 1), "cumsum": (1,), "cumprod": (2,), "diff": (2, 1),
}


@pytest.mark.parametrize("name", TORCHS)
def test_positions_are_those_of_pytorch_where_numpy_has_no_such_function(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    called = {"cumsum": "cumulative_sum", "cumprod": "cumulative_prod"}.get(name, name)
    found = getattr(pb, called)(pb.tensor(A), *TORCHS[name])
    expected = getattr(torch, name)(torch.tensor(A), *TORCHS[name])
    for mine, theirs in zip(found, expected) if name == "topk" else [(found, expected)]:
        np.testing.assert_allclose(host(mine), theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_the_keywords_of_the_array_api_go_on_working() -> None:
    t = pb.tensor(A)
    for name in ("sum", "mean", "max", "any", "std", "sort", "flip", "softmax", "logsumexp", "cumulative_sum", "argmax"):
        np.testing.assert_array_equal(host(getattr(pb, name)(t, axis=1)), host(getattr(pb, name)(t, 1)))
    for name in ("concat", "stack"):
        np.testing.assert_array_equal(host(getattr(pb, name)([t, t], axis=1)), host(getattr(pb, name)([t, t], 1)))
    assert pb.sum(x=t).shape == ()
    assert pb.zeros(shape=(2,), dtype=pb.int64).dtype == pb.int64


def test_a_flag_is_given_by_its_name_only() -> None:
    for name in ("sum", "mean", "max", "std", "argmax", "logsumexp", "sort", "topk", "cumulative_sum", "any"):
        for parameter in inspect.signature(getattr(pb, name)).parameters.values():
            assert parameter.annotation != "bool" or parameter.kind is parameter.KEYWORD_ONLY, f"{name}: {parameter}"


def test_positional_arguments_are_recorded() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = pb.Parameter(A)
    with pb.GradientTape() as tape:
        y = pb.sum(pb.softmax(pb.concat([x, pb.flip(x, 1)], 1), 1) ** 2, 0)
        loss = pb.sum(pb.diff(pb.roll(y, 1, 1), 1, 0) ** 2)
    z = torch.tensor(A, requires_grad=True)
    w = torch.sum(torch.softmax(torch.cat([z, torch.flip(z, (1,))], 1), 1) ** 2, 0)
    torch.sum(torch.diff(torch.roll(w, 1, 1), 1, 0) ** 2).backward()
    assert z.grad is not None
    np.testing.assert_allclose(host(tape.gradient(loss, x)), z.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("zero", [0, 0.0, np.int64(0), np.float32(0)], ids=repr)
def test_a_draw_in_the_order_of_numpys_arguments_is_refused(zero: Any) -> None:
    for random in (pb.random, pb.random.Generator(1)):
        for draw, *parameters in (
            (random.normal, 1), (random.normal, 1, 10), (random.normal, 0.0, 1.0), (random.uniform, 1), (random.uniform, 1, 10),
            (random.truncated_normal, 1), (random.truncated_normal, 1, -2, 2), (random.bernoulli, 0.5),
        ):
            words = rf"{draw.__name__}: the shape is 0.*The shape comes first, as one argument: .*{draw.__name__}\(shape, "
            with pytest.raises(pb.ShapeError, match=words):
                draw(zero, *parameters)
        for draw, options in ((random.normal, {"std": 2.0}), (random.uniform, {"high": 2.0}), (random.bernoulli, {"p": 0.5})):
            with pytest.raises(pb.ShapeError, match=r"The shape comes first"):
                draw(zero, **options)
        for empty in (
            random.normal(0),
            random.normal(0, dtype="float64"),
            random.normal((0,), 0, 1),
            random.uniform(shape=0, low=-1),
        ):
            assert empty.shape == (0,)
        assert random.normal((), 0, 1).shape == ()
