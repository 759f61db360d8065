#!/usr/bin/env python3
"""Writes tests/golden/text/: small tokenizers, and what the Hugging Face `tokenizers` package answers for many texts.

  pip install tokenizers==0.23.3
  tools/golden/tokenizer_golden.py --weights DIR

DIR holds whisper-tiny.en/tokenizer.json and whisper-base/tokenizer.json. Those are not committed: the C++ test compares
them where they are found. The rest always runs: two small trained tokenizers, and the first of them again under the
normalisers and pre-tokenizers of published models (`VARIANTS`, as RFC 7396 merge patches). --dump DIR also writes each
patched tokenizer.json there, for differential fuzzing.
"""
import argparse
import copy
import json
import pathlib
import random
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "golden" / "text"
SEED = 20250101
MAX_BYTES = 1_000_000

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK_WORDS = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                  r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CLIP = (r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")

BYTES_ONLY = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def steps(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts) + [BYTES_ONLY]}


def added(content, token_id, **flags):
    token = {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": False}
    token.update(flags)
    return token


FLAGS = [added("<|end|>", 512, special=True), added("<|start|>", 513, special=True),
         added("<think>", 514), added("<mask>", 515, lstrip=True, special=True), added("<tail>", 516, rstrip=True),
         added("word", 517, single_word=True, normalized=True), added("Straße", 518, normalized=True),
         added("<both>", 519, lstrip=True, rstrip=True), added("<|end|>er", 520), added(" ", 521, normalized=True),
         added("\n", 522)]

VARIANTS = {
    "llama3": {"pre_tokenizer": steps(split(LLAMA3)), "model": {"ignore_merges": True}},
    "qwen2": {"normalizer": {"type": "NFC"}, "pre_tokenizer": steps(split(QWEN2))},
    "qwen35": {"normalizer": {"type": "NFC"}, "pre_tokenizer": steps(split(QWEN35))},
    "o200k": {"pre_tokenizer": steps(split(O200K))},
    "deepseek": {"normalizer": {"type": "Sequence", "normalizers": []},
                 "pre_tokenizer": steps(split(r"\p{N}{1,3}"), split(r"[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK_WORDS))},
    "digits": {"normalizer": {"type": "NFKC"},
               "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                   {"type": "Digits", "individual_digits": True},
                   {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}]}},
    "flags": {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "NFD"}, {"type": "Lowercase"}, {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}]},
        "added_tokens": FLAGS},
    "flags_raw": {"added_tokens": FLAGS},
    "merged_with_next": {"pre_tokenizer": steps(split("a", "MergedWithNext", kind="String"), split(r"^\w|\w$"))},
    "merged_with_previous": {"pre_tokenizer": steps(split(r"\s", "MergedWithPrevious"), split(r"\W+", "Contiguous"))},
    "removed": {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "NFKD"}, {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Prepend", "prepend": "·"}]},
        "pre_tokenizer": steps(split(r"[\p{Latin}\p{Han}\d]+", "Removed", invert=True), split(r"e*", "Contiguous"))},
}

CORPUS = """the quick brown fox jumps over the lazy dog and the rest of them don't mind it, they'll say that we've seen it.
In the beginning was the word, and the word was with the others; what is it that he said to her then?
She had been there for a long time, and nobody could remember when it was that she came to the house.
def main(args): return [x for x in args if x != 0]; for (int i = 0; i < 10; ++i) { sum += values[i]; }
Der schnelle braune Fuchs springt über den faulen Hund. Le renard brun saute par-dessus le chien paresseux.
Быстрая коричневая лиса прыгает через ленивую собаку. 快速的棕色狐狸跳过懒狗。 いろはにほへと 안녕하세요 세계
1234567890 3.14159 2024-01-01 10:30 100% $5.00 http://www.example.com/path?query=value&other=1
""".splitlines()

WORDS = """the of and in't don't we'll I'm you're it's can't they've HE'S O'Neil naïve Straße STRASSE Привет мир 你好 世界 こんにちは
안녕하세요 مرحبا שלום नमस्ते สวัสดี 👨‍👩‍👧‍👦 🇩🇪 🏳️‍🌈 é é ﬁ ſ 'ſ 'S 'LL İstanbul ß 123 4567 3.14 1,000,000 ½ Ⅷ ٣٤ 12abc word words
<think> <mask> <tail> <both> <|end|> <|end|>er <|start|> <|endoftext|> <|startoftranscript|> <|0.00|> #include <vector>
int main(){return 0;} def f(x): -> => :: && \\n ''' \"\"\" ... --- ___""".split()
SPACES = " \t\n\r\u000b\u000c\u0085\u00a0\u1680\u180e\u2000\u200a\u200b\u2028\u202f\u205f\u3000\ufeff\u001c"


