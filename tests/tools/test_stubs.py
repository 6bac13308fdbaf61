"""What tools/generate.py writes from the declarations is up to date: the stubs that type checkers read, and the table of ops."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from typing import Any

import pytest

import pullback as pb
from conftest import ROOT

TOOL = ROOT / "tools" / "generate.py"
if not TOOL.exists():
    pytest.skip("the source tree is not here: an installed package", allow_module_level=True)


def generate() -> Any:
    found = importlib.util.spec_from_file_location("generate", TOOL)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_stub_is_what_its_source_says() -> None:
    stubs = generate().stubs()
    assert {path.relative_to(ROOT / "python") for path in stubs} == {
        path.relative_to(ROOT / "python") for path in (ROOT / "python").rglob("*.pyi")
    }
    assert [path.name for path, text in stubs.items() if path.read_text() != text] == []


def test_the_page_about_reproducibility_has_the_table_of_ops(native: None) -> None:
    """If this fails, run `make dev`, which runs tools/generate.py."""
    tool = generate()
    text = tool.REPRODUCIBILITY.read_text()
    assert text == tool.with_ops(text)


PACKAGES = ("", ".nn", ".nn.functional", ".optim", ".data", ".linalg", ".random")


@pytest.mark.parametrize("name", [f"pullback{package}" for package in PACKAGES])
def test_a_stub_has_every_public_name(name: str) -> None:
    module = importlib.import_module(name)
    place = ROOT.joinpath("python", *name.split("."))
    text = (place / "__init__.pyi" if place.is_dir() else place.with_suffix(".pyi")).read_text()
    known: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom):
            known |= {alias.asname for alias in node.names if alias.asname == alias.name}
            if node.names[0].name == "*":
                package = name if place.is_dir() else name.rpartition(".")[0]
                known |= {*importlib.import_module("." * node.level + (node.module or ""), package).__all__}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            known.add(node.target.id)
    public = {n for n in getattr(module, "__all__", dir(module)) if name != "pullback" or not inspect.ismodule(getattr(module, n))}
    assert public - known == set()


def test_a_name_is_imported_when_it_is_first_used() -> None:
    assert {*pb._HOME} <= {*dir(pb)}
    for name in pb._HOME:
        assert getattr(pb, name) is getattr(pb, name)
    with pytest.raises(AttributeError, match="module 'pullback' has no attribute 'gradient'"):
        _ = pb.gradient
