// GET /debug/workers, POST /debug/workers/{rank}/drain, /remove and /resume: ranks out of service and back.
#pragma once

#include <string_view>

#include "mstar/conductor/frontend.h"
#include "mstar/server/endpoints.h"

namespace mstar::server {

// {"workers":[{"rank","state","live_requests","models":[{"model","components"}],"reason"}]}; a reason only of failed
// ones.
Reply list_workers(const Frontend& frontend);
// `rest` is the path after "/debug/workers/". The answer is the worker as in the list. 400 when the rank is no number,
// 404 when there is none of it, or no such order.
Reply order_worker(std::string_view rest, Frontend& frontend);

}  // namespace mstar::server
