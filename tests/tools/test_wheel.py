"""What a wheel contains: the package, and of the simulated device only what a simulator build asks for."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from conftest import ROOT, environment

pytest.importorskip("scikit_build_core", reason="scikit-build-core, which makes wheels, is not installed")
if not (ROOT / "pyproject.toml").exists():
    pytest.skip("the source tree is not here: an installed package", allow_module_level=True)
SIMULATED = "pullback/tensors/simulated.py"
MAKE = "import json, sys; from scikit_build_core.build import build_wheel; build_wheel(sys.argv[1], json.loads(sys.argv[2]))"


def sources() -> set[str]:
    """Returns the files of the package in the source tree, without what a build in place has added."""
    paths = [p for p in (ROOT / "python" / "pullback").rglob("*") if p.is_file() and p.suffix not in (".so", ".dylib")]
    names = [p.relative_to(ROOT / "python") for p in paths]
    return {name.as_posix() for name in names if not {"__pycache__", ".libs"} & set(name.parts)}


def contents(folder: Path, **settings: str) -> set[str]:
    """Returns the files of the package in a wheel without kernels that is made with these settings of the build."""
    options = json.dumps({name.replace("_", "."): value for name, value in settings.items()})
    command = [sys.executable, "-c", MAKE, str(folder), options]
    subprocess.run(command, env=environment(PULLBACK_NATIVE="OFF"), cwd=ROOT, capture_output=True, check=True)
    (wheel,) = folder.glob("*.whl")
    return {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("pullback/")}


def test_a_wheel_is_the_package_without_the_simulated_device(tmp_path: Path) -> None:
    assert SIMULATED in sources()
    assert contents(tmp_path) == sources() - {SIMULATED}


def test_a_wheel_of_a_simulator_build_has_the_simulated_device(tmp_path: Path) -> None:
    assert contents(tmp_path, wheel_exclude="") == sources()
    assert "--config-settings='wheel.exclude='" in (ROOT / "Makefile").read_text()
