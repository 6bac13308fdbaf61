#!/usr/bin/env bash
# Builds pullback on a machine with a GPU and CUDA 13, runs its tests there, checks it with compute-sanitizer, compares the ledger
# of a training step with the hardware counters (where ncu may read them; the results say why where not), and times it against
# PyTorch and JAX in the same run: benchmarks/gpu/run.sh --out results.json. Nine minutes on 16 cores; --help tells how to do less.
#
# Needs nvcc, a C++ compiler, CMake and Ninja, and in python3: numpy, torch, jax, cupy-cuda13x, pybind11, scikit-build-core, pytest,
# hypothesis, and what pullback itself needs. It uses no network: wheels of what is missing are installed from .whl/, made elsewhere by
#   pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64 \
#     --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 -d .whl scipy-openblas32 optree
#
# Without a GPU: make dev CUDA=SIM, then benchmarks/gpu/run.sh --simulated. It goes the same way with small sizes; its numbers mean
# nothing, and the file says so.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
for cuda in "${CUDA_HOME:-/usr/local/cuda}" /usr/local/cuda-13.0; do
  if [ -x "$cuda/bin/nvcc" ]; then PATH=$PATH:$cuda/bin; fi
done
export PATH
exec "${PYTHON:-python3}" benchmarks/gpu/run.py "$@"
