"""Public names: each says which public module it comes from, and can be imported from there."""

from __future__ import annotations

import importlib
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pullback as pb
from conftest import environment
from pullback import linalg, nn, optim

SPACES = (pb, pb.data, linalg, nn, nn.functional, nn.init, optim, optim.schedules, pb.random)


def exported() -> dict[str, Any]:
    """The functions and classes that public modules export, by the path of the module and their name."""
    found: dict[str, Any] = {}
    for space in SPACES:
        names = getattr(space, "__all__", None) or [name for name in dir(space) if name[0] != "_"]
        for name in names:
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
