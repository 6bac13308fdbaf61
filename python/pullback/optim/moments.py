"""Adam and the rules that follow it, with their formulas in NumPy. csrc/math/update_moments.h has their kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ..ops._shapes import flag
from . import sets as c
from .groups import Betas, Number, Rate
from .optimizer import Groups, Optimizer, Params
from .rules import penalised


class _Moments(Optimizer):
    """A rule with running means of the gradient and of its square, whose weight decay is an L2 penalty or decoupled."""

    slot_names = ("m", "v")
    decoupled = False
    hyper: ClassVar[Mapping[str, int]] = {"betas": 2, "eps": 1, "weight_decay": 1}
    betas: Betas
    eps: Number
    weight_decay: Number

    def average(self, settings: list[float], p: Any, g: Any, slots: list[Any]) -> Any:
        """Updates the means, and returns the gradient that has entered them."""
        beta1, beta2, _, weight_decay = self.own(settings)[:4]
        m, v = slots[:2]
        if not self.decoupled:
            g = penalised(g, p, weight_decay)
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * (g * g)
        return g

    def decayed(self, settings: list[float], p: Any, change: Any) -> Any:
        """Returns the change with the decoupled weight decay."""
        decay = self.own(settings)[3] if self.decoupled else 0.0
        return change - (settings[c.RATE] * decay) * p if decay else change

    def debias(self, settings: list[float]) -> None:
        """Writes 1 - beta^step for both betas into the first two numbers of the rule."""
        for k, beta in enumerate(self.own(settings)[:2]):
            settings[c.STATE + k] = 1 - beta ** settings[c.STEP]


class Adam(_Moments):
    """Adam (Kingma & Ba 2015, Alg. 1): torch.optim.Adam's rule at equal arguments. weight_decay is an L2 penalty.

    The slots "m" and "v" are running means of the gradient and of its square. With amsgrad (Reddi et al. 2018, Alg. 2) the slot
    "most" is the largest "v" so far, which divides in its place. A step moves 28 bytes per float32 weight, 36 with amsgrad.
    """

    kernel = "adam_step"

    def __init__(
        self, params: Params, lr: Rate = 1e-3, betas: Betas = (0.9, 0.999), eps: Number = 1e-8,
        weight_decay: Number = 0, amsgrad: bool = False, *,
        clip_norm: float | None = None, clip_value: float | None = None, groups: Groups | None = None,
        ema: Number | None = None, master_weights: bool = False, clip_adaptive: float | None = None,
        stochastic_rounding: bool = False,
    ) -> None:
        self.amsgrad = flag(type(self).__name__, "amsgrad", amsgrad)
        hyper = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(
            params, lr, hyper, clip_norm=clip_norm, clip_value=clip_value, groups=groups, ema=ema, master_weights=master_weights,
            clip_adaptive=clip_adaptive, stochastic_rounding=stochastic_rounding,
        )

    def _choose(self, values: list[Mapping[str, Any]]) -> None:
        if self.amsgrad:
            self.slot_names = ("m", "v", "most")
            self.kernel = self.kernel.replace("_step", "_amsgrad_step")

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), **({"amsgrad": True} if self.amsgrad else {})}

    def advance(self, settings: list[float]) -> None:
        super().advance(settings)
        self.debias(settings)

    def change(self, settings: list[float], p: Any, g: Any, slots: list[Any]) -> Any:
        self.average(settings, p, g, slots)
        if self.amsgrad:
            slots[2][...] = np.maximum(slots[2], slots[1])
        v = slots[-1]
        spread = v**0.5 / settings[c.STATE + 1] ** 0.5 + self.own(settings)[2]
        return self.decayed(settings, p, (-settings[c.RATE] / settings[c.STATE]) * (slots[0] / spread))


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, Alg. 2): torch.optim.AdamW's rule at equal arguments."""

    kernel = "adamw_step"
    decoupled = True

    def __init__(
        self, params: Params, lr: Rate = 1e-3, betas: Betas = (0.9, 0.999), eps: Number = 1e-8,
        weight_decay: Number = 1e-2, amsgrad: bool = False, *,
        clip_norm: float | None = None, clip_value: float | None = None, groups: Groups | None = None,
        ema: Number | None = None, master_weights: bool = False, clip_adaptive: float | None = None,
        stochastic_rounding: bool = False,
    ) -> None:
        common: Any = {
            "clip_norm": clip_norm, "clip_value": clip_value, "groups": groups, "ema": ema, "master_weights": master_weights,
            "clip_adaptive": clip_adaptive, "stochastic_rounding": stochastic_rounding,
        }
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **common)


