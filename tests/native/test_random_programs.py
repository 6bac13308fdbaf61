"""A random program gives equal results eagerly, captured, vectorized and on the reference backend, while its Parameters change."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from captured_step import needs_kernels, same
from conftest import ROOT, environment, host
from pullback import optim
from random_programs import COUNT, Program, input_of, results

pytestmark = pytest.mark.filterwarnings("ignore::pullback.ZeroGradientWarning")  # from signs and comparisons
OPTIMIZERS: list[Any] = [
    None,
    lambda ps: optim.SGD(ps, lr=0.05, momentum=0.9),
    lambda ps: optim.Adam(ps, lr=0.01),
    lambda ps: optim.AdamW(ps, lr=0.01, clip_norm=0.5),
]


@needs_kernels
@pytest.mark.parametrize("seed", range(COUNT))
def test_a_captured_program_gives_the_bits_of_the_eager_one_while_parameters_change(seed: int) -> None:
    """The optimizer steps inside the program. Between the calls, Parameters are assigned and the learning rate changes."""
    program, dtype = Program(seed), ("float64", "float32", "float16")[seed % 3]
    make = OPTIMIZERS[seed % 4]
    both = []
    for _ in range(2):
        parameters = program.parameters(seed, dtype)
        opt = make(parameters) if make else None

        def run(x: Any, parameters: Any = parameters, opt: Any = opt) -> Any:
            found = program(x, parameters)
            if opt is not None:
                opt.step(found[-len(parameters) :])
            return found

        both.append((parameters, opt, run))
    captured = pb.capture(both[1][2], fusion=("exact", "none")[seed % 2])
    for k in range(4):
        x = input_of(program, 10 * seed + k, dtype)
        found = []
        for (parameters, opt, _), run in zip(both, (both[0][2], captured)):
            pb.random.seed(k)
            found.append(run(x))
            found[-1].append(pb.random.normal((2,)))  # equal only if both programs have drawn as many numbers
            if k % 2:
                parameters[k // 2].assign(pb.cos(parameters[k // 2]) * 0.5)
            if opt is not None and k == 2:
                opt.lr = 0.02
        for got, wanted in zip(found[1], found[0], strict=True):
            same(got, wanted)
        for p, q in zip(both[0][0], both[1][0]):
            same(p, q)


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_vectorized_program_is_a_loop_over_the_examples(seed: int) -> None:
    program = Program(seed, draws=False)
    parameters = program.parameters(seed)
    x = input_of(program, seed, batch=(3,))
    rows = [program(x[k], parameters) for k in range(3)]
    for vectorized in (pb.vmap(lambda x: program(x, parameters)), pb.capture(pb.vmap(lambda x: program(x, parameters)))):
        for got, *wanted in zip(vectorized(x), *rows, strict=True):
            assert got.shape == (3, *wanted[0].shape)
            np.testing.assert_allclose(host(got), np.stack([host(row) for row in wanted]), rtol=1e-10, atol=1e-12)


@needs_kernels
def test_the_reference_backend_gives_what_the_kernels_give(tmp_path: Path) -> None:
    script, file = ROOT / "tests" / "random_programs.py", tmp_path / "results"
    env = environment(PULLBACK_BACKEND="reference", PULLBACK_DEVICE="cpu")
    subprocess.run([sys.executable, str(script), "0", str(COUNT), str(file)], env=env, check=True)
    with pb.use_device("cpu"):
        ours = results(range(COUNT))
    for seed, (got, wanted) in enumerate(zip(ours, pickle.loads(file.read_bytes()), strict=True)):
        for k, (a, b) in enumerate(zip(got, wanted, strict=True)):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11, err_msg=f"program {seed}, value {k}")
