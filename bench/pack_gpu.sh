#!/usr/bin/env bash
# Packs build/cuda's mstar and cuda_slice with the shared libraries that a bare machine may lack (all but the C library's
# and CUDA's own, of which the machine must have 13.0's), the sizes of bench/models and the scripts that gpu.sh runs into
# DIRECTORY/gpu.tar.xz: bench/pack_gpu.sh DIRECTORY [WEIGHTS...]. Each of WEIGHTS is a directory of a model (Whisper tiny.en
# in int8, say), which lies under models/ there.
set -euo pipefail
cd "$(dirname "$0")/.."
to=${1:?directory}
shift
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
mkdir -p "$staging/lib" "$to"
for program in build/cuda/mstar build/cuda/bench/*; do
  [ -f "$program" ] && [ -x "$program" ] || continue
  strip -o "$staging/$(basename "$program")" "$program"
  ldd "$program" | awk '$3 ~ /^\// { print $3 }'
done | sort -u | grep -vE '/(libc|libm|libdl|librt|libpthread|libcublas|libcublasLt|libcudart|libcudnn[a-z_]*|libnvJitLink)\.so' | xargs -r cp -L -t "$staging/lib"
cp -r bench/models bench/*.sh bench/*.py tools/golden/gpu_*.py src/mstar/ops/linear/linear_table.inc "$staging/"
# What the word times of Whisper tiny.en, where it is among the weights, are compared on.
speech=/usr/share/pocketsphinx/test/data
if [ -d "$speech" ]; then
  mkdir "$staging/speech"
  (cd "$speech" && cp --parents librivox/*.wav cards/*.wav *.raw tidigits/*.raw "$staging/speech/")
  cp tests/golden/whisper/tiny.en_words.json "$staging/"
fi
for weights in "$@"; do cp -rL "$weights" "$staging/models/"; done
tar -C "$staging" -c . | xz -T0 -3 > "$to/gpu.tar.xz"
du -h "$to/gpu.tar.xz"
