"""The examples of `pullback train`: short runs of each by the command, what they compute, and the values that they reach."""

from __future__ import annotations

import importlib
import inspect
import math
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from scipy.special import lambertw

import pullback as pb
from conftest import environment
from pullback import cli
from pullback.examples import blackbox, cnn, copying, digits, files, gpt, gru, pinn
from pullback.examples.catalogue import EXAMPLES
from pullback.examples.run import READ, Measure, Run
from pullback.io import load

SHORT = {
    "digits": ["--epochs", "1", "--batch-size", "500"],
    "cnn": ["--epochs", "1", "--batch-size", "500", "--channels", "2"],
    "gru": ["--steps", "2", "--batch-size", "3", "--length", "22", "--hidden", "4"],
    "gpt": ["--steps", "2", "--batch-size", "2", "--context", "8", "--layers", "1", "--width", "8"],
    "copying": ["--steps", "2", "--batch-size", "2", "--length", "6", "--width", "4"],
    "pinn": ["--steps", "2", "--points", "3", "--hidden", "4"],
    "blackbox": ["--steps", "2", "--throws", "3", "--hidden", "4"],
}
SHOWN = {
    "digits": ["test accuracy"],
    "cnn": ["test accuracy", "baseline", "reference"],
    "gru": ["wrong", "squared error", "reference"],
    "gpt": ["validation", "text", "reference"],
    "copying": ["MinGRU", "GRU", "LRU"],
    "pinn": ["largest error", "reference"],
    "blackbox": ["largest miss", "simulator", "reference"],
}


def run(name: str, *options: str) -> int:
    return cli.main(["train", name, *SHORT[name], *options])


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_short_run_prints_what_it_measured_and_writes_its_files(
    name: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    before = pb.config.reproducible
    assert run(name, "--out", str(tmp_path)) == 0
    lines = capsys.readouterr().out.splitlines()
    told = {line[:15].strip(): line[15:] for line in lines[6:]}
    pictures = ["picture"] if name != "digits" else []
    tail = ["time", "weights", "profile", "loss curve", *pictures, "reproducible", "hash"]
    assert [label for label in told if label != "data"][-len(SHOWN[name] + tail) :] == [*SHOWN[name], *tail]
    assert told["hash"] == pb.hash(load(tmp_path / "weights.safetensors"))
    assert "pullback profile" in (tmp_path / "profile.html").read_text()
    for label, file in (("loss curve", "loss.png"), *[(label, "picture.png") for label in pictures]):
        assert told[label] == str(tmp_path / file) or "pip install 'pullback[plot]'" in told[label]
        assert (tmp_path / file).exists() == (told[label] == str(tmp_path / file))
    assert pb.config.reproducible == before


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_defaults_of_the_command_are_those_of_the_function(name: str) -> None:
    train = importlib.import_module(f"pullback.examples.{name}").train
    defaults = {k: p.default for k, p in inspect.signature(train).parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert {option.name: option.default for option in EXAMPLES[name].options} == defaults


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "EXAMPLE"),
        (["resnet"], "cnn"),
        (["cnn", "--epochs", "many"], "invalid int value: 'many'"),
        (["pinn", "--points"], "--points"),
        (["blackbox", "--estimate", "exact"], "'spsa'"),
        (["digits", "--steps", "3"], "pullback train digits: unrecognized arguments: --steps 3"),
        (["digits", "cnn"], "pullback train digits: unrecognized arguments: cnn"),
    ],
)
def test_an_argument_that_cannot_be_read_is_told_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", *arguments])
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert words in err


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("cnn", ["--epochs", "0"], "epochs=0 must be 1 or more"),
        ("cnn", ["--channels", "-1"], "channels=-1 must be 1 or more"),
        ("cnn", ["--lr", "nan"], "lr=nan must be a finite number above 0"),
        ("pinn", ["--lr", "-1"], "lr=-1.0 must be"),
        ("cnn", ["--batch-size", "0"], "batch_size=0"),
        ("gru", ["--length", "21"], "length=21 must be 22 or more"),
        ("gru", ["--batch-size", "0"], "batch_size=0 must be 1 or more"),
        ("gpt", ["--width", "6"], "width=6 must be a multiple of 4"),
        ("gpt", ["--context", "200000"], "context=200000 must be shorter than the validation text"),
        ("copying", ["--tokens", "49"], "tokens=49 do not fit in length=6 steps"),
        ("pinn", ["--steps", "0"], "steps=0 must be 1 or more"),
        ("pinn", ["--steps", str(10**20)], "must be 1 or more, and at most"),
        ("pinn", ["--seed", "-1"], "seed -1"),
        ("blackbox", ["--throws", "0"], "throws=0 must be 1 or more"),
        ("blackbox", ["--device", "tpu"], "'tpu'"),
    ],
)
def test_a_value_that_cannot_be_is_told_in_one_line(
    name: str, options: list[str], words: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    before = pb.config.reproducible
    assert run(name, "--out", str(tmp_path), *options) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert not [*tmp_path.iterdir()]
    assert pb.config.reproducible == before


def test_without_matplotlib_the_pictures_are_left_out(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("pinn", "--out", str(tmp_path)) == 0
    assert capsys.readouterr().out.count("not drawn, matplotlib is missing: pip install 'pullback[plot]'") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files.NAMES[:2])


def test_an_unknown_backend_of_matplotlib_costs_the_pictures_only(tmp_path: Any) -> None:
    program = "import math, sys\nfrom pullback.examples import files\nsys.stdout.write(files._why_no_pictures())"
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment(MPLBACKEND="wrong"), capture_output=True, text=True, check=True
    )
    assert "matplotlib knows no backend MPLBACKEND='wrong'" in ran.stdout or "is missing" in ran.stdout


