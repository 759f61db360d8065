#!/usr/bin/env python3
"""Whisper in f64 numpy: docs/contracts/whisper.md, sections 5 to 8, as a program. The yardstick of the goldens.

    whisper_numpy.py --weights CT2_DIR AUDIO...     transcribes (slowly) and says whether CTranslate2 gives the same tokens

Weights come as a dictionary of f64 arrays under CTranslate2's names; from_ct2() reads a model.bin, from_hf() a safetensors file.
"""
import argparse
import json
import math
import pathlib
import struct
import sys

import numpy as np

DTYPES = ["<f4", "<i1", "<i2", "<i4", "<f2", "<u2"]  # the last is bfloat16


def read_ct2(path):
    """model.bin v4 to v6 → {name: array}, aliases included, bf16 widened to f32."""
    data, at = path.read_bytes(), 0

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return value[0] if len(value) == 1 else value

    def string():
        nonlocal at
        length = take("H")
        value = data[at:at + length - 1].decode()
        at += length
        return value

    version, spec, revision = take("I"), string(), take("I")
    assert 4 <= version <= 6 and spec == "WhisperSpec" and revision == 3, (version, spec, revision)
    arrays = {}
    for _ in range(take("I")):
        name = string()
        shape = [take("I") for _ in range(take("B"))]
        kind, size = take("B"), take("I")
        array = np.frombuffer(data, DTYPES[kind], size // np.dtype(DTYPES[kind]).itemsize, at).reshape(shape)
        arrays[name] = (array.astype("<u4") << 16).view("<f4") if kind == 5 else array
        at += size
    for _ in range(take("I")):
        alias, target = string(), string()
        arrays[alias] = arrays[target]
    assert at == len(data)
    return arrays


def from_ct2(path):
    """f64 weights of a model.bin; int8 ones are divided by their scales."""
    raw, weights = read_ct2(path), {}
    for name, array in raw.items():
        if array.dtype == np.int8 and name + "_scale" in raw:
            scale = raw[name + "_scale"].astype(np.float64)
            weights[name] = array.astype(np.float64) / scale.reshape([-1] + [1] * (array.ndim - 1))
        elif not name.endswith("_scale"):
            weights[name] = array.astype(np.float64)
    return weights


def hf_to_ct2(tensors, encoder_layers, decoder_layers, heads):
    """Hugging Face names → CTranslate2's: q, k, v joined (k has no bias: zeros), as its converter does."""
    out = {"encoder/num_heads": np.int16(heads), "decoder/num_heads": np.int16(heads)}

    def put(name, source, parts=("weight", "bias"), names=("weight", "bias")):
        for part, target in zip(parts, names):
            out["%s/%s" % (name, target)] = tensors["model.%s.%s" % (source, part)]

    def norm(name, source):
        put(name, source, names=("gamma", "beta"))

    def joined(name, source, which):
        pieces = ["model.%s.%s_proj" % (source, letter) for letter in which]
        out[name + "/weight"] = np.concatenate([tensors[piece + ".weight"] for piece in pieces])
        width = len(tensors[pieces[0] + ".weight"])
        zeros = np.zeros(width, out[name + "/weight"].dtype)
        out[name + "/bias"] = np.concatenate([tensors.get(piece + ".bias", zeros) for piece in pieces])

    for side, layers in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        put(side + "/position_encodings", side + ".embed_positions", ("weight",), ("encodings",))
        norm(side + "/layer_norm", side + ".layer_norm")
        for index in range(layers):
            ours, theirs = "%s/layer_%d" % (side, index), "%s.layers.%d" % (side, index)
            norm(ours + "/self_attention/layer_norm", theirs + ".self_attn_layer_norm")
            joined(ours + "/self_attention/linear_0", theirs + ".self_attn", "qkv")
            put(ours + "/self_attention/linear_1", theirs + ".self_attn.out_proj")
            if side == "decoder":
                norm(ours + "/attention/layer_norm", theirs + ".encoder_attn_layer_norm")
                joined(ours + "/attention/linear_0", theirs + ".encoder_attn", "q")
                joined(ours + "/attention/linear_1", theirs + ".encoder_attn", "kv")
                put(ours + "/attention/linear_2", theirs + ".encoder_attn.out_proj")
            norm(ours + "/ffn/layer_norm", theirs + ".final_layer_norm")
            put(ours + "/ffn/linear_0", theirs + ".fc1")
            put(ours + "/ffn/linear_1", theirs + ".fc2")
    put("encoder/conv1", "encoder.conv1")
    put("encoder/conv2", "encoder.conv2")
    put("decoder/embeddings", "decoder.embed_tokens", ("weight",), ("weight",))
    return out


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def softmax(x):
    return np.exp(log_softmax(x))


def gelu(x):
    from scipy.special import erf
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


class Network:
    """The two halves; every method takes and gives f64 arrays without a batch axis."""

    def __init__(self, weights):
        self.w = {name: np.asarray(array, np.float64) for name, array in weights.items()}
        self.heads = {side: int(self.w[side + "/num_heads"]) for side in ("encoder", "decoder")}

    def layers(self, side):
        index = 0
        while "%s/layer_%d/ffn/linear_0/weight" % (side, index) in self.w:
            yield "%s/layer_%d" % (side, index)
            index += 1

    def linear(self, name, x):
        return x @ self.w[name + "/weight"].T + self.w[name + "/bias"]

    def norm(self, name, x):
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(var + 1e-5) * self.w[name + "/gamma"] + self.w[name + "/beta"]

    def conv(self, name, x, stride):
        """x [in, time] → gelu(conv) [out, time / stride], kernel 3, one zero on each side."""
        padded = np.pad(x, ((0, 0), (1, 1)))
        count = (x.shape[1] - 1) // stride + 1
        taps = np.stack([padded[:, k:k + (count - 1) * stride + 1:stride] for k in range(3)], axis=2)
        out = np.einsum("oik,itk->ot", self.w[name + "/weight"], taps, optimize=True)
        return gelu(out + self.w[name + "/bias"][:, None])

    def attend(self, query, key, value, heads, causal, kept=None):
        split = [x.reshape(len(x), heads, -1).transpose(1, 0, 2) for x in (query, key, value)]
        scores = split[0] @ split[1].transpose(0, 2, 1) / math.sqrt(split[0].shape[-1])
        if kept is not None:
            kept.append(scores)
        if causal:
            offset = len(key) - len(query)
            scores = np.where(np.tril(np.ones(scores.shape[1:], bool), offset), scores, -np.inf)
        return (softmax(scores) @ split[2]).transpose(1, 0, 2).reshape(len(query), -1)

    def feed_forward(self, name, x):
        inner = gelu(self.linear(name + "/ffn/linear_0", self.norm(name + "/ffn/layer_norm", x)))
        return x + self.linear(name + "/ffn/linear_1", inner)

    def self_attention(self, name, x, heads, causal):
        query, key, value = np.split(self.linear(name + "/linear_0", self.norm(name + "/layer_norm", x)), 3, axis=1)
        return x + self.linear(name + "/linear_1", self.attend(query, key, value, heads, causal))

    def encode(self, mel, ports=None):
        """mel [n_mels, frames] → [frames / 2, d]. `ports` takes what each block gave."""
        x = self.conv("encoder/conv2", self.conv("encoder/conv1", mel, 1), 2).T
        x = x + self.w["encoder/position_encodings/encodings"][:len(x)]
        note(ports, "encoder_in", x)
        for index, name in enumerate(self.layers("encoder")):
            x = self.self_attention(name + "/self_attention", x, self.heads["encoder"], False)
            x = self.feed_forward(name, x)
            note(ports, "encoder_layer_%d" % index, x)
        return self.norm("encoder/layer_norm", x)

    def cross(self, memory):
        """Keys and values of every cross attention: made once a window."""
        return [np.split(self.linear(name + "/attention/linear_1", memory), 2, axis=1) for name in self.layers("decoder")]

    def decode(self, tokens, cross, ports=None, rows=slice(None)):
        """All tokens at once (causal) → logits [len, vocab], or only those of `rows`."""
        embeddings = self.w["decoder/embeddings/weight"]
        x = embeddings[tokens] + self.w["decoder/position_encodings/encodings"][:len(tokens)]
        note(ports, "decoder_in", x)
        for index, name in enumerate(self.layers("decoder")):
            x = self.self_attention(name + "/self_attention", x, self.heads["decoder"], True)
            note(ports, "decoder_layer_%d_self" % index, x)
            query = self.linear(name + "/attention/linear_0", self.norm(name + "/attention/layer_norm", x))
            kept = [] if ports is not None else None
            found = self.attend(query, *cross[index], self.heads["decoder"], False, kept)
            x = x + self.linear(name + "/attention/linear_2", found)
            note(ports, "decoder_layer_%d_cross" % index, x)
            note(ports, "decoder_layer_%d_cross_scores" % index, kept[0] if kept else None)
            x = self.feed_forward(name, x)
            note(ports, "decoder_layer_%d" % index, x)
        x = self.norm("decoder/layer_norm", x)
        note(ports, "decoder_out", x)
        return x[rows] @ embeddings.T


def note(ports, name, value):
    if ports is not None:
        ports[name] = value


class Ids:
    """Special token ids, from a vocabulary's tokens in order and CTranslate2's config."""

    def __init__(self, vocabulary, config):
        index = {token: at for at, token in enumerate(vocabulary)}
        self.eot, self.sot = index["<|endoftext|>"], index["<|startoftranscript|>"]
        self.transcribe, self.prev = index["<|transcribe|>"], index["<|startofprev|>"]
        self.no_speech = index.get("<|nospeech|>", index.get("<|nocaptions|>"))
        self.no_timestamps = index["<|notimestamps|>"]
        self.begin = self.no_timestamps + 1
        self.vocab_size = len(vocabulary)
        self.multilingual = "" in index
        self.languages = config.get("lang_ids", [])
        self.suppress, self.suppress_begin = config["suppress_ids"], config["suppress_ids_begin"]


def apply_rules(logits, sampled, ids, timestamps, max_initial=50):
    """The masks of one step, section 6: changes `logits`. Returns the gap of the timestamp rule's two sides, or None."""
    low = -np.finfo(np.float32).max
    logits[ids.suppress] = low
    if not sampled:
        logits[ids.suppress_begin] = low
    if not timestamps:
        return None
    logits[ids.no_timestamps] = low
    if not sampled:
        logits[:ids.begin] = low
        logits[ids.begin + max_initial + 1:] = low
        return None
    last = sampled[-1]
    if last >= ids.begin:
        if len(sampled) < 2 or sampled[-2] >= ids.begin:
            logits[ids.begin:] = low
            return None
        logits[:ids.eot] = low
        logits[ids.begin:last] = low
    else:
        latest = next((token for token in reversed(sampled) if token >= ids.begin), None)
        if latest is not None:
            logits[ids.begin:latest + 1] = low
    chances = log_softmax(logits)
    gap = np.logaddexp.reduce(chances[ids.begin:]) - chances[:ids.begin].max()
    if gap > 0:
        logits[:ids.begin] = low
    return gap


def generate(network, ids, memory, prompt, max_length=448, max_initial=50):
    """Greedy, section 6: {tokens, score, no_speech_prob, margin}."""
    sot = prompt.index(ids.sot)
    end = sot
    while end < len(prompt) and ids.sot <= prompt[end] <= ids.no_timestamps:
        end += 1
    assert end == len(prompt), "forced prefixes are not handled here"
    timestamps = prompt[-1] != ids.no_timestamps
    limit = min(max_length // 2, max_length - (len(prompt) - 1))
    cross = network.cross(memory)
    no_speech = float(softmax(network.decode(prompt, cross, rows=sot))[ids.no_speech])
    sampled, total, margin = [], 0.0, math.inf
    for _ in range(limit):
        logits = network.decode(prompt + sampled, cross, rows=-1)
        gap = apply_rules(logits, sampled, ids, timestamps, max_initial)
        first, second = np.sort(logits)[:-3:-1]
        margin = min(margin, first - second, math.inf if gap is None else abs(gap))
        token = int(np.argmax(logits))
        total += log_softmax(logits)[token]
        if token == ids.eot:
            break
        sampled.append(token)
    score = total / len(sampled) if sampled else -math.inf
    return {"tokens": sampled, "score": float(score), "no_speech_prob": no_speech, "margin": float(margin)}


def detect_language(network, ids, memory):
    """Chances of ids.languages, section 3."""
    return softmax(network.decode([ids.sot], network.cross(memory))[0][ids.languages])


def split_window(tokens, ids, seek, segment_size):
    """Section 7: [(start_s, end_s, tokens)], next seek."""
    offset, segments = seek * 0.01, []
    single_end = len(tokens) >= 2 and tokens[-2] < ids.begin <= tokens[-1]
    cuts = [i for i in range(1, len(tokens)) if tokens[i] >= ids.begin and tokens[i - 1] >= ids.begin]
    if not cuts:
        stamps = [token for token in tokens if token >= ids.begin]
        length = segment_size * 0.01
        if stamps and stamps[-1] != ids.begin:
            length = (stamps[-1] - ids.begin) * 0.02
        return [(offset, offset + length, tokens)], seek + segment_size
    last = 0
    for cut in cuts + ([len(tokens)] if single_end else []):
        part = tokens[last:cut]
        segments.append((offset + (part[0] - ids.begin) * 0.02, offset + (part[-1] - ids.begin) * 0.02, part))
        last = cut
    if single_end:
        return segments, seek + segment_size
    return segments, seek + (tokens[last - 1] - ids.begin) * 2


def transcribe(network, ids, features, decode_text, language=None, condition=True):
    """Section 5 over a whole file's features [n_mels, T]; language: index into ids.languages, or None to detect."""
    def window(start, count):
        return np.pad(features[:, start:start + count], ((0, 0), (0, 3000 - min(count, features.shape[1] - start))))

    if ids.multilingual and language is None:
        language = int(np.argmax(detect_language(network, ids, network.encode(window(0, 3000)))))
    content, seek, history, since, segments = features.shape[1] - 1, 0, [], 0, []
    while seek < content:
        size = min(3000, content - seek)
        memory = network.encode(window(seek, size))
        previous = history[since:]
        task = [ids.languages[language], ids.transcribe] if ids.multilingual else []
        prompt = ([ids.prev] + previous[-223:] if previous else []) + [ids.sot] + task
        result = generate(network, ids, memory, prompt)
        tokens = result["tokens"]
        mean = result["score"] * len(tokens) / (len(tokens) + 1)
        if result["no_speech_prob"] > 0.6 and not mean > -1.0:
            seek += size
            continue
        parts, seek = split_window(tokens, ids, seek, size)
        for start, end, part in parts:
            text = decode_text([token for token in part if token < ids.eot])
            if start != end and text.strip():
                history += part
                segments.append({**result, "start": start, "end": end, "text": text, "tokens": part, "avg_logprob": mean})
        if not condition:
            since = len(history)
    return segments


def vocabulary_of(directory):
    path = directory / "vocabulary.json"
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    return (directory / "vocabulary.txt").read_text(encoding="utf-8").split("\n")[:-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--weights", type=pathlib.Path, required=True)
    parser.add_argument("audio", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    import whisper_oracle as oracle
    network = Network(from_ct2(arguments.weights / "model.bin"))
    ids = Ids(vocabulary_of(arguments.weights), json.loads((arguments.weights / "config.json").read_text()))
    whisper = oracle.open_model(arguments.weights, "float32", 2)
    wrong = 0
    for path in arguments.audio:
        pcm = oracle.read_audio(path)
        truth = oracle.transcribe(whisper, pcm, None, True)
        mine = transcribe(network, ids, whisper.feature_extractor(pcm).astype(np.float64), whisper.hf_tokenizer.decode)
        same = [s["tokens"] for s in mine] == [s["tokens"] for s in truth["segments"]] and all(
            abs(a["start"] - b["start"]) < 1e-6 and abs(a["end"] - b["end"]) < 1e-6 for a, b in zip(mine, truth["segments"]))
        wrong += not same
        errors = [abs(a["avg_logprob"] - b["avg_logprob"]) for a, b in zip(mine, truth["segments"])]
        print("%s: %s, %d segments, avg_logprob within %.2g, margin %.3f" % (
            path.name, "same" if same else "DIFFERENT", len(mine), max(errors, default=0), min((s["margin"] for s in mine), default=0)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
