"""Recurrent layers and cells: PyTorch's values, gradients and names; exact second derivatives; batches, edges, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import FLOATS, close, dtype_of, host
from pullback import nn
from pullback.ops.recurrent import gru, lstm, rnn

KINDS = ("RNN", "LSTM", "GRU")
SHAPES: dict[str, dict[str, Any]] = {
    "one layer": {},
    "no bias": {"bias": False},
    "three layers": {"num_layers": 3},
    "both directions": {"bidirectional": True, "batch_first": True},
    "everything": {"num_layers": 2, "bidirectional": True, "batch_first": True},
}


_rng: list[Any] = []


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Gives every test the same numbers, whichever tests ran before: finite differences must not meet a kink."""
    _rng[:] = [np.random.default_rng(0)]


def normal(*shape: int) -> Any:
    return _rng[0].standard_normal(shape)


def count(kind: str) -> int:
    return 2 if kind.startswith("LSTM") else 1


def pair_of(torch: Any, kind: str, dtype: str = "float64", *sizes: int, **options: Any) -> tuple[Any, Any]:
    """Returns a layer of PyTorch and one of ours with its weights."""
    theirs = getattr(torch.nn, kind)(*(sizes or (5, 7)), **options, dtype=getattr(torch, dtype))
    ours = getattr(nn, kind)(*(sizes or (5, 7)), **options, dtype=dtype)
    ours.load_state_dict({name: value.numpy() for name, value in theirs.state_dict().items()})
    return theirs, ours


def flat(kind: str, result: Any) -> list[Any]:
    """Returns the output and the last states of a layer, or the states of a cell, as a list."""
    if kind.endswith("Cell"):
        return list(result) if count(kind) == 2 else [result]
    output, last = result
    return [output, *(last if count(kind) == 2 else [last])]


def given(kind: str, states: list[Any]) -> Any:
    return tuple(states) if count(kind) == 2 else states[0] if states else None


def agree(torch: Any, kind: str, theirs: Any, ours: Any, x: Any, states: list[Any], tolerance: float) -> None:
    """Asserts that outputs, last states, and the gradients of everything agree, for random cotangents of all results."""
    dtype = ours.state_dict()[next(iter(ours.state_dict()))].dtype
    ts = [torch.tensor(a.astype(dtype), requires_grad=True) for a in (x, *states)]
    wanted = flat(kind, theirs(ts[0], given(kind, ts[1:])))
    gs = [normal(*y.shape).astype(dtype) for y in wanted]
    xs = [pb.tensor(a, dtype=dtype) for a in (x, *states)]
    with pb.GradientTape() as tape:
        tape.watch(xs)
        results = flat(kind, ours(xs[0], given(kind, xs[1:])))
    sources = [*xs, *ours.parameters()]
    gradients = tape.gradient(results, sources, output_gradients=[pb.tensor(g) for g in gs])
    right = torch.autograd.grad(wanted, [*ts, *theirs.parameters()], [torch.tensor(g) for g in gs])
    for got, expected in zip([*results, *gradients], [*wanted, *right]):
        assert got.shape == tuple(expected.shape)
        np.testing.assert_allclose(host(got), expected.detach().numpy(), rtol=tolerance, atol=tolerance)


