"""Linear systems and the Cholesky factorisation: cholesky, solve_triangular, solve, inv.

The CPU has kernels for them. On a GPU they run in CuPy (`lapack`). Where a derivative divides by zero because a matrix is singular,
it is NaN for that matrix, and other matrices of the batch keep theirs: the `strict` of an op is False in the pullbacks.

References for the rules: M. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic differentiation"
(2008); I. Murray, "Differentiation of the Cholesky decomposition" (2016).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..autodiff.batching import pull
from ..autodiff.primitive import Op, Rule, apply
from ..backends import kernel_for
from ..errors import ShapeError
from ..tensors.creation import ones
from ..tensors.dtypes import float32
from ..tensors.operand import as_tensor
from ..tensors.ranges import eye
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from . import lapack
from ._shapes import broadcast_shapes, flag
from .batch_rules import leading
from .by_name import aligned, all_on, in_float
from .conversion import stop_gradient
from .declare import normal, op
from .elementwise import abs as absolute, clip, exp2, floor, greater, log2, where
from .kinds import OWN, OWN_OF_TWO
from .lapack import SMALL_ON_CPU
from .linalg import matmul
from .movement import tril, triu
from .operands import as_tensors
from .reduce import max
from .shape import expand_dims, matrix_transpose, reshape

# ---- tools of the rules


def matrices_each(op: Op, size: int, xs: Sequence[Any], on: Sequence[bool], params: Sequence[Any]) -> Tensor:
    """The batching rule of ops on several matrices, whose leading axes broadcast."""
    return apply(op, tuple(aligned(xs, on)), tuple(params))


def scale_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a power of 2 near the largest element of each matrix, and its inverse, as constants. Both are normal numbers.

    They are 1 for a matrix of zeros.
    """
    largest = max(absolute(stop_gradient(x)), axis=(-2, -1), keepdims=True)
    most = 120.0 if x.dtype == float32 else 1000.0
    exponent = clip(floor(log2(where(greater(largest, 0), largest, 1.0))), -most, most)
    return exp2(exponent), exp2(-exponent)


def half_diagonal(x: Tensor) -> Tensor:
    """Returns the lower triangle of each matrix with its diagonal halved."""
    n = x.shape[-1]
    ones_below = tril(ones((n, n), dtype=x.dtype, device=x.device))
    return x * (ones_below - 0.5 * eye(n, dtype=x.dtype, device=x.device))


def substituted(a: Tensor, b: Tensor, *, upper: bool, unit: bool = False) -> Tensor:
    """Returns a⁻¹ b for a triangular a, and NaN if a has a zero on its diagonal."""
    return apply(_solve_triangular, (a, b), (upper, unit, False))


def inverse_transposed(x: Tensor) -> Tensor:
    """Returns the transposed inverses, and NaN for a singular matrix."""
    return apply(_solve, (matrix_transpose(x), eye(x.shape[-1], dtype=x.dtype, device=x.device)), (0,))


def inverse(name: str, x: Any) -> Tensor:
    """Returns the inverses for the function with this name, which errors name."""
    x = square(name, x)
    return apply(_solve, (x, eye(x.shape[-1], dtype=x.dtype, device=x.device)), (lapack.caller(name),))


def count(shape: Sequence[int]) -> int:
    """Returns the number of matrices in an array of this shape."""
    return int(np.prod(shape[:-2]))


def square(name: str, x: Any, argument: str = "x") -> Tensor:
    """Returns an argument as a tensor of floats. Raises ShapeError if its last two axes are not those of square matrices."""
    x = matrix(name, x, argument)
    require_square(name, x, argument)
    return x


def require_square(name: str, x: Tensor, argument: str = "x") -> None:
    """Raises ShapeError unless the last two axes of an argument have one length."""
    require_matrix(name, x, argument)
    if x.shape[-1] != x.shape[-2]:
        instead = {"solve": " pb.linalg.lstsq solves other systems.", "inv": " pb.linalg.pinv is for other matrices."}.get(name, "")
        raise ShapeError(f"{name}: {argument} has shape {x.shape}, and its matrices, the last two axes, must be square.{instead}")


def matrix(name: str, x: Any, argument: str = "x") -> Tensor:
    """Returns an argument as a tensor of floats. Raises ShapeError if it has fewer than two axes."""
    x = in_float(as_tensor(x))
    require_matrix(name, x, argument)
    return x


