"""Jacobians and Hessians, forward and reverse, chunked and on tapes, against finite differences, closed forms and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import close, host
from pullback import nn
from pullback.tensors.tensor import Tensor

RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((5, 4)), RNG.standard_normal((3, 5))


def net(x: Tensor) -> Tensor:
    return pb.tanh(pb.tensor(B) @ pb.tanh(pb.tensor(A) @ x))


def differences(f: Any, x: np.ndarray[Any, Any], step: float = 1e-5) -> np.ndarray[Any, Any]:
    """Returns the Jacobian by central differences of fourth order. Its shape is value.shape + x.shape."""
    columns = []
    for i in np.ndindex(x.shape):
        e = np.zeros_like(x)
        e[i] = step
        at = [host(f(pb.tensor(x + k * e))) for k in (-2, -1, 1, 2)]
        columns.append((at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * step))
    return np.moveaxis(np.stack(columns), 0, -1).reshape(*columns[0].shape, *x.shape)


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("chunk", ["auto", 1, 2, 100])
def test_it_is_what_finite_differences_give(mode: Any, chunk: Any) -> None:
    x = RNG.standard_normal(4)
    close(pb.jacobian(net, mode=mode, chunk=chunk)(pb.tensor(x)), differences(net, x), rtol=1e-7)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_shapes_and_structures(mode: Any) -> None:
    def f(d: dict[str, Tensor], k: Tensor) -> Any:
        return [d["a"] @ d["b"] * k, {"s": pb.sum(d["a"])}]

    a, b = RNG.standard_normal((2, 3)), RNG.standard_normal((3, 4))
    args = ({"a": pb.tensor(a), "b": pb.tensor(b)}, pb.tensor(2.0, dtype="float64"))
    (product, rest), one = pb.jacobian(f, mode=mode)(*args), pb.jacobian(f, argnums=(0, 1), mode=mode)(*args)
    assert product["a"].shape == (2, 4, 2, 3)
    close(product["a"], 2 * np.einsum("ir,cj->ijrc", np.eye(2), b).reshape(2, 4, 2, 3))
    close(product["b"], 2 * np.einsum("ir,jc->ijrc", a, np.eye(4)).reshape(2, 4, 3, 4))
    close(rest["s"]["a"], np.ones((2, 3)))
    close(rest["s"]["b"], np.zeros((3, 4)))
    close(one[0][1], a @ b)


def test_the_hessian_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    x = RNG.standard_normal(4)
    ta, tb = torch.tensor(A), torch.tensor(B)
    wanted = torch.func.hessian(lambda v: torch.tanh(tb @ torch.tanh(ta @ v)).square().sum())(torch.tensor(x))
    close(pb.hessian(lambda v: pb.sum(pb.square(net(v))))(pb.tensor(x)), wanted.numpy(), rtol=1e-9)


def test_a_hessian_by_several_arguments() -> None:
    f = lambda a, b: pb.sum(a * a * b)
    a, b = np.array([1.0, 2.0]), np.array([3.0, 5.0])
    (aa, ab), (ba, bb) = pb.hessian(f, argnums=(0, 1))(pb.tensor(a), pb.tensor(b))
    close(aa, np.diag(2 * b))
    close(ab, np.diag(2 * a))
    close(ba, np.diag(2 * a))
    close(bb, np.zeros((2, 2)))


def test_the_product_with_a_hessian() -> None:
    x, v = RNG.standard_normal((2, 4))
    f = lambda x: pb.sum(pb.square(net(x)))
    close(pb.hvp(f, pb.tensor(x), pb.tensor(v)), host(pb.hessian(f)(pb.tensor(x))) @ v, rtol=1e-10)
    (p,) = pb.hvp(f, (x,), (v,))
    [q] = pb.hvp(f, [x], [v])
    assert host(p).tolist() == host(q).tolist()


def test_jacobians_nest() -> None:
    x = RNG.standard_normal(4)
    third = pb.jacobian(pb.jacobian(pb.jacobian(lambda x: pb.sum(x**4))))(pb.tensor(x))
    wanted = np.zeros((4, 4, 4))
    wanted[range(4), range(4), range(4)] = 24 * x
    close(third, wanted)
    rows = RNG.standard_normal((3, 4))
    close(pb.vmap(pb.jacobian(net))(pb.tensor(rows)), np.stack([host(pb.jacobian(net)(pb.tensor(r))) for r in rows]), rtol=1e-10)


# ---- on tapes


def test_the_jacobian_of_any_value_by_any_value_on_a_tape() -> None:
    x = pb.tensor(RNG.standard_normal(4))
    with pb.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = pb.tanh(pb.tensor(A) @ x)
        y = pb.tanh(pb.tensor(B) @ h)
    close(tape.jacobian(y, x), differences(net, host(x)), rtol=1e-7)
    close(tape.jacobian(y, h, chunk=2), (1 - host(y)[:, None] ** 2) * B, rtol=1e-12)
    both = tape.jacobian(y, {"x": x, "h": h})
    assert both["x"].shape == (3, 4)
    assert both["h"].shape == (3, 5)


def test_a_tape_that_is_not_persistent_gives_one_jacobian() -> None:
    w = pb.Parameter(A)
    with pb.GradientTape() as tape:
        y = pb.sum(w * w, axis=1)
    got = tape.jacobian(y, w, chunk=2)
    close(got, 2 * np.einsum("ir,rc->irc", np.eye(5), A))
    with pytest.raises(pb.TapeError, match="freed what it kept"):
        tape.jacobian(y, w)


@pytest.mark.parametrize("chunk", ["auto", 1, 2])
def test_the_jacobian_of_each_row(chunk: Any) -> None:
    rows = RNG.standard_normal((6, 4))
    x = pb.tensor(rows)
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = pb.tanh(x @ pb.tensor(A).T)
    close(tape.batch_jacobian(y, x, chunk=chunk), (1 - np.tanh(rows @ A.T)[:, :, None] ** 2) * A, rtol=1e-12)


def test_gradients_of_several_targets_are_those_of_separate_sweeps() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    x = pb.tensor(RNG.standard_normal((5, 4)).astype(np.float32))
    with pb.GradientTape(persistent=True) as tape:
        y = model(x)
        targets = [pb.sum(y[:, k] * (k + 1)) for k in range(3)] + [pb.mean(y)]
    parameters = list(model.parameters())
    for target, found in zip(targets, tape.gradients(targets, parameters)):
        for g, wanted in zip(found, tape.gradient(target, parameters)):
            close(g, wanted, rtol=1e-5)


def test_inside_a_tape_a_jacobian_is_differentiated() -> None:
    x = pb.tensor(RNG.standard_normal(3))
    with pb.GradientTape() as tape:
        tape.watch(x)
        j = pb.jacobian(lambda v: v**3)(x)
        total = pb.sum(j)
    close(tape.gradient(total, x), 6 * host(x))


# ---- chunks and errors


def test_the_memory_of_a_chunk_stays_in_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    from pullback.transforms import jacobian as module

    sizes: list[int] = []
    original = module.batched_pull

    def noted(tape: Any, targets: Any, seeds: Any, *rest: Any, **options: Any) -> Any:
        sizes.append(seeds[0].shape[0])
        return original(tape, targets, seeds, *rest, **options)

    monkeypatch.setattr(module, "batched_pull", noted)
    monkeypatch.setattr(module, "BUDGET_BYTES", 10 * (4 * 100 * 8))  # room for two kept values, and for both ends
    x = RNG.standard_normal(100)
    close(pb.jacobian(lambda x: pb.sin(pb.tanh(pb.exp(x))), mode="reverse")(pb.tensor(x)),
          np.diag(np.cos(np.tanh(np.exp(x))) * (1 - np.tanh(np.exp(x)) ** 2) * np.exp(x)), rtol=1e-9)
    assert sizes == [10] * 10


def test_refusals() -> None:
    x = pb.ones((2, 3))
    with pytest.raises(pb.TapeError, match="mode='sideways'"):
        pb.jacobian(net, mode="sideways")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="chunk=0"):
        pb.jacobian(net, chunk=0)
    with pytest.raises(pb.TapeError, match="returned a float"):
        pb.jacobian(lambda x: 1.0)(x)
    with pytest.raises(pb.TapeError, match="int64"):
        pb.jacobian(lambda x: x)(pb.tensor([1, 2]))
    with pytest.raises(pb.ShapeError, match="only a scalar has a gradient"):
        pb.hessian(lambda x: x)(x)
    with pb.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = pb.sum(x)
    with pytest.raises(pb.ShapeError, match="same number of rows"):
        tape.batch_jacobian(y, x)
    with pytest.raises(pb.TapeError, match="of shape"):
        tape.gradients([x * 1], x)


@pytest.mark.parametrize("mode", ["auto", "reverse", "forward"])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)], ids=str)
def test_a_target_without_elements_has_a_jacobian_without_elements(mode: Any, shape: tuple[int, ...]) -> None:
    x = pb.ones(3, dtype=pb.float64)
    found = pb.jacobian(lambda x: pb.zeros(shape, dtype=pb.float64) * pb.sum(x), mode=mode)(x)
    assert (found.shape, found.dtype) == ((*shape, 3), pb.float64)


def recurrent(x: Tensor) -> list[Tensor]:
    found, h = [], x
    for _ in range(5):
        h = pb.tanh(h * x)
        found.append(pb.sum(h))
    return found


@pb.custom_gradient
def sine_and_cosine(x: Tensor) -> Any:
    s, c = pb.sin(x), pb.cos(x)
    return (s, c), lambda g: g[0] * c - g[1] * s


def two_results(x: Tensor) -> list[Tensor]:
    s, c = sine_and_cosine(pb.exp(x))
    return [pb.sum(s), pb.sum(c * x), pb.sum(s * c), pb.sum(c)]


def two_checkpointed(x: Tensor) -> list[Tensor]:
    a, b = pb.checkpoint(lambda x: (pb.sin(x), pb.cos(x) * x))(pb.exp(x))
    return [pb.sum(a), pb.sum(b * b), pb.sum(a * b)]


SHARED: dict[str, Any] = {
    "nothing in common": lambda x: [pb.sum(pb.sin(x * k)) for k in range(1, 4)],
    "a trunk": lambda x: list(pb.unstack(pb.tanh(pb.sin(x) * x))),
    "a trunk and pairs of towers": lambda x: [pb.sum(f(pb.tanh(x) * x) * k) for f in (pb.sin, pb.exp) for k in (2.0, 3.0)],
    "one in another": lambda x: [pb.sum(pb.sin(x)), pb.sum(pb.sin(x)) ** 2],
    "a chain": recurrent,
    "crossing sets": lambda x: (lambda a, b, c: [pb.sum(a * b), pb.sum(b * c), pb.sum(a * c)])(pb.sin(x), pb.exp(x), x * x),
    "one twice": lambda x: [pb.sum(x * x)] * 2,
    "shapes of one element": lambda x: [pb.sum(x * x, keepdims=True), pb.sum(x), pb.reshape(pb.sum(pb.sin(x)), (1, 1))],
    "two results of a call": two_results,
    "two results of a checkpoint": two_checkpointed,
}


@pytest.mark.parametrize("large", [False, True], ids=["at once", "in turns"])
@pytest.mark.parametrize("name", SHARED)
def test_gradients_of_several_targets_are_those_of_each(name: str, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pullback.transforms.gradients.LARGE_BYTES", -1 if large else 1 << 18)
    x, unused = pb.tensor(RNG.standard_normal(3)), pb.tensor(np.ones(2))
    with pb.GradientTape() as outer:
        outer.watch(x)
        with pb.GradientTape(persistent=True) as tape:
            tape.watch([x, unused])
            y = x * 0.5
            targets = SHARED[name](y)
        shown: list[Any] = []
        tape.on_gradient(y, lambda g: g * 2)
        tape.on_gradient(x, lambda g: shown.append(g.shape))
        wanted = [tape.gradient(t, [x, y, unused], unconnected="zero") for t in targets]
        found = tape.gradients(targets, [x, y, unused], unconnected="zero")
        assert set(shown) == {(3,)}
        seconds = [pb.sum(pb.square(row[0])) for row in found]
    for row, expected in zip(found, wanted):
        for g, g_expected in zip(row, expected):
            close(g, g_expected, 1e-12)
    f = lambda v: pb.sum(pb.square(pb.grad(lambda w: SHARED[name](w * 0.5)[0].reshape(()))(v))) * 4  # The hook doubles gradients.
    close(outer.gradient(seconds[0], x), pb.grad(f)(x), 1e-10)


def test_gradients_that_some_targets_do_not_have_and_a_tape_that_is_used_up() -> None:
    x, w, unused = (pb.tensor(RNG.standard_normal(3)) for _ in range(3))
    with pb.GradientTape() as tape:
        tape.watch([x, w, unused])
        targets = {"a": pb.sum(pb.sin(x)), "b": pb.sum(x * w)}
    found = tape.gradients(targets, [x, w, unused], unconnected="none")
    for row, wanted in ((found["a"], [np.cos(host(x)), np.zeros(3)]), (found["b"], [host(w), host(x)])):
        for g, g_wanted in zip(row, wanted):
            close(g, g_wanted)
    assert found["a"][2] is found["b"][2] is None
    assert tape.nodes == []
    with pytest.raises(pb.TapeError, match="used"):
        tape.gradients(targets, x)
    with pb.GradientTape() as tape:
        tape.watch([x, unused])
        y = pb.sum(x)
    with pytest.raises(pb.UnconnectedError):
        tape.gradients([y], [x, unused])


def test_no_op_is_pulled_back_for_a_target_that_does_not_depend_on_it() -> None:
    towers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)) for _ in range(4)]
    x, parameters = pb.ones((8, 16)), [p for tower in towers for p in tower.parameters()]
    with pb.GradientTape(persistent=True) as tape:
        targets = [pb.sum(tower(x)) for tower in towers]
    with pb.profile(detail="count") as together:
        tape.gradients(targets, parameters)
    with pb.profile(detail="count") as apart:
        for target in targets:
            tape.gradient(target, parameters, unconnected="zero")
    assert together.total.matmul_flops == apart.total.matmul_flops > 0


def test_one_target_of_several_that_depends_on_a_source_has_its_whole_gradient() -> None:
    x = pb.tensor([1.0, 2.0, 3.0])
    for order in (1, -1):
        with pb.GradientTape() as tape:
            tape.watch(x)
            targets = [pb.sum(x * x), pb.sum(pb.ones(3))][::order]
        found = tape.gradients(targets, x, unconnected="zero")[::order]
        close(found[0], [2.0, 4.0, 6.0])
        close(found[1], [0.0, 0.0, 0.0])
