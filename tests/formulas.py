"""Rules of optax written with `optim.rule`, and the same published formulas in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb
from pullback import optim

# ---- with optim.rule: at most six lines each


@optim.rule(slots=("m", "v"), lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
def Adam(p: Any, g: Any, m: Any, v: Any, h: Any) -> Any:
    (b1, b2), t = h.betas, h.step
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    return -h.lr * (m / (1 - b1**t)) / (pb.sqrt(v / (1 - b2**t)) + h.eps), m, v


@optim.rule(slots=("m",), lr=1e-4, beta1=0.9, beta2=0.99, weight_decay=1e-3)
def Lion(p: Any, g: Any, m: Any, h: Any) -> Any:
    update = pb.sign(h.beta1 * m + (1 - h.beta1) * g) + h.weight_decay * p
    return -h.lr * update, h.beta2 * m + (1 - h.beta2) * g


@optim.rule(slots=("m", "s"), lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-16)
def AdaBelief(p: Any, g: Any, m: Any, s: Any, h: Any) -> Any:
    m = h.beta1 * m + (1 - h.beta1) * g
    s = h.beta2 * s + (1 - h.beta2) * (g - m) ** 2 + h.eps
    spread = pb.sqrt(s / (1 - h.beta2**h.step)) + h.eps
    return -h.lr / (1 - h.beta1**h.step) * m / spread, m, s


@optim.rule(slots={"m": 1e-6, "v": 1e-6}, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-3)
def Yogi(p: Any, g: Any, m: Any, v: Any, h: Any) -> Any:
    m, v = h.beta1 * m + (1 - h.beta1) * g, v - (1 - h.beta2) * pb.sign(v - g * g) * (g * g)
    spread = pb.sqrt(v / (1 - h.beta2**h.step)) + h.eps
    return -h.lr / (1 - h.beta1**h.step) * m / spread, m, v


@optim.rule(slots=("m", "v", "n", "before"), lr=1e-3, b1=0.98, b2=0.92, b3=0.99, eps=1e-8)
def Adan(p: Any, g: Any, m: Any, v: Any, n: Any, before: Any, h: Any) -> Any:
    change, t = pb.where(h.step > 1, g - before, 0.0), h.step
    m, v = h.b1 * m + (1 - h.b1) * g, h.b2 * v + (1 - h.b2) * change
    n = h.b3 * n + (1 - h.b3) * (g + (1 - h.b2) * change) ** 2
    return -h.lr * (m / (1 - h.b1**t) + (1 - h.b2) / (1 - h.b2**t) * v) / (pb.sqrt(n / (1 - h.b3**t) + h.eps) + h.eps), m, v, n, g


@optim.rule(slots=("size", "before"), lr=1e-2, down=0.5, up=1.2, least=1e-6, most=50.0)
def Rprop(p: Any, g: Any, size: Any, before: Any, h: Any) -> Any:
    size = pb.where(h.step > 1, size, h.lr)
    agrees = g * before
    size = pb.clip(size * pb.where(agrees > 0, h.up, pb.where(agrees < 0, h.down, 1.0)), h.least, h.most)
    g = pb.where(agrees < 0, 0.0, g)
    return -size * pb.sign(g), size, g


@optim.rule(slots=("before",), lr=1e-2, alpha=1.0, beta=0.8)
def Optimistic(p: Any, g: Any, before: Any, h: Any) -> Any:
    return -h.lr * ((h.alpha + h.beta) * g - h.beta * pb.where(h.step > 1, before, g)), g


@optim.rule(slots={"v": 0.1}, lr=1e-2, eps=1e-7)
def Adagrad(p: Any, g: Any, v: Any, h: Any) -> Any:
    v = v + g * g
    return -h.lr * g / pb.sqrt(v + h.eps), v


@optim.rule(slots=("m",), lr=1e-3, beta=0.9)
def Signum(p: Any, g: Any, m: Any, h: Any) -> Any:
    m = h.beta * m + (1 - h.beta) * g
    return -h.lr * pb.sign(m), m


def ratio(p: Any, u: Any) -> Any:
    """Returns |p| / |u|, and 1 if either is 0."""
    a, b = pb.sqrt(pb.sum(p * p)), pb.sqrt(pb.sum(u * u))
    return pb.where((a > 0) & (b > 0), a / pb.where(b > 0, b, 1.0), 1.0)


@optim.rule(slots=("m", "v"), lr=1e-2, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.01)
def LAMB(p: Any, g: Any, m: Any, v: Any, h: Any) -> Any:
    m, v, t = h.beta1 * m + (1 - h.beta1) * g, h.beta2 * v + (1 - h.beta2) * g * g, h.step
    u = m / (1 - h.beta1**t) / (pb.sqrt(v / (1 - h.beta2**t)) + h.eps) + h.weight_decay * p
    return -h.lr * ratio(p, u) * u, m, v


@optim.rule(slots=("momentum",), lr=0.1, weight_decay=0.01, trust=0.01, decay=0.9)
def LARS(p: Any, g: Any, momentum: Any, h: Any) -> Any:
    u = g + h.weight_decay * p
    momentum = h.decay * momentum - h.lr * h.trust * ratio(p, u) * u
    return momentum, momentum


@optim.rule(lr=1e-2, least=1e-6)
def Fromage(p: Any, g: Any, h: Any) -> Any:
    norms = [pb.maximum(pb.sqrt(pb.sum(x * x)), h.least) for x in (p, g)]
    factor = 1 / pb.sqrt(1 + h.lr**2)
    return (factor - 1) * p - factor * h.lr * (norms[0] / norms[1]) * g


# ---- in NumPy: next(p, g, state, t, lr) returns the new weights. state: a dict that holds the slots after the first step

Next = Callable[[Any, Any, dict[str, Any], int, float], Any]


def moments(g: Any, s: dict[str, Any], b1: float, b2: float, start: float = 0.0) -> None:
    s["m"] = b1 * s.get("m", start) + (1 - b1) * g
    s["v"] = b2 * s.get("v", start) + (1 - b2) * g * g


def adam(p: Any, g: Any, s: dict[str, Any], t: int, lr: float) -> Any:
    moments(g, s, 0.9, 0.999)
    return p - lr * (s["m"] / (1 - 0.9**t)) / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-8)


def lion(p: Any, g: Any, s: dict[str, Any], t: int, lr: float) -> Any:
    before = s.get("m", np.zeros_like(p))
    s["m"] = 0.99 * before + 0.01 * g
    return p - lr * (np.sign(0.9 * before + 0.1 * g) + 1e-3 * p)


def adabelief(p: Any, g: Any, s: dict[str, Any], t: int, lr: float) -> Any:
    s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
    s["s"] = 0.999 * s.get("s", 0.0) + 0.001 * (g - s["m"]) ** 2 + 1e-16
    return p - lr * (s["m"] / (1 - 0.9**t)) / (np.sqrt(s["s"] / (1 - 0.999**t)) + 1e-16)


def yogi(p: Any, g: Any, s: dict[str, Any], t: int, lr: float) -> Any:
    v = s.get("v", 1e-6)
    s["m"] = 0.9 * s.get("m", 1e-6) + 0.1 * g
    s["v"] = v - 0.001 * np.sign(v - g**2) * g**2
    return p - lr * (s["m"] / (1 - 0.9**t)) / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-3)


def adan(p: Any, g: Any, s: dict[str, Any], t: int, lr: float) -> Any:
    change = g - s.get("g", g)
    s["g"] = g
    s["m"] = 0.98 * s.get("m", 0.0) + 0.02 * g
    s["v"] = 0.92 * s.get("v", 0.0) + 0.08 * change
    s["n"] = 0.99 * s.get("n", 0.0) + 0.01 * (g + 0.08 * change) ** 2
    mean = s["m"] / (1 - 0.98**t) + 0.08 * s["v"] / (1 - 0.92**t)
    return p - lr * mean / (np.sqrt(s["n"] / (1 - 0.99**t) + 1e-8) + 1e-8)


def rprop(p: Any, g: Any, s: dict[str, Any], t: int, lr: float) -> Any:
    agrees = g * s.get("g", 0.0)
    grown = s.get("size", np.full_like(p, lr)) * np.where(agrees > 0, 1.2, np.where(agrees < 0, 0.5, 1.0))
    s["size"] = grown.clip(1e-6, 50.0)
    s["g"] = np.where(agrees < 0, 0.0, g)
    return p - s["size"] * np.sign(s["g"])


def optimistic(p: Any, g: Any, s: dict[str, Any], t: int, lr: float) -> Any:
    before, s["g"] = s.get("g", g), g
    return p - lr * (1.8 * g - 0.8 * before)


def adagrad(p: Any, g: Any, s: dict[str, Any], t: int, lr: float) -> Any:
    s["v"] = s.get("v", 0.1) + g**2
    return p - lr * g / np.sqrt(s["v"] + 1e-7)


def signum(p: Any, g: Any, s: dict[str, Any], t: int, lr: float) -> Any:
    s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
    return p - lr * np.sign(s["m"])


def trust(p: Any, u: Any) -> float:
    a, b = float(np.linalg.norm(np.ravel(p))), float(np.linalg.norm(np.ravel(u)))
    return a / b if a > 0 and b > 0 else 1.0


def lamb(p: Any, g: Any, s: dict[str, Any], t: int, lr: float) -> Any:
    moments(g, s, 0.9, 0.999)
    u = s["m"] / (1 - 0.9**t) / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-6) + 0.01 * p
    return p - lr * trust(p, u) * u


def lars(p: Any, g: Any, s: dict[str, Any], t: int, lr: float) -> Any:
    u = g + 0.01 * p
    s["m"] = 0.9 * s.get("m", 0.0) - lr * 0.01 * trust(p, u) * u
    return p + s["m"]


def fromage(p: Any, g: Any, s: dict[str, Any], t: int, lr: float) -> Any:
    norms = [max(float(np.linalg.norm(np.ravel(x))), 1e-6) for x in (p, g)]
    return (p - lr * norms[0] / norms[1] * g) / np.sqrt(1 + lr**2)


FORMULAS: dict[str, tuple[Any, Next]] = {
    "adam": (Adam, adam), "lion": (Lion, lion), "adabelief": (AdaBelief, adabelief), "yogi": (Yogi, yogi), "adan": (Adan, adan),
    "rprop": (Rprop, rprop), "optimistic": (Optimistic, optimistic), "adagrad": (Adagrad, adagrad), "signum": (Signum, signum),
    "lamb": (LAMB, lamb), "lars": (LARS, lars), "fromage": (Fromage, fromage),
}
REDUCING = ("lamb", "lars", "fromage")


def simplex(v: Any) -> Any:
    """Returns the nearest distribution to a vector by bisection: the number that is subtracted from all weights is unknown."""
    low, high = v.max() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - low, 0)
