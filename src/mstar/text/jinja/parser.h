#pragma once

#include <string_view>

#include "mstar/base/result.h"
#include "mstar/text/jinja/ast.h"

namespace mstar::jinja {

// bad_model, with the line, on what jinja2 refuses and on what is not supported here: extends, include, import, block,
// autoescape and recursive loops. Trees deeper than 200 are refused.
Result<TemplateTree> parse_template(std::string_view source);

}  // namespace mstar::jinja
