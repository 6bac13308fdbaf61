"""Layers of attention: PyTorch's names, weights, values and gradients; shared heads, rotary positions, norms; wrong calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host
from pullback import nn
from pullback.nn.functional import rotary, scaled_dot_product_attention as attend

_rng: list[Any] = []


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    _rng[:] = [np.random.default_rng(0)]


def normal(*shape: int, dtype: str = "float64") -> Any:
    return _rng[0].standard_normal(shape).astype(dtype)


def pair_of(torch: Any, dtype: str, *sizes: int, **options: Any) -> tuple[Any, Any]:
    """Returns a layer of PyTorch and one of ours, with the same random weights."""
    theirs = torch.nn.MultiheadAttention(*sizes, **options, dtype=getattr(torch, dtype))
    ours = nn.MultiheadAttention(*sizes, **options, dtype=dtype)
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.tensor(normal(*p.shape, dtype=dtype) / 2))
    ours.load_state_dict({name: value.numpy() for name, value in theirs.state_dict().items()})
    return theirs, ours


@pytest.mark.parametrize(
    ("dtype", "options", "bound"),
    [
        ("float64", {}, 1e-10), ("float32", {"batch_first": True}, 1e-4), ("float64", {"bias": False, "batch_first": True}, 1e-10),
        ("float64", {"kdim": 5, "vdim": 7}, 1e-10),
    ],
)
def test_values_and_gradients_are_those_of_torch(dtype: str, options: Any, bound: float) -> None:
    torch = pytest.importorskip("torch")
    theirs, ours = pair_of(torch, dtype, 12, 3, **options)
    sizes = ((2, 4, 12), (2, 6, options.get("kdim", 12)), (2, 6, options.get("vdim", 12)))
    xs = [normal(*size, dtype=dtype) for size in sizes]
    xs = xs if options.get("batch_first") else [x.swapaxes(0, 1) for x in xs]
    padding, pairs = normal(2, 6) > 0.8, normal(4, 6) > 0.8
    padding[:, 0] = pairs[:, 0] = False
    ts = [torch.tensor(x, requires_grad=True) for x in xs]
    for masks in ({}, {"key_padding_mask": padding}, {"key_padding_mask": padding, "attn_mask": pairs}):
        y, weights = theirs(*ts, **{name: torch.tensor(m) for name, m in masks.items()})
        leaves = [*ts, *theirs.parameters()]
        wanted = torch.autograd.grad((y * y).sum(), leaves)
        given = [pb.tensor(x) for x in xs]
        with pb.GradientTape() as tape:
            for x in given:
                tape.watch(x)
            out, _ = ours(*given, need_weights=False, **masks)
            loss = (out * out).sum()
        found = tape.gradient(loss, [*given, *ours.parameters()])
        np.testing.assert_allclose(out.numpy(), y.detach().numpy(), atol=bound)
        np.testing.assert_allclose(ours(*given, **masks)[1].numpy(), weights.detach().numpy(), atol=bound)
        for a, b in zip(found, wanted):
            np.testing.assert_allclose(a.numpy(), b.numpy(), atol=20 * bound, rtol=bound)


def test_weights_go_both_ways_and_start_as_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = nn.MultiheadAttention(64, 4), torch.nn.MultiheadAttention(64, 4)
    assert {k: tuple(v.shape) for k, v in theirs.state_dict().items()} == {k: v.shape for k, v in ours.state_dict().items()}
    assert not ours.in_proj_bias.numpy().any()
    assert not ours.out_proj.bias.numpy().any()
    for a, b in ((ours.in_proj_weight, theirs.in_proj_weight), (ours.out_proj.weight, theirs.out_proj.weight)):
        assert abs(float(np.std(a.numpy())) / float(b.detach().std()) - 1) < 0.1
    theirs.load_state_dict({name: torch.tensor(value.numpy()) for name, value in ours.state_dict().items()})
    x = normal(5, 2, 64, dtype="float32")
    np.testing.assert_allclose(ours(x, x, x)[0].numpy(), theirs(*[torch.tensor(x)] * 3)[0].detach().numpy(), atol=1e-5)


def test_other_masks_and_weights_of_each_head_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    theirs, ours = pair_of(torch, "float64", 8, 2)
    x, each = normal(4, 3, 8), normal(6, 4, 4)
    padding = np.where(normal(3, 4) > 1, -np.inf, 0.5)
    t = torch.tensor(x)
    for masks in ({"attn_mask": each}, {"attn_mask": each, "key_padding_mask": padding}):
        y, weights = theirs(t, t, t, average_attn_weights=False, **{name: torch.tensor(m) for name, m in masks.items()})
        found = ours(x, x, x, average_attn_weights=False, **masks)
        np.testing.assert_allclose(found[0].numpy(), y.detach().numpy(), atol=1e-12)
        np.testing.assert_allclose(found[1].numpy(), weights.detach().numpy(), atol=1e-12)
    causal = np.triu(np.ones((4, 4), bool), 1)
    y, _ = theirs(t, t, t, attn_mask=torch.tensor(causal))
    np.testing.assert_allclose(ours(x, x, x, need_weights=False, is_causal=True)[0].numpy(), y.detach().numpy(), atol=1e-12)
    one = x[:, 0]
    y, weights = theirs(*[torch.tensor(one)] * 3)
    found = ours(one, one, one)
    np.testing.assert_allclose(found[0].numpy(), y.detach().numpy(), atol=1e-12)
    np.testing.assert_allclose(found[1].numpy(), weights.detach().numpy(), atol=1e-12)


def test_bools_and_floats_are_combined() -> None:
    layer = nn.MultiheadAttention(4, 1, dtype="float64")
    x, padding = normal(3, 2, 4), np.array([[False, True, False], [False, False, True]])
    added = np.where(np.tri(3), 0.0, -np.inf)
    a, _ = layer(x, x, x, key_padding_mask=padding, attn_mask=added, need_weights=False)
    b, _ = layer(x, x, x, key_padding_mask=padding, attn_mask=~np.tri(3, dtype=bool), need_weights=False)
    np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-14)


def test_self_attention_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    theirs, _ = pair_of(torch, "float64", 12, 3, batch_first=True)
    ours = nn.MultiHeadAttention(12, 3, dtype="float64")
    ours.load_state_dict({name: value.numpy() for name, value in theirs.state_dict().items()})
    x = normal(2, 5, 12)
    wanted = theirs(*[torch.tensor(x)] * 3)[0].detach().numpy()
    np.testing.assert_allclose(ours(x).numpy(), wanted, atol=1e-12)
    np.testing.assert_allclose(ours(x[1]).numpy(), wanted[1], atol=1e-12)


def test_every_option_of_self_attention_is_its_formula() -> None:
    layer = nn.MultiHeadAttention(8, 4, 2, head_dim=6, bias=False, causal=True, rotary=100.0, interleaved=True, qk_norm=True)
    layer.to("float64")
    layer.q_norm.weight.assign(pb.tensor(normal(6)))
    x, mask, at = normal(2, 5, 8), np.tri(5, k=1, dtype=bool) & (normal(5, 5) < 1.5) | np.eye(5, dtype=bool), np.arange(5) * 3
    y = x @ layer.in_proj_weight.numpy().T
    q, k, v = [t.reshape(2, 5, -1, 6).transpose(0, 2, 1, 3) for t in np.split(y, [24, 36], axis=-1)]
    q, k = [t / np.sqrt((t * t).mean(-1, keepdims=True) + np.finfo(float).eps) for t in (q, k)]
    q, k = [rotary(t, at, base=100.0, interleaved=True) for t in (q * layer.q_norm.weight.numpy(), k)]
    z = host(attend(q, k, v, mask, is_causal=True, enable_gqa=True)).transpose(0, 2, 1, 3).reshape(2, 5, 24)
    np.testing.assert_allclose(layer(x, mask, at).numpy(), z @ layer.out_proj.weight.numpy().T, atol=1e-10)
    assert [*layer.state_dict()] == ["in_proj_weight", "out_proj.weight", "q_norm.weight", "k_norm.weight"]
    assert "num_kv_heads=2, causal=True, rotary=100" in repr(layer)


def test_dropout_is_for_training_only() -> None:
    layer = nn.MultiHeadAttention(8, 2, dropout=0.5)
    x = normal(1, 6, 8, dtype="float32")
    assert (layer(x).numpy() != layer(x).numpy()).any()
    layer.eval()
    np.testing.assert_array_equal(layer(x).numpy(), layer(x).numpy())


def test_returned_weights_are_those_after_dropout() -> None:
    """As in PyTorch, where half of the weights of each head are zero and the others are doubled."""
    layer = nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True, dtype="float64")
    x = normal(2, 5, 6)
    y, weights = layer(x, x, x, average_attn_weights=False)
    v = (x @ layer.in_proj_weight.numpy()[12:].T).reshape(2, 5, 2, 3).transpose(0, 2, 1, 3)
    z = (weights.numpy() @ v).transpose(0, 2, 1, 3).reshape(2, 5, 6)
    np.testing.assert_allclose(y.numpy(), z @ layer.out_proj.weight.numpy().T, atol=1e-13)
    assert 0.2 < (weights.numpy() == 0).mean() < 0.8
    pb.random.seed(0)
    each = layer(x, x, x, average_attn_weights=False)[1].numpy()
    pb.random.seed(0)
    np.testing.assert_allclose(layer(x, x, x)[1].numpy(), each.mean(axis=1), atol=1e-15)
    layer.eval()
    np.testing.assert_allclose(layer(x, x, x)[1].numpy().sum(axis=-1), 1.0, atol=1e-14)


def test_gradients_of_each_example() -> None:
    layer = nn.MultiHeadAttention(8, 4, 2, causal=True, rotary=True, dtype="float64")
    x = pb.tensor(normal(3, 5, 8))

    names = [name for name, _ in layer.named_parameters()]

    def loss(weights: Any, x: Any) -> Any:
        return (nn.functional_call(layer, weights, x) ** 2).sum()

    found = pb.per_example_grad(loss)(dict(layer.named_parameters()), x)
    each = [found[name] for name in names]
    for i in range(3):
        with pb.GradientTape() as tape:
            one = (layer(x[i]) ** 2).sum()
        for of_all, of_one in zip(each, tape.gradient(one, layer.parameters())):
            np.testing.assert_allclose(of_all[i].numpy(), of_one.numpy(), atol=1e-11)


@pytest.mark.parametrize("heads", [2, 4])
def test_positions_with_two_axes_are_those_of_each_sequence(heads: int) -> None:
    """With as many sequences as heads, too: there, the axis of the batch could be taken for that of the heads."""
    layer = nn.MultiHeadAttention(8, heads, causal=True, rotary=True, dtype="float64")
    x, positions = normal(2, 5, 8), np.array([[0, 1, 2, 3, 4], [0, 2, 5, 6, 9]])
    wanted = np.stack([layer(one, positions=places).numpy() for one, places in zip(x, positions)])
    for given in (positions, positions[:, None], positions.astype(np.float32)):
        np.testing.assert_allclose(layer(x, positions=given).numpy(), wanted, atol=1e-13)
    np.testing.assert_allclose(layer(x[:1], positions=positions[1:]).numpy(), layer(x[:1], positions=positions[1]).numpy())
    np.testing.assert_allclose(layer(x, positions=positions[1:]).numpy(), layer(x, positions=positions[1]).numpy())
    np.testing.assert_allclose(rotary(x.reshape(2, 1, 5, 8), positions[:, None]).numpy()[1, 0], rotary(x[1], positions[1]).numpy())
    if heads == 2:  # A position of its own for each head is refused.
        with pytest.raises(pb.ShapeError, match=r"positions \(2, 2, 5\) do not fit x \(2, 5, 8\).*give \(5,\) .* or \(2, 5\)"):
            layer(x, positions=np.ones((2, 2, 5)))


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_one_more_key_after_the_projections_is_that_of_torch(option: str) -> None:
    """What the error for these options says to write."""
    torch = pytest.importorskip("torch")
    theirs = torch.nn.MultiheadAttention(6, 2, batch_first=True, dtype=torch.float64, **{option: True})
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.tensor(normal(*p.shape)))
    state = {name: value.numpy() for name, value in theirs.state_dict().items()}
    xs = [normal(2, 4, 6), normal(2, 5, 6), normal(2, 5, 6)]
    wanted = theirs(*[torch.tensor(x) for x in xs])[0].detach().numpy()
    parts = []
    for i, x in enumerate(xs):
        layer = nn.Linear(6, 6, dtype="float64")
        layer.load_state_dict({name: state[f"in_proj_{name}"][6 * i : 6 * i + 6] for name in ("weight", "bias")})
        y = layer(x)
        if i:
            more = state[f"bias_{'kv'[i - 1]}"] if option == "add_bias_kv" else np.zeros((1, 1, 6))
            y = pb.concat([y, pb.broadcast_to(more, (2, 1, 6))], axis=1)
        parts.append(y.reshape(2, -1, 2, 3).swapaxes(1, 2))
    z = attend(*parts).swapaxes(1, 2).reshape(2, 4, 6).numpy()
    np.testing.assert_allclose(z @ state["out_proj.weight"].T + state["out_proj.bias"], wanted, atol=1e-12)


X = np.ones((2, 5, 6), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: nn.MultiheadAttention(6, 4), pb.ShapeError, "num_heads=4 does not divide embed_dim=6"),
        (lambda: nn.MultiheadAttention(6, 0), pb.ShapeError, "num_heads=0 must be an integer of 1 or more"),
        (lambda: nn.MultiheadAttention(6, 2, add_bias_kv=True), pb.PullbackError, "add_bias_kv=True .* after the projections"),
        (lambda: nn.MultiheadAttention(6, 2, add_zero_attn=True), pb.PullbackError, "add_zero_attn=True is not supported"),
        (lambda: nn.MultiheadAttention(6, 2, dropout=2), pb.PullbackError, "dropout=2 is not a probability"),
        (lambda: nn.MultiheadAttention(6, 2)(X[..., :4], X, X), pb.ShapeError, "query has 4 features, but the layer takes 6"),
        (lambda: nn.MultiheadAttention(6, 2)(X, X[0], X[0]), pb.ShapeError, r"must all be \(T, batch, features\)"),
        (lambda: nn.MultiheadAttention(6, 2)(X, X[:, :3], X[:, :3]), pb.ShapeError, "must have the same batch"),
        (lambda: nn.MultiheadAttention(6, 2)(X, X, X, np.ones((5, 2), int)), pb.DTypeError, "key_padding_mask has dtype int64"),
        (lambda: nn.MultiheadAttention(6, 2)(X, X, X, np.ones((2, 5), bool)), pb.ShapeError, r"must be \(5, 2\)"),
        (lambda: nn.MultiheadAttention(6, 2)(X, X, X, attn_mask=np.ones((3, 2, 2), bool)), pb.ShapeError, "attn_mask has shape"),
        (lambda: nn.MultiHeadAttention(6, 4), pb.ShapeError, "does not divide embed_dim=6. Pass head_dim."),
        (lambda: nn.MultiHeadAttention(6, 6, 4), pb.ShapeError, "num_kv_heads=4 does not divide num_heads=6"),
        (lambda: nn.MultiHeadAttention(6, 2, rotary=True), pb.ShapeError, "head_dim=3 must be even"),
        (lambda: nn.MultiHeadAttention(6, 2)(X[..., :3]), pb.ShapeError, r"it must be \(batch, T, 6\)"),
        (lambda: nn.MultiHeadAttention(6, 2)(X, positions=np.arange(5)), pb.PullbackError, "Make the layer with rotary=True"),
        (lambda: nn.MultiHeadAttention(6, 2, num_heads_kv=1), TypeError, "it is num_kv_heads= here"),  # type: ignore[call-arg]
        (lambda: nn.MultiHeadAttention(6, 2, causal=1), pb.DTypeError, "causal"),
        (lambda: nn.MultiHeadAttention(8, 2, rotary=-1.0), pb.PullbackError, "MultiHeadAttention: rotary=-1.0 must be positive"),
        (
            lambda: nn.MultiHeadAttention(12, 3, rotary=True)(np.ones((2, 5, 12)), positions=np.ones((3, 5))),
            pb.ShapeError,
            r"MultiHeadAttention: positions \(3, 5\) do not fit x \(2, 5, 12\)\. .* give \(5,\) for all .* or \(2, 5\) for each",
        ),
        (
            lambda: nn.MultiHeadAttention(6, 2)(X, np.ones((4, 5), bool)),
            pb.ShapeError,
            r"MultiHeadAttention: mask has shape \(4, 5\)",
        ),
        (lambda: nn.MultiHeadAttention(6, 2)(X, np.ones((5, 5), int)), pb.DTypeError, "MultiHeadAttention: mask has dtype int64"),
        (lambda: nn.MultiheadAttention(6, 2)(X, X, X, is_causal=1), pb.DTypeError, "MultiheadAttention: is_causal=1 must be"),
        (lambda: nn.MultiheadAttention(6, 2)(X, X, X, average_attn_weights=0), pb.DTypeError, "average_attn_weights=0 must be"),
    ],
)
def test_wrong_calls_are_explained(call: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call()
