"""least_squares: minima, bounds, losses and results as SciPy's, batches of problems, and what is refused in words."""

import numpy as np
import pytest
import scipy.optimize

import pullback as pb
from pullback.solve import least_squares

FLOATS = (pb.float32, pb.float64)


def rosenbrock(x):
    return pb.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])


def curve(x, t, y):
    return x[0] * pb.exp(-x[1] * t) + x[2] - y


def data(seed=0, count=40, outliers=0):
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 4, count)
    y = 2.0 * np.exp(-1.3 * t) + 0.5 + 0.02 * rng.standard_normal(count)
    y[rng.permutation(count)[:outliers]] += 3.0
    return t, y


def scipy_fit(t, y, **options):
    def f(x):
        return x[0] * np.exp(-x[1] * t) + x[2] - y

    options = {"ftol": 1e-14, "xtol": 1e-14, "gtol": 1e-14} | options
    return scipy.optimize.least_squares(f, [1.0, 1.0, 0.0], jac="3-point", **options)


@pytest.mark.parametrize("dtype", [pb.float16, pb.bfloat16], ids=str)
def test_half_precision(dtype) -> None:
    for batch in (False, True):
        found = least_squares(rosenbrock, pb.tensor([[-1.2, 1.0]] if batch else [-1.2, 1.0], dtype=dtype), batch=batch)
        assert found.x.dtype == dtype
        np.testing.assert_allclose(found.x.astype(pb.float64).numpy().reshape(-1), [1, 1], atol=0.05)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rosenbrock(dtype) -> None:
    found = least_squares(rosenbrock, pb.tensor([-1.2, 1.0], dtype=dtype))
    assert found.success
    assert found.x.dtype == dtype
    np.testing.assert_allclose(found.x.numpy(), [1, 1], rtol=1e-4 if dtype == pb.float32 else 1e-9)
    assert found.cost < (1e-8 if dtype == pb.float32 else 1e-18)


def test_result_has_the_fields_of_scipy() -> None:
    t, y = data()
    found = least_squares(curve, [1.0, 1.0, 0.0], args=(t, y))
    wanted = scipy_fit(t, y)
    assert set(wanted) == set(found)
    np.testing.assert_allclose(found.x.numpy(), wanted.x, rtol=1e-6)
    np.testing.assert_allclose(found.cost, wanted.cost, rtol=1e-9)
    np.testing.assert_allclose(found.fun.numpy(), wanted.fun, atol=1e-6)
    np.testing.assert_allclose(found.jac.numpy(), wanted.jac, atol=1e-5)
    np.testing.assert_allclose(found.grad.numpy(), found.jac.numpy().T @ found.fun.numpy(), atol=1e-12)
    assert found.optimality == pytest.approx(np.abs(found.grad.numpy()).max())
    assert found["status"] == found.status > 0
    assert found.success
    assert "termination" in found.message
    assert found.active_mask.tolist() == [0, 0, 0]
    assert "active_mask" in repr(found)


@pytest.mark.parametrize("loss", ["linear", "soft_l1", "huber", "cauchy", "arctan"])
def test_losses_are_those_of_scipy(loss) -> None:
    t, y = data(outliers=6)
    found = least_squares(curve, [1.0, 1.0, 0.0], args=(t, y), loss=loss, f_scale=0.1, ftol=1e-14, xtol=1e-14, gtol=1e-14)
    wanted = scipy_fit(t, y, loss=loss, f_scale=0.1)
    np.testing.assert_allclose(found.cost, wanted.cost, rtol=1e-8)
    np.testing.assert_allclose(found.x.numpy(), wanted.x, rtol=1e-5)
    np.testing.assert_allclose(found.grad.numpy(), 0, atol=1e-6)


@pytest.mark.parametrize("bounds", [([-2.0, -1.0], [0.5, 3.0]), ([-2, 1.0], [2.0, 3.0]), (-1.5, 0.8), (None, [0.0, 2.0])], ids=str)
def test_bounds(bounds) -> None:
    x0 = [-1.2, 1.0] if bounds != (-1.5, 0.8) else [-1.2, 0.5]
    seen = []

    def watched(x):
        seen.append(x.numpy())
        return rosenbrock(x)

    found = least_squares(watched, x0, bounds=bounds)
    low, high = [np.broadcast_to(b if b is not None else -np.inf, 2).astype(float) for b in bounds]
    wanted = scipy.optimize.least_squares(lambda x: [10 * (x[1] - x[0] ** 2), 1 - x[0]], x0, bounds=(low, high))
    np.testing.assert_allclose(found.cost, wanted.cost, rtol=1e-6, atol=1e-12)
    assert all([(low <= x).all() and (x <= high).all() for x in seen]), "no residual is computed outside of the bounds"
    x = found.x.numpy()
    assert found.active_mask.tolist() == [int(b == h) - int(b == lo) for b, lo, h in zip(x, low, high)]  # met exactly


