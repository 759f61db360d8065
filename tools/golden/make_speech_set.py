#!/usr/bin/env python3
"""Makes speech files by chance from the clips of pocketsphinx-testdata: the same sound for the same seed.

    make_speech_set.py --seed 7 --count 50 --out DIR [--testdata /usr/share/pocketsphinx/test/data]
    make_speech_set.py --plain --out DIR      the clips themselves, as 16 kHz WAV

Clips are joined (every fifth file is longer than 30 s), overlaid with another speaker, sped up or slowed, filtered, made louder or
softer, given silences and noise, then written at 8 to 48 kHz, mono or stereo, in one of nine formats. Two further files are edges:
silence, and a twentieth of a second. DIR/set.json says for each file what was done to it and what is spoken.
compare_transcripts.py is the other half.
"""
import argparse
import json
import pathlib

import numpy as np
import soundfile
import soxr
from scipy import signal

import whisper_oracle as oracle

RATE = 16000
LONG_SECONDS = 31.0
RATES = [8000, 16000, 22050, 44100, 48000]
# Name → file suffix, container, encoding.
FORMATS = {
    "wav_u8": (".wav", "WAV", "PCM_U8"), "wav_s16": (".wav", "WAV", "PCM_16"), "wav_s24": (".wav", "WAV", "PCM_24"),
    "wav_f32": (".wav", "WAV", "FLOAT"), "wav_mulaw": (".wav", "WAV", "ULAW"), "flac_s16": (".flac", "FLAC", "PCM_16"),
    "flac_s24": (".flac", "FLAC", "PCM_24"), "ogg": (".ogg", "OGG", "VORBIS"), "mp3": (".mp3", "MP3", "MPEG_LAYER_III"),
}


def uniform(chance, low, high):
    return round(float(chance.uniform(low, high)), 3)


def noise(chance, kind, count):
    white = chance.standard_normal(count)
    if kind == "pink":
        spectrum = np.fft.rfft(white)
        spectrum /= np.sqrt(np.maximum(np.arange(len(spectrum)), 1))
        white = np.fft.irfft(spectrum, count)
    return white / max(np.std(white), 1e-9)


def rms(pcm):
    return float(np.sqrt(np.mean(np.square(pcm)))) + 1e-9


def spoken(chance, clips, known, is_long, steps):
    """Joined clips with silences: pcm at 16 kHz and the words."""
    names = list(clips)
    picked, seconds = [], 0.0
    target = uniform(chance, LONG_SECONDS, 75) if is_long else chance.choice([0, 0, uniform(chance, 4, 20)])
    while not picked or seconds < target:
        picked.append(names[chance.integers(len(names))])
        seconds += len(clips[picked[-1]]) / RATE
    pieces = []
    for name in picked:
        gap = uniform(chance, 0, 0.4) if chance.random() < 0.7 else uniform(chance, 0.5, 4)
        pieces += [np.zeros(int(gap * RATE)), clips[name].astype(np.float64)]
        steps.append({"clip": name, "silence_before_s": gap})
    tail = uniform(chance, 0, 2) if chance.random() < 0.5 else 0.0
    steps.append({"silence_after_s": tail})
    words = None
    if all(name in known for name in picked):
        words = " ".join(known[name] for name in picked)
    return np.concatenate(pieces + [np.zeros(int(tail * RATE))]), words


def affected(chance, pcm, clips, steps):
    """Each effect with its own chance."""
    if chance.random() < 0.25:
        other = clips[list(clips)[chance.integers(len(clips))]].astype(np.float64)
        level = uniform(chance, -24, -14)
        at = int(chance.integers(max(1, len(pcm) - len(other) + 1)))
        over = other[:len(pcm) - at] * (rms(pcm) / rms(other) * 10 ** (level / 20))
        pcm[at:at + len(over)] += over
        steps.append({"other_speaker_db": level, "at_sample": at})
    if chance.random() < 0.35:
        speed = uniform(chance, 0.85, 1.18)
        pcm = soxr.resample(pcm, RATE * speed, RATE)
        steps.append({"speed": speed})
    if chance.random() < 0.35:
        kind = ["lowpass", "highpass", "bandpass"][chance.integers(3)]
        edges = {"lowpass": 3800, "highpass": 250, "bandpass": [300, 3400]}[kind]
        pcm = signal.sosfilt(signal.butter(4, edges, kind, fs=RATE, output="sos"), pcm)
        steps.append({"filter": kind, "hz": edges})
    if chance.random() < 0.5:
        kind, snr = ["white", "pink"][chance.integers(2)], uniform(chance, 12, 35)
        pcm = pcm + noise(chance, kind, len(pcm)) * rms(pcm) / 10 ** (snr / 20)
        steps.append({"noise": kind, "snr_db": snr})
    if chance.random() < 0.5:
        gain = uniform(chance, -26, 9)
        pcm = pcm * 10 ** (gain / 20)
        steps.append({"gain_db": gain})
    return np.clip(pcm, -1, 1 - 1 / 32768)


