#!/usr/bin/env python3
"""Trains small tokenizers of every kind but byte-level BPE (tokenizer_golden.py has that) and asks `tokenizers` and
`sentencepiece` about random texts.

  pip install tokenizers==0.23.3 sentencepiece==0.2.3
  tools/golden/tokenizer_fuzz.py --write          # tests/golden/text/piece_cases.json and the tokenizers that it names
  cmake --build build/dev --target tokenizer_check
  tools/golden/tokenizer_fuzz.py --check build/dev/src/mstar/text/tokenizer_check --seed 1 --count 500
"""
import argparse
import io
import json
import pathlib
import random
import subprocess
import sys
import unicodedata

import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import tokenizer_golden as base

OUT = base.OUT
PIECES = ["<s>", "</s>", "<unk>", "▁", "▁the", "<0x0A>", "\u0000", "don't", "[CLS]", "[MASK]", "##ing", " ", "  ", "\u3000", "\ufeff",
          "①", "ﬁ", "Å", "½", "㌔", "ｱ", "️", "\u200d"]


def llama_like(**options):
    """SentencePiece BPE as transformers converts it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=options.get("bytes", True)))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    if options.get("metaspace"):
        tokenizer.normalizer = None
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", options["metaspace"], options.get("split", False))
    special = ["<unk>", "<s>", "</s>"]
    if options.get("bytes", True):
        special += [f"<0x{b:02X}>" for b in range(256)]
    tokenizer.train_from_iterator(base.CORPUS * 3, trainers.BpeTrainer(vocab_size=700, show_progress=False,
                                                                       special_tokens=special, limit_alphabet=90))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    if options.get("metaspace"):
        tokenizer.decoder = decoders.Metaspace("▁", options["metaspace"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    body = json.loads(tokenizer.to_str())
    body["added_tokens"] = [t for t in body["added_tokens"] if not t["content"].startswith("<0x")]
    return body


def unigram(scheme):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme)
    tokenizer.train_from_iterator(base.CORPUS * 3, trainers.UnigramTrainer(
        vocab_size=400, show_progress=False, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace("▁", scheme)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))])
    return json.loads(tokenizer.to_str())


def word_piece(**options):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=options.get("most", 100)))
    tokenizer.normalizer = normalizers.BertNormalizer(**options.get("normal", {}))
    tokenizer.pre_tokenizer = options.get("split", pre_tokenizers.BertPreTokenizer())
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(base.CORPUS * 3, trainers.WordPieceTrainer(vocab_size=500, show_progress=False,
                                                                             special_tokens=special))
    tokenizer.decoder = decoders.WordPiece("##", options.get("cleanup", True))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return json.loads(tokenizer.to_str())


JSON_KINDS = {
    "llama": llama_like,
    "metaspace_first": lambda: llama_like(metaspace="first"),
    "metaspace_split": lambda: llama_like(metaspace="always", split=True, bytes=False),
    "metaspace_never": lambda: llama_like(metaspace="never"),
    "unigram": lambda: unigram("always"),
    "unigram_first": lambda: unigram("first"),
    "bert": word_piece,
    "bert_cased": lambda: word_piece(normal={"lowercase": False, "strip_accents": True}, cleanup=False, most=7,
                                     split=pre_tokenizers.Whitespace()),
}


def sentence_piece(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(base.CORPUS * 3), model_writer=model, character_coverage=.98,
        num_threads=1, minloglevel=3, hard_vocab_limit=False, **options)
    return model.getvalue()


PIECE_KINDS = {
    "sp_bpe": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
               "remove_extra_whitespaces": False, "vocab_size": 600},
    "sp_bpe_nfkc": {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc"},
    "sp_unigram": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf"},
    "sp_unigram_bytes": {"model_type": "unigram", "byte_fallback": True, "normalization_rule_name": "identity",
                         "add_dummy_prefix": False, "vocab_size": 560},
}


def fuzz_texts(rnd, count):
    words = base.WORDS + PIECES + base.CORPUS
    out = []
    for _ in range(count):
        kind = rnd.random()
        if kind < .6:
            out.append("".join(rnd.choice(words) + rnd.choice(["", " ", " ", "  ", "\n", "\t"])
                               for _ in range(rnd.randint(1, 8))))
        elif kind < .8:
            out.append("".join(rnd.choice("aabcdehiнет的 ▁.,'\n") for _ in range(rnd.randint(1, 30))))
        else:
            out.append("".join(chr(rnd.choice([rnd.randrange(32, 0x250), rnd.randrange(0x370, 0x600), rnd.randrange(0x3040, 0x9fa5),
                                               rnd.randrange(0xac00, 0xd7a0), rnd.randrange(0x1f300, 0x1f640)]))
                               for _ in range(rnd.randint(1, 12))))
    return out


class HuggingFace:
    def __init__(self, body):
        self.tokenizer = Tokenizer.from_str(json.dumps(body))
        self.size = self.tokenizer.get_vocab_size()
        self.bytes = {i for t, i in self.tokenizer.get_vocab().items() if t.startswith("<0x")}
        self.unsafe = set(self.bytes)

    def encode(self, text, special):
        self.tokenizer.encode_special_tokens = not special
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids, skip):
        return self.tokenizer.decode(ids, skip_special_tokens=skip)

    def templated(self):
        self.tokenizer.encode_special_tokens = False
        return self.tokenizer.encode("a b").ids


class SentencePiece:
    def __init__(self, model):
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        p = self.processor
        self.size = p.get_piece_size()
        self.unsafe = {i for i in range(self.size) if p.is_byte(i) or p.is_control(i) or p.is_unknown(i)}

    def encode(self, text, special):
        return self.processor.encode(text)

    def decode(self, ids, skip):
        return self.processor.decode(ids)

    def templated(self):
        return self.processor.encode("a b", add_bos=True)


def random_ids(rnd, oracle):
    """Ids whose text does not depend on how ill-formed UTF-8 is shown."""
    ids = [rnd.randrange(oracle.size) for _ in range(rnd.randint(1, 10))]
    return [i for i in ids if i not in oracle.unsafe] or [oracle.size - 1]


def oracles(directory):
    """name -> (request that opens it, oracle); files that are not there yet are made."""
    out = {}
    for name, make in JSON_KINDS.items():
        path = directory / f"{name}_tokenizer.json"
        if not path.exists():
            path.write_text(json.dumps(make(), ensure_ascii=False, separators=(",", ":")) + "\n")
        out[name] = ({"json": str(path)}, HuggingFace(json.loads(path.read_text())))
    for name, options in PIECE_KINDS.items():
        path = directory / f"{name}.model"
        if not path.exists():
            path.write_bytes(sentence_piece(**{"vocab_size": 420, **options}))
        out[name] = ({"sentencepiece": str(path)}, SentencePiece(path.read_bytes()))
    return out


def write(rnd):
    # The packages differ in their Unicode versions: characters of version 3.2 mean the same to all.
    texts = [t for t in base.make_texts(rnd) if all(unicodedata.ucd_3_2_0.category(c) != "Cn" for c in t)][:80]
    texts += fuzz_texts(rnd, 60)
    cases = {"made_with": f"tokenizers {tokenizers.__version__}, sentencepiece {sentencepiece.__version__}", "texts": texts,
             "tokenizers": {}}
    for name, (request, oracle) in oracles(OUT).items():
        plain = [oracle.encode(t, False) for t in texts]
        parsed = [oracle.encode(t, True) for t in texts]
        # Where the package lets a text spell a special token, ours differs on purpose.
        spelt = [name.startswith("unigram") and any(s in t for s in ("<unk>", "</s>", "<pad>")) for t in texts]
        decoded = []
        for ids in [random_ids(rnd, oracle) for _ in range(24)] + [p for p in plain if not set(p) & oracle.unsafe][:40]:
            decoded.append([ids, oracle.decode(ids, False), oracle.decode(ids, True)])
        cases["tokenizers"][name] = {
            "sentencepiece" if "sentencepiece" in request else "file": pathlib.Path(list(request.values())[0]).name,
            "vocab_size": oracle.size, "templated": oracle.templated(),
            "plain": [None if s else p for s, p in zip(spelt, plain)],
            "parsed": [q if q != p else None for p, q in zip(plain, parsed)], "decoded": decoded}
    path = OUT / "piece_cases.json"
    path.write_text(json.dumps(cases, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(f"{path.name}: {path.stat().st_size} bytes, {len(texts)} texts, {len(cases['tokenizers'])} tokenizers")


def check(args, rnd):
    requests, expected = [], []

    def ask(request, answer):
        requests.append(json.dumps(request))
        expected.append(answer)

    for name, (request, oracle) in oracles(OUT).items():
        ask(request, (name, None))
        for text in fuzz_texts(rnd, args.count):
            if name.startswith("unigram") and any(s in text for s in ("<unk>", "</s>", "<pad>")):
                continue
            if "\0" in text and "sentencepiece" in request:
                continue
            for special in (False, True) if "json" in request else (False,):
                ask({"text": text, "special": special}, (name, {"ids": oracle.encode(text, special)}))
        for _ in range(args.count // 4):
            ids = random_ids(rnd, oracle)
            text = oracle.decode(ids, False)
            ask({"ids": ids}, (name, {"text": text, "streamed": text, "skipped": oracle.decode(ids, True)}))
    done = subprocess.run([args.check], input="\n".join(requests) + "\n", capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if len(lines) != len(requests):
        print("ours ended early", done.returncode, done.stderr[-500:])
        sys.exit(1)
    wrong = {}
    for request, (name, answer), line in zip(requests, expected, lines):
        ours = json.loads(line)
        if (answer is None and "error" not in ours) or (answer is not None and answer == ours):
            continue
        wrong[name] = wrong.get(name, 0) + 1
        if wrong[name] <= args.show:
            print(f"{name}: {request[:300]}\n  theirs: {json.dumps(answer)[:400]}\n  ours:   {json.dumps(ours)[:400]}")
    print(f"{len(requests)} requests, differ: {wrong or 0}")
    sys.exit(bool(wrong))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--show", type=int, default=4)
    args = parser.parse_args()
    rnd = random.Random(args.seed)
    if args.write:
        write(rnd)
    if args.check:
        check(args, rnd)


if __name__ == "__main__":
    main()
