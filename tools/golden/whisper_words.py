#!/usr/bin/env python3
"""What faster-whisper says of when each word is said, as JSON: the truth our word times are compared with.

    whisper_words.py --weights DIR --out FILE.json --testdata /usr/share/pocketsphinx/test/data    the clips of whisper_oracle.py
    whisper_words.py --weights DIR --out FILE.json AUDIO...

Greedy in float32 (beam 1, temperature 0 alone), as whisper_oracle.py. Per file: segments with start, end, tokens and words [text, start,
end, probability].
"""
import argparse
import json
import pathlib

from whisper_oracle import read_audio, testdata_items, write_json


def words_of(whisper, pcm, language, options):
    segments, about = whisper.transcribe(pcm, language=language, beam_size=1, temperature=[0.0], word_timestamps=True, **options)
    return {"language": about.language, "segments": [{
        "start": round(float(segment.start), 3), "end": round(float(segment.end), 3), "tokens": list(segment.tokens),
        "words": [[word.word, round(float(word.start), 3), round(float(word.end), 3), round(float(word.probability), 5)]
                  for word in segment.words],
    } for segment in segments]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--weights", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--testdata", type=pathlib.Path)
    parser.add_argument("--language")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--options", type=json.loads, default={}, help="further options of transcribe(), as JSON")
    parser.add_argument("audio", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    import ctranslate2
    import faster_whisper
    whisper = faster_whisper.WhisperModel(str(arguments.weights), device="cpu", compute_type="float32",
                                          cpu_threads=arguments.threads)
    items = testdata_items(arguments.testdata) if arguments.testdata else (
        (str(path), read_audio(path), {}) for path in arguments.audio)
    files = [{"file": name, **fields, **words_of(whisper, pcm, arguments.language, arguments.options)}
             for name, pcm, fields in items]
    write_json(arguments.out, {
        "oracle": "faster-whisper %s, ctranslate2 %s" % (faster_whisper.__version__, ctranslate2.__version__),
        "weights": arguments.weights.name,
        "options": {"beam_size": 1, "temperature": [0.0], "language": arguments.language, "compute_type": "float32",
                    "word_timestamps": True, **arguments.options},
        "files": files})


if __name__ == "__main__":
    main()
