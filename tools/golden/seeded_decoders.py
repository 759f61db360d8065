#!/usr/bin/env python3
"""Makes tests/golden/decoders: very small language models with random weights, and what transformers computes with them.

    seeded_decoders.py [--seed 7] [--only NAME ...] [--out tests/golden/decoders]

Needs requirements-torch.txt. A directory for each of
  llama         grouped queries, llama3 rope scaling, untied head
  qwen2         bias on q, k, v; tied head
  qwen3         norms on the heads of q and k, a head_dim that is not hidden / heads; untied head
  qwen35        three gated delta nets and a gated attention, two value heads a key head, text_config and names of the model with vision, a vision tensor
                and a layer of multi-token prediction that must be dropped; untied head
  qwen35_tied   the text-only names, a tied head, as many value heads as key heads
with 264 tokens: the bytes, <|endoftext|> 256, <|im_start|> 257, <|im_end|> 258, and five that no text gives. Weights are bf16 numbers, stored so
(A_log and the norm of the delta net in f32, as Qwen stores them).

  config.json, generation_config.json, tokenizer.json, tokenizer_config.json, model.safetensors
  model.gguf       qwen35 alone: the same weights as llama.cpp's converter arranges them
  greedy.json      prompts [{"prompt": ids, "tokens": greedy answer}]
  goldens.safetensors, for prompt i, everything of an f32 run:
      logits.i [steps, vocab]                    of the prompt's last token, then of each token that was fed back
      conv.i.s [delta layers, taps - 1, width]   inputs that the convolutions keep, oldest first, after step s (0: the prompt)
      rule.i.s [delta layers, heads, key_dim, value_dim]
"""
import argparse
import json
import pathlib

import torch
from safetensors.torch import save_file

TEXT_TOKENS, SPECIAL, VOCAB = 256, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], 264
PROMPT_TOKENS, STEPS, STATE_STEPS = [1, 3, 70, 37], 12, [0, 1, 11]
TEMPLATE = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
COMMON = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=80, max_position_embeddings=4096, eos_token_id=258, bos_token_id=256, pad_token_id=None)
ROPE35 = dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25, mrope_interleaved=True, mrope_section=[2, 1, 1])


