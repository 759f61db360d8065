#!/usr/bin/env python3
"""Hours of speech through Whisper's parallel mode on a GPU: seconds of sound heard in a second (RTFx), beside the floor of its windows.

    gpu_long_form.py --mstar ./mstar --config models/whisper-large-v3/config.json --speech DIR [--minutes 60] [--files 1,8] [--tokens 110]
                     [--clients 64] [--floor-ms 8.7] [-- SERVE FLAGS]

Recordings are clips of DIR (16 kHz WAV) one after the other with pauses of half a second. The model has dummy weights and says --tokens tokens a
window (ignore_eos), so its text means nothing; voice activity and windows are as ever. --floor-ms: what a window costs at the least, of
bench/notes/gpu_whisper.md. Prints one line for each number of files that are sent at once.
"""
import argparse
import concurrent.futures
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
import wave

PORT = 8129
URL = "http://127.0.0.1:%d" % PORT


def recording(speech, minutes):
    frames, pause = [], bytes(16000)
    for path in sorted(pathlib.Path(speech).rglob("*.wav")):
        with wave.open(str(path)) as file:
            if file.getframerate() == 16000 and file.getnchannels() == 1:
                frames.append(file.readframes(file.getnframes()) + pause)
    once = b"".join(frames)
    wanted = int(minutes * 60 * 32000)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes((once * (wanted // len(once) + 1))[:wanted])
    return out.getvalue()


def post(sound, fields):
    boundary = uuid.uuid4().hex
    body = b"".join(('--%s\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (boundary, name, value)).encode() for name, value in fields.items())
    body += ('--%s\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n' % boundary).encode()
    body += sound + ("\r\n--%s--\r\n" % boundary).encode()
    request = urllib.request.Request(URL + "/v1/audio/transcriptions", body, {"Content-Type": "multipart/form-data; boundary=" + boundary})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def counters():
    text = urllib.request.urlopen(URL + "/metrics", timeout=30).read().decode()
    out = {}
    for line in text.splitlines():
        if line.startswith("mstar_") and " " in line:
            name, value = line.rsplit(" ", 1)
            key = name.split("{")[0] + ("_encoder" if 'component="encoder"' in name else "")
            out[key] = out.get(key, 0) + float(value)
    return out


def wait_ready(process):
    for _ in range(600):
        if process.poll() is not None:
            sys.exit("the server ended")
        try:
            if urllib.request.urlopen(URL + "/ready", timeout=2).status == 200:
                return
        except OSError:
            time.sleep(0.2)
    sys.exit("the server is not ready")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mstar", required=True)
    parser.add_argument("--config", type=pathlib.Path, required=True)
    parser.add_argument("--speech", required=True)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--files", default="1,8")
    parser.add_argument("--tokens", type=int, default=110)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--floor-ms", type=float, default=8.7)
    parser.add_argument("flags", nargs="*")
    arguments = parser.parse_args()
    sound = recording(arguments.speech, arguments.minutes)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        config.write("model: %s\nname: long\noptions: {load_format: dummy, weights: bf16}\nmax_concurrent_requests: %d\nserver: {port: %d, body_limit: 2G, max_buffered: 16G}\n"
                     % (arguments.config.parent, arguments.clients, PORT))
        config.flush()
        process = subprocess.Popen([arguments.mstar, "serve", config.name, *arguments.flags], stderr=subprocess.DEVNULL)
        try:
            wait_ready(process)
            fields = {"model": "long", "language": "en", "parallel": "true", "temperature": "0", "temperature_increment_on_fallback": "0",
                      "no_speech_threshold": "none", "max_tokens": str(arguments.tokens), "ignore_eos": "true", "response_format": "verbose_json"}
            post(recording(arguments.speech, 2), fields)
            for count in map(int, arguments.files.split(",")):
                before, begun = counters(), time.monotonic()
                with concurrent.futures.ThreadPoolExecutor(count) as pool:
                    answers = list(pool.map(lambda _: post(sound, fields), range(count)))
                took, after = time.monotonic() - begun, counters()
                heard = sum(answer["duration"] for answer in answers)
                windows = after.get("mstar_step_rows_total_encoder", 0) - before.get("mstar_step_rows_total_encoder", 0)
                floor = windows * arguments.floor_ms / 1000
                print("%d files of %g min: %.2f s, RTFx %.0f, %d windows, %.2f ms a window (floor %.2f: RTFx %.0f), %d segments" %
                      (count, arguments.minutes, took, heard / took, windows, 1000 * took / max(windows, 1), arguments.floor_ms,
                       heard / floor if floor else 0, sum(len(answer["segments"]) for answer in answers)), flush=True)
        finally:
            process.terminate()
            process.wait(30)


if __name__ == "__main__":
    main()
