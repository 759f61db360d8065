#!/usr/bin/env python3
"""Whisper with random seeded weights at real size: what mstar hears in seeded sounds, against transformers.

    gpu_whisper_truth.py --mstar ./mstar --config bench/models/whisper-large-v3/config.json [--device cuda] [--clips 6] [--tokens 40]
                         [-- SERVE FLAGS]

Makes the model with transformers (bfloat16), saves it, and lets its float32 copy decode seeded clips of 4.7 s greedily under Whisper's
rules (timestamps in pairs and in order, suppressed ids). mstar serves the same files. Compared, clip by clip: the tokens of all segments,
avg_logprob and no_speech_prob; transformers' own bfloat16 run over the same tokens is the yardstick. Then all clips at once, which must
give what they gave one by one. Exit 1 when tokens differ where float32 saw no near-tie (a margin under --margin in that step or an
earlier one), or avg_logprob is off by more than twice transformers' own error plus 0.01.

Features are made here as faster-whisper makes them (frames past the sound are 0 after normalising), with numpy.
"""
import argparse
import concurrent.futures
import json
import math
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

import numpy as np
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration
from transformers.audio_utils import mel_filter_bank

PORT = 8126
SECONDS = 4.7
NUM_TIMESTAMPS = 1501


# ---- model


class Ids:
    """Special ids, which lie before the timestamps as Whisper's do."""

    def __init__(self, vocab):
        self.vocab = vocab
        self.begin = vocab - NUM_TIMESTAMPS
        self.no_timestamps, self.no_speech = self.begin - 1, self.begin - 2
        self.transcribe, self.translate = self.begin - 5, self.begin - 6
        self.eot = 50257 if vocab >= 51865 else self.translate - 4
        self.sot, self.english = self.eot + 1, self.eot + 2


