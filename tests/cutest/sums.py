"""Unconstrained problems of Conn, Gould and Toint, of Buckley and of Himmelblau, as in the CUTEst collection."""

from __future__ import annotations

from typing import Any

import numpy as np

from .problem import smooth, squares

Array = Any


def scattered(n: int, *parts: tuple[Any, Any]) -> Array:
    """Returns the sum of vectors that each add values at indices."""
    total = np.zeros(n)
    for index, values in parts:
        np.add.at(total, index, values)
    return total


@smooth(np.ones(100))
def arwhead(x: Array) -> Any:
    a, z = x[:-1], x[-1]
    q = a * a + z * z
    return float((3 - 4 * a + q * q).sum()), np.append(4 * q * a - 4, 4 * z * q.sum())


@smooth(np.ones(100))
def bdqrtic(x: Array) -> Any:
    n = x.size
    i = np.arange(n - 4)
    line, q = 3 - 4 * x[i], sum(k * x[i + k - 1] ** 2 for k in (1, 2, 3, 4)) + 5 * x[-1] ** 2
    parts = [(i + k - 1, 4 * q * k * x[i + k - 1]) for k in (1, 2, 3, 4)]
    return float((line**2 + q**2).sum()), scattered(n, (i, -8 * line), *parts, (n - 1, 20 * x[-1] * q.sum()))


@smooth(np.full(100, 3.0))
def dqdrtic(x: Array) -> Any:
    i = np.arange(x.size - 2)
    f = (x[i] ** 2 + 100 * x[i + 1] ** 2 + 100 * x[i + 2] ** 2).sum()
    return float(f), scattered(x.size, (i, 2 * x[i]), (i + 1, 200 * x[i + 1]), (i + 2, 200 * x[i + 2]))


@smooth(np.full(25, 2.0))
def quartc(x: Array) -> Any:
    d = x - np.arange(1, x.size + 1)
    return float((d**4).sum()), 4 * d**3


@smooth(np.full(50, 2.0))
def engval1(x: Array) -> Any:
    a, b = x[:-1], x[1:]
    q = a * a + b * b
    return float((q * q + 3 - 4 * a).sum()), np.append(4 * q * a - 4, 0) + np.append(0, 4 * q * b)


@smooth([-1.2, 1.0])
def himmelbb(x: Array) -> Any:
    a, b = x
    inner = 1 - b - a * (1 - a) ** 5
    r = a * b * (1 - a) * inner
    da = b * (1 - 2 * a) * inner + a * b * (1 - a) * (-((1 - a) ** 5) + 5 * a * (1 - a) ** 4)
    return float(r * r), 2 * r * np.array([da, a * (1 - a) * inner - a * b * (1 - a)])


@smooth([0.5, 0.5])
def himmelbg(x: Array) -> Any:
    a, b = x
    e, q = np.exp(-a - b), 2 * a * a + 3 * b * b
    return float(e * q), e * np.array([4 * a - q, 6 * b - q])


@smooth([0.0, 2.0])
def himmelbh(x: Array) -> Any:
    a, b = x
    return float(-3 * a - 2 * b + 2 + a**3 + b * b), np.array([3 * a * a - 3, 2 * b - 2])


@smooth([1.0, 0.1])
def sisser(x: Array) -> Any:
    a, b = x
    return float(3 * a**4 - 2 * a * a * b * b + 3 * b**4), np.array([12 * a**3 - 4 * a * b * b, 12 * b**3 - 4 * a * a * b])


@smooth([0.0, -1.0])
def cliff(x: Array) -> Any:
    a, b = x
    e = 20 * np.exp(20 * (a - b))
    return float(((a - 3) / 100) ** 2 - a + b + e / 20), np.array([2 * (a - 3) / 1e4 - 1 + e, 1 - e])


@smooth([3.0, 8.0])
def zangwil2(x: Array) -> Any:
    a, b = x
    f = (16 * a * a + 16 * b * b - 8 * a * b - 56 * a - 256 * b + 991) / 15
    return float(f), np.array([32 * a - 8 * b - 56, 32 * b - 8 * a - 256]) / 15


@smooth(np.ones(50))
def tridia(x: Array) -> Any:
    i = np.arange(2, x.size + 1)
    d = 2 * x[1:] - x[:-1]
    g = np.append(0, 4 * i * d) - np.append(2 * i * d, 0)
    g[0] += 2 * (x[0] - 1)
    return float((x[0] - 1) ** 2 + (i * d * d).sum()), g


@smooth(np.full(50, 8.0))
def edensch(x: Array) -> Any:
    a, b = x[:-1], x[1:]
    r = (a - 2) * b
    g = np.append(4 * (a - 2) ** 3 + 2 * r * b, 0) + np.append(0, 2 * r * (a - 2) + 2 * (b + 1))
    return float(16 + ((a - 2) ** 4 + r * r + (b + 1) ** 2).sum()), g


@smooth(np.full(50, 4.0))
def liarwhd(x: Array) -> Any:
    r = x * x - x[0]
    g = 16 * r * x + 2 * (x - 1)
    g[0] -= 8 * r.sum()
    return float((4 * r * r + (x - 1) ** 2).sum()), g


@smooth(-np.ones(50))
def nondia(x: Array) -> Any:
    r = x[0] - x[:-1] ** 2
    g = np.append(-400 * r * x[:-1], 0)
    g[0] += 2 * (x[0] - 1) + 200 * r.sum()
    return float((x[0] - 1) ** 2 + 100 * (r * r).sum()), g


