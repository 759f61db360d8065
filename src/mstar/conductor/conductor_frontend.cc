// What other threads ask of the conductor.
#include <algorithm>
#include <exception>

#include "mstar/conductor/conductor.h"

namespace mstar::conductor {

std::string Conductor::why_not_served(const ServedDeployment& served) const {
  for (const NodeGroup& group : served.groups) {
    std::string reason = "no worker runs '" + group.name + "'";
    bool any = false;
    for (const WorkerId replica : group.replicas) {
      any |= ready_.count(replica) != 0;
      const auto failure = failures_.find(replica);
      reason = failure != failures_.end() ? failure->second
                                          : "worker " + std::to_string(replica.value) + " is not ready yet";
    }
    if (!any) return reason;
  }
  return {};
}

std::string Conductor::why_not_ready() const {
  if (!was_ready_) {
    if (!failures_.empty()) return failures_.begin()->second;
    return std::to_string(ready_.size()) + " of " + std::to_string(options_.workers.size()) + " workers are ready";
  }
  for (const ServedDeployment& served : options_.models)
    if (std::string reason = why_not_served(served); !reason.empty()) return reason;
  return {};
}

Result<std::uint32_t> Conductor::find_model(std::string_view name) const {
  const auto& served = options_.models;
  if (name.empty() && served.size() == 1) return 0u;
  std::string known;
  for (std::uint32_t model = 0; model < served.size(); ++model) {
    const auto& each = served[model];
    if (each.name == name || std::find(each.aliases.begin(), each.aliases.end(), name) != each.aliases.end())
      return model;
    known += (known.empty() ? "" : ", ") + each.name;
  }
  return std::move(invalid_request("the model '" + std::string(name) + "' does not exist; this server has: " + known))
      .with_field("model");
}

Result<decl::TextCodec> Conductor::text_codec(std::string_view name) const {
  MSTAR_TRY_ASSIGN(const std::uint32_t model, find_model(name));
  const auto& codec = options_.models[model].compiled->declaration().text_codec();
  if (!codec) return Frontend::text_codec(name);
  return *codec;
}

Result<Conductor::Submit> Conductor::make_submit(decl::ApiRequest& request) const {
  Submit submit;
  const auto& served = options_.models;
  MSTAR_TRY_ASSIGN(const std::uint32_t model, find_model(request.model));
  submit.model = model;
  submit.surface = served[model].compiled->declaration().surface_for(request.route);
  if (!submit.surface)
    return std::move(invalid_request("the model '" + served[model].name + "' does not serve " +
                                     std::string(decl::route_name(request.route))))
        .with_field("model");
  // A model's intake may call libraries that throw.
  try {
    MSTAR_TRY_ASSIGN(decl::Intake intake, submit.surface->intake(request));
    submit.params = std::make_shared<const decl::RequestParams>(std::move(intake.params));
    submit.inputs = std::move(intake.inputs);
    submit.num_prompt_tokens = intake.num_prompt_tokens;
    submit.replica = request.replica;
  } catch (const std::exception& error) {
    return internal_error(std::string("the request could not be read: ") + error.what());
  }
  const decl::Decl& declaration = served[model].compiled->declaration();
  if (!client_input_ports(declaration).empty()) submit.client = std::make_shared<ClientInputs>(declaration);
  return submit;
}

Result<RequestId> Conductor::submit(decl::ApiRequest request, std::shared_ptr<EventSink> sink) {
  if (draining_) return unavailable("the server is shutting down");
  MSTAR_TRY_ASSIGN(Submit submit, make_submit(request));
  {
    std::lock_guard lock(state_mutex_);
    if (const std::string reason = why_not_served(options_.models[submit.model]); !reason.empty())
      return unavailable(reason);
  }
  const int allowed = options_.max_concurrent_requests + options_.max_queued_requests;
  if (num_submitted_.fetch_add(1) >= allowed) {
    forget_submitted();
    return exhausted("the queue is full (" + std::to_string(options_.max_queued_requests) +
                     " waiting); try again shortly");
  }
  submit.sink = std::move(sink);
  std::lock_guard lock(submit_mutex_);
  const RequestId id(next_id_++);
  submit.id = id;
  if (submit.client) {
    std::lock_guard open_lock(open_mutex_);
    open_[id] = submit.client;
  }
  if (inbox_.push(Inbox(std::move(submit)))) return id;
  close_inputs(id);
  forget_submitted();
  return unavailable("the server is shutting down");
}

// drain() waits for the number.
void Conductor::forget_submitted() {
  {
    std::lock_guard lock(state_mutex_);
    num_submitted_.fetch_sub(1);
  }
  state_changed_.notify_all();
}

Status Conductor::push(RequestId request, std::string_view port, const HostValue& value, bool done) {
  std::shared_ptr<ClientInputs> client;
  {
    std::lock_guard lock(open_mutex_);
    const auto it = open_.find(request);
    if (it == open_.end())
      return invalid_request("no request of this id takes input: it is unknown or has ended").with_field("request_id");
    client = it->second;
  }
  MSTAR_TRY_ASSIGN(ClientItems items, client->accept(port, value, done));
  if (!inbox_.push(Inbox(Push{request, std::move(items)}))) return unavailable("the server is shutting down");
  return ok_status();
}

void Conductor::close_inputs(RequestId request) {
  std::lock_guard lock(open_mutex_);
  open_.erase(request);
}

std::vector<ServedModel> Conductor::models() const {
  std::vector<ServedModel> out;
  for (const auto& each : options_.models) {
    ServedModel model{.name = each.name, .aliases = each.aliases, .routes = {}, .created_s = created_s_};
    model.inputs = client_input_ports(each.compiled->declaration());
    for (const auto& surface : each.compiled->declaration().surfaces()) {
      model.routes.push_back(surface.route);
      if (surface.route == decl::Route::generate) model.example = surface.example;
    }
    out.push_back(std::move(model));
  }
  return out;
}

RuntimeState Conductor::state() const {
  std::lock_guard lock(state_mutex_);
  RuntimeState out;
  out.draining = draining_;
  out.reason = draining_ ? "draining" : why_not_ready();
  out.ready = out.reason.empty();
  return out;
}

std::string Conductor::metrics_text() const {
  Counters c;
  std::size_t num_ready = 0;
  {
    std::lock_guard lock(state_mutex_);
    c = counters_;
    num_ready = ready_.size();
  }
  std::string out;
  const auto line = [&](const char* type, const char* name, const char* help, const char* labels, std::int64_t value) {
    if (help) out += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
    out += std::string(name) + labels + " " + std::to_string(value) + "\n";
  };
  line("gauge", "mstar_requests_running", "Requests being worked on.", "", c.running);
  line("gauge", "mstar_requests_waiting", "Requests in the admission queue.", "", c.waiting);
  line("counter", "mstar_requests_total", "Requests that ended, by outcome.", "{outcome=\"finished\"}", c.finished);
  line("counter", "mstar_requests_total", nullptr, "{outcome=\"failed\"}", c.failed);
  line("counter", "mstar_requests_total", nullptr, "{outcome=\"cancelled\"}", c.cancelled);
  line("counter", "mstar_generated_tokens_total", "Tokens that counted in usage.", "", c.tokens);
  line("gauge", "mstar_workers_ready", "Workers that are ready.", "", static_cast<std::int64_t>(num_ready));
  if (options_.worker_metrics) out += options_.worker_metrics();
  return out;
}

bool Conductor::drain(std::chrono::milliseconds timeout) {
  draining_ = true;
  std::unique_lock lock(state_mutex_);
  return state_changed_.wait_for(lock, timeout, [&] { return num_submitted_.load() == 0; });
}

Status Conductor::wait_ready(std::chrono::milliseconds timeout) {
  std::unique_lock lock(state_mutex_);
  const bool settled = state_changed_.wait_for(lock, timeout, [&] { return was_ready_ || !failures_.empty(); });
  if (was_ready_) return ok_status();
  if (settled) return unavailable(failures_.begin()->second);
  return unavailable("the workers were not ready in time: " + why_not_ready());
}

}  // namespace mstar::conductor
