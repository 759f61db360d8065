// POST /v1/completions.
#pragma once

#include <string_view>

#include "mstar/base/result.h"
#include "mstar/conductor/frontend.h"
#include "mstar/server/answer.h"

namespace mstar::server {

// `body` is JSON text from outside. The answer's id is "cmpl-" and `request_id`; `frontend` says the text of token ids
// that are to be echoed. Each prompt is a request. Errors: invalid_request with the field at fault.
Result<Call> make_completions(std::string_view body, const Frontend& frontend, std::string_view request_id);

}  // namespace mstar::server
