"""The unknowns of a solver as one vector, and residual functions of that vector with their Jacobians."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ..autodiff.batching import Batched
from ..autodiff.kept import Heard
from ..autodiff.tape import Tape
from ..duck import has
from ..errors import ArgumentError, DeviceError, DTypeError, ShapeError, UnconnectedError, VmapError
from ..launch import capturing
from ..ops.by_name import in_dtype
from ..ops.conversion import constant
from ..ops.elementwise import atan, log1p, sqrt, where
from ..ops.movement import concat
from ..ops.reduce import sum
from ..ops.shape import reshape
from ..replays.capture import capture as captured
from ..tensors import devices, dtypes
from ..tensors.creation import asarray, ones_like, zeros_like
from ..tensors.operand import converted
from ..tensors.tensor import Tensor
from ..transforms.jacobian import Mode, hessian, jacobian
from ..tree import flatten, unflatten
from .arguments import listed, real_array
from .bounds import ambiguous, filled, pairs_hint, prefix
from .rowwise import row_jacobian
from .unknowns import in_one_dtype

MODES: Final = ("auto", "forward", "reverse")
MANY: Final = 32  # unknowns from which on it is worthwhile to look for independent rows of residuals


class TensorNamespace:
    """The functions of pullback that losses use."""

    sqrt, where, log1p, atan = staticmethod(sqrt), staticmethod(where), staticmethod(log1p), staticmethod(atan)
    ones_like, zeros_like = staticmethod(ones_like), staticmethod(zeros_like)


def host(t: Any) -> np.ndarray[Any, Any]:
    """Returns the elements of a tensor as float64 numbers on the host. Tapes are not told."""
    return devices.move(t.array, "cpu").astype(np.float64, order="C")


def flat(owner: str, value: Any) -> Tensor:
    """Returns the residuals that a function returned, a tensor or nested lists, tuples and dicts of tensors, as one vector.

    Raises DTypeError.
    """
    leaves = flatten(value)[0]
    if not leaves:
        raise DTypeError(f"{owner}: the function returned {value!r} and no residuals. Does it lack a return?")
    parts: list[Tensor] = []
    for leaf in leaves:
        if not isinstance(leaf, Tensor) and not has(leaf, "shape") and not isinstance(leaf, (int, float)):
            raise DTypeError(
                f"{owner}: the function returned a {type(leaf).__name__}; residuals are real tensors, alone or in nested lists, "
                f"tuples, dicts. Split complex residuals into their real and imaginary parts."
            )
        if isinstance(leaf, Tensor):
            t = leaf
        else:
            t = converted(owner, "what the function returned", _real(owner, "the residuals", leaf), asarray)
        if not dtypes.is_float(t.dtype):
            raise DTypeError(
                f"{owner}: the residuals have dtype {t.dtype}; they must be floating-point. Convert them with .astype."
            )
        parts.append(t if t.ndim == 1 else reshape(t, (-1,)))
    return parts[0] if len(parts) == 1 else concat(parts)


def _real(owner: str, what: str, x: Any) -> Any:
    """Returns x. Raises DTypeError if it is complex."""
    if isinstance(x, complex) or getattr(getattr(x, "dtype", None), "kind", "") == "c":
        raise DTypeError(f"{owner}: {what} are complex, and solvers work with real numbers. Give real and imaginary parts apart.")
    return x


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, complex, np.number, np.bool_)) and not isinstance(x, Tensor)


class Unknowns:
    """The structure of x0: the leaves, their shapes and dtypes, and how a vector of all elements becomes that structure.

    Args:
        owner: the solver, for messages.
        x0: a vector, a number, or nested lists, tuples, dicts of tensors and arrays. A list of Python numbers is a float64 vector.
        batch: the leaves have a leading axis of problems, which does not belong to the vector.
    """

    def __init__(self, owner: str, x0: Any, batch: bool = False) -> None:
        self.owner, self.batch = owner, batch
        self.title = "the Parameters" if owner == "LevenbergMarquardt" else "x0"
        leaves, self.spec = flatten(x0)
        if not isinstance(x0, (dict, Tensor)) and leaves and all([_is_number(x) for x in leaves]):
            leaves, self.spec = [_vector(owner, x0)], None
        leaves = in_one_dtype(leaves)
        if not leaves:
            raise ShapeError(f"{owner}: x0 is empty: there is nothing to solve for.")
        self.leaves = [self._leaf(x) for x in leaves]
        shapes = [x.shape for x in self.leaves]
        if batch and (not all(shapes) or len({shape[0] for shape in shapes}) > 1):
            raise ShapeError(
                f"{owner}: with batch=True every tensor of x0 needs a leading axis of problems, of one length; the shapes are "
                f"{', '.join(map(str, shapes))}."
            )
        self.count = shapes[0][0] if batch else 1
        self.shapes = [shape[1:] if batch else shape for shape in shapes]
        self.sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.size = int(np.sum(self.sizes))
        if not self.size:
            raise ShapeError(f"{owner}: x0 has no elements: there is nothing to solve for.")
        if len({x.device for x in self.leaves}) > 1:
            raise DeviceError(f"{owner}: the tensors of x0 are on several devices; move them to one with .to.")
        self.device = self.leaves[0].device

    def _leaf(self, x: Any) -> Tensor:
        if isinstance(x, Batched):
            raise in_vmap(self.owner)
        t = constant(x) if isinstance(x, Tensor) else tensor_of(self.owner, "x0", _real(self.owner, "x0", x))
        if not dtypes.is_float(t.dtype):
            raise DTypeError(
                f"{self.owner}: x0 has dtype {t.dtype}, and a solver moves x in small steps. Give floats: x0.astype(pb.float64), "
                f"or [1.0, 2.0] for [1, 2]."
            )
        return t

    @property
    def vector(self) -> Tensor:
        """The elements of x0 as one vector, or as one row for each problem."""
        lead = (self.count,) if self.batch else ()
        parts = [reshape(x, (*lead, size)) for x, size in zip(self.leaves, self.sizes)]
        return parts[0] if len(parts) == 1 else concat(parts, axis=-1)

    def tree(self, vector: Tensor, lead: tuple[int, ...] = ()) -> Any:
        """Returns a vector, or rows of such vectors, in the structure of x0."""
        return unflatten(self.spec, self.parts(vector, lead))

    def parts(self, vector: Tensor, lead: tuple[int, ...] = ()) -> list[Tensor]:
        """Returns the tensors of this structure."""
        found, start = [], 0
        for x, shape, size in zip(self.leaves, self.shapes, self.sizes):
            part = vector if len(self.sizes) == 1 else vector[..., start : start + size]
            found.append(in_dtype(reshape(part, (*lead, *shape)), x.dtype))
            start += size
        return found

    def limits(self, bounds: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Returns the lower and the upper bounds, a vector each or a row for each problem. Raises ShapeError, ArgumentError."""
        shape = (self.count, self.size) if self.batch else (self.size,)
        low, high = np.full(shape, -np.inf), np.full(shape, np.inf)
        if bounds is None:
            return low, high
        if hasattr(bounds, "lb") and hasattr(bounds, "ub"):  # scipy.optimize.Bounds
            bounds = (bounds.lb, bounds.ub)
        if isinstance(bounds, (np.ndarray, Tensor)) and bounds.ndim:
            whole = host(bounds) if isinstance(bounds, Tensor) else bounds
            bounds = whole.tolist() if whole.shape == (2, 2) else list(whole)
        hint = pairs_hint(bounds, self.size) if isinstance(bounds, (tuple, list)) else ""
        if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
            raise ShapeError(
                f"{self.owner}: bounds must be a pair (lower, upper), each a number or like {self.title}; None stands for no bound."
                f"{hint}"
            )
        for side, given, sign in zip((low, high), bounds, (-1, 1)):
            self._fill(side, given, sign)
        self._check_limits(low, high, hint)
        if hint and self._may_be_pairs(bounds, low, high):
            raise ambiguous(bounds, len(self.sizes), self.owner)
        dtype = self.leaves[0].dtype  # bounds that x can meet exactly
        return low.astype(dtype).astype(np.float64), high.astype(dtype).astype(np.float64)

    def _may_be_pairs(self, bounds: Any, low: np.ndarray[Any, Any], high: np.ndarray[Any, Any]) -> bool:
        """True if x0 is within these bounds of two unknowns, and within other ones if they are read as a pair for each unknown.

        A tuple of two lists is how SciPy's users write (lower, upper), so it is never taken for pairs.
        """
        if isinstance(bounds, tuple) and all([isinstance(side, list) for side in bounds]):
            return False
        x, (first, second) = host(self.vector), np.array(bounds, np.float64).T
        within = ((low <= x) & (x <= high) & (first <= x) & (x <= second)).all()
        return bool(within and (first < second).all() and ((first != low) | (second != high)).any())

    def _check_limits(self, low: np.ndarray[Any, Any], high: np.ndarray[Any, Any], hint: str) -> None:
        if np.isnan(low).any() or np.isnan(high).any():
            raise ArgumentError(f"{self.owner}: a bound is NaN. Use -inf or inf where there is no bound.{hint}")
        if (low > high).any():
            place, named = self._first(low > high)
            raise ArgumentError(
                f"{self.owner}: the bounds are crossed: {named} has {low[place]:g} as lower and {high[place]:g} as upper bound."
                f"{hint}"
            )
        if (low == high).any():
            place, named = self._first(low == high)
            raise ArgumentError(
                f"{self.owner}: the bounds of {named} are both {low[place]:g}, which leaves nothing to solve for. Put a fixed "
                f"value into the function instead.{hint}"
            )

    def _first(self, bad: np.ndarray[Any, Any]) -> tuple[tuple[int, ...], str]:
        """Returns the place of the first element that is True, and its name for a message."""
        place = tuple([int(i) for i in np.argwhere(bad)[0]])
        return place, f"element {place[-1]} of {self.title}" + (f" of problem {place[0]}" if len(place) > 1 else "")

    def _fill(self, side: Any, given: Any, sign: int) -> None:
        """Writes the bounds of one side, a number, a vector or a structure like x0, into `side`. sign: -1 for the lower side."""
        if given is None:
            return
        if isinstance(given, dict) or (isinstance(given, (list, tuple)) and self.spec is not None):
            parts = prefix(unflatten(self.spec, list(range(len(self.sizes)))), given)
        else:
            parts = [given] * len(self.sizes)
        if len(self.sizes) == 1 and not parts:  # a list of numbers for the only tensor
            parts = [given]
        if len(parts) != len(self.sizes):
            name = "lower" if sign < 0 else "upper"
            raise ShapeError(
                f"{self.owner}: bounds: the {name} side {reprlib.repr(given)} does not fit the {len(self.sizes)} tensors of "
                f"{self.title}. Give one number for all, or the structure of {self.title}, with a number, None or an array for "
                f"each tensor."
            )
        start = 0
        for part, shape, size in zip(parts, self.shapes, self.sizes):
            bound = real_array(self.owner, "bounds", filled(part, np.nan))
            if part is not None:
                whole = (self.count, *shape) if self.batch else shape
                try:
                    side[..., start : start + size] = np.broadcast_to(bound, whole).reshape(*side.shape[:-1], size)
                except ValueError:
                    raise ShapeError(
                        f"{self.owner}: bounds: one of shape {bound.shape} does not fit {self.title} of shape {whole}. Give a "
                        f"number, or an array that broadcasts to it."
                    ) from None
            start += size


