// Qwen3.5 language models, dense sizes: text in, text out.
#pragma once

#include "mstar/models/model.h"

namespace mstar::models {

bool qwen35_recognises(const ModelSource& source);
// With load_format dummy: from config.json alone, and without a tokenizer a dummy one too.
Result<std::vector<weights::DummyWeight>> qwen35_dummy_weights(const ModelSource& source);
// Options: load_format (auto, dummy), weights (stored, f32, f16, bf16, i8), context_tokens (default: the model's own,
// 8192 at most), kv_tokens (places for keys and values of all requests together; default: the worst case),
// prefix_cache (true), state (f32, bf16: how the delta rule's state is kept), state_snapshots (copies of a request's
// state that the prefix cache keeps; default: what 512 MiB hold, on CUDA 1 GiB, and 64 at most; 0: no prefix cache),
// snapshot_tokens (the grid on which they are taken, a multiple of 16; default: 256, on CUDA 2048).
Result<decl::Decl> declare_qwen35(const ModelSource& source);

}  // namespace mstar::models
