"""The update rules of optimizers, each in pullback's words and in those of torch.optim: a class, and its options."""

from __future__ import annotations

from typing import Any

from pullback import optim

RULES: dict[str, tuple[Any, dict[str, Any], str, dict[str, Any]]] = {
    "sgd": (optim.SGD, {"lr": 0.1}, "SGD", {"lr": 0.1}),
    "sgd-momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9}, "SGD", {"lr": 0.1, "momentum": 0.9}),
    "sgd-dampening": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.02}, "SGD",
                      {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.02}),
    "sgd-nesterov": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "SGD",
                     {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (optim.Adam, {"lr": 0.01}, "Adam", {"lr": 0.01}),
    "adam-decay": (optim.Adam, {"lr": 0.01, "weight_decay": 0.1}, "Adam", {"lr": 0.01, "weight_decay": 0.1}),
    "adamw": (optim.AdamW, {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-6}, "AdamW",
              {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-6}),
}  # fmt: skip
