"""Batch, group and instance norm, and the bilinear layer: PyTorch's values, gradients, states and modes, and what transforms do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import FLOATS, agrees_with_torch, host, normal
from pullback import nn
from pullback.nn import channel_norms, functional as F

IMAGE, ROWS, LINES = (5, 4, 3, 6), (5, 4), (5, 4, 7)
LAYERS: list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = [
    ("BatchNorm2d", (4,), {}, IMAGE),
    ("BatchNorm2d", (4,), {"momentum": None}, IMAGE),
    ("BatchNorm2d", (4,), {"affine": False, "eps": 1e-3, "momentum": 0.3}, IMAGE),
    ("BatchNorm2d", (4,), {"track_running_stats": False}, IMAGE),
    ("BatchNorm2d", (4,), {"bias": False}, IMAGE),
    ("BatchNorm1d", (4,), {}, ROWS),
    ("BatchNorm1d", (4,), {}, LINES),
    ("BatchNorm1d", (4,), {}, (2, 4)),
    ("GroupNorm", (2, 4), {}, IMAGE),
    ("GroupNorm", (1, 4), {}, ROWS),
    ("GroupNorm", (4, 4), {"affine": False}, LINES),
    ("GroupNorm", (2, 4), {"bias": False}, ROWS),
    ("InstanceNorm2d", (4,), {}, IMAGE),
    ("InstanceNorm2d", (4,), {"affine": True, "track_running_stats": True}, IMAGE),
    ("InstanceNorm2d", (4,), {"affine": True}, IMAGE[1:]),
]


def pair(torch: Any, name: str, sizes: tuple[Any, ...], options: dict[str, Any], dtype: str = "float64") -> tuple[Any, Any]:
    """Returns our layer and torch's, with the same random numbers in their states."""
    rng = np.random.default_rng(1)
    ours, theirs = (
        getattr(nn, name)(*sizes, **options).to(dtype),
        getattr(torch.nn, name)(*sizes, **options).to(getattr(torch, dtype)),
    )
    for value in theirs.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.tensor(rng.uniform(0.5, 2, value.shape)))
    ours.load_state_dict({path: value.numpy() for path, value in theirs.state_dict().items()})
    return ours, theirs


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize(("name", "sizes", "options", "shape"), LAYERS, ids=str)
def test_values_gradients_and_states_are_torchs(
    torch: Any, name: str, sizes: Any, options: Any, shape: Any, training: bool
) -> None:
    ours, theirs = pair(torch, name, sizes, options)
    assert repr(ours) == repr(theirs)
    ours.train(training)
    theirs.train(training)
    for seed in range(3):
        values = np.random.default_rng(seed).standard_normal(shape)
        x, y = pb.tensor(values), torch.tensor(values, requires_grad=True)
        with pb.GradientTape() as tape:
            tape.watch(x)
            result = ours(x)
            loss = pb.sum(result**3)
        wanted = theirs(y)
        np.testing.assert_allclose(host(result), wanted.detach().numpy(), rtol=1e-10, atol=1e-12)
        gradients = tape.gradient(loss, [x, *ours.parameters()])
        for g, w in zip(gradients, torch.autograd.grad((wanted**3).sum(), [y, *theirs.parameters()])):
            np.testing.assert_allclose(host(g), w.numpy(), rtol=1e-9, atol=1e-9)
    found, expected = ours.state_dict(), theirs.state_dict()
    assert [*found] == [*expected]
    for path, value in expected.items():
        assert str(found[path].dtype) == str(value.dtype).removeprefix("torch.")
        np.testing.assert_allclose(host(found[path]), value.numpy(), rtol=1e-10)


@pytest.mark.parametrize(("name", "sizes", "options", "shape"), LAYERS, ids=str)
def test_new_layers_are_torchs(torch: Any, name: str, sizes: Any, options: Any, shape: Any) -> None:
    found = getattr(nn, name)(*sizes, **options).state_dict()
    for path, value in getattr(torch.nn, name)(*sizes, **options).state_dict().items():
        assert str(found[path].dtype) == str(value.dtype).removeprefix("torch.")
        np.testing.assert_array_equal(host(found[path]), value.numpy())


