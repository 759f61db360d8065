// Reads a Hugging Face tokenizer.json.
#pragma once

#include <string_view>

#include "mstar/base/result.h"
#include "mstar/text/tokenizer_spec.h"

namespace mstar::text {

// bad_model with the path of the field at fault, on malformed JSON and on everything that the tokenizers here do not
// do. `truncation` and `padding` are left out: callers cut and pad. Cost: about 100 MB/s.
Result<TokenizerSpec> read_tokenizer_json(std::string_view json);

}  // namespace mstar::text
