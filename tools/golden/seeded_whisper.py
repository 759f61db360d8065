#!/usr/bin/env python3
"""Makes tests/golden/whisper_tiny_seeded: a very small Whisper with random weights, in every format we read, and what it computes.

    seeded_whisper.py [--seed 49] [--out tests/golden/whisper_tiny_seeded]
    seeded_whisper.py --check      compares the stored goldens with CTranslate2 and, where torch is installed, transformers

The network has every part of a real multilingual one: 2 + 2 layers, d_model 64, 2 heads, 80 mel bins, but 50 encoder positions (100 mel frames, one
second), 64 decoder positions and 519 tokens: 449 of text, "" (449), eot 450, sot 451, ten languages 452.., translate 462, transcribe 463, startoflm 464,
startofprev 465, nospeech 466, notimestamps 467, timestamps 468 (0.00) to 518 (1.00). All weights are f16 numbers, so every float format holds the same.

  hf/        model.safetensors (f32, Hugging Face names, output projection tied and left out), config.json, generation_config.json,
             preprocessor_config.json, tokenizer.json (byte-level BPE)
  ct2_f32/ ct2_f16/ ct2_int8/   model.bin v6, config.json, vocabulary.json; int8: rows scaled to 127, convolutions too
  ports.safetensors   outputs in f32 of an f64 numpy run (whisper_numpy.py):
      mel [80,100], tokens [T]                  what went in; T tokens at once, causal
      encoder_in [50,64], encoder_layer_N, encoder_out; decoder_in [T,64], decoder_layer_N_self, decoder_layer_N_cross, decoder_layer_N,
      decoder_layer_N_cross_scores [2,T,50] (scaled, before softmax), decoder_out, logits [T,519]
      language_probs [10]
      int8_encoder_out, int8_logits             the same from the int8 file, its weights widened (q / scale), activations in float
  greedy.json         prompts and what greedy decoding gives (max_length 64): tokens, score, no_speech_prob, margin; for the float and for the int8 weights
"""
import argparse
import json
import pathlib
import struct

import numpy as np
from safetensors.numpy import load_file, save_file

import whisper_numpy as reference

