"""Adam and the rules that follow it. csrc/math/update_moments.h has their kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..ops._shapes import flag
from .groups import Betas, Number, Rate
from .optimizer import Optimizer
from .options import Options, Params, Unpack
from .rules import mixed, penalised


class _Moments(Optimizer):
    """A rule with running means of the gradient and of its square, whose weight decay is an L2 penalty or decoupled."""

    slot_names = ("m", "v")
    decoupled = False
    hyper: ClassVar[Mapping[str, int]] = {"betas": 2, "eps": 1, "weight_decay": 1}
    betas: Betas
    eps: Number
    weight_decay: Number

    def _step_numbers(self, h: Any) -> Sequence[float]:
        return [1 - beta**h.step for beta in h.betas]

    def _averaged(self, p: Any, g: Any, slots: Any, h: Any) -> tuple[Any, Any, Any]:
        """Returns the gradient that enters the means, and both means."""
        if not self.decoupled:
            g = penalised(g, p, h.weight_decay)
        return g, mixed(slots[0], g, h.betas[0]), mixed(slots[1], g * g, h.betas[1])

    def _decayed(self, change: Any, p: Any, h: Any) -> Any:
        """Returns the change with the decoupled weight decay."""
        return change - (h.lr * h.weight_decay) * p if self.decoupled and h.weight_decay else change


class Adam(_Moments):
    """Adam (Kingma & Ba 2015, Alg. 1): torch.optim.Adam's rule at equal arguments. weight_decay is an L2 penalty.

    The slots "m" and "v" are running means of the gradient and of its square. With amsgrad (Reddi et al. 2018, Alg. 2) the slot
    "most" is the largest "v" so far, which divides in its place. A step moves 28 bytes per float32 weight, 36 with amsgrad.
    """

    kernel = "adam_step"

    def __init__(
        self, params: Params, lr: Rate = 1e-3, betas: Betas = (0.9, 0.999), eps: Number = 1e-8,
        weight_decay: Number = 0, amsgrad: bool = False, **options: Unpack[Options],
    ) -> None:
        self.amsgrad = flag(type(self).__name__, "amsgrad", amsgrad)
        hyper = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, lr, hyper, **options)

    def _choose(self, values: list[Mapping[str, Any]]) -> None:
        if self.amsgrad:
            self.slot_names = ("m", "v", "most")
            self.kernel = self.kernel.replace("_step", "_amsgrad_step")

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), **({"amsgrad": True} if self.amsgrad else {})}

    def formula(self, p: Any, g: Any, slots: Any, h: Any) -> tuple[Any, Sequence[Any]]:
        _, m, v = self._averaged(p, g, slots, h)
        new = (m, v, np.maximum(slots[2], v)) if self.amsgrad else (m, v)
        spread = np.sqrt(new[-1]) / h.numbers[1] ** 0.5 + h.eps
        return self._decayed((-h.lr / h.numbers[0]) * (m / spread), p, h), new


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, Alg. 2): torch.optim.AdamW's rule at equal arguments."""

    kernel = "adamw_step"
    decoupled = True

    def __init__(
        self, params: Params, lr: Rate = 1e-3, betas: Betas = (0.9, 0.999), eps: Number = 1e-8,
        weight_decay: Number = 1e-2, amsgrad: bool = False, **options: Unpack[Options],
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)


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
        self, params: Params, lr: Rate = 1e-3, betas: Betas = (0.9, 0.999), eps: Number = 1e-6, weight_decay: Number = 0,
        **options: Unpack[Options],
    ) -> None:
        hyper = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, lr, hyper, **options)

    def formula(self, p: Any, g: Any, slots: Any, h: Any) -> tuple[Any, Sequence[Any]]:
        _, m, v = self._averaged(p, g, slots, h)
        debias1, debias2, _, ratio = h.numbers
        direction = m / debias1 / (np.sqrt(v) / debias2**0.5 + h.eps)
        return (-h.lr * ratio) * penalised(direction, p, h.weight_decay), (m, v)


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
        weight_decay: Number = 0, **options: Unpack[Options],
    ) -> None:
        hyper = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, lr, hyper, **options)

    def _step_numbers(self, h: Any) -> Sequence[float]:
        return [1 - h.betas[0] ** h.step]

    def formula(self, p: Any, g: Any, slots: Any, h: Any) -> tuple[Any, Sequence[Any]]:
        g = penalised(g, p, h.weight_decay)
        m, u = mixed(slots[0], g, h.betas[0]), np.maximum(h.betas[1] * slots[1], abs(g) + h.eps)
        return (-h.lr / h.numbers[0]) * (m / u), (m, u)


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
        decoupled_weight_decay: bool = False, **options: Unpack[Options],
    ) -> None:
        self.decoupled = flag(type(self).__name__, "decoupled_weight_decay", decoupled_weight_decay)
        self.kernel = "nadam_decoupled_step" if decoupled_weight_decay else "nadam_step"
        hyper = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "momentum_decay": momentum_decay}
        super().__init__(params, lr, hyper, **options)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "decoupled_weight_decay": self.decoupled}

    def _step_numbers(self, h: Any) -> Sequence[float]:
        before = h.numbers[2] if h.step > 1 else 1.0
        now, following = [h.betas[0] * (1 - 0.5 * 0.96 ** (t * h.momentum_decay)) for t in (h.step, h.step + 1)]
        product = before * now
        return (1 - now) / (1 - product), 1 - h.betas[1] ** h.step, product, following / (1 - product * following)

    def formula(self, p: Any, g: Any, slots: Any, h: Any) -> tuple[Any, Sequence[Any]]:
        g, m, v = self._averaged(p, g, slots, h)
        gradient, debias2, _, mean = h.numbers
        spread = np.sqrt(v / debias2) + h.eps
        return self._decayed(((-h.lr * gradient) * g + (-h.lr * mean) * m) / spread, p, h), (m, v)


