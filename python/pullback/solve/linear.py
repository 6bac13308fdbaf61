"""The linear model of the residuals of LevenbergMarquardt: what all its damped systems have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import LinAlgError
from ..ops.by_name import in_dtype
from ..ops.movement import concat
from ..ops.shape import reshape
from ..replays.capture import capture as captured
from ..tensors.creation import asarray
from ..tensors.tensor import Tensor
from ..transforms.checkpoint import Repeated
from ..transforms.jacobian import jacobian
from ..transforms.jvp import jvp
from ..transforms.vjp import vjp
from ..transforms.vmap import vmap
from .arguments import check_finite, check_start
from .jacobians import TensorNamespace, flat, host, refuse_unconnected
from .normal import Launches
from .rowwise import row_jacobian

if TYPE_CHECKING:
    from .levenberg_marquardt import LevenbergMarquardt


class Recordings:
    """The residuals of one function of the Parameters as a vector, and with their Jacobian of shape (m, P).

    Where the rows of a batch are independent, the Jacobian is computed row by row at the cost of a gradient (`rowwise`). The first
    evaluation of a step is that of `values`; all others leave the running statistics of layers as they are.
    """

    def __init__(self, lm: LevenbergMarquardt, f: Callable[..., Any]) -> None:
        self.f, self._parameters = f, lm.parameters
        dtype = lm.dtype

        def one(*args: Any) -> Tensor:
            return in_dtype(flat("LevenbergMarquardt", f(*args)), dtype)

        def values(*args: Any) -> Tensor:
            return reshape(vmap(one)(*args), (-1,)) if lm.per_example else one(*args)

        self.plain = _repeated(values)
        self._by_rows: bool | None = False if lm.per_example else None  # None: not known yet
        whole = jacobian(lambda parameters, *args: (one(*args),) * 2, has_aux=True)

        def derivative(*args: Any) -> Any:
            return whole(self._parameters, *args)

        def both(*args: Any) -> tuple[Tensor, Tensor]:
            found = None if self._by_rows is False else row_jacobian(lambda: f(*args), self._parameters)
            self._by_rows = found is not None
            if found is None:
                blocks, r = (vmap(derivative) if lm.per_example else derivative)(*args)
            else:
                blocks, r = found[0], in_dtype(flat("LevenbergMarquardt", found[1]), dtype)
            r = reshape(r, (-1,))
            rows = [reshape(in_dtype(j, dtype), (r.size, -1)) for j in blocks]
            return rows[0] if len(rows) == 1 else concat(rows, axis=1), r

        def second(delta: Tensor, *args: Any) -> Tensor:
            split = parts_of(lm, delta)

            def slope(given: Any) -> Any:
                return jvp(lambda _: values(*args), (self._parameters,), (split,))[1]

            return jvp(slope, (self._parameters,), (split,))[1]

        self._record: Callable[..., Any] = captured if lm.capture else lambda function: function
        self.values, self.again = self._record(values), self._record(self.plain)
        self._jacobian = _repeated(both)
        self._both = self._record(self._jacobian)
        self.second = self._record(_repeated(second))  # the second derivative of the residuals along delta

    def both(self, *args: Any) -> tuple[Tensor, Tensor]:
        """Returns the Jacobian and the residuals."""
        first = self._by_rows is None
        found = self._both(*args)
        if first and not self._by_rows:  # the recording contains the attempt to find independent rows
            self._both = self._record(self._jacobian)
        return found


def _repeated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that computes what this one does, and leaves the running statistics of layers as they are."""

    def call(*args: Any) -> Any:
        with Repeated():
            return function(*args)

    return call


def _check_residuals(lm: LevenbergMarquardt, r: Any) -> None:
    """Raises ArgumentError for residuals that are not finite, and names the Parameter that is not finite, if there is one."""
    if np.isfinite(r).all() and r.size:
        return
    owner = "LevenbergMarquardt"
    for i, p in enumerate(lm.parameters):
        place = f", number {i} of the Parameters," if not p.name and len(lm.parameters) > 1 else ""
        check_finite(owner, p.label() + place, host(p))
    check_start(owner, r, "the present Parameters", "Change the Parameters or the arguments of the step, so that all")


def parts_of(lm: LevenbergMarquardt, vector: Tensor) -> list[Tensor]:
    """Returns a vector as one tensor for each Parameter, in its dtype."""
    found, place = [], 0
    for p in lm.parameters:
        found.append(in_dtype(reshape(vector[place : place + p.size], p.shape), p.dtype))
        place += p.size
    return found


