"""Sums of squares: the problems of Moré, Garbow and Hillstrom (1981), and those of Dennis and Schnabel (1983)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .problem import squares

Array = Any
rows = np.array


@squares([-1.2, 1.0])
def rosenbr(x: Array) -> Any:
    return rows([10 * (x[1] - x[0] ** 2), 1 - x[0]]), rows([[-20 * x[0], 10], [-1, 0]])


@squares([-1.2, 1.0])
def cube(x: Array) -> Any:
    return rows([x[0] - 1, 10 * (x[1] - x[0] ** 3)]), rows([[1, 0], [-30 * x[0] ** 2, 10]])


@squares([0.5, -2.0])
def freuroth(x: Array) -> Any:
    a, b = x
    r = rows([a - 13 + ((5 - b) * b - 2) * b, a - 29 + ((b + 1) * b - 14) * b])
    return r, rows([[1, 10 * b - 3 * b * b - 2], [1, 3 * b * b + 2 * b - 14]])


@squares([0.0, 1.0])
def powellbs(x: Array) -> Any:
    e = np.exp(-x)
    return rows([1e4 * x[0] * x[1] - 1, e.sum() - 1.0001]), rows([[1e4 * x[1], 1e4 * x[0]], -e])


@squares([1.0, 1.0])
def brownbs(x: Array) -> Any:
    return rows([x[0] - 1e6, x[1] - 2e-6, x[0] * x[1] - 2]), rows([[1, 0], [0, 1], [x[1], x[0]]])


@squares([1.0, 1.0])
def beale(x: Array) -> Any:
    i = np.arange(1, 4)
    r = rows([1.5, 2.25, 2.625]) - x[0] * (1 - x[1] ** i)
    return r, np.stack([x[1] ** i - 1, x[0] * i * x[1] ** (i - 1)], axis=1)


@squares([0.3, 0.4])
def jensmp(x: Array) -> Any:
    i = np.arange(1, 11)
    a, b = np.exp(i * x[0]), np.exp(i * x[1])
    return 2 + 2 * i - a - b, np.stack([-i * a, -i * b], axis=1)


@squares([-1.0, 0.0, 0.0])
def helix(x: Array) -> Any:
    a, b, c = x
    square, radius = a * a + b * b, np.hypot(a, b)
    theta = np.arctan(b / a) / (2 * np.pi) + (0.5 if a < 0 else 0.0)
    turn = 100 / (2 * np.pi * square)
    r = rows([10 * (c - 10 * theta), 10 * (radius - 1), c])
    return r, rows([[turn * b, -turn * a, 10], [10 * a / radius, 10 * b / radius, 0], [0, 0, 1]])


BARD = rows([0.14, 0.18, 0.22, 0.25, 0.29, 0.32, 0.35, 0.39, 0.37, 0.58, 0.73, 0.96, 1.34, 2.10, 4.39])


@squares([1.0, 1.0, 1.0])
def bard(x: Array) -> Any:
    u = np.arange(1.0, 16)
    v, w = 16 - u, np.minimum(u, 16 - u)
    below = v * x[1] + w * x[2]
    slope = u / below**2
    return BARD - x[0] - u / below, np.stack([-np.ones(15), slope * v, slope * w], axis=1)


GAUSS = rows([0.0009, 0.0044, 0.0175, 0.0540, 0.1295, 0.2420, 0.3521, 0.3989])


@squares([0.4, 1.0, 0.0])
def gaussian(x: Array) -> Any:
    t, y = (8 - np.arange(1, 16)) / 2, np.concatenate([GAUSS, GAUSS[-2::-1]])
    e = np.exp(-x[1] * (t - x[2]) ** 2 / 2)
    return x[0] * e - y, np.stack([e, -x[0] * e * (t - x[2]) ** 2 / 2, x[0] * e * x[1] * (t - x[2])], axis=1)


MEYER = rows([34780, 28610, 23650, 19630, 16370, 13720, 11540, 9744, 8261, 7030, 6005, 5147, 4427, 3820, 3307, 2872.0])


@squares([0.02, 4000.0, 250.0])
def meyer3(x: Array) -> Any:
    t = 45 + 5 * np.arange(1, 17)
    e = np.exp(x[1] / (t + x[2]))
    return x[0] * e - MEYER, np.stack([e, x[0] * e / (t + x[2]), -x[0] * e * x[1] / (t + x[2]) ** 2], axis=1)


@squares([5.0, 2.5, 0.15])
def gulf(x: Array) -> Any:
    t = np.arange(1, 100) / 100
    y = 25 + (-50 * np.log(t)) ** (2 / 3)
    d = y - x[1]
    size = np.abs(d) ** x[2]
    e = np.exp(-size / x[0])
    slopes = [e * size / x[0] ** 2, e * size * x[2] / (d * x[0]), -e * size * np.log(np.abs(d)) / x[0]]
    return e - t, np.stack(slopes, axis=1)


@squares([0.0, 10.0, 20.0])
def box3(x: Array) -> Any:
    t = np.arange(1, 11) / 10
    a, b, c = np.exp(-t * x[0]), np.exp(-t * x[1]), np.exp(-t) - np.exp(-10 * t)
    return a - b - x[2] * c, np.stack([-t * a, t * b, -c], axis=1)


def powell_singular(x: Array) -> Any:
    n = x.size
    r, jacobian = np.zeros(n), np.zeros((n, n))
    for k in range(0, n, 4):
        a, b, c, d = x[k : k + 4]
        r[k : k + 4] = [a + 10 * b, 5**0.5 * (c - d), (b - 2 * c) ** 2, 10**0.5 * (a - d) ** 2]
        jacobian[k : k + 4, k : k + 4] = [
            [1, 10, 0, 0], [0, 0, 5**0.5, -(5**0.5)], [0, 2 * (b - 2 * c), -4 * (b - 2 * c), 0],
            [20 * (a - d) / 10**0.5, 0, 0, -20 * (a - d) / 10**0.5],
        ]
    return r, jacobian


@squares([3.0, -1.0, 0.0, 1.0])
def powellsg(x: Array) -> Any:
    return powell_singular(x)


@squares([3.0, -1.0, 0.0, 1.0] * 25)
def epowsing(x: Array) -> Any:
    return powell_singular(x)


def wood(x: Array) -> Any:
    a, b, c, d = x
    s, t = 90**0.5, 10**0.5
    r = rows([10 * (b - a * a), 1 - a, s * (d - c * c), 1 - c, t * (b + d - 2), (b - d) / t])
    return r, rows([[-20 * a, 10, 0, 0], [-1, 0, 0, 0], [0, 0, -2 * s * c, s], [0, 0, -1, 0], [0, t, 0, t], [0, 1 / t, 0, -1 / t]])


@squares([-3.0, -1.0, -3.0, -1.0])
def woods(x: Array) -> Any:
    return wood(x)


@squares([-3.0, -1.0, -3.0, -1.0], -10, 10)
def hs38(x: Array) -> Any:
    return wood(x)


KOWALIK = rows([0.1957, 0.1947, 0.1735, 0.1600, 0.0844, 0.0627, 0.0456, 0.0342, 0.0323, 0.0235, 0.0246])
U = rows([4, 2, 1, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625])


@squares([0.25, 0.39, 0.415, 0.39])
def kowosb(x: Array) -> Any:
    above, below = U * U + U * x[1], U * U + U * x[2] + x[3]
    part = x[0] * above / below**2
    return KOWALIK - x[0] * above / below, np.stack([-above / below, -x[0] * U / below, part * U, part], axis=1)


@squares([25.0, 5.0, -5.0, -1.0])
def brownden(x: Array) -> Any:
    t = np.arange(1, 21) / 5
    a, b = x[0] + t * x[1] - np.exp(t), x[2] + x[3] * np.sin(t) - np.cos(t)
    return a * a + b * b, np.stack([2 * a, 2 * a * t, 2 * b, 2 * b * np.sin(t)], axis=1)


OSBORNE = rows([
    0.844, 0.908, 0.932, 0.936, 0.925, 0.908, 0.881, 0.850, 0.818, 0.784, 0.751, 0.718, 0.685, 0.658, 0.628, 0.603, 0.580, 0.558,
    0.538, 0.522, 0.506, 0.490, 0.478, 0.467, 0.457, 0.448, 0.438, 0.431, 0.424, 0.420, 0.414, 0.411, 0.406,
])


@squares([0.5, 1.5, -1.0, 0.01, 0.02])
def osbornea(x: Array) -> Any:
    t = 10.0 * np.arange(33)
    a, b = np.exp(-t * x[3]), np.exp(-t * x[4])
    return OSBORNE - x[0] - x[1] * a - x[2] * b, np.stack([-np.ones(33), -a, -b, x[1] * t * a, x[2] * t * b], axis=1)


@squares([1.0, 2.0, 1.0, 1.0, 1.0, 1.0])
def biggs6(x: Array) -> Any:
    t = np.arange(1, 14) / 10
    y = np.exp(-t) - 5 * np.exp(-10 * t) + 3 * np.exp(-4 * t)
    a, b, c = np.exp(-t * x[0]), np.exp(-t * x[1]), np.exp(-t * x[4])
    slopes = [-t * x[2] * a, t * x[3] * b, a, -b, -t * x[5] * c, c]
    return x[2] * a - x[3] * b + x[5] * c - y, np.stack(slopes, axis=1)


@squares(np.zeros(12))
def watson(x: Array) -> Any:
    t, j = np.arange(1, 30)[:, None] / 29, np.arange(12)
    powers = t**j
    slopes = j * t ** np.maximum(j - 1, 0)
    value = powers @ x
    r = np.concatenate([slopes @ x - value**2 - 1, [x[0], x[1] - x[0] ** 2 - 1]])
    last = np.zeros((2, 12))
    last[0, 0], last[1, 0], last[1, 1] = 1, -2 * x[0], 1
    return r, np.concatenate([slopes - 2 * value[:, None] * powers, last])


@squares([-1.2, 1.0] * 50)
def srosenbr(x: Array) -> Any:
    n = x.size
    a, b = x[::2], x[1::2]
    r, jacobian = np.zeros(n), np.zeros((n, n))
    r[::2], r[1::2] = 10 * (b - a * a), 1 - a
    even = np.arange(0, n, 2)
    jacobian[even, even], jacobian[even, even + 1], jacobian[even + 1, even] = -20 * a, 10, -1
    return r, jacobian


@squares(np.arange(1.0, 11))
def penalty1(x: Array) -> Any:
    weight = 1e-5**0.5
    return np.append(weight * (x - 1), x @ x - 0.25), np.vstack([weight * np.eye(x.size), 2 * x])


@squares(1 - np.arange(1, 11) / 10)
def vardim(x: Array) -> Any:
    i = np.arange(1, 11)
    s = i @ (x - 1)
    return np.concatenate([x - 1, [s, s * s]]), np.vstack([np.eye(10), i, 2 * s * i])


@squares(np.full(30, 1 / 30))
def argtrig(x: Array) -> Any:
    n, i = x.size, np.arange(1, x.size + 1)
    c, s = np.cos(x), np.sin(x)
    return n - c.sum() + i * (1 - c) - s, np.tile(s, (n, 1)) + np.diag(i * s - c)


@squares(np.full(10, 0.5))
def brownal(x: Array) -> Any:
    n = x.size
    product = np.prod(x)
    others = np.array([np.prod(np.delete(x, k)) for k in range(n)])
    return np.append(x[:-1] + x.sum() - n - 1, product - 1), np.vstack([np.eye(n)[:-1] + 1, others])


def grid(n: int) -> Array:
    return np.arange(1, n + 1) / (n + 1)


@squares(grid(30) * (grid(30) - 1))
def morebv(x: Array) -> Any:
    n, t, h = x.size, grid(x.size), 1 / (x.size + 1)
    padded = np.concatenate([[0], x, [0]])
    r = 2 * x - padded[:-2] - padded[2:] + h * h * (x + t + 1) ** 3 / 2
    return r, np.diag(2 + 1.5 * h * h * (x + t + 1) ** 2) - np.eye(n, k=1) - np.eye(n, k=-1)


@squares(grid(20) * (grid(20) - 1))
def integreq(x: Array) -> Any:
    t, h = grid(x.size), 1 / (x.size + 1)
    kernel = h / 2 * np.where(t[None] <= t[:, None], (1 - t[:, None]) * t[None], t[:, None] * (1 - t[None]))
    return x + kernel @ (x + t + 1) ** 3, np.eye(x.size) + kernel * 3 * (x + t + 1) ** 2


@squares(-np.ones(50))
def broydn3d(x: Array) -> Any:
    padded = np.concatenate([[0], x, [0]])
    r = (3 - 2 * x) * x - padded[:-2] - 2 * padded[2:] + 1
    return r, np.diag(3 - 4 * x) - np.eye(x.size, k=-1) - 2 * np.eye(x.size, k=1)


@squares(-np.ones(50))
def broydnbd(x: Array) -> Any:
    n = x.size
    i = np.arange(n)
    band = (i[:, None] - i <= 5) & (i - i[:, None] <= 1) & (i[:, None] != i)
    return x * (2 + 5 * x**2) + 1 - band @ (x * (1 + x)), np.diag(2 + 15 * x**2) - band * (1 + 2 * x)


@squares(np.ones(20))
def arglina(x: Array) -> Any:
    n, m = x.size, 40
    full = np.vstack([np.eye(n), np.zeros((m - n, n))]) - 2 / m
    return full @ x - 1, full


@squares(np.ones(10))
def arglinb(x: Array) -> Any:
    full = np.outer(np.arange(1.0, 21), np.arange(1.0, 11))
    return full @ x - 1, full


@squares(np.arange(1, 9) / 9)
def chebyqad(x: Array) -> Any:
    n, z = x.size, 2 * x - 1
    values, slopes = [np.ones(n), z], [np.zeros(n), np.full(n, 2.0)]
    for _ in range(n - 1):
        slopes.append(4 * values[-1] + 2 * z * slopes[-1] - slopes[-2])
        values.append(2 * z * values[-1] - values[-2])
    i = np.arange(1, n + 1)
    means = np.where(i % 2 == 0, 1 / (1.0 - np.where(i == 1, 0, i) ** 2), 0)
    return np.array(values[1:]).mean(axis=1) - np.where(i % 2 == 0, means, 0), np.array(slopes[1:]) / n


@squares([8.0, 8.0])
def denschnf(x: Array) -> Any:
    a, b = x
    r = rows([2 * (a + b) ** 2 + (a - b) ** 2 - 8, 5 * a * a + (b - 3) ** 2 - 9])
    return r, rows([[6 * a + 2 * b, 2 * a + 6 * b], [10 * a, 2 * (b - 3)]])


@squares([1.0, 1.0])
def denschna(x: Array) -> Any:
    a, b = x
    return rows([a * a, a + b, np.exp(b) - 1]), rows([[2 * a, 0], [1, 1], [0, np.exp(b)]])


@squares([1.0, 1.0])
def denschnb(x: Array) -> Any:
    a, b = x
    return rows([a - 2, (a - 2) * b, b + 1]), rows([[1, 0], [b, a - 2], [0, 1]])


@squares([2.0, 3.0])
def denschnc(x: Array) -> Any:
    a, b = x
    return rows([a * a + b * b - 2, np.exp(a - 1) + b**3 - 2]), rows([[2 * a, 2 * b], [np.exp(a - 1), 3 * b * b]])


@squares([10.0, 10.0, 10.0])
def denschnd(x: Array) -> Any:
    a, b, c = x
    r = rows([a * a + b**3 - c**4, 2 * a * b * c, 2 * a * b - 3 * b * c + a * c])
    return r, rows([[2 * a, 3 * b * b, -4 * c**3], [2 * b * c, 2 * a * c, 2 * a * b], [2 * b + c, 2 * a - 3 * c, a - 3 * b]])


@squares([2.0, 3.0, -8.0])
def denschne(x: Array) -> Any:
    a, b, c = x
    return rows([a, b + b * b, np.exp(c) - 1]), rows([[1, 0, 0], [0, 1 + 2 * b, 0], [0, 0, np.exp(c)]])


@squares([1.0, 2.0, 0.0])
def engval2(x: Array) -> Any:
    a, b, c = x
    r = rows([
        a * a + b * b + c * c - 1, a * a + b * b + (c - 2) ** 2 - 1, a + b + c - 1, a + b - c + 1,
        3 * b * b + a**3 + (5 * c - a + 1) ** 2 - 36,
    ])
    d = 2 * (5 * c - a + 1)
    return r, rows([[2 * a, 2 * b, 2 * c], [2 * a, 2 * b, 2 * (c - 2)], [1, 1, 1], [1, 1, -1], [3 * a * a - d, 6 * b, 5 * d]])