D_MODEL, HEADS, LAYERS, FFN, MELS, FRAMES, POSITIONS = 64, 2, 2, 128, 80, 100, 64
LANGUAGES = ["en", "zh", "de", "es", "ru", "ko", "fr", "ja", "pt", "tr"]
TEXT_TOKENS = 449
SPECIAL = ["", "<|endoftext|>", "<|startoftranscript|>"] + ["<|%s|>" % code for code in LANGUAGES] + [
    "<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
TIMESTAMPS = ["<|%.2f|>" % (0.02 * i) for i in range(FRAMES // 2 + 1)]
MAX_LENGTH = POSITIONS
PARTS = ["hf", "ct2_f32", "ct2_f16", "ct2_int8"]
# Words to learn merges from: any English would do.
WORDS = """And Mr. John Dashwood had then leisure to consider how much there might be prudently in his power to do for them. He was not an
ill-disposed young man, unless to be rather cold-hearted and rather selfish is to be ill-disposed: but he was, in general, well respected; for he
conducted himself with propriety in the discharge of his ordinary duties. Had he married a more amiable woman, he might have been made still more
respectable than he was: he might even have been made amiable himself; for he was very young when he married, and very fond of his wife. """ * 2


def make_tokenizer():
    """(tokenizers.Tokenizer, vocabulary in id order)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.train_from_iterator([WORDS], trainers.BpeTrainer(
        vocab_size=TEXT_TOKENS, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    model = json.loads(learned.to_str())["model"]
    vocabulary = model["vocab"]
    assert len(vocabulary) == TEXT_TOKENS, len(vocabulary)
    merges = [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in model["merges"]]
    vocabulary = dict(vocabulary, **{"": TEXT_TOKENS})
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL[1:]])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in TIMESTAMPS])
    names = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size(with_added_tokens=True))]
    assert names[TEXT_TOKENS:] == SPECIAL + TIMESTAMPS
    return tokenizer, names


def make_weights(seed):
    """Hugging Face names → f32 arrays of f16 numbers, large enough that logits differ clearly."""
    chance = np.random.default_rng(seed)
    tensors = {}

    def put(name, array):
        tensors["model." + name] = array.astype(np.float16).astype(np.float32)

    def linear(name, rows, columns, bias=True):
        put(name + ".weight", chance.standard_normal((rows, columns)) * 1.6 / np.sqrt(columns))
        if bias:
            put(name + ".bias", chance.standard_normal(rows) * 0.1)

    def norm(name):
        put(name + ".weight", 1 + 0.2 * chance.standard_normal(D_MODEL))
        put(name + ".bias", 0.1 * chance.standard_normal(D_MODEL))

    def attention(name):
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear("%s.%s" % (name, part), D_MODEL, D_MODEL, bias=part != "k_proj")

    for name, channels in (("conv1", MELS), ("conv2", D_MODEL)):
        put("encoder.%s.weight" % name, chance.standard_normal((D_MODEL, channels, 3)) * 1.6 / np.sqrt(3 * channels))
        put("encoder.%s.bias" % name, chance.standard_normal(D_MODEL) * 0.1)
    put("encoder.embed_positions.weight", sinusoids(FRAMES // 2, D_MODEL))
    positions, embeddings = shaped_decoder_tables(chance)
    put("decoder.embed_positions.weight", positions)
    put("decoder.embed_tokens.weight", embeddings)
    for side in ("encoder", "decoder"):
        for index in range(LAYERS):
            layer = "%s.layers.%d" % (side, index)
            attention(layer + ".self_attn")
            norm(layer + ".self_attn_layer_norm")
            if side == "decoder":
                attention(layer + ".encoder_attn")
                norm(layer + ".encoder_attn_layer_norm")
            linear(layer + ".fc1", FFN, D_MODEL)
            linear(layer + ".fc2", D_MODEL, FFN)
            norm(layer + ".final_layer_norm")
        norm(side + ".layer_norm")
    return tensors


def shaped_decoder_tables(chance):
    """Random positions and token embeddings, leaning so that greedy decoding meets the rules: timestamps every few tokens, later ones later, then eot."""
    vocab = TEXT_TOKENS + len(SPECIAL) + len(TIMESTAMPS)
    stamp, late, stop = np.linalg.qr(chance.standard_normal((D_MODEL, 3)))[0].T
    embeddings = 0.35 * chance.standard_normal((vocab, D_MODEL))
    positions = 1.1 * chance.standard_normal((POSITIONS, D_MODEL))
    first = vocab - len(TIMESTAMPS)
    share = np.arange(len(TIMESTAMPS)) / len(TIMESTAMPS)
    embeddings[first:] += 1.1 * stamp + 2.0 * (share[:, None] - 0.5) * late
    embeddings[TEXT_TOKENS + 1] += 1.6 * stop
    for at in range(POSITIONS):
        positions[at] += (9.0 if at % 6 >= 4 else -4.0) * stamp + 0.5 * (at - 14) * late + max(0.0, 1.2 * (at - 17)) * stop
    return positions, embeddings


def sinusoids(length, channels):
    rates = np.exp(-np.log(10000) / (channels // 2 - 1) * np.arange(channels // 2))
    angles = np.arange(length)[:, None] * rates[None]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def quantise(array):
    """CTranslate2's int8: rows of a matrix (a convolution's rows flattened) scaled to 127."""
    rows = array.reshape(len(array), -1).astype(np.float32)
    greatest = np.max(np.abs(rows), axis=1)
    greatest[greatest == 0] = 127.0
    scale = (127.0 / greatest).astype(np.float32)
    return np.rint(rows * scale[:, None]).astype(np.int8).reshape(array.shape), scale


def write_ct2(path, weights, form):
    """model.bin v6: section 8 of docs/contracts/whisper.md. Weights sorted by name, the projection an alias."""
    variables = {}
    for name, array in weights.items():
        if array.ndim == 0:
            variables[name] = array
        elif form == "int8" and name.endswith("/weight"):
            variables[name], variables[name + "_scale"] = quantise(array)
        else:
            variables[name] = array.astype(np.float16 if form == "f16" else np.float32)
    for name, value in (("activation", 3), ("alibi", 0), ("alibi_use_positive_positions", 0), ("pre_norm", 1), ("scale_alibi", 0),
                        ("scale_embeddings", 0), ("start_from_zero_embedding", 0)):
        variables["decoder/" + name] = np.int8(value)
    variables["decoder/alignment_heads"], variables["decoder/alignment_layer"] = np.int16(1), np.int16(-1)
    kinds = {"float32": 0, "int8": 1, "int16": 2, "float16": 4}

    def string(text):
        return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"

    with open(path, "wb") as file:
        file.write(struct.pack("<I", 6) + string("WhisperSpec") + struct.pack("<II", 3, len(variables)))
        for name, array in sorted(variables.items()):
            array = np.asarray(array)
            file.write(string(name) + struct.pack("<B%dI" % array.ndim, array.ndim, *array.shape))
            file.write(struct.pack("<BI", kinds[array.dtype.name], array.nbytes) + array.tobytes())
        file.write(struct.pack("<I", 1) + string("decoder/projection/weight") + string("decoder/embeddings/weight"))


def configurations(names):
    """(CTranslate2's config, Hugging Face's, its generation config)."""
    index = {token: at for at, token in enumerate(names)}
    never = [1, 2, 7] + [index[token] for token in (
        "<|startoftranscript|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>")]
    begin = [index["\u0120"], index["<|endoftext|>"]]
    languages = {"<|%s|>" % code: index["<|%s|>" % code] for code in LANGUAGES}
    align = [[1, 0], [1, 1]]
    ct2 = {"alignment_heads": align, "lang_ids": sorted(languages.values()), "suppress_ids": never, "suppress_ids_begin": begin}
    shared = {"bos_token_id": index["<|endoftext|>"], "eos_token_id": index["<|endoftext|>"],
              "pad_token_id": index["<|endoftext|>"], "decoder_start_token_id": index["<|startoftranscript|>"],
              "begin_suppress_tokens": begin, "suppress_tokens": never}
    hf = {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "activation_function": "gelu", "d_model": D_MODEL,
          "decoder_attention_heads": HEADS, "decoder_ffn_dim": FFN, "decoder_layers": LAYERS, "encoder_attention_heads": HEADS,
          "encoder_ffn_dim": FFN, "encoder_layers": LAYERS, "num_hidden_layers": LAYERS, "num_mel_bins": MELS,
          "max_source_positions": FRAMES // 2, "max_target_positions": POSITIONS, "vocab_size": len(names), "scale_embedding": False,
          "is_encoder_decoder": True, "torch_dtype": "float32", **shared}
    generation = {**shared, "alignment_heads": align, "is_multilingual": True, "lang_to_id": languages, "max_initial_timestamp_index": 50,
                  "max_length": MAX_LENGTH, "no_timestamps_token_id": index["<|notimestamps|>"],
                  "prev_sot_token_id": index["<|startofprev|>"],
                  "task_to_id": {"transcribe": index["<|transcribe|>"], "translate": index["<|translate|>"]}}
    return ct2, hf, generation


def inputs(seed):
    chance = np.random.default_rng([seed, 1])
    mel = np.clip(0.4 * chance.standard_normal((MELS, FRAMES)) + 0.5 * np.sin(np.arange(FRAMES) / 7)[None], -1, 1.5).astype(np.float32)
    return mel, chance.integers(0, TEXT_TOKENS, 20)


def prompts(ids):
    task = [ids.sot, ids.languages[0], ids.transcribe]
    return {"plain": task, "early": task, "german": [ids.sot, ids.languages[2], ids.transcribe],
            "after_text": [ids.prev, ids.begin, 40, 41, 300, ids.begin + 20] + task,
            "no_timestamps": task + [ids.no_timestamps]}


def write(seed, out):
    tokenizer, names = make_tokenizer()
    tensors = make_weights(seed)
    weights = reference.hf_to_ct2(tensors, LAYERS, LAYERS, HEADS)
    ct2, hf, generation = configurations(names)
    for part in PARTS:
        (out / part).mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "hf" / "model.safetensors", {"format": "pt"})
    tokenizer.save(str(out / "hf" / "tokenizer.json"), pretty=False)
    feature = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": MELS, "sampling_rate": 16000, "hop_length": 160, "n_fft": 400,
               "chunk_length": 1, "padding_value": 0.0}
    for name, value in (("config", hf), ("generation_config", generation), ("preprocessor_config", feature)):
        (out / "hf" / (name + ".json")).write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    for form in ("f32", "f16", "int8"):
        directory = out / ("ct2_" + form)
        write_ct2(directory / "model.bin", weights, form)
        (directory / "config.json").write_text(json.dumps(ct2, sort_keys=True) + "\n")
        (directory / "vocabulary.json").write_text(json.dumps(names) + "\n")
    write_goldens(seed, out, names, ct2)


def write_goldens(seed, out, names, ct2):
    ids = reference.Ids(names, ct2)
    network = reference.Network(reference.from_ct2(out / "ct2_f32" / "model.bin"))
    mel, text = inputs(seed)
    tokens = np.array(prompts(ids)["plain"] + [ids.begin + 3] + list(text), np.int32)
    ports = {}
    memory = network.encode(mel.astype(np.float64), ports)
    ports["encoder_out"] = memory
    ports["logits"] = network.decode(tokens, network.cross(memory), ports)
    ports["language_probs"] = reference.detect_language(network, ids, memory)
    small = reference.Network(reference.from_ct2(out / "ct2_int8" / "model.bin"))
    ports["int8_encoder_out"] = small.encode(mel.astype(np.float64))
    ports["int8_logits"] = small.decode(tokens, small.cross(ports["int8_encoder_out"]))
    arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in ports.items()}
    save_file({"mel": mel, "tokens": tokens, **arrays}, out / "ports.safetensors")
    greedy = {"float": greedy_of(network, ids, memory), "int8": greedy_of(small, ids, ports["int8_encoder_out"])}
    rows = {kind: ",\n".join(' "%s": %s' % (name, json.dumps(value)) for name, value in cases.items()) for kind, cases in greedy.items()}
    (out / "greedy.json").write_text("{\n%s\n}\n" % ",\n".join('"%s": {\n%s\n}' % row for row in rows.items()))
    for name, value in greedy["float"].items():
        print("%-14s %d tokens, margin %.3f: %s" % (name, len(value["tokens"]), value["margin"], value["tokens"]))


def greedy_of(network, ids, memory):
    cases = {}
    for name, prompt in prompts(ids).items():
        first = 5 if name == "early" else 50
        result = reference.generate(network, ids, memory, prompt, MAX_LENGTH, first)
        digits = {key: float("%.10g" % result[key]) for key in ("score", "no_speech_prob", "margin")}
        cases[name] = {"prompt": prompt, "max_initial_timestamp_index": first, "tokens": result["tokens"], **digits}
    return cases


def greatest(a, b):
    return float(np.max(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))))


def check_ct2(out):
    """Greatest differences of CTranslate2 from the stored ports, and whether greedy agrees."""
    import ctranslate2
    ports, greedy = load_file(out / "ports.safetensors"), json.loads((out / "greedy.json").read_text())
    config = json.loads((out / "ct2_f32" / "config.json").read_text())
    mel = ctranslate2.StorageView.from_array(np.ascontiguousarray(ports["mel"][None]))
    for form in ("f32", "f16", "int8"):
        model = ctranslate2.models.Whisper(str(out / ("ct2_" + form)), device="cpu", compute_type="float32", intra_threads=2)
        memory = model.encode(mel)
        prefix = "int8_" if form == "int8" else ""
        print("ctranslate2 %s: encoder_out within %.2g" % (form, greatest(np.array(memory)[0], ports[prefix + "encoder_out"])), end="")
        if form != "int8":
            chances = dict(model.detect_language(memory)[0])
            order = [chances["<|%s|>" % code] for code in LANGUAGES]
            print(", language_probs %.2g" % greatest(order, ports["language_probs"]), end="")
        for name, value in greedy["int8" if form == "int8" else "float"].items():
            got = model.generate(memory, [value["prompt"]], beam_size=1, max_length=MAX_LENGTH, return_scores=True, return_no_speech_prob=True,
                                 suppress_tokens=config["suppress_ids"], suppress_blank=True,
                                 max_initial_timestamp_index=value["max_initial_timestamp_index"])[0]
            same = got.sequences_ids[0] == value["tokens"]
            print(", %s %s" % (name, "same, score %.1g no_speech %.1g" % (
                abs(got.scores[0] - value["score"]), abs(got.no_speech_prob - value["no_speech_prob"])) if same else "OTHER"), end="")
            assert same
        print()


def check_transformers(out):
    try:
        import torch
        from transformers import WhisperForConditionalGeneration
    except ImportError:
        print("transformers: not installed here")
        return
    ports = load_file(out / "ports.safetensors")
    model = WhisperForConditionalGeneration.from_pretrained(str(out / "hf"), attn_implementation="eager").double().eval()
    with torch.no_grad():
        mel, tokens = torch.tensor(ports["mel"][None]).double(), torch.tensor(ports["tokens"][None]).long()
        memory = model.model.encoder(mel).last_hidden_state
        logits = model(encoder_outputs=(memory,), decoder_input_ids=tokens).logits
    print("transformers f64: encoder_out within %.2g, logits within %.2g (stored in f32)" % (
        greatest(memory[0], ports["encoder_out"]), greatest(logits[0], ports["logits"])))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=49)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/golden/whisper_tiny_seeded"))
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if not arguments.check:
        write(arguments.seed, arguments.out)
    for check in (check_ct2, check_transformers):
        try:
            check(arguments.out)
        except ImportError as error:
            print("%s: %s" % (check.__name__, error))


if __name__ == "__main__":
    main()