class RAdam(_Moments):
    """RAdam (Liu et al. 2020, Alg. 2): torch.optim.RAdam's rule at equal arguments.

    The slots are those of Adam. weight_decay is an L2 penalty unless decoupled_weight_decay. A step moves 28 bytes per float32
    weight.
    """

    kernel = "radam_step"

    def __init__(
        self, params: Params, lr: Rate = 1e-3, betas: Betas = (0.9, 0.999), eps: Number = 1e-8,
        weight_decay: Number = 0, decoupled_weight_decay: bool = False, **options: Unpack[Options],
    ) -> None:
        self.decoupled = flag(type(self).__name__, "decoupled_weight_decay", decoupled_weight_decay)
        self.kernel = "radam_decoupled_step" if decoupled_weight_decay else "radam_step"
        hyper = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, lr, hyper, **options)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "decoupled_weight_decay": self.decoupled}

    def _step_numbers(self, h: Any) -> Sequence[float]:
        debias1, debias2 = super()._step_numbers(h)
        most = 2 / (1 - h.betas[1]) - 1
        length = most - 2 * h.step * (1 - debias2) / debias2
        part = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length) if length > 5 else 0.0
        return debias1, debias2, (part * debias2) ** 0.5

    def formula(self, p: Any, g: Any, slots: Any, h: Any) -> tuple[Any, Sequence[Any]]:
        _, m, v = self._averaged(p, g, slots, h)
        debias1, _, rectified, _ = h.numbers
        adapted = rectified / (np.sqrt(v) + h.eps) if rectified else 1.0
        return self._decayed((-h.lr / debias1) * (m * adapted), p, h), (m, v)


# __all__ is computed so that each rule is listed once. A type checker assumes all public names defined here, which are the same.
__all__ = [
    name
    for name, value in globals().items()
    if isinstance(value, type) and value.__module__ == __name__ and not name.startswith("_")
]