NETWORKS = digits.mlp, cnn.network, gru.Adder, gpt.GPT, pinn.network, blackbox.Aim


@pytest.mark.parametrize("make", NETWORKS, ids=lambda make: make.__module__)
def test_networks_have_the_numbers_of_parameters_that_they_state(make: Any) -> None:
    (stated,) = re.findall(r"([\d,]+) parameters", make.__doc__)
    assert sum(math.prod(p.shape) for p in make().parameters()) == int(stated.replace(",", ""))


# ---- the frame


def test_a_run_reads_the_losses_in_groups_and_in_order() -> None:
    posts: list[str] = []

    class Bar(list[int]):
        def set_postfix(self, loss: str, refresh: bool) -> None:
            posts.append(loss)

    numbers = iter(range(100))
    with Run(progress=Bar) as done:
        done.repeat(lambda: [pb.tensor(float(next(numbers))) for _ in range(10)], 3)
        result = done.result(pb.nn.Linear(1, 1), {"any": Measure(1.0, "one")})
    assert READ == 16
    assert result.losses == [float(i) for i in range(30)]
    assert result.steps == 30
    assert posts == ["9.5", "24.5"]


def test_a_run_that_is_interrupted_leaves_the_mode_and_the_device_as_they_were() -> None:
    before = (pb.config.reproducible, pb.tensor(1.0).device)

    def work() -> pb.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Run(device="cpu") as interrupted:
        interrupted.repeat(work, 2)
    assert (pb.config.reproducible, pb.tensor(1.0).device) == before
    with pb.profile() as outside:
        _ = pb.tensor(1.0) + 1
    assert outside.total.launches > 0


def test_the_mode_of_a_run_is_the_one_that_was_asked_for() -> None:
    why_not = pb.config.why_not()
    results = [pinn.train(Run(reproducible=mode), steps=1, points=2, hidden=2) for mode in (None, "machine")]
    assert [result.reproducible for result in results] == ["machine" if why_not else "everywhere", "machine"]
    assert [result.why_machine for result in results] == [why_not or "", ""]


# ---- cnn


def test_the_convolutional_network_beats_the_published_baseline(native: None) -> None:
    result = cnn.train(Run(device="cpu"))
    assert result.measures["test accuracy"].value >= 0.985
    assert result.profile.coverage == 1.0


def test_the_nearest_neighbour_is_that_of_numpy() -> None:
    data = pb.data.digits()
    train, test = data.x_train.numpy().reshape(-1, 64), data.x_test.numpy().reshape(-1, 64)
    nearest = ((test[:50, None] - train) ** 2).sum(-1).argmin(1)
    some = pb.data.Digits(data.x_train, data.y_train, data.x_test[:50], data.y_test[:50])
    assert cnn.nearest_neighbour(some) == pytest.approx((data.y_train.numpy()[nearest] == data.y_test.numpy()[:50]).mean())


# ---- gru


