// POST /v1/chat/completions.
#pragma once

#include <string_view>

#include "mstar/base/result.h"
#include "mstar/server/answer.h"

namespace mstar::server {

// `body` is JSON text from outside. The answer's id is "chatcmpl-" and `request_id`. Errors: invalid_request with the
// field at fault.
Result<Call> make_chat(std::string_view body, std::string_view request_id);

}  // namespace mstar::server
