"""Rules that torch.optim does not have, the table of rules, and rules that a user writes."""

from __future__ import annotations

import math
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
from test_optim import gradients, parameters

import pullback as pb
from captured_step import needs_kernels
from conftest import ROOT, host
from pullback import backends, optim
from pullback.launch import door
from pullback.optim._counts import UPDATE_COUNTS
from update_rules import RULES, lion


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("fused", [True, False])
def test_lion_is_the_papers_update(dtype: str, tolerance: float, weight_decay: float, fused: bool) -> None:
    """Each of the 100 steps rounds a float32 weight below 1/8 by less than 4e-9."""
    rng = np.random.default_rng(1)
    params = [pb.Parameter(rng.uniform(-0.11, 0.11, shape).astype(dtype)) for shape in ((40, 30), (7,), ())]
    opt = optim.Lion(params, weight_decay=weight_decay)
    if not fused:
        opt._native = None
    grads = [[rng.standard_normal(p.shape).astype(dtype) for p in params] for _ in range(100)]
    wanted = [
        lion(p.numpy().astype(np.float64), [g[i].astype(np.float64) for g in grads], weight_decay=weight_decay)[-1]
        for i, p in enumerate(params)
    ]
    for g in grads:
        opt.step([pb.asarray(x) for x in g])
    for p, q in zip(params, wanted):
        np.testing.assert_allclose(p.numpy(), q, rtol=0, atol=tolerance)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_lion_rests_without_a_gradient_and_keeps_nan(dtype: str, fused: bool) -> None:
    p = pb.Parameter([1.0, 1.0, 1.0, 1.0, 1.0], dtype=dtype)
    opt = optim.Lion([p], lr=0.5)
    if not fused:
        opt._native = None
    opt.step([pb.tensor([0.0, -0.0, math.nan, 3.0, -math.inf], dtype=dtype)])
    np.testing.assert_array_equal(p.numpy().astype(np.float64), [1.0, 1.0, math.nan, 0.5, 1.5])


def test_lion_counts_the_flops_of_its_formula() -> None:
    """Per weight: one multiplication clips, six operations make the two means, three the delta, and one adds it to the weight."""
    opt, g, found = optim.Lion([pb.Parameter(np.ones(10))]), pb.ones(10, dtype="float64"), []
    for _ in range(2):
        with pb.profile(strict=True) as prof:
            opt.step([g])
        found.append((prof.optimizer.flops, prof.optimizer.special_ops, prof.coverage, [x.kernel for x in prof.launches]))
        opt._native = None
    assert found[0] == found[1] == (110, 0, 1.0, ["lion_step"])


def kernel_of(rule: str) -> str:
    cls, options = RULES[rule]
    return cls(parameters(), **options).kernel


def test_every_row_is_the_kernel_of_an_optimizer_that_tests_run_on() -> None:
    """add_step is the last launch of rules that several launches compute."""
    assert {kernel_of(rule) for rule in RULES} == set(UPDATE_COUNTS) - {"add_step"}
    kinds = [kind for kind in vars(optim).values() if isinstance(kind, type) and issubclass(kind, optim.Optimizer)]
    assert {cls for cls, _ in RULES.values()} == {kind for kind in kinds if kind is not optim.Optimizer and not kind.composed}


def test_the_page_of_rules_is_true() -> None:
    """A float32 weight is read and written, its gradient read, and each slot read and written: 4 bytes each."""
    page = (ROOT / "docs" / "optimizers.md").read_text(encoding="utf-8")
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if "_step` |" in line]
    rows = {cells[0].strip("`"): (cells[1], int(cells[3]), tuple(map(int, cells[4].split(",")))) for cells in table}
    assert set(rows) == set(UPDATE_COUNTS)
    for rule, (cls, options) in RULES.items():
        opt = cls(parameters(), **options)
        slots, moved, counts = rows[kernel_of(rule)]
        assert slots == ", ".join(opt.slot_names)
        assert counts == UPDATE_COUNTS[opt.kernel][:3]
        assert moved == 12 + 8 * len(opt.slot_names)


