"""The command line: its output, the training, and its error messages."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import ROOT, environment
from pullback import backends, cli
from pullback.autodiff.primitive import OPS
from pullback.examples import digits as train
from pullback.examples.run import Result, Run
from pullback.io import load


def test_info_tells_what_runs_and_why_not(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    monkeypatch.delenv("OPENBLAS_L2_SIZE", raising=False)
    assert cli.main(["info"]) == 0
    out, err = capsys.readouterr()
    facts = dict(line.split(maxsplit=1) for line in out.splitlines() if not line.startswith("CPU") and not line.startswith("CUDA"))
    assert facts["pullback"] == pb.__version__
    assert facts["NumPy"] == np.__version__
    assert (facts["cuda"][:3] == "no:") is not pb.cuda.is_available()
    assert "native" in facts["ops"]
    for kernels, device in (("CPU kernels", "cpu"), ("CUDA kernels", "cuda")):
        (told,) = [line.removeprefix(kernels).strip() for line in out.splitlines() if line.startswith(kernels)]
        reason = backends.why_not(device)
        assert told == ("yes" if reason is None else f"no: {reason}")
    assert err == ""


def test_info_warns_of_an_environment_that_changes_products(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    cli.main(["info"])
    assert "warning: OPENBLAS_CORETYPE=Prescott" in capsys.readouterr().err


def test_info_of_ops_has_every_op(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--ops"]) == 0
    shown = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert set(OPS) <= set(shown)
    assert shown["reshape"].rstrip().endswith("yes")
    assert "no: it runs in NumPy or CuPy" in shown["nextafter"]


def test_training_writes_weights_that_load_and_a_table(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("tqdm", "rich"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    assert cli.main(["train", "digits", "--epochs", "2", "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "pullback profile" in (tmp_path / "run" / "profile.html").read_text()
    for word in ("forward", "backward", "optimizer", "test accuracy", "weights", "profile.html"):
        assert word in out
    net = train.mlp()
    net.load_state_dict(load(tmp_path / "run" / "weights.safetensors"))
    told = float(out.split("test accuracy")[1].split()[0].rstrip("%"))
    data = pb.data.digits()
    assert 100 * train.accuracy(net.eval(), data.x_test, data.y_test) == pytest.approx(told, abs=0.01)
    assert (tmp_path / "run" / "loss.png").exists() or "pip install 'pullback[plot]'" in out


def test_training_ends_with_the_mode_and_the_hash_of_the_weights(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = pb.config.reproducible
    for chosen, words in (([], None), (["--reproducible", "machine"], "machine")):
        assert cli.main(["train", "digits", "--epochs", "1", "--out", str(tmp_path), *chosen]) == 0
        *_, mode, digest = capsys.readouterr().out.splitlines()
        why_not = pb.config.why_not()
        assert mode == f"reproducible   {words or ('everywhere' if why_not is None else f'machine, because {why_not}')}"
        assert digest == f"hash           {pb.hash(load(tmp_path / 'weights.safetensors'))}"
        assert pb.config.reproducible == before


def recorded() -> str:
    """Returns the hash that the README shows as the last line of `make train`."""
    (found,) = re.findall(r"^hash {11}(.+)$", (ROOT / "README.md").read_text(), flags=re.M)
    return found


def costs(text: str) -> list[list[str]]:
    """Returns the rows of a table of costs, without the times."""
    rows = [line.split() for line in text.splitlines() if re.match(r"(forward|backward|optimizer|data|total) .* m?s +\d+$", line)]
    return [[*row[:-3], row[-1]] for row in rows]


def test_digits_are_learned_to_97_percent_and_the_weights_have_the_hash_that_the_readme_shows(
    native: None, tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[Result] = []
    run = train.train
    monkeypatch.setattr(train, "train", lambda *args, **options: results.append(run(*args, **options)) or results[0])
    assert cli.main(["train", "digits", "--out", str(tmp_path)]) == 0
    (result,) = results
    assert result.measures["test accuracy"].value >= 0.97
    assert result.losses[-1] < result.losses[0] / 5
    assert result.profile.coverage == 1.0
    assert result.profile.forward.matmul_flops == 30 * 2 * 1442 * (64 * 128 + 128 * 10)
    out = capsys.readouterr().out
    assert costs(out)
    assert costs(out) == costs((ROOT / "README.md").read_text())
    if pb.config.why_not() is None:  # level v2 and AArch64 have other bits
        assert out.splitlines()[-2:] == ["reproducible   everywhere", f"hash           {recorded()}"]


@pytest.mark.parametrize("variables", [{}, {"PULLBACK_REPRODUCIBLE": "machine"}, {"PULLBACK_REPRODUCIBLE": "everywhere"}], ids=str)
def test_info_tells_the_mode_and_what_set_it(variables: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pullback", "info"]
    done = subprocess.run(command, env=environment(**variables), capture_output=True, text=True, check=False)
    why_not = pb.config.why_not()
    if variables.get("PULLBACK_REPRODUCIBLE") == "everywhere" and why_not:
        assert why_not in done.stderr
        return
    (told,) = [line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith("reproducible")]
    if variables:
        assert told == "{0} (PULLBACK_REPRODUCIBLE={0})".format(*variables.values())
    else:
        possible = f"not possible: {why_not}" if why_not else "possible: PULLBACK_REPRODUCIBLE, pb.config.reproducible"
        assert told == f'machine ("everywhere" is {possible})'


def test_the_same_seed_trains_the_same_weights() -> None:
    first, second = (train.train(Run(seed=3), epochs=1).model.state_dict() for _ in range(2))
    for name, t in first.items():
        np.testing.assert_array_equal(t.numpy(), second[name].numpy())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "resnet"], "mlp"),
        (["--epochs", "0"], "epochs=0"),
        (["--batch-size", "0"], "batch_size=0"),
        (["--device", "tpu"], "tpu"),
    ],
)
def test_bad_arguments_end_in_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "digits", *arguments]) == 1
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err


def test_the_reference_backend_is_named_in_info() -> None:
    command = [sys.executable, "-m", "pullback.cli", "info"]
    done = subprocess.run(command, env=environment(PULLBACK_BACKEND="reference"), capture_output=True, text=True, check=True)
    assert "no: PULLBACK_BACKEND=reference" in done.stdout


def test_importing_pullback_leaves_what_is_not_used() -> None:
    unused = ("optree", "safetensors", "tqdm", "rich", "ml_dtypes", "pullback.nn", "pullback.cli")
    code = f"import sys, pullback; print([m for m in {unused} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_folder_that_cannot_be_made_is_told_before_the_training(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["train", "digits", "--out", str(tmp_path / "file" / "x")]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert re.search(r'results cannot be written to ".*file/x": not a directory\. Give --out another folder\.', err)


def no_space(dir: str) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("file", "it is a file, and not a folder"),
        ("/dev/full", "it is a file, and not a folder"),
        ("/proc/pullback", "no such file or directory"),
        ("/proc", ""),  # it exists, and no file can be made in it
        ("taken", '"weights.safetensors": it is a folder'),
        ("full", "no space left on device"),
    ],
)
def test_an_output_that_cannot_be_written_is_told_before_the_training(
    out: str, words: str, tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / "weights.safetensors").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "train", lambda *_, **__: pytest.fail("the training began"))
    if out == "full":
        monkeypatch.setattr(tempfile, "TemporaryFile", no_space)
    assert cli.main(["train", "digits", "--out", out]) == 1
    told, err = capsys.readouterr()
    assert (told, err.count("\n")) == ("", 1)
    assert re.match(rf'pullback: train: results cannot be written to "{out}": .*{words}.*\. Give --out another folder\.', err)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "file"]  # nothing stays behind


def test_help_tells_what_the_commands_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    told = capsys.readouterr().out
    assert "shows what their forward and backward passes cost" in " ".join(told.split())
    assert "import" not in told
    for command in re.findall(r"^    (\w+)  ", told, flags=re.M):
        with pytest.raises(SystemExit) as ended:
            cli.main([command, "--help"])
        assert ended.value.code == 0
        told = capsys.readouterr().out
        examples = told.partition("\nexample")[2].splitlines()[1:]
        assert examples
        assert all(example.startswith(f"  pullback {command}") for example in examples)
        assert max(map(len, told.splitlines())) <= 100
    assert command == "hash"  # the loop has seen all of them


@pytest.mark.parametrize("arguments", [["info"], ["info", "--ops"], ["--help"], ["profile", "--help"]])
def test_a_reader_that_has_enough_is_no_error(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "pullback", *arguments]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == (141 if "--help" not in arguments else 0)  # argparse ignores errors of its own output


def test_a_full_disk_is_told_in_one_line() -> None:
    command = [sys.executable, "-m", "pullback", "info"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "pullback: the output cannot be written: No space left on device.\n")


@pytest.mark.parametrize(
    "variable",
    [("PULLBACK_NUM_THREADS", "abc"), ("PULLBACK_NUM_THREADS", "0"), ("PULLBACK_BACKEND", "quick"), ("PULLBACK_SIMD", "9")],
)
def test_a_variable_that_cannot_be_is_told_in_one_line_by_the_command(variable: tuple[str, str], tmp_path: Any) -> None:
    name, value = variable
    script = tmp_path / "pullback"  # as pip installs it
    script.write_text("import sys\nfrom pullback.cli import main\nsys.exit(main())\n")
    for command in (["-m", "pullback"], [str(script)]):
        done = subprocess.run(
            [sys.executable, *command, "info"], env=environment(**dict([variable])), capture_output=True, text=True
        )
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert done.stderr.startswith(f"pullback: {name} is '{value}', ")
    done = subprocess.run(
        [sys.executable, "-c", "import pullback"], env=environment(**dict([variable])), capture_output=True, text=True
    )
    assert f"\nImportError: {name} is '{value}', " in done.stderr
