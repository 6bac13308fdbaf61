#!/bin/sh
# Installs NVIDIA's compiler from its wheels into a folder: tools/install_nvcc.sh /opt/cuda; then put /opt/cuda/bin on PATH.
# The folder holds all of CUDA that building pullback needs: no driver, and only the static runtime library.
set -eu
to=$1
version='13.0.*'
"${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --target "$to/wheels" "nvidia-cuda-nvcc==$version" \
  "nvidia-cuda-runtime==$version" "nvidia-cuda-crt==$version" "nvidia-cuda-cccl==$version" "nvidia-nvvm==$version"
for part in bin include lib nvvm; do ln -sfn "wheels/nvidia/cu13/$part" "$to/$part"; done
# the folder in which nvcc and CMake look for libraries
for folder in "$to" "$to/wheels/nvidia/cu13"; do ln -sfn lib "$folder/lib64"; done
"$to/bin/nvcc" --version
