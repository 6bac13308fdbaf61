"""Optimizers of torch with their Parameters, whose states are read here, and the comparison of the next steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import optim

torch = pytest.importorskip("torch", reason="torch is not installed: there is no other library to exchange states with")

SHAPES = [(4, 3), (3, 2), (2, 2)]
LATE = 1  # the parameter that has no gradient before step 2, and so no state if a state is taken before
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1, "weight_decay": 0.02}),
    "sgd-momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    "sgd-nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "rmsprop": ("RMSprop", {"lr": 0.01}),
    "rmsprop-centered": ("RMSprop", {"lr": 0.01, "centered": True, "momentum": 0.9, "eps": 1e-3}),
    "adagrad": ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.2}),
    "adadelta": ("Adadelta", {"lr": 0.7, "rho": 0.8}),
    "adam": ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
    "adam-amsgrad": ("Adam", {"lr": 0.01, "amsgrad": True}),
    "adamw": ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.95)}),
    "adamax": ("Adamax", {"lr": 0.01}),
    "nadam": ("NAdam", {"lr": 0.01, "decoupled_weight_decay": True, "weight_decay": 0.1}),
    "radam": ("RAdam", {"lr": 0.01, "betas": (0.9, 0.9)}),
    "adafactor": ("Adafactor", {"lr": 0.1}),
    "muon": ("Muon", {"lr": 0.1, "momentum": 0.9}),
}


class Run:
    """Parameters of torch with an optimizer, and Parameters with their values here."""

    def __init__(self, rule: str, options: dict[str, Any], groups: Any = None, sign: float = 1.0) -> None:
        rng = np.random.default_rng(0)
        self.params = [torch.nn.Parameter(torch.tensor(rng.standard_normal(shape))) for shape in SHAPES]
        self.opt = getattr(torch.optim, rule)(self.params if groups is None else groups(self.params), **options)
        self.sign = sign

    def steps(self, begin: int, end: int) -> None:
        for step in range(begin, end):
            for i, (p, g) in enumerate(zip(self.params, gradients(step))):
                p.grad = None if i == LATE and step < 2 else torch.tensor(self.sign * g)
            self.opt.step()

    def ours(self) -> list[pb.Parameter]:
        return [pb.Parameter(p.detach().numpy().copy(), name=f"p{i}") for i, p in enumerate(self.params)]


def gradients(step: int) -> list[Any]:
    return [np.random.default_rng((step, i)).standard_normal(shape) for i, shape in enumerate(SHAPES)]


def check_next_steps(run: Run, opt: Any, begin: int, order: Any = slice(None)) -> None:
    """Compares the weights after each of three steps. order: of torch's parameters in the groups."""
    params = [*opt.parameters]
    tolerance = 2e-2 if isinstance(opt, optim.Muon) else 1e-12  # torch's Muon computes in bfloat16
    for step in range(begin, begin + 3):
        run.steps(step, step + 1)
        skipped = [step < 2 and i == LATE for i in range(len(SHAPES))]
        grads = [None if skip else pb.tensor(g) for skip, g in zip(skipped, gradients(step))]
        opt.step(grads[order] if isinstance(order, slice) else [grads[i] for i in order])
        theirs = run.params[order] if isinstance(order, slice) else [run.params[i] for i in order]
        for p, q in zip(params, theirs):
            np.testing.assert_allclose(host(p), q.detach().numpy(), rtol=tolerance, atol=tolerance)


def with_steps(make: Any) -> Any:
    """Returns a function that gives every step another type."""

    def change(state: Any) -> Any:
        entries = {
            number: {name: make(x) if name == "step" else x for name, x in entry.items()}
            for number, entry in state["state"].items()
        }
        return {**state, "state": entries}

    return change