def stereo(chance, pcm, steps):
    kind = ["same", "panned", "noisy right"][chance.integers(3)]
    steps.append({"stereo": kind})
    right = {"same": pcm, "panned": 0.4 * pcm, "noisy right": pcm + 0.003 * chance.standard_normal(len(pcm))}[kind]
    return np.stack([pcm, np.clip(right, -1, 1 - 1 / 32768)], axis=1)


def write(path, pcm, rate, form):
    _, container, encoding = FORMATS[form]
    with soundfile.SoundFile(path, "w", rate, 1 if pcm.ndim == 1 else 2, encoding, format=container) as file:
        for start in range(0, len(pcm), RATE):  # libsndfile's Vorbis encoder overflows its stack on one long write
            file.write(pcm[start:start + RATE])


def make(seed, index, clips, known, form, rate, out):
    chance = np.random.default_rng([seed, index])
    steps = []
    pcm, words = spoken(chance, clips, known, index % 5 == 4, steps)
    pcm = affected(chance, pcm, clips, steps)
    if rate != RATE:
        pcm = np.clip(soxr.resample(pcm, RATE, rate), -1, 1 - 1 / 32768)
    if chance.random() < 0.4:
        pcm = stereo(chance, pcm, steps)
    name = "%03d_%s_%d%s" % (index, form, rate, FORMATS[form][0])
    write(out / name, pcm, rate, form)
    return {"file": name, "seconds": round(len(pcm) / rate, 3), "reference": words, "steps": steps}


def edges(out):
    write(out / "edge_silence.wav", np.zeros(3 * RATE), RATE, "wav_s16")
    write(out / "edge_short.wav", 0.1 * np.sin(np.arange(RATE // 20) * 0.2), RATE, "wav_s16")
    return [{"file": name, "seconds": seconds, "reference": None, "steps": []}
            for name, seconds in (("edge_silence.wav", 3.0), ("edge_short.wav", 0.05))]


def plain(clips, known, out):
    files = []
    for name, pcm in clips.items():
        file = name.replace("/", "_").rsplit(".", 1)[0] + ".wav"
        write(out / file, pcm, RATE, "wav_s16")
        files.append({"file": file, "seconds": round(len(pcm) / RATE, 3), "reference": known.get(name), "steps": [{"clip": name}]})
    return files


def chance_files(arguments, clips, known):
    chance = np.random.default_rng(arguments.seed)
    forms, files = [], []
    while len(forms) < arguments.count:  # every format and rate as often as the others
        forms += [str(form) for form in chance.permutation(list(FORMATS))]
    rates = [RATES[i % len(RATES)] for i in chance.permutation(arguments.count)]
    for index in range(arguments.count):
        files.append(make(arguments.seed, index, clips, known, forms[index], rates[index], arguments.out))
    return files + edges(arguments.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--testdata", type=pathlib.Path, default=pathlib.Path("/usr/share/pocketsphinx/test/data"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    clips = {name: oracle.read_audio(arguments.testdata / name) for name in oracle.LIBRIVOX + oracle.CARDS + oracle.RAW}
    known = oracle.known_transcripts(arguments.testdata)
    files = plain(clips, known, arguments.out) if arguments.plain else chance_files(arguments, clips, known)
    (arguments.out / "set.json").write_text(json.dumps({"seed": arguments.seed, "files": files}, indent=1) + "\n")
    print("%d files, %.0f s of sound, in %s" % (len(files), sum(file["seconds"] for file in files), arguments.out))


if __name__ == "__main__":
    main()
