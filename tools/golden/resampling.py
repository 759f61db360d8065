#!/usr/bin/env python3
"""Writes tests/golden/resampling/FROM_CHANNELS_TO.s16: what FFmpeg's converter (libswresample through PyAV, as faster-whisper calls it)
makes of seeded noise: signed 16-bit little-endian mono samples. resampler_test.cc makes the same noise.

    resampling.py OUT_DIR
"""
import pathlib
import sys

import av
import numpy as np

NUM_FRAMES = 3001
CASES = [(8000, 1, 16000), (11025, 1, 16000), (12345, 1, 16000), (16000, 2, 16000), (22050, 1, 16000), (24000, 1, 16000), (32000, 1, 16000),
         (44100, 1, 16000), (44100, 2, 16000), (48000, 2, 16000), (96000, 1, 16000), (37123, 1, 16000), (16000, 1, 24000)]


def noise(num_samples):
    """A linear congruential generator's upper bits, half of full scale."""
    state, samples = 12345, []
    for _ in range(num_samples):
        state = (state * 1664525 + 1013904223) % 2**32
        samples.append((state >> 16) // 2 - 16384)
    return np.array(samples, dtype=np.int16)


def convert(interleaved, from_hz, channels, to_hz):
    frame = av.AudioFrame.from_ndarray(interleaved[None, :], format="s16", layout="mono" if channels == 1 else "stereo")
    frame.rate = from_hz
    resampler = av.audio.resampler.AudioResampler(format="s16", layout="mono", rate=to_hz)
    frames = resampler.resample(frame) + resampler.resample(None)
    return np.concatenate([part.to_ndarray()[0] for part in frames])


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for from_hz, channels, to_hz in CASES:
        samples = convert(noise(NUM_FRAMES * channels), from_hz, channels, to_hz)
        (out / f"{from_hz}_{channels}_{to_hz}.s16").write_bytes(samples.astype("<i2").tobytes())
        print(from_hz, channels, to_hz, len(samples))


if __name__ == "__main__":
    main()
