"""The expressions that answer names of other libraries run, and have the values of what they replace."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import warnings
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from public_names import names_elsewhere
from pullback import nn, optim

NAMES = names_elsewhere()
V = np.array([[0.3, 0.9], [0.6, 0.2]], np.float32)
W = np.array([[0.5, 0.1], [0.7, 0.4]], np.float32)
EXPRESSIONS = [(place, name, hint) for place, names in NAMES.items() for name, hint in names.items() if hint[-1] != "."]
# Functions whose arguments are more than tensors, whose result is random, or whose hint has the axis 0 as an example.
OTHERS = {
    "append", "bernoulli", "bernoulli_", "broadcast", "chain_matmul", "clamp", "clamp_", "clamp_max", "clamp_min", "cumprod",
    "cumsum",
    "cumulative_trapezoid", "exponential_", "extract", "new", "new_tensor", "normal_", "uniform_", "vectorize", "rand_like",
    "randn_like", "random_", "empty_strided", "new_empty", "gumbel_softmax", "poisson",
}


def names() -> dict[str, Any]:
    """Returns values for the names that hints use: matrices, or what the op needs."""
    t, mask = pb.tensor(V), pb.tensor(V > 0.5)
    net = nn.Linear(2, 2)
    return {
        "pb": pb, "nn": nn, "optim": optim, "np": np, "functools": functools, "t": t, "a": t, "x": pb.tensor(W), "b": pb.tensor(W),
        "c": t, "v": t, "p": pb.Parameter(V), "net": net, "opt": optim.SGD(net.parameters(), 0.1), "tape": pb.GradientTape(),
        "f": lambda *z: z[0].sum(), "n": 2, "k": 1, "i": 1, "shape": (2, 2), "low": 0, "high": 5, "value": 2.0, "weight": t,
        "bias": t[0], "mean": t[0], "factor": t, "table": t, "values": pb.tensor([[1.0, 2.0]]), "indices": pb.tensor([[0]]),
        "index": 0, "ids": pb.tensor([0, 1]), "bags": pb.tensor([0, 1]), "rows": pb.tensor([0, 1]), "columns": pb.tensor([0, 1]),
        "labels": pb.tensor([1, 0]), "predictions": pb.tensor([0, 1]), "mask": mask, "condition": mask, "axes": (1, 0), "start": 0,
        "length": 1, "stop": 2, "shift": 1, "pad_width": 1, "positions": [1], "repetitions": (2, 1), "boundaries": t[0],
        "bins": t[0], "tree": {"a": t}, "trees": [[1, 2], [3, 4]], "gradients": [t], "loss": t, "state": pb.random.state_dict(),
        "scaler": pb.amp.LossScaler(),
    }


def run(hint: str) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        return eval(hint, names())


@pytest.mark.parametrize(("place", "name", "hint"), EXPRESSIONS, ids=[f"{place}.{name}" for place, name, _ in EXPRESSIONS])
def test_an_expression_runs(place: str, name: str, hint: str) -> None:
    """Errors of shapes, dtypes and devices are allowed: the values are not made for each hint. Other errors are not."""
    used = {node.id for node in ast.walk(ast.parse(hint)) if isinstance(node, ast.Name)}
    if used & {"path", "pickle", "help", "state", "mask"}:
        return
    with contextlib.suppress(pb.PullbackError):
        run(hint)


def sources(torch: Any) -> dict[str, list[Any]]:
    """Returns for a place the namespaces of other libraries that have its names."""
    return {
        "pullback": [torch, torch.special, np], "Tensor": [torch.Tensor], "pullback.nn.functional": [torch.nn.functional],
        "pullback.linalg": [torch.linalg],
    }


def theirs(torch: Any, f: Any) -> Any:
    """Returns f of one matrix or, if that fails, of two; None if both fail."""
    for arrays in ((V,), (V, W)):
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            numpys = isinstance(f, np.ufunc) or str(getattr(f, "__module__", "")).startswith("numpy")
            return f(*[array if numpys else torch.tensor(array) for array in arrays])
    return None


def test_an_expression_has_the_value_of_what_it_replaces(torch: Any) -> None:
    compared = []
    for place, libraries in sources(torch).items():
        for name, hint in NAMES[place].items():
            for f in [getattr(library, name) for library in libraries if hasattr(library, name)]:
                if hint[-1] == "." or name in OTHERS or isinstance(f, type):
                    continue
                with contextlib.suppress(Exception):
                    ours = run(hint)
                    ours = ours(pb.tensor(V)) if callable(ours) and not isinstance(ours, pb.Tensor) else ours
                    wanted = theirs(torch, f)
                    if isinstance(ours, pb.Tensor) and isinstance(wanted, (torch.Tensor, np.ndarray)):
                        compared.append((f"{place}.{name}", host(ours).astype(float), np.asarray(wanted, dtype=float)))
    assert len(compared) > 200
    wrong = [name for name, a, b in compared if a.shape != b.shape or not np.allclose(a, b, atol=1e-5, equal_nan=True)]
    assert wrong == []