def test_bounds_and_a_loss_together() -> None:
    t, y = data(outliers=6)
    bounds = ([1.9, 0.0, 0.55], [3.0, 1.2, 1.0])
    found = least_squares(curve, [2.0, 1.0, 0.6], (t, y), bounds, loss="soft_l1", f_scale=0.1, ftol=1e-12, xtol=1e-12, gtol=1e-12)

    def f(x):
        return x[0] * np.exp(-x[1] * t) + x[2] - y

    wanted = scipy.optimize.least_squares(f, [2.0, 1.0, 0.6], bounds=bounds, loss="soft_l1", f_scale=0.1, ftol=1e-14, xtol=1e-14)
    np.testing.assert_allclose(found.cost, wanted.cost, rtol=1e-6)
    np.testing.assert_allclose(found.x.numpy(), wanted.x, rtol=1e-3)
    assert found.active_mask.tolist() == wanted.active_mask.tolist()


@pytest.mark.parametrize("seed", range(12))
def test_random_problems_reach_a_minimum_within_their_bounds(seed) -> None:
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(1, 6)), int(rng.integers(1, 10))
    a, b, c = [pb.tensor(rng.standard_normal(shape)) for shape in ((m, n), (m, n), (m,))]
    x0 = rng.standard_normal(n)
    low, high = x0 - rng.uniform(0, 0.6, n), x0 + rng.uniform(0.01, 0.6, n)
    loss = ["linear", "soft_l1", "huber", "cauchy", "arctan"][seed % 5]

    def f(x):
        return pb.tanh(a @ x) + 0.3 * pb.square(b @ x) - c

    found = least_squares(f, pb.tensor(x0), bounds=(low, high), loss=loss, f_scale=0.5)
    x, g = found.x.numpy(), found.grad.numpy()
    assert found.success
    assert (low <= x).all()
    assert (x <= high).all()
    assert np.abs(x - np.clip(x - g, low, high)).max() < 1e-4  # the condition of a minimum within bounds
    start = least_squares(f, pb.tensor(x0), bounds=(low, high), loss=loss, f_scale=0.5, max_nfev=1)
    assert found.cost <= start.cost


def test_fewer_residuals_than_unknowns() -> None:
    found = least_squares(lambda x: pb.sum(x) - 3, [0.0, 0.0, 0.0])
    np.testing.assert_allclose(found.x.numpy(), [1, 1, 1], atol=1e-7)
    assert found.jac.shape == (1, 3)


def test_an_unknown_that_nothing_depends_on_stays() -> None:
    found = least_squares(lambda x: x[:1] ** 2 - 4, [1.0, 7.0])
    np.testing.assert_allclose(found.x.numpy(), [2, 7], rtol=1e-7)


def test_unknowns_in_a_dict() -> None:
    t, y = data()
    x0 = {"size": pb.tensor(1.0, dtype=pb.float64), "rest": pb.tensor([1.0, 0.0], dtype=pb.float64)}

    def f(x, t, y):
        assert x["rest"].shape == (2,)
        return {"left": (x["size"] * pb.exp(-x["rest"][0] * t) + x["rest"][1] - y).reshape(4, -1), "one": x["size"] * 0}

    found = least_squares(f, x0, (t, y), bounds=({"size": 0.0, "rest": [0.0, -1.0]}, None))
    wanted = scipy_fit(t, y).x
    np.testing.assert_allclose(float(found.x["size"]), wanted[0], rtol=1e-6)
    np.testing.assert_allclose(found.x["rest"].numpy(), wanted[1:], rtol=1e-6)
    assert found.jac.shape == (41, 3)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