def families():
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
    from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig
    dense = dict(COMMON, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    llama3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
    hybrid = dict(COMMON, num_attention_heads=4, num_key_value_heads=2, head_dim=32, rope_parameters=ROPE35, linear_num_key_heads=2,
                  linear_key_head_dim=16, linear_value_head_dim=16)
    delta, full = "linear_attention", "full_attention"
    return {
        "llama": (LlamaForCausalLM, LlamaConfig(**dense, tie_word_embeddings=False, rope_parameters=llama3)),
        "qwen2": (Qwen2ForCausalLM, Qwen2Config(**dense, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
        "qwen3": (Qwen3ForCausalLM, Qwen3Config(**dense, head_dim=32, tie_word_embeddings=False,
                                                rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
        "qwen35": (Qwen3_5ForCausalLM, Qwen3_5TextConfig(**hybrid, num_hidden_layers=4, layer_types=[delta, delta, full, delta],
                                                         linear_num_value_heads=4, tie_word_embeddings=False)),
        "qwen35_tied": (Qwen3_5ForCausalLM, Qwen3_5TextConfig(**hybrid, num_hidden_layers=3, layer_types=[delta, full, delta],
                                                              linear_num_value_heads=2, tie_word_embeddings=True)),
    }


def fill(model, generator):
    """Random weights of a size that makes every part matter: logits of a few units, gates and decays all over their range."""
    def normal(shape, spread):
        return torch.randn(shape, generator=generator) * spread
    zero_centred = model.config.model_type == "qwen3_5_text"
    for name, weight in model.named_parameters():
        if name.endswith("A_log"):
            value = torch.rand(weight.shape, generator=generator) * 4 - 3
        elif name.endswith("dt_bias"):
            value = normal(weight.shape, 1.0)
        elif name.endswith("linear_attn.norm.weight") or (not zero_centred and name.endswith("norm.weight")):
            value = 1 + normal(weight.shape, 0.2)
        elif name.endswith("norm.weight"):
            value = normal(weight.shape, 0.2)
        elif name.endswith("conv1d.weight"):
            value = normal(weight.shape, 0.5)
        elif name.endswith("bias"):
            value = normal(weight.shape, 0.5)
        elif name.endswith("embed_tokens.weight"):
            value = normal(weight.shape, 1.0 if not model.config.tie_word_embeddings else 0.3)
        else:
            value = normal(weight.shape, (2.0 if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")) else 1.2) / weight.shape[-1]**0.5)
        weight.data = value.to(torch.bfloat16).to(torch.float32)


def states(cache, layer_types, taps):
    """(conv, rule) of all delta layers; a short prompt's convolution state begins with zeros."""
    layers = [layer for layer, kind in zip(cache.layers, layer_types) if kind == "linear_attention"]
    def only(state):
        return (state[0] if isinstance(state, (list, tuple, dict)) else state)[0].float()
    conv = torch.stack([only(layer.conv_states)[:, -(taps - 1):].T for layer in layers])
    return conv.contiguous(), torch.stack([only(layer.recurrent_states) for layer in layers]).contiguous()


@torch.no_grad()
def run(model, prompts):
    config, goldens, greedy = model.config, {}, []
    layer_types = getattr(config, "layer_types", None) or []
    hybrid = "linear_attention" in layer_types
    for i, prompt in enumerate(prompts):
        ids, cache, tokens, logits = torch.tensor([prompt]), None, [], []
        for step in range(STEPS):
            out = model(input_ids=ids, cache=cache, use_cache=True)
            cache = out.cache
            logits.append(out.logits[0, -1].float())
            best = torch.topk(logits[-1], 2).values
            if best[0] - best[1] < 2e-3:
                return None  # no clear winner
            tokens.append(int(logits[-1].argmax()))
            ids = torch.tensor([[tokens[-1]]])
            if hybrid and step in STATE_STEPS:
                goldens["conv.%d.%d" % (i, step)], goldens["rule.%d.%d" % (i, step)] = states(cache, layer_types, config.linear_conv_kernel_dim)
        goldens["logits.%d" % i] = torch.stack(logits)
        greedy.append({"prompt": prompt, "tokens": tokens})
    return goldens, greedy


def make_tokenizer():
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in SPECIAL])
    return tokenizer, alphabet + SPECIAL


def stored(name, tensor):
    return tensor.float() if name.endswith("A_log") or name.endswith("linear_attn.norm.weight") else tensor.to(torch.bfloat16)


def write_hf(directory, name, model, tokenizer, generator):
    config = json.loads(model.config.to_json_string())
    tied = bool(model.config.tie_word_embeddings)
    tensors = {key: stored(key, value).contiguous() for key, value in model.state_dict().items() if not (tied and key == "lm_head.weight")}
    if name == "qwen35":
        tensors = {key.replace("model.", "model.language_model.", 1) if key.startswith("model.") else key: value for key, value in tensors.items()}
        tensors["model.visual.merger.norm.weight"] = torch.randn(8, generator=generator).to(torch.bfloat16)
        tensors["mtp.layers.0.mlp.down_proj.weight"] = torch.randn((4, 4), generator=generator).to(torch.bfloat16)
        config = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": config, "image_token_id": 260}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, 256]}) + "\n")
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": TEMPLATE}, indent=1) + "\n")
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)


def tiled(tensor, dim, key_heads, per_key, width):
    """Value heads from [key head][which] to [which][key head], as llama.cpp's converter arranges them."""
    shape = list(tensor.shape)
    apart = tensor.reshape(shape[:dim] + [key_heads, per_key, width] + shape[dim + 1:])
    return apart.transpose(dim, dim + 1).reshape(shape)


def gguf_tensor(name, tensor, c):
    """(name in the file, values)."""
    heads = dict(key_heads=c.linear_num_key_heads, per_key=c.linear_num_value_heads // c.linear_num_key_heads)
    keys, value = 2 * c.linear_num_key_heads * c.linear_key_head_dim, c.linear_value_head_dim
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        tensor = tensor + 1
    parts = name.split(".")
    if parts[1] != "layers":
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}[name], tensor
    layer, rest = "blk.%s." % parts[2], ".".join(parts[3:])
    if rest == "linear_attn.in_proj_qkv.weight":
        return layer + "attn_qkv.weight", torch.cat([tensor[:keys], tiled(tensor[keys:], 0, width=value, **heads)])
    if rest == "linear_attn.conv1d.weight":
        flat = tensor.squeeze(1)
        return layer + "ssm_conv1d.weight", torch.cat([flat[:keys], tiled(flat[keys:], 0, width=value, **heads)])
    to, dim, width = {
        "linear_attn.in_proj_z.weight": ("attn_gate.weight", 0, value),
        "linear_attn.in_proj_b.weight": ("ssm_beta.weight", 0, 1),
        "linear_attn.in_proj_a.weight": ("ssm_alpha.weight", 0, 1),
        "linear_attn.A_log": ("ssm_a", 0, 1),
        "linear_attn.dt_bias": ("ssm_dt.bias", 0, 1),
        "linear_attn.norm.weight": ("ssm_norm.weight", None, 0),
        "linear_attn.out_proj.weight": ("ssm_out.weight", 1, value),
        "self_attn.q_proj.weight": ("attn_q.weight", None, 0),
        "self_attn.k_proj.weight": ("attn_k.weight", None, 0),
        "self_attn.v_proj.weight": ("attn_v.weight", None, 0),
        "self_attn.o_proj.weight": ("attn_output.weight", None, 0),
        "self_attn.q_norm.weight": ("attn_q_norm.weight", None, 0),
        "self_attn.k_norm.weight": ("attn_k_norm.weight", None, 0),
        "mlp.gate_proj.weight": ("ffn_gate.weight", None, 0),
        "mlp.up_proj.weight": ("ffn_up.weight", None, 0),
        "mlp.down_proj.weight": ("ffn_down.weight", None, 0),
        "input_layernorm.weight": ("attn_norm.weight", None, 0),
        "post_attention_layernorm.weight": ("post_attention_norm.weight", None, 0),
    }[rest]
    if rest == "linear_attn.A_log":
        tensor = -torch.exp(tensor)
    return layer + to, tensor if dim is None else tiled(tensor, dim, width=width, **heads)


def write_gguf(path, model, vocabulary):
    import gguf
    c = model.config
    writer = gguf.GGUFWriter(path, "qwen35")
    writer.add_name("seeded")
    writer.add_block_count(c.num_hidden_layers + 1)
    writer.add_uint32("qwen35.nextn_predict_layers", 1)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(ROPE35["rope_theta"])
    writer.add_rope_dimension_count(int(c.head_dim * ROPE35["partial_rotary_factor"]))
    writer.add_array("qwen35.rope.dimension_sections", ROPE35["mrope_section"] + [0])
    writer.add_ssm_conv_kernel(c.linear_conv_kernel_dim)
    writer.add_ssm_state_size(c.linear_key_head_dim)
    writer.add_ssm_group_count(c.linear_num_key_heads)
    writer.add_ssm_time_step_rank(c.linear_num_value_heads)
    writer.add_ssm_inner_size(c.linear_num_value_heads * c.linear_value_head_dim)
    writer.add_uint32("qwen35.full_attention_interval", 4)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    tokens = vocabulary + ["[PAD%d]" % i for i in range(len(vocabulary), VOCAB)]
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 5 if token.startswith("[PAD") else 1 for token in tokens])
    writer.add_token_merges([])
    writer.add_eos_token_id(258)
    writer.add_chat_template(TEMPLATE)
    tensors = dict(gguf_tensor(name, tensor.float(), c) for name, tensor in model.state_dict().items())
    further = "blk.%d." % c.num_hidden_layers  # of which only that it is there matters
    tensors[further + "attn_norm.weight"] = tensors["blk.0.attn_norm.weight"]
    tensors[further + "nextn.eh_proj.weight"] = torch.zeros(4, 8)
    for name, tensor in tensors.items():
        tensor = tensor.contiguous()
        if tensor.dim() == 2 and "ssm_" not in name:
            raw = tensor.to(torch.bfloat16).view(torch.uint8).numpy()
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parents[2] / "tests/golden/decoders")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    tokenizer, vocabulary = make_tokenizer()
    for name, (kind, config) in families().items():
        if args.only and name not in args.only:
            continue
        for seed in range(args.seed, args.seed + 100):
            generator = torch.Generator().manual_seed(seed)
            model = kind(config).eval()
            fill(model, generator)
            prompts = [torch.randint(0, TEXT_TOKENS, (count,), generator=generator).tolist() for count in PROMPT_TOKENS]
            made = run(model, prompts)
            if made and len({token for each in made[1] for token in each["tokens"]}) > 20:
                break
        goldens, greedy = made
        directory = args.out / name
        directory.mkdir(parents=True, exist_ok=True)
        write_hf(directory, name, model, tokenizer, generator)
        if name == "qwen35":
            write_gguf(directory / "model.gguf", model, vocabulary)
        save_file({key: value.contiguous() for key, value in goldens.items()}, directory / "goldens.safetensors")
        (directory / "greedy.json").write_text(json.dumps(greedy) + "\n")
        print(name, {key: tuple(value.shape) for key, value in goldens.items() if ".0" in key}, [each["tokens"][:6] for each in greedy])


if __name__ == "__main__":
    main()
