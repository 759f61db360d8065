"""A tokenizer whose texts tell the ids, for models of random weights."""
import json


def write_tokenizer(directory, vocab):
    """Id i reads " t<i>", so that a client can tell ids from texts."""
    pieces = [["<unk>", 0.0]] + [["\u2581t%d" % i, -1.0] for i in range(1, vocab)]
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never", "split": False}
    (directory / "tokenizer.json").write_text(json.dumps(
        {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": space, "post_processor": None, "decoder": space,
         "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False}}, ensure_ascii=False))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0]['content'] }}"}))


def ids_of(text):
    return [int(piece) for piece in text.split(" t") if piece]