class LAMB(_Moments):
    """LAMB (You et al. 2020, Alg. 2): Adam whose steps are scaled to the norm of each parameter's weights.

    weight_decay is part of the direction. The step of a parameter is lr times the ratio of the norms of its weights and of its
    direction, which is 1 if one of them is 0; a launch before the update computes the ratios, one for each member. The slots are
    those of Adam. The two launches of a step move 44 bytes per float32 weight.
    """

    kernel = "lamb_step"
    decoupled = True
    measured = True

    def __init__(
        self, params: Params, lr: Rate = 1e-3, betas: Betas = (0.9, 0.999), eps: Number = 1e-6, weight_decay: Number = 0, *,
        clip_norm: float | None = None, clip_value: float | None = None, groups: Groups | None = None,
        ema: Number | None = None, master_weights: bool = False, clip_adaptive: float | None = None,
        stochastic_rounding: bool = False,
    ) -> None:
        hyper = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(
            params, lr, hyper, clip_norm=clip_norm, clip_value=clip_value, groups=groups, ema=ema, master_weights=master_weights,
            clip_adaptive=clip_adaptive, stochastic_rounding=stochastic_rounding,
        )

    def advance(self, settings: list[float]) -> None:
        super().advance(settings)
        self.debias(settings)

    def change(self, settings: list[float], p: Any, g: Any, slots: list[Any]) -> Any:
        eps, weight_decay = self.own(settings)[2:]
        self.average(settings, p, g, slots)
        m, v = slots
        direction = m / settings[c.STATE] / (v**0.5 / settings[c.STATE + 1] ** 0.5 + eps)
        return (-settings[c.RATE] * settings[c.RATIO]) * (direction + weight_decay * p if weight_decay else direction)


class Adamax(Optimizer):
    """Adamax (Kingma & Ba 2015, Alg. 2): torch.optim.Adamax's rule at equal arguments. weight_decay is an L2 penalty.

    The slots "m" and "u" are a running mean of the gradient and its decaying maximum. A step moves 28 bytes per float32 weight.
    """

    kernel = "adamax_step"
    slot_names = ("m", "u")
    hyper: ClassVar[Mapping[str, int]] = {"betas": 2, "eps": 1, "weight_decay": 1}
    betas: Betas
    eps: Number
    weight_decay: Number

    def __init__(
        self, params: Params, lr: Rate = 2e-3, betas: Betas = (0.9, 0.999), eps: Number = 1e-8,
        weight_decay: Number = 0, *, clip_norm: float | None = None, clip_value: float | None = None, groups: Groups | None = None,
        ema: Number | None = None, master_weights: bool = False, clip_adaptive: float | None = None,
        stochastic_rounding: bool = False,
    ) -> None:
        hyper = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(
            params, lr, hyper, clip_norm=clip_norm, clip_value=clip_value, groups=groups, ema=ema, master_weights=master_weights,
            clip_adaptive=clip_adaptive, stochastic_rounding=stochastic_rounding,
        )

    def advance(self, settings: list[float]) -> None:
        super().advance(settings)
        settings[c.STATE] = 1 - self.own(settings)[0] ** settings[c.STEP]

    def change(self, settings: list[float], p: Any, g: Any, slots: list[Any]) -> Any:
        beta1, beta2, eps, weight_decay = self.own(settings)
        m, u = slots
        g = penalised(g, p, weight_decay)
        m[...] = beta1 * m + (1 - beta1) * g
        u[...] = np.maximum(beta2 * u, abs(g) + eps)
        return (-settings[c.RATE] / settings[c.STATE]) * (m / u)


