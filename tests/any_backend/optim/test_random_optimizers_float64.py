"""Random configurations of optimizers in float64 give what PyTorch's rules and the formulas of the papers give.

PULLBACK_OPTIMIZERS is the number of configurations.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from conftest import host
from formulas import simplex
from pullback import optim
from random_optimizer_runs import Run
from random_optimizers import CLASSES, COUNT, Configuration, shrunk

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy's, about infinities
    pytest.mark.parametrize("seed", range(COUNT)),
]

THEIRS = {
    optim.SGD: ("nesterov",), optim.RMSprop: ("centered",), optim.Adagrad: ("initial_accumulator_value",), optim.Adadelta: (),
    optim.Adam: ("amsgrad",), optim.AdamW: ("amsgrad",), optim.Adamax: (), optim.NAdam: ("decoupled_weight_decay",),
    optim.RAdam: ("decoupled_weight_decay",), optim.Adafactor: (),
}


class Oracle:
    """One Parameter of a run, which PyTorch or a formula of its paper updates in float64."""

    def __init__(self, run: Run, p: Any, torch: Any) -> None:
        self.run, self.p, self.torch = run, p, torch
        (self.group,) = [group for group in run.opt.groups if any([p is q for q in group.parameters])]
        self.w, self.count, self.average = host(p).copy(), 0, host(p).copy()
        self.state: dict[str, Any] = {}
        self.flags = {name: run.config.options[name] for name in THEIRS.get(run.config.cls, ()) if name in run.config.options}

    def hyper(self) -> dict[str, Any]:
        return {name: getattr(self.group, name) for name in self.run.config.cls.hyper}

    def step(self, g: Any) -> None:
        """Does a step with a gradient that is clipped already, or None."""
        if g is None or not g.size:
            return
        self.count += 1
        lr, cls = self.group.lr * self.group.lr_scale, self.run.config.cls
        if cls in THEIRS:
            self.w = self.theirs(g, {"lr": lr, **self.hyper()})
        else:
            self.w = self.w + getattr(self, cls.__name__)(g, lr, **self.hyper())
        self.w = constrained(self.p.constraint, self.w)
        if self.run.opt.ema is not None:
            keep = self.group.ema if self.count > 1 else 0.0
            self.average = keep * self.average + (1 - keep) * self.w

    def theirs(self, g: Any, hyper: dict[str, Any]) -> Any:
        if "opt" not in self.state:
            self.state["p"] = self.torch.nn.Parameter(self.torch.tensor(self.w))
            make = getattr(self.torch.optim, self.run.config.cls.__name__)
            self.state["opt"] = make([self.state["p"]], **hyper, **self.flags)
        p, opt = self.state["p"], self.state["opt"]
        opt.param_groups[0].update(hyper)
        p.data.copy_(self.torch.tensor(self.w))
        p.grad = self.torch.tensor(g)
        opt.step()
        return p.detach().numpy().copy()

    def Lion(self, g: Any, lr: float, betas: Any, weight_decay: float) -> Any:
        m = self.state.get("m", 0.0)
        self.state["m"] = betas[1] * m + (1 - betas[1]) * g
        return -lr * (np.sign(betas[0] * m + (1 - betas[0]) * g) + weight_decay * self.w)

    def LAMB(self, g: Any, lr: float, betas: Any, eps: float, weight_decay: float) -> Any:
        self.state["m"] = m = betas[0] * self.state.get("m", 0.0) + (1 - betas[0]) * g
        self.state["v"] = v = betas[1] * self.state.get("v", 0.0) + (1 - betas[1]) * g * g
        d = m / (1 - betas[0] ** self.count) / (np.sqrt(v / (1 - betas[1] ** self.count)) + eps) + weight_decay * self.w
        norms = np.sqrt((self.w**2).sum()), np.sqrt((d**2).sum())
        return -lr * (norms[0] / norms[1] if min(norms) > 0 else 1.0) * d

    def free(self, d: Any, lr: float, beta: float, warmup: float, r: float, power: float) -> Any:
        z = self.state.get("z", self.w)
        rate = lr * min(1.0, self.count / warmup if warmup else 1.0)
        self.state["most"] = most = max(rate, self.state.get("most", 0.0))
        weight = self.count**r * most**power
        self.state["total"] = total = self.state.get("total", 0.0) + weight
        c = weight / total if total else 0.0
        self.state["z"] = z - rate * d
        return c * (z - self.w) + rate * (beta * (1 - c) - 1) * d

    def ScheduleFreeSGD(self, g: Any, lr: float, momentum: float, weight_decay: float, **more: float) -> Any:
        return self.free(g + weight_decay * self.w, lr, momentum, *more.values())

    def ScheduleFreeAdamW(self, g: Any, lr: float, betas: Any, eps: float, weight_decay: float, **more: float) -> Any:
        self.state["v"] = v = betas[1] * self.state.get("v", 0.0) + (1 - betas[1]) * g * g
        d = g / (np.sqrt(v) + eps) + weight_decay * self.w
        return self.free(d, lr * math.sqrt(1 - betas[1] ** self.count), betas[0], *more.values())

    def Signs(self, g: Any, lr: float, beta: float, weight_decay: float) -> Any:
        self.state["m"] = m = beta * self.state.get("m", 0.0) + (1 - beta) * g
        return -lr * (m / (1 - beta**self.count) / (1 + abs(m)) + weight_decay * self.w)

    def Switched(self, g: Any, lr: float, shares: Any, eps: float) -> Any:
        self.state["v"] = v = shares[0] * self.state.get("v", 0.1) + (1 - shares[0]) * g * g
        self.state["last"] = step = g + shares[1] * self.state.get("last", 0.0) if self.count > 2 else g
        return -lr * step / (np.sqrt(v) + eps)

    def Normed(self, g: Any, lr: float, beta: float) -> Any:
        self.state["m"] = m = beta * self.state.get("m", 0.0) + g
        return -lr * (1 + np.sqrt((self.w**2).sum())) * m / (1 + np.sqrt((m**2).sum()))


def constrained(limit: Any, w: Any) -> Any:
    """Returns the weights after a constraint, in float64."""
    if limit is None:
        return w
    if limit is shrunk:
        return np.clip(w * 0.875, -1.0, 0.75)
    if hasattr(limit, "bounds"):
        return np.clip(w, *limit.bounds)
    axis = tuple(range(w.ndim)) if limit.axis is None else limit.axis
    if isinstance(limit, optim.constraints.Simplex):
        flat = w.reshape(1, -1) if limit.axis is None else np.moveaxis(w, limit.axis, -1)
        rows = np.stack([simplex(row) for row in flat.reshape(-1, flat.shape[-1])]).reshape(flat.shape)
        return rows.reshape(w.shape) if limit.axis is None else np.moveaxis(rows, -1, limit.axis)
    norm = np.sqrt((w**2).sum(axis=axis, keepdims=True))
    if isinstance(limit, optim.constraints.UnitNorm):
        return np.divide(w, norm, out=np.zeros_like(w), where=norm > 0)
    return np.where(norm <= limit.c, w, w * limit.c / np.maximum(norm, 1e-300))


def clipped(run: Run, grads: list[Any], weights: list[Any]) -> list[Any]:
    """Returns the gradients of a step, in float64, after all clipping but that by value, which is one of a group."""
    opt, found = run.opt, []
    for g, w in zip(grads, weights):
        if g is not None and g.size and opt.clip_adaptive is not None:
            axes = tuple(range(1, g.ndim)) if g.ndim > 1 else tuple(range(g.ndim))
            size, norm = [np.sqrt((x**2).sum(axis=axes, keepdims=True)) for x in (w, g)]
            most, norm = opt.clip_adaptive * np.maximum(size, 1e-3), norm * opt.gradient_scale
            g = np.where(norm > most, g * most / np.maximum(norm, 1e-6), g)
        found.append(None if g is None else g * opt.gradient_scale)
    if opt.clip_norm is not None:
        norm = math.sqrt(sum([float((g**2).sum()) for g in found if g is not None]))
        found = [None if g is None else g * min(1.0, opt.clip_norm / (norm + 1e-6)) for g in found]
    return found


def mean(config: Configuration, k: int) -> list[Any]:
    """Returns the gradients of step k: the mean or the sum of those of its batches."""
    batches, counts = config.gradients(k), config.micro or (1,)
    if config.reduce == "sum" or not config.micro:
        counts = (1,) * len(batches)
    total = sum(counts) if config.reduce == "mean" else 1
    found = []
    for each in zip(*batches):
        parts = [n * g for n, g in zip(counts, each) if g is not None]
        found.append(sum(parts) / total if parts else None)
    return found


def test_steps_are_those_of_torch_and_of_the_papers(seed: int, request: pytest.FixtureRequest) -> None:
    """In float64, for steps with any groups, schedules, clipping, constraints and averages."""
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare the update rules with")
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.float64)  # in which torch's NAdam keeps the product of the momenta
    rules = [cls for cls in CLASSES if cls is not optim.Muon]
    config = Configuration(seed, dtype="float64", plain=True, classes=rules)
    run = Run(config)
    oracles = [Oracle(run, p, torch) for p in run.parameters]
    for k in range(config.steps):
        run.before(k)
        for oracle in oracles:
            if any([event[0] == "assign" for event in config.events[k]]):
                oracle.w = host(oracle.p).copy()
            if "momentum" in run.opt.slot_names and oracle.group.momentum == 0:
                return  # PyTorch keeps no momentum then, which matters when it is set later.
        grads = clipped(run, mean(config, k), [oracle.w for oracle in oracles])
        for oracle, g in zip(oracles, grads):
            most = oracle.group.clip_value
            oracle.step(g if g is None or most is None else np.clip(g, -most, most))
        run.step(k)
        for p, oracle in zip(run.parameters, oracles):
            atol = 1e-9 * max(1.0, float(np.abs(oracle.w).max(initial=0.0)))
            np.testing.assert_allclose(host(p), oracle.w, rtol=0, atol=atol, err_msg=f"{config}\n{p.label()} after step {k}")
            if run.opt.ema is not None:
                np.testing.assert_allclose(
                    host(run.opt.averaged(p)), oracle.average, rtol=0, atol=atol, err_msg=f"{config}\naverage"
                )
