"""autocast: the rounding errors of float32 products, the ops and devices that it affects, and its scope."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import backends, nn
from pullback.backends import modes
from pullback.nn import functional as F

# The relative error of a product whose two factors are rounded to the mantissa of that precision.
UNIT = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "tf32": 2.0**-10}
ALLOWED = [precision for precision in modes.PRECISIONS if modes.allows(precision)]  # This run's mode may exclude tf32.
DEVICES = ("cpu", "cuda")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Any:
    if request.param == "cuda" and not pb.cuda.is_available():
        pytest.skip(str(pb.cuda.why_not()))
    with pb.use_device(request.param):
        yield request.param


def factors(m: int = 40, k: int = 90, n: int = 33) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    return rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)


def distance(y: Any, a: Any, b: Any) -> float:
    """Returns the largest error of a matrix product, relative to the product of absolute values."""
    exact, scale = a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b)
    return float(np.max(np.abs(host(y) - exact) / scale))


@pytest.mark.parametrize(
    ("precision", "shape"),
    [*[(precision, (40, 90, 33)) for precision in ALLOWED[1:]], *[("tf32", (256, 512, 256))] * ("tf32" in ALLOWED)],
    ids=str,
)
def test_factors_are_rounded_and_sums_are_not(device: str, precision: str, shape: tuple[int, int, int]) -> None:
    a, b = factors(*shape)
    with pb.amp.autocast(precision):
        y = pb.asarray(a) @ pb.asarray(b)
    assert y.dtype == np.float32
    # Only tensor cores round to tf32, and only in products of at least 2^25 multiply-adds.
    exact = precision == "tf32" and (device == "cpu" or backends.why_not(device) is not None or a.shape[0] < 256)
    assert distance(y, a, b) < (2.0**-20 if exact else UNIT[precision])
    assert exact or distance(y, a, b) > UNIT[precision] / 500
    if precision == "bfloat16":
        narrow = [x.astype(pb.bfloat16).astype(np.float64) for x in (a, b)]
        assert distance(y, *narrow) < 2.0**-20


def test_other_dtypes_are_multiplied_as_ever(device: str) -> None:
    a, b = factors()
    with pb.amp.autocast("bfloat16"):
        wide = pb.asarray(a.astype(np.float64)) @ pb.asarray(b.astype(np.float64))
        counts = pb.asarray(np.full((3, 3), 257, np.int32)) @ pb.asarray(np.eye(3, dtype=np.int32))
    assert distance(wide, a, b) < 1e-14
    assert np.all(host(counts) == 257)


def test_it_nests_and_ends_with_what_was_before(device: str) -> None:
    a, b = factors()
    x, w = pb.asarray(a), pb.asarray(b)
    with pb.amp.autocast("bfloat16") as outer:
        rounded = host(x @ w)
        with pb.amp.autocast("float32"):
            assert distance(x @ w, a, b) < 2.0**-20
            with outer:
                assert np.array_equal(host(x @ w), rounded)
        assert np.array_equal(host(x @ w), rounded)
        with pytest.raises(ZeroDivisionError), pb.amp.autocast("float16"):
            raise ZeroDivisionError
        assert np.array_equal(host(x @ w), rounded)
    assert distance(x @ w, a, b) < 2.0**-20


def test_it_is_of_one_thread() -> None:
    a, b = factors()
    seen: list[float] = []
    with pb.amp.autocast("bfloat16"):
        other = threading.Thread(target=lambda: seen.append(distance(pb.asarray(a) @ pb.asarray(b), a, b)))
        other.start()
        other.join()
    assert seen[0] < 2.0**-20


@pytest.mark.parametrize("precision", ALLOWED)
@pytest.mark.parametrize("activation", [None, "relu", "tanh"])
def test_a_layer_and_its_gradients(device: str, precision: str, activation: str | None) -> None:
    a, b = factors()
    b *= 0.1  # This keeps activations near 0, where they do not magnify the product's rounding error.
    tolerance = 2e-2 if precision == "bfloat16" else 3e-3 if precision != "float32" else 1e-5

    def gradients(dtype: Any) -> list[Any]:
        x, w, bias = (pb.asarray(v.astype(dtype)) for v in (a, np.ascontiguousarray(b.T), b[0]))
        with pb.GradientTape() as tape:
            for t in (x, w, bias):
                tape.watch(t)
            y = nn.functional.linear(x, w, bias, activation=activation)
            loss = (y * y).sum()
        return [host(y), *(host(g) for g in tape.gradient(loss, [x, w, bias]))]

    wanted = gradients(np.float64)
    with pb.amp.autocast(precision):
        got = gradients(np.float32)
    for have, want in zip(got, wanted):
        assert have.dtype == np.float32
        assert np.linalg.norm(have - want) <= tolerance * np.linalg.norm(want)


def test_a_precision_that_there_is_not() -> None:
    with pytest.raises(pb.ArgumentError, match=r"int8.* Weights of integers cannot be trained"):
        pb.amp.autocast("int8")


def everything_but_products(x: Any, labels: Any) -> list[Any]:
    """Returns the results of ops that are no products, and the gradients of their sum."""
    weight = nn.Buffer(np.linspace(0.5, 1.5, 6), dtype="float32")
    with pb.GradientTape() as tape:
        tape.watch(x)
        found = [
            F.layer_norm(x, weight, weight), F.rms_norm(x, weight), F.softmax(x), F.log_softmax(x), F.gelu(x),
            F.batch_norm(x, None, None, weight, weight, training=True), F.group_norm(x[..., None], 2, weight, weight),
            F.cross_entropy(x, labels), F.cross_entropy(x, labels, label_smoothing=0.1), F.mse(x, x * x), F.l1(x, x * x),
            pb.sum(x), pb.mean(x, axis=0), pb.var(x), pb.std(x, axis=1), pb.prod(x, axis=1), pb.cumulative_sum(x, axis=1),
            pb.logsumexp(x, axis=1), pb.max(x, axis=1), pb.exp(x) / (1 + x * x), pb.where(x > 0, x, x * 0.1),
        ]
        total = sum([(y * y).sum() for y in found], pb.tensor(0.0))
    return [*found, tape.gradient(total, [x])[0]]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_norms_losses_and_reductions_stay_in_float32(device: str, precision: str) -> None:
    rng = np.random.default_rng(3)
    x, labels = pb.asarray(rng.standard_normal((8, 6)).astype(np.float32)), pb.asarray(rng.integers(0, 6, 8))
    wanted = everything_but_products(x, labels)
    with pb.amp.autocast(precision):
        found = everything_but_products(x, labels)
    for have, want in zip(found, wanted):
        assert have.dtype == np.float32
        assert host(have).tobytes() == host(want).tobytes()
