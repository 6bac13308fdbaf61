"""tape.diagnose: dead and saturated layers, the first NaN, sources without gradient, and the TensorBoard files of a diagnosis."""

from __future__ import annotations

import importlib
import math
import re
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import host, ops, watched
from pullback import nn
from pullback.report.diagnosis import Diagnosis
from pullback.report.measures import Measures, squashes

HERE = r'recorded at ".*test_diagnose\.py", line \d+, in \w+'


def row(found: Diagnosis, start: str) -> Measures:
    (only,) = [r for r in found.rows if r.tag.startswith(start)]
    return only


def mlp(*between: Any) -> nn.Module:
    layers: list[Any] = []
    for activation in between:
        layers += [nn.Linear(16, 16), activation]
    net = nn.Sequential(*layers, nn.Linear(16, 4))
    rng = np.random.default_rng(0)
    for p in net.parameters():
        p.assign(rng.standard_normal(p.shape) * 0.3)
    return net


def diagnosed(net: nn.Module, sources: Any = None, persistent: bool = False) -> Diagnosis:
    rng = np.random.default_rng(1)
    x, labels = pb.tensor(rng.standard_normal((64, 16)).astype(np.float32)), pb.tensor(np.arange(64) % 4)
    with pb.GradientTape(persistent=persistent) as tape:
        loss = nn.cross_entropy(net(x), labels)
    return tape.diagnose(loss, net.parameters() if sources is None else sources)


# ---- dead and saturated


def test_an_all_dead_relu_layer_is_named() -> None:
    net = mlp(nn.ReLU(), nn.ReLU(), nn.ReLU())
    dict(net.named_parameters())["2.bias"].assign(np.full(16, -1000.0))
    found = diagnosed(net)
    assert row(found, "linear_activated 2.weight").dead == 1.0
    assert row(found, "linear_activated 2.weight").norm > 0  # A gradient arrives, but none passes on.
    assert 0 < row(found, "linear_activated 4.weight").dead < 0.9  # The layer above is alive.
    assert [s.dead for s in found.sources[:4]] == [1.0] * 4
    assert found.sources[-1].dead == 0.0
    (finding,) = found.findings
    assert 'Parameter "2.weight"' in finding
    assert "dead" in finding
    assert finding in str(found)


def test_relu_as_an_op_of_its_own_is_named_by_its_line() -> None:
    w = pb.Parameter([-1.0, -2.0], name="w")
    with pb.GradientTape() as tape:
        y = pb.sum(pb.relu(w * 3.0) * 2.0)
    found = tape.diagnose(y, w)
    assert row(found, "relu").dead == 1.0
    assert re.search("no gradient passes relu, " + HERE, found.findings[0])


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid])
@pytest.mark.parametrize("fused", [True, False])
def test_weights_of_stddev_200_saturate(activation: Any, fused: bool) -> None:
    class Apart(nn.Module):  # This activation is not fused with the layer before it.
        def forward(self, x: Any) -> Any:
            return activation()(x)

    net = mlp(activation() if fused else Apart())
    first = net.parameters()[0]
    assert (row(diagnosed(net), op_of(activation, fused)).saturated or 0) < 0.1
    first.assign(np.random.default_rng(2).standard_normal(first.shape) * 200)
    found = diagnosed(net)
    share = row(found, op_of(activation, fused)).saturated
    assert share is not None
    assert share > 0.95
    assert any(["saturated" in finding for finding in found.findings])


def op_of(activation: Any, fused: bool) -> str:
    return "linear_activated" if fused else activation.__name__.lower()


def test_saturation_is_measured_by_the_slope() -> None:
    x = pb.tensor([-5.0, -1.0, 0.0, 2.0, 9.0], dtype=pb.float64)
    with pb.GradientTape() as tape:
        tape.watch(x)
        y = pb.sum(pb.tanh(x)) + pb.sum(pb.sigmoid(x)) + pb.sum(pb.square(0.001 * x))
    found = tape.diagnose(y, x)
    slopes = {"tanh": 1 - np.tanh(host(x)) ** 2, "sigmoid": np.exp(-host(x)) / (1 + np.exp(-host(x))) ** 2}
    for name, slope in slopes.items():
        assert row(found, name).saturated == np.mean(slope < 0.01)
    assert row(found, "square").saturated is None  # Its slope is small near its minimum, but it does not saturate.


