"""Solves that are timed in pullback and in SciPy: a network that learns the sine, and many fits of a Gaussian."""

import numpy as np

import pullback as pb
from pullback import nn

GOAL = 1e-6  # the mean squared error at which the training of the sine ends
FITS = 100_000
SCIPY_FITS = 200  # of these fits, which SciPy's loop is timed on
POINTS = 30


def sine(dtype=pb.float64):
    """Returns a new network 1-16-16-1, and 256 points of the sine."""
    pb.random.seed(0)
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)).to(dtype)
    x = pb.tensor(np.linspace(-np.pi, np.pi, 256)[:, None], dtype=dtype)
    return net, x, pb.sin(x)


def gaussians(count):
    """Returns the places of measurements, noisy values of Gaussians of three parameters, and starting points."""
    rng = np.random.default_rng(0)
    t = np.linspace(-5, 5, POINTS)
    size, middle, width = rng.uniform(1, 3, count), rng.uniform(-2, 2, count), rng.uniform(0.5, 2, count)
    y = size[:, None] * np.exp(-0.5 * ((t - middle[:, None]) / width[:, None]) ** 2) + 0.05 * rng.standard_normal((count, POINTS))
    return t, y, np.stack([y.max(1), t[y.argmax(1)], np.ones(count)], 1)