class LinearModel:
    """The residuals r, J, and the steps of least |r + J delta|² + damping |delta|² / scale².

    Attributes:
        cost: the cost at the present Parameters.
        largest: the largest element of the diagonal of JᵀJ.
        solver: how the last step was solved, for the report.
        tried: the same in words, for an error.
    """

    def __init__(self, lm: LevenbergMarquardt, args: tuple[Any, ...], r: Tensor) -> None:
        self.lm, self.args, self.recorded = lm, args, lm.recorded
        first = host(r)
        _check_residuals(lm, first)
        self.cost = lm.loss.cost(first)
        scaled = lm.loss.scaled(TensorNamespace, r)
        self.rows, self.r, self.weighted = scaled.rows, scaled.residuals, scaled.weighted
        self.on: Launches = lm.launches
        self.xp = self.on.xp
        self.largest, self.solver, self.tried = 1.0, "cholesky", "Cholesky"
        self.scale: Any = None  # 1 / D, the unit of each element
        self.free: Any = None  # 0 where an element is held by a bound, otherwise 1

    def refuse_unconnected(self) -> None:
        """Raises UnconnectedError if no residual depends on a Parameter."""
        refuse_unconnected("LevenbergMarquardt", "the Parameters", lambda: self.recorded.plain(*self.args), self.lm.parameters)

    def residuals(self) -> Tensor:
        """Returns the residuals at the Parameters as they are now."""
        return self.recorded.again(*self.args)

    def step(self, damping: float) -> Any:
        """Returns the change of the Parameters as one array. Raises LinAlgError."""
        raise NotImplementedError

    def predicted(self, delta: Any) -> float:
        """Returns the decrease of the cost by the linear model."""
        return -float(self.gradient @ delta) - 0.5 * self.curvature(delta)

    def curvature(self, delta: Any) -> float:
        """Returns |J delta|²."""
        raise NotImplementedError

    def again(self, gradient: Any) -> Any:
        """Returns the step of the last damping for another gradient."""
        raise NotImplementedError

    gradient: Any

    def acceleration(self, delta: Any) -> Any:
        """Returns half the second derivative of the geodesic whose velocity is delta."""
        second = self.recorded.second(asarray(delta, device=self.on.device), *self.args)
        return 0.5 * self.again(self.back(second if self.rows is None else second * self.rows))

    def back(self, v: Tensor) -> Any:
        """Returns the product of the transposed Jacobian, whose rows are scaled by `rows`, and a vector."""
        _, pullback = vjp(lambda _: self.recorded.plain(*self.args), self.lm.parameters)
        return self.joined(pullback(v if self.rows is None else v * self.rows)[0]).array

    def split(self, vector: Tensor) -> list[Tensor]:
        """Returns a vector as one tensor for each Parameter, in its dtype."""
        return parts_of(self.lm, vector)

    def joined(self, parts: Any) -> Tensor:
        """Returns one tensor for each Parameter as one vector."""
        flats = [in_dtype(reshape(t, (-1,)), self.lm.dtype) for t in parts]
        return flats[0] if len(flats) == 1 else concat(flats)

    def find_held(self) -> None:
        """Finds the elements that are on a bound and that the gradient presses against it."""
        if self.lm.limits is None:
            return
        xp, x = self.xp, self.joined(self.lm.parameters).array
        low, high = [limit.array for limit in self.lm.limits]
        held = ((x <= low) & (self.gradient > 0)) | ((x >= high) & (self.gradient < 0))
        self.free = xp.where(held, xp.zeros_like(x), xp.ones_like(x))

    def measure(self, squares: Any) -> None:
        """Notes the squared norms of the columns of J. Raises LinAlgError if they are not finite."""
        self.largest = float(squares.max()) or 1.0
        if not np.isfinite(self.largest):
            column = int(self.xp.argmax(~self.xp.isfinite(squares)))
            raise LinAlgError(
                f"LevenbergMarquardt: the system of the step is singular, and none was tried: the Jacobian has a NaN or an "
                f"infinity in the column of element {column} of the Parameters. `with pb.debug_nans():` finds the op that made it."
            )
        if self.lm.scaled:
            norms = self.xp.sqrt(squares)
            norms = norms if self.lm.columns is None else self.xp.maximum(self.lm.columns, norms)
            self.lm.columns = norms
            self.scale = 1 / self.xp.where(norms > 0, norms, self.xp.ones_like(norms))
            self.largest = 1.0

    def inner(self, v: Any) -> Any:
        """Returns a vector of the Parameters' space in the scaled space of the system, without the elements that are held."""
        v = v if self.scale is None else v * self.scale
        return v if self.free is None else v * self.free