@pytest.mark.parametrize("groups", [None, 1, 2, 4])
def test_functions_are_differentiable_twice(groups: int | None) -> None:
    def norm(x: Any, w: Any, b: Any) -> Any:
        return F.batch_norm(x, None, None, w, b, True) if groups is None else F.group_norm(x, groups, w, b)

    pb.check_gradients(norm, [normal(3, 4, 6), normal(4), normal(4)], order=2)
    x, w, b = normal(3, 4, 6), normal(4), normal(4)
    directions = [normal(3, 4, 6), normal(4), normal(4)]
    _, tangent = pb.jvp(norm, tuple(map(pb.tensor, (x, w, b))), tuple(map(pb.tensor, directions)))
    h = 1e-6
    ends = [host(norm(*[pb.tensor(a + s * h * t) for a, t in zip((x, w, b), directions)])) for s in (1, -1)]
    np.testing.assert_allclose(host(tangent), (ends[0] - ends[1]) / (2 * h), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("groups", [None, 2])
def test_half_precision_is_computed_in_float32(dtype: str, groups: int | None) -> None:
    x, w, b = [pb.tensor(a, dtype=dtype) for a in (normal(6, 4, 5) + 3, normal(4), normal(4))]
    found = F.batch_norm(x, None, None, w, b, True) if groups is None else F.group_norm(x, groups, w, b)
    values = host(x).astype(np.float64)
    parts, axes = (values, (0, 2)) if groups is None else (values.reshape(6, groups, -1), 2)
    normed = ((parts - parts.mean(axes, keepdims=True)) / np.sqrt(parts.var(axes, keepdims=True) + 1e-5)).reshape(x.shape)
    wanted = normed * host(w).astype(np.float64)[:, None] + host(b).astype(np.float64)[:, None]
    assert found.dtype == x.dtype
    np.testing.assert_allclose(
        host(found).astype(np.float64), wanted, rtol={"float16": 1e-3, "bfloat16": 8e-3}.get(dtype, 1e-5), atol=1e-4
    )


def test_empty_batches_have_empty_results() -> None:
    assert F.group_norm(pb.zeros((0, 4, 3)), 2).shape == (0, 4, 3)
    assert F.instance_norm(pb.zeros((0, 4, 3))).shape == (0, 4, 3)
    assert nn.BatchNorm2d(4)(pb.zeros((0, 4, 3, 3))).shape == (0, 4, 3, 3)
    assert nn.BatchNorm2d(4).eval()(pb.zeros((0, 4, 3, 3))).shape == (0, 4, 3, 3)


def test_running_values_are_updated_by_replays(native: None) -> None:
    eager, replayed = nn.BatchNorm2d(4, momentum=None), nn.BatchNorm2d(4, momentum=None)
    captured = pb.capture(lambda x: pb.sum(replayed(x) ** 2))
    for seed in range(4):
        x = pb.tensor(np.random.default_rng(seed).standard_normal(IMAGE), dtype="float32")
        assert captured(x).item() == pb.sum(eager(x) ** 2).item()
    assert replayed.num_batches_tracked.item() == 4
    for name, value in eager.state_dict().items():
        np.testing.assert_array_equal(host(value), host(replayed.state_dict()[name]))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_one_launch_moves_running_values_to_the_bits_of_the_ops(
    momentum: float | None, dtype: str, native: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shape in ((7, 4), (3, 4, 5), (2, 4, 600), (0, 4, 5)):
        fused, composed = [nn.BatchNorm1d(4, momentum=momentum, affine=shape[0] != 3, dtype=dtype) for _ in range(2)]
        for seed in range(3):
            x = pb.tensor(np.random.default_rng(seed).standard_normal(shape) * 2 + 1, dtype=dtype)
            with pb.profile() as prof:
                y = fused(x)
            assert [row.kernel for row in prof.rows if row.kernel != "copy"] == ["batch_norm"]
            with monkeypatch.context() as patch:
                patch.setattr(channel_norms, "norm_and_move", lambda *args: None)
                assert host(composed(x)).tobytes() == host(y).tobytes()
        for name, value in composed.state_dict().items():
            assert host(value).tobytes() == host(fused.state_dict()[name]).tobytes(), name
        assert fused.num_batches_tracked.item() == 3
        assert fused.running_var.version == (3 if shape[0] else 0)


def test_running_values_that_are_an_operand_too_are_moved_before_they_are_read() -> None:
    x, scale = pb.tensor(normal(*ROWS), dtype="float32"), pb.Parameter(np.ones(4, np.float32))
    y = F.batch_norm(x, None, scale, weight=scale, training=True, momentum=0.5)
    moved = 0.5 + 0.5 * host(x).astype(np.float64).var(0, ddof=1)
    np.testing.assert_allclose(host(scale), moved, rtol=1e-6)
    np.testing.assert_allclose(host(y), moved * host(F.batch_norm(x, None, None, training=True)), rtol=1e-5, atol=1e-6)


def test_running_values_are_constants_to_tapes() -> None:
    layer, x = nn.BatchNorm1d(4).to("float64"), pb.tensor(normal(*ROWS))
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
    assert [*dict(layer.named_parameters())] == ["weight", "bias"]
    assert tape.gradient(y, x, output_gradients=normal(*ROWS)).shape == ROWS


# ---- examples that are apart


def test_batch_statistics_refuse_examples_under_vmap() -> None:
    layer, x = nn.BatchNorm2d(4), pb.tensor(normal(3, *IMAGE), dtype="float32")
    with pytest.raises(pb.VmapError, match=r"examples are coupled.*net\.eval\(\).*track_running_stats=False"):
        pb.vmap(layer)(x)
    assert layer.num_batches_tracked.item() == 0
    with pytest.raises(pb.VmapError, match="its examples are coupled"):
        pb.per_example_norm(lambda w, x: pb.sum(layer(x) * w))(pb.ones(IMAGE), x)
    with pytest.raises(pb.VmapError, match="one new value and not one for each"):
        pb.vmap(nn.InstanceNorm2d(4, track_running_stats=True))(x)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("layer", [nn.BatchNorm2d, nn.InstanceNorm2d])
def test_running_values_of_several_members_on_the_same_data_are_refused_with_the_way_out(
    layer: Any, momentum: float | None
) -> None:
    if layer is nn.InstanceNorm2d and momentum is None:
        momentum = 0.2
    members, x = (
        [layer(4, momentum=momentum, track_running_stats=True) for _ in range(3)],
        pb.tensor(normal(*IMAGE), dtype="float32"),
    )
    with pytest.raises(pb.VmapError, match="track_running_stats=False") as refused:
        pb.vmap(lambda tensors: nn.functional_call(members[0], tensors, x))(nn.stack(members))
    assert "Batched" not in str(refused.value)
    free = [layer(4, momentum=momentum, track_running_stats=False, affine=True) for _ in range(3)]
    found = pb.vmap(lambda tensors: nn.functional_call(free[0], tensors, x))(nn.stack(free))
    np.testing.assert_allclose(host(found)[1], host(free[1](x)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["BatchNorm2d", "GroupNorm", "InstanceNorm2d"])
def test_examples_of_a_vmap_are_calls_of_their_own(name: str) -> None:
    sizes: Any = (2, 4) if name == "GroupNorm" else (4,)
    layer = getattr(nn, name)(*sizes, **({} if name == "GroupNorm" else {"track_running_stats": False})).to("float64")
    x = pb.tensor(normal(3, *IMAGE))
    wanted = np.stack([host(layer(x[i])) for i in range(3)])
    np.testing.assert_allclose(host(pb.vmap(layer)(x)), wanted, rtol=1e-12, atol=1e-12)


def test_gradients_of_each_example_in_evaluation_mode(torch: Any) -> None:
    layer, _ = pair(torch, "BatchNorm2d", (4,), {})
    layer.eval()
    batch = pb.tensor(normal(*IMAGE))

    def loss(p: Any, x: Any) -> Any:
        return pb.sum(nn.functional_call(layer, p, x) ** 3)

    parameters = {path: pb.tensor(p) for path, p in layer.named_parameters()}
    found = pb.per_example_grad(loss)(parameters, batch)
    norms = pb.per_example_norm(loss)(parameters, batch)
    for i in range(IMAGE[0]):
        alone = pb.grad(loss)(parameters, batch[i])
        for path, g in alone.items():
            np.testing.assert_allclose(host(found[path][i]), host(g), rtol=1e-10, atol=1e-12)
        assert norms[i].item() == pytest.approx(sum(float((host(g) ** 2).sum()) for g in alone.values()), rel=1e-9)


# ---- errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.BatchNorm2d(4)(pb.zeros((2, 4))), r"BatchNorm2d: x has shape \(2, 4\); it must be \(N, C, H, W\)"),
        (lambda: nn.BatchNorm1d(4)(pb.zeros(4)), r"BatchNorm1d: x has shape \(4,\); it must be \(N, C\) or \(N, C, L\)"),
        (lambda: nn.BatchNorm2d(4)(pb.zeros((2, 3, 1, 1))), r"has 3 channels, but num_features=4"),
        (lambda: nn.BatchNorm2d(4)(pb.zeros((1, 4, 1, 1))), r"one value for each channel.*net\.eval\(\)"),
        (lambda: nn.InstanceNorm2d(4)(pb.zeros((2, 4, 1, 1))), r"one value for each channel of an example"),
        (lambda: nn.GroupNorm(3, 4), r"num_groups=3 does not divide num_channels=4"),
        (lambda: nn.GroupNorm(2, 4)(pb.zeros((2, 6))), r"must be \(N, 4, \.\.\.\)"),
        (lambda: F.group_norm(pb.zeros((2, 4)), 3), r"num_groups=3 does not divide the 4 channels"),
        (lambda: F.group_norm(pb.zeros((2, 4)), 2, pb.ones(2)), r"weight has shape \(2,\), but x \(2, 4\) has 4 channels"),
        (lambda: F.group_norm(pb.zeros(4), 2), r"it must be \(N, C, \.\.\.\)"),
        (lambda: nn.BatchNorm1d(0), r"num_features=0 must be an integer of 1 or more"),
        (
            lambda: F.bilinear(pb.ones((2, 3)), pb.ones((2, 4)), pb.ones((5, 3, 3))),
            r"must be \(\.\.\., n1\), \(\.\.\., n2\), \(out, n1, n2\)",
        ),
        (lambda: F.bilinear(pb.ones((2, 3)), pb.ones((1, 3)), pb.ones((5, 3, 3))), r"the same leading axes"),
    ],
)
def test_shapes_that_do_not_fit(call: Any, message: str) -> None:
    with pytest.raises(pb.ShapeError, match=message):
        call()


def test_running_values_that_cannot_be_used() -> None:
    x = pb.zeros((3, 4))
    with pytest.raises(pb.PullbackError, match=r"running_mean is updated in place.*nn\.Buffer"):
        F.batch_norm(x, pb.zeros(4), pb.ones(4), training=True)
    with pytest.raises(pb.PullbackError, match="without training=True"):
        F.batch_norm(x, pb.zeros(4), None)
    with pytest.raises(pb.DTypeError, match="momentum"):
        F.batch_norm(x, nn.Buffer(pb.zeros(4)), None, training=True, momentum=None)


# ---- bilinear


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_bilinear_is_torchs(torch: Any, lead: Any, bias: bool) -> None:
    arrays = [normal(*lead, 3), normal(*lead, 4), normal(5, 3, 4), *([normal(5)] if bias else [])]
    agrees_with_torch(torch, F.bilinear, torch.nn.functional.bilinear, *arrays)


def test_a_bilinear_layer_begins_as_torchs(torch: Any) -> None:
    layer = nn.Bilinear(100, 30, 40)
    assert repr(layer) == repr(torch.nn.Bilinear(100, 30, 40))
    values = host(layer.weight)
    assert np.abs(values).max() <= 0.1
    assert values.std() == pytest.approx(0.1 / 3**0.5, rel=0.02)
    assert [*layer.state_dict()] == [*torch.nn.Bilinear(100, 30, 40).state_dict()]


# ---- the norms of rows and Embedding


@pytest.mark.parametrize(("name", "sizes", "options"), [
    ("LayerNorm", ((3, 5),), {}), ("LayerNorm", (5,), {"bias": False}), ("LayerNorm", (5,), {"elementwise_affine": False}),
    ("RMSNorm", ((3, 5),), {}), ("RMSNorm", (5,), {"eps": 1e-3}), ("RMSNorm", (5,), {"elementwise_affine": False}),
], ids=str)
def test_norms_of_rows_begin_and_behave_as_torchs(torch: Any, name: str, sizes: Any, options: Any) -> None:
    ours, theirs = pair(torch, name, sizes, options)
    assert repr(ours) == repr(theirs)
    assert [*ours.state_dict()] == [*theirs.state_dict()]
    fresh = getattr(torch.nn, name)(*sizes, **options).state_dict()
    for path, value in getattr(nn, name)(*sizes, **options).state_dict().items():
        np.testing.assert_array_equal(host(value), fresh[path].numpy())
    parameters = dict(theirs.named_parameters())

    def call(x: Any, *given: Any) -> Any:
        return nn.functional_call(ours, dict(zip(parameters, given)), x)

    def wanted(x: Any, *given: Any) -> Any:
        return torch.func.functional_call(theirs, dict(zip(parameters, given)), (x,))

    agrees_with_torch(torch, call, wanted, normal(2, 3, 5), *[p.detach().numpy() for p in parameters.values()])


@pytest.mark.parametrize("padding", [None, 1, -2])
def test_an_embedding_is_torchs(torch: Any, padding: int | None) -> None:
    ours, theirs = pair(torch, "Embedding", (5, 3), {"padding_idx": padding})
    at = np.array([[0, 1, 3], [3, 3, 1]])
    with pb.GradientTape() as tape:
        loss = pb.sum(ours(at) ** 3)
    wanted = (theirs(torch.tensor(at)) ** 3).sum()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-12)
    wanted.backward()
    np.testing.assert_allclose(host(tape.gradient(loss, ours.weight)), theirs.weight.grad.numpy(), rtol=1e-12)
    assert repr(ours) == repr(theirs)
    fresh = host(nn.Embedding(5, 3, padding).weight)
    assert [not row.any() for row in fresh] == [padding is not None and i == padding % 5 for i in range(5)]
    with pytest.raises(pb.ShapeError, match="padding_idx=5 is not a row of a table of 5 rows"):
        nn.Embedding(5, 3, 5)
