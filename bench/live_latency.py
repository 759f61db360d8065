#!/usr/bin/env python3
"""How long after it was spoken a word's text is there: clips played in real time into WS /v1/realtime.

    live_latency.py --mstar ./mstar [--model whisper-base] [--clips DIR] [--seconds 40] [-- SERVE FLAGS]

A word is spoken when it ends, by the word times that the same model gives for the clip. Prints the time from then, by the sound's own clock,
to the delta that has it; p50 and p90, and what of the text was right.
"""
import argparse
import base64
import json
import os
import pathlib
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import wave

PORT = 8131


class WebSocket:
    """As much of RFC 6455 as this needs: text frames, pings."""

    def __init__(self, port, path):
        self.socket = socket.create_connection(("127.0.0.1", port))
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(("GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n" % (path, key)).encode())
        self.data = b""
        while b"\r\n\r\n" not in self.data:
            self.data += self.socket.recv(4096)
        head, self.data = self.data.split(b"\r\n\r\n", 1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise OSError(head.decode())
        self.lock = threading.Lock()

    def frame(self, opcode, payload):
        mask = os.urandom(4)
        size = len(payload)
        head = bytes([0x80 | opcode]) + (bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size) if size < 65536
                                         else b"\xff" + struct.pack(">Q", size))
        repeated = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big") if size else b""
        with self.lock:
            self.socket.sendall(head + mask + masked)

    def send(self, event):
        self.frame(1, json.dumps(event).encode())

    def take(self, count):
        while len(self.data) < count:
            more = self.socket.recv(65536)
            if not more:
                raise EOFError
            self.data += more
        out, self.data = self.data[:count], self.data[count:]
        return out

    def read(self):
        while True:
            first, second = self.take(2)
            size = second & 127
            if size == 126:
                size = struct.unpack(">H", self.take(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self.take(8))[0]
            payload = self.take(size)
            if first & 15 == 9:
                self.frame(10, payload)
            elif first & 15 == 8:
                raise EOFError
            elif first & 15 == 1:
                return json.loads(payload)


def clip(directory, seconds):
    pcm, parts = b"", sorted(pathlib.Path(directory).glob("*.wav"))
    while len(pcm) < seconds * 32000:
        for path in parts:
            with wave.open(str(path)) as file:
                pcm += file.readframes(file.getnframes()) + bytes(32000)  # a second's pause ends the turn
            if len(pcm) >= seconds * 32000:
                break
    return pcm


def spoken(mstar, model, pcm):
    """[(word, end)] by the same model."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        with wave.open(file.name, "wb") as out:
            out.setparams((1, 2, 16000, 0, "NONE", ""))
            out.writeframes(pcm)
        found = subprocess.run([mstar, "transcribe", "-q", "--model", model, "--language", "en", "--format", "json", "--word-timestamps", "--vad", file.name],
                               check=True, capture_output=True)
    return [(word["word"], word["end"]) for segment in json.loads(found.stdout)["segments"] for word in segment["words"]]


def plain(text):
    return "".join(c for c in text.lower() if c.isalnum())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mstar", required=True)
    parser.add_argument("--model", default="whisper-base")
    parser.add_argument("--clips", default="/usr/share/pocketsphinx/test/data/librivox")
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("flags", nargs="*")
    arguments = parser.parse_args()
    pcm = clip(arguments.clips, arguments.seconds)
    words = spoken(arguments.mstar, arguments.model, pcm)
    server = subprocess.Popen([arguments.mstar, "serve", arguments.model, "--port", str(PORT), *arguments.flags], stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen("http://127.0.0.1:%d/ready" % PORT, timeout=2)
                break
            except OSError:
                time.sleep(0.1)
        client = WebSocket(PORT, "/v1/realtime")
        client.send({"type": "session.update", "session": {"type": "transcription", "audio": {"input": {
            "format": {"type": "audio/pcm", "rate": 16000}, "transcription": {"language": "en"},
            "turn_detection": {"type": "server_vad", "silence_duration_ms": 500}}}}})
        deltas, transcripts = [], []

        def listen():
            try:
                while True:
                    event = client.read()
                    if event["type"].endswith("transcription.delta"):
                        deltas.append((time.monotonic(), event["delta"]))
                    elif event["type"].endswith("transcription.completed"):
                        transcripts.append(event["transcript"])
                    elif event["type"] == "error":
                        print(event, file=sys.stderr)
            except (EOFError, OSError):
                pass

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        begun, piece = time.monotonic(), 3200
        for at in range(0, len(pcm), piece):
            time.sleep(max(0, begun + (at + piece) / 32000 - time.monotonic()))
            client.send({"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm[at:at + piece]).decode()})
        time.sleep(3)
        client.frame(8, b"")
        told = [(when - begun, word) for when, text in deltas for word in text.split()]
        late, at = [], 0
        for word, end in words:
            for i in range(at, min(at + 6, len(told))):
                if plain(told[i][1]) == plain(word):
                    late.append(told[i][0] - end)
                    at = i + 1
                    break
        late.sort()
        same = "".join(text for _, text in deltas).replace(" ", "") == "".join(transcripts).replace(" ", "")
        print("%d words spoken, %d found in %d told; latency p50 %.2f s, p90 %.2f s, mean %.2f s; deltas add up: %s; %d turns" %
              (len(words), len(late), len(told), statistics.median(late), late[int(0.9 * len(late))], statistics.mean(late), same, len(transcripts)))
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    main()
