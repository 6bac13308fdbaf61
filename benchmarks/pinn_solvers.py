"""A physics-informed network for the Helmholtz equation, trained by several methods of pb.solve.minimize in float64.

    u_xx + u_yy + u = q on [-1, 1] x [-1, 1], u = 0 at the border, with the exact solution sin(a pi x) sin(b pi y)

The network N enters through u = (1 - x^2) (1 - y^2) N(x, y), which meets the border values. The script prints the relative L2 error
of each method: python benchmarks/pinn_solvers.py --iterations 1000 --waves 1 1
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import pullback as pb
from pullback import nn

METHODS = ("L-BFGS", "BFGS", "SSBFGS", "SSBroyden")


def network(hidden: int) -> Any:
    layers = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))
    return layers.to(pb.float64)


def grid(points: int) -> tuple[Any, Any]:
    """Returns the coordinates of the inner points of a regular grid, as two columns."""
    line = pb.linspace(-1, 1, points + 2, dtype=pb.float64)[1:-1]
    x, y = pb.meshgrid(line, line)
    return pb.reshape(x, (-1, 1)), pb.reshape(y, (-1, 1))


def solution(net: Any, x: Any, y: Any) -> Any:
    return (1 - x * x) * (1 - y * y) * net(pb.concat([x, y], axis=1))


def exact(x: Any, y: Any, waves: tuple[int, int]) -> Any:
    return pb.sin(waves[0] * math.pi * x) * pb.sin(waves[1] * math.pi * y)


def residual(net: Any, x: Any, y: Any, waves: tuple[int, int]) -> Any:
    """Returns u_xx + u_yy + u - q. Each row of u depends on its own row only, so gradients of sums hold the derivatives of rows."""

    def total(x: Any, y: Any) -> Any:
        return pb.sum(solution(net, x, y))

    u_xx = pb.grad(lambda x: pb.sum(pb.grad(total)(x, y)))(x)
    u_yy = pb.grad(lambda y: pb.sum(pb.grad(total, argnums=1)(x, y)))(y)
    q = (1 - (waves[0] ** 2 + waves[1] ** 2) * math.pi**2) * exact(x, y, waves)
    return u_xx + u_yy + solution(net, x, y) - q


def trained(method: str, iterations: int, hidden: int, points: int, waves: tuple[int, int]) -> tuple[float, float, int, float]:
    """Returns the loss, the relative L2 error on a finer grid, the number of evaluations and the seconds."""
    pb.random.seed(0)
    net = network(hidden)
    x, y = grid(points)
    begin = time.perf_counter()
    run = pb.solve.minimize(
        lambda: pb.mean(residual(net, x, y, waves) ** 2),
        net.parameters(),
        method,
        gtol=0.0,
        ftol=0,
        maxiter=iterations,
        maxfun=10**9,
    )
    result = run.result()
    seconds = time.perf_counter() - begin
    x, y = grid(101)
    wanted = exact(x, y, waves)
    error = pb.sqrt(pb.sum((solution(net, x, y) - wanted) ** 2) / pb.sum(wanted**2))
    return result.fun, float(error), result.nfev, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("iterations", 1000), ("hidden", 20), ("points", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--waves", type=int, nargs=2, default=(1, 1))
    parser.add_argument("--methods", nargs="+", default=METHODS)
    options = vars(parser.parse_args())
    print("method      loss      relative L2 error  evaluations  seconds")
    for method in options.pop("methods"):
        loss, error, evaluations, seconds = trained(method, **options)
        print(f"{method:10}  {loss:.2e}  {error:.2e}           {evaluations:<11}  {seconds:.1f}", flush=True)


if __name__ == "__main__":
    main()
