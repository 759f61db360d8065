#!/usr/bin/env bash
# Truth, speed and profile of the binary on a machine with a GPU, from the package of bench/pack_gpu.sh (or a checkout with
# build/cuda): gpu.sh truth|bench|profile|groups. Each part takes less than 9 minutes; what runs out of its own time is cut and said to be. The
# table comes last; PART.json (binary, machine, results) and PART.log go to $OUT, else to results/ beside this script.
#   truth    cuda_slice; language models and Whisper with seeded weights against transformers (gpu_truth.py, gpu_whisper_truth.py); whether
#            answers depend on what else runs (gpu_batch.py); word times (gpu_words.py)
#   bench    the rows of the models through HTTP (gpu_bench.py), with transformers on the same card in the same run
#   profile  the phases of the host's work at 1, 32 and 64 rows; the kernels of the commonest steps (gpu_timeline.py), where CUPTI was there when the binary was built
#   groups   where there are two GPUs or more: what ranks say to each other, one rank against two that work in step (gpu_ranks.py), and rows of
#            placements: Qwen3.5-9B over two ranks, Qwen3.5-0.8B on two replicas beside one of half the load, and prefill apart from decode
# MODELS="..." (names of models/) runs these only.
set -u
part=${1:-}
case $part in truth | bench | profile | groups) ;; *) sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
here=$(cd "$(dirname "$0")" && pwd)
at() { if [ -e "$here/$1" ]; then echo "$here/$1"; else echo "$here/$2"; fi; }
mstar=${MSTAR:-$(at mstar ../build/cuda/mstar)}
slice=$(at cuda_slice ../build/cuda/bench/cuda_slice)
truth=$(at gpu_truth.py ../tools/golden/gpu_truth.py)
batch=$(at gpu_batch.py ../tools/golden/gpu_batch.py)
ranks=$(at gpu_ranks.py ../tools/golden/gpu_ranks.py)
words=$here/gpu_words.py
whisper_truth=$(at gpu_whisper_truth.py ../tools/golden/gpu_whisper_truth.py)
models=$(at models models)
out=${OUT:-$here/results}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
python=$(command -v python3)
# mstar alone gets these: python has CUDA libraries of its own.
export MSTAR_LIBRARIES=$here/lib:/usr/local/cuda/lib64:/usr/local/cuda-13.0/lib64:/usr/local/cuda/targets/x86_64-linux/lib
printf '#!/bin/sh\nLD_LIBRARY_PATH="$MSTAR_LIBRARIES:$LD_LIBRARY_PATH" exec "%s" "$@"\n' "$mstar" > "$work/mstar"
printf '#!/bin/sh\nLD_LIBRARY_PATH="$MSTAR_LIBRARIES:$LD_LIBRARY_PATH" exec "%s" "$@"\n' "$slice" > "$work/cuda_slice"
chmod +x "$work/mstar" "$work/cuda_slice"
begun=$SECONDS
"$python" "$here/gpu_report.py" machine "$mstar" "$work/mstar" > "$work/machine.json"
: > "$work/steps.tsv"

# step NAME SECONDS COMMAND...: its output goes to a log, its end into the table. Nothing runs past 520 s of the part.
step() {
  local name=$1 limit=$2 left=$((520 - SECONDS + begun)) from=$SECONDS status
  shift 2
  [ "$limit" -le "$left" ] || limit=$left
  if [ "$limit" -lt 5 ]; then
    echo 'no time was left' > "$work/$name.log"
    status=124
  else
    timeout -k 10 "$limit" "$@" > "$work/$name.log" 2>&1
    status=$?
  fi
  printf '%s\t%s\t%s\n' "$name" "$status" $((SECONDS - from)) >> "$work/steps.tsv"
  echo "-- $name: exit $status, $((SECONDS - from)) s"
  [ "$status" = 0 ] || tail -n 15 "$work/$name.log"
  [ "$status" != 124 ] || sleep 3  # until a server that was cut off has left the port and the device
}
wanted() { [ -d "$models/$1" ] && case " ${MODELS:-$1} " in *" $1 "*) true ;; *) false ;; esac; }
bench() {
  local name=$1 limit=$2
  shift 2
  step "$name" "$limit" "$python" "$here/gpu_bench.py" --mstar "$work/mstar" --binary "$mstar" --models "$models" --json "$work/$name.result.json" "$@" -- --device cuda
}

