#!/usr/bin/env python3
"""Writes the fuzzers' first inputs: fuzz_seeds.py DIRECTORY makes DIRECTORY/TARGET/* from the repository's own small files.

A first byte that a target reads as a choice or as a piece size (see its source) is put in front.
"""
import json
import math
import pathlib
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"


def wav(tag, bits, samples):
    """A mono WAV: tag 1 is PCM, 3 float, 7 mu-law."""
    width = bits // 8
    head = struct.pack("<HHIIHH", tag, 1, 16000, 16000 * width, width, bits)
    data = b"".join(samples(i) for i in range(160))
    body = b"WAVEfmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def media():
    yield wav(1, 16, lambda i: struct.pack("<h", int(9000 * math.sin(i / 5))))
    yield wav(1, 24, lambda i: struct.pack("<i", i * 4000)[:3])
    yield wav(3, 32, lambda i: struct.pack("<f", math.sin(i / 5)))
    yield wav(7, 8, lambda i: bytes([i]))
    for path in sorted((ROOT / "tests/data/audio").glob("tone*")):
        yield path.read_bytes()


def form(boundary="b"):
    line = f"--{boundary}\r\nContent-Disposition: form-data; name="
    return (line + '"model"\r\n\r\nm\r\n' + line + '"file"; filename="../a.wav"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n' +
            line + "\"x\"; filename*=UTF-8''%e2%82%ac.txt\r\n\r\n\xe9\r\n" + f"--{boundary}--\r\n").encode("latin-1")


def http(head, body=b""):
    lines = [head, "Host: x"] + ([f"Content-Length: {len(body)}"] if body else [])
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def http_glue():
    post = "POST /v1/audio/transcriptions HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=b"
    yield b"\7" + http(post, form())
    yield b"\7" + http("POST /generate HTTP/1.1\r\nContent-Type: application/json",
                       json.dumps({"model": "m", "text": "a\u20ac", "seed": 1, "image": "aGk=", "list": [1.5, None]}).encode())
    for path, body in (("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": True}),
                       ("/v1/completions", {"model": "m", "prompt": ["a", "b"]}), ("/tokenize", {"prompt": "a"})):
        yield b"\7" + http(f"POST {path} HTTP/1.1\r\nContent-Type: application/json", json.dumps(body).encode())
    yield b"\1" + http("GET /v1/models HTTP/1.1") + http("GET /metrics HTTP/1.1") + http("HEAD /health HTTP/1.1")
    yield b"\3" + http("POST /generate HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Type: application/x-www-form-urlencoded\r\n"
                       "Expect: 100-continue") + b"5;a=b\r\nmodel\r\n2\r\n=m\r\n0\r\nX: y\r\n\r\n"


def chat_body():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1]}"}}
    chat = {"model": "m", "messages": [{"role": "system", "content": "s"},
                                       {"role": "user", "content": [{"type": "text", "text": "a\u20ac"}]},
                                       {"role": "assistant", "content": None, "tool_calls": [call]},
                                       {"role": "tool", "tool_call_id": "c1", "content": "2"}],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "n": 2, "seed": 3, "stop": ["x"], "stop_token_ids": [1], "logit_bias": {"5": -1.5}, "temperature": 0.5, "top_k": 4,
            "logprobs": True, "top_logprobs": 2, "max_completion_tokens": 9, "chat_template_kwargs": {"enable_thinking": False}}
    yield b"\0" + json.dumps(chat).encode()
    yield b"\0" + json.dumps(dict(chat, stream=True, stream_options={"include_usage": True})).encode()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAEC"}}
    sound = {"type": "input_audio", "input_audio": {"data": "AAE=", "format": "wav"}}
    yield b"\0" + json.dumps({"model": "m", "messages": [{"role": "user", "content": [image, sound]}]}).encode()
    for prompt in ("a", ["a", "b"], [1, 2], [[1], [2, 3]]):
        yield b"\1" + json.dumps({"model": "m", "prompt": prompt, "logprobs": 1, "stream": prompt == "a"}).encode()


def text():
    yield b"\0a b  \xc4\xa0 <|x|> <y> don't \xf0\x9f\x98\x80 123"
    for path in ("text/small_tokenizer.json", "text/suffix_tokenizer.json"):
        yield b"\1" + (GOLDEN / path).read_bytes() + b"\0ab <|x|>"


