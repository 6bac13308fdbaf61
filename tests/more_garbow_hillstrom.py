"""The 35 problems of Moré, Garbow & Hillstrom, "Testing unconstrained optimization software", ACM TOMS 7 (1981), 17-41.

Each is a function of a vector that returns the residuals f_i, written from the formulas of section 3, with its standard starting
point and the least sum of squares that is given there (other local minima, if the paper names them, follow).
"""

from math import pi
from typing import NamedTuple

import numpy as np

import pullback as pb


class Problem(NamedTuple):
    """A problem: its name, the residuals, the standard starting point, and known sums of squares at local minima."""

    name: str
    residuals: object
    start: list
    minima: tuple


def _c(values):
    return pb.tensor(np.array(values, float))


def _range(n, start=1):
    return pb.tensor(np.arange(start, n + start, dtype=float))


def _join(*parts):
    return pb.concat([p if p.ndim else p[None] for p in parts])


def _jennrich(x):
    i = _range(10)
    return 2 + 2 * i - (pb.exp(i * x[0]) + pb.exp(i * x[1]))


def _helical(x):
    r = pb.sqrt(x[0] ** 2 + x[1] ** 2)
    theta = pb.atan(x[1] / x[0]) / (2 * pi) + pb.where(x[0] < 0, 0.5, 0.0)
    return pb.stack([10 * (x[2] - 10 * theta), 10 * (r - 1), x[2]])


BARD = _c([0.14, 0.18, 0.22, 0.25, 0.29, 0.32, 0.35, 0.39, 0.37, 0.58, 0.73, 0.96, 1.34, 2.10, 4.39])


def _bard(x):
    u = _range(15)
    v = 16 - u
    return BARD - (x[0] + u / (v * x[1] + pb.minimum(u, v) * x[2]))


GAUSSIAN = _c(
    [0.0009, 0.0044, 0.0175, 0.0540, 0.1295, 0.2420, 0.3521, 0.3989, 0.3521, 0.2420, 0.1295, 0.0540, 0.0175, 0.0044, 0.0009]
)


def _gaussian(x):
    t = (8 - _range(15)) / 2
    return x[0] * pb.exp(-x[1] * (t - x[2]) ** 2 / 2) - GAUSSIAN


MEYER = _c([34780, 28610, 23650, 19630, 16370, 13720, 11540, 9744, 8261, 7030, 6005, 5147, 4427, 3820, 3307, 2872])


def _meyer(x):
    return x[0] * pb.exp(x[1] / (45 + 5 * _range(16) + x[2])) - MEYER


def _gulf(x):
    t = _range(99) / 100
    y = 25 + (-50 * pb.log(t)) ** (2 / 3)
    return pb.exp(-pb.exp(x[2] * pb.log(pb.abs(y - x[1]))) / x[0]) - t


def _box(x):
    t = 0.1 * _range(10)
    return pb.exp(-t * x[0]) - pb.exp(-t * x[1]) - x[2] * (pb.exp(-t) - pb.exp(-10 * t))


def _wood(x):
    return pb.stack(
        [
            10 * (x[1] - x[0] ** 2), 1 - x[0], 90**0.5 * (x[3] - x[2] ** 2), 1 - x[2], 10**0.5 * (x[1] + x[3] - 2),
            (x[1] - x[3]) / 10**0.5,
        ]
    )


KOWALIK = _c([0.1957, 0.1947, 0.1735, 0.1600, 0.0844, 0.0627, 0.0456, 0.0342, 0.0323, 0.0235, 0.0246])
KOWALIK_U = _c([4, 2, 1, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625])


def _kowalik(x):
    u = KOWALIK_U
    return KOWALIK - x[0] * (u**2 + u * x[1]) / (u**2 + u * x[2] + x[3])


def _brown_dennis(x):
    t = _range(20) / 5
    return (x[0] + t * x[1] - pb.exp(t)) ** 2 + (x[2] + x[3] * pb.sin(t) - pb.cos(t)) ** 2


OSBORNE1 = _c(
    [0.844, 0.908, 0.932, 0.936, 0.925, 0.908, 0.881, 0.850, 0.818, 0.784, 0.751, 0.718, 0.685, 0.658, 0.628, 0.603, 0.580]
    + [0.558, 0.538, 0.522, 0.506, 0.490, 0.478, 0.467, 0.457, 0.448, 0.438, 0.431, 0.424, 0.420, 0.414, 0.411, 0.406]
)


def _osborne1(x):
    t = 10 * _range(33, 0)
    return OSBORNE1 - (x[0] + x[1] * pb.exp(-t * x[3]) + x[2] * pb.exp(-t * x[4]))


def _biggs(x):
    t = 0.1 * _range(13)
    y = pb.exp(-t) - 5 * pb.exp(-10 * t) + 3 * pb.exp(-4 * t)
    return x[2] * pb.exp(-t * x[0]) - x[3] * pb.exp(-t * x[1]) + x[5] * pb.exp(-t * x[4]) - y


