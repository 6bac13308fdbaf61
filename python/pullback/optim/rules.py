"""The update rules: one class per rule, with its formula. The kernel of a rule is a struct in csrc/math/update.h.

A formula returns the change of the weights and the new slots. It consists of operators and of NumPy's functions, which compute
arrays, and are ops of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..errors import PullbackError
from ..ops._shapes import flag
from .groups import Betas, Number, Rate, checked
from .optimizer import Optimizer
from .options import Options, Params, Unpack


class SGD(Optimizer):
    """Stochastic gradient descent with momentum: torch.optim.SGD's rule at equal arguments.

    It has the slot "momentum" if momentum is not 0. A step moves 12 bytes per float32 weight, 20 with momentum.
    """

    kernel = "sgd_step"
    hyper: ClassVar[Mapping[str, int]] = {"momentum": 1, "dampening": 1, "weight_decay": 1}
    momentum: Number
    dampening: Number
    weight_decay: Number

    def __init__(
        self, params: Params, lr: Rate = 1e-3, momentum: Number = 0, dampening: Number = 0, nesterov: bool = False,
        weight_decay: Number = 0, **options: Unpack[Options],
    ) -> None:
        self.nesterov = flag("SGD", "nesterov", nesterov)
        hyper = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, lr, hyper, **options)

    def _choose(self, values: list[Mapping[str, Any]]) -> None:
        if _any_momentum(values):
            self.slot_names = ("momentum",)
            self.kernel = "sgd_nesterov_step" if self.nesterov else "sgd_momentum_step"

    def _validate(self, values: Mapping[str, Any]) -> None:
        momentum, dampening = np.asarray(values["momentum"]), np.asarray(values["dampening"])
        if self.nesterov and not (np.all(momentum > 0) and np.all(dampening == 0)):
            raise PullbackError("SGD: nesterov=True needs momentum > 0 and dampening = 0.")
        refuse_late_momentum(self, values)

    def settings(self) -> dict[str, Any]:
        values = super().settings()
        weight_decay = values.pop("weight_decay")
        return {**values, "nesterov": self.nesterov, "weight_decay": weight_decay}

    def formula(self, p: Any, g: Any, slots: Any, h: Any) -> tuple[Any, Sequence[Any]]:
        g = penalised(g, p, h.weight_decay)
        if not slots:
            return -h.lr * g, ()
        first = h.step <= 1
        m = (0.0 if first else h.momentum) * slots[0] + (1.0 if first or not h.momentum else 1 - h.dampening) * g
        return -h.lr * (g + h.momentum * m if self.nesterov else m), (m,)


def penalised(g: Any, p: Any, weight_decay: float) -> Any:
    """Returns the gradient of the loss with an L2 penalty, or a direction with decay of the weights."""
    return g + weight_decay * p if weight_decay else g


def mixed(m: Any, x: Any, keep: float) -> Any:
    """Returns a running mean that keeps this share of itself, and takes the rest of x."""
    return keep * m + (1 - keep) * x


def _any_momentum(values: list[Mapping[str, Any]]) -> bool:
    return any([bool(np.any(np.asarray(value["momentum"]) > 0)) for value in values])


def refuse_late_momentum(opt: Optimizer, values: Mapping[str, Any]) -> None:
    """Raises PullbackError for momentum in an optimizer that was made without the slot for it."""
    if "_memory" in vars(opt) and "momentum" not in opt.slot_names and _any_momentum([values]):
        raise PullbackError(
            f"{type(opt).__name__}: momentum={values['momentum']}; this optimizer was made with momentum=0 and has no momentum "
            f"buffer. Make it with the momentum that it shall have, which can be changed later."
        )


class RMSprop(Optimizer):
    """RMSprop (Tieleman & Hinton 2012; centered: Graves 2013): torch.optim.RMSprop's rule at equal arguments.

    The slot "v" is a running mean of the square of the gradient. With momentum there is the slot "momentum", and if centered the
    slot "m", the running mean of the gradient. A step moves 20 bytes per float32 weight, and 8 for each further slot.
    """

    kernel = "rmsprop_step"
    slot_names = ("v",)
    hyper: ClassVar[Mapping[str, int]] = {"alpha": 1, "eps": 1, "momentum": 1, "weight_decay": 1}
    alpha: Number
    eps: Number
    momentum: Number
    weight_decay: Number

    def __init__(
        self, params: Params, lr: Rate = 1e-2, alpha: Number = 0.99, eps: Number = 1e-8, weight_decay: Number = 0,
        momentum: Number = 0, centered: bool = False, **options: Unpack[Options],
    ) -> None:
        self.centered = flag("RMSprop", "centered", centered)
        hyper = {"alpha": alpha, "eps": eps, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, lr, hyper, **options)

    def _choose(self, values: list[Mapping[str, Any]]) -> None:
        with_momentum = _any_momentum(values)
        self.slot_names = ("v", *(["momentum"] if with_momentum else []), *(["m"] if self.centered else []))
        self.kernel = f"rmsprop{'_momentum' if with_momentum else ''}{'_centered' if self.centered else ''}_step"

    def _validate(self, values: Mapping[str, Any]) -> None:
        refuse_late_momentum(self, values)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "centered": self.centered}

    def formula(self, p: Any, g: Any, slots: Any, h: Any) -> tuple[Any, Sequence[Any]]:
        slot = dict(zip(self.slot_names, slots))
        g = penalised(g, p, h.weight_decay)
        slot["v"] = variance = mixed(slot["v"], g * g, h.alpha)
        if self.centered:
            slot["m"] = mixed(slot["m"], g, h.alpha)
            variance = np.maximum(variance - slot["m"] * slot["m"], 0.0)
        g = g / (np.sqrt(variance) + h.eps)
        if "momentum" in slot:
            slot["momentum"] = g = h.momentum * slot["momentum"] + g
        return -h.lr * g, tuple(slot.values())


class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011): torch.optim.Adagrad's rule at equal arguments.

    The slot "v" is the sum of the squares of the gradients, which starts at initial_accumulator_value. A step moves 20 bytes per
    float32 weight.
    """

    kernel = "adagrad_step"
    slot_names = ("v",)
    hyper: ClassVar[Mapping[str, int]] = {"lr_decay": 1, "weight_decay": 1, "eps": 1}
    lr_decay: Number
    weight_decay: Number
    eps: Number

    def __init__(
        self, params: Params, lr: Rate = 1e-2, lr_decay: Number = 0, weight_decay: Number = 0,
        initial_accumulator_value: float = 0, eps: Number = 1e-10, **options: Unpack[Options],
    ) -> None:
        first = checked("Adagrad", "initial_accumulator_value", initial_accumulator_value, 1)
        if np.ndim(first):
            raise PullbackError(
                f"Adagrad: initial_accumulator_value={initial_accumulator_value!r}; it must be one number, also for members."
            )
        self.slot_starts = {"v": first}
        hyper = {"lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        super().__init__(params, lr, hyper, **options)

    def _rate(self, h: Any) -> float:
        return h.lr / (1 + (h.step - 1) * h.lr_decay)

    def formula(self, p: Any, g: Any, slots: Any, h: Any) -> tuple[Any, Sequence[Any]]:
        g = penalised(g, p, h.weight_decay)
        v = slots[0] + g * g
        return -h.lr * (g / (np.sqrt(v) + h.eps)), (v,)


class Adadelta(Optimizer):
    """Adadelta (Zeiler 2012, Alg. 1): torch.optim.Adadelta's rule at equal arguments.

    The slots "v" and "u" are running means of the squares of the gradient and of the change. A step moves 28 bytes per float32
    weight.
    """

    kernel = "adadelta_step"
    slot_names = ("v", "u")
    hyper: ClassVar[Mapping[str, int]] = {"rho": 1, "eps": 1, "weight_decay": 1}
    rho: Number
    eps: Number
    weight_decay: Number

    def __init__(
        self, params: Params, lr: Rate = 1.0, rho: Number = 0.9, eps: Number = 1e-6, weight_decay: Number = 0,
        **options: Unpack[Options],
    ) -> None:
        hyper = {"rho": rho, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, lr, hyper, **options)

    def formula(self, p: Any, g: Any, slots: Any, h: Any) -> tuple[Any, Sequence[Any]]:
        v, u = slots
        g = penalised(g, p, h.weight_decay)
        v = mixed(v, g * g, h.rho)
        step = np.sqrt(u + h.eps) / np.sqrt(v + h.eps) * g
        return -h.lr * step, (v, mixed(u, step * step, h.rho))


class Lion(Optimizer):
    """Lion (Chen et al. 2023, Alg. 2): each weight moves by the learning rate, up or down. weight_decay is decoupled.

    The slot "m" is a running mean of the gradient. A step moves 20 bytes per float32 weight.
    """

    kernel = "lion_step"
    slot_names = ("m",)
    hyper: ClassVar[Mapping[str, int]] = {"betas": 2, "weight_decay": 1}
    betas: Betas
    weight_decay: Number

    def __init__(
        self, params: Params, lr: Rate = 1e-4, betas: Betas = (0.9, 0.99), weight_decay: Number = 0.0, **options: Unpack[Options],
    ) -> None:
        hyper = {"betas": betas, "weight_decay": weight_decay}
        super().__init__(params, lr, hyper, **options)

    def formula(self, p: Any, g: Any, slots: Any, h: Any) -> tuple[Any, Sequence[Any]]:
        direction = np.sign(mixed(slots[0], g, h.betas[0]))
        return -h.lr * penalised(direction, p, h.weight_decay), (mixed(slots[0], g, h.betas[1]),)


# __all__ is computed so that each rule is listed once. A type checker assumes all public names defined here, which are the same.
__all__ = [name for name, value in globals().items() if isinstance(value, type) and value.__module__ == __name__]
