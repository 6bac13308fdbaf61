"""Optimizers on a GPU against those on the CPU: equal bits, in one launch, without waiting for the launch."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import simulated
from pullback import backends, optim
from pullback.optim import schedules
from pullback.optim.sets import SCHEDULE
from pullback.tensors import devices, gpu
from update_rules import RULES

SHAPES = [(1,), (3, 5), (2047,), (2049,), (0, 4), (), (64, 33), (2, 3, 1000), (4, 5, 6, 7)]
FLOATS = ("float16", "bfloat16", "float32", "float64")


@pytest.fixture(autouse=True)
def kernels() -> Any:
    if reason := backends.why_not("cpu") or backends.why_not("cuda"):
        pytest.skip(reason)
    return gpu.need().kernels


def parameters(device: str, dtypes: Any, shapes: Any = SHAPES) -> list[pb.Parameter]:
    rng = np.random.default_rng(3)
    kinds = [dtypes] * len(shapes) if isinstance(dtypes, str) else dtypes
    return [pb.Parameter(rng.normal(size=s), f"p{i}", dtype=d, device=device) for i, (s, d) in enumerate(zip(shapes, kinds))]


def placed(x: Any, how: int) -> Any:
    """Returns x in one of the layouts of gradients: contiguous, transposed, sliced, reversed, unaligned, or with swapped axes."""
    xp = devices.array_module(devices.device_of(x))
    if how == 1:
        return xp.ascontiguousarray(x.T).T
    if how == 2 and x.ndim:
        return xp.repeat(x, 2, axis=-1)[..., ::2]
    if how == 3 and x.ndim:
        return xp.ascontiguousarray(x[::-1])[::-1]
    if how == 4 and x.size:
        return xp.concatenate([x.reshape(-1)[:1], x.reshape(-1)])[1:].reshape(x.shape)  # contiguous, but not aligned to packs
    if how == 5 and x.ndim > 1:
        return xp.ascontiguousarray(xp.swapaxes(x, 0, 1)).swapaxes(0, 1)
    return x


@cache  # keeps them alive: NumPy allocates them for the simulator, and could free them before kernels have read them
def gradients(step: int, device: str, kinds: Any) -> list[Any]:
    """Returns gradients in all layouts. About every eighth is None."""
    rng = np.random.default_rng(step)
    result: list[Any] = []
    for i, (shape, dtype) in enumerate(kinds):
        values = pb.asarray(rng.normal(size=shape), dtype=dtype, device=device).array
        with devices.working(device):  # CuPy's ops then run in pullback's order
            result.append(None if (i + step) % 8 == 7 else pb.Tensor(placed(values, (i + step) % 6)))
    return result


def gradients_of(opt: Any, step: int) -> list[Any]:
    return gradients(step, opt.parameters[0].device, tuple([(p.shape, p.dtype.name) for p in opt.parameters]))


def assert_same_bits(these: Any, those: Any) -> None:
    for a, b in zip(these, those):
        x, y = a.numpy(), b.numpy()
        assert x.dtype == y.dtype
        assert x.tobytes() == y.tobytes()


def assert_same_state(a: Any, b: Any) -> None:
    assert_same_bits(a.parameters, b.parameters)
    for p, q in zip(a.parameters, b.parameters):
        assert_same_bits(a.slots(p).values(), b.slots(q).values())
    assert_same_bits(a.state_dict()["settings"].values(), b.state_dict()["settings"].values())
    assert a.steps == b.steps


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_step_gives_the_bits_of_the_cpu(rule: str, dtype: str) -> None:
    cls, options = RULES[rule]
    here, there = [cls(parameters(d, dtype), **options, clip_value=1.5) for d in ("cpu", "cuda")]
    for step in range(4):
        deltas = [opt.step(gradients_of(opt, step), return_delta=step % 2 == 0) for opt in (here, there)]
        if deltas[0] is not None:
            assert_same_bits(*deltas)
    assert_same_state(here, there)


def test_every_order_of_threads_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests the thread orders of the simulator, or on a GPU the one that happens."""
    results: set[bytes] = set()
    for seed in range(6):
        monkeypatch.setenv("CUDASIM_SEED", str(seed))
        opt = optim.AdamW(parameters("cuda", "float32"), schedules.Cosine(0.1, 20), clip_norm=1.0)
        for step in range(3):
            opt.step(gradients_of(opt, step))
        tensors = [*opt.parameters, *opt.state_dict()["settings"].values()]
        results.add(b"".join([t.numpy().tobytes() for t in tensors]))
    assert len(results) == 1


@pytest.mark.parametrize("count", [24, 25, 600])
def test_many_tensors_of_several_dtypes_are_one_step(count: int) -> None:
    shapes = [(1 + i % 5, i % 7) for i in range(count)]
    kinds = [FLOATS[i % 4] for i in range(count)]
    here, there = [optim.Adam(parameters(d, kinds, shapes), lr=0.1, clip_norm=1e9) for d in ("cpu", "cuda")]
    for step in range(3):
        for opt in (here, there):
            opt.step(gradients_of(opt, step))
    assert there.gradient_norm == pytest.approx(here.gradient_norm, rel=1e-14)
    assert_same_bits(here.parameters, there.parameters)
    assert_same_state(here, there)


def test_the_norm_of_many_elements_is_the_same_in_every_order(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(300_000,), (7,), (131, 977)]
    norms, grads = set[float](), list[Any]()
    for seed in range(6):
        monkeypatch.setenv("CUDASIM_SEED", str(seed))
        opt = optim.SGD(parameters("cuda", "float32", shapes), lr=0.1, clip_norm=1.0)
        grads = gradients_of(opt, 0)
        opt.step(grads)
        norms.add(opt.gradient_norm)
    exact = np.sqrt(sum((g.numpy().astype(np.float64) ** 2).sum() for g in grads))
    assert len(norms) == 1
    assert norms.pop() == pytest.approx(exact, rel=1e-14)


