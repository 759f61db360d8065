#!/usr/bin/env python3
"""openai-whisper as a second oracle, on the weights that mstar and faster-whisper read.

    openai_oracle.py --weights CT2_DIR [--f64] [--language en] AUDIO...      prints the text and the closest step of each file

Needs requirements-torch.txt. The weights of a CTranslate2 model.bin are widened (int8 ones divided by their scales) and given
openai-whisper's names; sound is read as whisper_oracle.py reads it, so that both oracles hear the same samples. Greedy, temperature 0, no
fallback. With --f64 the network computes in f64: what the rounding of f32 can't have decided.
"""
import argparse
import pathlib
import sys

import numpy as np
import torch
from whisper import decoding
from whisper.model import LayerNorm, ModelDimensions, Whisper

import whisper_numpy
import whisper_oracle

PARTS = {"encoder": (("self_attention", "attn"),), "decoder": (("self_attention", "attn"), ("attention", "cross_attn"))}


def layer_names(side, layer, weights):
    """(their name, our array) of one layer; CTranslate2 keeps q, k, v of a self-attention and k, v of a cross-attention joined."""
    ours, theirs = "%s/layer_%d/" % (side, layer), "%s.blocks.%d." % (side, layer)
    for part, name in PARTS[side]:
        joined = [("linear_0", ("query", "key", "value"))]
        if name == "cross_attn":
            joined = [("linear_0", ("query",)), ("linear_1", ("key", "value"))]
        for linear, heads in joined:
            for kind in ("weight", "bias"):
                for head, piece in zip(heads, np.split(weights["%s%s/%s/%s" % (ours, part, linear, kind)], len(heads))):
                    if (head, kind) != ("key", "bias"):  # theirs has none; ours is zeros
                        yield "%s%s.%s.%s" % (theirs, name, head, kind), piece
                    elif np.any(piece):
                        raise ValueError("%s: a key projection with a bias" % theirs)
        for kind in ("weight", "bias"):
            yield "%s%s.out.%s" % (theirs, name, kind), weights["%s%s/linear_%d/%s" % (ours, part, len(joined), kind)]
        yield from norm(weights, "%s%s/layer_norm" % (ours, part), "%s%s_ln" % (theirs, name))
    for linear, place in (("linear_0", 0), ("linear_1", 2)):
        for kind in ("weight", "bias"):
            yield "%smlp.%d.%s" % (theirs, place, kind), weights["%sffn/%s/%s" % (ours, linear, kind)]
    yield from norm(weights, ours + "ffn/layer_norm", theirs + "mlp_ln")


def norm(weights, ours, theirs):
    yield theirs + ".weight", weights[ours + "/gamma"]
    yield theirs + ".bias", weights[ours + "/beta"]


def state_dict(weights):
    """openai-whisper's names → f64 arrays, and the dimensions."""
    layers = {side: 1 + max(int(name.split("/")[1][6:]) for name in weights if name.startswith(side + "/layer_") and
                            name.split("/")[1][6:].isdigit()) for side in PARTS}
    state = {}
    for side, count in layers.items():
        for layer in range(count):
            state.update(layer_names(side, layer, weights))
        state[side + ".positional_embedding"] = weights[side + "/position_encodings/encodings"]
    for name in ("conv1", "conv2"):
        for kind in ("weight", "bias"):
            state["encoder.%s.%s" % (name, kind)] = weights["encoder/%s/%s" % (name, kind)]
    state.update(norm(weights, "encoder/layer_norm", "encoder.ln_post"))
    state.update(norm(weights, "decoder/layer_norm", "decoder.ln"))
    state["decoder.token_embedding.weight"] = weights["decoder/embeddings/weight"]
    heads = [int(weights[side + "/num_heads"]) for side in PARTS]
    audio_ctx, audio_state = state["encoder.positional_embedding"].shape
    text_ctx, text_state = state["decoder.positional_embedding"].shape
    return state, ModelDimensions(
        n_mels=state["encoder.conv1.weight"].shape[1], n_audio_ctx=audio_ctx, n_audio_state=audio_state, n_audio_head=heads[0],
        n_audio_layer=layers["encoder"], n_vocab=state["decoder.token_embedding.weight"].shape[0], n_text_ctx=text_ctx,
        n_text_state=text_state, n_text_head=heads[1], n_text_layer=layers["decoder"])


