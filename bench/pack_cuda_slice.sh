#!/usr/bin/env bash
# Packs build/cuda/bench/cuda_slice with the shared libraries that a bare machine may lack: pack_cuda_slice.sh DIRECTORY
set -euo pipefail
cd "$(dirname "$0")/.."
to=${1:?directory}
mkdir -p "$to/lib"
cp build/cuda/bench/cuda_slice "$to/"
ldd build/cuda/bench/cuda_slice | awk '$3 ~ /^\// { print $3 }' |
  grep -vE '/(libc|libm|libdl|librt|libpthread)\.so' | xargs -r cp -L -t "$to/lib"
du -sh "$to"
