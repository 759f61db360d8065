#pragma once

#include <string>
#include <string_view>

#include "mstar/base/result.h"

namespace mstar::jinja {

// Appends what stands between a literal's quotes, read as Python's unicode-escape codec reads it. bad_model with `line`
// for an escape that is cut short or is no character.
Status append_unescaped(std::string_view in, int line, std::string& out);

}  // namespace mstar::jinja
