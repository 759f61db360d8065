// BERT's clean-up of texts. Thread: any; pure functions. `text` must be valid UTF-8.
#pragma once

#include <string>
#include <string_view>

#include "mstar/text/tokenizer_spec.h"

namespace mstar::text {

// The steps of `spec` (kind bert): control characters go and white space becomes a space, spaces round Chinese
// characters, accents go, lower case.
std::string bert_normal(const NormalStepSpec& spec, std::string_view text);
// Without nonspacing marks. What is composed stays so.
std::string strip_accents(std::string_view text);

}  // namespace mstar::text
