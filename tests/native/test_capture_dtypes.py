"""Capture takes what eager code takes, with the same bits: every elementwise op and reduction on every pair of dtypes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same
from conftest import FLOATS, INTEGERS, ops
from pullback.autodiff.primitive import Op

pytestmark = needs_kernels

DTYPES = (*FLOATS, *INTEGERS, "bool")
NUMBERS: tuple[Any, ...] = (
    3, 0, -1, 300, 2**40, 2**63, 2.5, True, False, np.uint8(3), np.int64(3), np.float32(2.5), np.float64(2.5), np.bool_(True),
)
INPUTS = {"unary": 1, "binary": 2, "select": 3, "reduce": 1}
PUBLIC = [op for op in ops() if op.kind.name in INPUTS and hasattr(pb, op.name)]
SWEPT = [op for op in PUBLIC if op.native]
# Functions that are built from these ops, and what else they are called with.
BUILT: dict[str, Callable[..., Any]] = {
    "count_nonzero": pb.count_nonzero, "clip": lambda x: pb.clip(x, 1, 3), "median": pb.median, "nan_to_num": pb.nan_to_num,
    "isclose": lambda x: pb.isclose(x, x), "tril": lambda x: pb.tril(x), "std": pb.std,
    "cumulative_sum": lambda x: pb.cumulative_sum(x, axis=0), "argsort": pb.argsort, "sort": pb.sort,
    "diff": pb.diff, "round": lambda x: pb.round(x, -1), "nanmax": pb.nanmax,
}


def _draws(dtype: str, count: int = 2) -> list[pb.Tensor]:
    rng = np.random.default_rng(0)
    return [pb.tensor(rng.integers(0, 5, (2, 3)), dtype=dtype) for _ in range(count)]


def _refused(f: Callable[..., Any], choices: Sequence[Sequence[Any]]) -> bool | None:
    """True if a capture refuses the arguments, None if eager code does. Otherwise a replay on other values has eager's bits.

    choices: for each argument its values in the recording and in the replay.
    """
    try:
        wanted = [f(*[values[k] for values in choices]) for k in range(2)]
    except pb.PullbackError:
        return None
    tensors = [values for values in choices if isinstance(values[0], pb.Tensor)]

    def on_tensors(*given: pb.Tensor) -> Any:
        left = iter(given)
        return f(*[next(left) if isinstance(values[0], pb.Tensor) else values[0] for values in choices])

    captured = pb.capture(on_tensors)
    try:
        found = [captured(*[values[k] for values in tensors]) for k in range(2)]
    except pb.CaptureError:
        return True
    for y, right in zip(found, wanted):
        same(y, right)
    assert captured.stats().captures == 1
    return False


def _operands(inputs: int) -> Iterator[tuple[str, Sequence[Sequence[Any]]]]:
    """Yields a name and the choices for each pair of dtypes, and each dtype with each number on either side."""
    for dtype in DTYPES:
        if inputs == 1:
            yield dtype, (_draws(dtype),)
            continue
        conditions = [_draws("bool")] * (inputs - 2)
        for other in DTYPES:
            yield f"{dtype}, {other}", (*conditions, _draws(dtype), _draws(other)[::-1])
        for number in NUMBERS:
            yield f"{dtype}, {number!r}", (*conditions, _draws(dtype), (number, number))
            yield f"{number!r}, {dtype}", (*conditions, (number, number), _draws(dtype))


@pytest.mark.parametrize("op", SWEPT, ids=str)
def test_capture_takes_each_pair_of_dtypes_that_eager_code_takes(op: Op) -> None:
    outcomes = {name: _refused(getattr(pb, op.name), choices) for name, choices in _operands(INPUTS[op.kind.name])}
    assert False in outcomes.values()
    assert [name for name, refused in outcomes.items() if refused] == []


def test_the_sweep_leaves_out_only_ops_without_a_kernel() -> None:
    assert len(SWEPT) > 80
    assert [op.name for op in PUBLIC if not op.native] == ["nextafter"]


@pytest.mark.parametrize("name", BUILT)
def test_capture_takes_each_dtype_that_a_function_built_from_these_ops_takes(name: str) -> None:
    outcomes = {dtype: _refused(BUILT[name], (_draws(dtype),)) for dtype in DTYPES}
    assert [dtype for dtype, refused in outcomes.items() if refused] == []


def test_the_mean_of_a_thresholded_image_is_captured() -> None:
    share = pb.capture(lambda image: pb.mean((image > 127).astype("float32")))
    assert share(pb.tensor(np.zeros((2, 2), np.uint8))).item() == 0.0
    assert share(pb.tensor(np.array([[127, 128], [255, 0]], np.uint8))).item() == 0.5


@pytest.mark.parametrize("f", [
    lambda x, m: x + 3, lambda x, m: x * True, lambda x, m: x // 2, lambda x, m: m + m, lambda x, m: m * True,
    lambda x, m: pb.abs(m), lambda x, m: pb.where(m, x, 1), lambda x, m: pb.isnan(x), lambda x, m: pb.count_nonzero(x),
])
def test_a_profile_counts_the_arithmetic_of_eager_code(f: Callable[..., Any]) -> None:
    x, m = pb.tensor(np.arange(12, dtype=np.uint8)), pb.tensor(np.arange(12) % 2 == 0)
    captured = pb.capture(f)
    captured(x, m)
    totals = []
    for run in (f, captured):
        with pb.profile() as prof:
            run(x, m)
        assert prof.coverage == 1
        totals.append((prof.total.integer_ops, prof.total.flops, prof.total.special_ops))
    assert totals[0] == totals[1]


# ---- random programs of integers and bools, by NumPy

NARROW = ("uint8", "int8", "uint16", "int32", "uint32", "int64", "uint64", "bool")
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
OF_TWO = (
    *COMPARISONS, "add", "subtract", "multiply", "maximum", "minimum", "floor_divide", "remainder", "logical_and", "logical_or",
    "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift",
)
OF_ONE = ("abs", "negative", "square", "sign", "logical_not", "bitwise_invert", "isnan", "isinf", "isfinite")
NUMPYS = {"bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift", "bitwise_invert": "invert"}
COUNT_OF_PROGRAMS = 40


def _by_numpy(name: str, *xs: Any) -> Any:
    with np.errstate(all="ignore"):
        return getattr(np, NUMPYS.get(name, name))(*xs)


def _values(rng: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    if dtype == "bool":
        return rng.random(shape) < 0.5
    info = np.iinfo(dtype)
    edges = np.array([info.min, info.max, 0, 1, info.max - 1, 2, 3], dtype)
    wild = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    return np.where(rng.random(shape) < 0.4, rng.choice(edges, shape), wild)


def _program(rng: Any, dtypes: Sequence[str]) -> list[tuple[str, tuple[Any, ...]]]:
    """Returns steps (name, operands): an int is the index of an earlier value; a pair (number,) is a Python or NumPy number."""
    steps: list[tuple[str, tuple[Any, ...]]] = []
    for k in range(int(rng.integers(1, 7))):
        count = len(dtypes) + k
        if rng.random() < 0.25:
            steps.append((str(rng.choice(OF_ONE)), (int(rng.integers(count)),)))
        elif rng.random() < 0.15:
            steps.append(("where", tuple(int(n) for n in rng.integers(count, size=3))))
        else:
            operands: list[Any] = [int(n) for n in rng.integers(count, size=2)]
            if rng.random() < 0.5:
                number: Any = rng.choice([0, 1, 2, 3, 7, 100, 200, -1, -3])
                number = (int, np.int64, lambda n: bool(n % 2))[int(rng.integers(3))](number)
                operands[int(rng.integers(2))] = (number,)
            steps.append((str(rng.choice(OF_TWO)), tuple(operands)))
    return steps


def _run(steps: Sequence[tuple[str, tuple[Any, ...]]], values: Sequence[Any]) -> list[Any]:
    """Runs a program by pullback."""
    values = list(values)
    for name, operands in steps:
        xs = [x[0] if isinstance(x, tuple) else values[x] for x in operands]
        values.append(getattr(pb, name)(*xs))
    return values


def _check_by_numpy(steps: Sequence[tuple[str, tuple[Any, ...]]], values: Sequence[Any], given: int) -> None:
    """Compares each step's result with NumPy's, on operands that NumPy converted to the dtype that pullback promotes them to."""
    arrays = [x.numpy() for x in values]
    for k, (name, operands) in enumerate(steps):
        xs = [x[0] if isinstance(x, tuple) else arrays[x] for x in operands]
        plain = [x.item() if isinstance(x, np.generic) else x for x in xs]
        if name in COMPARISONS:  # of Python's integers, which are exact whatever the dtypes
            wanted = np.asarray(_by_numpy(name, *[np.asarray(x, object) for x in plain]), bool)
        else:
            conditions, plain = ([plain[0] != 0], plain[1:]) if name == "where" else ([], plain)
            dtype = pb.result_type(*plain)
            wanted = _by_numpy(name, *conditions, *[np.asarray(x).astype(dtype) for x in plain])
        np.testing.assert_array_equal(arrays[given + k], wanted, err_msg=name, strict=True)


@pytest.mark.parametrize("seed", range(50))
def test_random_programs_of_integers_and_bools_have_numpys_bits_eager_and_captured(seed: int) -> None:
    done = 0
    for k in itertools.count():
        rng = np.random.default_rng([seed, k])
        dtypes = [str(rng.choice(NARROW)) for _ in range(3)]
        shapes = [((3, 4), (4,), (3, 1), ())[int(rng.integers(4))] for _ in dtypes]
        steps = _program(rng, dtypes)
        given = [[pb.tensor(_values(rng, d, s)) for d, s in zip(dtypes, shapes)] for _ in range(2)]
        try:
            wanted = [_run(steps, xs) for xs in given]
        except pb.PullbackError:  # of a dtype that an op does not take, or a number that does not fit
            continue
        captured = pb.capture(lambda *xs, steps=steps: _run(steps, xs)[3:])
        for xs, values in zip(given, wanted):
            _check_by_numpy(steps, values, 3)
            for y, right in zip(captured(*xs), values[3:]):
                same(y, right)
        done += 1
        if done == COUNT_OF_PROGRAMS:
            return