def test_functions_that_saturate_are_those_with_two_limits() -> None:
    assert {op.name for op in ops("unary") if any(op.rules) and squashes(op)} == {"tanh", "sigmoid", "erf", "erfc", "atan"}


# ---- norms


def test_norms_are_those_of_the_gradients() -> None:
    net = mlp(nn.Tanh())
    rng = np.random.default_rng(1)
    x, labels = pb.tensor(rng.standard_normal((64, 16)).astype(np.float32)), pb.tensor(np.arange(64) % 4)
    with pb.GradientTape() as tape:
        h = net(x)
        loss = nn.cross_entropy(h, labels)
    sources = [*net.parameters(), h]
    found = tape.diagnose(loss, sources)
    for got, gradient in zip(found.sources, tape.gradient(loss, sources)):  # The diagnosis does not consume the tape.
        g = gradient.numpy().astype(np.float64)
        assert got.norm == pytest.approx(float(np.linalg.norm(g)), rel=1e-6)
        assert got.dead == float((g == 0).mean())
        assert got.histogram.counts.sum() == g.size
        assert got.histogram.sum_squares == pytest.approx(got.norm**2, rel=1e-6)
    assert [r.name for r in found.sources[:2]] == ['Parameter "0.weight"', 'Parameter "0.bias"']
    assert row(found, "linear 2.weight").norm == found.sources[-1].norm
    assert found.findings == []
    assert "nothing looks wrong" in str(found)


def test_a_target_that_is_not_a_scalar_takes_output_gradients() -> None:
    x = pb.Parameter([3.0, 4.0], name="x")
    with pb.GradientTape() as tape:
        y = 2.0 * x
    with pytest.raises(pb.TapeError, match="output_gradients"):
        tape.diagnose(y, x)
    assert tape.diagnose(y, x, output_gradients=[3.0, 4.0]).sources[0].norm == 10.0


def test_a_persistent_tape_is_diagnosed_while_it_records() -> None:
    x, seen = pb.Parameter(2.0, name="x"), list[Any]()
    with pb.GradientTape(persistent=True) as tape:
        y = x**3
        tape.on_gradient(x, seen.append)
        nodes = len(tape.nodes)
        assert tape.diagnose(y, x).sources[0].norm == 12.0
        assert len(tape.nodes) == nodes
    assert tape.diagnose(y, {"x": [x]}).sources[0].norm == 12.0
    assert seen == []
    assert "1 sources, 1 ops, 0 findings" in repr(tape.diagnose(y, x))


def test_a_used_tape_and_a_changed_parameter_are_refused() -> None:
    x = pb.Parameter(2.0, name="x")
    with pb.GradientTape() as tape:
        y = x * x
    x.assign(3.0)
    with pytest.raises(pb.StaleValueError, match='"x"'):
        tape.diagnose(y, x)
    with pb.GradientTape() as tape:
        y = x * x
    tape.gradient(y, x)
    with pytest.raises(pb.TapeError, match=r"diagnose: this tape has been used"):
        tape.diagnose(y, x)


def test_ops_on_one_line_have_different_tags() -> None:
    x = pb.Parameter(0.5, name="x")
    with pb.GradientTape() as tape:
        y = pb.exp(pb.exp(pb.exp(x)))
    tags = [r.tag for r in tape.diagnose(y, x).rows]
    assert len(tags) == len(set(tags)) == 4
    assert [tag.split()[0] for tag in tags] == ["exp", "exp", "exp", "x"]


# ---- NaN


def first_nan(f: Any, *values: Any) -> str | None:
    with pb.GradientTape() as tape:
        xs = [watched(value, tape) for value in values]
        y = pb.sum(f(*xs))
    return tape.diagnose(y, xs).first_nan


@pytest.mark.parametrize(
    ("f", "op"),
    [
        (lambda x: pb.exp(pb.sqrt(x)) * 2, "sqrt"), (lambda x: pb.mean(pb.log(x) + 1), "log"),
        (lambda x: pb.sin(x * math.inf) * 0 + x, "sin"), (lambda x: pb.log(x * 0) / pb.log(x * 0), "divide"),
        (lambda x: pb.reshape(x * math.inf - x * math.inf, (-1,)), "subtract"), (lambda x: pb.asin(x) ** 0, None),
    ],
)
def test_the_line_of_the_first_nan_is_named(f: Any, op: str | None) -> None:
    words = first_nan(f, [-1.0, 4.0])
    if op is None:
        assert words is None  # The NaN does not reach the target.
    else:
        assert words is not None
        assert re.fullmatch(rf"the first NaN is in the result of {op}, {HERE.replace('w+', 'S+')}", words)


