"""What the functions of pb.linalg answer to keywords of other libraries, and whom their errors name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb

L = pb.linalg
CALLS = [
    ("L.eigh(x, UPLO='L')", "eigh() got an unexpected keyword argument 'UPLO': x stands for its symmetric part"),
    ("L.eigvalsh(x, UPLO='U')", "eigvalsh() got an unexpected keyword argument 'UPLO'"),
    ("L.eigh(x, eigvals_only=True)", "pb.linalg.eigvalsh(x) gives the values alone."),
    ("L.svd(x, compute_uv=False)", "svd() got an unexpected keyword argument 'compute_uv': pb.linalg.svdvals(x)"),
    ("L.svd(x, False)", "svd() takes x by position, and 2 arguments were given by position. Pass what follows by keyword"),
    ("L.svd(x, some=True)", "full_matrices=False of svd"),
    ("L.svdvals(x, driver='gesvd')", "there is one algorithm"),
    ("L.svd(x, hermitian=True)", "symmetric ones too"),
    ("L.pinv(x, rcond=1e-3)", "pinv() got an unexpected keyword argument 'rcond': it is rtol= here."),
    ("L.pinv(x, hermitian=True)", "symmetric ones too"),
    ("L.matrix_rank(x, tol=1e-3)", "a tolerance is relative here: rtol="),
    ("L.matrix_rank(x, atol=1e-3)", "a tolerance is relative here: rtol="),
    ("L.lstsq(x, b, rtol=1e-3)", "it is rcond= here."),
    ("L.lstsq(x, b, driver='gelsd')", "there is one algorithm"),
    ("L.solve(x, b, left=False)", "solve() got an unexpected keyword argument 'left': write pb.linalg.solve(a.mT, b.mT).mT"),
    ("L.solve(x, b, assume_a='pos')", "cholesky and solve_triangular are faster"),
    ("L.solve_triangular(x, b, lower=True)", "lower=True is upper=False of cholesky and solve_triangular"),
    ("L.solve_triangular(x, b, upper=True, unit_diagonal=True)", "it is unitriangular= here."),
    ("L.cholesky(x, lower=True)", "lower=True is upper=False"),
    ("L.qr(x, pivoting=True)", "columns stay in order"),
    ("L.inv(x, overwrite_a=True)", "tensors are immutable"),
    ("L.trace(x, axis1=0)", "the matrices are the last two axes"),
    ("L.diagonal(x, dim1=0)", "the matrices are the last two axes"),
    ("L.diagonal(x, 1)", "offset="),
    ("L.outer(x, b, out=x)", "tensors are immutable"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "words"), CALLS)
def test_keywords_of_other_libraries_are_answered(call: str, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        eval(call, {"L": L, "x": pb.eye(2), "b": pb.ones(2)})
    assert words in str(caught.value)


NAN = np.full((2, 2), np.nan)
ERRORS: list[tuple[str, Any]] = [
    ("inv", lambda: L.inv(np.zeros((2, 2)))),
    ("matrix_power", lambda: L.matrix_power(np.zeros((2, 2)), -2)),
    ("matrix_power", lambda: L.matrix_power(np.ones((2, 3)), -2)),
    ("matrix_power", lambda: L.matrix_power(np.ones(3), 2)),
    ("lstsq", lambda: L.lstsq(NAN, np.ones(2))),
    ("pinv", lambda: L.pinv(NAN)),
    ("matrix_rank", lambda: L.matrix_rank(NAN)),
    ("matrix_norm", lambda: L.matrix_norm(NAN, ord=2)),
    ("matrix_norm", lambda: L.norm(NAN, "nuc")),
    ("solve", lambda: L.solve(np.zeros((2, 2)), np.ones(2))),
    ("cholesky", lambda: L.cholesky(-np.eye(2))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "call"), ERRORS)
def test_an_error_names_the_function_that_was_called(name: str, call: Any) -> None:
    with pytest.raises(pb.PullbackError, match=rf"^{name}: "):
        call()
