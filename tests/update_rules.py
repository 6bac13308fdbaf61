"""The optimizers that tests run on: a row for each, and a class with several formulas has a row for each of them."""

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
    "lion": (optim.Lion, {"lr": 0.01, "weight_decay": 0.1}),
}


def lion(
    p: Any, gradients: list[Any], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
) -> list[Any]:
    """The weights after each step of Chen et al. 2023, Algorithm 2, which torch.optim does not have."""
    m, found = np.zeros_like(p), list[Any]()
    for g in gradients:
        c = betas[0] * m + (1 - betas[0]) * g
        p = p - lr * (np.sign(c) + weight_decay * p)
        m = betas[1] * m + (1 - betas[1]) * g
        found.append(p)
    return found
