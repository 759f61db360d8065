#!/usr/bin/env python3
"""Stores what faster-whisper's FeatureExtractor makes of some short sounds, as safetensors under tests/golden/mel/.

    mel_golden.py [--out tests/golden/mel] [--testdata /usr/share/pocketsphinx/test/data]

speech_NN and sweep_NN (NN mel bins: 80, or 128 as large-v3 has): `pcm` i16 [N], `mel` f32 [NN, N/160+1]; f32 sample = pcm / 32768.
edges_80: sounds shorter than a frame and at the borders of one, `pcm_N` and `mel_N`. filters: `filters_80`, `filters_128` f32 [NN, 201].
The metadata `f64_error` is the greatest difference from the same formula in f64: the oracle's own rounding, so the least tolerance.

The formula, for the whole file at once (docs/contracts/whisper.md has the rest of the path from sound to text):
  x = pcm f32, then 160 zeros (padding=160; not padded to 30 s), then 200 samples of reflection on both sides (the edge sample is not
      repeated; a sound shorter than that is reflected again and again, as numpy.pad does)
  w[i] = 0.5 - 0.5 cos(2 pi i / 400), i < 400: periodic Hann, made in f64, rounded to f32
  frame t = x[160 t : 160 t + 400] w; 201-bin real FFT (numpy 2 does it in f32); the last frame is dropped: T = N/160 + 1 frames stay
  P = |FFT|^2;  M = filters @ P;  L = log10(max(M, 1e-10))
  L = max(L, greatest L of the file - 8);  mel = (L + 4) / 4
Filters are Slaney's: NN + 2 points evenly spaced on a mel scale from 0 to 45.245640471924965 mel (8 kHz); below 15 mel (1 kHz) hz = mel 200/3,
above 1000 exp(ln(6.4)/27 (mel - 15)); triangles over the bins 40 k Hz, scaled by 2 / (f[m+2] - f[m]); made in f64, rounded to f32.
A 30 s window is cut from this, frames seek to seek+3000 but never frame T-1, and filled up with 0.0 to 3000 frames.
"""
import argparse
import pathlib

import numpy as np
from faster_whisper.feature_extractor import FeatureExtractor
from safetensors.numpy import save_file

import whisper_oracle as oracle

EDGE_SAMPLES = [1, 40, 41, 100, 159, 160, 161, 200, 239, 240, 399, 400, 401, 640]


def mel_f64(pcm, bins):
    """The formula again in f64, from our own words above: checks them, and measures the oracle's rounding."""
    points = np.linspace(0, 45.245640471924965, bins + 2)
    hz = np.where(points < 15, points * 200 / 3, 1000 * np.exp(np.log(6.4) / 27 * (points - 15)))
    bin_hz = 40.0 * np.arange(201)
    rise = (bin_hz[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    fall = (hz[2:, None] - bin_hz[None]) / (hz[2:] - hz[1:-1])[:, None]
    filters = np.maximum(0, np.minimum(rise, fall)) * (2 / (hz[2:] - hz[:-2]))[:, None]
    x = np.pad(np.concatenate([pcm.astype(np.float64), np.zeros(160)]), 200, mode="reflect")
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)).astype(np.float32)
    frames = np.stack([x[160 * t:160 * t + 400] * window for t in range(len(pcm) // 160 + 1)])
    level = np.log10(np.maximum(filters.astype(np.float32).astype(np.float64) @ (np.abs(np.fft.rfft(frames)) ** 2).T, 1e-10))
    return (np.maximum(level, level.max() - 8) + 4) / 4


def mel_of(pcm_s16, bins):
    pcm = pcm_s16.astype(np.float32) / np.float32(32768)
    mel = FeatureExtractor(feature_size=bins)(pcm).astype(np.float32)
    return np.ascontiguousarray(mel), float(np.max(np.abs(mel - mel_f64(pcm, bins))))


def sweep():
    """Two seconds: a rising tone, a click, silence, noise; not a whole number of hops."""
    chance, seconds = np.random.default_rng(5), np.arange(32077) / 16000
    pcm = 0.6 * np.sin(2 * np.pi * (50 * seconds + 1950 * seconds ** 2)) * (seconds < 1.2)
    pcm[21000] = 0.9
    pcm += 0.05 * chance.standard_normal(len(pcm)) * (seconds > 1.5)
    return np.rint(np.clip(pcm, -1, 1) * 32767).astype(np.int16)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/golden/mel"))
    parser.add_argument("--testdata", type=pathlib.Path, default=pathlib.Path("/usr/share/pocketsphinx/test/data"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    speech = np.rint(oracle.read_audio(arguments.testdata / oracle.LIBRIVOX[1]) * 32768).astype(np.int16)
    for name, pcm in (("speech", speech), ("sweep", sweep())):
        for bins in (80, 128):
            mel, error = mel_of(pcm, bins)
            save_file({"pcm": pcm, "mel": mel}, arguments.out / ("%s_%d.safetensors" % (name, bins)),
                      {"f64_error": "%.3g" % error})
            print("%s_%d: %d samples, mel %s, f64_error %.3g" % (name, bins, len(pcm), mel.shape, error))
    tensors, greatest = {}, 0.0
    chance = np.random.default_rng(6)
    for count in EDGE_SAMPLES:
        pcm = chance.integers(-9000, 9000, count).astype(np.int16)
        tensors["pcm_%d" % count] = pcm
        tensors["mel_%d" % count], error = mel_of(pcm, 80)
        greatest = max(greatest, error)
    save_file(tensors, arguments.out / "edges_80.safetensors", {"f64_error": "%.3g" % greatest})
    save_file({"filters_%d" % bins: FeatureExtractor(feature_size=bins).mel_filters for bins in (80, 128)},
              arguments.out / "filters.safetensors")
    print("edges_80: f64_error %.3g" % greatest)


if __name__ == "__main__":
    main()
