#!/usr/bin/env python3
"""Transcribes audio with faster-whisper and writes what it found as JSON: the truth our Whisper is compared with.

    whisper_oracle.py --weights DIR --out FILE.json AUDIO...        files, transcribed one by one
    whisper_oracle.py --weights DIR --out FILE.json --testdata DIR  the fixed list below, from pocketsphinx-testdata

Greedy (beam 1, temperature 0 alone, so no fallback), no voice activity filter, two threads. Per file: text, language,
segments (seconds, tokens with timestamps, avg_logprob, no_speech_prob), and windows: the prompt that each 30 s window
was decoded with, its tokens, and `margin`, the least gap between the first and the second logit over its steps. A
small margin (under 0.05, say) marks a text that another rounding may change. `.raw` files are 16 kHz mono s16.

--shakes tells for each clip of one window what else the oracle hears when its samples are off by a rounding: see shaken().
With --testdata the clips with a known transcript get `reference` and `wer` (Whisper's English normaliser on both sides).
"""
import argparse
import hashlib
import json
import pathlib
import re
import sys

import numpy as np

LIBRIVOX = ["librivox/sense_and_sensibility_01_austen_64kb-%s.wav" % n for n in ("0870", "0880", "0890", "0920", "0930")]
CARDS = ["cards/%03d.wav" % n for n in range(1, 6)]
RAW = ["goforward.raw", "numbers.raw", "something.raw", "tidigits/dhd.2934z.raw"]
# Pcm of the parts, in this order, with 8000 zero samples between: longer than one window.
JOINED = {"joined/librivox_twice": LIBRIVOX * 2, "joined/everything": CARDS + LIBRIVOX + RAW + LIBRIVOX[::-1]}
GAP_SAMPLES = 8000
WINDOW_SAMPLES = 480000
KNOWN = {"goforward.raw": "go forward ten meters", "tidigits/dhd.2934z.raw": "two nine three four zero"}


class Recorder:
    """Stands between faster-whisper and CTranslate2's generate, and notes each window."""

    def __init__(self, model):
        self.model, self.windows = model, []

    def __getattr__(self, name):
        return getattr(self.model, name)

    def generate(self, features, prompts, **options):
        results = self.model.generate(features, prompts, return_logits_vocab=True, **options)
        for prompt, result in zip(prompts, results):
            gaps = []
            for step in result.logits[0]:
                top = np.partition(np.array(step).ravel(), -2)[-2:]
                gaps.append(round(float(top[1] - top[0]), 6))
            self.windows.append({
                "prompt": list(prompt), "tokens": list(result.sequences_ids[0]), "score": result.scores[0],
                "no_speech_prob": result.no_speech_prob, "margin": min(gaps, default=None), "gaps": gaps})
        return results


def open_model(weights, compute_type, threads):
    from faster_whisper import WhisperModel
    whisper = WhisperModel(str(weights), device="cpu", compute_type=compute_type, cpu_threads=threads)
    whisper.model = Recorder(whisper.model)
    return whisper


