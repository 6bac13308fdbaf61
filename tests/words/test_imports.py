"""Modules that are imported late. An import inside a tape, a profile or a captured function is not recorded, counted or refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from captured_step import needs_kernels
from conftest import environment


def run(program: str) -> str:
    """Returns the output of a program in a new process, in which nothing has been imported yet."""
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_kernels
def test_no_import_launches_a_kernel_or_does_what_a_recording_refuses() -> None:
    program = """
import importlib, pkgutil
import pullback as pb
from pullback import backends
from pullback.launch import capturing
from pullback.tensors import devices

class Nothing:
    opaque = False
    watch_parameters = True

    def __getattr__(self, name):
        raise AssertionError(name)

    def refusal(self, what, line, instead):
        return AssertionError(f"{what} at {line}")

kernels = backends.kernels_on(devices.default_device())
kernels.plan_begin([])
capturing.thread.recording = Nothing()
for found in pkgutil.walk_packages(pb.__path__, "pullback."):
    if not found.name.endswith("__main__") and "._" not in found.name:
        importlib.import_module(found.name)
print(kernels.plan_length())
"""
    assert run(program) == "0"


USES = {
    "a loss": "lambda x: pb.nn.mse(x, 0 * x)",
    "a random number": "lambda x: pb.sum(x * pb.random.uniform((3,)))",
    "a transform": "lambda x: pb.sum(pb.grad(lambda y: pb.sum(y * y))(x))",
    "another precision": "lambda x: pb.sum(pb.astype(pb.astype(x, pb.bfloat16), pb.float32))",
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("around", ["pb.capture(f)(x)", "pb.flops(f, x)", "pb.vmap(f)(pb.ones((2, 3)))", "pb.checkpoint(f)(x)"])
def test_the_first_use_of_a_module_may_be_anywhere(around: str, use: str) -> None:
    program = f"""
import pullback as pb
x, f = pb.ones(3), {use}
{around}
print(f(x).shape, pb.random.normal((2,)).shape, pb.nn.Linear(2, 1)(pb.ones((1, 2))).shape)
"""
    assert run(program) == "() (2,) (1, 1)"


def test_an_import_that_was_interrupted_is_done_again() -> None:
    program = """
import sys
import pullback as pb

def stop(frame, event, arg):
    here = frame.f_globals.get("__name__") == "pullback.ops.random" and frame.f_code.co_name == "<module>"
    if here and event == "line" and "default" in frame.f_globals:
        raise KeyboardInterrupt
    return stop

sys.settrace(stop)
try:
    pb.random.normal((2,))
except KeyboardInterrupt:
    print("interrupted")
sys.settrace(None)
print(pb.random.normal((2,)).shape)
"""
    assert run(program) == "interrupted\n(2,)"


def test_an_op_is_declared_once() -> None:
    from pullback.ops.declare import unary

    with pytest.raises(ValueError, match="op tanh is declared twice"):
        unary("tanh", pullback=None, reference=lambda xp, x: xp.tanh(x))
