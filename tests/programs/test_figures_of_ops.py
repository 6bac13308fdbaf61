"""The FLOPs of every op and of its gradient do not depend on the backend."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from captured_step import needs_kernels
from conftest import ROOT, environment
from figures_of_ops import differentiable, figures


@needs_kernels
@pytest.mark.filterwarnings("ignore::pullback.errors.ZeroGradientWarning")
def test_every_op_and_its_gradient_count_as_on_the_reference_backend() -> None:
    command = [sys.executable, "-W", "ignore", str(ROOT / "tests" / "figures_of_ops.py")]
    reference = environment(PULLBACK_BACKEND="reference", PULLBACK_DEVICE="cpu")
    ran = subprocess.run(command, env=reference, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    native = {op.name: figures(op) for op in differentiable()}
    assert len(native) > 100
    assert native == json.loads(ran.stdout)