def read_audio(path):
    """Pcm as faster-whisper reads it: f32, 16 kHz, mono."""
    if str(path).endswith(".raw"):
        raw = path.read_bytes()
        return np.frombuffer(raw[:len(raw) // 2 * 2], "<i2").astype(np.float32) / 32768.0
    from faster_whisper.audio import decode_audio
    return decode_audio(str(path))


def transcribe(whisper, pcm, language, condition, task="transcribe", prompt=None):
    whisper.model.windows = []
    segments, about = whisper.transcribe(
        pcm, language=language, beam_size=1, temperature=[0.0], condition_on_previous_text=condition, vad_filter=False,
        task=task, initial_prompt=prompt)
    segments = list(segments)
    return {
        "text": "".join(segment.text for segment in segments).strip(),
        "language": about.language,
        "language_probability": float(about.language_probability),
        "num_samples": int(pcm.shape[0]),
        "segments": [{
            "start": round(segment.start, 6), "end": round(segment.end, 6), "text": segment.text, "seek_frames": segment.seek,
            "tokens": list(segment.tokens), "avg_logprob": round(float(segment.avg_logprob), 6),
            "no_speech_prob": float(segment.no_speech_prob), "compression_ratio": round(segment.compression_ratio, 6),
        } for segment in segments],
        "windows": whisper.model.windows,
    }


def shake(pcm, seed):
    """The sound with every sample off by 3e-7 of itself (as a standard deviation): a rounding or two of f32."""
    return (pcm * (1 + 3e-7 * np.random.default_rng(seed).standard_normal(len(pcm)))).astype(np.float32)


def shaken(whisper, pcm, language, condition, times, known):
    """What else the oracle hears in shaken sounds: [{text, tokens of each segment}], each once.

    Rounding to int8 makes a large step of a small difference, so two right programs may part where the sound is unclear. What a program
    may say is the oracle's own answer or one of these.
    """
    others, seen = [], [known]
    for seed in range(times):
        entry = transcribe(whisper, shake(pcm, seed), language, condition)
        tokens = [segment["tokens"] for segment in entry["segments"]]
        if tokens not in seen:
            seen.append(tokens)
            others.append({"text": entry["text"], "tokens": tokens})
    return others


def normalise(words):
    """Whisper's English normaliser, then numbers digit by digit: "55" and "5 5" are the same."""
    from whisper_normalizer.english import EnglishTextNormalizer
    return " ".join(re.sub(r"(\d)", r" \1 ", EnglishTextNormalizer()(words)).split())


def word_error_rate(reference, text):
    import jiwer
    return round(jiwer.wer(normalise(reference), normalise(text) or "<empty>"), 4)


def known_transcripts(testdata):
    """File → words, from the `transcription` files: `<s> words </s> (id)`."""
    known = dict(KNOWN)
    for folder, name in (("librivox", "transcription"), ("cards", "cards.transcription")):
        for line in (testdata / folder / name).read_text().splitlines():
            words, _, name = line.rpartition("(")
            known["%s/%s.wav" % (folder, name.rstrip(")"))] = " ".join(words.replace("<s>", "").replace("</s>", "").split())
    for name, parts in JOINED.items():
        if all(part in known for part in parts):
            known[name] = " ".join(known[part] for part in parts)
    return known


def testdata_items(testdata):
    """(name, pcm, fields) of the fixed list."""
    pcm = {name: read_audio(testdata / name) for name in LIBRIVOX + CARDS + RAW}
    for name in LIBRIVOX + CARDS + RAW:
        yield name, pcm[name], {"sha256": hashlib.sha256((testdata / name).read_bytes()).hexdigest()}
    gap = np.zeros(GAP_SAMPLES, np.float32)
    for name, parts in JOINED.items():
        pieces = [piece for part in parts for piece in (pcm[part], gap)][:-1]
        yield name, np.concatenate(pieces), {"parts": parts, "gap_samples": GAP_SAMPLES}


def write_json(path, value):
    """Objects one key a line, lists of numbers on one line."""
    def text(item, indent):
        if isinstance(item, dict):
            rows = ['%s"%s": %s' % (" " * (indent + 1), key, text(value, indent + 1)) for key, value in item.items()]
            return "{\n%s\n%s}" % (",\n".join(rows), " " * indent)
        if isinstance(item, list) and item and isinstance(item[0], dict):
            rows = ["%s%s" % (" " * (indent + 1), text(value, indent + 1)) for value in item]
            return "[\n%s\n%s]" % (",\n".join(rows), " " * indent)
        return json.dumps(item, ensure_ascii=False)
    path.write_text(text(value, 0) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--weights", type=pathlib.Path, required=True)
    parser.add_argument("--name", help="name of the weights, written into the file")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--testdata", type=pathlib.Path, help="/usr/share/pocketsphinx/test/data")
    parser.add_argument("--language")
    parser.add_argument("--no-condition", action="store_true", help="condition_on_previous_text=False")
    parser.add_argument("--compute-type", default="float32", choices=["float32", "int8"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shakes", type=int, default=0, help="times that each clip is heard again with its samples off by 3e-7")
    parser.add_argument("audio", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    import ctranslate2
    import faster_whisper
    whisper = open_model(arguments.weights, arguments.compute_type, arguments.threads)
    known, files = {}, []
    if arguments.testdata:
        known, items = known_transcripts(arguments.testdata), testdata_items(arguments.testdata)
    else:
        items = ((str(path), read_audio(path), {}) for path in arguments.audio)
    for name, pcm, fields in items:
        entry = {"file": name, **fields, **transcribe(whisper, pcm, arguments.language, not arguments.no_condition)}
        for window in entry["windows"]:
            del window["gaps"]  # step by step is for compare_transcripts.py
        if arguments.shakes and len(pcm) < WINDOW_SAMPLES:
            tokens = [segment["tokens"] for segment in entry["segments"]]
            entry["shaken"] = shaken(whisper, pcm, arguments.language, not arguments.no_condition, arguments.shakes, tokens)
        if name in known:
            entry["reference"] = known[name]
            entry["wer"] = word_error_rate(known[name], entry["text"])
        files.append(entry)
        print("%s: %s" % (name, entry["text"]), file=sys.stderr)
    write_json(arguments.out, {
        "oracle": "faster-whisper %s, ctranslate2 %s" % (faster_whisper.__version__, ctranslate2.__version__),
        "weights": arguments.name or arguments.weights.name,
        "options": {"beam_size": 1, "temperature": [0.0], "language": arguments.language, "compute_type": arguments.compute_type,
                    "condition_on_previous_text": not arguments.no_condition, "cpu_threads": arguments.threads,
                    "shakes": arguments.shakes},
        "files": files})


if __name__ == "__main__":
    main()
