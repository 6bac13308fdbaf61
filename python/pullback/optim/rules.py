"""The update rules: one class per rule, with its formula in NumPy. The kernel of a rule is a struct in csrc/math/update.h.

A rule advances the control block. It then computes the change of the weights from the weights, the gradients and the slots, and
updates the slots in place.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from ..errors import PullbackError
from ..ops._shapes import flag
from . import control as c
from .optimizer import Optimizer, Params
from .schedules import Schedule


def _not_negative(rule: str, **values: Any) -> None:
    for name, value in values.items():
        if not (isinstance(value, Real) and float(value) >= 0):
            raise PullbackError(f"{rule}: {name}={value!r}; it must be a number of 0 or more.")


def _means(rule: str, betas: tuple[float, float]) -> None:
    """Raises PullbackError unless there are two betas, the shares that running means keep, in [0, 1)."""
    given: Any = betas
    if not (
        isinstance(given, (tuple, list)) and len(given) == 2 and all([isinstance(x, Real) and 0 <= float(x) < 1 for x in given])
    ):
        raise PullbackError(f"{rule}: betas={betas!r}; it must be a pair of numbers, each in [0, 1): betas=(0.9, 0.999).")


class SGD(Optimizer):
    """Stochastic gradient descent with momentum: torch.optim.SGD's rule at equal arguments.

    It has the slot "momentum" if momentum is not 0. A step moves 12 bytes per float32 weight, 20 with momentum.
    """

    kernel = "sgd_step"

    def __init__(
        self, params: Params, lr: float | Schedule = 1e-3, momentum: float = 0, dampening: float = 0, nesterov: bool = False,
        weight_decay: float = 0, *, clip_norm: float | None = None, clip_value: float | None = None,
    ) -> None:  # fmt: skip
        _not_negative("SGD", momentum=momentum, weight_decay=weight_decay)
        nesterov = flag("SGD", "nesterov", nesterov)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise PullbackError("SGD: nesterov=True needs momentum > 0 and dampening = 0.")
        self.slot_names = ("momentum",) if momentum else ()
        self.nesterov = nesterov
        self.hyper = (float(momentum), float(dampening), float(weight_decay))
        self.kernel = f"sgd{'_nesterov' if nesterov else '_momentum' if momentum else ''}{'_decay' if weight_decay else ''}_step"
        super().__init__(params, lr, clip_norm=clip_norm, clip_value=clip_value)

    def settings(self) -> dict[str, Any]:
        momentum, dampening, weight_decay = self.hyper
        return {"momentum": momentum, "dampening": dampening, "nesterov": self.nesterov, "weight_decay": weight_decay}

    def change(self, control: Any, p: Any, g: Any, slots: list[Any]) -> Any:
        momentum, dampening, weight_decay = self.hyper
        first = control[c.STEP] <= 1
        if weight_decay:
            g = g + weight_decay * p
        if slots:
            m = slots[0]
            m[...] = (0.0 if first else momentum) * m + (1.0 if first else 1 - dampening) * g
            g = g + momentum * m if self.nesterov else m
        return -float(control[c.RATE]) * g


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015, Alg. 1): torch.optim.Adam's rule at equal arguments. weight_decay is an L2 penalty.

    The slots "m" and "v" are running means of the gradient and of its square. A step moves 28 bytes per float32 weight.
    """

    kernel = "adam_step"
    slot_names = ("m", "v")
    decoupled = False

    def __init__(
        self, params: Params, lr: float | Schedule = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0, *, clip_norm: float | None = None, clip_value: float | None = None,
    ) -> None:  # fmt: skip
        _not_negative(type(self).__name__, eps=eps, weight_decay=weight_decay)
        _means(type(self).__name__, betas)
        self.hyper = (float(betas[0]), float(betas[1]), float(eps), float(weight_decay))
        if weight_decay:
            self.kernel = "adamw_step" if self.decoupled else "adam_decay_step"
        super().__init__(params, lr, clip_norm=clip_norm, clip_value=clip_value)

    def settings(self) -> dict[str, Any]:
        beta1, beta2, eps, weight_decay = self.hyper
        return {"betas": (beta1, beta2), "eps": eps, "weight_decay": weight_decay}

    def advance(self, control: Any) -> None:
        super().advance(control)
        control[c.DEBIAS1] = 1 - self.hyper[0] ** control[c.STEP]
        control[c.DEBIAS2] = 1 - self.hyper[1] ** control[c.STEP]

    def change(self, control: Any, p: Any, g: Any, slots: list[Any]) -> Any:
        beta1, beta2, eps, weight_decay = self.hyper
        m, v = slots
        if weight_decay and not self.decoupled:
            g = g + weight_decay * p
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * (g * g)
        rate = float(control[c.RATE])
        change = (-rate / float(control[c.DEBIAS1])) * (m / (v**0.5 / float(control[c.DEBIAS2]) ** 0.5 + eps))
        return change - (rate * weight_decay) * p if self.decoupled and weight_decay else change


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, Alg. 2): torch.optim.AdamW's rule at equal arguments."""

    decoupled = True

    def __init__(
        self, params: Params, lr: float | Schedule = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, *, clip_norm: float | None = None, clip_value: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, clip_norm=clip_norm, clip_value=clip_value)


class Lion(Optimizer):
    """Lion (Chen et al. 2023, Alg. 2): each weight moves by the learning rate, up or down. weight_decay is decoupled.

    The slot "m" is a running mean of the gradient. A step moves 20 bytes per float32 weight.
    """

    kernel = "lion_step"
    slot_names = ("m",)

    def __init__(
        self, params: Params, lr: float | Schedule = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0, *,
        clip_norm: float | None = None, clip_value: float | None = None,
    ) -> None:  # fmt: skip
        _not_negative("Lion", weight_decay=weight_decay)
        _means("Lion", betas)
        self.hyper = (float(betas[0]), float(betas[1]), float(weight_decay))
        super().__init__(params, lr, clip_norm=clip_norm, clip_value=clip_value)

    def settings(self) -> dict[str, Any]:
        beta1, beta2, weight_decay = self.hyper
        return {"betas": (beta1, beta2), "weight_decay": weight_decay}

    def change(self, control: Any, p: Any, g: Any, slots: list[Any]) -> Any:
        beta1, beta2, weight_decay = self.hyper
        m = slots[0]
        direction = np.sign(beta1 * m + (1 - beta1) * g)
        m[...] = beta2 * m + (1 - beta2) * g
        return -float(control[c.RATE]) * (direction + weight_decay * p)


# __all__ is computed so that each rule is listed once. A type checker assumes all public names defined here, which are the same.
__all__ = [name for name, value in globals().items() if isinstance(value, type) and value.__module__ == __name__]
