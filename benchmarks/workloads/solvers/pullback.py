"""The solves in pullback. A workload returns the seconds that it took."""

import time

import numpy as np

import pullback as pb

from . import FITS, GOAL, gaussians, sine


def levenberg_marquardt(**options):
    def run():
        net, x, y = sine()
        lm = pb.solve.LevenbergMarquardt(net, **options)

        def residuals(x, y):
            return net(x) - y

        begin, steps, cost = time.perf_counter(), 0, np.inf
        while 2 * cost / 256 >= GOAL:
            cost = lm.step(residuals, x, y).cost
            steps += 1
            assert steps < 200
        return time.perf_counter() - begin

    return run


def fits():
    t, y, x0 = [pb.tensor(a) for a in gaussians(FITS)]

    def run():
        begin = time.perf_counter()
        found = pb.solve.least_squares(lambda x, y: x[0] * pb.exp(-0.5 * ((t - x[1]) / x[2]) ** 2) - y, x0, (y,), batch=True)
        assert found.success.mean() > 0.999
        return time.perf_counter() - begin

    return run


WORKLOADS = {
    "sine": lambda: levenberg_marquardt(capture=True),
    "sine, per example": lambda: levenberg_marquardt(per_example=True, capture=True),
    "fits": fits,
}


def facts():
    from pullback.backends import native

    return f"pullback {pb.__version__}, {native.simd_level()}, {native.module.thread_count()} threads"
