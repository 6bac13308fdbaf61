"""Bound-constrained problems of Hock and Schittkowski (1981), and of the CUTEst collection."""

from __future__ import annotations

from typing import Any

import numpy as np

from .problem import smooth, squares
from .squares import powell_singular, rosenbr
from .sums import scattered

Array = Any
INF = np.inf


@squares([-2.0, 1.0], [-INF, -1.5])
def hs1(x: Array) -> Any:
    return rosenbr(x)


@squares([-2.0, 1.0], [-INF, 1.5])
def hs2(x: Array) -> Any:
    return rosenbr(x)


@smooth([10.0, 1.0], [-INF, 0])
def hs3(x: Array) -> Any:
    d = x[1] - x[0]
    return float(x[1] + 1e-5 * d * d), np.array([-2e-5 * d, 1 + 2e-5 * d])


@smooth([1.125, 0.125], [1, 0])
def hs4(x: Array) -> Any:
    return float((x[0] + 1) ** 3 / 3 + x[1]), np.array([(x[0] + 1) ** 2, 1])


@smooth([0.0, 0.0], [-1.5, -3], [4, 3])
def hs5(x: Array) -> Any:
    a, b = x
    c, d = np.cos(a + b), 2 * (a - b)
    return float(np.sin(a + b) + (a - b) ** 2 - 1.5 * a + 2.5 * b + 1), np.array([c + d - 1.5, c - d + 2.5])


@squares([100.0, 12.5, 3.0], [0.1, 0, 0], [100, 25.6, 5])
def hs25(x: Array) -> Any:
    i = np.arange(1, 100)
    d = 25 + (-50 * np.log(0.01 * i)) ** (2 / 3) - x[1]
    size = d ** x[2]
    e = np.exp(-size / x[0])
    return e - 0.01 * i, np.stack([e * size / x[0] ** 2, e * x[2] * size / (d * x[0]), -e * size * np.log(d) / x[0]], axis=1)


@smooth(np.full(5, 2.0), 0, np.arange(1.0, 6))
def hs45(x: Array) -> Any:
    others = np.array([np.prod(np.delete(x, k)) for k in range(5)])
    return float(2 - np.prod(x) / 120), -others / 120


@smooth(np.full(10, 9.0), 2.001, 9.999)
def hs110(x: Array) -> Any:
    a, b, product = np.log(x - 2), np.log(10 - x), np.prod(x) ** 0.2
    return float((a * a + b * b).sum() - product), 2 * a / (x - 2) - 2 * b / (10 - x) - 0.2 * product / x


@smooth([10.0, 1.0], [0, -INF])
def mdhole(x: Array) -> Any:
    d = np.sin(x[0]) - x[1]
    return float(100 * d * d + x[0]), np.array([200 * d * np.cos(x[0]) + 1, -200 * d])


@smooth([1.1, 1.1], [-3, -1.5], [3, 1.5])
def camel6(x: Array) -> Any:
    a, b = x
    f = 4 * a * a - 2.1 * a**4 + a**6 / 3 + a * b - 4 * b * b + 4 * b**4
    return float(f), np.array([8 * a - 8.4 * a**3 + 2 * a**5 + b, a - 8 * b + 16 * b**3])


@smooth([-1.2, 1.0], 0)
def logros(x: Array) -> Any:
    a, b = x
    d = b - a * a
    inner = 1 + 10000 * d * d + (1 - a) ** 2
    return float(np.log(inner)), np.array([-40000 * d * a - 2 * (1 - a), 20000 * d]) / inner


@smooth(np.ones(50), 0)
def bdexp(x: Array) -> Any:
    n, i = x.size, np.arange(x.size - 2)
    s, z = x[i] + x[i + 1], x[i + 2]
    e = np.exp(-z * s)
    slope = e * (1 - s * z)
    return float((s * e).sum()), scattered(n, (i, slope), (i + 1, slope), (i + 2, -s * s * e))


@smooth(np.ones(10), -1.5, 3)
def mccormck(x: Array) -> Any:
    a, b = x[:-1], x[1:]
    c, d = np.cos(a + b), 2 * (a - b)
    f = -1.5 * a + 2.5 * b + 1 + (a - b) ** 2 + np.sin(a + b)
    return float(f.sum()), np.append(c + d - 1.5, 0) + np.append(0, c - d + 2.5)


