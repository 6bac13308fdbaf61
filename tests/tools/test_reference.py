"""The tests that do not need kernels also pass without them: in a separate process, on the reference backend."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conftest import ROOT, environment
from pullback import variables


@pytest.mark.skipif(variables.backend() == "reference", reason="this run is on the reference backend already")
def test_the_reference_backend_passes_the_same_tests() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "tests/any_backend"]
    done = subprocess.run(
        command, env=environment(PULLBACK_BACKEND="reference"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
