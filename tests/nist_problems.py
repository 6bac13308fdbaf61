"""The nonlinear regressions of NIST's Statistical Reference Datasets (tests/nist/SOURCE.md): data, models, certified values."""

import re
from math import pi
from pathlib import Path
from typing import NamedTuple

import numpy as np

import pullback as pb

FOLDER = Path(__file__).parent / "nist"
TWO_PI = 2 * pi


def _bennett(b, x):
    return b[0] * (b[1] + x) ** (-1 / b[2])


def _saturation(b, x):
    return b[0] * (1 - pb.exp(-b[1] * x))


def _chwirut(b, x):
    return pb.exp(-b[0] * x) / (b[1] + b[2] * x)


def _enso(b, x):
    year = b[0] + b[1] * pb.cos(TWO_PI * x / 12) + b[2] * pb.sin(TWO_PI * x / 12)
    first = b[4] * pb.cos(TWO_PI * x / b[3]) + b[5] * pb.sin(TWO_PI * x / b[3])
    return year + first + b[7] * pb.cos(TWO_PI * x / b[6]) + b[8] * pb.sin(TWO_PI * x / b[6])


def _eckerle(b, x):
    return b[0] / b[1] * pb.exp(-0.5 * ((x - b[2]) / b[1]) ** 2)


def _gauss(b, x):
    peaks = b[2] * pb.exp(-((x - b[3]) ** 2) / b[4] ** 2) + b[5] * pb.exp(-((x - b[6]) ** 2) / b[7] ** 2)
    return b[0] * pb.exp(-b[1] * x) + peaks


def _cubics(b, x):
    return (b[0] + b[1] * x + b[2] * x**2 + b[3] * x**3) / (1 + b[4] * x + b[5] * x**2 + b[6] * x**3)


def _kirby(b, x):
    return (b[0] + b[1] * x + b[2] * x**2) / (1 + b[3] * x + b[4] * x**2)


def _lanczos(b, x):
    return b[0] * pb.exp(-b[1] * x) + b[2] * pb.exp(-b[3] * x) + b[4] * pb.exp(-b[5] * x)


def _nelson(b, x):  # of the logarithm of y
    return b[0] - b[1] * x[:, 0] * pb.exp(-b[2] * x[:, 1])


MODELS = {
    "Bennett5": _bennett, "BoxBOD": _saturation, "Chwirut1": _chwirut, "Chwirut2": _chwirut,
    "DanWood": lambda b, x: b[0] * x ** b[1],
    "ENSO": _enso, "Eckerle4": _eckerle, "Gauss1": _gauss, "Gauss2": _gauss, "Gauss3": _gauss, "Hahn1": _cubics, "Kirby2": _kirby,
    "Lanczos1": _lanczos, "Lanczos2": _lanczos, "Lanczos3": _lanczos,
    "MGH09": lambda b, x: b[0] * (x**2 + x * b[1]) / (x**2 + x * b[2] + b[3]),
    "MGH10": lambda b, x: b[0] * pb.exp(b[1] / (x + b[2])),
    "MGH17": lambda b, x: b[0] + b[1] * pb.exp(-x * b[3]) + b[2] * pb.exp(-x * b[4]), "Misra1a": _saturation,
    "Misra1b": lambda b, x: b[0] * (1 - (1 + b[1] * x / 2) ** -2), "Misra1c": lambda b, x: b[0] * (1 - (1 + 2 * b[1] * x) ** -0.5),
    "Misra1d": lambda b, x: b[0] * b[1] * x / (1 + b[1] * x), "Nelson": _nelson,
    "Rat42": lambda b, x: b[0] / (1 + pb.exp(b[1] - b[2] * x)),
    "Rat43": lambda b, x: b[0] / (1 + pb.exp(b[1] - b[2] * x)) ** (1 / b[3]),
    "Roszman1": lambda b, x: b[0] - b[1] * x - pb.atan(b[2] / (x - b[3])) / pi, "Thurber": _cubics,
}


class Problem(NamedTuple):
    """A regression: its level ("Lower", "Average", "Higher"), two starting points, certified values, data."""

    name: str
    level: str
    starts: np.ndarray
    parameters: np.ndarray
    sum_of_squares: float
    x: pb.Tensor
    y: pb.Tensor

    def residuals(self, b):
        return MODELS[self.name](b, self.x) - self.y

    def digits(self, b) -> float:
        """The number of correct digits of the worst parameter, at most 11."""
        wrong = np.abs(b.numpy() - self.parameters) / np.abs(self.parameters)
        return float(-np.log10(np.max(wrong) + 1e-11))


def read(name: str) -> Problem:
    lines = (FOLDER / f"{name}.dat").read_text().splitlines()
    text = "\n".join(lines)
    rows = [re.split(r"[=\s]+", line.strip()) for line in lines if re.match(r"\s*b\d+\s*=", line)]
    numbers = np.array([[float(x) for x in row[1:4]] for row in rows])
    (squares,) = re.findall(r"Residual Sum of Squares:\s*(\S+)", text)
    (level,) = re.findall(r"(Lower|Average|Higher) Level of Difficulty", text)
    (first, last) = map(int, re.findall(r"Data\s+\(lines\s+(\d+)\s+to\s+(\d+)\)", text)[0])
    data = np.array([[float(x) for x in line.split()] for line in lines[first - 1 : last]])
    y, x = data[:, 0], data[:, 1] if data.shape[1] == 2 else data[:, 1:]
    y = np.log(y) if name == "Nelson" else y
    return Problem(name, level, numbers[:, :2].T.copy(), numbers[:, 2], float(squares), pb.asarray(x), pb.asarray(y))


NAMES = sorted(MODELS)
