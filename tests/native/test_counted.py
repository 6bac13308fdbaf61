"""On random shapes, kernels compiled with counting scalars do exactly the work that they state, and access as many bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
import watched
from attention_calls import ATTENTION
from linalg_calls import BY_LAPACK, LINALG
from pullback import optim
from pullback.autodiff.primitive import OPS
from pullback.nn import functional
from pullback.optim._counts import UPDATE_COUNTS
from random_calls import FAMILIES as OTHERS, FLOATS, KERNELS, shape_of, tensor, with_gradients
from random_convolutions import CONVOLUTIONS
from recurrent_calls import RECURRENT


def scaled(rng: Any) -> None:
    """Does a step with the gradients of a scaled loss."""
    shapes = [shape_of(rng) for _ in range(rng.integers(1, 5))]
    dtypes = [rng.choice(FLOATS) for _ in shapes]
    opt, scaler = optim.SGD([pb.Parameter(tensor(rng, s, d)) for s, d in zip(shapes, dtypes)], 0.1), pb.amp.LossScaler(2.0)
    grads = [tensor(rng, s, d) if rng.random() < 0.9 else None for s, d in zip(shapes[1:], dtypes[1:])]
    scaler.step(opt, [tensor(rng, shapes[0], dtypes[0]), *grads])
    scaler.update()


FAMILIES = {**OTHERS, "recurrent": RECURRENT, "attention": ATTENTION, "convolutions": CONVOLUTIONS, "scaled": {"scaled": scaled}}
if not watched.ON_GPU:  # there CuPy computes them
    FAMILIES["linalg"] = LINALG
GATHERS = ("searchsorted", "nonzero_flat", "take", "take_along_axis")
READS_LESS = ("linear_recurrence",)  # the coefficient of the first step is read only if the operand has to be converted
# Of a row that does not fit a GPU's registers, these kernels compute differences and exponentials again, and the stated work is a
# lower bound.
LOSSES = ("cross_entropy_pullback", "cross_entropy_total_pullback")
COMPUTED_AGAIN = ("softmax", "log_softmax", *LOSSES, "layer_norm_pullback", "rms_norm_pullback")
LONGEST_HELD = {"float16": 4096, "bfloat16": 4096, "float32": 4096, "float64": 2048}
VIEWS = {"sum_pullback"}  # these calls launch nothing
SHAPES = 200  # the least number of calls per family; each kernel is called at least three times

pytestmark = [
    pytest.mark.skipif(not watched.counts(), reason="these kernels do not count: see `make count`"),
    pytest.mark.filterwarnings("ignore::pullback.errors.ZeroGradientWarning"),
]


def differences(launch: watched.Launch, name: str = "") -> dict[str, tuple[int, int]]:
    """Returns the figures whose measured count differs from the stated one, as (counted, stated).

    Work is compared with the executed counts, bytes and integer operations with the cost formula. A gather may read fewer bytes
    than stated, because its indices may repeat; only in the gather's own case, `name`, they do not, and the bytes must be equal.
    """
    said = launch.formula | launch.executed
    if launch.kernel in READS_LESS or (launch.kernel in GATHERS and launch.kernel != name):
        said["bytes_read"] = min(said["bytes_read"], launch.counted["bytes_read"])
    if watched.ON_GPU and launch.kernel in COMPUTED_AGAIN:
        x = launch.inputs[-2 if launch.kernel in LOSSES else 0]
        if x.shape[-1] > LONGEST_HELD[x.dtype]:
            said |= {n: max(said[n], launch.counted[n]) for n in watched.COUNTS}
    return {n: (launch.counted[n], said[n]) for n in (*watched.COUNTS, *watched.BYTES) if launch.counted[n] != said[n]}


@pytest.mark.parametrize("family", FAMILIES)
def test_counted_is_formula(family: str) -> None:
    calls = FAMILIES[family]
    names = [name for _ in range(max(3, -(-SHAPES // len(calls)))) for name in calls]
    wrong = []
    for k, name in enumerate(names):
        watched.take()
        calls[name](np.random.default_rng([len(family), k]))
        wrong += [f"{name} {k}: {launch.kernel}: {found}" for launch in watched.take() if (found := differences(launch, name))]
    assert not wrong, f"{len(wrong)} launches, counted and said:\n" + "\n".join(wrong)


cpu = pytest.mark.skipif(watched.ON_GPU, reason="about the CPU's kernels")


@cpu
def test_a_chain_does_what_its_launches_do() -> None:
    def chain(x: Any, y: Any) -> Any:
        z = pb.tanh(x * y + 0.5)
        return pb.softmax(pb.where(z > 0, z, y.astype("float32") / 2) - pb.exp(x))

    rng = np.random.default_rng(0)
    x, y = tensor(rng, (30, 70), "float32"), tensor(rng, (70,), "float32")
    watched.take()
    chain(x, y)
    launches = watched.take()
    wanted = {n: sum([launch.counted[n] for launch in launches]) for n in watched.COUNTS}
    captured = pb.capture(chain)
    captured(x, y)
    watched.take()
    assert watched.work_of(lambda: captured(x, y)) == wanted
    assert watched.take() == [], "the replay launches one by one"


@cpu
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_the_work(threads: int) -> None:
    """The shapes are large enough to be split among threads. Together the threads do the work of the formula."""
    rng, before = np.random.default_rng(0), KERNELS.thread_count()
    x, w = tensor(rng, (150, 400), "float32"), tensor(rng, (400, 40), "float32")
    watched.take()
    try:
        KERNELS.set_thread_count(threads)
        with_gradients(rng, pb.tanh, x)
        with_gradients(rng, lambda x, w: functional.linear(x, w.mT), x, w)
        for axis in (0, 1, None):
            pb.sum(x, axis=axis)
        with_gradients(rng, functional.layer_norm, x)
        pb.random.Generator(0).normal((150, 400))
    finally:
        KERNELS.set_thread_count(before)
    launches = watched.take()
    assert len(launches) >= 10
    assert [(launch.kernel, found) for launch in launches if (found := differences(launch))] == []


@cpu
def test_large_products() -> None:
    rng = np.random.default_rng(0)
    watched.take()
    for dtype in ("float32", "float64"):
        pb.matmul(tensor(rng, (130, 1030), dtype), tensor(rng, (1030, 135), dtype))
    assert [(launch.kernel, found) for launch in watched.take() if (found := differences(launch))] == []


@pytest.mark.parametrize("precision", ["tf32", "bfloat16", "float16"])
def test_products_of_rounded_factors(precision: str) -> None:
    """Rounded factors use a different kernel with different tiles. A GPU runs the pullback and the sums before the products."""
    rng = np.random.default_rng(0)
    watched.take()
    with pb.amp.autocast(precision):
        for shape in ((3, 5, 7), (40, 70, 33), (300, 17, 90), (5, 600, 5)):
            m, k, n = shape
            x, w, b = tensor(rng, (m, k), "float32"), tensor(rng, (n, k), "float32"), tensor(rng, (n,), "float32")
            with_gradients(rng, lambda x, w, b: functional.linear(x, w, b, "tanh"), x, w, b)
            with_gradients(rng, lambda x, w: x @ w.mT, x, w)
    launches = watched.take()
    assert {launch.kernel for launch in launches} >= {"linear", "linear_pullback", "matmul"}
    assert [(launch.kernel, found) for launch in launches if (found := differences(launch))] == []


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_products_in_the_mode_everywhere(dtype: str) -> None:
    shapes = ((3, 5, 7), (6, 0, 4), (0, 5, 3), (3, 5, 0), (40, 70, 33), (20, 257, 18), (3, 1300, 5), (1100, 3, 20))
    rng = np.random.default_rng(0)
    watched.take()
    KERNELS.set_everywhere(True)
    try:
        for m, k, n in shapes:
            x, w, b = tensor(rng, (m, k), dtype), tensor(rng, (n, k), dtype), tensor(rng, (n,), dtype)
            with_gradients(rng, lambda x, w, b: functional.linear(x, w, b, "tanh"), x, w, b)
            with_gradients(rng, lambda x, w: x @ w.mT, x, w)
    finally:
        KERNELS.set_everywhere(False)
    launches = watched.take()
    assert {launch.kernel for launch in launches} >= {"linear", "linear_pullback", "matmul"}
    assert [(launch.kernel, found) for launch in launches if (found := differences(launch))] == []


@pytest.mark.parametrize("everywhere", [False, True], ids=["machine", "everywhere"])
@pytest.mark.parametrize("activation", [None, "tanh"])
def test_products_with_an_empty_side(activation: str | None, everywhere: bool) -> None:
    """A factor is not read if the result is empty."""
    rng = np.random.default_rng(0)
    watched.take()
    KERNELS.set_everywhere(everywhere)
    try:
        for m, k, n in ((0, 5, 3), (4, 0, 3), (4, 5, 0), (0, 0, 3), (4, 0, 0), (0, 5, 0)):
            x, w, b = tensor(rng, (m, k), "float32"), tensor(rng, (n, k), "float32"), tensor(rng, (n,), "float32")
            for sources in ((x, w, b), (x,), (w,), (b,)):
                with pb.GradientTape() as tape:
                    tape.watch(sources)
                    y = functional.linear(x, w, b, activation)
                tape.gradient(y, sources, output_gradients=pb.ones(y.shape), unconnected="zero")
            with_gradients(rng, lambda x, w: x @ w.mT, x, w)
            x @ pb.zeros((0, k, n))
            pb.zeros((0, m, k)) @ w.mT
            x[0] @ w.mT if m else x @ pb.zeros(k)
    finally:
        KERNELS.set_everywhere(False)
    launches = watched.take()
    assert {launch.kernel for launch in launches} >= {"linear", "linear_pullback", "matmul"}
    assert [(launch.kernel, found) for launch in launches if (found := differences(launch))] == []


def test_empty_results() -> None:
    """An operand that is broadcast to no elements is not read."""
    watched.take()
    x, none = pb.ones((1, 9)), pb.zeros((0, 9))
    for y in (x + none, pb.where(none > x, x, none), pb.take(x, pb.zeros(0, dtype="int64"), axis=0), pb.nonzero(none)[0]):
        assert y.size == 0
    assert pb.nonzero(pb.zeros(70))[0].size == 0
    assert [(launch.kernel, found) for launch in watched.take() if (found := differences(launch))] == []


@pytest.mark.parametrize("shape", [(7000,), (3, 9000), (9000, 9), (5, 3000, 3), (70, 50, 2)])
def test_long_reductions(shape: tuple[int, ...]) -> None:
    """Long reductions run in blocks, whose results are again reduced in blocks. Running sums are cut into chunks."""
    rng = np.random.default_rng(len(shape))
    x = pb.asarray(np.asarray(rng.random(shape)).astype("float32"))
    watched.take()
    for reduce in (pb.sum, pb.mean, pb.min):
        for axis in (*range(len(shape)), None):
            reduce(x, axis=axis)
            reduce(pb.asarray(x.T), axis=axis)
    for axis in range(len(shape)):
        KERNELS.cumulative_sum(x.array, axis, False)
    assert [(launch.kernel, found) for launch in watched.take() if (found := differences(launch))] == []


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(20, 300), (3, 2049), (2, 4097), (3, 20_000), (3000, 40)])
def test_long_rows(shape: tuple[int, int], dtype: str) -> None:
    """Long rows are shared by the warps of a block of threads, or streamed. Many rows have many chains."""
    rng = np.random.default_rng(shape[1])
    x = tensor(rng, shape, dtype)
    w, b = tensor(rng, shape[1:], dtype), tensor(rng, shape[1:], dtype)
    labels = pb.asarray(rng.integers(0, shape[1], shape[0]))
    watched.take()
    for row_op in (pb.softmax, pb.log_softmax, lambda x: pb.logsumexp(x, axis=-1)):
        with_gradients(rng, row_op, x)
    with_gradients(rng, functional.layer_norm, x, w, b)
    with_gradients(rng, functional.rms_norm, x, w)
    for smoothing in (0.0, 0.1):
        with_gradients(rng, lambda x, s=smoothing: functional.cross_entropy(x, labels, label_smoothing=s), x)
    launches = watched.take()
    assert {"softmax_pullback", "layer_norm_pullback", "cross_entropy_total"} <= {launch.kernel for launch in launches}
    assert [(launch.kernel, found) for launch in launches if (found := differences(launch))] == []


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_integers_are_counted_as_floats_are(dtype: str) -> None:
    """Integer scalars cannot count.

    An integer call must state as many integer ops as the same call on floats states FLOPs and special ops.
    """
    calls = {
        **{name: lambda x, name=name: getattr(pb, name)(x, x) for name in ("add", "subtract", "multiply", "floor_divide", "pow")},
        **{name: lambda x, name=name: getattr(pb, name)(x, axis=0) for name in ("sum", "prod", "cumulative_sum")},
        "negative": pb.negative,
        "square": pb.square,
        "matmul": lambda x: x @ x.mT,
        "index_add": lambda x: x.at[pb.asarray([0, 1])].add(x[:2]),
    }
    for name, run in calls.items():
        found = []
        for x in (pb.ones((9, 11), dtype=dtype), pb.ones((9, 11), dtype="float32")):
            watched.take()
            run(x)
            found.append([(launch.kernel, launch.formula) for launch in watched.take()])
        whole, real = [{kernel: f for kernel, f in launches if kernel not in ("cast", "copy")} for launches in found]
        assert [(k, f["integer_ops"]) for k, f in whole.items()] == [(k, f["flops"] + f["special"]) for k, f in real.items()], name
        assert all(f["flops"] == f["special"] == 0 for f in whole.values()), name


def test_every_kernel_is_called() -> None:
    watched.take()
    for calls in FAMILIES.values():
        for name, run in calls.items():
            for k in range(3):
                run(np.random.default_rng([k, len(name)]))
    called = {launch.kernel for launch in watched.take()}
    names = {name for name in dir(KERNELS) if name.partition("_pullback")[0] in OPS}
    names |= {*UPDATE_COUNTS, "clip_norm", "clip_adaptive", "project", "begin_steps", "observe", "write_settings", "update_scale"}
    names |= {"assign", "fill", "nonzero_flat", "random_keys"}
    assert names - called - VIEWS - BY_LAPACK == set()