def test_a_rule_is_named_where_its_struct_its_row_and_its_class_are() -> None:
    if shutil.which("git") is None:
        pytest.skip("git, which searches the sources, is not installed")
    derived = [":!*.pyi", ":!*_counts.py"]
    command = ["git", "grep", "-lwiE", "lion(_step)?", "--", "csrc", "python/pullback", *derived]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode > 1:
        pytest.skip(f"not a git checkout: {found.stderr.strip()}")
    assert found.stdout.split() == ["csrc/math/update.def", "csrc/math/update.h", "python/pullback/optim/rules.py"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_costs_are_those_that_the_kernels_counted(device: str) -> None:
    if reason := backends.why_not(device):
        pytest.skip(reason)
    assert backends.kernels_on(device).update_counts == UPDATE_COUNTS


# ---- rules that a user writes


class Signs(optim.Optimizer):
    """A user's rule without a kernel, whose formula contains comparisons."""

    slot_names = ("last",)

    def formula(self, p: Any, g: Any, slots: Any, h: Any) -> Any:
        same = (slots[0] > 0) == (g > 0)
        return -h.lr * np.where(same & (g != 0), g, np.sign(g)) - 0.0 * p, (abs(g),)


def test_a_rule_without_a_kernel_trains_and_is_named_among_unknown_costs() -> None:
    p = pb.Parameter(np.array([1.0, -2.0, 3.0]))
    opt = Signs([p], 0.5, clip_norm=1e9)
    with pb.profile() as prof:
        opt.step([pb.tensor(np.array([4.0, -4.0, 0.0]))])
        opt.preview([pb.tensor(np.array([4.0, -4.0, 0.0]))])
        opt.step([pb.tensor(np.array([4.0, -4.0, 0.0]))])
    np.testing.assert_allclose(host(p), [-1.5, 0.5, 3.0], rtol=1e-15)
    assert prof.unknown == {"Signs": 3}
    assert 0 < prof.coverage < 1
    assert [x.kernel for x in prof.launches if x.phase == door.OPTIMIZER and x.known] == ["clip_norm"] * 3
    with pytest.raises(pb.PullbackError, match="Signs"), pb.profile(strict=True):
        opt.step([pb.ones(3, dtype="float64")])


def test_slots_of_a_rule_without_a_kernel_may_change_places() -> None:
    class Swaps(optim.Optimizer):
        slot_names = ("a", "b")

        def formula(self, p: Any, g: Any, slots: Any, h: Any) -> Any:
            return -h.lr * slots[0], (slots[1] + g, slots[0])

    p, q = pb.Parameter(np.array([1.0, 2.0])), pb.Parameter(np.array(3.0))
    opt = Swaps([p, q], 0.5)
    for k in (1.0, 2.0, 4.0):
        opt.step([k * pb.ones(2, dtype="float64"), pb.tensor(np.array(k))])
    assert [opt.slots(x)[name].numpy().tolist() for x in (p, q) for name in "ab"] == [[5.0, 5.0], [2.0, 2.0], 5.0, 2.0]
    np.testing.assert_array_equal(host(p), [-0.5, 0.5])  # 1 - 0.5 * (0 + 1 + 2)


@pytest.mark.parametrize(
    ("formula", "error"),
    [
        (lambda p, g: (g, ()), r"Wrong: the formula returned 1 value\(s\)"),
        (lambda p, g: (pb.sum(g), (g,)), r"Wrong: the formula returned the change of shape \(\) for weights of shape \(3,\)"),
        (lambda p, g: (pb.sign(g), (g[:2],)), r"Wrong: the formula returned last of shape \(2,\) for weights of shape \(3,\)"),
    ],
)
def test_a_formula_that_does_not_fit_changes_nothing(formula: Any, error: str) -> None:
    class Wrong(optim.Optimizer):
        slot_names = ("last",)

        def formula(self, p: Any, g: Any, slots: Any, h: Any) -> Any:
            return formula(p, g)

    p = pb.Parameter(np.array([1.0, -2.0, 3.0]))
    with pytest.raises(pb.PullbackError, match=error):
        Wrong([p], 0.5).step([pb.ones(3, dtype="float64")])
    np.testing.assert_array_equal(host(p), [1.0, -2.0, 3.0])


@pytest.mark.parametrize("name", ["change", "advance"])
def test_a_rule_that_changes_its_slots_in_place_is_refused(name: str) -> None:
    with pytest.raises(pb.PullbackError, match=rf"Old\.{name}: .*Define formula\(self, p, g, slots, h\)"):
        type("Old", (optim.Adam,), {name: lambda self, *given: None})


@pytest.mark.parametrize("rule", RULES)
def test_formulas_of_rules_with_kernels_are_ops_of_tensors(rule: str) -> None:
    """A subclass without the kernel computes the same formula by ops."""
    cls, options = RULES[rule]

    class ByOps(cls):
        def formula(self, p: Any, g: Any, slots: Any, h: Any) -> Any:
            tensors = [pb.tensor(x) for x in (p, g, *slots)]
            change, new = super().formula(*tensors[:2], tensors[2:], h)
            assert {type(x) for x in (change, *new)} == {pb.Tensor}
            return change, new

    results = []
    for kind in (cls, ByOps):
        params = parameters(dtype="float64")
        opt = kind(params, **options)
        for k in range(3):
            opt.step(gradients(params, k))
        results.append([host(x) for p in params for x in (p, *opt.slots(p).values())])
    for got, wanted in zip(*results):
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-14)


@needs_kernels
def test_a_rule_without_a_kernel_is_refused_in_a_capture() -> None:
    opt = Signs([pb.Parameter([1.0])], 0.5)
    with pytest.raises(pb.CaptureError, match=r"without a native kernel.*call step\(\) outside"):
        pb.capture(lambda: opt.step([pb.ones(1)]))()


def test_a_subclass_with_another_formula_does_not_run_the_kernel_of_its_base() -> None:
    class Backwards(optim.Adam):
        def formula(self, p: Any, g: Any, slots: Any, h: Any) -> Any:
            change, new = super().formula(p, g, slots, h)
            return -change, new

    class Renamed(optim.Adam):
        pass

    deltas = {}
    for cls in (optim.Adam, Backwards, Renamed):
        params = parameters(dtype="float64")
        with pb.profile() as prof:
            deltas[cls] = cls(params, weight_decay=0.1).step(gradients(params, 0), return_delta=True)
        assert prof.unknown == ({"Backwards": 1} if cls is Backwards else {})
    for one, other, third in zip(*deltas.values()):
        np.testing.assert_allclose(host(one), -host(other), rtol=1e-12)
        assert (host(one) == host(third)).all()


@needs_kernels
def test_a_kernel_that_does_not_exist_is_refused_when_the_optimizer_is_made() -> None:
    class Misspelt(optim.Adam):
        kernel = "adaam_step"

    with pytest.raises(pb.PullbackError, match=r"there is no kernel 'adaam_step'.*update\.def"):
        Misspelt([pb.Parameter([1.0])])
