"""Functions of symmetric matrices by their eigenvalues, with derivatives that are right at equal ones: matrix_function."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np

from ..autodiff.error_text import name_of
from ..autodiff.tape import Tape
from ..errors import ArgumentError, ShapeError, TapeError
from ..ops.by_name import in_dtype, widened
from ..ops.conversion import stop_gradient
from ..ops.elementwise import abs as absolute, less_equal, not_equal, square, where
from ..ops.gather import take
from ..ops.linalg import einsum, matmul
from ..ops.reduce import mean, sum as sum_of
from ..ops.shape import expand_dims, matrix_transpose, reshape
from ..ops.solves import square as square_matrix
from ..ops.spectral import eigh
from ..tensors.creation import asarray, ones_like
from ..tensors.dtypes import finfo
from ..tensors.operand import as_tensor
from ..tensors.tensor import Tensor
from ..typing import ArrayLike
from .custom import with_pullback

Scalar = Callable[[Any], Any]


def matrix_function(x: ArrayLike, /, f: Scalar, *, derivative: Scalar | None = None) -> Tensor:
    """Returns V f(W) Vᵀ of each symmetric matrix x = V diag(W) Vᵀ: its logarithm, square root, projection on a cone, ….

    f: a function of a tensor, element by element, which receives the eigenvalues. Gradients do not reach tensors that it uses
        beside its argument, and TapeError is raised for such a tensor if a tape watches it.
    derivative: the derivative of f. None differentiates f, so f consists of differentiable ops.

    As in `eigh`, x stands for its symmetric part. Unlike those of `eigh`, derivatives of any order are right at eigenvalues that
    are equal or nearly so: they are made of divided differences of f (Daleckii & Krein 1965), and of derivatives of f where the
    differences would cancel. The k-th derivative takes memory for n^(k + 1) numbers, and derivatives of f up to order k + 2.
    Raises ShapeError if x is not square or f changes the shape, LinAlgError if x is not finite. Cost: about 13 n³ FLOPs.
    """
    given = square_matrix("matrix_function", x)
    for name, function in (("f", f), ("derivative", derivative or f)):
        if not callable(function):
            raise ArgumentError(
                f"matrix_function: {name} is a {type(function).__name__}; it must be a function of eigenvalues, such as pb.log."
            )
    return in_dtype(_multilinear(f, derivative, widened(given)), given.dtype)


def _multilinear(f: Scalar, slope: Scalar | None, a: Tensor, *directions: Tensor) -> Tensor:
    """Returns the derivative of the matrix function in these symmetric directions, one after another.

    It is linear and symmetric in the directions, and its product with a matrix g is symmetric in g and them. So its derivative by a
    is the same function with g as a further direction, and that by a direction is the one with g in its place.
    """

    def call(a: Tensor, *directions: Tensor) -> Any:
        def pull(g: Tensor) -> Any:
            by_a = _multilinear(f, slope, a, *directions, g)
            others = [(*directions[:k], g, *directions[k + 1 :]) for k in range(len(directions))]
            found = [by_a, *[_multilinear(f, slope, a, *other) for other in others]]
            return tuple(found) if directions else found[0]

        return _value(f, slope, *[stop_gradient(x) for x in (a, *directions)]), pull

    call.__name__ = "matrix_function"
    return with_pullback(call, _used_from_outside)(a, *directions)


def _used_from_outside(name: str, x: Tensor) -> TapeError:
    return TapeError(
        f"matrix_function: f uses {name_of(x)}, whose derivative is asked for and which is not the matrix, so that no gradient "
        f"would reach it. Use pb.stop_gradient of it, or v @ (f(w) * v).T with pb.linalg.eigh if no eigenvalues are equal."
    )


def _value(f: Scalar, slope: Scalar | None, a: Tensor, *directions: Tensor) -> Tensor:
    """Returns the sum over all orders of the directions of v (f[w_i, w_j, …, w_l] E_ij F_jk … G_kl) vᵀ."""
    w, v = eigh(a)
    if not w.shape[-1]:
        return a
    differences, count = _divided_differences(f, slope, w, len(directions)), len(directions)
    if not count:
        inside = v * expand_dims(differences, axis=-2)
        return matmul(inside, matrix_transpose(v))
    turned = [matmul(matmul(matrix_transpose(v), _symmetric(x)), v) for x in directions]
    letters = "abcdefgh"[: count + 1]
    pairs = [f"...{one}{two}" for one, two in zip(letters, letters[1:])]
    equation = f"...{letters},{','.join(pairs)}->...{letters[0]}{letters[-1]}"
    inside = None
    for order in permutations(turned):
        term = einsum(equation, differences, *order)
        inside = term if inside is None else inside + term
    assert inside is not None
    return matmul(matmul(v, inside), matrix_transpose(v))


def _symmetric(x: Tensor) -> Tensor:
    return 0.5 * x + 0.5 * matrix_transpose(x)


def _divided_differences(f: Scalar, slope: Scalar | None, w: Tensor, order: int) -> Tensor:
    """Returns f[w_i, w_j, …] for all tuples of order + 1 eigenvalues, with one axis for each of them.

    A divided difference is a quotient of two of lower order by the gap between its largest and its smallest value. Where the gap is
    small, differences cancel. Better there is Taylor's formula at the mean c of the values, f⁽ᵏ⁾(c) / k! + f⁽ᵏ⁺²⁾(c) p / 2 (k + 2)!
    with the sum p of the squared distances from c. It is taken where it is within the rounding error of the quotient, so that a
    kink of f between the values is not missed.
    """
    n, eps = w.shape[-1], 4.0 * finfo(w.dtype).eps
    tables = found = _checked(f(w), w)
    errors = eps * absolute(found)
    for k in range(1, order + 1):
        index = np.sort(np.indices((n,) * (k + 1)).reshape(k + 1, -1), axis=0)  # w ascends, and so do the values of a tuple
        values = reshape(take(w, asarray(index.T.ravel(), device=w.device), axis=-1), (*w.shape[:-1], index.shape[1], k + 1))
        upper, lower = [asarray(np.ravel_multi_index(tuple(part), (n,) * k), device=w.device) for part in (index[1:], index[:-1])]
        gap = values[..., -1] - values[..., 0]
        apart = not_equal(gap, 0)
        divisor = where(apart, gap, 1.0)
        quotient = (take(tables, upper, axis=-1) - take(tables, lower, axis=-1)) / divisor
        error = (take(errors, upper, axis=-1) + take(errors, lower, axis=-1)) / divisor
        taylor = _by_taylor(f, slope, values, k)
        near = less_equal(absolute(taylor - quotient), error)
        tables = where(apart, where(near, taylor, quotient), taylor)
        errors = where(apart, where(near, eps * absolute(taylor), error), eps * absolute(taylor))
    return reshape(tables, (*w.shape[:-1], *(n,) * (order + 1)))


def _by_taylor(f: Scalar, slope: Scalar | None, values: Tensor, k: int) -> Tensor:
    c = mean(values, axis=-1)
    squares = sum_of(square(values - expand_dims(c, axis=-1)), axis=-1)
    first, second = [_derivative(f, order)(c) if slope is None else _derivative(slope, order - 1)(c) for order in (k, k + 2)]
    return first / math.factorial(k) + where(not_equal(squares, 0), second * squares, 0.0) / (2 * math.factorial(k + 2))


def _derivative(f: Scalar, order: int) -> Scalar:
    """Returns the derivative of this order of a function that works element by element."""

    def of(x: Tensor) -> Tensor:
        if not order:
            return _checked(f(x), x)
        with Tape(watch_parameters=False) as tape:
            tape.watch(x)
            y = _derivative(f, order - 1)(x) + 0.0 * x  # f may be constant, which is no reason to warn
        return tape.gradient(y, x, output_gradients=ones_like(y))

    return of


def _checked(y: Any, x: Tensor) -> Tensor:
    """Returns the result of f. Raises ShapeError if it does not have the shape of the argument."""
    y = as_tensor(y)
    if y.shape != x.shape:
        raise ShapeError(
            f"matrix_function: f turned eigenvalues of shape {x.shape} into a result of shape {y.shape}. f is applied to each "
            f"eigenvalue: return the argument's shape."
        )
    return in_dtype(y, x.dtype)


__all__ = ["matrix_function"]
