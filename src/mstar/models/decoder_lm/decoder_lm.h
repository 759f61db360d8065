// Dense decoder language models: Llama, Qwen2, Qwen3.
#pragma once

#include "mstar/models/model.h"

namespace mstar::models {

bool decoder_lm_recognises(const ModelSource& source);
// With load_format dummy: from config.json alone, and without a tokenizer a dummy one too.
Result<std::vector<weights::DummyWeight>> decoder_lm_dummy_weights(const ModelSource& source);
// Options: load_format (auto, dummy), weights (stored, f32, f16, bf16, i8), context_tokens (default: the model's own,
// 8192 at most), kv_tokens (places for keys and values of all requests together; default: the worst case),
// prefix_cache (true).
Result<decl::Decl> declare_decoder_lm(const ModelSource& source);

}  // namespace mstar::models
