"""stdout of any encoding: every object of pullback can be printed, and the reports stay readable."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from conftest import ROOT, environment
from pullback import backends, nn, optim
from pullback.autodiff.primitive import OPS
from pullback.printable import printable
from pullback.report.rule_text import rule_text

ENCODINGS = ("ascii", "cp1252", "latin-1", "utf-8")
SOURCES = ROOT / "python" / "pullback"
BY_USERS = {"×"}  # characters of literals that only reports contain, which are made printable


class Größe(nn.Module):
    """A network whose names are not ASCII."""

    def __init__(self) -> None:
        self.schätzer = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.scale_λ = pb.Parameter(1.0, name="Maß")

    def forward(self, x: Any) -> Any:
        return self.scale_λ * self.schätzer(x)


def verlust_µ(net: Größe, x: Any) -> Any:
    return pb.mean(net(x) ** 2)


def reports() -> dict[str, Any]:
    """Returns one report of each kind, on a network and a function whose names are not ASCII."""
    net, x = Größe(), pb.ones((5, 3))
    with pb.profile(detail="kernel") as prof, pb.GradientTape(persistent=True) as tape:
        loss = verlust_µ(net, x)
        tape.gradient(loss, net.parameters())
    with pb.profile() as other:
        net(x)
    captured = pb.capture(lambda t: pb.tanh(t) + 1)
    captured(x)
    return {
        "Profile": prof, "Explanation": tape.explain(loss), "Diagnosis": tape.diagnose(loss, net.parameters()),
        "Check": tape.check(loss), "Comparison": prof.compare(other), "Größe": net,
        "the plan": captured.explain() if backends.why_not("cpu") is None else "",
        "an optimizer": optim.Adam(net.parameters(), 1e-3, groups={"*Maß": {"lr": 0.1}}),
        "a schedule": optim.schedules.Cosine(0.1, steps=5),
        "a table": optim.schedules.Table([0.1, 0.2, 0.3, 0.4, 0.5]), "a Loader": pb.data.Loader((x,), batch_size=2),
        "a Parameter": net.scale_λ, "the tape": tape, "pb.config": pb.config, "a Generator": pb.random.Generator(3),
        "a solution": pb.solve.least_squares(lambda p: p - 1, pb.zeros(2)), "Digits": pb.data.digits(),
    }


REPORTS = reports()


def printed(encoding: str, *objects: Any) -> str:
    """Returns what print writes to a pipe of this encoding, which refuses a character that it lacks."""
    bytes_ = io.BytesIO()
    with redirect_stdout(io.TextIOWrapper(bytes_, encoding=encoding, errors="strict", newline="\n")):
        print(*objects, flush=True)
        return bytes_.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("title", REPORTS)
def test_every_report_can_be_printed(title: str, encoding: str) -> None:
    assert printed(encoding, REPORTS[title])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_replacements_can_be_read(encoding: str) -> None:
    text = printed(encoding, *[REPORTS[title] for title in ("Profile", "Explanation", "Größe")])
    times, transpose, name = {
        "ascii": ("x", "^T", r"Gr\xf6\xdfe("), "utf-8": ("×", "ᵀ", "Größe("),
    }.get(encoding, ("×", "^T", "Größe("))
    assert f" {times} forward" in text
    assert f"g{transpose} @ " in text
    assert name in text


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_table_stays_aligned(encoding: str) -> None:
    head, rule, *rows = printed(encoding, REPORTS["Explanation"]).splitlines()
    at = head.index("dense Jacobian") + len("dense Jacobian")
    assert len(rule) == at
    assert all([len(row) <= at for row in rows[:-1]])
    assert any([len(row) == at for row in rows[:-1]])


def test_what_is_written_for_others_is_complete_whatever_stdout_is(tmp_path: Path) -> None:
    prof = REPORTS["Profile"]
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="ascii")):
        prof.to_html(tmp_path / "page.html")
        prof.to_json(tmp_path / "page.json")
        explained = REPORTS["Explanation"]._repr_html_()
    page, record = [(tmp_path / name).read_text(encoding="utf-8") for name in ("page.html", "page.json")]
    assert "schätzer" in page or "sch\\u00e4tzer" in page
    assert " × forward" in json.loads(record)["ratio"]
    assert "gᵀ @" in explained


def test_a_stream_of_its_own_decides() -> None:
    ascii_, utf_8 = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for encoding in ("ascii", "utf-8")]
    assert printable("2 × ᵀ ≤ µ ä \udce4", ascii_) == r"2 x ^T <= u \xe4 \udce4"
    assert printable("2 × ᵀ ≤ µ ä", utf_8) == "2 × ᵀ ≤ µ ä"
    assert printable("2 × \udce4", utf_8) == r"2 × \udce4"  # a byte of a path that is no UTF-8
    assert printable("2 ×", io.StringIO()) == "2 ×"


def test_without_stdout_nothing_is_replaced() -> None:
    with redirect_stdout(None):
        assert "×" in str(REPORTS["Profile"])


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize(
    "arguments", [["info"], ["info", "--ops"], ["--help"], ["train", "--help"], ["profile", "--help"]], ids=" ".join
)
def test_the_command_prints_in_every_encoding(arguments: list[str], encoding: str) -> None:
    command = [sys.executable, "-m", "pullback", *arguments]
    done = subprocess.run(command, env={**environment(), "PYTHONIOENCODING": encoding}, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode(encoding)


# ---- the sources: a message that is all ASCII can be printed anywhere


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line, string) for the literals in a source, without docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    scopes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, scopes) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield node.lineno, node.value


@pytest.mark.skipif(not SOURCES.exists(), reason="the source tree is not here: an installed package")
def test_no_message_has_a_character_beyond_ascii() -> None:
    mapped, odd = SOURCES / "printable.py", SOURCES / "tree.py"  # the table of replacements, and the range of surrogates
    found = [
        f"{path.relative_to(SOURCES)}:{line}: {text!r}"
        for path in sorted(SOURCES.rglob("*.py")) if path not in (mapped, odd)
        for line, text in texts(path) if not {c for c in text if ord(c) > 127} <= BY_USERS
    ]
    assert not found, "write ... for an ellipsis, ^T for a transpose"


def test_every_rule_has_a_replacement() -> None:
    rules = [rule_text(op, rule) for op in OPS.values() for rule in op.rules if callable(rule)]
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert [text for text in rules if "\\" in printable(text, out) and "\\" not in text] == []