def make_texts(rnd):
    """Texts of characters that Unicode 14 knew: later ones depend on the Unicode version of the regex library.

    The package normalises by Unicode 9: drop a text whose normalised ids differ because of a later combining mark.
    """
    by_class = {}
    for code in range(1, 0x110000):
        category = unicodedata.category(chr(code))
        if category not in ("Cn", "Cs"):
            by_class.setdefault(category[0], []).append(chr(code))
    texts = ["", " ", "a", "  ", "\n", "Hello, world!", " Hello world", "hello  world   ", "a" * 300, " " * 70 + "x",
             "And so my fellow Americans, ask not what your country can do for you.", "I'M HERE, don't YOU'LL see'S",
             "<|startoftranscript|><|en|><|transcribe|><|notimestamps|> hi<|endoftext|>", "x<|0.00|>y<|1.50|>", "\u0000nul",
             "<mask>  <mask> x <mask>", "a <tail>\n b <both> c", "word words sword word.", "Straße STRASSE straße", "e*"]
    texts += CORPUS
    for _ in range(26):
        texts.append("".join(rnd.choice(by_class[rnd.choice("LNPSZMC")]) for _ in range(rnd.randint(1, 16))))
        texts.append("".join(rnd.choice(WORDS) + rnd.choice(["", " ", "  ", "\n", "\t", "\r\n"])
                             for _ in range(rnd.randint(1, 9))))
    for _ in range(14):
        texts.append("".join(rnd.choice(SPACES) if rnd.random() < .6 else rnd.choice("a1.'") for _ in range(rnd.randint(1, 20))))
        texts.append(bytes(rnd.randrange(256) for _ in range(rnd.randint(1, 24))).decode("utf-8", "replace"))
    return texts


def train_small():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS * 4, trainers.BpeTrainer(
        vocab_size=512, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.add_special_tokens(["<|end|>", "<|start|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|start|> $A <|end|>", special_tokens=[("<|start|>", tokenizer.token_to_id("<|start|>")),
                                                      ("<|end|>", tokenizer.token_to_id("<|end|>"))])
    return tokenizer


def train_suffix():
    """As CLIP's, with an end-of-word suffix; bytes that the corpus lacks become the unknown token."""
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(CLIP), "removed", invert=True), pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=400, show_progress=False, end_of_word_suffix="</w>", special_tokens=["<unk>"]))
    tokenizer.post_processor = processors.RobertaProcessing(("<unk>", 0), ("a", tokenizer.token_to_id("a")))
    return tokenizer


def merge_patch(target, patch):
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    out = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merge_patch(out.get(key), value)
    return out


def answers(tokenizer, texts, rnd):
    """For each text its ids as plain text, and as [ids] again where special tokens count or are added."""
    plain, parsed = [], []
    for text in texts:
        tokenizer.encode_special_tokens = True
        plain.append(tokenizer.encode(text, add_special_tokens=False).ids)
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        parsed.append(ids if ids != plain[-1] else None)
    size = tokenizer.get_vocab_size()
    decoded = []
    for _ in range(24):
        ids = [rnd.randrange(size + 3) if rnd.random() < .5 else rnd.randrange(260) for _ in range(rnd.randint(1, 12))]
        decoded.append([ids, tokenizer.decode(ids, skip_special_tokens=False), tokenizer.decode(ids)])
    return {"plain": plain, "parsed": parsed, "decoded": decoded, "templated": tokenizer.encode("a b").ids,
            "vocab_size": size}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=pathlib.Path, required=True)
    parser.add_argument("--dump", type=pathlib.Path)
    args = parser.parse_args()
    rnd = random.Random(SEED)
    texts = make_texts(rnd)
    OUT.mkdir(parents=True, exist_ok=True)
    cases = {"made_with": f"tokenizers {tokenizers.__version__}", "texts": texts, "tokenizers": {}}

    def add(name, tokenizer_json, **fields):
        tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json))
        for token in tokenizer_json.get("added_tokens", []):
            assert tokenizer.token_to_id(token["content"]) == token["id"], (name, token)
        cases["tokenizers"][name] = {**fields, **answers(tokenizer, texts, rnd)}
        if args.dump:
            args.dump.mkdir(parents=True, exist_ok=True)
            (args.dump / f"{name}.json").write_text(json.dumps(tokenizer_json))

    for name, train in (("small", train_small), ("suffix", train_suffix)):
        path = OUT / f"{name}_tokenizer.json"
        # Training breaks ties differently from run to run, so what is committed stays until it is deleted.
        if not path.exists():
            body = json.loads(train().to_str())
            path.write_text(json.dumps(body, ensure_ascii=False, separators=(",", ":")) + "\n")
        body = json.loads(path.read_text())
        print(f"{path.name}: {path.stat().st_size} bytes")
        add(name, body, file=path.name)
        if name == "small":
            for variant, patch in VARIANTS.items():
                add(variant, merge_patch(body, patch), file=path.name, patch=patch)
    for name in ("whisper-tiny.en", "whisper-base"):
        add(name, json.loads((args.weights / name / "tokenizer.json").read_text()), weights=name)

    path = OUT / "tokenizer_cases.json"
    path.write_text(json.dumps(cases, ensure_ascii=True, separators=(",", ":")) + "\n")
    size = path.stat().st_size
    assert size <= MAX_BYTES, size
    print(f"{path.name}: {size} bytes, {len(texts)} texts, {len(cases['tokenizers'])} tokenizers")


if __name__ == "__main__":
    main()
