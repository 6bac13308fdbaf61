"""What the functions of pb.linalg answer to keywords of other libraries, and whom their errors name."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host

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
    ("L.vector_norm(b, 2)", "takes x by position, and 2 arguments were given by position. Write pb.linalg.vector_norm(x, ord=2"),
    ("L.matrix_norm(x, 'fro')", 'Write pb.linalg.matrix_norm(x, ord="fro"), or pb.linalg.norm(x, "fro")'),
    ("L.matrix_norm(x, dim=(0, 1))", "the matrices are the last two axes; pb.linalg.norm(x, ord, axis=(0, 1))"),
    ("L.vector_norm(b, 2, dim=0)", "it is axis= here."),
    ("L.cross(b, b, 0)", "Pass what follows by keyword: axis=."),
    ("L.vecdot(b, b, dim=-1)", "it is axis= here."),
    ("L.qr(x, full_matrices=True)", 'full_matrices=True is mode="complete" here'),
]


@pytest.mark.parametrize(("call", "words"), CALLS)
def test_keywords_of_other_libraries_are_answered(call: str, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        eval(call, {"L": L, "x": pb.eye(2), "b": pb.ones(2)})
    assert words in str(caught.value)


OPTIONS = [
    ("L.qr(x, mode='economic')", "qr: mode='economic' is none of 'reduced', 'complete'. It is \"reduced\" here."),
    ("L.qr(x, mode='r')", "Take R of the result: pb.linalg.qr(x).R."),
    ("L.qr(x, mode='Complete')", "Did you mean 'complete'?"),
    ("L.qr(x, mode=None)", "qr: mode=None is none of 'reduced', 'complete'."),
    ("L.norm(b, 'fro')", "norm: ord='fro' is none of 2, 1, 0, inf, -inf, another power. This norm is one of matrices"),
    ("L.norm(x, 3)", "norm: ord=3 is none of 'fro', 'nuc', 2,"),
    ("L.matrix_norm(x, ord='nuclear')", 'matrix_norm: ord=\'nuclear\' is none of .* It is "nuc" here.'),
    ("L.vector_norm(b, ord='inf')", "Give the number: float"),
    ("L.vector_norm(b, ord=np.nan)", "vector_norm: ord=nan is none of"),
]


@pytest.mark.parametrize(("call", "words"), OPTIONS)
def test_an_option_that_does_not_exist_is_answered(call: str, words: str) -> None:
    with pytest.raises(pb.ArgumentError, match=words.replace("(", r"\(").replace(")", r"\)")):
        eval(call, {"L": L, "x": pb.eye(2), "b": pb.ones(2), "np": np})


# ---- wrong arguments

SQUARE, VECTOR = np.eye(3) + 0.1, np.ones(3)
GOOD: dict[str, dict[str, Any]] = {
    **{name: {"x": SQUARE} for name in L.__all__ if name != "LinAlgError"},
    **{name: {"a": SQUARE, "b": VECTOR} for name in ("solve", "solve_triangular", "lstsq")},
    **{name: {"a": VECTOR, "b": VECTOR} for name in ("cross", "outer", "vecdot")},
    **{name: {"a": SQUARE, "b": SQUARE} for name in ("matmul", "tensordot")}, "matrix_power": {"x": SQUARE, "n": 2},
    "matrix_function": {"x": SQUARE, "f": pb.exp},
}
NEVER: dict[str, Any] = {
    "a string": "a", "None": None, "a ragged list": [[1.0, 2.0], [3.0]], "complex": np.ones((3, 3)) * 1j, "a complex": [1j, 2.0],
    "a set": {1.0}, "an object": object(), "objects": np.array([None, 1]), "strings": np.array(["a"]), "bool": np.array([[True]]),
}
BY_SHAPE: dict[str, Any] = {"a number": 3.0, "a vector": np.ones(3), "not square": np.ones((2, 3)), "empty": np.zeros((0,))}


def error_of(name: str, argument: str, value: Any) -> BaseException | None:
    """Returns the error of the function with one wrong argument, or None."""
    options = {"upper": True} if name == "solve_triangular" else {}
    given = [value if key == argument else good for key, good in GOOD[name].items()]
    try:
        getattr(L, name)(*given, **options)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("name", GOOD)
def test_a_wrong_argument_is_named(name: str) -> None:
    for argument in GOOD[name]:
        for case, value in (NEVER | BY_SHAPE).items():
            error = error_of(name, argument, value)
            if error is None:
                assert case in BY_SHAPE or case == "bool", (name, argument, case)
            elif not isinstance(error, pb.LinAlgError):
                assert isinstance(error, pb.PullbackError), (name, argument, case, error)
                assert str(error).startswith(f"{name}: "), (name, argument, case, error)
                named = re.search(rf"\b{argument}\b", str(error).removeprefix(f"{name}: "))
                assert named or name == "matmul", (name, argument, case, error)  # matmul says "the first" and "the second"


def test_keepdims_may_be_a_number_as_in_numpy() -> None:
    assert L.norm(np.ones((2, 3)), axis=1, keepdims=1).shape == (2, 1)  # type: ignore[arg-type]
    assert L.matrix_norm(np.ones((2, 3)), keepdims=0).shape == ()  # type: ignore[arg-type]


NAN = np.full((2, 2), np.nan)


def replayed(f: Any, x: Any) -> Any:
    """Returns the captured f, which further calls replay."""
    captured = pb.capture(f)
    captured(x)
    return captured


ERRORS: list[tuple[str, Any]] = [
    ("inv", lambda: L.inv(np.zeros((2, 2)))),
    ("matrix_power", lambda: L.matrix_power(np.zeros((2, 2)), -2)),
    ("matrix_power", lambda: L.matrix_power(np.ones((2, 3)), -2)),
    ("matrix_power", lambda: L.matrix_power(np.ones(3), 2)),
    ("lstsq", lambda: L.lstsq(NAN, np.ones(2))),
    ("pinv", lambda: L.pinv(NAN)),
    ("matrix_rank", lambda: L.matrix_rank(NAN)),
    ("matrix_norm", lambda: L.matrix_norm(NAN, ord=2)),
    ("norm", lambda: L.norm(NAN, "nuc")),
    ("norm", lambda: replayed(lambda x: L.norm(x, 2), np.eye(2))(NAN)),
    ("solve", lambda: L.solve(np.zeros((2, 2)), np.ones(2))),
    ("cholesky", lambda: L.cholesky(-np.eye(2))),
    ("norm", lambda: L.norm(np.ones(3), axis=2)),
    ("norm", lambda: L.norm(np.ones((2, 2), bool))),
    ("norm", lambda: L.norm(np.zeros(0), -np.inf)),
    ("norm", lambda: L.norm(np.eye(2), 2, (0, 0))),
    *[(name, lambda name=name: getattr(L, name)(np.eye(2), axis=pb.tensor([0, 1]))) for name in ("norm", "vector_norm")],
    ("trace", lambda: L.trace(np.ones(3))),
    ("trace", lambda: L.trace(np.eye(3), dtype="float42")),  # type: ignore[arg-type]
    ("vector_norm", lambda: L.vector_norm(np.ones(3), keepdims=np.ones(2))),  # type: ignore[arg-type]
    ("cross", lambda: L.cross(np.ones(3), 2.0)),
    ("cross", lambda: L.cross(np.ones((2, 3)), np.ones((3, 3)))),
    ("tensordot", lambda: L.tensordot(np.ones(3), np.ones(3))),
    ("pinv", lambda: L.pinv(np.eye(2), rtol="small")),  # type: ignore[arg-type]
    ("pinv", lambda: L.pinv(np.eye(2), rtol=np.nan)),
    ("matrix_rank", lambda: L.matrix_rank(np.eye(2), rtol=np.float32("nan"))),
    ("lstsq", lambda: L.lstsq(np.eye(2), np.ones(2), rcond=np.nan)),
    ("lstsq", lambda: L.lstsq(np.eye(2), np.ones(2), rcond="small")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("name", "call"), ERRORS)
def test_an_error_names_the_function_that_was_called(name: str, call: Any) -> None:
    with pytest.raises(pb.PullbackError, match=rf"^{name}: "):
        call()


@pytest.mark.parametrize("call", [
    lambda a, b: L.solve(a, b), lambda a, b: L.lstsq(a, b), lambda a, b: L.solve_triangular(a, b, upper=True),
    lambda a, b: L.solve_triangular(a, b, upper=True, left=False),
])
def test_an_error_shows_the_shape_of_a_vector_as_it_was_given(call: Any) -> None:
    with pytest.raises(pb.ShapeError) as caught:
        call(np.eye(2), [1, 2, 3])
    assert "(3,)" in str(caught.value)
    assert "(3, 1)" not in str(caught.value)
    assert "axis" not in str(caught.value)


def test_the_answers_about_tensors_of_several_axes_are_right(torch: Any) -> None:
    """The sentences hold code, which is run here: it has the values of PyTorch's tensorsolve and tensorinv."""
    rng = np.random.default_rng(3)
    names = {"pb": pb, "math": math, "ind": 2}
    for name, a, b in (("tensorsolve", (2, 3, 6), (2, 3)), ("tensorinv", (2, 3, 6), None)):
        with pytest.raises(AttributeError) as caught:
            getattr(L, name)
        code = re.search(r"write (pb\.reshape.*)\.$", str(caught.value))
        assert code is not None
        given = [rng.standard_normal(shape) for shape in (a, b) if shape]
        names |= dict(zip("ab", map(pb.tensor, given))) | {"t": pb.tensor(given[0]), "n": 6}
        found = eval(code[1], names)
        np.testing.assert_allclose(host(found), getattr(torch.linalg, name)(*map(torch.tensor, given)).numpy(), rtol=1e-9)