def require_matrix(name: str, x: Tensor, argument: str = "x") -> None:
    """Raises ShapeError if an argument has fewer than two axes."""
    if x.ndim < 2:
        how = f"pb.reshape({argument}, (-1, 1)) is one column." if x.ndim else "Give a matrix, or matrices."
        raise ShapeError(
            f"{name}: {argument} has shape {x.shape}; its last two axes must be the rows and columns of matrices. {how}"
        )


def well_conditioned(*shapes: tuple[int, ...], positive: bool = False, params: tuple[Any, ...] = ()) -> Callable[..., Any]:
    """Returns an example: square matrices with a dominant diagonal, or as `positive`, positive definite ones, then other arrays."""

    def example(rng: Any, dtype: Any) -> Any:
        first = rng.standard_normal(shapes[0])
        first = 0.2 * (first + first.swapaxes(-1, -2)) if positive else 0.3 * first
        rest, _ = normal(*shapes[1:])(rng, dtype)
        return ((first + 2 * np.eye(shapes[0][-1])).astype(dtype), *rest), params

    return example


# ---- ops


def _cholesky_pullback(g: Tensor, y: Tensor) -> Tensor:
    """Equation 10 of Murray's paper, made symmetric."""
    turned = matrix_transpose(y)
    middle = half_diagonal(matmul(turned, tril(g)))
    left = substituted(turned, middle + matrix_transpose(middle), upper=True)
    return 0.5 * matrix_transpose(substituted(turned, matrix_transpose(left), upper=True))


