// The tokenizer of a GGUF file's metadata.
#pragma once

#include "mstar/base/result.h"
#include "mstar/text/tokenizer.h"
#include "mstar/text/tokenizer_spec.h"

namespace mstar::text {

// bad_model, with the name, for a model or a pre-tokenizer that is not known here, and on arrays of different lengths.
Result<TokenizerSpec> read_gguf_tokenizer(const GgufTokenizer& metadata);

}  // namespace mstar::text