def test_a_preview_changes_nothing_on_the_device() -> None:
    for clip_norm in (None, 1.0):
        opt = optim.Adam(parameters("cuda", "float32"), lr=0.1, clip_norm=clip_norm)
        opt.step(gradients_of(opt, 0))
        before = opt.state_dict()
        values = [p.numpy() for p in opt.parameters]
        preview = opt.preview(gradients_of(opt, 1))
        assert_same_bits(before["settings"].values(), opt.state_dict()["settings"].values())
        for p, value in zip(opt.parameters, values):
            assert_same_bits(before["slots"][p.name].values(), opt.slots(p).values())
            assert (p.numpy() == value).all()
        assert_same_bits(preview, opt.step(gradients_of(opt, 1), return_delta=True))


@pytest.mark.parametrize(
    "rate",
    [
        schedules.Step(0.1, 2, 0.5), schedules.Exponential(0.1, 0.9), schedules.Linear(0.1, 5),
        schedules.Polynomial(0.1, 5, 0.0, 1.7), schedules.Cosine(0.1, 5), schedules.WarmupCosine(0.1, 5, 0.0, 2),
    ],
    ids=lambda rate: type(rate).__name__,
)
def test_a_schedule_gives_the_bits_of_the_cpu(rate: Any) -> None:
    here, there = [optim.SGD(parameters(d, "float64", [(3,)]), rate) for d in ("cpu", "cuda")]
    for step in range(7):
        for opt in (here, there):
            opt.step(gradients_of(opt, step))
        assert_same_state(here, there)
        assert there.lr == pytest.approx(rate.rate(step + 1), rel=1e-12)


def test_a_step_and_a_new_learning_rate_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    if not simulated():
        pytest.skip("only the simulated device tells when somebody waits")
    from pullback.tensors import simulated as device

    opt = optim.Adam(parameters("cuda", "float32"), schedules.Cosine(0.1, 20), clip_norm=1.0)
    steps = [gradients_of(opt, step) for step in range(3)]

    def wait() -> None:
        raise AssertionError("the host waits")

    with monkeypatch.context() as patched:
        patched.setattr(device, "finish", wait)
        for grads in steps:
            opt.step(grads)
            opt.lr = opt.lr / 2
            opt.lr = schedules.WarmupCosine(0.2, 9, 0.1, 3, 0.05)
        assert opt.steps == 3
    for rows in opt.state_dict()["settings"].values():
        assert rows.numpy()[0, SCHEDULE : SCHEDULE + 6].tolist() == [6.0, 0.2, 9.0, 0.1, 3.0, 0.05]


def test_a_state_goes_from_device_to_device() -> None:
    here, there = [optim.Adam(parameters(d, "float32"), schedules.Cosine(0.1, 20), clip_value=1.0) for d in ("cpu", "cuda")]
    here.step(gradients_of(here, 0))
    for p, q in zip(here.parameters, there.parameters):
        q.assign(p)
    there.load_state_dict(here.state_dict())
    assert (there.steps, there.lr) == (1, here.lr)
    for opt in (here, there):
        opt.step(gradients_of(opt, 1))
    assert_same_state(here, there)


def test_parameters_and_gradients_are_on_one_device() -> None:
    ours, theirs = parameters("cpu", "float32", [(2,)]), parameters("cuda", "float32", [(2,)])
    with pytest.raises(pb.DeviceError, match=r'"p0" is on cpu, .*"p0" on cuda'):
        optim.SGD([*ours, *theirs])
    opt = optim.SGD(theirs, lr=0.1)
    with pytest.raises(pb.DeviceError, match=r'gradient of Parameter "p0" is on cpu, the parameter on cuda'):
        opt.step([pb.ones(2, device="cpu")])
    assert opt.steps == 0
    layer = pb.nn.Linear(2, 3)
    opt = optim.Adam(layer.parameters())
    where = opt.parameters[0].device
    target = "cpu" if where == "cuda" else "cuda"
    layer.to(target)
    with pytest.raises(pb.DeviceError, match=f"has moved to {target}"):
        opt.step([pb.ones(p.shape, device=target) for p in opt.parameters])


def test_a_training_step_reads_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    if not simulated():
        pytest.skip("only the simulated device tells when somebody reads")
    from pullback.tensors.simulated import DeviceArray

    def refuse(*_: Any) -> Any:
        raise AssertionError("the host reads the device's memory")

    rng = np.random.default_rng(0)
    with pb.use_device("cuda"):
        x, labels = rng.normal(size=(50, 8)).astype(np.float32), rng.integers(0, 4, 50)
        loader = pb.data.Loader((x, labels), 16, device="cuda")
        model = pb.nn.Sequential(pb.nn.Linear(8, 12), pb.nn.LayerNorm(12), pb.nn.GELU(), pb.nn.Dropout(0.1), pb.nn.Linear(12, 4))
        opt = optim.AdamW(model.parameters(), schedules.Cosine(0.1, 20), clip_norm=1.0)
        losses = []
        with monkeypatch.context() as patched:
            for name in ("get", "item", "tolist", "tobytes", "nonzero", "__bool__", "__int__", "__float__", "__index__"):
                patched.setattr(DeviceArray, name, refuse)
            patched.setattr(devices, "to_host", refuse)
            patched.setattr(gpu.Gpu, "synchronize", refuse)
            for _ in range(2):
                for batch, target in loader:
                    losses.append(opt.minimize(lambda a, b: pb.nn.cross_entropy(model(a), b), batch, target))
        assert len(losses) == opt.steps == 8
        assert all(np.isfinite(loss.item()) for loss in losses)
