// What a Whisper checkpoint would hold, for option load_format: dummy.
#pragma once

#include "mstar/models/model.h"
#include "mstar/text/tokenizer.h"

namespace mstar::models {

// A tokenizer of `vocab` ids whose special tokens lie as Whisper's do: 51864 is an English-only one, 51865 has 99
// languages, 51866 100; smaller ones have two, of which the first is en. bad_model where there is no room for them.
Result<Tokenizer> whisper_dummy_tokenizer(int vocab);

}  // namespace mstar::models
