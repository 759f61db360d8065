#!/usr/bin/env python3
"""mstar against faster-whisper on the same weights, files and number of threads, alternating in one run.

    bench/whisper_peer.py --mstar build/release/mstar --weights DIR [--weights-kind stored|i8] [--rounds 5] FILES...

Needs a Python environment with faster-whisper (tools/golden/requirements.txt). For each round, in turn: every file alone with each
system, then all files at once (faster-whisper's BatchedInferencePipeline over the files one after another, which is how it takes
several; mstar with one connection a file). Beam 1, temperature 0, language given, no VAD. Prints medians in seconds and the ratio
faster-whisper / mstar (above 1: mstar is faster), then one JSON line.
"""
import argparse
import concurrent.futures
import hashlib
import http.client
import json
import os
import pathlib
import statistics
import subprocess
import time
import uuid


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Mstar:
    def __init__(self, arguments):
        self.port = free_port()
        self.process = subprocess.Popen(
            [arguments.mstar, "serve", arguments.weights, "--port", str(self.port), "--threads", str(arguments.threads),
             "--weights", arguments.weights_kind], stderr=subprocess.DEVNULL)
        start = time.monotonic()
        while time.monotonic() - start < 60:
            try:
                if self.request("GET", "/ready")[0] == 200:
                    break
            except OSError:
                time.sleep(0.02)
        self.start_s = time.monotonic() - start
        self.name = json.loads(self.request("GET", "/v1/models")[1])["data"][0]["id"]

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()

    def transcribe(self, path, language):
        boundary = uuid.uuid4().hex
        parts = b""
        # The peer tries each window once too.
        for name, value in (("model", self.name), ("language", language), ("temperature_increment_on_fallback", "0")):
            parts += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        parts += f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'.encode()
        body = parts + pathlib.Path(path).read_bytes() + f"\r\n--{boundary}--\r\n".encode()
        status, answer = self.request("POST", "/v1/audio/transcriptions", body,
                                      {"Content-Type": f"multipart/form-data; boundary={boundary}"})
        assert status == 200, answer
        return json.loads(answer)["text"].strip()

    def resident_mib(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
        return 0

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mstar", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--weights-kind", default="stored")
    parser.add_argument("--compute-type", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--language", default="en")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()

    from faster_whisper import BatchedInferencePipeline, WhisperModel
    peer = WhisperModel(arguments.weights, device="cpu", compute_type=arguments.compute_type, cpu_threads=arguments.threads)
    batched = BatchedInferencePipeline(peer)

    def peer_one(path):
        segments, _ = peer.transcribe(path, beam_size=1, temperature=[0.0], language=arguments.language)
        return "".join(s.text for s in segments).strip()

    def peer_all(paths):
        for path in paths:
            segments, _ = batched.transcribe(path, beam_size=1, temperature=[0.0], language=arguments.language, batch_size=8,
                                             without_timestamps=False)
            for _ in segments:
                pass

    mstar = Mstar(arguments)
    times = {}

    def timed(key, call):
        start = time.perf_counter()
        result = call()
        times.setdefault(key, []).append(time.perf_counter() - start)
        return result

    same = 0
    for path in arguments.files:  # warm both
        same += peer_one(path) == mstar.transcribe(path, arguments.language)
    for _ in range(arguments.rounds):
        for path in arguments.files:
            timed(("alone", "mstar", path), lambda: mstar.transcribe(path, arguments.language))
            timed(("alone", "peer", path), lambda: peer_one(path))
        eight = (arguments.files * 8)[:8]
        timed(("together", "peer", "8 files"), lambda: peer_all(eight))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            timed(("together", "mstar", "8 files"),
                  lambda: list(pool.map(lambda p: mstar.transcribe(p, arguments.language), eight)))

    print(f"same text: {same} of {len(arguments.files)}; mstar ready after {mstar.start_s:.2f} s, peak resident {mstar.resident_mib():.0f} MiB")
    rows = []
    for kind, _, path in [key for key in times if key[1] == "mstar"]:
        ours, theirs = (statistics.median(times[(kind, who, path)]) for who in ("mstar", "peer"))
        rows.append({"kind": kind, "file": os.path.basename(path), "mstar_s": round(ours, 3), "peer_s": round(theirs, 3),
                     "ratio": round(theirs / ours, 2)})
        print(f"{kind:9} {os.path.basename(path)[:40]:40} mstar {ours:7.3f} s  faster-whisper {theirs:7.3f} s  ratio {theirs / ours:5.2f}")
    binary = hashlib.sha256(pathlib.Path(arguments.mstar).read_bytes()).hexdigest()[:16]
    print(json.dumps({"binary_sha256": binary, "threads": arguments.threads, "weights_kind": arguments.weights_kind,
                      "compute_type": arguments.compute_type, "rounds": arguments.rounds, "rows": rows}))
    mstar.stop()


if __name__ == "__main__":
    main()
