"""A Gaussian process and a Kalman smoother: models that are fitted by gradients through factorisations."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.optimize
import scipy.stats

import pullback as pb
from conftest import close, host

RNG = np.random.default_rng(3)
COUNT = 16  # observations of a Gaussian process
X = np.sort(RNG.uniform(-3, 3, COUNT))
Y = np.sin(X) + 0.1 * RNG.standard_normal(COUNT)


def covariance(logs: Any, xp: Any) -> Any:
    """Returns the covariance of the observations. logs: the logarithms of the length, the amplitude and the noise."""
    length, amplitude, noise = (xp.exp(logs[k]) for k in range(3))
    return amplitude * xp.exp(-0.5 * xp.square((X[:, None] - X) / length)) + (noise + 1e-10) * np.eye(COUNT)


def likelihood(logs: Any) -> Any:
    """Returns the negative logarithm of the likelihood of a Gaussian process."""
    factor = pb.linalg.cholesky(covariance(logs, pb))
    whitened = pb.linalg.solve_triangular(factor, pb.tensor(Y), upper=False)
    return 0.5 * pb.sum(pb.square(whitened)) + pb.sum(pb.log(pb.linalg.diagonal(factor))) + 0.5 * COUNT * np.log(2 * np.pi)


def test_a_gaussian_process_is_fitted_by_its_gradient() -> None:
    at = np.array([0.3, -0.2, -2.0])
    exact = -scipy.stats.multivariate_normal(np.zeros(COUNT), covariance(at, np)).logpdf(Y)
    close(likelihood(pb.tensor(at)), exact, 1e-9)
    # the derivative in closed form: Rasmussen & Williams, Gaussian Processes for Machine Learning (2006), equation 5.9
    step, inverse = 1e-6, np.linalg.inv(covariance(at, np))
    alpha = inverse @ Y
    for k, got in enumerate(host(pb.grad(likelihood)(pb.tensor(at)))):
        moved = step * np.eye(3)[k]
        changed = (covariance(at + moved, np) - covariance(at - moved, np)) / (2 * step)
        close(got, -0.5 * np.trace((np.outer(alpha, alpha) - inverse) @ changed), 1e-6)
    found = scipy.optimize.minimize(
        lambda logs: tuple(host(y) for y in pb.value_and_grad(likelihood)(pb.tensor(logs))), at, jac=True
    )
    right = scipy.optimize.minimize(
        lambda logs: -scipy.stats.multivariate_normal(np.zeros(COUNT), covariance(logs, np)).logpdf(Y), at
    )
    assert np.linalg.norm(found.jac) < 1e-3
    close(found.fun, right.fun, 1e-6)
    assert 0.05 < np.sqrt(np.exp(found.x[2])) < 0.2  # the noise was 0.1


# ---- a target with a position and a velocity, of which the position is observed

F, H = np.array([[1.0, 0.5], [0, 1]]), np.array([[1.0, 0]])
OBSERVED = np.cumsum(RNG.standard_normal(12)) * 0.4


def smoothed(logs: Any) -> tuple[Any, Any]:
    """Returns the means of the states, given all observations, and the logarithm of the observations' likelihood.

    logs: the logarithms of the variances of the states' changes and of the observations. A Kalman filter, then the smoother of
    Rauch, Tung and Striebel.
    """
    q, r = pb.exp(logs[0]) * np.eye(2), pb.exp(logs[1]) * np.eye(1)
    m, p, total, filtered = pb.zeros((2, 1), dtype="float64"), pb.eye(2, dtype="float64"), 0.0, []
    for y in OBSERVED:
        before_m, before_p = F @ m, F @ p @ F.T + q
        s, error = H @ before_p @ H.T + r, y - H @ before_m
        factor = pb.linalg.cholesky(s)
        gain = pb.linalg.solve(s, H @ before_p).mT
        m, p = before_m + gain @ error, before_p - gain @ s @ gain.mT
        white = pb.linalg.solve_triangular(factor, error, upper=False)
        total = total - 0.5 * pb.sum(pb.square(white)) - pb.sum(pb.log(pb.linalg.diagonal(factor))) - 0.5 * np.log(2 * np.pi)
        filtered.append((m, p, before_m, before_p))
    means = [m]
    for (m, p, _, _), (_, _, next_m, next_p) in zip(filtered[-2::-1], filtered[:0:-1]):
        means.append(m + pb.linalg.solve(next_p, F @ p).mT @ (means[-1] - next_m))
    return pb.stack(means[::-1]), total


def joint(logs: Any) -> tuple[Any, Any]:
    """Returns the same from the joint normal distribution of all states and observations."""
    q, r, count = np.exp(logs[0]) * np.eye(2), np.exp(logs[1]), len(OBSERVED)
    powers = [np.linalg.matrix_power(F, k) for k in range(count + 1)]
    states = np.zeros((count, 2, count, 2))
    for i in range(count):
        for j in range(count):
            terms = [powers[i + 1] @ powers[j + 1].T] + [powers[i - k] @ q @ powers[j - k].T for k in range(min(i, j) + 1)]
            states[i, :, j, :] = sum(terms)
    seen = states[:, 0, :, 0] + r * np.eye(count)
    mean = states[:, :, :, 0].reshape(2 * count, count) @ np.linalg.solve(seen, OBSERVED)
    return mean.reshape(count, 2, 1), scipy.stats.multivariate_normal(np.zeros(count), seen).logpdf(OBSERVED)


def test_a_kalman_smoother_has_the_means_and_the_gradient_of_the_joint_distribution() -> None:
    at = np.array([-1.0, 0.5])
    (means, total), (wanted, likelihood) = smoothed(pb.tensor(at)), joint(at)
    close(means, wanted, 1e-9)
    close(total, likelihood, 1e-9)
    gradient = host(pb.grad(lambda logs: smoothed(logs)[1])(pb.tensor(at)))
    differences = [(joint(at + d)[1] - joint(at - d)[1]) / 2e-5 for d in 1e-5 * np.eye(2)]
    close(gradient, differences, 1e-6)