case $part in
  truth)
    step cuda_slice 150 "$work/cuda_slice" 64 all checks
    for model in qwen3-0.6b qwen3.5-0.8b qwen2.5-0.5b llama-3.2-1b; do
      wanted $model && step "truth-$model" 100 "$python" "$truth" --mstar "$work/mstar" --config "$models/$model/config.json" --prompts 3 --every 16 -- \
        --device cuda --weights bf16
    done
    wanted whisper-large-v3 && [ -f "$whisper_truth" ] && step truth-whisper-large-v3 200 "$python" "$whisper_truth" --mstar "$work/mstar" \
      --config "$models/whisper-large-v3/config.json" -- --device cuda
    wanted whisper-small && [ -f "$words" ] && step words-whisper-small 120 "$python" "$words" --mstar "$work/mstar" --config "$models/whisper-small/config.json" \
      $([ -d "$models/whisper-tiny.en" ] && [ -d "$here/speech" ] && echo --weights "$models/whisper-tiny.en" --speech "$here/speech" --golden "$here/tiny.en_words.json") -- --device cuda
    wanted qwen3.5-0.8b && step batch-qwen3.5-0.8b 90 "$python" "$batch" --mstar "$work/mstar" --model "$models/qwen3.5-0.8b" -- --device cuda
    ;;
  bench)
    wanted qwen3.5-0.8b && bench qwen3.5-0.8b 200 --run qwen3.5-0.8b:1,32,64 --seconds 15 --boots 3 --peer transformers
    wanted whisper-large-v3 && bench whisper-large-v3 140 --run whisper-large-v3:1,32 --seconds 15 --peer transformers
    wanted whisper-large-v3 && bench whisper-large-v3-words 60 --run whisper-large-v3:1,32 --seconds 8 --words
    wanted qwen3.5-9b && bench qwen3.5-9b 110 --run qwen3.5-9b:64 --seconds 15
    wanted qwen3.5-0.8b && bench qwen3.5-0.8b-16-512 90 --run qwen3.5-0.8b:32,64 --seconds 15 --output 16-512
    others=()
    for run in qwen2.5-0.5b:32 qwen3-0.6b:32 llama-3.2-1b:32 whisper-{tiny,base,small,medium,large-v3-turbo}:1,32; do
      wanted "${run%%:*}" && others+=(--run "$run")
    done
    [ ${#others[@]} -gt 0 ] && bench others 150 "${others[@]}" --seconds 3
    ;;
  groups)
    step cuda_slice-group 60 "$work/cuda_slice" 64 group
    wanted qwen3.5-0.8b && step ranks-qwen3.5-0.8b 60 "$python" "$ranks" --mstar "$work/mstar" --model "$models/qwen3.5-0.8b" --devices 0,1
    wanted qwen3-0.6b && step ranks-qwen3-0.6b 60 "$python" "$ranks" --mstar "$work/mstar" --model "$models/qwen3-0.6b" --devices 0,1
    wanted qwen3.5-9b && bench tp2-qwen3.5-9b 110 --run qwen3.5-9b:1,16,64 --seconds 12 \
      --config '{"node_groups": [{"components": ["decoder"], "ranks": [0, 1], "tp_size": 2}]}'
    if wanted qwen3.5-0.8b; then
      bench one-qwen3.5-0.8b 50 --run qwen3.5-0.8b:32 --seconds 10
      bench two-qwen3.5-0.8b 60 --run qwen3.5-0.8b:64 --seconds 10 --config '{"node_groups": [{"components": ["decoder"], "ranks": [0, 1]}]}'
      bench apart-qwen3.5-0.8b 60 --run qwen3.5-0.8b:32 --seconds 10 \
        --config '{"node_groups": [{"components": ["decoder"], "walks": ["prefill"], "ranks": [0]}, {"components": ["decoder"], "walks": ["decode"], "ranks": [1]}]}'
    fi
    ;;
  profile)
    wanted qwen3.5-0.8b && bench phases-qwen3.5-0.8b 120 --run qwen3.5-0.8b:1,32,64 --seconds 8 --phases
    wanted whisper-large-v3 && bench phases-whisper-large-v3 100 --run whisper-large-v3:1,32 --seconds 8 --phases
    trace=$(at libkernel_trace.so ../build/cuda/bench/libkernel_trace.so)
    if [ ! -f "$trace" ]; then
      echo 'libkernel_trace.so is not here (CUPTI was not there when the binary was built): no kernel times' > "$work/kernels.log"
      printf 'kernels\t0\t0\n' >> "$work/steps.tsv"
    fi
    for model in qwen3.5-0.8b whisper-large-v3; do
      wanted $model && [ -f "$trace" ] && step "kernels-$model" 90 "$python" "$here/gpu_timeline.py" --mstar "$work/mstar" --model "$models/$model" --trace "$trace" -- --device cuda &&
        cat "$work/kernels-$model.log"
    done
    ;;
esac
shopt -s nullglob
for log in "$work"/*.log; do printf '==== %s\n' "$(basename "$log")"; cat "$log"; done > "$out/$part.log"
"$python" "$here/gpu_report.py" part "$part" "$work" "$out"