@pytest.mark.parametrize("capture", [False, True])
def test_both_modes_and_capture_find_the_same(mode, capture) -> None:
    t, y = data()
    t, y = pb.tensor(t), pb.tensor(y)
    found = least_squares(curve, [1.0, 1.0, 0.0], (t, y), mode=mode, capture=capture)
    plain = least_squares(curve, [1.0, 1.0, 0.0], (t, y), mode=mode)
    np.testing.assert_array_equal(found.x.numpy(), plain.x.numpy())
    np.testing.assert_allclose(found.x.numpy(), scipy_fit(t.numpy(), y.numpy()).x, rtol=1e-5)


def test_x_scale_and_max_nfev() -> None:
    scaled = least_squares(lambda x: rosenbrock(x / pb.tensor([1.0, 1e4])), [-1.2, 1e4], x_scale=[1.0, 1e4])
    np.testing.assert_allclose(scaled.x.numpy(), [1, 1e4], rtol=1e-8)
    short = least_squares(rosenbrock, [-1.2, 1.0], max_nfev=3)
    assert short.status == 0
    assert not short.success
    assert short.nfev == 3
    assert "maximum number" in short.message


def test_a_residual_that_overflows_at_a_step_is_a_shorter_step() -> None:
    found = least_squares(lambda x: pb.log(x) + 3, [4.0])
    np.testing.assert_allclose(found.x.numpy(), [np.exp(-3)], rtol=1e-7)


def test_a_minimum_that_is_the_start() -> None:
    found = least_squares(rosenbrock, [1.0, 1.0])
    assert found.status == 1
    assert found.nfev == 1
    assert found.cost == 0


def test_tapes_around_a_solve_are_told_nothing_of_its_iterations() -> None:
    with pb.GradientTape(persistent=True) as tape:
        x0 = pb.tensor([-1.2, 1.0], dtype=pb.float64)
        tape.watch(x0)
        least_squares(rosenbrock, x0)
    assert len(tape.nodes) == 0


# ---- a batch


def problems(count=300):
    rng = np.random.default_rng(3)
    t = np.linspace(0, 4, 20)
    true = np.stack([rng.uniform(1, 3, count), rng.uniform(0.5, 2, count), rng.uniform(-1, 1, count)], 1)
    y = true[:, :1] * np.exp(-true[:, 1:2] * t) + true[:, 2:] + 0.01 * rng.standard_normal((count, 20))
    return pb.tensor(t), pb.tensor(y)


@pytest.mark.parametrize("loss", ["linear", "cauchy"])
@pytest.mark.parametrize("bounds", [None, ([0.0, 0.0, -0.5], [2.5, 3.0, 0.5])], ids=["free", "bounded"])
def test_a_batch_finds_what_each_problem_finds(loss, bounds) -> None:
    t, y = problems(12)
    x0 = pb.tensor(np.tile([1.0, 1.0, 0.0], (12, 1)))
    strict = {"loss": loss, "f_scale": 0.5, "bounds": bounds, "ftol": 1e-13, "xtol": 1e-13, "gtol": 1e-13}
    found = least_squares(lambda x, y: curve(x, t, y), x0, (y,), batch=True, **strict)
    assert found.success.all()
    assert found.x.shape == (12, 3)
    assert found.jac.shape == (12, 20, 3)
    for k in (0, 5, 11):
        one = least_squares(lambda x, y: curve(x, t, y), x0[k], (y[k],), **strict)
        np.testing.assert_allclose(float(found.cost[k]), one.cost, rtol=1e-7)
        np.testing.assert_allclose(found.x[k].numpy(), one.x.numpy(), rtol=1e-4)
        assert found.active_mask[k].tolist() == one.active_mask.tolist()


def test_a_batch_in_several_blocks_and_dtypes() -> None:
    t, y = problems(300)
    for dtype in FLOATS:
        x0 = pb.tensor(np.tile([1.0, 1.0, 0.0], (300, 1)), dtype=dtype)
        found = least_squares(lambda x, y: curve(x, t.astype(x.dtype), y), x0, (y.astype(dtype),), batch=True)
        assert found.success.all()
        assert found.x.dtype == dtype
        assert float(pb.max(found.cost)) < 0.004


