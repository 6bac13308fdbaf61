"""The damped linear systems of LevenbergMarquardt: by a normal matrix, by the products of rows, by QR, or without any matrix."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..autodiff.batching import Batch, Batched
from ..autodiff.node import named
from ..autodiff.tape import Tape
from ..ops.by_name import in_dtype, of_all
from ..ops.movement import concat
from ..ops.shape import broadcast_to, expand_dims, reshape
from ..tensors.creation import asarray
from ..tensors.ranges import eye
from ..tensors.tensor import Tensor
from ..transforms.jacobian import batched_pull
from ..transforms.jvp import linearize, pushed
from ..transforms.vjp import vjp
from .linear import LinearModel, Recordings
from .normal import Normal

if TYPE_CHECKING:
    from .levenberg_marquardt import LevenbergMarquardt

MATRIX_FREE: Final = 4096  # unknowns and residuals above which "auto" forms no matrix
WHOLE_BYTES: Final = 4 * 2**20  # a Jacobian of at most these bytes is kept whole
PRODUCTS: Final = 250  # the most products with JᵀJ of one solution by conjugate gradients


def squared(v: Any) -> float:
    """Returns the squared norm of an array, which may be beyond the range of the array's dtype."""
    largest = float(abs(v).max()) or 1.0
    scaled = v / v.dtype.type(largest)
    return float(scaled @ scaled) * largest * largest


def linear_model(lm: LevenbergMarquardt, f: Callable[..., Any], args: tuple[Any, ...]) -> LinearModel:
    """Returns the linear model of the residuals at the present Parameters."""
    if lm.recorded is None or lm.recorded.f is not f:
        lm.recorded = Recordings(lm, f)
    r = lm.recorded.values(*args)
    m, n = r.size, lm.count
    if lm.solver == "cg" or (lm.solver == "auto" and min(m, n) > MATRIX_FREE):
        return MatrixFree(lm, args, r)
    return ByRows(lm, args, r) if m < n else ByColumns(lm, args, r)


class _ByMatrix(LinearModel):
    """A model with the whole Jacobian, or with JᵀJ. A QR leaves its triangle, by which later systems are solved."""

    jacobian: Any
    normal: Any
    _triangle: Any = None

    @cached_property
    def _system(self) -> Any:
        """The Jacobian of the scaled Parameters, without the columns that are held."""
        j = self.jacobian if self.scale is None else self.jacobian * self.scale
        return j if self.free is None else j * self.free

    def _spoilt(self, least: float) -> bool:
        """True if rounding would spoil a Cholesky factor with this smallest diagonal element."""
        return self.lm.solver == "auto" and least * least < 8 * np.finfo(self.lm.dtype).eps

    def _triangle_of(self, stacked: Any, n: int, fmas: int) -> Any:
        """Does the QR of a matrix, and returns the triangle with all its columns. Raises LinAlgError if that of n is singular."""
        whole = self.on.run("solver_qr", lambda: self.xp.linalg.qr(stacked, mode="r"), fmas, n)
        self._triangle = whole[:n, :n]
        if not bool(self.xp.isfinite(self._triangle).all()) or float(abs(self._triangle.diagonal()).min()) == 0:
            raise np.linalg.LinAlgError("the triangle of QR is singular")
        return whole

    def _solved(self, b: Any) -> Any:
        if self._triangle is None:
            return self.normal.solve(b)
        r, solve = self._triangle, self.xp.linalg.solve
        return self.on.run("solver_substitution", lambda: solve(r, solve(r.T, b[:, None]))[:, 0], r.shape[0] ** 2)

    def curvature(self, delta: Any) -> float:
        return squared(self.on.run("solver_product", lambda: self.jacobian @ delta, self.jacobian.size))

    def back(self, v: Tensor) -> Any:
        return super().back(v) if self.jacobian is None else self.product(self.jacobian, v.array)

    def product(self, j: Any, v: Any) -> Any:
        """Returns jᵀ v."""
        return self.on.run("solver_product", lambda: j.T @ v, j.size)


