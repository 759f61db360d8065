// Whisper: speech to text in 30 s windows. Radford et al. 2022, arXiv 2212.04356; reference class
// transformers.WhisperForConditionalGeneration, greedy decoding as faster-whisper's.
#pragma once

#include "mstar/models/model.h"

namespace mstar::models {

bool whisper_recognises(const ModelSource& source);

// With load_format dummy: from config.json alone, and without a tokenizer a dummy one too.
Result<std::vector<weights::DummyWeight>> whisper_dummy_weights(const ModelSource& source);
// Options: `weights` (f32, f16, bf16, i8, or "stored", the default): how matrices are kept; i8 computes in i8. On CUDA
// f32 or bf16, which "stored" means there for all but f32. Files beside the weights: config.json, tokenizer.json.
Result<decl::Decl> declare_whisper(const ModelSource& source);

}  // namespace mstar::models
