"""Every public callable with only its defaults, against NumPy, SciPy and formulas. A new public name needs a row here."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

import pullback as pb
import pullback.amp
import pullback.tree
from conftest import host
from defaults_of_networks import LAYERS, LOSSES
from defaults_of_rules import RULES
from pullback import nn, optim
from pullback.tensors import devices

A = np.array([[0.3, -0.7, 0.2], [0.9, 0.3, -0.1]])
B = np.array([[0.5, 0.25, -1.5], [2.0, -0.3, 0.6]])
P = np.abs(A) + 0.1
Q = np.abs(B) + 1.0
I, J = np.array([[6, 3, -5], [1, 0, 7]]), np.array([[2, 3, 1], [1, 1, 2]])
T = np.array([[True, False, True], [False, False, True]])
V, W = np.array([3.0, 1.0, 2.0, 1.0]), np.array([0.5, -1.0, 4.0, 1.0])
S = A.T @ A + np.eye(3)
PAIRS = np.array([[0, 2], [1, 1]])
IDS = np.array([0, 2, 0, 2])


def of(*args: Any) -> Callable[[Any], Any]:
    """Returns a function that calls f with these arguments, after converting arrays to tensors."""
    return lambda f: f(*[pb.tensor(x) if isinstance(x, np.ndarray) else x for x in args])


def numpys(name: str, *args: Any) -> tuple[Callable[[Any], Any], Any]:
    return of(*args), getattr(np, name)(*args)


def words(text: str) -> list[str]:
    return text.split()


def cube(x: Any) -> Any:
    return pb.sum(x**3)


def row_loss(w: Any, x: Any) -> Any:
    return pb.sum(w * x) ** 2


def per_row(f: Any, *more: Any) -> Any:
    return f(row_loss, *more)(pb.tensor(W[:3]), pb.tensor(B))


EACH = 2 * (B @ W[:3])[:, None] * B  # the gradient of row_loss of each row

UNARY = {
    **dict.fromkeys(words("abs asinh atan ceil cos cosh exp exp2 expm1 floor isfinite isinf isnan negative positive round"), A),
    **dict.fromkeys(words("sign signbit sin sinh square tan tanh trunc asin acos atanh nan_to_num"), A),
    **dict.fromkeys(words("log log10 log1p log2 reciprocal sqrt"), P), "acosh": Q, "bitwise_invert": I, "logical_not": T,
}
BINARY = {
    **dict.fromkeys(
        words("add atan2 copysign divide equal floor_divide greater greater_equal hypot isclose less less_equal logaddexp maximum "
        "minimum multiply nextafter not_equal remainder subtract"), (A, B)), "pow": (P, B),
    **dict.fromkeys(words("bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift"), (I, J)),
    **dict.fromkeys(words("logical_and logical_or logical_xor"), (T, ~T[::-1])),
}


def _lengths(*lengths: int) -> bytes:
    return np.array(lengths, "<i8").tobytes()


ROWS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    **{f"pb.{name}": numpys(name, x) for name, x in UNARY.items()},
    **{f"pb.{name}": numpys(name, *xs) for name, xs in BINARY.items()},
    **{f"pb.{name}": numpys(name, A) for name in words("argmax argmin max min mean prod std sum var all any count_nonzero")},
    **{f"pb.{name}": numpys(name, V) for name in words("argsort sort argwhere nonzero diff flip")},
    **{f"pb.{name}": numpys(name, A) for name in ("tril", "triu", "matrix_transpose", "transpose", "unstack")},
    **{f"pb.{name}": numpys(name, A) for name in words("nansum nanprod nanmean nanmax nanmin nanvar nanstd nanmedian median")},
    **{f"pb.{name}": numpys(name, A) for name in words("nanargmax nanargmin nancumsum nancumprod trapezoid diag diagonal trace")},
    **{f"pb.{name}": numpys(name, A) for name in words("rot90 sinc deg2rad rad2deg")},
    **{f"pb.{name}": numpys(name, A, 0.3) for name in words("quantile nanquantile percentile nanpercentile")},
    **{f"pb.{name}": numpys(name, A, B) for name in words("fmax fmin fmod heaviside inner kron")},
    "pb.xlogy": (of(A, P), scipy.special.xlogy(A, P)),
    "pb.xlog1py": (of(A, P), scipy.special.xlog1py(A, P)),
    "pb.logit": (of(P / 2), scipy.special.logit(P / 2)),
    "pb.lgamma": (of(A), scipy.special.gammaln(A)),
    "pb.digamma": (of(A), scipy.special.digamma(A)),
    "pb.polygamma": (of(2, P), scipy.special.polygamma(2, P)),
    "pb.cummax": (of(V), (np.maximum.accumulate(V), np.array([0, 0, 0, 0]))),
    "pb.cummin": (of(V), (np.minimum.accumulate(V), np.array([0, 1, 1, 3]))),
    "pb.logcumsumexp": (of(V), np.logaddexp.accumulate(V)),
    "pb.unfold": (of(V, 0, 2), np.lib.stride_tricks.sliding_window_view(V, 2)),
    "pb.erf": (of(A), scipy.special.erf(A)),
    "pb.erfc": (of(A), scipy.special.erfc(A)),
    "pb.erfinv": (of(A), scipy.special.erfinv(A)),
    "pb.rsqrt": (of(P), 1 / np.sqrt(P)),
    "pb.relu": (of(A), np.maximum(A, 0)),
    "pb.leaky_relu": (of(A), np.where(A > 0, A, 0.01 * A)),
    "pb.elu": (of(A), np.where(A > 0, A, np.expm1(A))),
    "pb.gelu": (of(A), A * scipy.special.ndtr(A)),
    "pb.gelu_tanh": (of(A), A * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (A + 0.044715 * A**3)))),
    "pb.sigmoid": (of(A), scipy.special.expit(A)),
    "pb.silu": (of(A), A * scipy.special.expit(A)),
    "pb.softplus": (of(A), np.log1p(np.exp(A))),
    "pb.softmax": (of(A), scipy.special.softmax(A, -1)),
    "pb.log_softmax": (of(A), scipy.special.log_softmax(A, -1)),
    "pb.logsumexp": (of(A), scipy.special.logsumexp(A)),
    "pb.mask_nan_gradient": (of(np.array([0.0, 2.0, 0.0]), np.array([np.nan, 3.0, np.inf])), np.array([0.0, 3.0, np.inf])),
    "pb.where": (of(T, A, B), np.where(T, A, B)),
    "pb.clip": (of(A), A),
    "pb.cumulative_sum": (of(V), np.cumsum(V)),
    "pb.cumulative_prod": (of(V), np.cumprod(V)),
    # arrays
    "pb.arange": (of(5), np.arange(5)),
    "pb.linspace": (of(0.0, 1.0, 5), np.linspace(0, 1, 5, dtype=np.float32)),
    "pb.eye": (of(3), np.eye(3, dtype=np.float32)),
    "pb.ones": (of((2, 3)), np.ones((2, 3), np.float32)),
    "pb.zeros": (of((2, 3)), np.zeros((2, 3), np.float32)),
    "pb.full": (of((2, 3), 1.5), np.full((2, 3), 1.5, np.float32)),
    "pb.empty": (lambda f: f((2, 3)) * 0 == 0, np.ones((2, 3), bool)),
    "pb.ones_like": (of(A), np.ones_like(A)),
    "pb.zeros_like": (of(A), np.zeros_like(A)),
    "pb.full_like": (of(A, 2.5), np.full_like(A, 2.5)),
    "pb.empty_like": (lambda f: f(pb.tensor(A)).shape, (2, 3)),
    "pb.tensor": (lambda f: [f([1.0, 2.0]), f([1, 2]), f(A)], [np.array([1, 2], np.float32), np.array([1, 2]), A]),
    "pb.asarray": (lambda f: [f([True]), f(A)], [np.array([True]), A]),
    "pb.from_dlpack": (lambda f: f(A) if devices.default_device() == "cpu" else pb.tensor(A), A),
    "pb.Parameter": (lambda f: [f([1.0]), f(A).name, f(A).trainable], [np.array([1], np.float32), None, True]),
    "pb.Tensor": (lambda f: f(pb.tensor(A).array), A),
    "pb.meshgrid": numpys("meshgrid", V, W),
    "pb.broadcast_arrays": numpys("broadcast_arrays", A, V[:3]),
    "pb.broadcast_to": numpys("broadcast_to", V, (2, 4)),
    "pb.concat": (lambda f: f([pb.tensor(A), pb.tensor(B)]), np.concatenate([A, B])),
    "pb.stack": (lambda f: f([pb.tensor(A), pb.tensor(B)]), np.stack([A, B])),
    "pb.split": (lambda f: f(pb.tensor(V), 2), np.split(V, 2)),
    "pb.copy": (of(A), A),
    "pb.stop_gradient": (of(A), A),
    "pb.astype": (of(A, "float32"), A.astype(np.float32)),
    "pb.expand_dims": (of(A), A[None]),
    "pb.squeeze": (of(A[None, :, None]), A),
    "pb.moveaxis": numpys("moveaxis", A[None], 0, 2),
    "pb.swapaxes": numpys("swapaxes", A[None], 0, 2),
    "pb.permute_dims": numpys("transpose", A, (1, 0)),
    "pb.reshape": numpys("reshape", A, (3, 2)),
    "pb.roll": numpys("roll", A, 1),
    "pb.repeat": numpys("repeat", A, 2),
    "pb.tile": numpys("tile", A, 2),
    "pb.pad": numpys("pad", A, 1),
    "pb.take": numpys("take", V, IDS),
    "pb.take_along_axis": (of(A, PAIRS), np.take_along_axis(A, PAIRS, -1)),
    "pb.one_hot": (of(IDS, 3), np.eye(3, dtype=np.float32)[IDS]),
    "pb.searchsorted": numpys("searchsorted", np.sort(V), W),
    "pb.topk": (of(V, 2), (np.array([3.0, 2.0]), np.array([0, 2]))),
    "pb.unique_values": (of(V), np.unique(V)),
    "pb.unique_counts": (of(V), np.unique(V, return_counts=True)),
    "pb.unique_inverse": (of(V), np.unique(V, return_inverse=True)),
    "pb.unique_all": (of(V), np.unique(V, return_index=True, return_inverse=True, return_counts=True)),
    "pb.segment_sum": (of(V, IDS), [5.0, 0.0, 2.0]),
    "pb.segment_mean": (of(V, IDS), [2.5, 0.0, 1.0]),
    "pb.segment_max": (of(W, IDS), [4.0, -np.inf, 1.0]),
    "pb.segment_min": (of(W, IDS), [0.5, np.inf, -1.0]),
    "pb.segment_logsumexp": (of(W, IDS), [np.logaddexp(0.5, 4.0), -np.inf, np.logaddexp(-1.0, 1.0)]),
    "pb.segment_softmax": (of(V, IDS), np.array([math.e, 1, 1, 1]) / np.array([math.e + 1, 2, math.e + 1, 2])),
    # products
    **{f"{space}.{name}": row for space in ("pb", "linalg") for name, row in {
        "matmul": numpys("matmul", A, B.T), "outer": numpys("outer", V, W), "tensordot": numpys("tensordot", A, B),
        "vecdot": numpys("vecdot", A, B), "matrix_transpose": numpys("matrix_transpose", A)}.items()},
    "pb.einsum": numpys("einsum", "ij,ij->j", A, B),
    **{f"linalg.{name}": (of(S), getattr(np.linalg, name)(S)) for name in words("cholesky det eigh eigvalsh inv qr slogdet")},
    **{f"linalg.{name}": (of(A), getattr(np.linalg, name)(A)) for name in words("matrix_rank pinv svd svdvals")},
    "linalg.matrix_power": (of(S, 3), S @ S @ S),
    "linalg.matrix_function": (of(S, pb.square), S @ S),
    "linalg.solve": (of(S, V[:3]), np.linalg.solve(S, V[:3])),
    "linalg.solve_triangular": (lambda f: f(pb.tensor(S), pb.tensor(V[:3]), upper=True), np.linalg.solve(np.triu(S), V[:3])),
    "linalg.lstsq": (of(B.T, V[:3]), [x[0] if i == 1 else x for i, x in enumerate(np.linalg.lstsq(B.T, V[:3]))]),
    "linalg.cross": numpys("cross", A, B),
    "linalg.diagonal": numpys("diagonal", A),
    "linalg.trace": numpys("trace", A),
    "linalg.norm": (of(A), np.linalg.norm(A)),
    "linalg.vector_norm": (of(A), np.linalg.norm(A.ravel())),
    "linalg.matrix_norm": (of(A), np.linalg.norm(A)),
    # dtypes and devices
    "pb.can_cast": (of(pb.int8, pb.float32), True),
    "pb.result_type": (of(pb.int8, pb.float32), np.dtype(np.float32)),
    "pb.isdtype": (of(pb.int8, "integral"), True),
    "pb.finfo": (lambda f: (f(pb.float32).eps, f("float64").max), (np.finfo(np.float32).eps, np.finfo(np.float64).max)),
    "pb.iinfo": (lambda f: (f(pb.int8).min, f("uint64").max), (-128, 2**64 - 1)),
    "pb.use_device": (lambda f: _inside(f("cpu"), lambda: pb.ones(1).device), "cpu"),
    "pb.trim": (lambda f: f() >= 0, True),
    "amp.autocast": (lambda f: _inside(f("bfloat16"), lambda: pb.full(1, 1.001) @ pb.ones(1)), np.float32(1)),
    "amp.LossScaler": (lambda f: f().scale(pb.tensor(2.0)), np.float32(2**17)),
    "cuda.is_available": (lambda f: f() == (pb.cuda.why_not() is None), True),
    "cuda.why_not": (lambda f: f() is None or " " in f(), True),
    **{f"cuda.{name}": (lambda f: _on_gpu(f), True) for name in ("memory", "synchronize", "trim")},
    "pb.hash": (of(A), hashlib.sha256(_lengths(0, 7) + b"float64" + _lengths(2, 2, 3) + A.tobytes()).hexdigest()),
    # transforms
    "pb.GradientTape": (lambda f: _gradient(f()), 3 * A**2),
    "pb.grad": (lambda f: f(cube)(pb.tensor(A)), 3 * A**2),
    "pb.value_and_grad": (lambda f: f(cube)(pb.tensor(A)), ((A**3).sum(), 3 * A**2)),
    "pb.vjp": (lambda f: f(pb.sin, pb.tensor(A))[1](pb.tensor(B)), (B * np.cos(A),)),
    "pb.jvp": (lambda f: f(pb.sin, (pb.tensor(A),), (pb.tensor(B),)), (np.sin(A), B * np.cos(A))),
    "pb.linearize": (lambda f: f(pb.sin, pb.tensor(A))[1](pb.tensor(B)), B * np.cos(A)),
    "pb.jacobian": (lambda f: f(pb.sin)(pb.tensor(V)), np.diag(np.cos(V))),
    "pb.hessian": (lambda f: f(cube)(pb.tensor(V)), np.diag(6 * V)),
    "pb.hvp": (lambda f: f(cube, pb.tensor(V), pb.tensor(W)), 6 * V * W),
    "pb.vmap": (lambda f: f(lambda x: pb.sum(x))(pb.tensor(A)), A.sum(1)),
    "pb.per_example_grad": (lambda f: per_row(f), EACH),
    "pb.per_example_norm": (lambda f: per_row(f), (EACH**2).sum(1)),
    "pb.weighted_grad": (lambda f: per_row(f, pb.tensor([1.0, 3.0])), EACH[0] + 3 * EACH[1]),
    "pb.checkpoint": (lambda f: pb.grad(f(cube))(pb.tensor(A)), 3 * A**2),
    "pb.linear_recurrence": (of(V, W), [0.5, -0.5, 3.0, 4.0]),
    "pb.associative_scan": (lambda f: f(pb.multiply, pb.tensor(V)), np.cumprod(V)),
    "pb.scan": (lambda f: f(lambda c, x: (c + x, c * x), pb.tensor(0.0, dtype=pb.float64), pb.tensor(V)), (7.0, V * [0, 3, 4, 6])),
    "pb.memo": (lambda f: _twice(f), 1),
    "pb.check_gradients": (lambda f: f(cube, pb.tensor(A)) < 1e-6, True),
    "pb.custom_gradient": (lambda f: pb.grad(f(lambda x: (cube(x), lambda g: g * 5 * x)))(pb.tensor(A)), 5 * A),
    "pb.straight_through": (lambda f: pb.grad(lambda x: pb.sum(f(pb.round)(x) * x))(pb.tensor(A)), np.round(A) + A),
    "pb.black_box": (lambda f: pb.grad(lambda x: pb.sum(f(lambda z: 2 * z)(x)))(pb.ones(3)), np.float32([2, 2, 2])),
    "pb.capture": (lambda f: [f(pb.sin)(pb.tensor(A)) for _ in range(2)], [np.sin(A)] * 2),
    "pb.flops": (lambda f: f(lambda x: x * x + x, pb.tensor(A)).total.flops, 12),
    "pb.profile": (lambda f: _profiled(f()), 6),
    "debug.debug_nans": (lambda f: f is pb.debug_nans, True),
    "pb.debug_nans": (lambda f: _inside(f(), lambda: _raises(lambda: pb.log(pb.tensor(-1.0)))), "NonFiniteError"),
    "config.why_not": (lambda f: f() is None or "\"machine\"" in f(), True),
    "tree.flatten": (lambda f: f({"b": [1, None], "a": (2,)})[0], [2, 1]),
    "tree.leaves": (lambda f: f({"b": [1, None], "a": (2,)}), [2, 1]),
    "tree.map": (lambda f: f(lambda x, y: x + y, [1, (2, None)], [3, (4, None)]), [4, (6, None)]),
    "tree.unflatten": (lambda f: f(pb.tree.flatten({"b": [1, 2], "a": (3,)})[1], [7, 8, 9]), {"a": (7,), "b": [8, 9]}),
    **LAYERS, **LOSSES, **RULES,
}

# These names need more than a row, such as a file or a subclass. The named test calls them with their defaults.
ELSEWHERE = {
    "pb.save": "test_io", "pb.load": "test_io", "pb.save_training": "test_resume", "pb.load_training": "test_resume",
    "nn.Module": "test_nn", "optim.Optimizer": "test_optim",
    "optim.to_torch": "test_torch_state", "optim.from_torch": "test_torch_state", "data.Digits": "test_data",
    "data.Text": "test_gpt",
}


def _inside(context: Any, f: Callable[[], Any]) -> Any:
    with context:
        return f()


def _raises(f: Callable[[], Any]) -> str:
    with pytest.raises(pb.PullbackError) as caught:
        f()
    return type(caught.value).__name__


def _gradient(tape: Any) -> Any:
    p = pb.Parameter(A)
    with tape:
        y = cube(p)
    found = tape.gradient(y, p)
    with pytest.raises(pb.TapeError):  # The tape is not persistent.
        tape.gradient(y, p)
    return found


def _twice(memo: Any) -> int:
    calls: list[int] = []
    f = memo(lambda x: calls.append(1) or x * 2)
    x = pb.tensor(A)
    assert f(x) is f(x)
    return len(calls)


def _profiled(prof: Any) -> int:
    with prof:
        pb.tensor(A) * 2
    return prof.total.flops


def _on_gpu(f: Any) -> bool:
    if pb.cuda.is_available():
        f()
        return True
    return _raises(f) == "DeviceError"


def public() -> dict[str, Any]:
    """Returns every public callable by its name, except errors, which test_errors enumerates."""
    spaces = {"pb": pb, "nn": nn, "F": nn.functional, "init": nn.init, "optim": optim, "schedules": optim.schedules,
              "constraints": optim.constraints, "tree": pb.tree, "linalg": pb.linalg, "random": pb.random, "amp": pb.amp,
              "data": pb.data, "config": pb.config, "debug": pb.debug}
    functions = [name for name, f in vars(type(pb.cuda)).items() if name[0] != "_" and inspect.isfunction(f)]
    found = {f"cuda.{name}": getattr(pb.cuda, name) for name in functions}
    for label, space in spaces.items():
        for name in dir(space):
            value = getattr(space, name)
            error = isinstance(value, type) and issubclass(value, Exception)
            if callable(value) and not error:
                found[f"{label}.{name}"] = value
    return found


PUBLIC = public()


def check(got: Any, wanted: Any) -> None:
    if isinstance(wanted, (tuple, list)) and isinstance(got, (tuple, list)):
        assert len(got) == len(wanted)
        for one, right in zip(got, wanted):
            check(one, right)
    elif isinstance(got, pb.Tensor):
        wanted = np.asarray(wanted)
        assert got.shape == wanted.shape
        assert np.dtype(got.dtype).kind == wanted.dtype.kind
        single = np.dtype(got.dtype).itemsize < 8
        np.testing.assert_allclose(host(got), wanted, rtol=1e-6 if single else 1e-12, atol=1e-7 if single else 1e-15)
    else:
        assert got == wanted


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_with_its_defaults_alone(name: str) -> None:
    if name in ELSEWHERE:
        return
    assert name in ROWS, f"{name} is public: give it a row, which calls it with its defaults alone"
    call, wanted = ROWS[name]
    check(call(PUBLIC[name]), wanted)


def test_no_row_is_of_a_name_that_is_gone() -> None:
    assert {*ROWS, *ELSEWHERE} <= {*PUBLIC}
