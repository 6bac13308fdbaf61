"""Muon, compared with optax's published rule in NumPy and with torch.optim.Muon: members, captures, precision, bad values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same, same_state
from conftest import host
from pullback import nn, optim
from pullback.optim import schedules
from pullback.optim.orthogonal import orthogonal

COEFFICIENTS = (3.4445, -4.775, 2.0315)
SHAPES = ((5, 3), (3, 5), (16, 40), (5, 3), (40, 16), (1, 6), (9, 9), (4, 1))


def parameters(dtype: str = "float32", shapes: Any = SHAPES, seed: int = 0) -> list[pb.Parameter]:
    rng = np.random.default_rng(seed)
    return [pb.Parameter(0.1 * rng.standard_normal(s), dtype=dtype, name=f"p{i}") for i, s in enumerate(shapes)]


def gradients(params: Any, count: int, seed: int = 1) -> list[list[pb.Tensor]]:
    rng = np.random.default_rng(seed)
    return [[pb.tensor(rng.standard_normal(p.shape), dtype=p.dtype) for p in params] for _ in range(count)]


def newton_schulz(x: Any, steps: int, coefficients: Any = COEFFICIENTS, eps: float = 1e-15) -> Any:
    """The iteration of optax.contrib.muon, in the dtype of x."""
    a, b, c = coefficients
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (np.linalg.norm(x) + eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if tall else x


def optax_muon(
    p: Any, grads: Any, lr: float, beta: float = 0.95, weight_decay: float = 0.0, nesterov: bool = True, rms: float | None = None
) -> Any:
    """Returns the weights after the steps of optax.contrib.muon for a matrix whose rows are outputs, which optax transposes."""
    mu = np.zeros_like(p)
    for t, g in enumerate(grads, 1):
        mu = beta * mu + (1 - beta) * g
        hat = mu / (1 - beta**t)
        if nesterov:
            hat = beta * mu / (1 - beta ** (t + 1)) + (1 - beta) * g / (1 - beta**t)
        outputs, inputs = p.shape
        scale = math.sqrt(max(1, outputs / inputs)) if rms is None else rms * math.sqrt(max(inputs, outputs))
        p = p - lr * (scale * newton_schulz(hat, 5) + weight_decay * p)
    return p


def orthogonal_of(x: Any, steps: int, dtype: str, narrow: bool = False) -> Any:
    numbers = [pb.full((len(x), 1, 1), value, dtype=dtype) for value in (*COEFFICIENTS, 1e-7, 1.0)]
    eye = pb.eye(min(x.shape[1:]), dtype=dtype)
    a, b, c, eps, scale = numbers
    return host(orthogonal(pb.tensor(x, dtype=dtype), eye, (a, b, c), eps, scale, steps, narrow))


@pytest.mark.parametrize("steps", [1, 4, 5])
@pytest.mark.parametrize("shape", [(16, 144), (144, 16), (32, 32), (30, 44), (30, 46), (1, 7), (7, 1), (1, 1), (96, 200)], ids=str)
def test_the_iterations_are_those_of_the_formula(shape: tuple[int, int], steps: int) -> None:
    """An error of small singular values grows by 3.4445 in each step: float32's epsilon of 1.2e-7 becomes 6e-5 in 5 steps."""
    x = np.random.default_rng(0).standard_normal((3, *shape))
    left, _, right = np.linalg.svd(x[1], full_matrices=False)
    x[1] = left * np.logspace(0, -6, len(right)) @ right
    left, values, right = np.linalg.svd(x[2], full_matrices=False)
    x[2] = (left * values * (np.arange(len(values)) <= len(values) // 4)) @ right
    wanted = [newton_schulz(matrix, steps, eps=0.0) for matrix in x]
    np.testing.assert_allclose(orthogonal_of(x, steps, "float64"), wanted, rtol=0, atol=1e-15 * 4**steps + 1e-14)
    found = orthogonal_of(x.astype(np.float32), steps, "float32")
    np.testing.assert_allclose(found[0], wanted[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(found[1:], wanted[1:], rtol=0, atol=1.2e-7 * 3.4445**steps)


@pytest.mark.parametrize(
    ("adjustment", "options"),
    [(None, {}), ("original", {"nesterov": False}), ("match_rms_adamw", {"weight_decay": 0.1, "lr": 2e-3, "momentum": 0.9})],
    ids=["nesterov", "momentum", "decay"],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
def test_the_rule_is_that_of_optax(dtype: str, tolerance: float, adjustment: Any, options: dict[str, Any]) -> None:
    """100 steps of random gradients."""
    given = {"lr": 1e-3, "weight_decay": 0.0, **options}
    params = parameters(dtype, shapes=((5, 3), (3, 5), (8, 20), (20, 8), (6, 6), (3, 5), (4, 1)))
    start = [host(p).astype(np.float64) for p in params]
    opt = optim.Muon(params, **given, eps=1e-15, bias_correction=True, adjust_lr_fn=adjustment)
    grads = gradients(params, 100)
    for g in grads:
        opt.step(g)
    known = {"beta" if name == "momentum" else name: value for name, value in given.items()}
    rms = 0.2 if adjustment == "match_rms_adamw" else None
    for i, p in enumerate(params):
        wanted = optax_muon(start[i], [host(g[i]).astype(np.float64) for g in grads], **known, rms=rms)
        np.testing.assert_allclose(host(p), wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("options", [{}, {"nesterov": False, "ns_steps": 4, "adjust_lr_fn": "match_rms_adamw"}], ids=str)
def test_bfloat16_is_torchs_rule(options: dict[str, Any]) -> None:
    """torch rounds after each product, too, so that both are that far from the exact rule. The weights move by about 0.5."""
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare the rule with")
    params = parameters(shapes=((16, 40), (24, 24), (40, 16), (16, 40)))
    theirs = [torch.nn.Parameter(torch.from_numpy(host(p).copy())) for p in params]
    given = {"lr": 0.01, "weight_decay": 0.1, **options}
    opt, reference = optim.Muon(params, **given, dtype="bfloat16"), torch.optim.Muon(theirs, **given)
    for grads in gradients(params, 100):
        opt.step(grads)
        for p, g in zip(theirs, grads):
            p.grad = torch.from_numpy(host(g).copy())
        reference.step()
    for p, q in zip(params, theirs):
        np.testing.assert_allclose(host(p), q.detach().numpy(), rtol=0, atol=2e-2)
        slot = reference.state[q]["momentum_buffer"].numpy()
        np.testing.assert_allclose(host(opt.slots(p)["momentum"]), slot, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_members_are_solo_runs(dtype: Any) -> None:
    members, rng = 64, np.random.default_rng(2)
    start = [rng.standard_normal((members, *s)).astype(np.float32) for s in ((4, 6), (4, 6), (9, 3), (5,), (12, 12))]
    options: dict[str, Any] = {
        "lr": rng.uniform(0.01, 0.1, members),
        "weight_decay": rng.uniform(0, 0.1, members),
        "eps": rng.uniform(1e-8, 1e-3, members),
        "momentum": rng.uniform(0.5, 0.99, members),
        "ns_coefficients": tuple([k - rng.uniform(0, 0.1, members) for k in COEFFICIENTS]),
    }
    betas = rng.uniform(0.5, 0.9, members)
    stacked = [pb.Parameter(x) for x in start]
    solo = [[pb.Parameter(x[m]) for x in start] for m in range(members)]
    together = optim.Muon(stacked, **options, auxiliary_options={"betas": (betas, 0.9)}, clip_norm=3.0, dtype=dtype)
    apart = []
    for m in range(members):
        own = {name: tuple([x[m] for x in value]) if isinstance(value, tuple) else value[m] for name, value in options.items()}
        apart.append(optim.Muon(solo[m], **own, auxiliary_options={"betas": (betas[m], 0.9)}, clip_norm=3.0, dtype=dtype))
    for _ in range(3):
        grads = [rng.standard_normal(p.shape).astype(np.float32) for p in stacked]
        together.step([pb.tensor(g) for g in grads])
        for m, opt in enumerate(apart):
            opt.step([pb.tensor(g[m]) for g in grads])
    for i, p in enumerate(stacked):
        assert np.isfinite(host(p)).all()
        for m in range(members):
            np.testing.assert_array_equal(host(p)[m], host(solo[m][i]))
    assert together.gradient_norm.tolist() == [opt.gradient_norm for opt in apart]


@needs_kernels
def test_a_captured_step_is_the_eager_one_and_new_values_need_no_recording() -> None:
    shapes = (*SHAPES, (7,), (2, 3, 4))
    made = [optim.Muon(parameters(shapes=shapes), lr=schedules.Cosine(0.1, 9), clip_norm=0.5, clip_value=0.1) for _ in range(2)]
    eager, captured = made
    step = pb.capture(lambda *grads: captured.step([*grads]))
    for k, grads in enumerate(gradients(eager.parameters, 8)):
        for opt in made:
            opt.weight_decay, opt.momentum, opt.eps = 0.01 * k, 0.9 - k / 20, 10.0 ** (k - 9)
            opt.ns_coefficients = (3.4 - k / 10, -4.7 + k / 10, 2.0)
            opt.auxiliary.lr, opt.auxiliary.betas = 0.01 / (k + 1), (0.9, 0.99 - k / 20)
        eager.step(grads)
        step(*grads)
    same_state(eager, captured)
    assert step.stats().captures == 1


@needs_kernels
def test_one_launch_multiplies_all_matrices_of_a_shape() -> None:
    counts = []
    for count in (1, 6):
        params = parameters(shapes=[(4, 6)] * count)
        opt = optim.Muon(params)
        with pb.profile() as prof:
            opt.step(gradients(params, 1)[0])
        counts.append({group.name: group.total.launches for group in prof.by("kernel")}["matmul"])
    assert counts[0] == counts[1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_weights_have_slots_of_float32(dtype: str) -> None:
    half = parameters(dtype)
    wide = [pb.Parameter(p.astype("float32")) for p in half]
    a, b = optim.Muon(half, lr=0.1), optim.Muon(wide, lr=0.1)
    (grads,) = gradients(half, 1)
    a.step(grads)
    b.step([g.astype("float32") for g in grads])
    for p, q in zip(half, wide):
        same(a.slots(p)["momentum"], b.slots(q)["momentum"])
        np.testing.assert_allclose(host(p).astype(np.float32), host(q), rtol=2e-2, atol=2e-3)


def test_tiny_gradients_are_divided_by_eps_and_zeros_stay() -> None:
    p = pb.Parameter(np.ones((2, 3), np.float32))
    opt = optim.Muon([p], lr=1.0, weight_decay=0.0, momentum=0.0, ns_coefficients=(2.0, 0.0, 0.0), ns_steps=2, eps=1e-3)
    opt.step([pb.zeros((2, 3))])
    np.testing.assert_array_equal(host(p), 1)
    opt.step([pb.full((2, 3), 1e-6)])
    np.testing.assert_allclose(host(p), 1 - 4e-3, rtol=1e-6)


def test_the_precision_of_a_step_does_not_depend_on_autocast() -> None:
    one, other = (optim.Muon(parameters()) for _ in range(2))
    (grads,) = gradients(one.parameters, 1)
    one.step(grads)
    with pb.amp.autocast("bfloat16"):
        other.step(grads)
    same_state(one, other)


def test_it_trains_a_network() -> None:
    pb.random.seed(0)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    opt = optim.Muon(net.parameters(), lr=0.02, weight_decay=0.0, auxiliary_options={"lr": 0.02})
    x = pb.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    y = pb.tensor([[0.0], [1.0], [1.0], [0.0]])
    losses = [float(opt.minimize(lambda: pb.mean((net(x) - y) ** 2))) for _ in range(150)]
    assert losses[-1] < 0.02 < losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adjust_lr_fn": "rms"}, "use None, 'original', 'match_rms_adamw'"),
        ({"dtype": "float16"}, "use 'float32', 'bfloat16'"),
        ({"ns_steps": 0}, "from 1 to 99"),
        ({"ns_steps": 100}, "from 1 to 99"),
        ({"ns_steps": 5.0}, "from 1 to 99"),
        ({"ns_coefficients": (1.0, 2.0)}, "tuple of"),
        ({"ns_coefficients": (1.0, math.nan, 1.0)}, "finite"),
        ({"momentum": 1.0}, r"in \[0, 1\)"),
        ({"momentum": -0.5}, "0 or more"),
        ({"weight_decay": -0.1}, "0 or more"),
        ({"eps": math.inf}, "finite"),
        ({"nesterov": 1}, "True or False"),
        ({"auxiliary": None}, r'"p8" of shape \(7,\) is no matrix'),
        ({"auxiliary": optim.Adafactor}, "one kernel computes"),
        ({"auxiliary": optim.ScheduleFreeSGD}, "one kernel computes"),
        ({"auxiliary": "adamw"}, "one kernel computes"),
        ({"auxiliary_options": {"momentum": 0.9}}, "it can have lr, betas, eps"),
        ({"auxiliary_options": {"clip_norm": 0.9}}, "clipping are given to Muon"),
        ({"auxiliary_options": 0.1}, "give a dict"),
        ({"auxiliary_options": {"betas": ([0.9, 0.8], 0.9)}}, "first axis|members"),
        ({"auxiliary_names": "p1"}, "a list of patterns"),
        ({"auxiliary_names": ["q*"]}, "names no parameter"),
        ({"auxiliary_names": ["*"]}, "no matrix among the parameters"),
        ({"groups": {"p8": {"momentum": 0.5}}}, "this group can have lr, lr_scale"),
        ({"groups": {"p1": {"betas": (0.5, 0.5)}}}, "has a value for betas"),
        ({"groups": {"p*": {"rho": 0.5}}}, "has a value for rho"),
    ],
)
def test_bad_values_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pb.PullbackError, match=message):
        optim.Muon(parameters(shapes=(*SHAPES, (7,))), **options)


def test_no_matrix_and_late_values_are_refused() -> None:
    with pytest.raises(pb.PullbackError, match="no matrix among the parameters"):
        optim.Muon(parameters(shapes=((3,), (2, 3, 4))))
    opt = optim.Muon(parameters())
    for name, value in {
        "momentum": 1.0,
        "ns_coefficients": (1.0, 2.0),
        "nesterov": False,
        "ns_steps": 3,
        "auxiliary": None,
    }.items():
        with pytest.raises((pb.PullbackError, AttributeError)):
            setattr(opt, name, value)
    assert opt.auxiliary is None
    assert "nesterov=True, ns_steps=5, adjust_lr_fn=None, dtype=float32;" in repr(opt)
