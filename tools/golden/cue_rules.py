#!/usr/bin/env python3
"""What openai-whisper writes of seeded words under its rules of lines: tests/golden/text/cue_rules.json.

    tools/golden/cue_rules.py --out tests/golden/text/cue_rules.json
"""
import argparse
import io
import json
import pathlib
import random

from whisper.utils import WriteSRT, WriteVTT

WORDS = ["a", "the", "And", "John,", "leisure", "power", "ill-disposed", "amiable.", "W\u00f6rter", "\u4f60\u597d", "x" * 30]


def segments(dice):
    out, now = [], round(dice.uniform(0, 5), 2)
    for _ in range(dice.randrange(1, 7)):
        words = []
        for _ in range(dice.randrange(1, 16)):
            end = round(now + dice.uniform(0.05, 0.6), 2)
            words.append({"word": " " + dice.choice(WORDS), "start": now, "end": end})
            now = round(end + (dice.uniform(3, 6) if dice.random() < 0.06 else dice.uniform(0, 0.2)), 2)
        out.append({"start": words[0]["start"], "end": words[-1]["end"], "text": "".join(word["word"] for word in words), "words": words})
    return out


def written(writer, result, options):
    file = io.StringIO()
    writer(None).write_result(result, file=file, options=options)
    return file.getvalue()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    WriteSRT.__init__ = WriteVTT.__init__ = lambda self, _: None
    dice, cases = random.Random(9), []
    for options in ({"max_line_width": 20}, {"max_line_width": 42, "max_line_count": 2}, {"max_line_width": 12, "max_line_count": 1},
                    {"max_words_per_line": 3}, {"max_words_per_line": 1}, {"max_line_count": 2}, {"max_line_width": 16, "max_words_per_line": 5}):
        for _ in range(6):
            result = {"segments": segments(dice)}
            cases.append({"options": options, "segments": result["segments"], "srt": written(WriteSRT, result, options),
                          "vtt": written(WriteVTT, result, options)})
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(cases) + "\n")


if __name__ == "__main__":
    main()
