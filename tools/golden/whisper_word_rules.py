#!/usr/bin/env python3
"""Random words and what faster-whisper's add_word_timestamps() makes of them: tests/golden/whisper/word_rules.json.

    whisper_word_rules.py tests/golden/whisper/word_rules.json tests/golden/whisper_tiny_seeded/hf/tokenizer.json

Also random tokens and the words that its tokenizer splits them into, as [text, number of tokens].

Words are [text, number of tokens, start, end, probability] from the window's start on, segments [start, end, number of tokens].
"""
import json
import pathlib
import random
import sys
import types

import faster_whisper
import tokenizers
from faster_whisper.transcribe import WhisperModel

TEXTS = [" word", " and", " so", "n't", ",", ".", "!", "?", " (", ")", " \"", "\"", " -", "\u3002", "\uff0c", " \u201c", "\u201d", " ", "..."]
PREPEND, APPEND = "\"'\u201c\u00bf([{-", "\"'.\u3002,\uff0c!\uff01?\uff1f:\uff1a\u201d)]}\u3001"
EOT = 1000


def random_case(source):
    words, frame = [], 0
    for _ in range(source.randrange(1, 30)):
        frames = source.choice([0, 0, 5, 10, 12, 15, 20, 25, 40, 120])
        text = source.choice(TEXTS[:4]) if source.random() < 0.7 else source.choice(TEXTS)
        words.append([text, source.randrange(1, 4), frame / 50, (frame + frames) / 50, round(source.random(), 3)])
        frame += frames
    seek = source.choice([0, 0, 137, 3000, 99999])
    segments, left, begin = [], sum(word[1] for word in words), 0.0
    while left:
        count = min(left, source.randrange(1, 25))
        end = begin + source.choice([0.0, 0.5, 1.5, 4.0, 9.0])
        segments.append([round(seek / 100 + begin, 2), round(seek / 100 + end, 2), count])
        left, begin = left - count, end
    return {"words": words, "segments": segments, "seek": seek, "last_speech": round(max(0, seek / 100 - source.choice([0, 1, 5])), 2)}


def placed(case):
    alignment = [{"word": text, "tokens": [1] * count, "start": start, "end": end, "probability": probability}
                 for text, count, start, end, probability in case["words"]]
    segments = [{"start": start, "end": end, "seek": case["seek"], "tokens": [1] * count} for start, end, count in case["segments"]]
    stand_in = types.SimpleNamespace(find_alignment=lambda *_: [alignment], frames_per_second=100)
    WhisperModel.add_word_timestamps(stand_in, [segments], types.SimpleNamespace(eot=EOT), None, 3000, PREPEND, APPEND, case["last_speech"])
    return [{"start": float(each["start"]), "end": float(each["end"]),
             "words": [[word["word"], float(word["start"]), float(word["end"])] for word in each["words"]]} for each in segments]


def split(tokenizer, language, ids):
    words, tokens = tokenizer.split_to_word_tokens(ids)
    return {"language": language, "ids": ids, "words": [[word, len(each)] for word, each in zip(words, tokens)]}


def splits(source, path):
    """Texts of several scripts, whole and with tokens lost, and tokens by chance; each with the end of text."""
    from faster_whisper.tokenizer import Tokenizer
    hf = tokenizers.Tokenizer.from_file(path)
    eot = hf.token_to_id("<|endoftext|>")
    texts = [" Hello, there! It's a \"fine\" day...", "\u4f60\u597d\uff0c\u4e16\u754c\u3002", " na\u00efve \u20ac5 (caf\u00e9)", "\U0001f600 ok \U0001f468\u200d\U0001f469",
             "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", " a\ufffdb \ufffd"]
    out = []
    for language in ("en", "zh"):
        tokenizer = Tokenizer(hf, True, task="transcribe", language=language)
        for turn in range(60):
            ids = hf.encode(source.choice(texts), add_special_tokens=False).ids
            if turn % 3 == 1:
                ids = [each for each in ids if source.random() < 0.8]
            elif turn % 3 == 2:
                ids = [source.randrange(eot) for _ in range(source.randrange(1, 25))]
            out.append(split(tokenizer, language, ids + [eot]))
    return out


def main():
    source = random.Random(5)
    cases = [random_case(source) for _ in range(150)]
    for case in cases:
        case["placed"] = placed(case)
    lists = [",\n".join(json.dumps(case) for case in each) for each in (cases, splits(source, sys.argv[2]))]
    pathlib.Path(sys.argv[1]).write_text('{"oracle": "faster-whisper %s", "cases": [\n%s\n], "splits": [\n%s\n]}\n' % (
        faster_whisper.__version__, *lists))


if __name__ == "__main__":
    main()
