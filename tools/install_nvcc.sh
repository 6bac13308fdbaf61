#!/bin/sh
# Installs NVIDIA's compiler from its wheels into a folder: tools/install_nvcc.sh /opt/cuda; then put /opt/cuda/bin on PATH.
# What it makes is all that building pullback needs of CUDA: no driver, no libraries but the static runtime.
set -eu
to=$1
version='13.0.*'
"${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --target "$to/wheels" "nvidia-cuda-nvcc==$version" \
  "nvidia-cuda-runtime==$version" "nvidia-cuda-crt==$version" "nvidia-cuda-cccl==$version" "nvidia-nvvm==$version"
for part in bin include lib nvvm; do ln -sfn "wheels/nvidia/cu13/$part" "$to/$part"; done
for folder in "$to" "$to/wheels/nvidia/cu13"; do ln -sfn lib "$folder/lib64"; done  # where nvcc and CMake look for libraries
"$to/bin/nvcc" --version