def test_a_nan_that_was_there_before_is_not_blamed_on_an_op() -> None:
    w = pb.Parameter([1.0, math.nan], name="w")
    with pb.GradientTape() as tape:
        y = pb.sum(w * w)
    assert tape.diagnose(y, w).first_nan == 'Parameter "w" holds NaN before the first op'


def test_where_nobody_kept_the_result_the_candidates_are_named() -> None:
    hidden = pb.tensor([math.inf])
    words = first_nan(lambda x: pb.sum(pb.concat([x, hidden]) - pb.concat([x, hidden])), [1.0])
    assert words is not None
    assert "an op before it whose result was not kept" in words
    assert "subtract" in words
    assert "pb.debug_nans()" in words


def test_a_nan_of_the_backward_pass_only_is_named() -> None:
    words = first_nan(lambda x, z: pb.atan2(x, z) * 3.0, 0.0, 0.0)
    assert words is not None
    assert re.search("the backward pass of atan2, " + HERE.replace("w+", "S+"), words)
    assert first_nan(lambda x: pb.where(x > 0, pb.sqrt(x), 0 * x), [-1.0, 4.0]) is None


# ---- without gradient


def test_a_parameter_without_a_path_is_named() -> None:
    net, lone, unused = mlp(nn.Tanh()), pb.Parameter([1.0, 2.0], name="lone"), pb.tensor(1.0)
    found = diagnosed(net, [*net.parameters(), lone, unused])
    assert found.without_gradient == ['Parameter "lone"', "the tensor of shape ()"]
    assert found.sources[-2].dead == 1.0
    assert any(['the target does not depend on Parameter "lone" (it was not used' in finding for finding in found.findings])
    assert any(["call tape.watch" in finding for finding in found.findings])


def test_where_the_path_was_cut_and_where_it_is_zero_is_named() -> None:
    a, b = pb.Parameter(1.5, name="a"), pb.Parameter(2.5, name="b")
    with pb.GradientTape() as tape:
        cut = pb.tensor((a * 2).numpy())
        y = cut + pb.round(b)
    found = tape.diagnose(y, [a, b])
    assert found.without_gradient == ['Parameter "a"', 'Parameter "b"']
    assert re.search(r'"a".*cut by numpy\(\) at ".*test_diagnose\.py", line \d+', found.findings[0])
    assert re.search(r'"b".*zero everywhere.*round, ' + HERE, found.findings[1])


# ---- TensorBoard


def events(directory: Path) -> list[Any]:
    """Returns the events of a run's file, whose records are: length, checksum, event, checksum."""
    event_pb2 = importlib.import_module("tensorboardX.proto.event_pb2")
    (path,) = directory.iterdir()
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        found.append(event_pb2.Event.FromString(data[at + 12 : at + 12 + length]))
        at += 16 + length
    return found


def test_tensorboard_gets_scalars_histograms_and_words(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    net = mlp(nn.Tanh())
    found = diagnosed(net, [*net.parameters(), pb.Parameter(1.0, name="lone")])
    found.to_tensorboard(tmp_path, step=7)
    values = {value.tag: (event.step, value) for event in events(tmp_path) for value in event.summary.value}
    for r in found.rows:
        step, value = values[re.sub(r"[^-/\w.]", "_", f"gradient norm/{r.tag}")]
        assert (step, value.simple_value) == (7, pytest.approx(r.norm))
    histogram = next(value.histo for tag, (_, value) in values.items() if tag.endswith("/2.weight") and value.HasField("histo"))
    assert histogram.num == 64
    assert sum(histogram.bucket) == 64
    assert any(["lone" in str(value.tensor) for tag, (_, value) in values.items() if tag.startswith("findings")])


def test_without_tensorboardx_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(pb.PullbackError, match=r"to_tensorboard.*pip install 'pullback\[tensorboard\]'"):
        diagnosed(mlp(nn.ReLU())).to_tensorboard(tmp_path)
