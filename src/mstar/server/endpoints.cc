#include "mstar/server/endpoints.h"

#include <algorithm>

#include "mstar/server/chat_api.h"
#include "mstar/server/completions_api.h"
#include "mstar/server/generate_api.h"
#include "mstar/server/json_text.h"
#include "mstar/server/tokenize_api.h"
#include "mstar/server/transcription_api.h"
#include "mstar/server/workers_api.h"

namespace mstar::server {
namespace {

void append_model(std::string& out, std::string_view id, const ServedModel& model) {
  out += "{\"id\":";
  append_json_string(out, id);
  out += ",\"object\":\"model\",\"created\":" + std::to_string(model.created_s) + ",\"owned_by\":\"mstar\",\"root\":";
  append_json_string(out, model.name);
  out += '}';
}

Reply list_models(const Frontend& frontend) {
  Reply reply;
  reply.body = "{\"object\":\"list\",\"data\":[";
  bool first = true;
  const auto add = [&](std::string_view id, const ServedModel& model) {
    if (!first) reply.body += ',';
    first = false;
    append_model(reply.body, id, model);
  };
  for (const ServedModel& model : frontend.models()) {
    add(model.name, model);
    for (const std::string& alias : model.aliases) add(alias, model);
  }
  reply.body += "]}";
  return reply;
}

Reply one_model(std::string_view id, const Frontend& frontend) {
  Reply reply;
  for (const ServedModel& model : frontend.models()) {
    if (model.name != id && std::find(model.aliases.begin(), model.aliases.end(), id) == model.aliases.end()) continue;
    append_model(reply.body, id, model);
    return reply;
  }
  HttpError error = http_error(404, "the model '" + std::string(id) + "' is not served here", "model_not_found");
  error.param = "model";
  reply.status = error.status;
  reply.body = error_body(error);
  return reply;
}

Reply ready(const Frontend& frontend) {
  const RuntimeState state = frontend.state();
  Reply reply;
  if (state.ready && !state.draining) {
    reply.body = "{\"status\":\"ready\"}";
    return reply;
  }
  reply.status = 503;
  reply.body = state.draining ? "{\"status\":\"draining\",\"reason\":" : "{\"status\":\"starting\",\"reason\":";
  append_json_string(reply.body, state.reason.empty() && state.draining ? "the server is stopping" : state.reason);
  reply.body += '}';
  return reply;
}

// 404 where no profile is taken: the route is not there then.
Reply profile(const Frontend& frontend) {
  auto json = frontend.profile_json();
  if (json) return {200, "application/json", std::move(*json)};
  return {404, "application/json", error_body(http_error(404, json.error().message, "profile_off"))};
}

// The model of a /generate request that names none: the only one that serves the route.
std::string default_model(const Frontend& frontend) {
  std::string out;
  for (const ServedModel& model : frontend.models()) {
    if (std::find(model.routes.begin(), model.routes.end(), decl::Route::generate) == model.routes.end()) continue;
    if (!out.empty()) return {};
    out = model.name;
  }
  return out;
}

bool takes_inputs(const std::string& name, const Frontend& frontend) {
  for (const ServedModel& model : frontend.models())
    if (model.name == name || std::find(model.aliases.begin(), model.aliases.end(), name) != model.aliases.end())
      return !model.inputs.empty();
  return false;
}

// Of a route that takes JSON as it is.
std::string_view body_text(const Form& form) {
  return form.files.empty() ? std::string_view() : std::string_view(form.files.front().bytes);
}

}  // namespace

bool is_call(Endpoint endpoint) {
  return endpoint == Endpoint::transcriptions || endpoint == Endpoint::translations || endpoint == Endpoint::generate ||
         endpoint == Endpoint::chat_completions || endpoint == Endpoint::completions;
}

std::size_t num_choices(const Call& call) {
  return call.requests.size() * static_cast<std::size_t>(call.choices_per_request);
}

bool is_work(Endpoint endpoint) {
  return endpoint == Endpoint::chat_completions || endpoint == Endpoint::completions ||
         endpoint == Endpoint::generate || endpoint == Endpoint::tokenize || endpoint == Endpoint::detokenize;
}

Reply answer_at_once(const RouteMatch& match, const Form& form, const Frontend& frontend, const Metrics& metrics) {
  switch (match.route->endpoint) {
    case Endpoint::health:
      return {200, "application/json", "{\"status\":\"healthy\"}"};
    case Endpoint::ready:
      return ready(frontend);
    case Endpoint::metrics:
      return {200, "text/plain; version=0.0.4; charset=utf-8", metrics.text() + frontend.metrics_text()};
    case Endpoint::profile:
      return profile(frontend);
    case Endpoint::workers:
      return list_workers(frontend);
    case Endpoint::models:
      return list_models(frontend);
    case Endpoint::model:
      return one_model(match.rest, frontend);
    case Endpoint::tokenize:
      return tokenize(body_text(form), frontend);
    case Endpoint::detokenize:
      return detokenize(body_text(form), frontend);
    case Endpoint::chat_completions:
    case Endpoint::completions:
    case Endpoint::transcriptions:
    case Endpoint::translations:
    case Endpoint::generate:
    case Endpoint::input:
    case Endpoint::realtime:
    case Endpoint::worker_order:
      break;
  }
  return {500, "application/json", error_body(http_error(500, "this route has no answer"))};
}

Result<Call> make_call(Endpoint endpoint, Form form, const Frontend& frontend, std::string& request_id) {
  switch (endpoint) {
    case Endpoint::transcriptions:
      return make_transcription(std::move(form), false);
    case Endpoint::translations:
      return make_transcription(std::move(form), true);
    case Endpoint::generate: {
      auto call = make_generate(std::move(form), default_model(frontend), request_id);
      if (call) call->head_at_once = takes_inputs(call->requests.front().model, frontend);
      return call;
    }
    case Endpoint::chat_completions:
      return make_chat(body_text(form), request_id);
    case Endpoint::completions:
      return make_completions(body_text(form), frontend, request_id);
    case Endpoint::health:
    case Endpoint::ready:
    case Endpoint::metrics:
    case Endpoint::profile:
    case Endpoint::workers:
    case Endpoint::worker_order:
    case Endpoint::models:
    case Endpoint::model:
    case Endpoint::tokenize:
    case Endpoint::detokenize:
    case Endpoint::input:
    case Endpoint::realtime:
      break;
  }
  return internal_error("this route makes no request");
}

}  // namespace mstar::server