def write_tokenizer(directory, ids):
    """Text id i reads " t<i>"."""
    pieces = [["<unk>", 0.0]] + [["\u2581t%d" % i, -1.0] for i in range(1, ids.eot)]
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>"] + ["<|l%d|>" % i for i in range(1, ids.translate - ids.english)]
    special += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    special += ["<|%.2f|>" % (0.02 * i) for i in range(NUM_TIMESTAMPS)]
    assert len(pieces) + len(special) == ids.vocab, (len(pieces), len(special), ids.vocab)
    added = [{"id": len(pieces) + i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
             for i, text in enumerate(special)]
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never", "split": False}
    (directory / "tokenizer.json").write_text(json.dumps(
        {"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": space, "post_processor": None, "decoder": space,
         "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False}}, ensure_ascii=False))


@torch.no_grad()
def make_model(wanted, directory, device):
    config = WhisperConfig(**{name: value for name, value in wanted.items() if name not in ("model_type", "architectures", "suppress_tokens", "begin_suppress_tokens")})
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = WhisperForConditionalGeneration(config).to(torch.bfloat16)
    torch.set_default_dtype(torch.float32)
    # Every layer adds about as much as it reads, attention is sharp enough to depend on the sound, and logits lie far enough apart that
    # text beats the sum of all timestamps now and then.
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter) * 0.05)
        elif name.endswith("decoder.embed_tokens.weight"):
            parameter.copy_(torch.randn_like(parameter) * (5.5 / math.sqrt(parameter.shape[1])))
        elif name.endswith("decoder.embed_positions.weight"):
            parameter.copy_(torch.randn_like(parameter))
        elif not name.endswith("embed_positions.weight"):
            gain = 2.0 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1.0
            parameter.copy_(torch.randn_like(parameter) * (gain / math.sqrt(parameter[0].numel())))
    model.tie_weights()
    model.eval().save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    saved = json.loads((directory / "config.json").read_text())
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        saved[name] = wanted[name]
    (directory / "config.json").write_text(json.dumps(saved))
    return model


# ---- sounds


def make_sound(seed):
    chance = np.random.default_rng(seed)
    t = np.arange(int(SECONDS * 16000)) / 16000.0
    sound = 0.05 * chance.standard_normal(t.size)
    for _ in range(6):
        begin, end = sorted(chance.uniform(0, SECONDS, 2))
        sound += 0.2 * np.sin(2 * math.pi * chance.uniform(80, 6000) * t) * ((t >= begin) & (t < end))
    return np.clip(np.round(sound * 32767), -32768, 32767).astype(np.int16)


def wav_bytes(samples):
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        with wave.open(file.name, "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(16000)
            out.writeframes(samples.tobytes())
        return pathlib.Path(file.name).read_bytes()


def features_of(samples, num_mels):
    """[num_mels, 3000] f32, and the frames of content."""
    sound = np.concatenate([samples.astype(np.float64) / 32768.0, np.zeros(160)])
    padded = np.pad(sound, 200, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    count = sound.size // 160  # the last frame of the transform is left out
    frames = np.stack([padded[160 * i:160 * i + 400] * window for i in range(count)])
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    bank = mel_filter_bank(201, num_mels, 0.0, 8000.0, 16000, norm="slaney", mel_scale="slaney")
    mel = np.log10(np.maximum(power @ bank, 1e-10)).T
    mel = (np.maximum(mel, mel.max() - 8.0) + 4.0) / 4.0
    content = samples.size // 160
    out = np.zeros((num_mels, 3000), np.float32)
    out[:, :content] = mel[:, :content]
    return out, content


# ---- oracle


def masked(logits, drawn, ids, suppress, suppress_first):
    """What may be drawn, by Whisper's rules; and how near the timestamp rule is to the other side."""
    out = logits.clone()
    low = float("-inf")
    out[suppress] = low
    out[ids.no_timestamps] = low
    if not drawn:
        out[suppress_first] = low
        out[:ids.begin] = low
        out[ids.begin + 51:] = low
        return out, float("inf")
    stamps = [t for t in drawn if t >= ids.begin]
    if drawn[-1] >= ids.begin:
        if len(drawn) < 2 or drawn[-2] >= ids.begin:
            out[ids.begin:] = low
            return out, float("inf")
        out[:ids.eot] = low
        out[ids.begin:drawn[-1]] = low
    elif stamps:
        out[ids.begin:stamps[-1] + 1] = low
    tail, head = torch.logsumexp(out[ids.begin:], 0), out[:ids.begin].max()
    near = abs(float(tail - head)) if math.isfinite(float(tail)) and math.isfinite(float(head)) else float("inf")
    if tail > head:
        out[:ids.begin] = low
    return out, near


@torch.no_grad()
def decode(model, mel, ids, count, lists):
    """Greedy tokens, and of each its log-probability and the margin to the next; and the probability of no speech."""
    encoded = model.model.encoder(mel)
    prompt = [ids.sot, ids.english, ids.transcribe]
    fed, cache, out = prompt, None, []
    no_speech = 0.0
    for step in range(count):
        answer = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([fed], device=mel.device), past_key_values=cache, use_cache=True)
        cache = answer.past_key_values
        logits = answer.logits[0].float()
        if step == 0:
            no_speech = float(torch.softmax(logits[0], -1)[ids.no_speech])
        row, near = masked(logits[-1], [t for t, _, _ in out], ids, *lists)
        top = row.topk(2)
        out.append((int(top.indices[0]), float(torch.log_softmax(row, -1).max()), min(near, float(top.values[0] - top.values[1]))))
        fed = [out[-1][0]]
    return out, no_speech


@torch.no_grad()
def score(model, mel, ids, tokens, lists):
    """Log-probabilities of given tokens, all at once."""
    encoded = model.model.encoder(mel)
    fed = [ids.sot, ids.english, ids.transcribe] + tokens[:-1]
    logits = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([fed], device=mel.device)).logits[0].float()
    out = []
    for i, token in enumerate(tokens):
        row, _ = masked(logits[2 + i], tokens[:i], ids, *lists)
        out.append(float(torch.log_softmax(row, -1)[token]))
    return out, float(torch.softmax(logits[0], -1)[ids.no_speech])


def kept_tokens(tokens, ids, content):
    """Indices of the tokens that the client is told of: segments without text or length are left out."""
    if ids.eot in tokens:
        tokens = tokens[:tokens.index(ids.eot)]
    stamp = [t >= ids.begin for t in tokens]
    n = len(tokens)
    single_end = n >= 2 and not stamp[-2] and stamp[-1]
    cuts = [i for i in range(1, n) if stamp[i] and stamp[i - 1]]
    parts = []
    if not cuts:
        length = content / 100
        last = [t for t in tokens if t >= ids.begin][-1:]
        if last and last[0] != ids.begin:
            length = (last[0] - ids.begin) * 0.02
        parts.append((range(n), length > 0))
    else:
        begin = 0
        for cut in cuts + ([n] if single_end else []):
            parts.append((range(begin, cut), tokens[begin] != tokens[cut - 1]))
            begin = cut
    return [i for part, long in parts for i in part if long and any(tokens[k] < ids.eot for k in part)]


# ---- mstar


def post(sound, count):
    boundary = uuid.uuid4().hex
    fields = {"model": "seeded", "language": "en", "max_tokens": str(count), "ignore_eos": "true", "temperature": "0", "response_format": "verbose_json"}
    body = b"".join(('--%s\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (boundary, name, value)).encode() for name, value in fields.items())
    body += ('--%s\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n' % boundary).encode()
    body += sound + ("\r\n--%s--\r\n" % boundary).encode()
    request = urllib.request.Request("http://127.0.0.1:%d/v1/audio/transcriptions" % PORT, body,
                                     {"Content-Type": "multipart/form-data; boundary=" + boundary})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        sys.exit("%s: %s" % (error, error.read().decode()[:500]))


def tokens_of(answer):
    return [token for segment in answer["segments"] for token in segment["tokens"]]


def compare(args, clips, oracle, peers, ids):
    failed, logprob_errors, speech_errors, alone = False, [], [], []
    for i, (sound, content) in enumerate(clips):
        answer = post(sound, args.tokens)
        alone.append(tokens_of(answer))
        told, no_speech = oracle[i]
        tokens = [t for t, _, _ in told]
        kept = kept_tokens(tokens, ids, content)
        theirs = [tokens[k] for k in kept]
        first = next((k for k in range(max(len(theirs), len(alone[-1]))) if k >= len(theirs) or k >= len(alone[-1]) or theirs[k] != alone[-1][k]), None)
        if first is not None:
            until = kept[first] if first < len(kept) else len(tokens) - 1
            margin = min(m for _, _, m in told[:until + 1])
            print("clip %d: %d tokens; differs at %d of %d told, float32's least margin up to there %.4f" % (i, len(tokens), first, len(theirs), margin))
            failed |= margin > args.margin
            continue
        end = tokens.index(ids.eot) if ids.eot in tokens else len(tokens)
        exact = sum(value for _, value, _ in told) / (end + 1)
        print("clip %d: all %d tokens told are equal (of %d; %d distinct, %d timestamps)" % (i, len(theirs), len(tokens), len(set(tokens)), sum(t >= ids.begin for t in tokens)))
        if answer["segments"]:
            logprob_errors.append(abs(answer["segments"][0]["avg_logprob"] - exact))
            speech_errors.append(abs(answer["segments"][0]["no_speech_prob"] - no_speech))
    own = [abs(sum(values) - sum(v for _, v, _ in told)) / len(values) for (values, _), (told, _) in zip(peers, oracle)]
    print("avg_logprob against float32: transformers bf16 mean %.5f largest %.5f" % (sum(own) / len(own), max(own)))
    if logprob_errors:
        print("                             mstar             mean %.5f largest %.5f; no_speech_prob largest %.2e" % (
            sum(logprob_errors) / len(logprob_errors), max(logprob_errors), max(speech_errors)))
        failed |= sum(logprob_errors) / len(logprob_errors) > 2 * sum(own) / len(own) + 0.01
    with concurrent.futures.ThreadPoolExecutor(4 * len(clips)) as pool:
        together = list(pool.map(lambda each: tokens_of(post(each[0], args.tokens)), clips * 4))
    same = sum(a == b for a, b in zip(alone * 4, together))
    print("all at once: %d of %d answers are those given one by one" % (same, len(together)))
    return failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mstar", default="./mstar")
    parser.add_argument("--config", type=pathlib.Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--clips", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--margin", type=float, default=0.2)
    parser.add_argument("serve", nargs="*")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    wanted = json.loads(args.config.read_text())
    ids = Ids(wanted["vocab_size"])
    directory = pathlib.Path(tempfile.mkdtemp()) / "seeded"
    directory.mkdir()
    begun = time.time()
    model = make_model(wanted, directory, args.device)
    write_tokenizer(directory, ids)
    lists = [torch.tensor(wanted[name], device=args.device) for name in ("suppress_tokens", "begin_suppress_tokens")]
    sounds = [make_sound(seed) for seed in range(args.clips)]
    mels = [features_of(sound, wanted["num_mel_bins"]) for sound in sounds]
    inputs = [torch.tensor(mel, device=args.device)[None] for mel, _ in mels]
    model = model.float()
    oracle = [decode(model, mel, ids, args.tokens, lists) for mel in inputs]
    model = model.bfloat16()
    peers = [score(model, mel.bfloat16(), ids, [t for t, _, _ in told], lists) for mel, (told, _) in zip(inputs, oracle)]
    print("oracle %.0f s" % (time.time() - begun), flush=True)
    del model
    if args.device == "cuda":
        torch.cuda.empty_cache()
    clips = [(wav_bytes(sound), content) for sound, (_, content) in zip(sounds, mels)]
    server = subprocess.Popen([args.mstar, "serve", str(directory), "--port", str(PORT), *args.serve], stdout=subprocess.DEVNULL)
    try:
        for _ in range(2400):
            try:
                urllib.request.urlopen("http://127.0.0.1:%d/ready" % PORT, timeout=5)
                break
            except OSError:
                if server.poll() is not None:
                    sys.exit("the server did not start")
                time.sleep(0.05)
        failed = compare(args, clips, oracle, peers, ids)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
