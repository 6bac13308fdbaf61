"""`pullback profile`: a script runs as it does under Python, and its report is written however the script ends."""

from __future__ import annotations

import gzip
import json
import os
import py_compile
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from conftest import environment
from pullback import cli, variables
from pullback.profiling import verify

TRAINS = "import pullback as pb; pb.sum(pb.ones((4, 5)))"
TELLS = """
import json, os, sys
import neighbour
main = sys.modules["__main__"]
print(json.dumps([sys.argv, sys.path[0], __name__, __file__, main.__file__, main.__spec__ is None, vars(main) is globals()]))
class Here: pass
print(neighbour.x, Here.__module__, type(__loader__), sorted(set(globals()) - {"__annotations__", "__cached__"}))
"""
FAILING = {
    "exit with a number": "import sys; sys.exit(3)",
    "exit with words": "raise SystemExit('no data')",
    "exit with nothing": "raise SystemExit",
    "an error": "def f(x):\n    return 1 / x\n\nf(0)",
    "an error with a cause": "try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('no a') from error",
    "a hook of its own": "import sys\nsys.excepthook = lambda *error: print('hooked', error[0].__name__, file=sys.stderr)\n1 / 0",
    "no Python": "x = = 1",
    "a module that is not there": "import nowhere_to_be_found",
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs each test in an empty working folder, with the cache of measured peaks in that folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    (tmp_path / "neighbour.py").write_text("x = 7")
    return tmp_path


def python(*arguments: str) -> Any:
    """Runs the same command with Python itself."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment())


def ours(*arguments: str) -> int:
    sys.modules.pop("neighbour", None)
    return cli.main(["profile", *arguments])


def table(err: str) -> str:
    """Returns the table's line of totals."""
    return next(line for line in err.splitlines() if line.startswith("total"))


# ---- comparison with Python itself


@pytest.mark.parametrize("arguments", [[], ["--html", "-x", "--", "--strict"]], ids=["alone", "with arguments like ours"])
def test_a_script_sees_what_it_sees_under_python(arguments: list[str], capfd: pytest.CaptureFixture[str], place: Path) -> None:
    (place / "sub").mkdir()
    (place / "sub" / "neighbour.py").write_text("x = 8")
    (place / "sub" / "script.py").write_text(TELLS)
    script = os.path.join("sub", "script.py")
    expected = python(script, *arguments)
    assert (ours(script, *arguments), expected.returncode) == (0, 0)
    assert capfd.readouterr().out == expected.stdout
    assert [path.name for path in place.rglob("*.pyc") if "script" in path.name] == []


def test_a_link_finds_the_neighbours_of_what_it_leads_to(capfd: pytest.CaptureFixture[str], place: Path) -> None:
    (place / "there").mkdir()
    (place / "there" / "script.py").write_text("import sys, beside; print(sys.path[0], __file__)")
    (place / "there" / "beside.py").write_text("")
    (place / "link.py").symlink_to(place / "there" / "script.py")
    expected = python("link.py")
    assert (ours("link.py"), expected.returncode) == (0, 0)
    assert capfd.readouterr().out == expected.stdout


@pytest.mark.parametrize("name", ["package", "package.inner"])
def test_a_module_sees_what_it_sees_under_python(name: str, capfd: pytest.CaptureFixture[str], place: Path) -> None:
    (place / "package").mkdir()
    for file in ("__init__", "__main__", "inner"):
        (place / "package" / f"{file}.py").write_text(
            "import sys; print(sys.argv, sys.path[0], __name__, __file__, __package__, __spec__.name, neighbour.x)"
            if file != "__init__"
            else "import neighbour; __builtins__['neighbour'] = neighbour"
        )
    expected = python("-m", name, "-m", "a")
    try:
        assert (ours("-m", name, "-m", "a"), expected.returncode) == (0, 0)
    finally:
        for module in ("package", "package.inner"):
            sys.modules.pop(module, None)
        vars(__import__("builtins")).pop("neighbour", None)
    assert capfd.readouterr().out == expected.stdout


@pytest.mark.parametrize("kind", ["folder", "zip file"])
def test_a_folder_and_a_zip_file_run(kind: str, capfd: pytest.CaptureFixture[str], place: Path) -> None:
    (place / "app").mkdir()
    (place / "app" / "__main__.py").write_text("import sys, part; print(sys.argv, sys.path[0], __name__, part.y)")
    (place / "app" / "part.py").write_text("y = 9")
    program = "app"
    if kind == "zip file":
        program = "app.pyz"
        with zipfile.ZipFile(program, "w") as file:
            for name in ("__main__.py", "part.py"):
                file.write(place / "app" / name, name)
    expected = python(program, "a")
    try:
        assert (ours(program, "a"), expected.returncode) == (0, 0)
    finally:
        sys.modules.pop("part", None)
    assert capfd.readouterr().out == expected.stdout


def test_a_compiled_script_runs(capfd: pytest.CaptureFixture[str], place: Path) -> None:
    (place / "script.py").write_text("import sys, neighbour; print(sys.argv, sys.path[0], __name__, __file__, neighbour.x)")
    py_compile.compile("script.py", "script.pyc")
    expected = python("script.pyc", "a")
    assert (ours("script.pyc", "a"), expected.returncode) == (0, 0)
    assert capfd.readouterr().out == expected.stdout


def test_everything_is_put_back() -> None:
    before = (sys.argv, list(sys.path), sys.modules["__main__"])
    Path("script.py").write_text("import sys; sys.argv.append('more'); sys.path.insert(0, 'elsewhere')")
    ours("script.py")
    assert (sys.argv, list(sys.path), sys.modules["__main__"]) == before


# ---- failures


@pytest.mark.parametrize("name", FAILING)
def test_a_failing_script_fails_as_under_python_and_leaves_its_report(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text(f"{TRAINS if 'Python' not in name else ''}\nprint('begun')\n{FAILING[name]}\n")
    expected = python("script.py")
    hook = sys.excepthook
    try:
        assert ours("script.py") == expected.returncode
    finally:
        sys.excepthook = hook
    out, err = capfd.readouterr()
    assert out == expected.stdout
    assert err.startswith(expected.stderr)
    if expected.stdout:
        assert table(err).split()[-1] == "2"


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_130(capfd: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text(f"{TRAINS}\nimport signal\nsignal.raise_signal(signal.SIGINT)\n")
    expected = python("script.py")
    assert (ours("script.py"), expected.returncode) == (130, -2)
    err = capfd.readouterr().err
    assert err.startswith(expected.stderr)
    assert table(err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.py"], 'no file "nothing.py"'),
        (["-m", "no_such_module_here"], "no_such_module_here"),
        (["-m", "no_such_package_here.inner"], "no_such_package_here"),
        (["empty"], "__main__"),
    ],
)
def test_a_program_that_is_not_there_is_2(arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert ours(*arguments) == 2
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert words in err
    assert "Give " in err


def test_a_module_that_lacks_another_is_an_error_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    Path("lacking.py").write_text("import no_such_module_here")
    assert ours("-m", "lacking") == 1
    err = capfd.readouterr().err
    assert 'lacking.py", line 1' in err
    assert "runpy" not in err
    assert "command.py" not in err


def test_a_script_with_a_profile_of_its_own_runs_and_both_count_it(capfd: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text(
        "import pullback as pb\nx = pb.ones((8, 8))\nwith pb.profile() as prof:\n    y = x @ x\nx @ x\nprint(prof.total.flops)\n"
    )
    assert ours("--detail", "count", "script.py") == 0
    out, err = capfd.readouterr()
    assert out == f"{2 * 8**3}\n"
    assert table(err).split()[1:3] == ["2.05", "k"]


def test_the_tables_are_by_what_was_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text("import pullback as pb\npb.ones(3)\npb.sin(pb.ones(3))\n")
    assert ours("--by", "line", "--by", "kernel", "script.py") == 0
    told = capfd.readouterr().err
    assert "by line" in told
    assert "by kernel" in told
    assert "by op" not in told
    assert "script.py:3 <module>" in told
    assert ours("--by", "colour", "script.py") == 1
    assert "no axis 'colour'" in capfd.readouterr().err
    assert ours("--by", "phase", "script.py") == 0
    told = capfd.readouterr().err
    assert "forward" in told
    assert "by " not in told


@pytest.mark.parametrize("option", ["--trace", "--json"])
def test_a_name_that_ends_in_gz_is_compressed(option: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text("import pullback as pb\npb.sin(pb.ones(3))\n")
    assert ours(option, "out.json.gz", "script.py") == 0
    assert json.loads(gzip.decompress(Path("out.json.gz").read_bytes()))


def test_launches_of_other_threads_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text(
        "import threading\nimport pullback as pb\nx = pb.tensor([1.0] * 8)\n"
        "t = threading.Thread(target=lambda: [pb.exp(x) for _ in range(5)])\nt.start(); t.join()\n"
    )
    assert ours("script.py") == 0
    told = " ".join(capfd.readouterr().err.split())
    assert "nothing ran in this thread; 5 launch(es) of other threads are not in these figures" in told


# ---- the report


def test_the_report_is_of_what_ran_and_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text("import pullback as pb\nx = pb.ones((64, 32))\nfor _ in range(10): y = x @ x.T\nprint(y.shape)\n")
    assert ours("--detail", "count", "script.py") == 0
    out, err = capfd.readouterr()
    assert out == "(64, 64)\n"
    assert table(err).split()[1:3] == ["2.62", "M"]  # 10 products of 2 · 64 · 32 · 64 FLOPs
    assert table(err).split()[-1] == "11"


def test_files_are_written(capfd: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text(f"{TRAINS}\nraise SystemExit(4)\n")
    assert ours("--json", "a.json", "--trace", "a.trace.json", "--html", "a.html", "script.py") == 4
    assert json.loads(Path("a.json").read_text())["phases"]["forward"]["launches"] == 2
    assert "traceEvents" in json.loads(Path("a.trace.json").read_text())
    assert Path("a.html").read_text().lstrip().lower().startswith("<!doctype html>")


def test_a_folder_that_is_not_there_is_told_before_the_script_runs(capfd: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text("print('begun')")
    assert ours("--json", "runs/a.json", "script.py") == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert '"runs/a.json" cannot be written: its folder does not exist; make it first.' in err
    Path("folder").mkdir()
    assert ours("--html", "folder", "script.py") == 1
    out, err = capfd.readouterr()
    assert (out, err) == ("", 'pullback: profile: "folder" cannot be written: it is a folder.\n')


def test_a_file_that_cannot_be_written_is_told_beside_the_table(capfd: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text(TRAINS)
    assert ours("--json", "/dev/full", "script.py") == 1
    err = capfd.readouterr().err
    assert table(err)
    assert 'pullback: "/dev/full" could not be written: [Errno 28] No space left on device' in err
    assert ours("--json", "a.json", "script.py") == 0
    assert Path("a.json").exists()


def test_a_closed_pipe_loses_no_report() -> None:
    Path("script.py").write_text(f"{TRAINS}\nprint('a line')\n")
    command = [sys.executable, "-m", "pullback", "profile", "--json", "a.json", "script.py"]
    pipe, env = subprocess.PIPE, environment(PYTHONUNBUFFERED="")
    with subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 141
    assert table(err)
    assert "Error" not in err
    with subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.close()
        Path("a.json").unlink()
    assert process.returncode == 141
    assert json.loads(Path("a.json").read_text())["total"]["launches"] == 2


def test_strict_refuses_a_launch_of_unknown_cost_and_reports(capfd: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text("from pullback.launch import door\ndoor.run_counted('mystery', lambda: 1, lambda _: None)\n")
    assert ours("script.py") == 0
    capfd.readouterr()
    assert ours("--strict", "script.py") == 1
    err = capfd.readouterr().err
    assert table(err)
    assert "pullback: profile: the cost of 1 launch(es) is not known: mystery" in err


def test_a_detail_that_is_not_known_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text("print('begun')")
    assert ours("--detail", "everything", "script.py") == 1
    out, err = capfd.readouterr()
    assert (out, "'kernel'" in err) == ("", True)


def test_the_command_is_there() -> None:
    Path("script.py").write_text(f"{TRAINS}\nprint('out')\nraise SystemExit(5)\n")
    done = python("-m", "pullback", "profile", "script.py")
    assert (done.returncode, done.stdout) == (5, "out\n")
    assert table(done.stderr)


def test_under_ncu_the_whole_script_is_counted(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """The second run of --verify prints no report, and writes the ledger to the path that the first run reads."""
    counted: list[Any] = []
    monkeypatch.setattr("pullback.profiling.command.count", lambda step, path: counted.append((step(), path)))
    monkeypatch.setenv("PULLBACK_COUNTING", f"0:{place / 'ledger.json'}")
    Path("script.py").write_text("raise SystemExit(6)")
    assert ours("--verify", "script.py") == 6
    assert counted == [(None, place / "ledger.json")]
    assert variables.counting() == (0, str(place / "ledger.json"))


def test_verify_without_a_gpu_says_so_before_the_script_runs(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify.devices, "why_not", lambda device: "this machine has no NVIDIA GPU")
    Path("script.py").write_text("print('begun')")
    assert ours("--verify", "script.py") == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert "this machine has no NVIDIA GPU" in err


def test_the_table_comes_after_what_the_script_printed() -> None:
    """Where both go into one file, as with `> log 2>&1`: what a file is given waits longer than what stderr is given."""
    Path("says.py").write_text("import pullback as pb\nprint('the script', pb.sum(pb.ones(3)).item())\n")
    command = [sys.executable, "-m", "pullback", "profile", "says.py"]
    env = environment(PYTHONUNBUFFERED="")
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    assert done.stdout.startswith("the script 3.0\n")
    assert "launches" in done.stdout