def test_sequences_have_two_marks_in_their_places_and_the_sum_of_the_marked_numbers() -> None:
    x, sums = (t.numpy() for t in gru.sequences(200, 40))
    assert x.shape == (40, 200, 2)
    numbers, marks = x[..., 0], x[..., 1]
    assert np.abs(numbers).max() <= 1
    places = np.nonzero(marks.T)[1].reshape(200, 2)
    assert ((places[:, 0] < 10) & (places[:, 1] >= 10) & (places[:, 1] < 20)).all()
    np.testing.assert_allclose(np.take_along_axis(numbers.T, places, axis=1).sum(1), sums, rtol=1e-6, atol=1e-6)


def test_an_output_that_is_nan_counts_as_wrong() -> None:
    result = gru.train(Run(), steps=3, batch_size=2, lr=1e30, length=22, hidden=2)
    assert math.isnan(result.measures["squared error"].value)
    assert result.measures["wrong"].value == gru.TESTED


def test_the_recurrent_network_adds_numbers_of_short_sequences(native: None) -> None:
    result = gru.train(Run(device="cpu"), steps=250, length=22, hidden=16)
    assert result.measures["squared error"].value < 0.02  # a constant has 2/3
    assert result.losses[0] > 0.3


# ---- copying


def test_sequences_have_the_tokens_in_order_among_blanks() -> None:
    x, kept = (t.numpy() for t in copying.sequences(50, 9, 3))
    assert (x[:, 9:] == copying.MARK).all()
    found = [row[:9][row[:9] != copying.BLANK] for row in x]
    assert np.array_equal(np.stack(found), kept)
    assert len({tuple(row[:9] != copying.BLANK) for row in x}) > 20  # the places differ


def test_the_copying_networks_have_the_numbers_of_parameters_that_they_state() -> None:
    numbers = [sum(math.prod(p.shape) for p in copying.Copier(layer, 48).parameters()) for layer in copying.COLOURS]
    assert numbers == [29_144, 33_944, 29_216]


def test_gates_of_the_input_copy_what_a_constant_decay_does_not(native: None) -> None:
    result = copying.train(Run(device="cpu"), steps=300, length=16, tokens=2, width=16, lr=1e-2)
    right = {layer: measure.value for layer, measure in result.measures.items()}
    assert right["MinGRU"] > 0.9
    assert right["LRU"] < right["MinGRU"] - 0.15


# ---- pinn


def test_the_trial_function_has_its_values_at_both_ends_and_its_second_derivative() -> None:
    net = pinn.network(5).to("float64")
    u = pinn.solution(net)
    x = pb.linspace(0.0, pinn.END, 7, dtype="float64")[:, None]
    assert u(x).numpy()[[0, -1], 0] == pytest.approx([0.0, math.sin(pinn.END)], abs=1e-15)
    h = 1e-3
    differences = (u(x + h) - 2 * u(x) + u(x - h)).numpy() / h**2
    np.testing.assert_allclose(pinn.derivative(pinn.derivative(u))(x).numpy(), differences, rtol=1e-5, atol=1e-5)


def test_the_solution_of_the_differential_equation_is_found_to_four_digits(native: None) -> None:
    assert pinn.train(Run(device="cpu")).measures["largest error"].value < 1e-4


# ---- blackbox


def test_the_exact_range_is_that_of_lamberts_w_and_of_the_simulator() -> None:
    angles = np.linspace(0.02, math.pi / 4, 40)
    k, u, v = blackbox.RESISTANCE, blackbox.SPEED * np.cos(angles), blackbox.SPEED * np.sin(angles)
    a = 1 + k * v / blackbox.GRAVITY
    time = (a + lambertw(-a * np.exp(-a)).real) / k
    exact = blackbox.exact(angles)
    np.testing.assert_allclose(exact, u / k * -np.expm1(-k * time), rtol=1e-9)
    assert exact.max() > blackbox.FAR
    for dt in (0.02, 0.002):  # a chord of the path is at most g dt² / 8 too low, and the midpoint rule is off by as much
        heights = np.abs(blackbox.simulate(angles, dt) - exact) * np.tan(angles)
        assert heights.max() < blackbox.GRAVITY * dt**2 / 4


def test_a_flight_that_never_lands_ends() -> None:
    assert np.isnan(blackbox.simulate(np.array([math.nan]))).all()


@pytest.mark.parametrize("estimate", ["central", "spsa"])
def test_the_network_learns_to_aim_through_the_simulator(estimate: Any) -> None:
    result = blackbox.train(Run(), steps=30, throws=8, hidden=8, estimate=estimate)
    assert result.losses[-1] < result.losses[0] / 4
    assert result.measures["simulator"].value == 30 * 8 * 3  # forward, above and below
