// What a token adds to a decoded text. Thread: any; a pure function.
#pragma once

#include <string>
#include <string_view>

#include "mstar/text/tokenizer_spec.h"

namespace mstar::text {

// The bytes of `token`, which need not be whole characters. `is_first`: nothing of the text comes before.
std::string decoded_token(const DecoderSpec& spec, std::string_view token, bool is_first);

}  // namespace mstar::text
