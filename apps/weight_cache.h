// Where `./dev weights` puts model weights, and the model that is taken when none is named.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "mstar/base/result.h"

namespace mstar::apps {

// ${XDG_CACHE_HOME:-~/.cache}/mstar/weights; empty when neither variable is set.
std::filesystem::path weight_cache();

// What `--model NAME` means: an existing path as it is, else the cached weights of that name, else NAME unchanged (a
// family without weights, or an error that open_model words).
std::string find_model(const std::string& name);

// The first of whisper-base and whisper-tiny.en in the cache. bad_model says how to get one.
Result<std::string> default_speech_model();
// That one and smollm2-135m, as far as they are there. bad_model when none is.
Result<std::vector<std::string>> default_models();

}  // namespace mstar::apps
