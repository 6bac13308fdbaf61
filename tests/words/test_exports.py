"""Public names: each says which public module it comes from, and can be imported from there."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import pullback as pb
from conftest import environment
from public_names import spaces
from pullback import nn, optim

SPACES = spaces()


def exported() -> dict[str, Any]:
    """The functions and classes that public modules export, by the path of the module and their name."""
    found: dict[str, Any] = {}
    for space in SPACES:
        for name in dir(space):
            value = getattr(space, name)
            if (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__.startswith("pullback"):
                found[f"{space.__name__}.{name}"] = value
    return found


EXPORTED = exported()


@pytest.mark.parametrize("path", EXPORTED)
def test_a_public_name_can_be_imported_from_the_module_that_it_names(path: str) -> None:
    value = EXPORTED[path]
    assert value.__module__ in {space.__name__ for space in SPACES}
    assert getattr(importlib.import_module(value.__module__), value.__name__) is value
    assert pickle.loads(pickle.dumps(value)) is value


def test_many_names_are_public() -> None:
    assert len(EXPORTED) > 250
    assert {pb.Tensor.__module__, pb.tanh.__module__, pb.save.__module__, pb.ShapeError.__module__} == {"pullback"}
    assert (nn.Linear.__module__, nn.mse.__module__, optim.Adam.__module__) == ("pullback.nn", "pullback.nn", "pullback.optim")


CONSTANTS = ("e", "inf", "nan", "newaxis", "pi")


def meets(space: ModuleType, name: str) -> bool:
    """True if a user meets this: something of pullback, or what the array API puts into its namespace."""
    value = getattr(space, name)
    if isinstance(value, ModuleType):
        return value in SPACES or value is pb.config
    if space is pb and (isinstance(value, np.dtype) or name in CONSTANTS):
        return True
    if space is pb.typing:
        return name in pb.typing.__all__
    home = type(value).__module__ if not hasattr(value, "__module__") else value.__module__
    return home.partition(".")[0] == "pullback"


def test_the_public_modules_are_found() -> None:
    names = (
        "amp data debug linalg nn nn.functional nn.init optim optim.constraints optim.schedules profiling random solve tree typing"
    )
    assert {space.__name__ for space in SPACES} == {"pullback", *[f"pullback.{name}" for name in names.split()]}


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.__name__)
def test_dir_shows_what_users_meet_and_nothing_else(space: ModuleType) -> None:
    names = dir(space)
    assert names == sorted({*names}) == sorted(space.__all__)
    assert [name for name in names if name[0] == "_" or not meets(space, name)] == []
    values = {name: getattr(space, name) for name in names}
    assert [name for name, x in values.items() if (inspect.isroutine(x) or inspect.isclass(x)) and not inspect.getdoc(x)] == []


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.__name__)
def test_dir_shows_what_a_module_imports_for_users(space: ModuleType) -> None:
    """A module that lists no names itself imports nothing but public names and modules of the package."""
    body = ast.parse(inspect.getsource(space)).body
    if any([isinstance(node, ast.Assign) and ast.unparse(node).startswith("__all__ = ['") for node in body]):
        own = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        assert {name for name in dir(space) if inspect.isroutine(getattr(space, name))} <= {*own}
        return
    relative = [node for node in body if isinstance(node, ast.ImportFrom) and node.level]
    imported = {alias.asname or alias.name for node in relative for alias in node.names} - {"*", "exported"}
    assert {name for name in imported if name[0] != "_"} <= {*dir(space)}


def test_dir_is_the_same_before_anything_is_used() -> None:
    code = "import pullback as pb; print(*dir(pb))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == dir(pb)


def test_a_star_imports_what_dir_shows() -> None:
    for space in SPACES:
        names: dict[str, Any] = {}
        exec(f"from {space.__name__} import *", names)
        assert {*names} - {"__builtins__"} == {*dir(space)}


def test_the_order_of_imports_changes_no_module() -> None:
    homes = {"profile": "pullback", "nn.mse": "pullback.nn", "nn.functional.dropout": "pullback.nn.functional"}
    for first in ("pullback.profiling", "pullback.random", "pullback.nn.functional", "pullback.optim"):
        asked = ", ".join([f"pullback.{path}.__module__" for path in homes])
        code = f"import {first}, pullback.nn; print({asked})"
        done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
        assert done.stdout.split() == [*homes.values()], first


def test_no_module_shares_its_name_with_a_public_function() -> None:
    """Otherwise `pb.name` would be the function or the module, whichever was imported last."""
    folder = Path(str(pb.__file__)).parent
    modules = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    for name in modules - {"__init__", "__main__"}:
        assert isinstance(getattr(pb, name, None), (ModuleType, type(None))), name
