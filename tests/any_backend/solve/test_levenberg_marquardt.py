"""LevenbergMarquardt: its steps, its damping, its systems, bounds and losses, and what is refused in words."""

import numpy as np
import pytest

import pullback as pb
from pullback import nn
from pullback.solve import LevenbergMarquardt
from pullback.solve.normal import Launches, Normal


def rosenbrock(p):
    return lambda: pb.stack([10 * (p[1] - p[0] ** 2), 1 - p[0]])


def start(dtype=pb.float64):
    return pb.Parameter([-1.2, 1.0], dtype=dtype)


def sine_net(dtype=pb.float64):
    pb.random.seed(0)
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)).to(dtype)
    x = pb.tensor(np.linspace(-np.pi, np.pi, 256)[:, None], dtype=dtype)
    return net, x, pb.sin(x)


@pytest.mark.parametrize(
    "options", [{}, {"scaling": "columns"}, {"geodesic": True}, {"solver": "qr"}, {"solver": "cg"}, {"solver": "cholesky"}], ids=str
)
def test_rosenbrock(options) -> None:
    p = start()
    lm, infos = LevenbergMarquardt([p], **options), []
    while (not infos or infos[-1].cost >= 1e-20) and len(infos) < 60:
        infos.append(lm.step(rosenbrock(p)))
    assert infos[-1].cost < 1e-20
    assert sum([info.accepted for info in infos]) <= 30
    assert [info.previous_cost for info in infos[1:]] == [info.cost for info in infos[:-1]]
    dampings = np.array([info.damping for info in infos])
    assert (np.diff(dampings) < 0).any()
    assert (np.diff(dampings) > 0).any() or max([info.trials for info in infos]) > 1


@pytest.mark.parametrize(("dtype", "options"), [(pb.float64, {}), (pb.float64, {"per_example": True}), (pb.float32, {})], ids=str)
def test_a_network_learns_the_sine(dtype, options) -> None:
    net, x, y = sine_net(dtype)
    lm = LevenbergMarquardt(net, **options)

    def f(x, y):
        return net(x) - y

    steps, info = 1, lm.step(f, x, y)
    while 2 * info.cost / 256 >= 1e-6 and steps < 100:
        steps, info = steps + 1, lm.step(f, x, y)
    assert steps < 30
    assert info.solver == "dual cholesky"
    assert float(nn.mse(net(x), y)) < 1e-6


def test_a_rejected_step_leaves_the_parameters_as_they_are() -> None:
    p = start()
    lm = LevenbergMarquardt([p], damping=1e-9, trials=1)
    rejected = 0
    for _ in range(40):
        before, damping = p.numpy(), lm.damping
        info = lm.step(rosenbrock(p))
        assert info.accepted == (info.cost < info.previous_cost)
        if not info.accepted:
            rejected += 1
            assert p.numpy().tobytes() == before.tobytes()
            assert info.damping > damping or info.cost == 0
    assert 0 < rejected < 30
    assert info.cost == 0
    assert lm.damping < 1e-6


LEAST_MIXED = 0.07190612238845583  # by scipy.optimize.least_squares


def mixed(p):  # the least cost is not zero
    return lambda: pb.stack([p[0] - 3.1, p[0] * p[1] - 2.7, p[1] ** 2 - 0.3])


def cost_in_float64(p):
    """Half the sum of squares of the residuals `mixed`, which are rounded to the Parameter's dtype, in NumPy."""
    x = p.numpy()
    c = [x.dtype.type(v) for v in (3.1, 2.7, 0.3)]
    return 0.5 * np.sum(np.square(np.array([x[0] - c[0], x[0] * x[1] - c[1], x[1] ** 2 - c[2]], np.float64)))


