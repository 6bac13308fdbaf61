"""Methods of tensors: those that NumPy's arrays and PyTorch's tensors have, with NumPy's meaning, and all of them recorded."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback.interop.hints import hints
from pullback.ops.operators import METHODS

A = np.random.default_rng(0).uniform(0.1, 0.9, (2, 3, 3)).astype(np.float32)

CALLS = [
    "x.cumsum()", "x.cumsum(1)", "x.cumprod(-1)", "x.diagonal()", "x.diagonal(1, 1, 2)", "x.trace()", "x.round()", "x.round(2)",
    "(100 * x).round(-1)", "x.take([1, 2])", "x.take([1], 1)", "x.ravel()", "x.sum(0)", "x.sum((0, 1))", "x.mean(1)", "x.prod()",
    "x.std(0)", "x.var()", "x.max(2)", "x.min()", "x.any(0)", "x.all()", "x.argmax(1)", "x.argmin()", "x.clip(0.2, 0.5)",
    "x.clip(0.3)", "x.repeat(2)", "x.repeat(2, axis=1)", "x.swapaxes(0, 1)", "x.argsort()", "x.argsort(0)", "x[:1].squeeze()",
    "x[:1].squeeze(0)",
    "x.copy()", "x.flatten()", "x.dot(x[0, 0])", "x[0].dot(x[1])", "x.dot(x)", "x.transpose(2, 0, 1)", "x.reshape(3, 6)",
    "x.astype('float64')", "x.nonzero()[1]", "x.tolist()", "x[0, 0, 0].item()", "x.swapaxes(1, 2).ravel()",
]


@pytest.mark.parametrize("call", CALLS)
def test_a_method_does_what_numpys_does(call: str) -> None:
    expected, found = np.asarray(eval(call, {"x": A})), eval(call, {"x": pb.tensor(A)})
    found = found if isinstance(found, (float, list)) else host(found)
    assert np.shape(found) == expected.shape
    np.testing.assert_allclose(found, expected, rtol=2e-6)


def test_sort_returns_the_sorted_tensor_because_tensors_are_immutable() -> None:
    t = pb.tensor(A)
    np.testing.assert_array_equal(host(t.sort(0)), np.sort(A, 0))
    np.testing.assert_array_equal(host(t.sort(descending=True)), np.sort(A)[..., ::-1])
    np.testing.assert_array_equal(host(t), A)


ELEMENTWISE = [
    name for module, names in METHODS.items() if module is pb.ops.elementwise for name in names.split() if name != "clip"
]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_elementwise_method_does_what_pytorchs_does(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = A + 1 if name == "acosh" else A
    t, theirs = pb.Parameter(x), torch.tensor(x, requires_grad=True)
    with pb.GradientTape() as tape:
        y = getattr(t, name)()
    expected = getattr(theirs, name)()
    np.testing.assert_allclose(host(y), expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    if expected.requires_grad:
        expected.sum().backward()
        assert theirs.grad is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pb.ZeroGradientWarning)
            found = tape.gradient(y, t, output_gradients=pb.ones_like(y))
        np.testing.assert_allclose(host(found), theirs.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_a_tensor_has_every_method_that_arrays_of_both_libraries_have() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    both = {name for name in {*dir(np.ndarray)} & {*dir(torch.Tensor)} if name[0] != "_"}
    assert {name for name in both if not hasattr(pb.Tensor, name)} == {
        "conj", "data", "imag", "put", "real", "resize", "view"
    }
    assert both - {*dir(pb.ones(1))} == both & {*hints("Tensor")}


def test_methods_are_the_functions_and_have_their_docstrings_and_signatures() -> None:
    for module, names in METHODS.items():
        for name in names.split():
            assert inspect.unwrap(vars(pb.Tensor)[name]) is getattr(module, name)
            assert getattr(pb, name, vars(pb.Tensor)[name]) is vars(pb.Tensor)[name]
    methods = [f for name, f in vars(pb.Tensor).items() if inspect.isfunction(f) and name[0] != "_"]
    assert [f.__name__ for f in methods if not f.__doc__] == ["tolist", "to_device"]
    assert "axis" in inspect.signature(pb.Tensor.sum).parameters


def gradient_of(f: Any) -> Any:
    x = pb.Parameter(A.astype(np.float64))
    with pb.GradientTape() as tape:
        loss = pb.sum(f(x) ** 2)
    return host(tape.gradient(loss, x))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda x: x.exp().log().sqrt().abs(), lambda x: x.sqrt()),
        (lambda x: x.clip(0.2, 0.5).cumsum(1).swapaxes(0, 2), lambda x: x.clip(0.2, 0.5).cumsum(1).swapaxes(0, 2)),
        (lambda x: x.sort(1).ravel().take([0, 5]), lambda x: x.sort(1).values.ravel()[[0, 5]]),
        (lambda x: x.repeat(2, axis=1).squeeze().copy().flatten(), lambda x: x.repeat_interleave(2, 1).flatten()),
        (lambda x: x[0].dot(x[1]).diagonal(1).std(), lambda x: (x[0] @ x[1]).diagonal(1).std(unbiased=False)),
        (lambda x: x[0].trace() * x.cumprod(0), lambda x: x[0].trace() * x.cumprod(0)),
    ],
)
def test_methods_are_recorded(ours: Any, theirs: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    z = torch.tensor(A.astype(np.float64), requires_grad=True)
    torch.sum(theirs(z) ** 2).backward()
    assert z.grad is not None
    np.testing.assert_allclose(gradient_of(ours), z.grad.numpy(), rtol=1e-9, atol=1e-12)


def test_the_result_of_a_method_of_a_parameter_survives_an_update_unless_it_is_a_view() -> None:
    p = pb.Parameter([3.0, 1.0, 2.0])
    copies, view = {name: getattr(p, name)() for name in ("sort", "copy", "clip", "exp", "cumsum")}, p.ravel()
    p.assign([0.0, 0.0, 0.0])
    np.testing.assert_array_equal(host(copies["copy"]), [3.0, 1.0, 2.0])
    np.testing.assert_array_equal(host(copies["clip"]), [3.0, 1.0, 2.0])
    np.testing.assert_array_equal(host(copies["sort"]), [1.0, 2.0, 3.0])
    with pytest.raises(pb.StaleValueError):
        view + 1