class NAdam(_Moments):
    """NAdam (Dozat 2016): torch.optim.NAdam's rule at equal arguments.

    The slots are those of Adam. weight_decay is an L2 penalty unless decoupled_weight_decay. A step moves 28 bytes per float32
    weight.
    """

    kernel = "nadam_step"
    hyper: ClassVar[Mapping[str, int]] = {"betas": 2, "eps": 1, "weight_decay": 1, "momentum_decay": 1}
    momentum_decay: Number

    def __init__(
        self, params: Params, lr: Rate = 2e-3, betas: Betas = (0.9, 0.999), eps: Number = 1e-8,
        weight_decay: Number = 0, momentum_decay: Number = 4e-3,
        decoupled_weight_decay: bool = False, *,
        clip_norm: float | None = None, clip_value: float | None = None, groups: Groups | None = None,
        ema: Number | None = None, master_weights: bool = False, clip_adaptive: float | None = None,
        stochastic_rounding: bool = False,
    ) -> None:
        self.decoupled = flag(type(self).__name__, "decoupled_weight_decay", decoupled_weight_decay)
        self.kernel = "nadam_decoupled_step" if decoupled_weight_decay else "nadam_step"
        hyper = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "momentum_decay": momentum_decay}
        super().__init__(
            params, lr, hyper, clip_norm=clip_norm, clip_value=clip_value, groups=groups, ema=ema, master_weights=master_weights,
            clip_adaptive=clip_adaptive, stochastic_rounding=stochastic_rounding,
        )

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "decoupled_weight_decay": self.decoupled}

    def advance(self, settings: list[float]) -> None:
        before = settings[c.STATE + 2] if settings[c.STEP] else 1.0
        super().advance(settings)
        beta1, beta2, _, _, momentum_decay = self.own(settings)
        step = settings[c.STEP]
        now, following = [beta1 * (1 - 0.5 * 0.96 ** (t * momentum_decay)) for t in (step, step + 1)]
        product = before * now
        settings[c.STATE : c.STATE + 4] = [
            (1 - now) / (1 - product), 1 - beta2**step, product, following / (1 - product * following),
        ]

    def change(self, settings: list[float], p: Any, g: Any, slots: list[Any]) -> Any:
        g = self.average(settings, p, g, slots)
        gradient, debias2, _, mean = settings[c.STATE : c.STATE + 4]
        rate, spread = settings[c.RATE], (slots[1] / debias2) ** 0.5 + self.own(settings)[2]
        return self.decayed(settings, p, ((-rate * gradient) * g + (-rate * mean) * slots[0]) / spread)


class RAdam(_Moments):
    """RAdam (Liu et al. 2020, Alg. 2): torch.optim.RAdam's rule at equal arguments.

    The slots are those of Adam. weight_decay is an L2 penalty unless decoupled_weight_decay. A step moves 28 bytes per float32
    weight.
    """

    kernel = "radam_step"

    def __init__(
        self, params: Params, lr: Rate = 1e-3, betas: Betas = (0.9, 0.999), eps: Number = 1e-8,
        weight_decay: Number = 0, decoupled_weight_decay: bool = False, *,
        clip_norm: float | None = None, clip_value: float | None = None, groups: Groups | None = None,
        ema: Number | None = None, master_weights: bool = False, clip_adaptive: float | None = None,
        stochastic_rounding: bool = False,
    ) -> None:
        self.decoupled = flag(type(self).__name__, "decoupled_weight_decay", decoupled_weight_decay)
        self.kernel = "radam_decoupled_step" if decoupled_weight_decay else "radam_step"
        hyper = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(
            params, lr, hyper, clip_norm=clip_norm, clip_value=clip_value, groups=groups, ema=ema, master_weights=master_weights,
            clip_adaptive=clip_adaptive, stochastic_rounding=stochastic_rounding,
        )

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "decoupled_weight_decay": self.decoupled}

    def advance(self, settings: list[float]) -> None:
        super().advance(settings)
        self.debias(settings)
        debias2 = settings[c.STATE + 1]
        most = 2 / (1 - self.own(settings)[1]) - 1
        length = most - 2 * settings[c.STEP] * (1 - debias2) / debias2
        part = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length) if length > 5 else 0.0
        settings[c.STATE + 2] = (part * debias2) ** 0.5

    def change(self, settings: list[float], p: Any, g: Any, slots: list[Any]) -> Any:
        self.average(settings, p, g, slots)
        rectified = settings[c.STATE + 2]
        adapted = rectified / (slots[1] ** 0.5 + self.own(settings)[2]) if rectified else 1.0
        return self.decayed(settings, p, (-settings[c.RATE] / settings[c.STATE]) * (slots[0] * adapted))


# __all__ is computed so that each rule is listed once. A type checker assumes all public names defined here, which are the same.
__all__ = [
    name
    for name, value in globals().items()
    if isinstance(value, type) and value.__module__ == __name__ and not name.startswith("_")
]
