// What each route answers, free of sockets.
#pragma once

#include <string>

#include "mstar/base/result.h"
#include "mstar/conductor/frontend.h"
#include "mstar/server/answer.h"
#include "mstar/server/form.h"
#include "mstar/server/metrics.h"
#include "mstar/server/routes.h"

namespace mstar::server {

struct Reply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  int retry_after_s = 0;
};
bool is_call(Endpoint endpoint);  // goes to the runtime; else answer_at_once() serves it

// The GET routes, and those that read a body but no model. An unknown model is 404.
Reply answer_at_once(const RouteMatch& match, const Form& form, const Frontend& frontend, const Metrics& metrics);
std::size_t num_choices(const Call& call);  // of all of its requests
// Whether a long body keeps the thread that answers it: texts become tokens, JSON a tree.
bool is_work(Endpoint endpoint);
// The POST routes: requests for the runtime. `request_id` may be replaced by one that the form names.
Result<Call> make_call(Endpoint endpoint, Form form, const Frontend& frontend, std::string& request_id);

}  // namespace mstar::server
