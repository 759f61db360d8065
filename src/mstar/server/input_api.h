// POST /generate/{request_id}/inputs/{port}: more of an input while its request runs.
#pragma once

#include <string_view>

#include "mstar/base/result.h"
#include "mstar/server/endpoints.h"
#include "mstar/server/form.h"
#include "mstar/server/request_head.h"
#include "mstar/server/server_core.h"

namespace mstar::server {

// `rest` is the path after "/generate/", `body` the request's only upload. The body is a JSON array of numbers, nested
// or not (Content-Type: application/json), or else the port's elements as they are. Query: done=1 ends the input.
Reply push_input(const RequestHead& head, std::string_view rest, const Form& body, ServerCore& core);

}  // namespace mstar::server