def _vector(owner: str, x0: Any) -> Tensor:
    """Returns Python numbers as float64. Raises DTypeError for integers and complex numbers, which are no starting point."""
    try:
        numbers = np.asarray(x0)
    except ValueError:
        raise ShapeError(f"{owner}: x0 has nested lists of unequal lengths. Give arrays: [np.array(a), np.array(b)].") from None
    _real(owner, "the elements of x0", numbers)
    if numbers.dtype.kind != "f":
        raise DTypeError(
            f"{owner}: x0 is made of {numbers.dtype} numbers; a solver moves x in small steps. Give floats: [1.0, 2.0] for [1, 2]."
        )
    return asarray(numbers.astype(np.float64) if isinstance(x0, (float, list, tuple)) else numbers, copy=True)


class Residuals:
    """A residual function of one vector on the host, evaluated with pullback's ops in the dtype and on the device of x0.

    Args:
        f: called as f(x, *args).
        unknowns: the structure of x.
        mode: that of `pb.jacobian`.
        capture: record the function and its Jacobian with `pb.capture`.
    """

    def __init__(self, f: Callable[..., Any], unknowns: Unknowns, args: Sequence[Any], mode: Mode, capture: bool) -> None:
        owner = unknowns.owner
        self._unknowns, self._args, self.length = unknowns, tuple(args), -1
        self.nfev = self.njev = 0

        def values(vector: Tensor, *args: Any) -> Tensor:
            return flat(owner, f(unknowns.tree(vector), *args))

        def pair(vector: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
            r = values(vector, *args)
            return r, r

        whole = jacobian(pair, mode=mode, has_aux=True)

        def both(vector: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
            return (self._rows(vector, *args) if self._by_rows else None) or whole(vector, *args)

        self.values, self._f = values, f
        self._by_rows: bool | None = None if mode == "auto" and unknowns.size >= MANY else False  # None: not known yet
        self._values = captured(values) if capture else values
        self._both = captured(both) if capture else both
        self._dtype = unknowns.vector.dtype
        self.eps = float(dtypes.finfo(self._dtype).eps)

    def rounded(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the vector as numbers of x0's dtype."""
        return x.astype(self._dtype).astype(np.float64)

    def tensor(self, x: np.ndarray[Any, Any]) -> Tensor:
        """Returns a vector of the host as a tensor of x0's dtype and device."""
        return asarray(x.astype(self._dtype), device=self._unknowns.device)

    def __call__(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the residuals at x. Raises ShapeError if their number has changed."""
        self.nfev += 1
        with Heard(()):
            found = host(self._values(self.tensor(x), *self._args))
        self._check(found)
        return found

    def both(self, x: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Returns the residuals and their Jacobian at x."""
        self.njev += 1
        with Heard(()):
            vector = self.tensor(x)
            by_rows = None
            if self._by_rows is None:  # found out before anything is recorded
                by_rows = self._rows(vector, *self._args)
                self._by_rows = by_rows is not None
            j, r = by_rows or self._both(vector, *self._args)
        found = host(r)
        self._check(found)
        return found, host(j)

    def _rows(self, vector: Tensor, *args: Any) -> tuple[Tensor, Tensor] | None:
        """Returns the Jacobian and the residuals, computed row by row, or None if the rows are not known to be independent."""
        parts = self._unknowns.parts(vector)
        found = row_jacobian(lambda: self._f(unflatten(self._unknowns.spec, parts), *args), parts)
        if found is None:
            return None
        r = flat(self._unknowns.owner, found[1])
        rows = [reshape(in_dtype(j, vector.dtype), (r.size, -1)) for j in found[0]]
        return rows[0] if len(rows) == 1 else concat(rows, axis=1), r

    def refuse_unconnected(self, x: np.ndarray[Any, Any]) -> None:
        """Raises UnconnectedError if no residual depends on x."""
        vector = self.tensor(x)
        refuse_unconnected(self._unknowns.owner, "x", lambda: self.values(vector, *self._args), [vector])

    def hessian(self, x: np.ndarray[Any, Any], loss: Any) -> np.ndarray[Any, Any]:
        """Returns the Hessian of the cost at x."""
        self.njev += 1

        def cost(vector: Tensor) -> Tensor:
            return 0.5 * sum(loss.values(TensorNamespace, self.values(vector, *self._args)))

        with Heard(()):
            return host(hessian(cost)(self.tensor(x)))

    def _check(self, r: np.ndarray[Any, Any]) -> None:
        if self.length < 0:
            self.length = r.size
        if r.size != self.length:
            raise ShapeError(
                f"{self._unknowns.owner}: the function returned {self.length} residuals at first and {r.size} now. Their number "
                f"must not depend on x; give a residual that does not count the value 0."
            )


def refuse_unconnected(owner: str, name: str, residuals: Callable[[], Tensor], sources: Sequence[Tensor]) -> None:
    """Raises UnconnectedError if the value of `residuals` depends on no source. name: what the sources are called."""
    tape = Tape(watch_parameters=False)
    with Heard(()):
        tape.watch(sources)
        with tape:
            r = residuals()
        found = tape.gradient(r, sources, output_gradients=ones_like(r), unconnected="none")
    if all([g is None for g in found]):
        raise UnconnectedError(
            f"{owner}: the value of the function does not depend on {name}, or not through tensors. Compute it from {name} with "
            f"functions of pb; where an op has no derivative, use pb.custom_gradient."
        )


def in_vmap(owner: str) -> VmapError:
    """Returns the error for a solver inside vmap."""
    many = "Many problems are one call with batch=True." if owner == "least_squares" else "Loop over the examples."
    return VmapError(f"{owner}: reads numbers, and so cannot run inside vmap. {many}")


def refuse_recording(owner: str) -> None:
    """Raises CaptureError inside a captured function."""
    capturing.refuse(
        f"pb.solve.{owner}, which iterates on the host,", "Call it outside, and give its result to the captured function."
    )


def tensor_of(owner: str, name: str, x: Any) -> Tensor:
    """Returns a copy of an argument as a tensor. Errors name the solver and the argument."""
    return converted(owner, name, x, lambda given: asarray(given, copy=True))


def prepared(owner: str, args: Any) -> tuple[Any, ...]:
    """Returns the arguments of the user's function, in which arrays are tensors. Raises VmapError."""
    leaves, spec = flatten(tuple(listed(args)))
    if any([isinstance(x, Batched) for x in leaves]):
        raise in_vmap(owner)
    return tuple(unflatten(spec, [tensor_of(owner, "args", x) if isinstance(x, np.ndarray) else x for x in leaves]))
