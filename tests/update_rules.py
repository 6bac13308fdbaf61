"""The optimizers that tests cover, with one row per formula: a class with several formulas has several rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback import optim

RULES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (optim.SGD, {"lr": 0.1}),
    "sgd-decay": (optim.SGD, {"lr": 0.1, "weight_decay": 0.02}),
    "sgd-momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "sgd-dampening": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.02}),
    "sgd-nesterov": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "sgd-nesterov-decay": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.02}),
    "adam": (optim.Adam, {"lr": 0.01}),
    "adam-decay": (optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    "adamw": (optim.AdamW, {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-6}),
    "adam-amsgrad": (optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    "adamw-amsgrad": (optim.AdamW, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    "adamax": (optim.Adamax, {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.95)}),
    "nadam": (optim.NAdam, {"lr": 0.01, "weight_decay": 0.1}),
    "nadam-decoupled": (optim.NAdam, {"lr": 0.01, "weight_decay": 0.1, "momentum_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": (optim.RAdam, {"lr": 0.01, "weight_decay": 0.1}),
    "radam-decoupled": (optim.RAdam, {"lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.9), "decoupled_weight_decay": True}),
    "rmsprop": (optim.RMSprop, {"lr": 0.01, "weight_decay": 0.1}),
    "rmsprop-momentum": (optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "alpha": 0.9}),
    "rmsprop-centered": (optim.RMSprop, {"lr": 0.01, "centered": True, "eps": 1e-3}),
    "rmsprop-momentum-centered": (optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True, "eps": 1e-3, "weight_decay": 0.1}),
    "adagrad": (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.2}),
    "adadelta": (optim.Adadelta, {"lr": 0.7, "rho": 0.8, "weight_decay": 0.1}),
    "lamb": (optim.LAMB, {"lr": 0.01, "weight_decay": 0.1}),
    "schedule-free": (optim.ScheduleFreeSGD, {"lr": 0.1, "weight_decay": 0.1, "warmup_steps": 3}),
    "schedule-free-adamw": (optim.ScheduleFreeAdamW, {"lr": 0.01, "weight_decay": 0.1, "warmup_steps": 3, "r": 0.5}),
    "lion": (optim.Lion, {"lr": 0.01, "weight_decay": 0.1}),
}

OF_PAPERS = {"lamb", "schedule-free", "schedule-free-adamw", "lion"}  # rules that torch.optim does not have


def lion(
    p: Any, gradients: list[Any], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
) -> list[Any]:
    """Returns the weights after each step of Chen et al. 2023, Algorithm 2, which torch.optim does not have."""
    m, found = np.zeros_like(p), list[Any]()
    for g in gradients:
        c = betas[0] * m + (1 - betas[0]) * g
        p = p - lr * (np.sign(c) + weight_decay * p)
        m = betas[1] * m + (1 - betas[1]) * g
        found.append(p)
    return found
