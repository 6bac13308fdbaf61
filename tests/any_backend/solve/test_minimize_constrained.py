"""pb.solve.augmented_lagrangian: published problems with constraints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb


def hs71(x: Any) -> Any:
    return x[0] * x[3] * (x[0] + x[1] + x[2]) + x[2]


def test_hs71_to_1e_8() -> None:
    result = pb.solve.augmented_lagrangian(
        hs71, np.array([1.0, 5.0, 5.0, 1.0]), ineq=[lambda x: pb.prod(x) - 25], eq=[lambda x: pb.sum(x * x) - 40], bounds=(1, 5)
    )
    assert result.success, result.message
    x = result.x.numpy()
    np.testing.assert_allclose(x, [1, 4.742999641809297, 3.8211499817883077, 1.3794082897556975], atol=1e-8)
    assert result.fun == pytest.approx(17.014017289178, abs=1e-8)
    assert result.maxcv <= 1e-8
    assert x[0] == 1
    np.testing.assert_allclose([result.eq[0].item(), result.ineq[0].item()], [0.16146857, 0.55229366], atol=1e-6)


def test_equalities_alone_and_arguments() -> None:
    p = pb.Parameter(np.array([2.0, 2.0]))  # HS6, moved by an argument
    result = pb.solve.augmented_lagrangian(
        lambda p, a: (a - p[0]) ** 2, p, eq=lambda p, a: 10 * (p[1] - p[0] ** 2), args={"a": 1.0}
    )
    assert result.success
    np.testing.assert_allclose(p.numpy(), [1, 1], atol=1e-7)


def test_inequalities_that_end_active_and_inactive() -> None:
    # HS22: two inequalities, both active; and one that is not
    result = pb.solve.augmented_lagrangian(
        lambda x: (x[0] - 2) ** 2 + (x[1] - 1) ** 2,
        np.array([2.0, 2.0]),
        ineq=[lambda x: pb.stack([2 - x[0] - x[1], x[1] - x[0] ** 2]), lambda x: 10 - x[0]],
    )
    assert result.success
    np.testing.assert_allclose(result.x.numpy(), [1, 1], atol=1e-8)
    np.testing.assert_allclose(result.ineq[0].numpy(), [2 / 3, 2 / 3], atol=1e-6)
    np.testing.assert_array_equal(result.ineq[1].numpy(), 0)


def test_float32() -> None:
    result = pb.solve.augmented_lagrangian(lambda x: pb.sum(x * x), pb.tensor([3.0, -1.0]), eq=lambda x: pb.sum(x) - 1, tol=1e-3)
    assert result.success
    assert result.x.dtype == pb.float32
    np.testing.assert_allclose(result.x.numpy(), 0.5, atol=1e-3)


def test_constraints_that_contradict_each_other_are_told() -> None:
    result = pb.solve.augmented_lagrangian(
        lambda x: pb.sum(x * x), np.array([0.5]), eq=[lambda x: x - 1, lambda x: x - 2], maxiter=30
    )
    assert not result.success
    assert result.maxcv > 0.4


def test_no_constraints_is_a_plain_minimisation() -> None:
    result = pb.solve.augmented_lagrangian(lambda x: pb.sum((x - 1) ** 2), np.zeros(3), bounds=(None, 0.5))
    assert result.success
    np.testing.assert_array_equal(result.x.numpy(), 0.5)


def test_a_constraint_that_is_not_finite_at_the_start_is_named() -> None:
    f = lambda x: pb.sum(x * x)
    good, bad = lambda x: x, lambda x: pb.log(x - 1.5)
    cases: list[tuple[str, Any]] = [
        ("ineq", {"ineq": bad}), ("eq", {"eq": bad, "ineq": good}), (r"ineq\[1\]", {"ineq": [good, bad]}),
    ]
    for name, given in cases:
        with pytest.raises(pb.ArgumentError, match=rf"^augmented_lagrangian: the constraint {name} is nan at the start"):
            pb.solve.augmented_lagrangian(f, [1.0, 1.0], **given)
    with pytest.raises(pb.ArgumentError, match="the loss is nan at the start"):
        pb.solve.augmented_lagrangian(lambda x: pb.sum(pb.log(x - 5)), [1.0, 1.0], ineq=good)


def test_a_constraint_that_returns_a_comparison_is_named() -> None:
    f = lambda x: pb.sum(x * x)
    cases: list[tuple[str, Any]] = [("ineq", {"ineq": lambda x: x[0] > 1}), ("eq", {"eq": lambda x: bool(x[0].item() == 1)})]
    for name, given in cases:
        with pytest.raises(pb.DTypeError, match=rf"^augmented_lagrangian: {name} returned a bool.*x\[0\] - 1 for"):
            pb.solve.augmented_lagrangian(f, [1.0, 1.0], **given)
    pytest.importorskip("scipy.optimize")
    constraint = {"type": "ineq", "fun": lambda x: x[0] > 1}
    with pytest.raises(pb.DTypeError, match=r"^minimize: fun of a constraint returned a bool"):
        pb.solve.minimize(f, [1.0, 1.0], "scipy:SLSQP", constraints=constraint).result()