# ---- PyTorch


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("options", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_layers_are_torchs(torch: Any, kind: str, options: str, dtype: str) -> None:
    how = SHAPES[options]
    theirs, ours = pair_of(torch, kind, dtype, **how)
    x = normal(4, 6, 5)
    rows = how.get("num_layers", 1) * (1 + how.get("bidirectional", False))
    states = [normal(rows, 4 if how.get("batch_first") else 6, 7) for _ in range(count(kind))]
    agree(torch, kind, theirs, ours, x, states, 1e-10 if dtype == "float64" else 1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_long_sequences_of_many_rows_are_torchs(torch: Any, kind: str) -> None:
    theirs, ours = pair_of(torch, kind, "float64", 12, 33, bidirectional=True)
    agree(torch, kind, theirs, ours, normal(40, 19, 12), [normal(2, 19, 33) for _ in range(count(kind))], 1e-10)


def test_relu_is_torchs(torch: Any) -> None:
    theirs, ours = pair_of(torch, "RNN", nonlinearity="relu", num_layers=2)
    agree(torch, "RNN", theirs, ours, normal(4, 6, 5), [normal(2, 6, 7)], 1e-10)
    theirs, ours = pair_of(torch, "RNNCell", nonlinearity="relu")
    agree(torch, "RNNCell", theirs, ours, normal(6, 5), [normal(6, 7)], 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_sequence_is_torchs(torch: Any, kind: str) -> None:
    theirs, ours = pair_of(torch, kind, num_layers=2, bidirectional=True, batch_first=True)
    agree(torch, kind, theirs, ours, normal(4, 5), [normal(4, 7) for _ in range(count(kind))], 1e-10)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lead", [(6,), ()], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_cells_are_torchs(torch: Any, kind: str, lead: Any, bias: bool, dtype: str) -> None:
    theirs, ours = pair_of(torch, f"{kind}Cell", dtype, bias=bias)
    states = [normal(*lead, 7) for _ in range(count(kind))]
    agree(torch, f"{kind}Cell", theirs, ours, normal(*lead, 5), states, 1e-10 if dtype == "float64" else 1e-4)


@pytest.mark.parametrize("kind", [*KINDS, "RNNCell", "LSTMCell", "GRUCell"])
def test_names_and_initial_weights_are_torchs(torch: Any, kind: str) -> None:
    options = {} if kind.endswith("Cell") else {"num_layers": 2, "bidirectional": True}
    theirs, ours = getattr(torch.nn, kind)(30, 100, **options), getattr(nn, kind)(30, 100, **options)
    assert {n: tuple(p.shape) for n, p in theirs.state_dict().items()} == {n: p.shape for n, p in ours.state_dict().items()}
    assert list(theirs.state_dict()) == list(ours.state_dict())
    assert list(getattr(nn, kind)(30, 100, bias=False, **options).state_dict()) == [n for n in ours.state_dict() if "bias" not in n]
    for name, p in ours.state_dict().items():
        assert abs(host(p)).max() <= 0.1, name
        assert abs(host(p).std() - 0.1 / 3**0.5) < 0.01, name


@pytest.mark.parametrize("kind", KINDS)
def test_weights_move_in_both_directions(torch: Any, kind: str, tmp_path: Path) -> None:
    ours, theirs = getattr(nn, kind)(5, 7, 2, bidirectional=True), getattr(torch.nn, kind)(5, 7, 2, bidirectional=True)
    pb.save(tmp_path / "weights.safetensors", ours.state_dict())
    theirs.load_state_dict({n: torch.tensor(host(p)) for n, p in pb.load(tmp_path / "weights.safetensors").items()})
    x = normal(3, 2, 5).astype(np.float32)
    wanted = theirs(torch.tensor(x))[0].detach().numpy()
    np.testing.assert_allclose(host(ours(x)[0]), wanted, rtol=1e-4, atol=1e-6)  # terms of size 1 may cancel
    again = getattr(nn, kind)(5, 7, 2, bidirectional=True)
    again.load_state_dict({n: p.numpy() for n, p in theirs.state_dict().items()})
    np.testing.assert_array_equal(host(again(x)[0]), host(ours(x)[0]))


# ---- derivatives


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_are_those_of_finite_differences(kind: str, reverse: bool) -> None:
    layer = getattr(nn, kind)(2, 3, bidirectional=reverse, dtype="float64")
    states = [normal(1 + reverse, 2, 3) for _ in range(count(kind))]

    def f(x: Any, *given_states: Any) -> Any:
        return flat(kind, layer(x, given(kind, list(given_states))))

    pb.check_gradients(f, (normal(3, 2, 2), *states))


@pytest.mark.parametrize("relu", [False, True])
def test_derivatives_by_weights_are_those_of_finite_differences(relu: bool) -> None:
    for gates, f, states in ((1, lambda *xs: rnn(*xs, False, relu), 1), (3, gru, 1), (4, lstm, 2)):
        shapes = ((3, 2, 3 * gates), *[(2, 3)] * states, (3 * gates, 3), (3 * gates,))
        pb.check_gradients(f, [normal(*shape) for shape in shapes], step=1e-3 if relu else 1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_forward_mode_is_the_transpose_of_reverse_mode(kind: str) -> None:
    layer = getattr(nn, kind)(2, 3, dtype="float64")
    x, v = pb.tensor(normal(4, 2, 2)), pb.tensor(normal(4, 2, 2))
    y, tangent = pb.jvp(lambda x: layer(x)[0], (x,), (v,))
    u = pb.tensor(normal(*y.shape))
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)[0]
    close(pb.sum(u * tangent), pb.sum(v * tape.gradient(y, x, output_gradients=u)), 1e-10)


# ---- batches of examples


@pytest.mark.parametrize("kind", KINDS)
def test_vmap_is_a_loop(kind: str) -> None:
    layer = getattr(nn, kind)(5, 7, 2, bidirectional=True, dtype="float64")
    xs = pb.tensor(normal(3, 4, 2, 5))
    got = pb.vmap(lambda x: tuple(flat(kind, layer(x))))(xs)
    wanted = [flat(kind, layer(x)) for x in pb.unstack(xs)]
    for k, y in enumerate(got):
        close(y, np.stack([host(results[k]) for results in wanted]), 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_vmap_over_states_and_weights(kind: str) -> None:
    """Members of an ensemble have weights of their own."""
    gates, f = {"RNN": (1, rnn), "LSTM": (4, lstm), "GRU": (3, gru)}[kind]
    x = pb.tensor(normal(4, 2, 7 * gates))
    states = [pb.tensor(normal(3, 2, 7)) for _ in range(count(kind))]
    weight, bias = pb.tensor(normal(3, 7 * gates, 7)), pb.tensor(normal(3, 7 * gates))

    def loss(weight: Any, bias: Any, *states: Any) -> Any:
        return pb.sum(f(x, *states, weight, bias) ** 2)

    got = pb.vmap(pb.grad(loss, argnums=tuple(range(2 + len(states)))))(weight, bias, *states)
    for i in range(3):
        wanted = pb.grad(loss, argnums=tuple(range(2 + len(states))))(weight[i], bias[i], *[state[i] for state in states])
        for a, b in zip(got, wanted):
            close(a[i], host(b), 1e-9)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_per_example_are_those_of_each_example(kind: str, bias: bool) -> None:
    layer = getattr(nn, kind)(5, 7, 2, bias=bias, dtype="float64")
    xs = pb.tensor(normal(6, 4, 5))

    def loss(parameters: Any, x: Any) -> Any:
        return pb.sum(layer(x)[0] ** 2)

    got = pb.per_example_grad(loss)(layer.parameters(), xs)
    for i in range(6):
        with pb.GradientTape() as tape:
            y = pb.sum(layer(xs[i])[0] ** 2)
        for a, b in zip(got, tape.gradient(y, list(layer.parameters()))):
            close(a[i], host(b), 1e-9)


# ---- dtypes, edges


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_dtype(kind: str, dtype: str) -> None:
    layer, exact = [getattr(nn, kind)(5, 7, bidirectional=True, dtype=d) for d in (dtype, "float64")]
    exact.load_state_dict({n: host(p).astype(np.float64) for n, p in layer.state_dict().items()})
    x = pb.tensor(normal(9, 4, 5), dtype=dtype)
    tolerance = {"float16": 5e-3, "bfloat16": 4e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    for got, wanted in zip(flat(kind, layer(x)), flat(kind, exact(x.astype("float64")))):
        assert got.dtype == dtype_of(dtype)
        np.testing.assert_allclose(host(got).astype(np.float64), host(wanted), atol=tolerance)
    with pb.GradientTape() as tape:
        y = pb.sum(layer(x)[0])
    assert {g.dtype for g in tape.gradient(y, list(layer.parameters()))} == {dtype_of(dtype)}


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_few_steps_and_rows(kind: str, steps: int, rows: int) -> None:
    layer = getattr(nn, kind)(5, 7, 2, bidirectional=True, dtype="float64")
    x, states = pb.tensor(normal(steps, rows, 5)), [pb.tensor(normal(4, rows, 7)) for _ in range(count(kind))]
    with pb.GradientTape() as tape:
        tape.watch([x, *states])
        output, *last = flat(kind, layer(x, given(kind, states)))
        loss = pb.sum(output) + sum([pb.sum(h * h) for h in last])
    assert output.shape == (steps, rows, 14)
    assert [h.shape for h in last] == [(4, rows, 7)] * count(kind)
    if not steps:  # no step changes the states
        for h, state in zip(last, states):
            np.testing.assert_array_equal(host(h), host(state))
    gradients = tape.gradient(loss, [x, *states, *layer.parameters()], unconnected="zero")
    assert all([bool(pb.all(pb.isfinite(g))) for g in gradients])


def test_layouts_do_not_matter() -> None:
    layer, x = nn.LSTM(5, 7, dtype="float64"), normal(4, 3, 5)
    wanted = host(layer(pb.tensor(x))[0])
    close(layer(pb.permute_dims(pb.tensor(np.ascontiguousarray(x.T)), (2, 1, 0)))[0], wanted, 1e-12)
    close(layer(pb.flip(pb.tensor(x[::-1].copy()), axis=0))[0], wanted, 1e-12)


def test_dtypes_are_promoted() -> None:
    layer = nn.GRU(5, 7)
    y, last = layer(pb.tensor(normal(4, 3, 5)), pb.zeros((1, 3, 7), dtype="float64"))
    assert y.dtype == last.dtype == pb.float64


def test_dropout_acts_between_layers_in_training() -> None:
    pb.random.seed(0)
    layer = nn.GRU(5, 7, 2, dropout=0.5)
    x = pb.tensor(normal(4, 3, 5), dtype="float32")
    first, second = [host(layer(x)[0]) for _ in range(2)]
    assert not np.array_equal(first, second)
    layer.eval()
    np.testing.assert_array_equal(host(layer(x)[0]), host(layer(x)[0]))
    with pytest.warns(UserWarning, match="no effect: it is applied between layers"):
        nn.GRU(5, 7, dropout=0.5)


def test_projections_after_each_layer_are_those_of_torch() -> None:
    """What the error for proj_size= says to write."""
    torch = pytest.importorskip("torch")
    theirs = torch.nn.LSTM(5, 7, num_layers=2, proj_size=3, dtype=torch.float64)
    x = np.random.default_rng(0).standard_normal((6, 2, 5))
    wanted, state = theirs(torch.tensor(x))[0].detach().numpy(), {k: v.detach().numpy() for k, v in theirs.state_dict().items()}
    y = pb.tensor(x)
    for i in range(2):
        ours, projection = nn.LSTM(y.shape[-1], 7, dtype="float64"), nn.Linear(7, 3, bias=False, dtype="float64")
        mine = {name: state[name.replace("l0", f"l{i}")] for name in ours.state_dict()}
        project = state[f"weight_hr_l{i}"]
        ours.load_state_dict(mine | {"weight_hh_l0": mine["weight_hh_l0"] @ project})
        projection.load_state_dict({"weight": project})
        y = projection(ours(y)[0])
    np.testing.assert_allclose(host(y), wanted, atol=1e-12)


# ---- errors


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: nn.LSTM(5, 7, proj_size=3), pb.PullbackError, r"proj_size=3 is .*nn.Linear\(7, 3, bias=False\)"),
        (lambda: nn.RNN(5, 7, nonlinearity="gelu"), pb.PullbackError, r'nonlinearity is \'gelu\'; use "tanh" or "relu"'),
        (lambda: nn.RNNCell(5, 7, nonlinearity="gelu"), pb.PullbackError, "nonlinearity"),
        (lambda: nn.GRU(5, 0), pb.ShapeError, "hidden_size=0 must be an integer of 1 or more"),
        (lambda: nn.GRU(5, 7, 0), pb.ShapeError, "num_layers=0"),
        (lambda: nn.GRU(5, 7, 2, dropout=1.5), pb.PullbackError, "dropout=1.5 is not a probability"),
        (lambda: nn.GRU(5, 7, bias=3), pb.DTypeError, "bias=3 must be True or False"),
        (lambda: nn.GRU(5, 7)(pb.ones((2, 3, 4))), pb.ShapeError, r"has 4 features, but input_size is 5.*nn.GRU\(4, 7\)"),
        (lambda: nn.GRU(5, 7)(pb.ones(5)), pb.ShapeError, r"must be \(steps, batch, input_size\), or \(steps, input_size\)"),
        (lambda: nn.GRUCell(5, 7)(pb.ones((2, 3, 5))), pb.ShapeError, r"must be \(batch, input_size\), or \(input_size,\)"),
        (lambda: nn.GRU(5, 7)(pb.ones((2, 3, 5)), pb.ones((3, 7))), pb.ShapeError, r"h has shape \(3, 7\).*needs \(1, 3, 7\)"),
        (lambda: nn.LSTM(5, 7)(pb.ones((2, 3, 5)), pb.ones((1, 3, 7))), pb.PullbackError, r"give a pair \(h, c\)"),
        (lambda: nn.GRU(5, 7)(pb.ones((2, 3, 5)), (pb.ones((1, 3, 7)),) * 2), pb.PullbackError, "give one tensor h"),
        (lambda: nn.LSTMCell(5, 7)(pb.ones((3, 5)), (pb.ones((3, 7)), pb.ones(7))), pb.ShapeError, r"c has shape \(7,\)"),
    ],
)
def test_wrong_calls_are_answered(call: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=f"(?s){words}"):
        call()


def test_layers_show_what_differs_from_the_default() -> None:
    assert repr(nn.LSTM(5, 7, 2, batch_first=True)) == "LSTM(5, 7, num_layers=2, batch_first=True)"
    assert repr(nn.GRUCell(5, 7, bias=False)) == "GRUCell(5, 7, bias=False)"
