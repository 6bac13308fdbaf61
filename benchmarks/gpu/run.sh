#!/usr/bin/env bash
# Measures and checks pullback on a machine with an NVIDIA GPU, CUDA 13 and no network. Half an hour is enough for three commands. Each
# builds what is not built yet, and ends by itself within 590 seconds. It prints and writes each result as soon as it is known:
#
#   benchmarks/gpu/run.sh figures   every family of kernels, also under compute-sanitizer; then the times of pullback, PyTorch and JAX
#                                   in turns, in float32, tf32 and bfloat16; kernels of the captured steps; what eager steps wait for
#   benchmarks/gpu/run.sh tests     the tests in 16 processes, a soak of random shapes, the ledger against hardware counters
#   benchmarks/gpu/run.sh rest      the tests that were not reached or failed; torch.compile, which compiles for minutes
#   benchmarks/gpu/run.sh plan      only prints the stages, with their limits and the seconds that they last took
#
# Results go to benchmarks/results/<gpu>-<date>.json; --out DIR also copies them and the logs to DIR. If a command of the day runs
# again, its results take the place of the earlier ones, stage by stage: --only names stages, and --only-missing leaves out the tests
# that have passed. `python3 benchmarks/gpu/table.py` writes README's table and docs/gpu_speed.md. --help lists the options.
#
# This needs nvcc 13, a C++ compiler, CMake, Ninja, and the Python packages numpy and cupy-cuda13x. The comparison needs torch and
# jax, the checks need ncu and compute-sanitizer. Other packages may come as wheels in .whl/. To download these for Python 3.12:
#
#   python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
#     --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
#     --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d .whl \
#     pybind11 scikit-build-core pathspec packaging scipy-openblas32 ml_dtypes optree safetensors tqdm rich markdown-it-py \
#     mdurl pygments typing-extensions pytest iniconfig pluggy pytest-xdist execnet hypothesis sortedcontainers mpmath
#
# The command first prints a table of what it found and what is missing. Wheels never replace installed packages.
#
# Without a GPU, --simulated builds for the simulator and runs the same stages with small sizes. Its numbers mean nothing, and they
# stay in build/gpu.
set -u
export CALLED_FROM="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
for cuda in "${CUDA_HOME:-/usr/local/cuda}" /usr/local/cuda-13.*; do
  if [ -x "$cuda/bin/nvcc" ]; then PATH=$PATH:$cuda/bin; fi
done
export PATH
exec "${PYTHON:-python3}" benchmarks/gpu/run.py "$@"
