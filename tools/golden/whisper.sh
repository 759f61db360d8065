#!/usr/bin/env bash
# Makes tests/golden/whisper again: `./dev golden whisper`. Needs the clips (apt: pocketsphinx-testdata) and some minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
cache="${XDG_CACHE_HOME:-$HOME/.cache}/mstar"
python="$cache/golden-venv/bin/python"
[ -x "$python" ] || python3 -m venv "$cache/golden-venv"
"$python" -m pip install -q --disable-pip-version-check -r tools/golden/requirements.txt
python3 tools/fetch_weights.py whisper-base
python3 tools/fetch_weights.py whisper-tiny.en
record() {  # WEIGHTS FILE [options]
  "$python" tools/golden/whisper_oracle.py --weights "$cache/weights/$1" --testdata /usr/share/pocketsphinx/test/data \
    --out "tests/golden/whisper/$2" "${@:3}"
}
record whisper-base base_librivox.json
record whisper-tiny.en tiny.en_librivox.json
record whisper-tiny.en tiny.en_librivox_int8.json --compute-type int8 --shakes 16
for model in base tiny.en; do
  "$python" tools/golden/whisper_words.py --weights "$cache/weights/whisper-$model" --testdata /usr/share/pocketsphinx/test/data \
    --out "tests/golden/whisper/${model}_words.json"
done
