"""Accumulator: several batches are one large batch, in eager and in captured code."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import OPTIMIZERS, same, same_state
from conftest import host
from pullback import nn, optim

RNG = np.random.default_rng(5)
X = RNG.standard_normal((160, 6)).astype(np.float32)
Y = RNG.integers(0, 3, 160)


def training(make: Callable[[Any], Any] = lambda ps: optim.SGD(ps, 0.1)) -> tuple[Any, Any]:
    pb.random.seed(2)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return net, make(net.parameters())


def gradients(net: Any, x: Any, y: Any) -> Any:
    with pb.GradientTape() as tape:
        loss = nn.functional.cross_entropy(net(x), y)
    return tape.gradient(loss, net.parameters())


def rows(begin: int, end: int) -> tuple[Any, Any]:
    return pb.tensor(X[begin:end]), pb.tensor(Y[begin:end])


def in_parts(sizes: Sequence[int], make: Any, captured: bool = False, **options: Any) -> tuple[Any, Any]:
    """Returns the optimizer and the Accumulator after batches of these sizes, one after another."""
    net, opt = training(make)
    acc = optim.Accumulator(opt.parameters, **options)

    def step(x: Any, y: Any) -> None:
        if acc.add(gradients(net, x, y), count=x.shape[0]):
            opt.step(acc.take())

    step, begin = pb.capture(step) if captured else step, 0
    for size in sizes:
        step(*rows(begin, begin + size))
        begin += size
    return opt, acc


def small(values: Any = (1.0, 2.0), dtype: str = "float32", **options: Any) -> tuple[Any, Any]:
    """Returns a Parameter and its Accumulator."""
    p = pb.Parameter(np.asarray(values), name="p", dtype=dtype)
    return p, optim.Accumulator([p], **options)


# ---- several batches are one


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("name", ["sgd-momentum", "adam", "nadam", "adagrad"])
def test_ten_batches_of_eight_are_one_batch_of_eighty(name: str, captured: bool) -> None:
    net, large = training(OPTIMIZERS[name])
    for k in range(2):
        large.step(gradients(net, *rows(80 * k, 80 * k + 80)))
    opt, acc = in_parts([8] * 20, OPTIMIZERS[name], captured)
    assert acc.stats == (20, 0, 0)
    assert (acc.step, opt.steps) == (2, 2)
    for p, q in zip(large.parameters, opt.parameters):
        np.testing.assert_allclose(host(q), host(p), rtol=1e-6, atol=1e-6)
        for slot, value in large.slots(p).items():
            np.testing.assert_allclose(host(opt.slots(q)[slot]), host(value), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_captured_code_has_the_bits_of_eager_code(name: str) -> None:
    same_state(in_parts([8] * 20, OPTIMIZERS[name])[0], in_parts([8] * 20, OPTIMIZERS[name], captured=True)[0])


@pytest.mark.parametrize("captured", [False, True])
def test_batches_of_several_sizes_are_weighted_by_their_counts(captured: bool) -> None:
    net, large = training()
    large.step(gradients(net, *rows(0, 60)))
    opt, _ = in_parts([5, 30, 1, 24], lambda ps: optim.SGD(ps, 0.1), captured, every=4)
    for p, q in zip(large.parameters, opt.parameters):
        np.testing.assert_allclose(host(q), host(p), rtol=1e-6, atol=1e-6)


def test_slots_change_once_in_an_update() -> None:
    net, opt = training(OPTIMIZERS["adam"])
    acc = optim.Accumulator(opt.parameters, every=3)
    for k in range(3):
        full = acc.add(gradients(net, *rows(8 * k, 8 * k + 8)))
        assert full is (k == 2)
        assert all(not host(slot).any() for p in opt.parameters for slot in opt.slots(p).values())
    opt.step(acc.take())
    assert opt.steps == 1
    assert all(host(slot).any() for p in opt.parameters for slot in opt.slots(p).values())


def test_sum_ignores_counts() -> None:
    _, acc = small(every=2, reduce="sum")
    acc.add([pb.tensor([1.0, 2.0])], count=5)
    acc.add([pb.tensor([10.0, 20.0])], count=7)
    assert host(acc.take()[0]).tolist() == [11.0, 22.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_many_small_gradients_are_not_lost(dtype: str) -> None:
    """float16 has 11 bits, bfloat16 has 8: adding 1 to 2048 in them would change nothing."""
    p, acc = small([0.0], dtype, every=17, reduce="sum")
    for value in [2048.0] + [1.0] * 16:
        acc.add([pb.tensor([value], dtype=dtype)])
    found = acc.take()[0]
    assert (found.dtype, float(host(found)[0])) == (p.dtype, 2064.0)


def test_parameters_of_several_dtypes() -> None:
    params = [pb.Parameter(np.ones(3), dtype=dtype) for dtype in ("float64", "float16", "float32", "float64")]
    acc = optim.Accumulator(params, every=2)
    for scale in (1.0, 2.0):
        acc.add([pb.tensor(np.full(3, scale / 3), dtype=p.dtype) for p in params], count=scale)
    for p, g in zip(params, acc.take()):
        assert g is not None
        assert g.dtype == p.dtype
        np.testing.assert_allclose(host(g).astype(np.float64), (1 / 3 + 4 / 3) / 3, rtol=1e-3 if p.dtype.itemsize == 2 else 1e-7)


def test_what_was_taken_keeps_its_values() -> None:
    _, acc = small(every=1)
    acc.add([pb.tensor([1.0, 2.0])])
    first = acc.take()[0]
    acc.add([pb.tensor([5.0, 6.0])])
    assert host(first).tolist() == [1.0, 2.0]
    assert host(acc.take()[0]).tolist() == [5.0, 6.0]


def test_taking_early_gives_the_mean_of_what_is_there() -> None:
    _, acc = small(every=10)
    for k in (1.0, 3.0):
        assert acc.add([pb.tensor([k, 2 * k])]) is False
    assert acc.stats == (2, 0, 2)
    assert host(acc.take()[0]).tolist() == [2.0, 4.0]


# ---- parameters without a gradient


@pytest.mark.parametrize("captured", [False, True])
def test_a_missing_gradient_is_zero_and_none_if_it_is_always_missing(captured: bool) -> None:
    params = [pb.Parameter([1.0], name=name) for name in "abc"]
    acc, g = optim.Accumulator(params, every=2), pb.tensor([4.0])
    patterns = {"a": lambda g: acc.add([g, None, None]), "ab": lambda g: acc.add([g, g, None]), "": lambda g: acc.add([None] * 3)}
    adds = {name: pb.capture(f) if captured else f for name, f in patterns.items()}
    take = pb.capture(acc.take) if captured else acc.take
    for first, second, expected in (
        ("a", "ab", [4.0, 2.0, None]), ("ab", "ab", [4.0, 4.0, None]), ("a", "a", [4.0, None, None]), ("", "a", [2.0, None, None]),
        ("a", "ab", [4.0, 2.0, None]), ("", "", [None, None, None]), ("ab", "ab", [4.0, 4.0, None]),
    ):
        assert (adds[first](g), adds[second](g)) == (False, True)
        assert [x if x is None else host(x).tolist()[0] for x in take()] == expected


def test_a_parameter_without_any_gradient_keeps_its_slots_and_step_count() -> None:
    a, b = pb.Parameter([1.0]), pb.Parameter([1.0])
    opt = optim.Adam([a, b], 0.1)
    acc = optim.Accumulator(opt.parameters, every=2)
    for _ in range(2):
        acc.add([pb.tensor([1.0]), None])
    opt.step(acc.take())
    assert not host(opt.slots(b)["m"]).any()
    assert b.version == 0


# ---- stale gradients


def test_a_stale_gradient_is_an_error_that_changes_nothing() -> None:
    _, acc = small(every=2)
    for k in range(3):
        acc.add([pb.tensor([float(k), 1.0])], step=acc.step)
        if acc.stats.pending == 2:
            acc.take()
    with pytest.raises(pb.StaleValueError, match=r'computed at step 0, and the Accumulator is at step 1.*stale="drop"'):
        acc.add([pb.tensor([100.0, 100.0])], step=0)
    assert acc.stats == (3, 0, 1)
    assert host(acc.take()[0]).tolist() == [2.0, 1.0]


def test_a_stale_gradient_is_dropped_and_counted() -> None:
    _, acc = small(every=2, stale="drop")
    acc.step = 3
    assert acc.add([pb.tensor([100.0, 100.0])], step=2) is False
    assert acc.add([pb.tensor([1.0, 1.0])], step=3) is False
    assert acc.add([pb.tensor([100.0, 100.0])], step=0) is False
    assert acc.add([pb.tensor([3.0, 3.0])]) is True
    assert acc.stats == (2, 2, 2)
    assert host(acc.take()[0]).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_a_stale_gradient_counts_less(reduce: Any) -> None:
    _, acc = small([0.0], "float64", every=3, stale="decay", reduce=reduce)
    acc.step = 5
    values, steps, counts = [1.0, 10.0, 100.0], [5, 4, 2], [3, 1, 2]
    for value, step, count in zip(values, steps, counts):
        acc.add([pb.tensor([value], dtype="float64")], step=step, count=count)
    late = [1 / (1 + 5 - step) for step in steps]
    weights = [count * x for count, x in zip(counts, late)] if reduce == "mean" else late
    expected = np.dot(weights, values) / (sum(weights) if reduce == "mean" else 1.0)
    np.testing.assert_allclose(host(acc.take()[0]), [expected], rtol=1e-12)


# ---- NaN


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_shows_in_its_update_only(bad: float) -> None:
    _, acc = small(every=2)
    acc.add([pb.tensor([bad, 1.0])])
    acc.add([pb.tensor([1.0, 3.0])])
    found = host(acc.take()[0])
    assert (np.isnan(found[0]) if np.isnan(bad) else found[0] == bad, found[1]) == (True, 2.0)
    for _ in range(2):
        acc.add([pb.tensor([1.0, 1.0])])
    assert host(acc.take()[0]).tolist() == [1.0, 1.0]


# ---- captured


def test_two_recordings_serve_all_batches_and_eager_calls_may_come_between() -> None:
    _, acc = small(every=4)
    means: list[float] = []

    @pb.capture
    def step(g: Any) -> Any:
        return acc.take() if acc.add([g]) else None

    for k in range(24):
        g = pb.tensor([float(k), 0.0])
        found = (acc.take() if acc.add([g]) else None) if k % 7 == 3 else step(g)
        means += [] if found is None else [host(found[0])[0]]
    assert means == [np.mean(range(4 * k, 4 * k + 4)) for k in range(6)]
    assert (acc.step, acc.stats) == (6, (24, 0, 0))
    assert step.stats().captures in (0, 2)  # 0 without kernels to record


def test_an_update_within_one_step_of_several() -> None:
    """capture(steps=K) repeats one run K times, which is right if the run ends as it began."""
    data = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    _, acc = small(every=3)

    def update(gs: Any) -> Any:
        assert [acc.add([gs[k]], count=k + 1) for k in range(3)] == [False, False, True]
        return acc.take()[0]

    found = pb.capture(update, steps=4)(pb.tensor(data))
    np.testing.assert_allclose(host(found), (data * np.array([1, 2, 3])[:, None]).sum(1) / 6, rtol=1e-6)
    assert (acc.step, acc.stats) == (4, (12, 0, 0))


def test_steps_that_differ_are_refused_in_one_call(native: None) -> None:
    _, acc = small(every=2)
    step = pb.capture(lambda g: acc.take() if acc.add([g]) else None, steps=4)
    with pytest.raises(pb.CaptureError, match=r"had 0 pending gradients.*and 1 at its end.*without steps="):
        step(pb.ones((4, 2)))


def test_a_step_given_in_a_captured_function_is_compared_in_every_replay() -> None:
    _, acc = small(every=1, stale="drop")

    @pb.capture
    def step(g: Any, at: int) -> Any:
        return acc.take()[0] if acc.add([g], step=at) else None

    g = pb.ones(2)
    assert step(g, 0) is not None
    assert step(g, 0) is None
    assert step(g, 0) is None
    assert step(g, 1) is not None
    assert step(g, 1) is None
    assert acc.stats == (2, 3, 0)


def test_flops_count_an_update_and_change_nothing() -> None:
    _, acc = small(every=2)
    acc.add([pb.ones(2)])
    found = pb.flops(lambda g: acc.take() if acc.add([g]) else None, pb.ones(2))
    assert found.total.launches >= 3
    assert (acc.step, acc.stats) == (0, (1, 0, 1))


def test_one_launch_adds_all_gradients_and_all_costs_are_known() -> None:
    net, opt = training()
    acc = optim.Accumulator(opt.parameters)
    grads = gradients(net, *rows(0, 8))
    with pb.profile(strict=True) as prof:
        acc.add(grads)
    assert [x.kernel for x in prof.launches if x.kernel != "write_settings"] == ["sgd_step"]
    assert prof.optimizer.launches == prof.total.launches


def test_an_outer_tape_does_not_record_it() -> None:
    p, acc = small(every=1)
    with pb.GradientTape(persistent=True) as tape:
        y = pb.sum(p * p)
        g = tape.gradient(y, p)
        acc.add([g])
        before = repr(tape)
        acc.take()
    assert repr(tape).split(" ops")[0] == before.split(" ops")[0]


# ---- copies


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_goes_on_alike_and_apart(how: Callable[[Any], Any]) -> None:
    _, acc = small(every=3, stale="drop")
    for k in (1.0, 2.0):
        acc.add([pb.tensor([k, k])])
    twin = how(acc)
    assert repr(twin) == repr(acc)
    acc.add([pb.tensor([30.0, 30.0])])
    assert twin.stats == (2, 0, 2)
    assert twin.add([pb.tensor([3.0, 3.0])]) is True
    assert host(twin.take()[0]).tolist() == [2.0, 2.0]
    assert host(acc.take()[0]).tolist() == [11.0, 11.0]
    same(pb.tensor([1.0, 2.0]), twin.parameters[0])


# ---- what is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every=0; it must be a number of gradients"), ({"every": 2.0}, "every=2"), ({"every": True}, "every=True"),
        ({"reduce": "max"}, "reduce='max'; use 'mean' or 'sum'"), ({"stale": None}, "stale=None; use 'error' or 'drop' or 'decay'"),
    ],
)
def test_wrong_arguments(options: Any, words: str) -> None:
    with pytest.raises(pb.PullbackError, match=words):
        small(**options)


G = [1.0, 2.0]


@pytest.mark.parametrize(
    ("grads", "options", "error", "words"),
    [
        ([G[:1]], {}, pb.ShapeError, r'gradient of Parameter "p" has shape \(1,\), the parameter \(2,\)'),
        ([np.ones(2, np.float64)], {}, pb.DTypeError, "dtype float64, the parameter float32"),
        ([G, G], {}, pb.ShapeError, r"add: 2 gradients for 1 parameters; give one for each, in the order of acc\.parameters"),
        ({"p": G}, {}, pb.ShapeError, "add: the gradients have the structure"),
        (None, {}, pb.PullbackError, r"add: no gradients were given.*Write acc\.add\(tape\.gradient\(loss, acc\.parameters\)\)\."),
        (lambda: 1, {}, pb.PullbackError, "add: a function was given.*Compute the loss inside"),
        (np.ones(2, np.float32), {}, pb.PullbackError, r"comes in a list: acc\.add\(\[g\]\)"),
        ([G], {"count": 0}, pb.PullbackError, "count=0; it must be one positive number"),
        ([G], {"count": np.nan}, pb.PullbackError, "count=nan"), ([G], {"count": np.inf}, pb.PullbackError, "count=inf"),
        ([G], {"count": "8"}, pb.PullbackError, "count='8'"), ([G], {"count": True}, pb.PullbackError, "count=True"),
        ([G], {"step": 2}, pb.PullbackError, "step=2; it must be.*from 0 to the present one, which is 1"),
        ([G], {"step": -1}, pb.PullbackError, "step=-1"), ([G], {"step": 1.0}, pb.PullbackError, r"step=1\.0"),
    ],
)
def test_wrong_gradients_change_nothing(grads: Any, options: Any, error: type[Exception], words: str) -> None:
    _, acc = small(every=2)
    acc.step = 1
    acc.add([pb.tensor(G)])
    if isinstance(grads, list):
        grads = [pb.tensor(g) for g in grads]
    with pytest.raises(error, match=words):
        acc.add(grads, **options)
    assert (acc.step, acc.stats) == (1, (1, 0, 1))
    acc.add([pb.tensor([3.0, 4.0])])
    assert host(acc.take()[0]).tolist() == [2.0, 3.0]


def test_taking_without_a_gradient_is_an_error() -> None:
    _, acc = small()
    with pytest.raises(pb.PullbackError, match="take: no gradient was added since the last call"):
        acc.take()
    with pytest.raises(pb.PullbackError, match="step=-1; it must be a number of updates"):
        acc.step = -1


def test_gradients_may_come_in_the_structure_of_the_parameters() -> None:
    params = {"w": pb.Parameter([1.0]), "b": pb.Parameter([2.0])}
    acc = optim.Accumulator(params, every=1)
    acc.add({"b": pb.tensor([20.0]), "w": pb.tensor([10.0])})
    by_name = dict(zip([id(p) for p in acc.parameters], acc.take()))
    assert [host(by_name[id(params[name])]).tolist() for name in "wb"] == [[10.0], [20.0]]