OSBORNE2 = _c(
    [1.366, 1.191, 1.112, 1.013, 0.991, 0.885, 0.831, 0.847, 0.786, 0.725, 0.746, 0.679, 0.608, 0.655, 0.616, 0.606, 0.602, 0.626]
    + [0.651, 0.724, 0.649, 0.649, 0.694, 0.644, 0.624, 0.661, 0.612, 0.558, 0.533, 0.495, 0.500, 0.423, 0.395, 0.375, 0.372, 0.391]
    + [0.396, 0.405, 0.428, 0.429, 0.523, 0.562, 0.607, 0.653, 0.672, 0.708, 0.633, 0.668, 0.645, 0.632, 0.591, 0.559, 0.597, 0.625]
    + [0.739, 0.710, 0.729, 0.720, 0.636, 0.581, 0.428, 0.292, 0.162, 0.098, 0.054]
)


def _osborne2(x):
    t = _range(65, 0) / 10
    model = x[0] * pb.exp(-t * x[4])
    for k in (1, 2, 3):
        model = model + x[k] * pb.exp(-((t - x[k + 7]) ** 2) * x[k + 4])
    return OSBORNE2 - model


def _watson(x):
    n = len(x)
    t = np.arange(1, 30)[:, None] / 29
    j = np.arange(n)
    slopes = np.where(j > 0, j * t ** np.maximum(j - 1, 0), 0)
    main = _c(slopes) @ x - (_c(t**j) @ x) ** 2 - 1
    return _join(main, x[0], x[1] - x[0] ** 2 - 1)


def _extended_rosenbrock(x):
    return _join(10 * (x[1::2] - x[::2] ** 2), 1 - x[::2])


def _extended_powell(x):
    a, b, c, d = x[::4], x[1::4], x[2::4], x[3::4]
    return _join(a + 10 * b, 5**0.5 * (c - d), (b - 2 * c) ** 2, 10**0.5 * (a - d) ** 2)


def _penalty1(x):
    return _join(1e-5**0.5 * (x - 1), pb.sum(x * x) - 0.25)


def _penalty2(x):
    n, a = len(x), 1e-5**0.5
    y = _c(np.exp(np.arange(2, n + 1) / 10) + np.exp(np.arange(1, n) / 10))
    first = a * (pb.exp(x[1:] / 10) + pb.exp(x[:-1] / 10) - y)
    second = a * (pb.exp(x[1:] / 10) - np.exp(-0.1))
    return _join(x[0] - 0.2, first, second, pb.sum(_c(np.arange(n, 0, -1)) * x * x) - 1)


def _variably(x):
    s = pb.sum(_range(len(x)) * (x - 1))
    return _join(x - 1, s, s * s)


def _trigonometric(x):
    n = len(x)
    return n - pb.sum(pb.cos(x)) + _range(n) * (1 - pb.cos(x)) - pb.sin(x)


def _almost_linear(x):
    return _join(x[:-1] + pb.sum(x) - (len(x) + 1), pb.prod(x) - 1)


def _boundary(x):
    n = len(x)
    h = 1 / (n + 1)
    padded = pb.concat([pb.zeros(1, dtype=x.dtype), x, pb.zeros(1, dtype=x.dtype)])
    return 2 * x - padded[:-2] - padded[2:] + h * h * (x + h * _range(n) + 1) ** 3 / 2


def _integral(x):
    n = len(x)
    h = 1 / (n + 1)
    t = np.arange(1, n + 1) * h
    kernel = np.where(t[None] <= t[:, None], (1 - t[:, None]) * t[None], t[:, None] * (1 - t[None]))
    return x + h / 2 * (_c(kernel) @ (x + _c(t) + 1) ** 3)


def _tridiagonal(x):
    padded = pb.concat([pb.zeros(1, dtype=x.dtype), x, pb.zeros(1, dtype=x.dtype)])
    return (3 - 2 * x) * x - padded[:-2] - 2 * padded[2:] + 1


def _banded(x):
    n = len(x)
    i, j = np.arange(n)[:, None], np.arange(n)[None]
    near = (j != i) & (j >= i - 5) & (j <= i + 1)
    return x * (2 + 5 * x * x) + 1 - _c(near) @ (x * (1 + x))


def _full_rank(x, m=20):
    mean = 2 / m * pb.sum(x)
    return pb.concat([x - mean - 1, pb.broadcast_to(-mean - 1, (m - len(x),))])


def _rank_one(x, m=20):
    return _range(m) * pb.sum(_range(len(x)) * x) - 1


def _rank_one_zero(x, m=20):
    n = len(x)
    s = pb.sum(_range(n)[1:-1] * x[1:-1])
    return _join(0 * s - 1, _range(m - 2) * s - 1, 0 * s - 1)