def test_a_member_that_diverges_is_told_and_stops_no_other() -> None:
    scale = pb.tensor([1.0, np.nan, 2.0, 0.0])
    found = least_squares(
        lambda x, s: pb.stack([s * (x[0] - 3), x[0] / s]), pb.ones((4, 1), dtype=pb.float64), (scale,), batch=True
    )
    assert found.success.tolist() == [True, False, True, False]
    assert found.status[1] == found.status[3] == -2
    assert "NaN" in found.message[1]
    np.testing.assert_allclose(found.x[0].numpy(), [1.5], rtol=1e-6)


def test_members_that_have_converged_are_not_computed_again() -> None:
    starts = np.array([[1.0, 1.0]] * 63 + [[-1.2, 1.0]])

    with pb.profile(detail="count") as prof:
        found = least_squares(rosenbrock, pb.tensor(starts), batch=True)
    with pb.profile(detail="count") as alone:
        least_squares(rosenbrock, pb.tensor(starts[63:]), batch=True)
    with pb.profile(detail="count") as done:
        least_squares(rosenbrock, pb.tensor(starts[:63]), batch=True)
    assert found.nfev.max() > 10
    assert prof.forward.flops <= 1.1 * (alone.forward.flops + done.forward.flops)


def test_many_unknowns_in_a_batch() -> None:
    rng = np.random.default_rng(0)
    a, y = pb.tensor(rng.standard_normal((5, 30, 12))), pb.tensor(rng.standard_normal((5, 30)))
    found = least_squares(lambda x, a, y: a @ x - y, pb.zeros((5, 12), dtype=pb.float64), (a, y), batch=True, gtol=1e-10)
    for k in range(5):
        wanted = np.linalg.lstsq(a[k].numpy(), y[k].numpy(), rcond=None)[0]
        np.testing.assert_allclose(found.x[k].numpy(), wanted, rtol=1e-6)


# ---- the profile


def test_the_solver_is_a_phase_of_its_own() -> None:
    t, y = data()
    with pb.profile(detail="count", strict=True) as prof:
        least_squares(curve, [1.0, 1.0, 0.0], (t, y))
    assert prof.solver.flops > 0
    assert prof.forward.flops > 0
    assert prof.coverage == 1
    assert "solver" in str(prof)
    assert {row.phase for row in prof.rows} >= {"solver", "forward"}
    with pb.profile(detail="count") as other:
        pb.exp(pb.tensor([1.0]))
    assert other.solver.launches == 0
    assert other.forward.launches == 1


# ---- what is refused


def test_bad_input_is_refused_in_words() -> None:
    f = rosenbrock
    for arguments, kind, words in (
        ({"bounds": ([2.0, 0], [1.0, 2])}, ValueError, "crossed: element 0"),
        ({"bounds": ([1.0, 0], [1.0, 2])}, ValueError, "are both 1"),
        ({"bounds": ([0.0, 0], [1.0, np.nan])}, ValueError, "NaN"),
        ({"bounds": ([0.0, 0], [1.0, 2])}, ValueError, "x0 is outside the bounds: element 0"),
        ({"bounds": [1.0]}, pb.ShapeError, "pair"),
        ({"bounds": [(0, 3), (0, 5)]}, ValueError, r"are both 0.*If these are pairs \(min, max\).*tuple\(zip\(\*pairs\)\)"),
        ({"bounds": [(0, None), (1, None)]}, ValueError, r"NaN.*If these are pairs \(min, max\)"),
        ({"bounds": [(5, 3), (1, 2)]}, ValueError, r"crossed.*If these are pairs \(min, max\)"),
        ({"bounds": ([1.0, 2, 3], None)}, pb.ShapeError, "does not fit"),
        ({"loss": "l1"}, pb.PullbackError, "soft_l1"),
        ({"f_scale": 0.0}, pb.PullbackError, "positive"),
        ({"ftol": -1.0}, ValueError, "ftol"),
        ({"ftol": None, "xtol": None, "gtol": None}, ValueError, "at least one"),
        ({"max_nfev": 0}, ValueError, "max_nfev"),
        ({"x_scale": "auto"}, ValueError, "jac"),
        ({"x_scale": [1.0, -1.0]}, ValueError, "positive"),
        ({"x_scale": [1.0, 1.0, 1.0]}, pb.ShapeError, "x_scale"),
    ):
        with pytest.raises(kind, match=words):
            least_squares(f, [-1.2, 1.0], **arguments)


