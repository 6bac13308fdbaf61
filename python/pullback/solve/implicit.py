"""Derivatives of the solution of a problem by the arguments of its functions, from the condition that the solution meets.

At a solution x of F(x, args) = 0 the implicit function theorem gives dx = -(dF/dx)⁻¹ dF/dargs. The iterations that found x are not
differentiated, so that the memory does not depend on their number. All of this is recorded in differentiable ops, and the
solution inside it depends on the arguments again, so derivatives of every order are right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..autodiff.batching import whole
from ..autodiff.error_text import name_of
from ..autodiff.listeners import listeners
from ..autodiff.site import warn
from ..errors import ConvergenceWarning, LinAlgError, TapeError
from ..ops.by_name import in_dtype
from ..ops.conversion import constant
from ..ops.elementwise import where
from ..ops.reduce import sum
from ..ops.shape import expand_dims, reshape
from ..ops.solves import solve
from ..tensors import devices
from ..tensors.creation import asarray
from ..tensors.ranges import eye
from ..tensors.tensor import Tensor
from ..transforms.custom import with_pullback
from ..transforms.jacobian import jacobian
from ..transforms.vjp import grad, vjp
from ..transforms.vmap import vmap
from ..tree import flatten, unflatten
from .jacobians import TensorNamespace, Unknowns, flat
from .losses import Loss

Condition = Callable[..., Tensor]  # F(x, *args), a vector as long as the vector x
FAILED = " (success is False): "  # what a ConvergenceWarning says before the reason


def implicit(
    owner: str,
    x: Tensor,
    condition: Condition,
    args: Sequence[Any],
    free: Any = None,
    *,
    reads: Callable[..., Any] | None = None,
    batch: bool = False,
    matrix_name: str = "the Hessian of the cost",
    unsolved: str = "",
    judge: Callable[[np.ndarray[Any, Any]], tuple[Any, str]] | None = None,
) -> Tensor:
    """Returns the solution x of condition(x, *args) = 0 as a value through which gradients flow to the tensors in args.

    Args:
        owner: the solver, for messages.
        x: the solution, a vector. With `batch` it and all tensors of args have a leading axis of independent problems.
        condition: its value is differentiated by x to give the matrix of the linear system: for a minimum the gradient of the
            function that was minimized, whose derivative is the Hessian.
        free: the elements of x that may move, as booleans. Others stay on a bound, and have the derivative 0.
        reads: a cheap function f(x, *args) of the same tensors, which finds uses of watched tensors that are not in args; by
            default the condition.
        matrix_name: the matrix, for the message if it is singular.
        unsolved: why x is no solution, for a ConvergenceWarning when a derivative is computed; "" if it is one.
        judge: judge(matrix on the host) returns `free` and the words of the warning, in place of the arguments of these names.

    Raises LinAlgError when a gradient or a tangent is computed and the matrix is singular. A condition that uses a watched tensor
    that is not in args raises TapeError.
    """
    leaves, spec = flatten(tuple(args))
    real = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.dtype.kind in "fV"]
    if not listeners.differentiates:
        return x
    value = constant(x)

    def filled(chosen: Sequence[Any]) -> tuple[Any, ...]:
        full = list(leaves)
        for i, leaf in zip(real, chosen):
            full[i] = leaf
        return unflatten(spec, full)

    def one(z: Tensor, *chosen: Tensor) -> Tensor:
        return condition(z, *filled(chosen))

    each = vmap(one) if batch else one
    matrix = vmap(jacobian(one)) if batch else jacobian(one)

    def solve_at(*chosen: Tensor) -> tuple[Tensor, Callable[[Tensor], Any]]:
        touch = reads or condition
        (vmap(lambda z, *own: touch(z, *filled(own))) if batch else lambda z, *own: touch(z, *filled(own)))(value, *chosen)

        def pull(g: Tensor) -> tuple[Any, ...]:
            z = solution(*chosen)
            a = matrix(z, *chosen)
            moving, why = judge(_numbers(a)) if judge else (free, FAILED + unsolved if unsolved else "")
            if why:
                warn(_unsolved_text(owner, why), ConvergenceWarning)
            w = _solved(owner, matrix_name, a, g, _mask(moving, value))
            _, back = vjp(lambda *own: each(z, *own), *chosen)
            return back(-w)

        return value, pull

    solution = with_pullback(solve_at, lambda _, x: _not_in_args(owner, x))
    return solution(*[leaves[i] for i in real])


def _mask(free: Any, x: Tensor) -> Tensor | None:
    """Returns 1 for the elements that may move and 0 for the others, like x, or None if all may."""
    return None if free is None or bool(np.all(free)) else asarray(np.asarray(free).astype(x.dtype), device=x.device)


def _numbers(a: Any) -> np.ndarray[Any, Any]:
    """Returns a matrix, which may belong to the examples of vmap, as float64 numbers on the host."""
    return devices.move(whole(a).array, "cpu").astype(np.float64)


def _not_in_args(owner: str, x: Tensor) -> TapeError:
    return TapeError(
        f"{owner}: the function uses {name_of(x)}, whose derivative is asked for and which is not in args, so that no gradient "
        f"would reach it. Give it in args=, from which the function receives it, or use pb.stop_gradient of it."
    )


def _unsolved_text(owner: str, why: str) -> str:
    return (
        f"{owner}: a derivative was asked for at a point that is no solution{why}. It is computed as if the point were a solution, "
        f"and has no more correct digits than the point has. Let the solver converge first."
    )


def _solved(owner: str, matrix_name: str, a: Tensor, g: Tensor, mask: Tensor | None) -> Tensor:
    """Returns the w of aᵀ w = g among the elements of the mask; the others are 0."""
    if mask is not None:
        one = eye(a.shape[-1], dtype=a.dtype, device=a.device)
        a = where(expand_dims(mask, axis=-1) * expand_dims(mask, axis=-2) > 0, a, one * (1 - expand_dims(mask, axis=-1)))
        g = g * mask
    _refuse_singular(owner, matrix_name, a)
    return reshape(solve(a.mT, expand_dims(g, axis=-1)), g.shape)


def _refuse_singular(owner: str, matrix_name: str, a: Any) -> None:
    """Raises LinAlgError if a matrix is singular up to rounding, or not finite."""
    numbers = _numbers(a)
    if not np.isfinite(numbers).all():
        raise LinAlgError(f"{owner}: {matrix_name} at the solution is not finite, so the solution has no derivative by args.")
    n = numbers.shape[-1]
    size = np.sqrt(np.abs(np.diagonal(numbers, axis1=-2, axis2=-1)))
    size = np.where(size > 0, size, 1.0)  # so that unknowns of different units are no reason
    s = np.linalg.svd(numbers / (size[..., :, None] * size[..., None, :]), compute_uv=False)
    eps = float(np.finfo(a.dtype).eps) if a.dtype.kind == "f" else 2.0**-7
    bad = s[..., -1] <= n * eps * s[..., 0]
    if bad.any():
        place = f" of problem {int(np.argmax(bad))}" if bad.ndim else ""
        worst = s[bad][0] if bad.ndim else s
        rank = int((worst > n * eps * worst[0]).sum())
        raise LinAlgError(
            f"{owner}: {matrix_name} at the solution{place} is singular (rank {rank} of {n}, judged by its scaled singular "
            f"values), so the solution is not isolated and has no derivative by args. Remove unknowns that the data do not "
            f"determine, or add a small ridge term."
        )


def of_least_squares(
    f: Callable[..., Any], unknowns: Unknowns, x: Tensor, args: tuple[Any, ...], loss: Loss, free: Any, batch: bool = False,
    unsolved: str = "",
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """Returns the solution of least squares as a function of args: the gradient of the cost is 0 in its free elements.

    Returns also the residuals and the cost there, as functions of args, or None if nobody differentiates.
    """

    def residuals(z: Tensor, *args: Any) -> Tensor:
        return flat(unknowns.owner, f(unknowns.tree(z), *args))

    def half_sum(r: Tensor, like: Tensor) -> Tensor:
        return 0.5 * sum(in_dtype(loss.values(TensorNamespace, r), like.dtype))

    def cost(z: Tensor, *args: Any) -> Tensor:
        return half_sum(residuals(z, *args), z)

    solution = implicit(unknowns.owner, x, grad(cost), args, free, reads=residuals, batch=batch, unsolved=unsolved)
    if not listeners.differentiates:
        return solution, None

    def both(z: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
        r = residuals(z, *args)
        return r, half_sum(r, z)

    return solution, (_each(both, args) if batch else both)(solution, *args)


def _each(f: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    """Returns f for a batch of problems, of which all have the arguments that are no tensors."""
    leaves, spec = flatten(args)
    axes = unflatten(spec, [0 if isinstance(leaf, Tensor) else None for leaf in leaves])
    return vmap(f, in_axes=(0, *axes))


def of_minimum(owner: str, f: Callable[..., Tensor], x: Tensor, args: tuple[Any, ...], judge: Any = None) -> Tensor:
    """Returns the minimum x, a vector, of the scalar f(x, *args) as a function of args. judge: as in `implicit`."""
    return implicit(owner, x, grad(f), args, reads=f, matrix_name="the Hessian", judge=judge)
