"""The solves by scipy.optimize.least_squares. The Jacobian of the network is pullback's. A workload returns its seconds."""

import time

import numpy as np
import scipy
import scipy.optimize

import pullback as pb
from pullback import nn

from . import FITS, GOAL, SCIPY_FITS, gaussians, sine


class Reached(Exception):
    """The training has reached its goal."""


def trf(per_example):
    def run():
        net, x, y = sine()
        parameters = dict(net.named_parameters())
        names, shapes = list(parameters), [p.shape for p in parameters.values()]
        sizes = [int(np.prod(shape)) for shape in shapes]
        start = np.concatenate([p.numpy().reshape(-1) for p in parameters.values()])

        def residual(weights, x, y):
            return nn.functional_call(net, weights, x) - y

        def split(flat):
            parts = np.split(flat, np.cumsum(sizes)[:-1])
            return {name: pb.asarray(part.reshape(shape)) for name, part, shape in zip(names, parts, shapes)}

        if per_example:
            derivative = pb.capture(pb.vmap(pb.jacobian(residual), in_axes=(None, 0, 0)))
        else:
            derivative = pb.capture(pb.jacobian(residual))
        values = pb.capture(residual)

        def f(flat):
            r = values(split(flat), x, y).numpy().reshape(-1)
            if np.mean(r * r) < GOAL:
                raise Reached
            return r

        def jacobian(flat):
            found = derivative(split(flat), x, y)
            return np.concatenate([found[name].numpy().reshape(256, -1) for name in names], axis=1)

        begin = time.perf_counter()
        try:
            scipy.optimize.least_squares(f, start, jacobian, method="trf")
        except Reached:
            return time.perf_counter() - begin
        raise RuntimeError("SciPy did not reach the goal")

    return run


def fits():
    t, y, x0 = gaussians(SCIPY_FITS)

    def f(x, y):
        return x[0] * np.exp(-0.5 * ((t - x[1]) / x[2]) ** 2) - y

    def jacobian(x, y):
        e = np.exp(-0.5 * ((t - x[1]) / x[2]) ** 2)
        return np.stack([e, x[0] * e * (t - x[1]) / x[2] ** 2, x[0] * e * (t - x[1]) ** 2 / x[2] ** 3], axis=1)

    def run():
        begin = time.perf_counter()
        for start, values in zip(x0, y):
            scipy.optimize.least_squares(f, start, jacobian, args=(values,))
        return (time.perf_counter() - begin) * FITS / SCIPY_FITS

    return run


WORKLOADS = {"sine": lambda: trf(False), "sine, per example": lambda: trf(True), "fits": fits}


def facts():
    return f"scipy {scipy.__version__}, numpy {np.__version__}"
