"""Runs every Python snippet of the README and of docs in order, as a reader would type them, on the CPU unless one uses a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from captured_step import needs_kernels
from conftest import ROOT
from pullback.tensors import devices

pytestmark = pytest.mark.skipif(devices.default_device() != "cpu", reason="a reader's new tensors are on the CPU")


@needs_kernels  # train_step.explain() tells of recordings, and nothing is recorded without kernels
def test_every_snippet_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert len(snippets) >= 5
    namespace: dict[str, object] = {"__name__": "readme"}
    for i, snippet in enumerate(snippets):
        exec(compile(snippet, f"README.md, snippet {i + 1}", "exec"), namespace)
    printed = capsys.readouterr().out
    assert "loss " in printed
    assert "source 0" in printed


PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem != "gpu"]  # whose snippet is CuPy's


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@needs_kernels
def test_every_snippet_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    for i, snippet in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)):
        exec(compile(snippet, f"{page.name}, snippet {i + 1}", "exec"), namespace)


def test_the_two_commands_stand_at_the_top() -> None:
    head = "\n".join((ROOT / "README.md").read_text().splitlines()[:15])
    assert "make train" in head
    assert "make test" in head
