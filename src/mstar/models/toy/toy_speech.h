// toy-speech: a language model that speaks as it writes. No checkpoint; seeded weights.
#pragma once

#include "mstar/models/model.h"

namespace mstar::models {

// Fields: text (64 letters at most), max_tokens 1..256 (64), ignore_eos, stop (letters that end it, beside the full
// stop), temperature, top_k, top_p, seed. Outputs, as output_modalities asks: text, one letter a token, and audio, 80
// samples a token, PCM16 at 16 kHz.
Result<decl::Decl> declare_toy_speech(const ModelSource& source);

}  // namespace mstar::models
