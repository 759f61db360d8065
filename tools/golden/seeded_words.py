#!/usr/bin/env python3
"""First frames and probabilities of texts by CTranslate2's align() on the seeded tiny Whisper: tests/golden/whisper_tiny_seeded/words.json.

    seeded_words.py tests/golden/whisper_tiny_seeded
"""
import json
import pathlib
import sys

import ctranslate2
import numpy as np
from safetensors.numpy import load_file

TEXTS = [([5, 77, 300, 12, 220, 9, 140], 100), ([5, 77, 300, 12, 220, 9, 140], 61), ([8], 100), (list(range(20, 70)), 100),
         (list(range(300, 340)), 24), ([17, 17, 17, 17], 2)]


def main():
    folder = pathlib.Path(sys.argv[1])
    model = ctranslate2.models.Whisper(str(folder / "ct2_f32"), device="cpu", compute_type="float32")
    mel = load_file(str(folder / "ports.safetensors"))["mel"][None].astype(np.float32)
    cases = []
    for text, frames in TEXTS:
        result = model.align(ctranslate2.StorageView.from_array(np.ascontiguousarray(mel)), [451, 452, 463], [text], frames)[0]
        first = {}
        for token, frame in result.alignments:
            first.setdefault(token, frame)
        cases.append({"text": text, "frames": frames // 2, "first_frames": [first[i] for i in range(len(text) + 1)],
                      "probabilities": [float("%.7g" % each) for each in result.text_token_probs]})
    out = {"oracle": "ctranslate2 " + ctranslate2.__version__, "start": [451, 452, 463], "cases": cases}
    (folder / "words.json").write_text(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()