@smooth(np.full(25, 3.0), np.where(np.arange(25) % 2 == 0, 1, -100), 100)
def nonscomp(x: Array) -> Any:
    r = x[1:] - x[:-1] ** 2
    g = np.append(0, 8 * r) - np.append(16 * r * x[:-1], 0)
    g[0] += 2 * (x[0] - 1)
    return float((x[0] - 1) ** 2 + 4 * (r * r).sum()), g


@smooth(np.zeros(12), 0, 10)
def explin(x: Array) -> Any:
    i = np.arange(1, 13)
    e = np.exp(0.1 * x[:5] * x[1:6])
    g = -10.0 * i + scattered(12, (np.arange(5), 0.1 * e * x[1:6]), (np.arange(1, 6), 0.1 * e * x[:5]))
    return float(e.sum() - 10 * (i @ x)), g


def hatfld(x: Array) -> Any:
    n = x.size
    root = np.sqrt(x[1:])
    jacobian = np.eye(n)[:-1] - np.eye(n)[1:] / (2 * root[:, None])
    return np.append(x[0] - 1, x[:-1] - root), np.vstack([np.eye(n)[0], jacobian])


@squares(np.full(4, 0.1), 1e-7)
def hatflda(x: Array) -> Any:
    return hatfld(x)


@squares(np.full(4, 0.1), 1e-7, [INF, 0.8, INF, INF])
def hatfldb(x: Array) -> Any:
    return hatfld(x)


@squares(np.full(25, 0.9), 0, 10)
def hatfldc(x: Array) -> Any:
    n = x.size
    jacobian = np.eye(n)[2:] - 2 * x[1:-1, None] * np.eye(n)[1:-1]
    return np.concatenate([[x[0] - 1], x[2:] - x[1:-1] ** 2, [x[-1] - 1]]), np.vstack([np.eye(n)[0], jacobian, np.eye(n)[-1]])


@smooth(np.full(4, 3.0), None, [-1, INF, INF, INF])
def pspdoc(x: Array) -> Any:
    a, b, c, d = x
    p, q = np.sqrt(1 + a * a + (b - c) ** 2), np.sqrt(1 + b * b + (c - d) ** 2)
    return float(p + q), np.array([a / p, (b - c) / p + b / q, (c - b) / p + (c - d) / q, (d - c) / q])


@squares([3.0, -1.0, 0.0, 1.0] * 5, np.tile([0.1, -INF, -INF, -INF], 5))
def bpowsing(x: Array) -> Any:
    return powell_singular(x)


SIDE = 8
STEP = 1 / (SIDE + 1)
TWO = 2 * np.eye(SIDE) - np.eye(SIDE, k=1) - np.eye(SIDE, k=-1)
LAPLACE = np.kron(TWO, np.eye(SIDE)) + np.kron(np.eye(SIDE), TWO)
ACROSS, DOWN = (part.ravel() for part in np.meshgrid(*[np.arange(1, SIDE + 1) * STEP] * 2))
DISTANCE = np.minimum(np.minimum(ACROSS, 1 - ACROSS), np.minimum(DOWN, 1 - DOWN))


def membrane(x: Array, load: float) -> Any:
    """Returns the energy of a membrane on a square grid under a load, and its gradient."""
    pulled = LAPLACE @ x
    return float(x @ pulled / 2 - load * STEP**2 * x.sum()), pulled - load * STEP**2


@smooth(np.zeros(SIDE * SIDE), -DISTANCE, DISTANCE)
def torsion1(x: Array) -> Any:
    return membrane(x, 5.0)


@smooth(DISTANCE, -DISTANCE, DISTANCE)
def torsion6(x: Array) -> Any:
    return membrane(x, 20.0)


@smooth(np.ones(SIDE * SIDE), np.sin(3.2 * ACROSS) * np.sin(3.3 * DOWN), 2000)
def obstclal(x: Array) -> Any:
    return membrane(x, 1.0)


@smooth(
    np.zeros(SIDE * SIDE), (np.sin(9.2 * ACROSS) * np.sin(9.3 * DOWN)) ** 3, (np.sin(9.2 * ACROSS) * np.sin(9.3 * DOWN)) ** 2 + 0.02
)
def obstclbl(x: Array) -> Any:
    return membrane(x, 1.0)