_cholesky = op(
    "cholesky", kind=OWN, takes="float", batch=leading, reference=lapack.cholesky, same_bits=SMALL_ON_CPU, ulp=8,
    pullback=_cholesky_pullback, example=well_conditioned((2, 4, 4), positive=True),
    cost=lambda x, y: {"fmas": count(x.shape) * (x.shape[-1] ** 3 // 6), "special_ops": count(x.shape) * x.shape[-1]},
)


def _triangle(x: Tensor, upper: bool, unit: bool) -> Tensor:
    return triu(x, k=int(unit)) if upper else tril(x, k=-int(unit))


def _solved_by_a(g: Tensor, a: Tensor, y: Tensor, upper: bool, unit: bool) -> Tensor:
    gb = substituted(matrix_transpose(a), g, upper=not upper, unit=unit)
    return -_triangle(matmul(gb, matrix_transpose(y)), upper, unit)


_solve_triangular = op(
    "solve_triangular", kind=OWN_OF_TWO, takes="float", inputs=2, batch=matrices_each, same_bits=SMALL_ON_CPU, ulp=16,
    reference=lapack.solve_triangular, example=well_conditioned((2, 4, 4), (4, 3), params=(False, False, True)),
    pullback=(
        _solved_by_a,
        lambda g, a, upper, unit: substituted(matrix_transpose(a), g, upper=not upper, unit=unit),
    ),
    cost=lambda a, b, upper, unit, strict, y: {"fmas": y.size * a.shape[-1] // 2, "special_ops": 0 if unit else y.size},
)


def _solve_pullback(g: Tensor, a: Tensor, y: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
    """Section 2.3 of Giles's paper. One factorisation serves both gradients."""
    gb = apply(_solve, (matrix_transpose(a), g), (0,))
    return [-matmul(gb, matrix_transpose(y)) if needs[0] else None, gb if needs[1] else None]


_pull, _ = kernel_for("solve_pullback")


def _solve_fused(g: Tensor, a: Tensor, y: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
    return [None if x is None else Tensor(x) for x in _pull(a.array, g.array, y.array, *needs)]  # type: ignore[misc]


def _solve_pull_each(rule: Rule, size: int, values: Sequence[Any], on: Sequence[bool]) -> Any:
    """The batching rule of the fused pullback."""
    *tensors, needs = values
    return pull(rule, *aligned(all_on(size, tensors, on), (True,) * len(tensors)), needs)


def _solve_cost(a: Any, b: Any, strict: int, y: Any) -> dict[str, int]:
    return {"fmas": count(y.shape) * (a.shape[-1] ** 3 // 3) + y.size * a.shape[-1], "special_ops": y.size}


def _solve_pull_cost(g: Any, a: Any, y: Any, needs: Sequence[bool]) -> dict[str, int]:
    """The solution of the transposed systems, and a product."""
    n = a.shape[-1]
    products = g.size * n if needs[0] else 0
    return {
        "adds": count(g.shape) * n * n if needs[0] else 0,
        "fmas": count(g.shape) * (n**3 // 3) + g.size * n + products,
        "matmul_flops": 2 * products,
        "special_ops": g.size,
    }


_solve = op(
    "solve", kind=OWN_OF_TWO, takes="float", inputs=2, batch=matrices_each, same_bits=SMALL_ON_CPU, ulp=16, joint=True,
    reference=lapack.solve, example=well_conditioned((2, 4, 4), (4, 3), params=(1,)), pullback=_solve_pullback,
    fused=_solve_fused if _pull else None, pull=_solve_pull_each, pull_cost=_solve_pull_cost, cost=_solve_cost,
)


# ---- public functions


def cholesky(x: ArrayLike, /, *, upper: bool = False) -> Tensor:
    """Returns the lower triangular L of x = L Lᵀ for each symmetric positive definite matrix; with `upper`, Lᵀ.

    As in JAX, x stands for its symmetric part (x + xᵀ) / 2, so the gradient is symmetric. The derivative is that of Murray,
    "Differentiation of the Cholesky decomposition" (2016). Raises ShapeError if x is not square, LinAlgError if it is not positive
    definite or not finite. Cost: n³ / 3 FLOPs.
    """
    upper = flag("cholesky", "upper", upper)
    y = apply(_cholesky, (square("cholesky", x),))
    return matrix_transpose(y) if upper else y


def solve_triangular(a: ArrayLike, b: ArrayLike, /, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """Returns the x of a x = b, or of x a = b if not `left`, as PyTorch's function does. Only one triangle of a is read.

    b: matrices (…, n, k), or (…, k, n) if not `left`, or one vector (n,). Leading axes broadcast.
    upper: a is upper triangular. unitriangular: its diagonal is 1 and not read.

    The derivative is that of Giles (2008). Raises ShapeError, and LinAlgError if a diagonal element is zero. Cost: n² FLOPs for
    each of the k columns.
    """
    name = "solve_triangular"
    upper, left, unit = flag(name, "upper", upper), flag(name, "left", left), flag(name, "unitriangular", unitriangular)
    a, b = as_tensors(name, a, b)
    a, b = square(name, a, "a"), in_float(b)
    b, vector = _sides(name, a, b, left)
    if left:
        y = apply(_solve_triangular, (a, b), (upper, unit, True))
    else:
        y = matrix_transpose(apply(_solve_triangular, (matrix_transpose(a), matrix_transpose(b)), (not upper, unit, True)))
    return reshape(y, (*y.shape[:-2], a.shape[-1])) if vector else y


def solve(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Returns the x of a x = b, by LU with partial pivoting.

    b: matrices (…, n, k), or one vector (n,). Leading axes broadcast, as in the array API.

    The derivative is that of Giles (2008). An a with NaN gives NaN. Raises ShapeError, and LinAlgError if a is singular.
    Cost: 2 n³ / 3 FLOPs, and 2 n² for each of the k columns.
    """
    a, b = as_tensors("solve", a, b)
    a, b = square("solve", a, "a"), in_float(b)
    b, vector = _sides("solve", a, b, True)
    y = apply(_solve, (a, b), (1,))
    return reshape(y, y.shape[:-1]) if vector else y


def inv(x: ArrayLike, /) -> Tensor:
    """Returns the inverse of each matrix: `solve` of x and the identity, which is faster and more exact if it is given b instead.

    The derivative is that of Giles (2008). Raises ShapeError if x is not square, LinAlgError if it is singular.
    """
    return inverse("inv", x)


def _sides(name: str, a: Tensor, b: Tensor, left: bool) -> tuple[Tensor, bool]:
    """Returns b as matrices, and whether it was one vector. Raises ShapeError if b does not fit a."""
    n, vector = a.shape[-1], b.ndim == 1
    if not b.ndim:
        raise ShapeError(f"{name}: b has shape {b.shape}; it must be a vector ({n},) or matrices (..., {n}, k).")
    axis = -1 if vector or not left else -2
    if b.shape[axis] != n:
        place = "b" if vector else f"axis {axis} of b"
        columns = " Several vectors (..., n) are matrices with one column each: pb.expand_dims(b, axis=-1)."
        raise ShapeError(
            f"{name}: the shapes {a.shape} of a and {b.shape} of b do not fit: {place} must have length {n}, as the square "
            f"matrices of a have.{'' if vector else columns}"
        )
    broadcast_shapes(name, [a.shape[:-2], () if vector else b.shape[:-2]])
    return (expand_dims(b, axis=1 if left else 0) if vector else b), vector


__all__ = ["cholesky", "inv", "solve", "solve_triangular"]