def test_bad_starts_are_refused_in_words() -> None:
    for x0, kind, words in (
        ([1, 2], pb.DTypeError, "1.0, 2.0"),
        (pb.tensor([1, 2]), pb.DTypeError, "int64"),
        ([1j, 2.0], pb.DTypeError, "complex"),
        (np.array([1j, 2.0]), pb.DTypeError, "complex"),
        ([], pb.ShapeError, "empty"),
        (pb.zeros((0,)), pb.ShapeError, "no elements"),
        ([np.nan, 1.0], ValueError, "element 0 of x0 is nan"),
    ):
        with pytest.raises(kind, match=words):
            least_squares(rosenbrock, x0)


def test_bad_residuals_are_refused_in_words() -> None:
    lengths = iter([3, 3, 3, 2, 2, 2])
    for f, kind, words in (
        (lambda x: pb.stack([x[0], pb.log(x[1] - 1), x[1]]), ValueError, "residual 1 is -inf at x0"),
        (lambda x: pb.tensor([1j]), pb.DTypeError, "complex"),
        (lambda x: np.array([1j, 2]), pb.DTypeError, "complex"),
        (lambda x: None, pb.PullbackError, "return"),
        (lambda x: x > 0, pb.DTypeError, "floating-point"),
        (lambda x: x[:0], ValueError, "no residuals"),
        (lambda x: pb.concat([x, x])[: next(lengths)], pb.ShapeError, "must not depend on x"),
        (3.0, TypeError, "residual_fn is a float; it must be a function"),
    ):
        with pytest.raises(kind, match=words):
            least_squares(f, [2.0, 1.0])


def test_numbers_and_lists_of_them_are_the_same_for_every_problem_and_arrays_are_not() -> None:
    for given, wanted in (([1.0, 2.0, 3.0], [2.0] * 3), (np.array([1.0, 2.0, 3.0]), [1.0, 2.0, 3.0]), (4.0, [4.0] * 3)):
        found = least_squares(
            lambda x, a: pb.stack([x[0] - a]) if isinstance(a, float) else x - a, np.zeros((3, 1)), (given,), batch=True
        )
        np.testing.assert_allclose(found.x.numpy()[:, 0], wanted, atol=1e-8)


@pytest.mark.parametrize(("loss", "slope"), [("cauchy", lambda z: 1 / (1 + z)), ("soft_l1", lambda z: 1 / np.sqrt(1 + z))])
def test_jac_is_not_scaled_by_a_robust_loss(loss, slope) -> None:
    t, y = np.linspace(0, 1, 6), np.array([0.1, 0.3, 0.2, 0.9, 5.0, 1.1])
    found = least_squares(lambda x, t, y: x[0] + x[1] ** 2 * t - y, [0.5, 0.7], (t, y), loss=loss, f_scale=0.4, max_nfev=3)
    r, x = found.fun.numpy(), found.x.numpy()
    np.testing.assert_allclose(found.jac.numpy(), np.stack([np.ones(6), 2 * x[1] * t], axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.grad.numpy(), found.jac.numpy().T @ (slope((r / 0.4) ** 2) * r), rtol=1e-9, atol=1e-12)


def test_bad_batches_are_refused_in_words() -> None:
    x0 = pb.ones((4, 2))
    with pytest.raises(pb.ShapeError, match=r"x0, of shape \(4, 2\), is that of 4 problems.* has shape \(3, 2\)"):
        least_squares(lambda x, y: x - y, x0, (pb.ones((3, 2)),), batch=True)
    with pytest.raises(pb.ShapeError, match="leading axis"):
        least_squares(lambda x: x, [pb.ones(4), pb.tensor(1.0)], batch=True)
    with pytest.raises(pb.ShapeError, match="no elements"):
        least_squares(lambda x: x, pb.zeros((2, 0)), batch=True)
    with pytest.raises(ValueError, match="problem 2 is outside"):
        least_squares(lambda x: x, x0.at[2, 0].set(9.0), bounds=(0.0, 2.0), batch=True)
    with pytest.raises(pb.VmapError, match="batch=True"):
        pb.vmap(lambda x: least_squares(lambda z: z - x, x).x)(x0)


def test_a_steep_line_is_solved() -> None:
    found = pb.solve.least_squares(lambda x: 1e20 * (x - 3), pb.tensor([0.0], dtype="float64"))
    assert (found.x.tolist(), found.success) == ([3.0], True)
