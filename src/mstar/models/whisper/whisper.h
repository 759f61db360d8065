// Whisper: speech to text in 30 s windows. Radford et al. 2022, arXiv 2212.04356; reference class
// transformers.WhisperForConditionalGeneration, greedy decoding as faster-whisper's.
#pragma once

#include "mstar/models/model.h"

namespace mstar::models {

bool whisper_recognises(const ModelSource& source);

// Options: `weights` (f32, f16, bf16, i8, or "stored", the default): how matrices are kept; i8 computes in i8.
// Files beside the weights: config.json, tokenizer.json.
Result<decl::Decl> declare_whisper(const ModelSource& source);

}  // namespace mstar::models