@smooth(np.tile([1.0, -1.0], 25))
def nondquar(x: Array) -> Any:
    n, i = x.size, np.arange(x.size - 2)
    r, first, last = x[i] + x[i + 1] + x[-1], x[0] - x[1], x[-2] + x[-1]
    ends = ([0, 1, n - 2, n - 1], [2 * first, -2 * first, 2 * last, 2 * last])
    return float(first**2 + last**2 + (r**4).sum()), scattered(n, ends, (i, 4 * r**3), (i + 1, 4 * r**3), (n - 1, (4 * r**3).sum()))


@smooth(np.ones(10))
def power(x: Array) -> Any:
    i = np.arange(1, x.size + 1)
    q = (i * x * x).sum()
    return float(q * q), 4 * q * i * x


@smooth(np.arange(1, 21) / 21)
def genrose(x: Array) -> Any:
    r = x[1:] - x[:-1] ** 2
    g = np.append(0, 200 * r + 2 * (x[1:] - 1)) - np.append(400 * r * x[:-1], 0)
    return float(1 + 100 * (r * r).sum() + ((x[1:] - 1) ** 2).sum()), g


@smooth(np.full(20, 0.1))
def sinquad(x: Array) -> Any:
    n, i = x.size, np.arange(1, x.size - 1)
    first, z = x[0], x[-1]
    r, last, c = np.sin(x[i] - z) - first**2 + x[i] ** 2, z * z - first * first, np.cos(x[i] - z)
    f = (first - 1) ** 4 + (r * r).sum() + last**2
    ends = ([0, n - 1], [4 * (first - 1) ** 3 - 4 * first * (r.sum() + last), 4 * z * last - 2 * (r * c).sum()])
    return float(f), scattered(n, ends, (i, 2 * r * (c + 2 * x[i])))


@smooth(np.ones(50))
def cosine(x: Array) -> Any:
    t = x[:-1] ** 2 - 0.5 * x[1:]
    return float(np.cos(t).sum()), np.append(0, 0.5 * np.sin(t)) - np.append(2 * x[:-1] * np.sin(t), 0)


@smooth(np.full(50, 3.0))
def tointgss(x: Array) -> Any:
    n, i = x.size, np.arange(x.size - 2)
    d, z = x[i] - x[i + 1], x[i + 2]
    below, weight = 0.1 + z * z, 10 / n + z * z
    e = np.exp(-d * d / below)
    slope = weight * e * 2 * d / below
    up = 2 * z * (2 - e) - weight * e * d * d * 2 * z / below**2
    return float((weight * (2 - e)).sum()), scattered(n, (i, slope), (i + 1, -slope), (i + 2, up))


@smooth(np.append(1.0, np.full(49, 2.0)))
def cragglvy(x: Array) -> Any:
    n, i = x.size, np.arange(0, x.size - 2, 2)
    a, b, c, d = (x[i + k] for k in range(4))
    p, q, t = np.exp(a) - b, b - c, np.tan(c - d) + c - d
    dt = 4 * t**3 * (2 + np.tan(c - d) ** 2)
    f = p**4 + 100 * q**6 + t**4 + a**8 + (d - 1) ** 2
    parts = [
        (i, 4 * p**3 * np.exp(a) + 8 * a**7),
        (i + 1, 600 * q**5 - 4 * p**3),
        (i + 2, dt - 600 * q**5),
        (i + 3, 2 * (d - 1) - dt),
    ]
    return float(f.sum()), scattered(n, *parts)


def hilbert(n: int) -> Array:
    i = np.arange(1, n + 1)
    return 1.0 / (i[:, None] + i - 1)


@smooth(np.full(5, -3.0))
def hilberta(x: Array) -> Any:
    return float(x @ hilbert(5) @ x), 2 * hilbert(5) @ x


@smooth(np.full(10, -3.0))
def hilbertb(x: Array) -> Any:
    matrix = hilbert(10) + 5 * np.eye(10)
    return float(x @ matrix @ x), 2 * matrix @ x


@squares(-np.ones(20))
def dixon3dq(x: Array) -> Any:
    n = x.size
    differences = np.eye(n)[:-1] - np.eye(n)[1:]
    return np.concatenate([[x[0] - 1], differences @ x, [x[-1] - 1]]), np.vstack([np.eye(n)[0], differences, np.eye(n)[-1]])


@squares(np.full(10, 0.5))
def penalty2(x: Array) -> Any:
    n, weight = x.size, 1e-5**0.5
    e, i = np.exp(x / 10), np.arange(2, x.size + 1)
    y = np.exp(i / 10) + np.exp((i - 1) / 10)
    r = [[x[0] - 0.2], weight * (e[1:] + e[:-1] - y), weight * (e[1:] - np.exp(-0.1)), [(n - np.arange(n)) @ (x * x) - 1]]
    slope = np.diag(weight * e / 10)
    first = np.eye(n)[0]
    return np.concatenate(r), np.vstack([first, slope[1:] + slope[:-1], slope[1:], 2 * (n - np.arange(n)) * x])


@squares(np.full(10, 2.0))
def extrosnb(x: Array) -> Any:
    n = x.size
    jacobian = 10 * np.eye(n)[1:] - 20 * x[:-1, None] * np.eye(n)[:-1]
    return np.append(x[0] - 1, 10 * (x[1:] - x[:-1] ** 2)), np.vstack([np.eye(n)[0], jacobian])
