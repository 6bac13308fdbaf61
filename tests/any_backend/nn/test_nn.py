"""Layers and initial weights: PyTorch's values and gradients, exact second derivatives, names, modes, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import agrees_with_torch, normal
from pullback import nn
from pullback.nn import functional as F
from pullback.ops.linear import linear
from pullback.tensors.parameter import Parameter

# ---- layers and functions


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("activation", [None, "relu", "tanh", "sigmoid"])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_torchs(torch: Any, lead: Any, activation: Any, bias: bool) -> None:
    after = getattr(torch, activation) if activation else lambda y: y
    arrays = [normal(*lead, 3), normal(4, 3), *([normal(4)] if bias else [])]
    agrees_with_torch(
        torch,
        lambda x, w, b=None: linear(x, w, b, activation),
        lambda x, w, b=None: after(torch.nn.functional.linear(x, w, b)),
        *arrays,
    )


@pytest.mark.parametrize(
    ("ours", "name", "options"),
    [
        (F.relu, "relu", {}),
        (F.leaky_relu, "leaky_relu", {}),
        (F.elu, "elu", {}),
        (lambda x: F.elu(x, 0.7), "elu", {"alpha": 0.7}),
        (F.gelu, "gelu", {}),
        (lambda x: F.gelu(x, "tanh"), "gelu", {"approximate": "tanh"}),
        (F.silu, "silu", {}),
        (lambda x: F.softplus(x, 3.0, 1.0), "softplus", {"beta": 3.0, "threshold": 1.0}),
        (F.sigmoid, "sigmoid", {}),
        (F.tanh, "tanh", {}),
        (lambda x: F.softmax(x, axis=1), "softmax", {"dim": 1}),
        (lambda x: F.log_softmax(x, axis=0), "log_softmax", {"dim": 0}),
    ],
)
def test_activations_are_torchs(torch: Any, ours: Any, name: str, options: Any) -> None:
    agrees_with_torch(torch, ours, lambda x: getattr(torch.nn.functional, name)(x, **options), 3 * normal(4, 5, 3))


@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2), None], ids=str)
def test_logsumexp_is_torchs_over_any_axes(torch: Any, axis: Any) -> None:
    dims = (0, 1, 2) if axis is None else axis
    agrees_with_torch(torch, lambda x: F.logsumexp(x, axis=axis), lambda x: torch.logsumexp(x, dims), 10 * normal(4, 5, 3))
    agrees_with_torch(
        torch, lambda x: F.logsumexp(x, axis=axis, keepdims=True), lambda x: torch.logsumexp(x, dims, keepdim=True), normal(4, 5, 3)
    )


def test_a_row_of_minus_infinity_has_no_nan() -> None:
    x = pb.tensor(np.array([[-np.inf, -np.inf], [-np.inf, 0.0]]))
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = F.logsumexp(x, axis=1)
    assert y.tolist() == [-np.inf, 0.0]
    assert tape.gradient(y, x, output_gradients=np.ones(2)).tolist() == [[0.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("shape", [(3,), (5, 3)], ids=str)
@pytest.mark.parametrize("affine", ["weight and bias", "weight", "none"])
def test_norms_are_torchs(torch: Any, shape: Any, affine: str) -> None:
    arrays = [normal(4, 5, 3), *[normal(*shape) for _ in range({"weight and bias": 2, "weight": 1, "none": 0}[affine])]]
    axis = tuple(range(-len(shape), 0))
    agrees_with_torch(
        torch, lambda x, *wb: F.layer_norm(x, *wb, axis=axis), lambda x, *wb: torch.nn.functional.layer_norm(x, shape, *wb), *arrays
    )
    if affine != "weight and bias":
        agrees_with_torch(
            torch,
            lambda x, *w: F.rms_norm(x, *w, axis=axis, eps=1e-6),
            lambda x, *w: torch.nn.functional.rms_norm(x, shape, *w, eps=1e-6),
            *arrays,
        )


def test_the_hessian_of_the_variance_is_exact() -> None:
    x = pb.tensor(np.array([1.0, 2.0, 4.0, 7.0]))
    with pb.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with pb.GradientTape() as inner:
            inner.watch(x)
            v = pb.var(x)
        g = inner.gradient(v, x)
        rows = [g[i] for i in range(4)]
    hessian = np.stack([outer.gradient(row, x).numpy() for row in rows])
    np.testing.assert_allclose(hessian, 0.5 * (np.eye(4) - 1 / 4), atol=1e-12)


@pytest.mark.parametrize("f", [F.layer_norm, F.rms_norm], ids=["layer_norm", "rms_norm"])
def test_norms_are_differentiable_twice(f: Any) -> None:
    parameters = [normal(5)] * (2 if f is F.layer_norm else 1)
    pb.check_gradients(f, [normal(3, 5), *parameters], order=2)


def test_the_variance_of_half_precision_far_from_zero_is_right() -> None:
    x = (1000 + np.random.default_rng(0).standard_normal((4, 4096))).astype(np.float16)
    y = F.layer_norm(pb.tensor(x), eps=0.0).numpy().astype(np.float64)
    exact = x.astype(np.float64)
    scale = (exact - exact.mean(-1, keepdims=True)) / y
    np.testing.assert_allclose(np.nanmedian(scale, -1) ** 2, exact.var(-1), rtol=0.01)


@pytest.mark.parametrize("dtype", [pb.float16, pb.bfloat16])
@pytest.mark.parametrize("mean", [1000.0, 1000.25, -999.8])
def test_var_and_std_of_half_precision_far_from_zero_are_right(dtype: Any, mean: float) -> None:
    spread = 1 if dtype == pb.float16 else 8  # Near 1000, bfloat16 has steps of 4.
    x = pb.tensor(mean + spread * np.random.default_rng(0).standard_normal((2, 4096)), dtype=dtype)
    exact = x.numpy().astype(np.float64)
    assert pb.var(x, axis=1).dtype == dtype
    np.testing.assert_allclose(pb.var(x, axis=1).numpy().astype(np.float64), exact.var(1), rtol=0.01)
    np.testing.assert_allclose(pb.std(x, axis=1, correction=1).numpy().astype(np.float64), exact.std(1, ddof=1), rtol=0.01)
    large = pb.tensor([-300.0, 300.0], dtype=dtype)  # The squares overflow float16.
    assert pb.std(large).item() == 300.0
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = pb.sum(pb.std(x, axis=1))
    g = tape.gradient(y, x)
    assert g.dtype == dtype
    wanted = (exact - exact.mean(1, keepdims=True)) / (4096 * exact.std(1, keepdims=True))
    np.testing.assert_allclose(g.numpy().astype(np.float64), wanted, rtol=0.02, atol=1e-6)


def test_rms_norm_of_zeros_is_zeros_with_a_finite_gradient() -> None:
    x = pb.zeros((2, 3))
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = F.rms_norm(x, pb.ones(3))
    assert not y.numpy().any()
    assert np.isfinite(tape.gradient(y, x, output_gradients=pb.ones((2, 3))).numpy()).all()


def test_embedding_adds_up_the_gradients_of_an_index_used_twice(torch: Any) -> None:
    layer = nn.Embedding(5, 3, dtype=pb.float64)
    indices = np.array([[1, 1], [4, 0]])
    with pb.GradientTape() as tape:
        y = layer(pb.tensor(indices))
    g = normal(2, 2, 3)
    weight = torch.tensor(layer.weight.numpy(), requires_grad=True)
    torch.nn.functional.embedding(torch.tensor(indices), weight).backward(torch.tensor(g))
    np.testing.assert_allclose(tape.gradient(y, layer.weight, output_gradients=g).numpy(), weight.grad.numpy())
    with pytest.raises(IndexError, match="5"):
        layer(pb.tensor([5]))


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: nn.cross_entropy(pb.zeros((2, 3)), pb.tensor([0, 3])), IndexError, "label 3 at position 1"),
        (lambda: nn.nll(pb.zeros((2, 3)), pb.tensor([0, -1])), IndexError, "label -1 at position 1"),
        (lambda: nn.cross_entropy(pb.zeros((2, 3)), pb.tensor([0])), pb.ShapeError, r"\(2,\)"),
        (lambda: nn.cross_entropy(pb.zeros((2, 3)), pb.tensor([0.0, 1.0])), pb.ShapeError, "astype"),
        (lambda: nn.mse(pb.zeros((3, 1)), pb.zeros(3)), pb.ShapeError, "must be equal"),
        (lambda: nn.mse(pb.zeros(3), pb.zeros(3), reduction="avg"), pb.PullbackError, "'mean'"),
        (lambda: linear(pb.zeros((2, 3)), pb.zeros((4, 5))), pb.ShapeError, "which is 5"),
        (lambda: linear(pb.zeros((2, 3)), pb.zeros((4, 3)), pb.zeros(1)), pb.ShapeError, r"\(4,\)"),
        (lambda: F.layer_norm(pb.zeros((2, 3)), pb.zeros(2)), pb.ShapeError, r"weight has shape \(2,\)"),
        (lambda: nn.LayerNorm(4)(pb.zeros((2, 3))), pb.ShapeError, "normalized_shape"),
        (lambda: nn.Dropout(1.5), pb.PullbackError, "probability"),
        (lambda: nn.Flatten(5)(pb.zeros((2, 3, 4))), pb.ShapeError, "axis 5 of a tensor with 3 axes"),
        (lambda: nn.Flatten()(pb.zeros(3)), pb.ShapeError, "axis 1"),
        (lambda: nn.Flatten(2, 1)(pb.zeros((2, 3, 4))), pb.ShapeError, "axis 2 comes after axis 1"),
        (lambda: nn.Linear(3.0, 4), pb.ShapeError, "in_features=3.0"),  # type: ignore[arg-type]
        (lambda: nn.LayerNorm((3, 0)), pb.ShapeError, "normalized_shape"),
        (lambda: nn.LayerNorm(2.5), pb.ShapeError, "normalized_shape=2.5"),  # type: ignore[arg-type]
        (lambda: nn.Linear(0, 3), pb.ShapeError, "in_features"),
        (lambda: nn.Embedding(3, 2)(pb.zeros(2)), pb.DTypeError, "integers"),
    ],
)
def test_wrong_arguments_are_told_in_words(call: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call()


# ---- modules


class Net(nn.Module):
    def __init__(self) -> None:
        self.layers = [nn.Linear(3, 4), nn.Linear(4, 2)]
        self.heads = {"a": nn.Linear(2, 1)}
        self.scale = Parameter(1.0)
        self.mine = Parameter(2.0, name="temperature")
        self.count = nn.Buffer(0)
        self.tied = self.layers[0]

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.heads["a"](x) * self.scale


def test_parameters_are_found_and_named_by_path() -> None:
    net = Net()
    names = [
        "scale",
        "mine",
        "layers.0.weight",
        "layers.0.bias",
        "layers.1.weight",
        "layers.1.bias",
        "heads.a.weight",
        "heads.a.bias",
    ]
    assert [name for name, _ in net.named_parameters()] == names
    assert [p.name for p in net.parameters()] == ["scale", "temperature", *names[2:]]
    assert net.buffers() == [net.count]
    inner = nn.Sequential(nn.Linear(2, 2))
    inner.parameters()
    outer = nn.Sequential(inner)
    assert [p.name for p in outer.parameters()] == ["0.0.weight", "0.0.bias"]


def test_a_state_dict_is_a_copy_and_comes_back_bit_for_bit() -> None:
    net, other = Net(), Net()
    state = net.state_dict()
    net.scale.assign(5.0)
    assert state["scale"].item() == 1.0
    assert state["count"].dtype == pb.int64
    other.load_state_dict({name: t.numpy() for name, t in state.items()})
    for name, t in other.state_dict().items():
        np.testing.assert_array_equal(t.numpy(), state[name].numpy())


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    before = net.state_dict()
    wrong = {**{name: pb.ones((2, 2)) for name in ("0.weight", "1.weight")}, "0.bias": pb.ones(3), "1.bias": pb.ones(2)}
    with pytest.raises(pb.ShapeError, match=r'"0.bias" has shape \(3,\)'):
        net.load_state_dict(wrong)
    with pytest.raises(pb.PullbackError, match=r"missing 0.bias.*unexpected extra"):
        net.load_state_dict({"extra": 1, **{n: t for n, t in before.items() if n != "0.bias"}})
    for name, t in net.state_dict().items():
        np.testing.assert_array_equal(t.numpy(), before[name].numpy())
    assert net.load_state_dict({"0.bias": np.ones(2), "x": 1}, strict=False) == (["0.weight", "1.weight", "1.bias"], ["x"])
    assert net[0].bias.tolist() == [1.0, 1.0]


def test_weights_move_to_and_from_torch_by_name(torch: Any) -> None:
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))
    ours = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 2))
    ours.load_state_dict({name: t.numpy() for name, t in theirs.state_dict().items()})
    x = normal(5, 3).astype(np.float32)
    np.testing.assert_allclose(ours(pb.tensor(x)).numpy(), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-5, atol=1e-6)
    theirs.load_state_dict({name: torch.tensor(t.numpy()) for name, t in ours.state_dict().items()})


class Tied(nn.Module):
    """A Module that uses one tensor and one module in two places each."""

    def __init__(self) -> None:
        self.layers = [nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)]
        self.layers[2].weight = self.layers[0].weight
        self.last = self.layers[2]


def test_tied_weights_come_under_any_or_all_of_their_paths_as_torch_writes_them(torch: Any) -> None:
    theirs = torch.nn.Module()
    theirs.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3)])
    theirs.layers[2].weight = theirs.layers[0].weight
    theirs.last = theirs.layers[2]
    state = {name: t.numpy() for name, t in theirs.state_dict().items()}
    assert {"layers.0.weight", "layers.2.weight", "last.weight"} <= set(state)
    ours = Tied()
    assert ours.load_state_dict(state) == ([], [])
    np.testing.assert_array_equal(ours.layers[0].weight.numpy(), state["layers.0.weight"])
    fewer = {name: t + 1 for name, t in state.items() if name not in ("layers.0.weight", "last.weight", "last.bias")}
    assert ours.load_state_dict(fewer) == ([], [])
    np.testing.assert_array_equal(ours.layers[0].weight.numpy(), state["layers.0.weight"] + 1)
    with pytest.raises(pb.PullbackError, match=r'"last.weight" is the same tensor as "layers.0.weight"'):
        ours.load_state_dict({**state, "last.weight": np.ones((3, 3))})
    np.testing.assert_array_equal(ours.layers[0].weight.numpy(), state["layers.0.weight"] + 1)


def test_lengths_may_be_numpys_integers() -> None:
    three = np.int64(3)
    assert nn.Linear(three, 4).weight.shape == (4, 3)
    assert nn.Embedding(np.uint8(5), three).weight.shape == (5, 3)
    assert nn.LayerNorm(three).weight.shape == (3,)
    assert nn.RMSNorm(np.array([2, 3])).weight.shape == (2, 3)
    assert type(nn.Linear(three, 4).in_features) is int


@pytest.mark.parametrize("axes", [(1, -1), (0, -1), (0, -2), (-3, 1)], ids=str)
def test_flatten_is_torchs(torch: Any, axes: Any) -> None:
    x = normal(2, 3, 4)
    np.testing.assert_array_equal(nn.Flatten(*axes)(x).numpy(), torch.nn.Flatten(*axes)(torch.tensor(x)).numpy())
    assert nn.Flatten()(pb.tensor(2.0)).shape == (1,)


def test_modes_reach_every_module_and_dropout_obeys() -> None:
    net = nn.Sequential(nn.Identity(), nn.Sequential(nn.Dropout(0.5)))
    x = pb.ones(1000)
    assert 300 < (net(x).numpy() == 0).sum() < 700
    assert net.eval() is net
    assert net(x) is x
    assert net.train()[1][0].training


def test_to_converts_weights_in_place_and_counts_it() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    weight = net[0].weight
    version, net = weight.version, net.to(pb.float64)
    assert net[0].weight is weight
    assert (weight.dtype, weight.version) == (pb.float64, version + 1)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Sigmoid])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_sequential_fuses_an_activation_without_changing_a_bit(activation: Any, dtype: str) -> None:
    chain = nn.Sequential(nn.Linear(7, 5, dtype=dtype), activation())
    x = pb.tensor(normal(9, 7).astype(dtype))
    with pb.GradientTape() as tape:
        fused = chain(x)
    gradients = tape.gradient(fused, chain.parameters(), output_gradients=pb.ones_like(fused))
    with pb.GradientTape() as tape:
        apart = chain[1](chain[0](x))
    np.testing.assert_array_equal(fused.numpy(), apart.numpy())
    if dtype != "float16":
        for got, wanted in zip(gradients, tape.gradient(apart, chain.parameters(), output_gradients=pb.ones_like(apart))):
            np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)


def test_repr_shows_the_tree() -> None:
    assert repr(nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU())) == (
        "Sequential(\n  (0): Linear(in_features=3, out_features=4, bias=False)\n  (1): ReLU()\n)"
    )


def test_a_module_without_forward_says_so() -> None:
    class Empty(nn.Module):
        pass

    with pytest.raises(NotImplementedError, match="Empty has no forward"):
        Empty()(1)


# ---- initial weights


def test_linear_starts_as_torchs() -> None:
    layer = nn.Linear(100, 2000)
    for p in (layer.weight, layer.bias):
        values = p.numpy()
        assert np.abs(values).max() <= 0.1
        assert values.std() == pytest.approx(0.1 / np.sqrt(3), rel=0.05)


@pytest.mark.parametrize(
    ("init", "std"),
    [
        (lambda p: nn.init.xavier_uniform(p), np.sqrt(2 / 700)),
        (lambda p: nn.init.xavier_normal(p, gain=2.0), 2 * np.sqrt(2 / 700)),
        (lambda p: nn.init.kaiming_uniform(p, nonlinearity="relu"), np.sqrt(2 / 400)),
        (lambda p: nn.init.kaiming_normal(p, mode="fan_out"), np.sqrt(2 / 300)),
        (lambda p: nn.init.normal(p, 0.0, 3.0), 3.0),
        (lambda p: nn.init.truncated_normal(p, std=2.0), 2 * 0.8796256610342398),
        (lambda p: nn.init.uniform(p, -1, 1), 1 / np.sqrt(3)),
    ],
)
def test_initial_weights_have_the_published_spread(init: Any, std: float) -> None:
    p = Parameter(np.zeros((300, 400), np.float32))
    assert init(p) is p
    assert p.numpy().std() == pytest.approx(std, rel=0.01)
    assert p.version >= 1


@pytest.mark.parametrize("shape", [(4, 7), (7, 4), (3, 2, 2)], ids=str)
def test_orthogonal_weights_are_orthogonal(shape: Any) -> None:
    matrix = nn.init.orthogonal(Parameter(np.zeros(shape)), gain=2.0).numpy().reshape(shape[0], -1)
    product = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-12)


def test_the_same_seed_gives_the_same_weights() -> None:
    from pullback.ops import random

    random.seed(3)
    first = nn.Linear(4, 4).weight.numpy()
    random.seed(3)
    np.testing.assert_array_equal(nn.Linear(4, 4).weight.numpy(), first)
