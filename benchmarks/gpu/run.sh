#!/usr/bin/env bash
# Measures and checks pullback on a machine with an NVIDIA GPU, CUDA 13 and no network. Each command builds what is not built yet,
# ends by itself within nine minutes, prints each result as soon as it is known, and has written everything before it ends:
#
#   benchmarks/gpu/run.sh figures   our times, in float32, tf32 and bfloat16; kernels of the captured steps; then PyTorch and JAX
#   benchmarks/gpu/run.sh tests     the tests, compute-sanitizer, a soak of sorts and scatters, the ledger against hardware counters
#   benchmarks/gpu/run.sh rivals    torch.compile, which compiles for minutes
#
# Results are in benchmarks/results/<gpu>-<date>.json; --out DIR also puts them and the logs into DIR. README's tables are written
# from them by `python3 benchmarks/gpu/table.py`. --help lists the options.
#
# Needed: nvcc 13, a C++ compiler, CMake, Ninja, and in python3 numpy and cupy-cuda13x; torch and jax to compare with; ncu and
# compute-sanitizer to check with. Other packages may come as wheels in .whl/. Made where there is a network, for Python 3.12:
#
#   python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
#     --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
#     --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d .whl \
#     pybind11 scikit-build-core pathspec packaging scipy-openblas32 ml_dtypes optree safetensors tqdm rich markdown-it-py \
#     mdurl pygments typing-extensions pytest iniconfig pluggy pytest-xdist execnet hypothesis sortedcontainers mpmath
#
# The command begins with a table of what it found and what is missing. Installed packages are never replaced by wheels.
#
# Without a GPU: --simulated builds for the simulator and goes the same way with small sizes. Its numbers mean nothing, and they stay
# in build/gpu.
set -u
export CALLED_FROM="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
for cuda in "${CUDA_HOME:-/usr/local/cuda}" /usr/local/cuda-13.*; do
  if [ -x "$cuda/bin/nvcc" ]; then PATH=$PATH:$cuda/bin; fi
done
export PATH
exec "${PYTHON:-python3}" benchmarks/gpu/run.py "$@"
