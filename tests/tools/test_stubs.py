"""What tools/generate.py writes from the declarations is up to date: the stubs that type checkers read, and the table of ops."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from conftest import ROOT
from public_names import spaces

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


PACKAGE = ROOT / "python" / "pullback"
PUBLIC = [space.__name__ for space in spaces()]


def stub(name: str) -> Path:
    place = ROOT.joinpath("python", *name.split("."))
    return place / "__init__.pyi" if place.is_dir() else place.with_suffix(".pyi")


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


SPACES = [name for name in PUBLIC if stub(name).exists()]


@pytest.mark.parametrize("name", SPACES)
def test_a_stub_has_the_public_names_and_no_others(name: str) -> None:
    """The names without an underscore that type checkers take for public: `import a as a`, functions and annotated variables."""
    known: set[str] = set()
    for node in ast.parse(stub(name).read_text()).body:
        if isinstance(node, ast.ImportFrom):
            known |= {alias.asname for alias in node.names if alias.asname == alias.name}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            known.add(node.target.id)
        elif isinstance(node, ast.FunctionDef):
            known.add(node.name)
    assert {each for each in known if each[0] != "_"} == {*dir(importlib.import_module(name))}


@pytest.mark.parametrize("name", sorted({*PUBLIC} - {*SPACES}))
def test_a_module_without_a_stub_lists_its_names_where_type_checkers_read_them(name: str) -> None:
    """A checker evaluates `__all__` only if it is a list or a tuple of words. A module that only imports has a stub instead."""
    body = ast.parse(inspect.getsource(importlib.import_module(name))).body
    lists = [node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    assert [[*ast.literal_eval(value)] for value in lists] == [dir(importlib.import_module(name))]


@pytest.mark.parametrize("name", PUBLIC)
def test_checkers_and_help_read_one_signature(name: str) -> None:
    """Compares the parameters of each public function at run time with those that a type checker reads in its source or stub."""
    space = importlib.import_module(name)
    for f in [x for x in [getattr(space, each) for each in dir(space)] if inspect.isfunction(x)]:
        source = Path(inspect.unwrap(f).__code__.co_filename)
        read = [PACKAGE / "ops" / f"{stub}.pyi" for stub in generate().DECLARING] if source.name == "declare.py" else [source]
        body = [node for path in read for node in ast.parse(path.read_text()).body]
        *_, node = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == f.__name__]
        signature = inspect.signature(f)
        found = signature.replace(parameters=[p.replace(default=p.empty) for p in signature.parameters.values()])
        assert f"{f.__name__}{found}".replace('"', "'") == written(node), f"{name}.{f.__name__}"


def written(node: ast.FunctionDef) -> str:
    """Returns the name, the parameters without their defaults, and the result, in the form of `inspect.signature`."""
    for argument in ast.walk(node.args):
        if isinstance(argument, ast.arg) and argument.annotation is not None:
            argument.annotation = ast.Constant(ast.unparse(argument.annotation))
    node.args.defaults, node.args.kw_defaults = [], [None] * len(node.args.kwonlyargs)
    return f"{node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns or ast.Name('nothing'))!r}".replace('"', "'")


def test_a_name_is_imported_when_it_is_first_used() -> None:
    assert {*pb._HOME} <= {*dir(pb)}
    for name in pb._HOME:
        assert getattr(pb, name) is getattr(pb, name)
    with pytest.raises(AttributeError, match="module 'pullback' has no attribute 'gradient'"):
        _ = pb.gradient
