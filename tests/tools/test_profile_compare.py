"""`pullback profile --compare`: two profiles in files are compared as two Profiles are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pullback as pb
from pullback import cli, nn
from pullback.profiling.compare import compare
from pullback.profiling.recorded import read

TRAINS = "import pullback as pb; pb.sum(pb.ones((4, 5)))"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs each test in an empty working folder, with the cache of measured peaks in that folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "cache"))


def ours(*arguments: str) -> int:
    return cli.main(["profile", *arguments])


def test_two_files_are_compared(capfd: pytest.CaptureFixture[str]) -> None:
    for name, count in (("a.json", 3), ("b.json.gz", 5)):
        Path("script.py").write_text(f"import pullback as pb\nx = pb.ones((64, 32))\nfor _ in range({count}): x @ x.T\n")
        assert ours("--json", name, "script.py") == 0
    capfd.readouterr()
    assert ours("--compare", "a.json", "b.json.gz") == 0
    out, err = capfd.readouterr()
    product = 2 * 64 * 32 * 64
    assert err == ""
    assert re.search(rf"matmul +FLOPs +{3 * product:,} +{5 * product:,} +1\.67", out)
    assert re.search(r"launches +3 +5 +1\.67", out)
    assert not re.search("ones +FLOPs", out)  # they are the same in both
    assert ours("--compare", "a.json", "a.json") == 0
    assert "nothing changed" in capfd.readouterr().out


def test_what_is_read_is_what_was_written() -> None:
    layer = nn.Linear(3, 2)
    with pb.profile() as prof:
        with pb.GradientTape() as tape:
            loss = nn.cross_entropy(layer(pb.ones((4, 3))), [0, 1, 0, 1])
        tape.gradient(loss, layer.parameters())
    assert any(row.without == ("x",) for row in prof.rows)
    prof.to_json("a.json")
    found = read("a.json")
    assert found.rows == prof.rows
    assert (found.total, found.forward, found.backward, found.kernel_seconds) == (
        prof.total, prof.forward, prof.backward, prof.kernel_seconds,
    )
    assert found.by("op") == prof.by("op")
    assert compare(prof, found).rows == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.json", "none.json"], '"none.json" cannot be read: No such file or directory. Give a file that'),
        (["script.py", "a.json"], '"script.py" is not the JSON of a profile. Write one with pullback profile --json PATH'),
        (["a.json", "list.json"], '"list.json" is not the JSON of a profile'),
        (["a.json", "cut.json.gz"], '"cut.json.gz" is not the JSON of a profile'),
        (["next.json", "a.json"], '"next.json" is of version 2 of the format, and this pullback reads version 1'),
    ],
)
def test_files_that_cannot_be_compared_are_told(arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text(TRAINS)
    assert ours("--json", "a.json", "--trace", "cut.json.gz", "script.py") == 0
    Path("list.json").write_text("[1, 2]")
    Path("cut.json.gz").write_bytes(Path("cut.json.gz").read_bytes()[:50])
    Path("next.json").write_text(Path("a.json").read_text().replace('"version": 1', '"version": 2'))
    capfd.readouterr()
    assert ours("--compare", *arguments) == 1
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err


@pytest.mark.parametrize("arguments", [[], ["--compare", "a.json", "b.json", "script.py"], ["--compare", "a.json"]])
def test_a_command_without_a_program_or_with_two_purposes_is_2(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ours(*arguments)
    assert ended.value.code == 2
    assert capfd.readouterr().err.startswith("pullback profile: ")