class Recorder:
    """Notes each window that openai-whisper decodes: prompt, tokens and, step by step, how close the choice was."""

    def __init__(self, model):
        self.model, self.windows, self.steps = model, [], []
        apply_rules, update, run = (decoding.ApplyTimestampRules.apply, decoding.GreedyDecoder.update,
                                    decoding.DecodingTask.run)

        def rules(filter_, logits, tokens):
            before = logits.clone()
            apply_rules(filter_, logits, tokens)
            self.steps.append(self.timestamp_gap(filter_, before, logits, tokens))

        def choose(decoder, tokens, logits, sum_logprobs):
            top = torch.topk(logits[0], 2)
            gap = float(top.values[0] - top.values[1])
            self.steps[-1] = {"token": int(top.indices[0]), "second": int(top.indices[1]), "gap": round(gap, 6),
                              "timestamp_gap": self.steps[-1]}
            return update(decoder, tokens, logits, sum_logprobs)

        def decode(task, mel):
            self.steps = []
            results = run(task, mel)
            if task.options.task != "lang_id":
                prompt = list(task.initial_tokens)
                margin = min((least_gap(step) for step in self.steps), default=None)
                self.windows.append({"prompt": prompt, "tokens": list(results[0].tokens), "score": results[0].avg_logprob,
                                     "no_speech_prob": results[0].no_speech_prob, "margin": margin, "steps": self.steps})
            return results

        decoding.ApplyTimestampRules.apply, decoding.GreedyDecoder.update = rules, choose
        decoding.DecodingTask.run = decode

    @staticmethod
    def timestamp_gap(filter_, before, after, tokens):
        """log of P(all timestamps) over P(the likeliest text token), where that comparison decides; None elsewhere."""
        begin, eot = filter_.tokenizer.timestamp_begin, filter_.tokenizer.eot
        sampled = tokens[0, filter_.sample_begin:].tolist()
        if not sampled or (sampled[-1] >= begin and (len(sampled) < 2 or sampled[-2] >= begin)):
            return None
        text = before[0, :begin].clone()
        text[filter_.tokenizer.no_timestamps] = -torch.inf
        if sampled[-1] >= begin:
            text[:eot] = -torch.inf
        return round(float(after[0, begin:].logsumexp(0) - text.max()), 6)


def least_gap(step):
    gaps = [step["gap"]] + ([abs(step["timestamp_gap"])] if step["timestamp_gap"] is not None else [])
    return min(gap for gap in gaps if gap == gap)


def open_model(weights, threads, f64=False):
    torch.set_num_threads(threads)
    state, dimensions = state_dict(whisper_numpy.from_ct2(weights / "model.bin"))
    model = Whisper(dimensions)
    model.load_state_dict({name: torch.tensor(array, dtype=torch.float32) for name, array in state.items()})
    if f64:
        # Every number of the checkpoint is exact in f32, so widening afterwards loses nothing. Encoder output and logits stay f32.
        model.double()
        LayerNorm.forward = torch.nn.LayerNorm.forward
        encoder, decoder = model.encoder.forward, model.decoder.forward
        model.encoder.forward = lambda mel: encoder(mel.double()).float()
        model.decoder.forward = lambda tokens, states, kv_cache=None: decoder(tokens, states.double(), kv_cache=kv_cache)
    return Recorder(model.eval())


def transcribe(recorder, pcm, language, condition, task="transcribe", prompt=None):
    """One file, in the shape of whisper_oracle.transcribe()."""
    recorder.windows = []
    result = recorder.model.transcribe(pcm, language=language, temperature=0.0, condition_on_previous_text=condition, fp16=False,
                                       task=task, initial_prompt=prompt)
    return {
        "text": result["text"].strip(), "language": result["language"], "num_samples": int(pcm.shape[0]),
        "segments": [{
            "start": round(segment["start"], 6), "end": round(segment["end"], 6), "text": segment["text"],
            "seek_frames": segment["seek"], "tokens": list(segment["tokens"]), "avg_logprob": round(segment["avg_logprob"], 6),
            "no_speech_prob": segment["no_speech_prob"], "compression_ratio": round(segment["compression_ratio"], 6),
        } for segment in result["segments"] if segment["tokens"]],
        "windows": recorder.windows,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--weights", type=pathlib.Path, required=True)
    parser.add_argument("--language")
    parser.add_argument("--no-condition", action="store_true", help="condition_on_previous_text=False")
    parser.add_argument("--f64", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("audio", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    model = open_model(arguments.weights, arguments.threads, arguments.f64)
    for path in arguments.audio:
        entry = transcribe(model, whisper_oracle.read_audio(path), arguments.language, not arguments.no_condition)
        print("%s: %s" % (path, entry["text"]))
        for window in entry["windows"]:
            print("  window: %d tokens, margin %s" % (len(window["tokens"]), window["margin"]), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
