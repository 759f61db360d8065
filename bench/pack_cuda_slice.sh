#!/usr/bin/env bash
# Packs build/cuda/bench/cuda_slice with the shared libraries that a bare machine may lack: pack_cuda_slice.sh DIRECTORY
# Not cuBLASLt (libcublasLt.so.13, 540 MB): the machine needs CUDA 13's own, under /usr/local/cuda or LD_LIBRARY_PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
to=${1:?directory}
mkdir -p "$to/lib"
cp build/cuda/bench/cuda_slice "$to/"
ldd build/cuda/bench/cuda_slice | awk '$3 ~ /^\// { print $3 }' |
  grep -vE '/(libc|libm|libdl|librt|libpthread|libcublas|libcublasLt)\.so' | xargs -r cp -L -t "$to/lib"
du -sh "$to"
