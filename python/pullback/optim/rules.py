"""The update rules: one class per rule, with its formula in NumPy. The kernel of a rule is a struct in csrc/math/update.h.

A rule advances the set of a parameter. It then computes the change of the weights from the weights, the gradients and the slots, and
updates the slots in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ..errors import PullbackError
from . import sets as c
from .optimizer import Groups, Optimizer, Params
from .schedules import Schedule


class SGD(Optimizer):
    """Stochastic gradient descent with momentum: torch.optim.SGD's rule at equal arguments.

    It has the slot "momentum" if momentum is not 0. A step moves 12 bytes per float32 weight, 20 with momentum.
    """

    kernel = "sgd_step"
    hyper: ClassVar[Mapping[str, int]] = {"momentum": 1, "dampening": 1, "weight_decay": 1}
    momentum: Any
    dampening: Any
    weight_decay: Any

    def __init__(
        self, params: Params, lr: float | Schedule = 1e-3, momentum: float = 0, dampening: float = 0, nesterov: bool = False,
        weight_decay: float = 0, *, clip_norm: float | None = None, clip_value: float | None = None, groups: Groups | None = None,
    ) -> None:  # fmt: skip
        self.nesterov = nesterov
        hyper = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, lr, hyper, clip_norm=clip_norm, clip_value=clip_value, groups=groups)

    def _choose(self, values: list[Mapping[str, Any]]) -> None:
        if any([np.any(np.asarray(value["momentum"]) > 0) for value in values]):
            self.slot_names = ("momentum",)
            self.kernel = "sgd_nesterov_step" if self.nesterov else "sgd_momentum_step"

    def _validate(self, values: Mapping[str, Any]) -> None:
        momentum, dampening = np.asarray(values["momentum"]), np.asarray(values["dampening"])
        if self.nesterov and not (np.all(momentum > 0) and np.all(dampening == 0)):
            raise PullbackError("SGD: nesterov=True needs momentum > 0 and dampening = 0.")
        if "_placement" in vars(self) and not self.slot_names and np.any(momentum > 0):
            raise PullbackError(
                f"SGD: momentum={values['momentum']}; this optimizer was made with momentum=0 and has no momentum buffer. Make it with "
                f"the momentum, or with a small one that is set later."
            )

    def settings(self) -> dict[str, Any]:
        values = super().settings()
        weight_decay = values.pop("weight_decay")
        return {**values, "nesterov": self.nesterov, "weight_decay": weight_decay}

    def change(self, settings: list[float], p: Any, g: Any, slots: list[Any]) -> Any:
        momentum, dampening, weight_decay = self.own(settings)
        first = settings[c.STEP] <= 1
        g = _penalised(g, p, weight_decay)
        if slots:
            m = slots[0]
            m[...] = (0.0 if first else momentum) * m + (1.0 if first else 1 - dampening) * g
            g = g + momentum * m if self.nesterov else m
        return -settings[c.RATE] * g


def _penalised(g: Any, p: Any, weight_decay: float) -> Any:
    """Returns the gradient of the loss with an L2 penalty."""
    return g + weight_decay * p if weight_decay else g


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015, Alg. 1): torch.optim.Adam's rule at equal arguments. weight_decay is an L2 penalty.

    The slots "m" and "v" are running means of the gradient and of its square. A step moves 28 bytes per float32 weight.
    """

    kernel = "adam_step"
    slot_names = ("m", "v")
    decoupled = False
    hyper: ClassVar[Mapping[str, int]] = {"betas": 2, "eps": 1, "weight_decay": 1}
    betas: Any
    eps: Any
    weight_decay: Any

    def __init__(
        self, params: Params, lr: float | Schedule = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0, *, clip_norm: float | None = None, clip_value: float | None = None, groups: Groups | None = None,
    ) -> None:  # fmt: skip
        hyper = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, lr, hyper, clip_norm=clip_norm, clip_value=clip_value, groups=groups)

    def advance(self, settings: list[float]) -> None:
        super().advance(settings)
        beta1, beta2, _, _ = self.own(settings)
        settings[c.STATE] = 1 - beta1 ** settings[c.STEP]
        settings[c.STATE + 1] = 1 - beta2 ** settings[c.STEP]

    def change(self, settings: list[float], p: Any, g: Any, slots: list[Any]) -> Any:
        beta1, beta2, eps, weight_decay = self.own(settings)
        m, v = slots
        if not self.decoupled:
            g = _penalised(g, p, weight_decay)
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * (g * g)
        rate = settings[c.RATE]
        change = (-rate / settings[c.STATE]) * (m / (v**0.5 / settings[c.STATE + 1] ** 0.5 + eps))
        return change - (rate * weight_decay) * p if self.decoupled else change


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, Alg. 2): torch.optim.AdamW's rule at equal arguments."""

    kernel = "adamw_step"
    decoupled = True

    def __init__(
        self, params: Params, lr: float | Schedule = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, *, clip_norm: float | None = None, clip_value: float | None = None, groups: Groups | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, clip_norm=clip_norm, clip_value=clip_value, groups=groups)


class Lion(Optimizer):
    """Lion (Chen et al. 2023, Alg. 2): each weight moves by the learning rate, up or down. weight_decay is decoupled.

    The slot "m" is a running mean of the gradient. A step moves 20 bytes per float32 weight.
    """

    kernel = "lion_step"
    slot_names = ("m",)
    hyper: ClassVar[Mapping[str, int]] = {"betas": 2, "weight_decay": 1}
    betas: Any
    weight_decay: Any

    def __init__(
        self, params: Params, lr: float | Schedule = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0, *,
        clip_norm: float | None = None, clip_value: float | None = None, groups: Groups | None = None,
    ) -> None:  # fmt: skip
        hyper = {"betas": betas, "weight_decay": weight_decay}
        super().__init__(params, lr, hyper, clip_norm=clip_norm, clip_value=clip_value, groups=groups)

    def change(self, settings: list[float], p: Any, g: Any, slots: list[Any]) -> Any:
        beta1, beta2, weight_decay = self.own(settings)
        m = slots[0]
        direction = np.sign(beta1 * m + (1 - beta1) * g)
        m[...] = beta2 * m + (1 - beta2) * g
        return -settings[c.RATE] * (direction + weight_decay * p)


# __all__ is computed so that each rule is listed once. A type checker assumes all public names defined here, which are the same.
__all__ = [name for name, value in globals().items() if isinstance(value, type) and value.__module__ == __name__]
