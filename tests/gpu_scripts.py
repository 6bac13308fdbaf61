"""Imports the scripts of benchmarks/gpu into tests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conftest import ROOT

FOLDER = ROOT / "benchmarks" / "gpu"
Scripts = Callable[[str], Any]


def imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripts]:
    """Yields a function that imports scripts by name, for a fixture. Afterwards they are unloaded: their names are common words."""
    monkeypatch.syspath_prepend(str(FOLDER))
    own = {path.stem for path in FOLDER.iterdir()}
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in own}
    yield importlib.import_module
    for name in [name for name in sys.modules if name.partition(".")[0] in own]:
        del sys.modules[name]
    sys.modules.update(before)