class ByColumns(_ByMatrix):
    """At least as many residuals as unknowns: Cholesky of JᵀJ + damping I, or QR of J above sqrt(damping) I."""

    def __init__(self, lm: LevenbergMarquardt, args: tuple[Any, ...], r: Tensor) -> None:
        super().__init__(lm, args, r)
        self.normal = Normal(lm.count, self.on)
        self.jacobian = None
        whole = r.size * lm.count * lm.dtype.itemsize <= WHOLE_BYTES
        if whole or lm.solver == "qr" or lm.capture or lm.per_example:
            j, _ = self.recorded.both(*args)
            self.jacobian = (j if self.rows is None else j * expand_dims(self.rows, axis=1)).array
            self.normal.add(self.jacobian)
            self.gradient = self.product(self.jacobian, self.r.array)
        else:
            self._by_blocks(r)
        self.measure(self.normal.diagonal)
        self.find_held()
        if self.scale is not None:
            self.normal.scale(self.scale)
        if self.free is not None:
            self.normal.hold(self.free == 0)

    def _by_blocks(self, r: Tensor) -> None:
        """Computes JᵀJ in blocks: of rows, by pullbacks, or of columns, which are pushed forward and pulled back."""
        lm, n = self.lm, self.lm.count
        tape = Tape(watch_parameters=False)
        tape.watch(lm.parameters)
        with tape:
            y = self.recorded.plain(*self.args)
        size = max(32, n // 16)
        if r.size > 2 * n and not any([getattr(node.op, "formula", False) for node in named(tape.nodes)]):
            seeds = expand_dims(self.weighted, axis=0)
            self.gradient = self._pulled(tape, y, seeds, retain=True)[0].array
            for start, tangents in self._columns(size):
                seeds = tangents if self.rows is None else tangents * (self.rows * self.rows)
                block = self._pulled(tape, y, seeds, retain=True)
                self.normal.put(start, block.array)
            return
        self.gradient = self.xp.zeros(n, lm.dtype)
        for start in range(0, y.size, size):
            stop = min(start + size, y.size)
            seeds = eye(stop - start, y.size, k=start, dtype=y.dtype, device=y.device)
            seeds = seeds if self.rows is None else seeds * self.rows
            block = self._pulled(tape, y, seeds, retain=stop < y.size).array
            self.normal.add(block)
            self.gradient += self.product(block, self.r.array[start:stop])

    def _pulled(self, tape: Tape, y: Tensor, seeds: Tensor, retain: bool) -> Tensor:
        found = batched_pull(tape, [y], [seeds], self.lm.parameters, "zero", retain=retain)
        rows = [reshape(in_dtype(g, self.lm.dtype), (seeds.shape[0], -1)) for g in found]
        return rows[0] if len(rows) == 1 else concat(rows, axis=1)

    def _columns(self, size: int) -> Any:
        """Yields the index of the first of a block of columns of J, and these columns as rows."""
        parameters, place = self.lm.parameters, 0
        for i, p in enumerate(parameters):
            for start in range(0, p.size, size):
                n = min(size, p.size - start)
                basis = reshape(eye(n, p.size, k=start, dtype=p.dtype, device=p.device), (n, *p.shape))
                with Batch(n, directions=True) as batch:
                    directions = [Batched(batch, basis) if k == i else None for k in range(len(parameters))]
                    _, tangent, _ = pushed(lambda *_: self.recorded.plain(*self.args), parameters, directions)
                rows = of_all(tangent, batch)
                yield place + start, broadcast_to(rows, (n, rows.shape[-1]))
            place += p.size

    def step(self, damping: float) -> Any:
        self._triangle = None
        if self.lm.solver == "qr":
            self._factorise_rows(damping)
        else:
            least = self._cholesky(damping)
            if self._spoilt(least):
                if self.jacobian is None:
                    raise np.linalg.LinAlgError("J^T J is too ill-conditioned for this damping")
                self._factorise_rows(damping)
        if self._triangle is None:
            return self.again(self.gradient)
        xp, r, q = self.xp, self._triangle, self._target
        return self.inner(self.on.run("solver_substitution", lambda: xp.linalg.solve(r, -q[:, None])[:, 0], q.size**2 // 2))

    def _cholesky(self, damping: float) -> float:
        self.solver, self.tried = "cholesky", "Cholesky of J^T J + damping I"
        try:
            return self.normal.factorise(damping)
        except np.linalg.LinAlgError:
            if self.lm.solver == "cholesky" or self.jacobian is None:
                raise
            return 0.0

    def _factorise_rows(self, damping: float) -> None:
        self.solver, self.tried = "qr", "QR of the Jacobian with the damping below it"
        xp, n = self.xp, self.lm.count
        m, dtype = self._system.shape[0], self.lm.dtype
        stacked = xp.zeros((m + n, n + 1), dtype)
        stacked[:m, :n], stacked[:m, n] = self._system, self.r.array
        stacked[m:, :n] = xp.eye(n, dtype=dtype) * dtype.type(np.sqrt(damping))
        fmas = (m + n) * (n + 1) ** 2 - (n + 1) ** 3 // 3
        self._target = self._triangle_of(stacked, n, fmas)[:n, n]

    def again(self, gradient: Any) -> Any:
        return self.inner(self._solved(-self.inner(gradient)))

    def curvature(self, delta: Any) -> float:
        if self.jacobian is not None:
            return super().curvature(delta)
        return self.normal.quadratic(delta if self.scale is None else delta / self.scale)


class ByRows(_ByMatrix):
    """Fewer residuals than unknowns: Cholesky of JJᵀ + damping I, or QR of Jᵀ above sqrt(damping) I."""

    def __init__(self, lm: LevenbergMarquardt, args: tuple[Any, ...], r: Tensor) -> None:
        super().__init__(lm, args, r)
        j, _ = self.recorded.both(*args)
        self.jacobian = (j if self.rows is None else j * expand_dims(self.rows, axis=1)).array
        self.gradient = self.product(self.jacobian, self.r.array)
        self.measure(self.on.run("solver_norms", lambda: (self.jacobian * self.jacobian).sum(0), j.size))
        self.find_held()
        self.normal = Normal(r.size, self.on)
        self.normal.add(self._system.T)

    def step(self, damping: float) -> Any:
        self._damping, self._triangle = damping, None
        least = 0.0
        if self.lm.solver != "qr":
            self.solver, self.tried = "dual cholesky", "Cholesky of J J^T + damping I"
            try:
                least = self.normal.factorise(damping)
            except np.linalg.LinAlgError:
                if self.lm.solver == "cholesky":
                    raise
        if self.lm.solver == "qr" or self._spoilt(least):
            self._factorise_rows(damping)
        return self.inner(-self.product(self._system, self._solved(self.r.array)))

    def _factorise_rows(self, damping: float) -> None:
        self.solver, self.tried = "qr", "QR of the transposed Jacobian with the damping below it"
        xp, m = self.xp, self.r.size
        below = xp.eye(m, dtype=self.lm.dtype) * self.lm.dtype.type(np.sqrt(damping))
        stacked = xp.concatenate([self._system.T, below])
        fmas = stacked.shape[0] * m * m - m**3 // 3
        self._triangle_of(stacked, m, fmas)

    def again(self, gradient: Any) -> Any:
        """(JᵀJ + d I)⁻¹ g is (g - Jᵀ (JJᵀ + d I)⁻¹ J g) / d."""
        g = self.inner(gradient)
        moved = self.on.run("solver_product", lambda: self._system @ g, self._system.size)
        return self.inner((self.product(self._system, self._solved(moved)) - g) / self._damping)


class MatrixFree(LinearModel):
    """Conjugate gradients on JᵀJ + damping I, with products by forward mode and by pullbacks."""

    def __init__(self, lm: LevenbergMarquardt, args: tuple[Any, ...], r: Tensor) -> None:
        super().__init__(lm, args, r)
        self.solver, self.tried = "cg", "conjugate gradients"
        self._record()
        self.gradient = self.joined(self._pull(self.weighted)[0]).array
        self.find_held()
        steepness = squared(self.gradient)
        self.largest = self.curvature(self.gradient) / (steepness or 1.0) or 1.0
        lm.steepest = max(lm.steepest, steepness**0.5)

    def _record(self) -> None:
        """Records the products with J and Jᵀ, again if a trial has changed the Parameters in place and restored them."""
        versions = [p.version for p in self.lm.parameters]
        if getattr(self, "_versions", None) == versions:
            return
        self._versions = versions
        _, self._pull = vjp(lambda _: self.recorded.plain(*self.args), self.lm.parameters)
        _, self._push = linearize(lambda _: self.recorded.plain(*self.args), self.lm.parameters)

    def _moved(self, v: Any) -> Tensor:
        moved = self._push(self.split(asarray(v, device=self.on.device)))
        return moved if self.rows is None else moved * self.rows

    def step(self, damping: float) -> Any:
        self._damping = damping
        self._record()
        return self.again(self.gradient)

    def again(self, gradient: Any) -> Any:
        """Solves for the gradient as a unit vector, whose squares do not overflow, and the more exactly the smaller the gradient is
        beside the steepest one so far."""
        size = squared(gradient) ** 0.5 or 1.0
        residual = -self.inner(gradient / self.lm.dtype.type(size))
        x, direction = self.xp.zeros_like(residual), residual
        first = square = float(residual @ residual)
        goal = min(0.01, size / (self.lm.steepest or size)) * first
        for _ in range(PRODUCTS):
            if square <= goal or square == 0:
                break
            moved = self._moved(direction)
            moved = moved if self.rows is None else moved * self.rows
            product = self.inner(self.joined(self._pull(moved)[0]).array) + self._damping * direction
            slope = float(direction @ product)
            if not slope > 0:
                raise np.linalg.LinAlgError("a product with J^T J is not finite")
            alpha = self.lm.dtype.type(square / slope)
            x, residual = x + alpha * direction, residual - alpha * product
            before, square = square, float(residual @ residual)
            direction = residual + self.lm.dtype.type(square / before) * direction
        return x * self.lm.dtype.type(size)

    def curvature(self, delta: Any) -> float:
        return squared(self._moved(delta).array)
