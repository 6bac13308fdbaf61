"""What type checkers find in a user's program: mypy, and basedpyright for users of Pylance.

Both must accept tests/tools/types/right.py, whose `assert_type` must hold at run time too. In wrong.py both must report the lines
that are marked, and no others.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import pytest

import pullback as pb
from conftest import ROOT, environment
from pullback.autodiff import tape
from pullback.nn import init
from pullback.ops import linear
from pullback.ops.accumulate import AGGREGATIONS
from pullback.replays import capture, recording

FOLDER = ROOT / "tests" / "tools" / "types"
PACKAGE = Path(str(pb.__file__)).parent
Found = dict[str, dict[int, list[str]]]  # messages by file and line


def run(tool: str, *arguments: str, **variables: str) -> str:
    command = [sys.executable, "-m", tool, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(**variables))
    assert done.returncode in (0, 1), done.stderr or done.stdout
    return done.stdout


def mypy(files: Sequence[Path], folder: Path) -> Iterator[tuple[str, int, str]]:
    """Yields (file, line, message) for each error."""
    path = {} if "site-packages" in PACKAGE.parts else {"MYPYPATH": str(PACKAGE.parent)}
    options = ("--config-file=", "--check-untyped-defs", "--follow-imports=silent", f"--cache-dir={os.devnull}")
    told = run("mypy", *options, *map(str, files), **path)
    assert f"(checked {len(files)} source files)" in told, told
    for file, line, message in re.findall(r"^(.+):(\d+): error: (.*)$", told, re.MULTILINE):
        yield file, int(line), message


def basedpyright(files: Sequence[Path], folder: Path) -> Iterator[tuple[str, int, str]]:
    """Yields (file, line, message) for each error. It has the settings of a new project, not those of this repository."""
    settings = folder / "pyrightconfig.json"
    settings.write_text(json.dumps({"include": [str(file) for file in files]}))
    told = json.loads(run("basedpyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(settings)))
    assert told["summary"]["filesAnalyzed"] == len(files), told["summary"]
    for entry in told["generalDiagnostics"]:
        if entry["severity"] == "error":
            yield entry["file"], entry["range"]["start"]["line"] + 1, entry["message"]


@pytest.fixture(scope="module", params=[mypy, basedpyright], ids=lambda checker: checker.__name__)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The errors in right.py, in wrong.py, and in readme.py, a program of all snippets of the README."""
    pytest.importorskip(request.param.__name__, reason=f"{request.param.__name__} is not installed (the extra `test` has it)")
    folder = tmp_path_factory.mktemp("types")
    files = [FOLDER / "right.py", FOLDER / "wrong.py", folder / "readme.py"]
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    files[-1].write_text("\n".join(snippets))
    found: Found = {file.name: {} for file in files}
    for file, line, message in request.param(files, folder):
        found[Path(file).name].setdefault(line, []).append(message)
    return found


@pytest.mark.parametrize("program", ["right.py", "readme.py"])
def test_a_right_program_has_no_errors(program: str, found: Found) -> None:
    assert found[program] == {}


def test_each_wrong_line_is_reported(found: Found) -> None:
    lines = (FOLDER / "wrong.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    reported = found["wrong.py"]
    assert len(marked) > 60
    assert {number: lines[number - 1] for number in marked - reported.keys()} == {}, "wrong, and not reported"
    assert {number: reported[number] for number in reported.keys() - marked} == {}, "right, and reported"


def test_the_types_of_the_right_program_are_those_at_run_time() -> None:
    path = os.pathsep.join([str(PACKAGE.parent), str(FOLDER)])
    command, variables = [sys.executable, str(FOLDER / "right.py")], environment(PYTHONPATH=path)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


WORDS = {  # the words that a type allows, and those that the code accepts
    "fusion": (capture.Fusion, recording.FUSIONS), "activation": (linear.Activation, linear.ACTIVATIONS[1:]),
    "nonlinearity": (init.Nonlinearity, [*init.GAINS, "leaky_relu"]), "aggregation": (tape.Aggregation, AGGREGATIONS),
}


@pytest.mark.parametrize("name", WORDS)
def test_a_type_allows_the_words_that_the_code_accepts(name: str) -> None:
    words, accepted = WORDS[name]
    assert {*get_args(words)} == {*accepted}
