"""Optimizers, compared with torch.optim, and their slots, deltas, previews, resumes and clipping."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn, optim
from pullback.launch import door
from pullback.optim import schedules
from pullback.optim.sets import BASE_RATE, HYPER, RATE_SCALE, SCHEDULE, SIZE, STEP
from update_rules import OF_PAPERS, RULES


def parameters(seed: int = 0, dtype: str = "float32") -> list[pb.Parameter]:
    rng = np.random.default_rng(seed)
    return [pb.Parameter(rng.standard_normal(shape).astype(dtype), name=f"p{i}") for i, shape in enumerate([(5, 3), (7,), ()])]


def gradients(params: list[pb.Parameter], seed: int) -> list[pb.Tensor]:
    rng = np.random.default_rng(100 + seed)
    return [pb.tensor(rng.standard_normal(p.shape).astype(p.dtype)) for p in params]


@pytest.mark.parametrize("rule", [name for name in RULES if name not in OF_PAPERS], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_update_rule_is_torchs(rule: str, dtype: str, request: pytest.FixtureRequest) -> None:
    """Against torch in float64. float32 weights of up to 34 lose up to 1e-6 of the largest one, as they do in torch itself."""
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare the update rules with")
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    cls, options = RULES[rule]
    params = parameters(dtype=dtype)
    theirs = [torch.nn.Parameter(torch.tensor(p.numpy().astype(np.float64))) for p in params]
    opt, reference = cls(params, **options), getattr(torch.optim, cls.__name__)(theirs, **options)
    torch.set_default_dtype(torch.float64)  # in which torch's NAdam keeps the product of the momenta
    for step in range(100):
        grads = gradients(params, step)
        opt.step(grads)
        for p, g in zip(theirs, grads):
            p.grad = torch.tensor(g.numpy().astype(np.float64))
        reference.step()
    most = max(float(np.abs(p.numpy()).max()) for p in params)
    for p, q in zip(params, theirs):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=0, atol=(1e-6 if dtype == "float32" else 1e-12) * most)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_fused_update_is_the_formula_in_numpy(rule: str) -> None:
    cls, options = RULES[rule]
    native, plain = parameters(dtype="float64"), parameters(dtype="float64")
    a, b = cls(native, **options, clip_norm=1.5), cls(plain, **options, clip_norm=1.5)
    b._native = None
    for step in range(5):
        a.step(gradients(native, step))
        b.step(gradients(plain, step))
    for p, q in zip(native, plain):
        np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-12)
    assert a.gradient_norm == pytest.approx(b.gradient_norm, rel=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("clip_norm", [None, 1.5])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_step_costs_the_same_on_both_backends(rule: str, clip_norm: float | None, dtype: str) -> None:
    cls, options = RULES[rule]
    figures: list[Any] = []
    for fused in (True, False):
        params = parameters(dtype=dtype)
        opt = cls(params, **options, clip_norm=clip_norm)
        if not fused:
            opt._native = None
        with pb.profile(strict=True) as prof:
            opt.preview(gradients(params, 0))
            opt.step(gradients(params, 0))
        named = [name for name in door.FIGURES if name != "executed_flops"]  # That figure differs between backends.
        figures += [[(x.kernel, x.dtype, *[getattr(x, name) for name in named]) for x in prof.launches]]
    assert figures[0] == figures[1]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_before_plus_delta_is_after_bit_for_bit(rule: str, dtype: str) -> None:
    cls, options = RULES[rule]
    params = [pb.Parameter(p, dtype=dtype) for p in parameters()]
    opt = cls(params, **options)
    for step in range(3):
        before = [p.numpy() for p in params]
        deltas = opt.step([g.astype(dtype) for g in gradients(parameters(), step)], return_delta=True)
        for p, old, delta in zip(params, before, deltas):
            assert ((old + delta.numpy()).astype(old.dtype) == p.numpy()).all()


def test_preview_changes_nothing_and_tells_what_step_adds() -> None:
    params = parameters()
    opt = optim.Adam(params, lr=0.1, clip_norm=1.0)
    opt.step(gradients(params, 0))
    state = [(p.numpy(), p.version, {k: v.numpy() for k, v in opt.slots(p).items()}) for p in params]
    grads = gradients(params, 1)
    preview = opt.preview(grads)
    for p, (value, version, slots) in zip(params, state):
        assert (p.numpy() == value).all()
        assert p.version == version
        assert all((opt.slots(p)[k].numpy() == v).all() for k, v in slots.items())
    assert opt.steps == 1
    assert [delta.shape for delta in preview] == [p.shape for p in params]
    for expected, actual in zip(preview, opt.step(grads, return_delta=True) or []):
        assert (expected.numpy() == actual.numpy()).all()


def test_slots_exist_as_zeros_before_the_first_step() -> None:
    params = parameters()
    for opt, names in (
        (optim.SGD(params, momentum=0.9), {"momentum"}),
        (optim.Adam(params), {"m", "v"}),
        (optim.SGD(params), set()),
    ):
        for p in params:
            assert set(opt.slots(p)) == names
            assert all((slot.numpy() == 0).all() and slot.shape == p.shape for slot in opt.slots(p).values())


def test_momentum_is_the_geometric_sum_of_gradients() -> None:
    p = pb.Parameter([1.0, -2.0])
    opt = optim.SGD([p], lr=0.1, momentum=0.9)
    grads = [np.array([0.3, -0.7]) * (k + 1) for k in range(6)]
    for g in grads:
        opt.step([pb.tensor(g, dtype="float32")])
    expected = sum(0.9 ** (len(grads) - 1 - i) * g for i, g in enumerate(grads))
    np.testing.assert_allclose(opt.slots(p)["momentum"].numpy(), expected, rtol=1e-6)


def test_resume_is_exact(tmp_path: Any) -> None:
    def run(params: list[pb.Parameter], opt: Any, steps: range) -> None:
        for step in steps:
            opt.step(gradients(params, step))

    whole = parameters()
    run(whole, optim.Adam(whole, lr=schedules.Cosine(0.1, steps=20), clip_norm=1.0), range(10))
    first = parameters()
    opt = optim.Adam(first, lr=schedules.Cosine(0.1, steps=20), clip_norm=1.0)
    run(first, opt, range(4))
    pb.save(tmp_path / "state.safetensors", {"opt": opt.state_dict(), "p": {p.name: p for p in first}})
    saved = pb.load(tmp_path / "state.safetensors")
    second = [pb.Parameter(saved["p"][p.name], name=p.name) for p in first]
    resumed = optim.Adam(second, lr=1.0, clip_norm=1.0)
    resumed.load_state_dict(saved["opt"])
    run(second, resumed, range(4, 10))
    for p, q in zip(whole, second):
        assert (p.numpy() == q.numpy()).all()


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    params = parameters()
    opt = optim.Adam(params)
    opt.step(gradients(params, 0))
    state = opt.state_dict()
    slots, settings = state["slots"], {name: rows.numpy() for name, rows in state["settings"].items()}
    momentum = optim.SGD(parameters(), momentum=0.9).state_dict()

    def damaged(at: int, value: float) -> Any:
        return {**state, "settings": {**settings, "p1": np.where(np.arange(SIZE) == at, value, settings["p1"])}}

    for wrong, words in [
        (None, "a NoneType"),
        ({}, "not for"),
        (momentum, "of rule SGD, this optimizer is Adam"),
        ({**momentum, "rule": "Adam", "kernel": "adam_step"}, '"p0" has entries'),
        ({**state, "slots": {"p0": slots["p0"]}}, "'p1'"),
        ({**state, "slots": {**slots, "p2": {"m": slots["p2"]["m"]}}}, '"p2" has entries'),
        ({**state, "slots": {**slots, "p2": {"m": slots["p2"]["m"], "v": None}}}, 'slot "v" of "p2" is a NoneType'),
        ({**state, "slots": {**slots, "p2": {"m": slots["p2"]["m"], "v": pb.ones(3)}}}, "it must be floats"),
        ({**state, "settings": {**settings, "p2": pb.zeros(3)}}, 'the settings of "p2" has shape'),
        (damaged(STEP, -1.0), "number of steps"),
        (damaged(SCHEDULE, 99.0), "no schedule"),
        (damaged(BASE_RATE, np.nan), "base=nan; it must be a finite number"),
        (damaged(BASE_RATE, 0.5), "several values of lr"),
        (damaged(HYPER, 1.5), r"several values of betas|must be in \[0, 1\)"),
        (damaged(RATE_SCALE, -1.0), "their numbers are no state"),
        ({**state, "steps": "x"}, "steps='x' is not a valid number of steps"),
        ({**state, "kernel": "sgd_step"}, "of the formula 'sgd_step', this optimizer's is 'adam_step'"),
    ]:
        other = optim.Adam(parameters())
        with pytest.raises(pb.PullbackError, match=words):
            other.load_state_dict(wrong)
        assert other.steps == 0
        assert not any(slot.numpy().any() for p in other.parameters for slot in other.slots(p).values())


def test_a_loaded_schedule_is_the_one_that_was_saved() -> None:
    for schedule in (schedules.Step(0.1, every=10), schedules.WarmupCosine(0.1, steps=20, warmup=3), schedules.Schedule(0.1)):
        opt = optim.SGD(parameters(), lr=0.5)
        opt.load_state_dict(optim.SGD(parameters(), lr=schedule).state_dict())
        assert repr(opt._defaults["lr"]) == repr(schedule)  # 10 and 10.0 are equal but print differently.


def test_clipping_is_part_of_the_state() -> None:
    clipped = optim.SGD([pb.Parameter([0.0], name="p")], lr=1.0, clip_norm=1.0, clip_value=0.5)
    clipped.step([pb.tensor([10.0])])
    opt = optim.SGD([pb.Parameter([0.0], name="p")], lr=1.0)
    opt.load_state_dict(clipped.state_dict())
    assert (opt.clip_norm, opt.clip_value) == (1.0, 0.5)
    opt.step([pb.tensor([10.0])])
    assert opt.parameters[0].tolist() == [-0.5]
    opt.load_state_dict(optim.SGD([pb.Parameter([0.0], name="p")], lr=1.0).state_dict())
    opt.step([pb.tensor([10.0])])
    assert opt.parameters[0].tolist() == [-10.5]


def test_names_in_a_state_are_those_of_when_the_optimizer_was_made() -> None:
    inner = nn.Sequential(nn.Linear(2, 2))
    opt = optim.Adam(inner.parameters())
    state = opt.state_dict()
    nn.Sequential(inner).parameters()
    assert inner[0].weight.name == "0.0.weight"
    assert set(opt.state_dict()["slots"]) == {"0.weight", "0.bias"}
    opt.load_state_dict(state)


def test_a_deep_copy_goes_on_alone_with_the_copied_parameters() -> None:
    params = parameters()
    opt = optim.Adam(params, lr=schedules.Cosine(0.1, steps=20), clip_norm=1.0)
    opt.step(gradients(params, 0))
    params_too, twin = copy.deepcopy((params, opt))
    assert all(p is q for p, q in zip(params_too, twin.parameters))
    before = [p.numpy() for p in params]
    twin.step(gradients(params, 1))
    assert all((p.numpy() == value).all() for p, value in zip(params, before))
    opt.step(gradients(params, 1))
    for p, q in zip(params, params_too):
        assert (p.numpy() == q.numpy()).all()
        assert all((opt.slots(p)[name].numpy() == slot.numpy()).all() for name, slot in twin.slots(q).items())


def test_learning_rate_can_be_set_between_steps() -> None:
    p = pb.Parameter(np.zeros(2))
    opt = optim.SGD([p], lr=0.1)
    opt.step([pb.tensor(np.ones(2))])
    opt.lr = 0.5
    assert opt.lr == 0.5
    assert float((opt.step([pb.tensor(np.ones(2))], return_delta=True) or [])[0][0]) == -0.5


def test_clip_norm_scales_all_gradients_together() -> None:
    params = parameters(dtype="float64")
    grads = gradients(params, 0)
    norm = math.sqrt(sum(float(pb.sum(g * g)) for g in grads))
    opt = optim.SGD(params, lr=1.0, clip_norm=norm / 4)
    deltas = opt.step(grads, return_delta=True) or []
    assert opt.gradient_norm == pytest.approx(norm, rel=1e-12)
    for g, delta in zip(grads, deltas):
        np.testing.assert_allclose(delta.numpy(), -g.numpy() / 4, rtol=1e-5)


def test_clip_value_clamps() -> None:
    p = pb.Parameter(np.zeros(4))
    opt = optim.SGD([p], lr=1.0, clip_value=0.5)
    opt.step([pb.tensor(np.array([-3.0, -0.1, 0.2, 9.0]))])
    np.testing.assert_array_equal(p.numpy(), [0.5, 0.1, -0.2, -0.5])


def address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def test_parameters_keep_their_identity_in_the_arena() -> None:
    params = parameters()
    values = [p.numpy() for p in params]
    optim.Adam(params)
    for p, value in zip(params, values):
        assert (p.numpy() == value).all()
        assert p.storage.placement == 1
    places = sorted([(address(p.array), p.nbytes) for p in params])
    for (here, size), (there, _) in zip(places, places[1:]):
        assert here + size <= there < here + size + 256
    optim.SGD(params, momentum=0.5)
    assert all(p.storage.placement == 1 for p in params)


def test_a_parameter_without_gradient_is_left_alone() -> None:
    params = parameters()
    before = params[1].numpy()
    opt = optim.Adam(params, lr=0.1)
    opt.step([None if p is params[1] else g for p, g in zip(params, gradients(params, 0))])
    assert (params[1].numpy() == before).all()
    assert params[1].version == 0
    assert params[0].version == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_with_gradients_of_parameters_without_weights_counts(dtype: str) -> None:
    p, empty = pb.Parameter(np.zeros(2), dtype=dtype), pb.Parameter(np.zeros((0, 3)), dtype=dtype)
    opt = optim.SGD([p, empty], lr=schedules.Table([0.5, 0.25, 0.125]))
    for _ in range(2):
        opt.step([None, pb.zeros((0, 3), dtype=dtype)])
    assert (opt.steps, opt.lr) == (2, 0.125)
    opt.step([pb.ones(2, dtype=dtype), None])
    assert p.tolist() == [-0.125, -0.125]


def test_a_step_without_any_gradient_does_not_count() -> None:
    p = pb.Parameter([1.0, 2.0])
    opt = optim.Adam([p], lr=schedules.Linear(1.0, steps=2))
    deltas = opt.step([None], return_delta=True) or []
    assert (opt.steps, opt.lr, p.version) == (0, 1.0, 0)
    assert deltas[0].tolist() == [0.0, 0.0]


def test_a_constraint_that_raises_leaves_no_parameter_with_an_old_version() -> None:
    def refuse(value: pb.Tensor) -> pb.Tensor:
        raise RuntimeError("no")

    params = [pb.Parameter([1.0], constraint=refuse), pb.Parameter([2.0])]
    opt = optim.SGD(params, lr=0.5)
    with pb.GradientTape() as tape:
        y = params[1] * params[1]
    with pytest.raises(RuntimeError):
        opt.step([pb.ones(1), pb.ones(1)])
    assert [p.tolist() for p in params] == [[0.5], [1.5]]
    with pytest.raises(pb.StaleValueError):
        tape.gradient(y, params[1])


def test_a_constraint_may_return_an_array_of_the_same_shape() -> None:
    p = pb.Parameter([-1.0, 2.0], constraint=lambda value: np.maximum(value.numpy(), 0))
    optim.SGD([p], lr=1.0).step([pb.ones(2)])
    assert p.tolist() == [0.0, 1.0]
    p.constraint = lambda value: value.sum()
    with pytest.raises(pb.ShapeError, match=r"returned shape \(\); it must return the shape \(2,\)"):
        optim.SGD([p], lr=1.0).step([pb.ones(2)])


def test_a_gradient_that_does_not_fit_is_named_and_nothing_changes() -> None:
    params = parameters()
    opt = optim.Adam(params)
    before = [p.numpy() for p in params]
    with pytest.raises(pb.ShapeError, match=r'Parameter "p1" has shape \(2,\), the parameter \(7,\)'):
        opt.step([pb.zeros((5, 3)), pb.zeros(2), pb.zeros(())])
    with pytest.raises(pb.DTypeError, match=r'Parameter "p0" has dtype float64'):
        opt.step([pb.zeros((5, 3), dtype="float64"), pb.zeros(7), pb.zeros(())])
    with pytest.raises(pb.ShapeError, match="2 gradients for 3 parameters"):
        opt.step([pb.zeros(2), pb.zeros(2)])
    assert opt.steps == 0
    assert all((p.numpy() == b).all() for p, b in zip(params, before))


def test_bad_arguments_are_refused_in_words() -> None:
    p = pb.Parameter([1.0])
    with pytest.raises(pb.PullbackError, match=r"only a pb\.Parameter"):
        optim.SGD([pb.tensor([1.0])])
    with pytest.raises(pb.PullbackError, match="nesterov=True needs momentum"):
        optim.SGD([p], nesterov=True)
    with pytest.raises(pb.PullbackError, match=r"betas=\(1.0, 0.9\)"):
        optim.Adam([p], betas=(1.0, 0.9))
    assert optim.SGD([p], lr=np.float32(0.5)).lr == 0.5  # type: ignore[arg-type]
    with pytest.raises(pb.PullbackError, match="clip_norm=-1"):
        optim.Adam([p], clip_norm=-1)
    counts = pb.Parameter([1, 2], trainable=False, name="k")
    counts.trainable = True
    with pytest.raises(pb.DTypeError, match='"k" has dtype int64; only floating-point'):
        optim.SGD([counts])
    for rule, name in ((optim.Adam, "eps"), (optim.AdamW, "weight_decay"), (optim.SGD, "momentum"), (optim.SGD, "weight_decay")):
        for value in (-1.0, math.nan, None):
            with pytest.raises(pb.PullbackError, match=f"{rule.__name__}: {name}="):
                rule([p], **{name: value})
    with pytest.raises(pb.PullbackError, match=r"lr=-1.*; it must be a finite number of 0 or more"):
        optim.SGD([p], lr=-1)
    with pytest.raises(pb.PullbackError, match=r"set opt\.lr before each step"):
        optim.Adam([p], lr=lambda step: 0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_training_follows_torch_step_by_step(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to follow")
    rng = np.random.default_rng(3)
    ours = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    theirs = torch.nn.Sequential(
        torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    )
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})
    options = {"lr": 0.05, "momentum": 0.9} if name == "SGD" else {"lr": 3e-3}
    opt, reference = getattr(optim, name)(ours.parameters(), **options), getattr(torch.optim, name)(theirs.parameters(), **options)
    for _ in range(100):
        x, y = rng.standard_normal((64, 20), dtype=np.float32), rng.integers(0, 4, 64)
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(ours(pb.asarray(x)), pb.asarray(y))
        opt.step(tape.gradient(loss, opt.parameters))
        reference.zero_grad()
        expected = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y))
        expected.backward()
        reference.step()
        assert float(loss) == pytest.approx(expected.item(), abs=1e-5)