def ct2():
    def string(value):
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    def variable(name, dims, dtype, data):
        return string(name) + struct.pack(f"<B{len(dims)}IBI", len(dims), *dims, dtype, len(data)) + data

    weights = [variable("a/weight", [2, 3], 1, bytes(6)), variable("a/weight_scale", [2], 0, bytes(8)),
               variable("b/bias", [3], 4, bytes(6)), variable("n", [], 2, bytes(2))]
    alias = struct.pack("<I", 1) + string("c/weight") + string("a/weight")
    yield struct.pack("<I", 6) + string("WhisperSpec") + struct.pack("<II", 3, len(weights)) + b"".join(weights) + alias
    yield (GOLDEN / "whisper_tiny_seeded/ct2_int8/model.bin").read_bytes()[:2000]


def gguf():
    def string(value):
        return struct.pack("<Q", len(value)) + value.encode()

    pairs = [string("n") + struct.pack("<II", 4, 7), string("a") + struct.pack("<IIQ", 9, 8, 2) + string("x") + string("yz"),
             string("deep") + struct.pack("<IIQIQI", 9, 9, 1, 4, 1, 9), string("f") + struct.pack("<If", 6, 0.5)]
    weights = [string("w") + struct.pack("<IQQIQ", 2, 3, 2, 0, 0), string("q") + struct.pack("<IQIQ", 1, 64, 8, 32),
               string("k") + struct.pack("<IQIQ", 1, 256, 14, 128)]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(weights), len(pairs)) + b"".join(pairs) + b"".join(weights)
    yield head + bytes(-len(head) % 32 + 128 + 210)
    yield (GOLDEN / "gguf/blocks.gguf").read_bytes()


def safetensors():
    head = json.dumps({"__metadata__": {"format": "pt"}, "a": {"dtype": "F16", "shape": [2, 2], "data_offsets": [0, 8]},
                       "b": {"dtype": "I64", "shape": [], "data_offsets": [8, 16]}}).encode()
    yield struct.pack("<Q", len(head)) + head + bytes(16)
    yield json.dumps({"metadata": {"total_size": 16}, "weight_map": {"a": "x-00001-of-00002.safetensors", "b": "y"}}).encode()


def sse():
    token = b'data: {"choices":[{"index":0,"text":" a","delta":{"content":"b"},"finish_reason":null}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}'
    yield b"\3: hello\r\nevent: x\r\n" + token + usage + b"\r\rdata: [DONE]\n\n"
    yield b"\0\xef\xbb\xbfdata\ndata:\n\nid: 1\nretry: 5\rdata: " + b'{"error":{"message":"m"}}\r\n\r\ndata: cut'


def yaml():
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        yield path.read_bytes()


def realtime():
    turns = {"type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500}
    spoken = {"model": "m", "language": "en", "prompt": "p"}
    for event in ({"type": "input_audio_buffer.append", "event_id": "e", "audio": "AAECAw=="}, {"type": "input_audio_buffer.commit"},
                  {"type": "session.update", "session": {"type": "transcription", "audio": {"input": {
                      "format": {"type": "audio/pcm", "rate": 16000}, "transcription": spoken, "turn_detection": turns}}}},
                  {"type": "transcription_session.update", "session": {"input_audio_format": "g711_ulaw", "input_audio_transcription": spoken, "turn_detection": None}}):
        yield json.dumps(event).encode()


def reply():
    for family, text in ((0, '<think>a</think>\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'),
                         (0, "<tool_call><function=f><parameter=a>\n1\n</parameter></function></tool_call>"),
                         (0, "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value></tool_call>"),
                         (1, '[TOOL_CALLS][{"name": "f", "arguments": {}}]'), (1, '[TOOL_CALLS]f[ARGS]{"b": "}"}'),
                         (2, '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}'),
                         (4, '<|START_ACTION|>[{"tool_name": "f", "parameters": {}}]<|END_ACTION|>')):
        yield bytes([family, 100]) + text.encode()


def onnx():
    def field(number, value):
        return bytes([number << 3 | 2, len(value)]) + value

    tensor = bytes([8, 1, 8, 2, 16, 1]) + field(8, b"w") + field(9, bytes(8))
    yield bytes([8, 8]) + field(7, field(5, tensor) + field(2, b"g"))


def main():
    out = pathlib.Path(sys.argv[1])
    seeds = {"media": media(), "multipart": [b"\5" + form()], "http_glue": http_glue(), "chat_body": chat_body(), "text": text(),
             "ct2": ct2(), "gguf": gguf(), "safetensors": safetensors(), "sse": sse(), "yaml": yaml(),
             "realtime": realtime(), "reply": reply(), "onnx": onnx()}
    for target, inputs in seeds.items():
        (out / target).mkdir(parents=True, exist_ok=True)
        for i, data in enumerate(inputs):
            (out / target / f"seed{i}").write_bytes(data)


if __name__ == "__main__":
    main()