@pytest.mark.parametrize("dtype", [pb.float32, pb.float64], ids=str)
@pytest.mark.parametrize("options", [{}, {"solver": "qr"}, {"solver": "cg"}, {"scaling": "columns"}, {"geodesic": True}], ids=str)
def test_a_step_is_accepted_only_if_the_cost_falls(dtype, options) -> None:
    p = pb.Parameter([1.0, 2.0], dtype=dtype)
    lm, last = LevenbergMarquardt([p], **options), np.inf
    for _ in range(40):
        before, start = p.numpy(), cost_in_float64(p)
        assert start <= last
        info = lm.step(mixed(p))
        last = cost_in_float64(p)
        assert info.accepted == (last < start) == (p.numpy() != before).any()
        np.testing.assert_allclose([info.previous_cost, info.cost], [start, last], rtol=1e-14)
    assert last == pytest.approx(LEAST_MIXED, rel=100 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", [pb.float32, pb.float64], ids=str)
@pytest.mark.parametrize("solver", ["auto", "qr", "cg"])
def test_a_converged_or_dead_state_does_not_freeze_the_next_one(dtype, solver) -> None:
    x = pb.linspace(0.1, 1.7, 33, dtype=dtype)
    p = pb.Parameter([-1.0], dtype=dtype)
    lm = LevenbergMarquardt([p], solver=solver)

    def dead():
        return pb.relu(p * x) - x

    info = lm.step(dead)  # the derivative is zero
    assert (info.accepted, info.damping, info.cost, p.numpy().tolist()) == (False, 1e-3, info.previous_cost, [-1.0])
    for target in (1.0, 0.25):  # after many steps at a minimum whose cost is not zero
        p.assign(pb.tensor([0.5], dtype=dtype))

        def f():
            return pb.concat([dead() + (1 - target) * x, 0 * x + 0.3])  # noqa: B023

        for _ in range(60):
            lm.step(f)
        np.testing.assert_allclose(p.numpy(), [target], rtol=1e-3)
    lm.damping = 1e15
    p.assign(pb.tensor([0.5], dtype=dtype))
    for _ in range(25):  # the damping falls to a tenth at a time
        lm.step(dead)
    np.testing.assert_allclose(p.numpy(), [1.0], rtol=1e-3)


@pytest.mark.parametrize("solver", ["auto", "qr", "cg"])
def test_an_exact_fit_does_not_freeze_the_next_one(solver) -> None:
    """The rounding of the residuals, not that of their cost, ends an exact fit."""
    t = np.linspace(0, 1, 20)
    p = pb.Parameter([0.0, 0.0], dtype="float64")
    lm = LevenbergMarquardt([p], solver=solver)

    def f(y):
        return p[0] * pb.exp(-p[1] * t) - y

    for _ in range(30):
        info = lm.step(f, 2 * np.exp(-1.3 * t))
    assert info.cost < 1e-30
    assert lm.damping < 100
    for _ in range(11):
        lm.step(f, 3 * np.exp(-0.7 * t))
    np.testing.assert_allclose(p.numpy(), [3, 0.7], rtol=1e-9)


@pytest.mark.parametrize("dtype", [pb.float32, pb.float64], ids=str)
@pytest.mark.parametrize("options", [{}, {"solver": "qr"}, {"solver": "cg"}, {"scaling": "columns"}], ids=str)
def test_the_damping_has_the_unit_of_the_squared_jacobian(dtype, options) -> None:
    t = np.linspace(0, 1, 20, dtype=np.dtype(str(dtype)))
    costs = {}
    for unit in (2.0**-30, 1.0, 2.0**30):
        p = pb.Parameter([0.5, 0.2], dtype=dtype)
        lm = LevenbergMarquardt([p], **options)
        target = unit * (2 * np.exp(-1.3 * t) + 0.1 * np.cos(9 * t)).astype(t.dtype)
        for _ in range(12):
            info = lm.step(lambda p=p, unit=unit, target=target: unit * p[0] * pb.exp(-p[1] * t) - target)
        costs[unit] = info.cost / unit**2
    np.testing.assert_allclose(list(costs.values()), costs[1.0], rtol=1e-3 if dtype == pb.float32 else 1e-9)


@pytest.mark.filterwarnings("ignore::pullback.ZeroGradientWarning")
@pytest.mark.parametrize("options", [{}, {"solver": "cg"}, {"capture": True}], ids=str)
def test_residuals_that_ignore_the_parameters_are_told(options) -> None:
    x = pb.linspace(-1.0, 1.0, 20)
    lm = LevenbergMarquardt([pb.Parameter([1.0])], **options)
    with pytest.raises(pb.UnconnectedError, match=r"^LevenbergMarquardt: the value .* does not depend on the Parameters"):
        lm.step(lambda: x)


def test_attributes_are_checked_when_they_are_set() -> None:
    p = start()
    lm = LevenbergMarquardt([p], trials=1)
    for name, value, kind, words in (
        ("damping", -1, ValueError, "damping=-1 must be a positive number"),
        ("damping", float("nan"), ValueError, "damping=nan must be"),
        ("damping", "a", ValueError, "damping='a' must be"),
        ("solver", "foo", ValueError, "solver='foo' is none of"),
        ("trials", 0, ValueError, "trials=0 must be"),
        ("geodesic", "yes", TypeError, "geodesic='yes' must be True or False"),
        ("loss", "huber", pb.PullbackError, "LevenbergMarquardt.loss cannot be set: damping, .* and capture can"),
        ("dampning", 1.0, pb.PullbackError, "dampning cannot be set"),
    ):
        with pytest.raises(kind, match=words):
            setattr(lm, name, value)
    lm.damping, lm.solver, lm.per_example = 2, "qr", True
    assert (lm.damping, lm.solver) == (2.0, "qr")
    x = pb.linspace(1.0, 2.0, 8, dtype=pb.float64)
    for capture in (False, True):
        lm.capture = capture
        info = lm.step(lambda x: p * x, x)  # for one example: 2 residuals
        assert (info.accepted, info.solver) == (True, "qr")


def test_an_error_inside_a_trial_restores_the_parameters() -> None:
    p = start()
    before = p.numpy()

    def f():
        if (p.numpy() != before).any():  # in a trial
            raise KeyboardInterrupt
        return rosenbrock(p)()

    with pytest.raises(KeyboardInterrupt):
        LevenbergMarquardt([p]).step(f)
    assert p.numpy().tobytes() == before.tobytes()


def problem(m, n, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    a, y = rng.standard_normal((m, n)).astype(dtype), rng.standard_normal(m).astype(dtype)
    w, b = pb.Parameter(np.zeros((n - 2, 1), dtype)), pb.Parameter(np.zeros(2, dtype))
    ta, ty = pb.tensor(a), pb.tensor(y)

    def f():
        return (ta[:, : n - 2] @ w)[:, 0] + ta[:, n - 2 :] @ b - ty

    return a, y, [w, b], f


@pytest.mark.parametrize("solver", ["auto", "cholesky", "qr", "cg"])
@pytest.mark.parametrize(("m", "n"), [(30, 7), (7, 30), (200, 140), (5, 5)])
@pytest.mark.parametrize("scaling", ["none", "columns"])
def test_every_system_gives_the_damped_step(solver, m, n, scaling) -> None:
    if solver == "cg" and scaling == "columns":
        return
    a, y, parameters, f = problem(m, n)
    lm = LevenbergMarquardt(parameters, damping=0.5, solver=solver, scaling=scaling)
    lm.step(f)
    found = np.concatenate([p.numpy().reshape(-1) for p in parameters])
    squares = (a * a).sum(0)
    largest = squares.max()
    d = 0.5 * (squares if scaling == "columns" else largest * np.ones(n))
    if solver == "cg":  # whose damping is relative to an estimate
        np.testing.assert_array_less(0.5 * np.sum((a @ found - y) ** 2), 0.5 * np.sum(y * y))
        return
    wanted = np.linalg.solve(a.T @ a + np.diag(d), a.T @ y)
    np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-10)


def test_more_memory_than_a_block_is_computed_in_blocks(monkeypatch) -> None:
    from pullback.solve import dampened

    for m, n in ((150, 70), (200, 70)):  # by rows, and by columns
        found = []
        for whole in (dampened.WHOLE_BYTES, 0):
            monkeypatch.setattr(dampened, "WHOLE_BYTES", whole)
            _, _, parameters, f = problem(m, n)
            for loss in ("linear", "cauchy"):
                info = LevenbergMarquardt(parameters, loss=loss, f_scale=0.7).step(lambda f=f: pb.sin(f()) + f())
                assert info.accepted
            found.append(np.concatenate([p.numpy().reshape(-1) for p in parameters]))
        np.testing.assert_allclose(found[0], found[1], rtol=1e-9, atol=1e-12)


def test_a_normal_matrix_takes_the_memory_of_one_matrix() -> None:
    import tracemalloc

    rng = np.random.default_rng(0)
    n = 1200
    rows = rng.standard_normal((64, n))
    b = rng.standard_normal(n)
    tracemalloc.start()
    try:
        normal = Normal(n, Launches("cpu", np.float64))
        for _ in range(4):
            normal.add(rows)
        for damping in (1.0, 10.0):
            normal.factorise(damping)
            x = normal.solve(b)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 1.2 * (n * n + rows.size) * 8
    np.testing.assert_allclose(4 * rows.T @ (rows @ x) + 10 * x, b, rtol=1e-6, atol=1e-8)
    assert normal.quadratic(x) == pytest.approx(4 * np.sum((rows @ x) ** 2))


@pytest.mark.parametrize("m", [30, 4])
def test_bounds(m) -> None:
    _, _, parameters, f = problem(m, 7)
    lm = LevenbergMarquardt(parameters, bounds=(-0.05, [np.full((5, 1), 0.1), 0.02]))
    for _ in range(60):
        info = lm.step(f)
        x = np.concatenate([p.numpy().reshape(-1) for p in parameters])
        high = np.array([0.1] * 5 + [0.02] * 2)
        assert (x >= -0.05).all()
        assert (x <= high).all()
    gradient = np.concatenate([g.numpy().reshape(-1) for g in pb.grad(lambda _: 0.5 * pb.sum(f() ** 2))(parameters)])
    assert np.abs(x - np.clip(x - gradient, -0.05, high)).max() < 1e-6
    assert ((x == -0.05) | (x == high)).any()
    assert info.cost > 0


@pytest.mark.parametrize("loss", ["soft_l1", "huber", "cauchy", "arctan"])
def test_robust_losses(loss) -> None:
    a, y, parameters, _ = problem(60, 5)
    y[:6] += 20
    ta, ty = pb.tensor(a), pb.tensor(y)

    def g():
        return (ta[:, :3] @ parameters[0])[:, 0] + ta[:, 3:] @ parameters[1] - ty

    lm = LevenbergMarquardt(parameters, loss=loss, f_scale=0.5)
    for _ in range(60):
        info = lm.step(g)
    wanted = pb.solve.least_squares(lambda x: ta @ x - ty, pb.zeros(5, dtype=pb.float64), loss=loss, f_scale=0.5)
    assert info.cost == pytest.approx(wanted.cost, rel=1e-6)


def test_mini_batches_and_capture() -> None:
    net, x, y = sine_net()
    lm = LevenbergMarquardt(net, capture=True, per_example=True)

    def f(x, y):
        return net(x) - y

    for step in range(12):
        part = slice(step % 4, None, 4)
        info = lm.step(f, x[part], y[part])
    assert info.cost < 0.5
    assert float(nn.mse(net(x), y)) < 0.05


def test_captured_steps_are_the_eager_ones() -> None:
    found = []
    for capture in (False, True):
        net, x, y = sine_net()
        lm = LevenbergMarquardt(net, capture=capture)

        def f(x, y):
            return net(x) - y  # noqa: B023

        for _ in range(3):
            lm.step(f, x[:40], y[:40])
        found.append(np.concatenate([p.numpy().reshape(-1) for p in net.parameters()]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)


def test_flops_are_in_the_phases() -> None:
    p = start()
    lm = LevenbergMarquardt([p])
    with pb.profile(detail="count", strict=True) as prof:
        lm.step(rosenbrock(p))
    assert prof.solver.flops > 0
    assert prof.forward.flops > 0
    assert prof.coverage == 1


def test_bad_input_is_refused_in_words() -> None:
    p = start()
    for make, kind, words in (
        (lambda: LevenbergMarquardt([pb.tensor([1.0])]), pb.PullbackError, "pb.Parameter"),
        (lambda: LevenbergMarquardt([]), pb.PullbackError, "no trainable"),
        (lambda: LevenbergMarquardt([p], solver="lu"), pb.PullbackError, "cholesky"),
        (lambda: LevenbergMarquardt([p], scaling="rows"), pb.PullbackError, "columns"),
        (lambda: LevenbergMarquardt([p], damping=0.0), ValueError, "positive"),
        (lambda: LevenbergMarquardt([p], damping=float("nan")), ValueError, "positive"),
        (lambda: LevenbergMarquardt([p], trials=0), ValueError, "trials"),
        (lambda: LevenbergMarquardt([p], loss="l2"), pb.PullbackError, "huber"),
        (lambda: LevenbergMarquardt([p], bounds=(0.0, 2.0)), ValueError, "outside the bounds: element 0"),
        (lambda: LevenbergMarquardt([p], bounds=(3.0, 2.0)), ValueError, "crossed"),
        (lambda: LevenbergMarquardt([p]).step(3.0), TypeError, "residual_fn is a float; it must be a function"),
        (lambda: LevenbergMarquardt([p]).step(lambda: None), pb.PullbackError, "return"),
        (lambda: LevenbergMarquardt([p]).step(lambda: pb.log(p - 1)), ValueError, "residual 0 is nan"),
    ):
        with pytest.raises(kind, match=words):
            make()


def test_a_singular_system_is_told() -> None:
    p = pb.Parameter([4.0, 1.0], dtype=pb.float64)
    lm = LevenbergMarquardt([p])
    with pytest.raises(pb.LinAlgError, match=r"singular.*column of element 0"):
        lm.step(lambda: pb.sqrt(p - p) + p)  # the derivative of sqrt at 0 is infinite


def test_a_zero_gradient_is_no_error() -> None:
    p = pb.Parameter([1.0, 1.0], dtype=pb.float64)
    info = LevenbergMarquardt([p]).step(rosenbrock(p))
    assert not info.accepted
    assert info.cost == 0
    assert p.numpy().tolist() == [1, 1]
