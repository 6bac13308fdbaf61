"""Normal matrices of a step of Levenberg-Marquardt: built from blocks of rows and factorised in the memory of one matrix.

The upper triangle holds the matrix, the lower triangle its Cholesky factor, and the diagonal is kept apart, so that one matrix can
be factorised with one damping after the other. The arrays are NumPy's or CuPy's; each part is a launch of the phase "solver". Small
matrices of the CPU are copied and factorised by pullback's own kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..autodiff.primitive import OPS
from ..launch import door
from ..ops.lapack import failures
from ..ops.shape import matrix_transpose
from ..ops.solves import cholesky, solve_triangular
from ..tensors import devices
from ..tensors.tensor import Tensor
from .steps import counted

BLOCK: Final = 64  # columns of a panel
SMALL: Final = 512  # columns up to which a copy of the matrix is factorised by one call


class Launches:
    """Runs work on the arrays of one device, counted as launches of the phase "solver"."""

    def __init__(self, device: str, dtype: Any) -> None:
        self.device, self.dtype = device, np.dtype(dtype)
        self.xp = devices.array_module(device)

    def run(self, name: str, work: Callable[[], Any], fmas: int, special_ops: int = 0) -> Any:
        with devices.working(self.device), failures(self.xp), np.errstate(all="ignore"):
            return counted(name, work, fmas, special_ops, str(self.dtype))

    def solver(self, op: Callable[..., Tensor], *args: Any, **options: Any) -> Tensor:
        """Runs a function of pullback in the phase "solver"."""
        before = door.enter(door.SOLVER)
        try:
            return op(*args, **options)
        finally:
            door.enter(before)


class Normal:
    """The matrix AᵀA of n columns, of which blocks of rows of A are added one by one, or all at once."""

    def __init__(self, n: int, launches: Launches) -> None:
        self.n, self._on = n, launches
        xp = launches.xp
        with devices.working(launches.device):
            self._a = xp.zeros((n, n), launches.dtype)
        self.diagonal = self._a.diagonal().copy()
        self._copied = n <= SMALL and launches.device == "cpu" and OPS["cholesky"].native
        self._factor: Any = None  # that of a copy
        self._inverses: list[Any] = []  # those of the diagonal blocks of the factor

    def add(self, rows: Any) -> None:
        """Adds the products of a block of rows, panel by panel, so that no second matrix is needed."""

        def panels() -> None:
            if self._copied:
                self._a += rows.T @ rows
                self.diagonal[...] = self._a.diagonal()
                return
            for start in range(0, self.n, BLOCK):
                stop = min(start + BLOCK, self.n)
                self._a[:stop, start:stop] += rows[:, :stop].T @ rows[:, start:stop]
            self.diagonal[...] = self._a.diagonal()

        self._on.run("solver_gram", panels, rows.shape[0] * self.n * (self.n + 1) // 2)

    def put(self, start: int, rows: Any) -> None:
        """Sets the rows of the matrix from `start` on."""
        stop = start + rows.shape[0]
        self._a[start:stop] = rows
        self.diagonal[start:stop] = rows[:, start:stop].diagonal()

    def scale(self, by: Any) -> None:
        """Multiplies rows and columns by these numbers."""

        def scaled() -> None:
            self._a *= by[:, None]
            self._a *= by
            self.diagonal *= by * by

        self._on.run("solver_scale", scaled, self.n * self.n)

    def hold(self, held: Any) -> None:
        """Replaces these rows and columns by those of the identity, so that a step leaves the elements as they are."""
        self._a[held, :] = 0
        self._a[:, held] = 0
        self.diagonal[held] = 1

    def quadratic(self, v: Any) -> float:
        """Returns vᵀ A v."""

        def product() -> float:
            total = 0.0
            for start in range(0, self.n, BLOCK):
                stop = min(start + BLOCK, self.n)
                panel = self._a[:stop, start:stop].copy()
                panel[start:] = self._on.xp.triu(panel[start:], 1)
                total += 2 * float(v[:stop] @ (panel @ v[start:stop]))
            return total + float((v * v) @ self.diagonal)

        return self._on.run("solver_product", product, self.n * self.n // 2)

    def factorise(self, damping: float) -> float:
        """Factorises the matrix with `damping` added to its diagonal, by blocks: the inverses of diagonal blocks of L, and the
        blocks below them. Returns the smallest element of L's diagonal divided by the largest. Raises LinAlgError.
        """
        n = self.n
        if self._copied:
            return self._whole(damping)
        work = self._cholesky
        return self._on.run("solver_cholesky", lambda: work(damping), n**3 // 6, n)

    def _whole(self, damping: float) -> float:
        work = self._a.copy()
        np.fill_diagonal(work, self.diagonal + self._on.dtype.type(damping))
        self._factor = self._on.solver(cholesky, Tensor(work))
        diagonal = self._factor.array.diagonal()
        return float(diagonal.min()) / (float(diagonal.max()) or 1.0)

    def _cholesky(self, damping: float) -> float:
        xp, a, n = self._on.xp, self._a, self.n
        least, most = np.inf, 0.0
        self._inverses = []
        for start in range(0, n, BLOCK):
            stop = min(start + BLOCK, n)
            panel = a[start:stop, start:].T.copy()  # columns start to stop of the matrix, from its row `start` on
            size = stop - start
            corner = xp.triu(panel[:size].T, 1)
            corner = corner + corner.T + xp.diag(self.diagonal[start:stop] + self._on.dtype.type(damping))
            if start:
                left = a[start:, :start]
                panel -= left @ left[:size].T
                corner -= left[:size] @ left[:size].T
            factor = xp.linalg.cholesky(corner)
            diagonal = factor.diagonal()
            if not bool(xp.isfinite(diagonal).all()):
                raise np.linalg.LinAlgError("not finite")
            least, most = min(least, float(diagonal.min())), max(most, float(diagonal.max()))
            inverse = xp.linalg.inv(factor)
            self._inverses.append(inverse)
            a[stop:, start:stop] = panel[size:] @ inverse.T
        return least / most if most else 0.0

    def solve(self, b: Any) -> Any:
        """Returns the solution of the factorised system for one vector."""
        if self._copied:
            y = self._on.solver(solve_triangular, self._factor, Tensor(b[:, None]), upper=False)
            return self._on.solver(solve_triangular, matrix_transpose(self._factor), y, upper=True).array[:, 0]
        return self._on.run("solver_substitution", lambda: self._substituted(b), self.n * self.n)

    def _substituted(self, b: Any) -> Any:
        y, a = b.copy(), self._a
        borders = [(start, min(start + BLOCK, self.n)) for start in range(0, self.n, BLOCK)]
        for (start, stop), inverse in zip(borders, self._inverses):
            if start:
                y[start:stop] -= a[start:stop, :start] @ y[:start]
            y[start:stop] = inverse @ y[start:stop]
        for (start, stop), inverse in zip(reversed(borders), reversed(self._inverses)):
            if stop < self.n:
                y[start:stop] -= a[stop:, start:stop].T @ y[stop:]
            y[start:stop] = inverse.T @ y[start:stop]
        return y