def _chebyquad(x):
    y, before, values = 2 * x - 1, pb.ones_like(x), []
    now = y
    for i in range(1, len(x) + 1):
        values.append(pb.mean(now) + (1 / (i * i - 1) if i % 2 == 0 else 0.0))
        before, now = now, 2 * y * now - before
    return pb.stack(values)


def _two(f):
    return lambda x: pb.stack(f(x))


BEALE = _c([1.5, 2.25, 2.625])
PROBLEMS = [
    Problem("Rosenbrock", _two(lambda x: [10 * (x[1] - x[0] ** 2), 1 - x[0]]), [-1.2, 1], (0.0,)),
    Problem(
        "Freudenstein and Roth",
        _two(lambda x: [-13 + x[0] + ((5 - x[1]) * x[1] - 2) * x[1], -29 + x[0] + ((x[1] + 1) * x[1] - 14) * x[1]]),
        [0.5, -2], (0.0, 48.98425),
    ),
    Problem("Powell badly scaled", _two(lambda x: [1e4 * x[0] * x[1] - 1, pb.exp(-x[0]) + pb.exp(-x[1]) - 1.0001]), [0, 1], (0.0,)),
    Problem("Brown badly scaled", _two(lambda x: [x[0] - 1e6, x[1] - 2e-6, x[0] * x[1] - 2]), [1, 1], (0.0,)),
    Problem("Beale", lambda x: BEALE - x[0] * (1 - x[1] ** _range(3)), [1, 1], (0.0,)),
    Problem("Jennrich and Sampson", _jennrich, [0.3, 0.4], (124.362, 259.58019)),
    Problem("Helical valley", _helical, [-1, 0, 0], (0.0,)),
    Problem("Bard", _bard, [1, 1, 1], (8.21487e-3, 17.4286)),
    Problem("Gaussian", _gaussian, [0.4, 1, 0], (1.12793e-8,)),
    Problem("Meyer", _meyer, [0.02, 4000, 250], (87.9458,)),
    Problem("Gulf research and development", _gulf, [5, 2.5, 0.15], (0.0, 0.038)),
    Problem("Box", _box, [0, 10, 20], (0.0, 0.0755887)),
    Problem("Powell singular", _extended_powell, [3, -1, 0, 1], (0.0,)),
    Problem("Wood", _wood, [-3, -1, -3, -1], (0.0,)),
    Problem("Kowalik and Osborne", _kowalik, [0.25, 0.39, 0.415, 0.39], (3.07505e-4, 1.02734e-3)),
    Problem("Brown and Dennis", _brown_dennis, [25, 5, -5, -1], (85822.2,)),
    Problem("Osborne 1", _osborne1, [0.5, 1.5, -1, 0.01, 0.02], (5.46489e-5,)),
    Problem("Biggs EXP6", _biggs, [1, 2, 1, 1, 1, 1], (0.0, 5.65565e-3)),
    Problem("Osborne 2", _osborne2, [1.3, 0.65, 0.65, 0.7, 0.6, 3, 5, 7, 2, 4.5, 5.5], (4.01377e-2,)),
    Problem("Watson", _watson, [0] * 9, (1.39976e-6,)),
    Problem("Extended Rosenbrock", _extended_rosenbrock, [-1.2, 1] * 5, (0.0,)),
    Problem("Extended Powell singular", _extended_powell, [3, -1, 0, 1] * 3, (0.0,)),
    Problem("Penalty I", _penalty1, [1, 2, 3, 4], (2.24997e-5,)),
    Problem("Penalty II", _penalty2, [0.5] * 4, (9.37629e-6,)),
    Problem("Variably dimensioned", _variably, [1 - k / 10 for k in range(1, 11)], (0.0,)),
    Problem("Trigonometric", _trigonometric, [0.1] * 10, (0.0, 2.79506e-5)),
    Problem("Brown almost-linear", _almost_linear, [0.5] * 10, (0.0, 1.0)),
    Problem("Discrete boundary value", _boundary, [k / 11 * (k / 11 - 1) for k in range(1, 11)], (0.0,)),
    Problem("Discrete integral equation", _integral, [k / 11 * (k / 11 - 1) for k in range(1, 11)], (0.0,)),
    Problem("Broyden tridiagonal", _tridiagonal, [-1] * 10, (0.0,)),
    Problem("Broyden banded", _banded, [-1] * 10, (0.0,)),
    Problem("Linear, full rank", _full_rank, [1] * 10, (10.0,)),
    Problem("Linear, rank 1", _rank_one, [1] * 10, (20 * 19 / (2 * (2 * 20 + 1)),)),
    Problem("Linear, rank 1 with zeros", _rank_one_zero, [1] * 10, ((20**2 + 3 * 20 - 6) / (2 * (2 * 20 - 3)),)),
    Problem("Chebyquad", _chebyquad, [k / 9 for k in range(1, 9)], (3.51687e-3,)),
]
