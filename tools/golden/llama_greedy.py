#!/usr/bin/env python3
"""Records what llama.cpp answers greedily: 20 prompts, up to 128 tokens each, with the lead of each token over the next one.

    tools/golden/llama_greedy.py --model SmolLM2-135M-Instruct.Q4_1.gguf [--out tests/golden/smollm2/greedy.json] [--threads 2]

Needs llama-cpp-python (or its Python files and LLAMA_CPP_LIB_PATH, the folder of a libllama.so) and numpy. Prompts are given as
text with special tokens spelt out, so that no chat template takes part; their token ids are recorded too. Each prompt is
computed in one batch, each token after it alone. An answer ends with 128 tokens or an end token, which is its last one.

tools/golden/compare_greedy.py holds a server against the file.
"""
import argparse
import ctypes
import hashlib
import json
import pathlib

MAX_TOKENS = 128
NUM_TOP = 10
TOP_STEPS = (0, 1, 31, 63, 127)  # where the likeliest tokens are recorded with their log-probabilities

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
CHATS = [
    "What is the capital of France, and what is it known for?",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain in simple words how a refrigerator keeps food cold.",
    "Give me a recipe for pancakes with a list of ingredients and numbered steps.",
    "Write a Python function that returns the n-th Fibonacci number, and explain it.",
    "List ten animals that live in the ocean, with one sentence about each.",
    "What are the differences between a democracy and a monarchy?",
    "Describe the water cycle for a ten-year-old child.",
    "Compose a letter to a landlord that asks for a broken heater to be repaired.",
    "Summarise why the Roman Empire fell, in several paragraphs.",
    "How do I train for a five-kilometre run in eight weeks?",
    "Translate into English and comment: \"Le chat est assis sur la table \u00e0 c\u00f4t\u00e9 de la fen\u00eatre.\"",
]
TEXTS = [
    "Once upon a time, in a village between two mountains, there lived",
    "The three laws of thermodynamics state that",
    "def quicksort(items):\n    \"\"\"Sorts a list.\"\"\"\n",
    "Photosynthesis is the way in which plants",
    "1, 1, 2, 3, 5, 8, 13,",
    "In the year 1969, the first people who walked on the Moon",
    "Dear Sir or Madam,\n\nI am writing to",
    "| planet | distance from the Sun | moons |\n| --- | --- | --- |\n| Mercury |",
]


def prompts():
    for text in CHATS:
        yield SYSTEM + "<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n"
    yield from TEXTS


class Llama:
    def __init__(self, path, threads):
        import llama_cpp
        self.c = c = llama_cpp
        c.llama_log_set(QUIET, ctypes.c_void_p(0))
        c.llama_backend_init()
        self.model = c.llama_model_load_from_file(str(path).encode(), c.llama_model_default_params())
        if not self.model:
            raise SystemExit("llama.cpp cannot load %s" % path)
        params = c.llama_context_default_params()
        params.n_ctx = 2048
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = threads
        self.context = c.llama_init_from_model(self.model, params)
        self.vocab = c.llama_model_get_vocab(self.model)
        self.num_vocab = c.llama_vocab_n_tokens(self.vocab)

    def tokenize(self, text):
        data = text.encode()
        out = (self.c.llama_token * (len(data) + 8))()
        count = self.c.llama_tokenize(self.vocab, data, len(data), out, len(out), False, True)
        return list(out[:count])

    def piece(self, token):
        out = ctypes.create_string_buffer(256)
        count = self.c.llama_token_to_piece(self.vocab, token, out, 256, 0, False)
        return out.raw[:count]

    def is_end(self, token):
        return self.c.llama_vocab_is_eog(self.vocab, token)

    def forget(self):
        self.c.llama_memory_clear(self.c.llama_get_memory(self.context), True)

    def logits(self, tokens):
        """Appends the tokens; the logits after the last one."""
        import numpy
        array = (self.c.llama_token * len(tokens))(*tokens)
        if self.c.llama_decode(self.context, self.c.llama_batch_get_one(array, len(tokens))) != 0:
            raise SystemExit("llama_decode failed")
        pointer = self.c.llama_get_logits_ith(self.context, -1)
        return numpy.ctypeslib.as_array(pointer, shape=(self.num_vocab,)).astype("float64")


def greedy(llama, text):
    import numpy
    ids = llama.tokenize(text)
    llama.forget()
    out = {"prompt": text, "prompt_ids": ids, "tokens": [], "margins": [], "ends": [], "top": {}, "finish": "length"}
    data, feed = b"", ids
    for step in range(MAX_TOKENS):
        logits = llama.logits(feed)
        order = numpy.argsort(-logits, kind="stable")[:NUM_TOP]
        token = int(order[0])
        out["tokens"].append(token)
        out["margins"].append(round(float(logits[order[0]] - logits[order[1]]), 3))
        if step in TOP_STEPS:
            largest = logits.max()
            total = largest + numpy.log(numpy.exp(logits - largest).sum())
            out["top"][str(step)] = [[int(i), round(float(logits[i] - total), 4)] for i in order]
        data += b"" if llama.is_end(token) else llama.piece(token)
        out["ends"].append(len(data.decode("utf-8", "ignore")))  # characters of the text so far
        if llama.is_end(token):
            out["finish"] = "stop"
            break
        feed = [token]
    out["text"] = data.decode("utf-8", "replace")
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2] / "tests/golden/smollm2/greedy.json")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    import llama_cpp
    llama = Llama(arguments.model, arguments.threads)
    runs = [greedy(llama, text) for text in prompts()]
    head = {"made_with": "llama-cpp-python " + llama_cpp.__version__, "model": arguments.model.name,
            "model_sha256": hashlib.sha256(arguments.model.read_bytes()).hexdigest()}
    lines = [json.dumps(run, ensure_ascii=True, separators=(",", ":")) for run in runs]
    body = json.dumps(head, indent=0)[:-2] + ',\n"runs": [\n' + ",\n".join(lines) + "\n]\n}\n"
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(body)
    margins = sorted(m for run in runs for m in run["margins"])
    print("%d runs, %d tokens, %d bytes; margins: least %.3f, 1 %% %.3f, median %.3f" % (
        len(runs), len(margins), len(body), margins[0], margins[len(margins) // 100], margins[len(margins) // 2]))


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def QUIET(level, text, data):
    pass


if __name__ == "__main__":
    main()
