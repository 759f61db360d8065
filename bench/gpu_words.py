#!/usr/bin/env python3
"""Whisper's word times on a GPU against the CPU's of the same binary, and against faster-whisper's.

    gpu_words.py --mstar ./mstar --config models/whisper-small/config.json [--clips 8] [--tokens 60]
                 [--weights models/whisper-tiny.en --speech DIR --golden tiny.en_words.json] [-- SERVE FLAGS]

A model with random seeded weights (gpu_whisper_truth.py) hears seeded clips: on the CPU in f32, on the GPU in f32 and in bf16. Compared,
where the text is the same: the words, and the share of them within 20 ms. All clips at once must give what they gave one by one; words
must be in order; after a warm-up no step is eager and none allocates. With --weights the same is done for real speech, against the golden
too. Exit 1 when less than 98 % of the words of equal texts are within 20 ms (f32; bf16 of real speech), or anything else of this fails.
bf16 of random weights is only told: their attention is noise.
"""
import argparse
import concurrent.futures
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
import wave

PORT = 8127
URL = "http://127.0.0.1:%d" % PORT


def post(sound, fields):
    boundary = uuid.uuid4().hex
    fields = {"model": "words", "language": "en", "temperature": "0", "temperature_increment_on_fallback": "0",
              "response_format": "verbose_json", "word_timestamps": "true", **fields}
    body = b"".join(('--%s\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (boundary, name, value)).encode() for name, value in fields.items())
    body += ('--%s\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n' % boundary).encode()
    body += sound + ("\r\n--%s--\r\n" % boundary).encode()
    request = urllib.request.Request(URL + "/v1/audio/transcriptions", body, {"Content-Type": "multipart/form-data; boundary=" + boundary})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        sys.exit("%s: %s" % (error, error.read().decode()[:500]))


def counters():
    out = {}
    for line in urllib.request.urlopen(URL + "/metrics", timeout=30).read().decode().splitlines():
        name = line.split("{")[0].split(" ")[0]
        if name in ("mstar_eager_steps_total", "mstar_piecewise_steps_total", "mstar_step_allocations_total"):
            out[name] = out.get(name, 0) + float(line.rsplit(" ", 1)[1])
    return out


class Server:
    def __init__(self, mstar, directory, flags):
        self.process = subprocess.Popen([mstar, "serve", str(directory), "--alias", "words", "--port", str(PORT), "--max-requests", "32", *flags], stdout=subprocess.DEVNULL)
        for _ in range(2400):
            try:
                urllib.request.urlopen(URL + "/ready", timeout=5)
                return
            except OSError:
                if self.process.poll() is not None:
                    sys.exit("the server did not start: %s %s" % (directory, " ".join(flags)))
                time.sleep(0.05)
        sys.exit("the server is not ready")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def hear(mstar, directory, flags, sounds, fields, on_gpu):
    """(answers, faults): each sound alone, then all at once."""
    faults = []
    server = Server(mstar, directory, flags)
    try:
        alone = [post(sound, fields) for sound in sounds]
        if on_gpu:
            with concurrent.futures.ThreadPoolExecutor(4 * len(sounds)) as pool:
                list(pool.map(lambda sound: post(sound, fields), sounds * 4))
            before = counters()
            with concurrent.futures.ThreadPoolExecutor(4 * len(sounds)) as pool:
                together = list(pool.map(lambda sound: post(sound, fields), sounds * 4))
            after = counters()
            same = sum(a == b for a, b in zip(alone * 4, together))
            print("  all at once: %d of %d answers are those given one by one; steps that align %d, eager %d, allocations %d" % (
                same, len(together), after["mstar_piecewise_steps_total"] - before["mstar_piecewise_steps_total"],
                after["mstar_eager_steps_total"] - before["mstar_eager_steps_total"],
                after["mstar_step_allocations_total"] - before["mstar_step_allocations_total"]))
            for name in ("mstar_eager_steps_total", "mstar_step_allocations_total"):
                if after[name] > before[name]:
                    faults.append("%s: %d" % (name, after[name] - before[name]))
            if "--batch-invariant" in flags and same < len(together):
                faults.append("answers depend on what else runs")
    finally:
        server.stop()
    answers = [json.loads(answer) for answer in alone]
    for answer in answers:
        end = 0
        for word in answer["words"]:
            if not end <= word["start"] <= word["end"]:
                faults.append("out of order: %s" % word)
            end = word["end"]
    return answers, faults


def compare(name, ours, theirs, least, faults):
    """Lists of [(word, start, end)]."""
    total = close = texts = 0
    for a, b in zip(ours, theirs):
        if [w[0] for w in a] != [w[0] for w in b]:
            continue
        texts += 1
        total += len(b)
        close += sum(abs(x[1] - y[1]) <= 0.0205 and abs(x[2] - y[2]) <= 0.0205 for x, y in zip(a, b))
    print("  %s: %d of %d texts alike, %d of their %d words within 20 ms" % (name, texts, len(theirs), close, total))
    if least and (total == 0 or close < least * total):
        faults.append("%s: %d of %d words within 20 ms" % (name, close, total))


def triples(answer):
    return [(word["word"], word["start"], word["end"]) for word in answer["words"]]


def speech_of(folder, golden):
    def pcm(name):
        data = (folder / name).read_bytes()
        if name.endswith(".raw"):
            return data[:len(data) // 2 * 2]
        with wave.open(str(folder / name)) as file:
            return file.readframes(file.getnframes())
    out = []
    for entry in golden["files"]:
        gap = bytes(2 * entry.get("gap_samples", 0))
        with tempfile.NamedTemporaryFile(suffix=".wav") as file:
            with wave.open(file.name, "wb") as sound:
                sound.setparams((1, 2, 16000, 0, "NONE", ""))
                sound.writeframes(gap.join(pcm(part) for part in entry.get("parts", [entry["file"]])))
            out.append(pathlib.Path(file.name).read_bytes())
    return out


def check_seeded(args, faults):
    here = pathlib.Path(__file__).resolve().parent
    for place in (here, here.parent / "tools/golden"):
        sys.path.insert(0, str(place))
    import gpu_whisper_truth as truth
    wanted = json.loads(args.config.read_text())
    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder) / "seeded"
        directory.mkdir()
        import torch
        device = "cuda" if torch.cuda.is_available() else "cpu"
        truth.make_model(wanted, directory, device)
        if device == "cuda":
            torch.cuda.empty_cache()
        config = json.loads((directory / "config.json").read_text())
        config["alignment_heads"] = wanted["alignment_heads"]
        (directory / "config.json").write_text(json.dumps(config))
        truth.write_tokenizer(directory, truth.Ids(wanted["vocab_size"]))
        sounds = [truth.wav_bytes(truth.make_sound(seed)) for seed in range(args.clips)]
        fields = {"max_tokens": str(args.tokens), "ignore_eos": "true"}
        known, more = hear(args.mstar, directory, ["--device", "cpu", "--weights", "f32"], sounds, fields, False)
        faults += more
        for kind, least in (("f32", 0.98), ("bf16", 0)):
            print("seeded, %s on the GPU" % kind)
            got, more = hear(args.mstar, directory, [*args.serve, "--weights", kind], sounds, fields, True)
            faults += more
            compare("against the CPU in f32", list(map(triples, got)), list(map(triples, known)), least, faults)


def check_speech(args, faults):
    golden = json.loads(args.golden.read_text())
    sounds = speech_of(args.speech, golden)
    theirs = [[(word[0].strip(), word[1], word[2]) for segment in entry["segments"] for word in segment["words"]] for entry in golden["files"]]
    for kind in ("f32", "bf16"):
        print("speech, %s on the GPU" % kind)
        got, more = hear(args.mstar, args.weights, [*args.serve, "--weights", kind], sounds, {}, True)
        faults += more
        compare("against %s" % golden["oracle"], list(map(triples, got)), theirs, 0.98, faults)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mstar", default="./mstar")
    parser.add_argument("--config", type=pathlib.Path)
    parser.add_argument("--clips", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--weights", type=pathlib.Path)
    parser.add_argument("--speech", type=pathlib.Path)
    parser.add_argument("--golden", type=pathlib.Path)
    parser.add_argument("serve", nargs="*")
    args = parser.parse_args()
    faults = []
    if args.weights:
        check_speech(args, faults)
    if args.config:
        check_seeded(args, faults)
    for fault in faults:
        print("FAIL", fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
