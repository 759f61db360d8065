// jinja2's filters, and transformers' tojson. Null for a name that is not here.
#pragma once

#include <string_view>

#include "mstar/text/jinja/renderer.h"

namespace mstar::jinja {

using Filter = Result<Value> (*)(Renderer&, const Value&, const Arguments&);

Filter find_text_filter(std::string_view name);
Filter find_list_filter(std::string_view name);
bool is_test_name(std::string_view name);

}  // namespace mstar::jinja
