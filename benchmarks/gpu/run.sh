#!/usr/bin/env bash
# Measures and checks pullback on a machine with an NVIDIA GPU, CUDA 13 and no network. Each command builds what is not built yet
# and ends by itself within nine minutes. It prints and writes each result as soon as the result is known:
#
#   benchmarks/gpu/run.sh figures   our times, in float32, tf32 and bfloat16; kernels of the captured steps; then PyTorch and JAX
#   benchmarks/gpu/run.sh tests     the tests, compute-sanitizer, a soak of sorts and scatters, the ledger against hardware counters
#   benchmarks/gpu/run.sh rivals    torch.compile, which compiles for minutes
#
# Results go to benchmarks/results/<gpu>-<date>.json; --out DIR also copies them and the logs to DIR.
# `python3 benchmarks/gpu/table.py` writes README's tables from the results. --help lists the options.
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
