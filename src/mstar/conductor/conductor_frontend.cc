// What other threads ask of the conductor.
#include <algorithm>
#include <exception>

#include "mstar/conductor/conductor.h"

namespace mstar::conductor {

std::string Conductor::why_not_served(std::uint32_t model) const {
  const ServedDeployment& served = options_.models[model];
  for (std::size_t g = 0; g < served.groups.size(); ++g) {
    const NodeGroup& group = served.groups[g];
    // Each submit asks: what to say is made up where there is something to say.
    if (loads_[model][g].any_takes()) continue;
    if (group.replicas.empty()) return "no worker runs '" + group.name + "'";
    return why_it_takes_none(group.replicas.back());
  }
  return {};
}

std::string Conductor::why_not_ready() const {
  if (!was_ready_) {
    if (!failures_.empty()) return failures_.begin()->second;
    return std::to_string(ready_.size()) + " of " + std::to_string(options_.workers.size()) + " workers are ready";
  }
  for (std::uint32_t model = 0; model < options_.models.size(); ++model)
    if (std::string reason = why_not_served(model); !reason.empty()) return reason;
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

Result<std::unique_ptr<decl::Splitter>> Conductor::split(const decl::ApiRequest& request) const {
  const auto model = find_model(request.model);
  if (!model) return std::unique_ptr<decl::Splitter>();
  const decl::Surface* const surface = options_.models[*model].compiled->declaration().surface_for(request.route);
  if (!surface || !surface->split) return std::unique_ptr<decl::Splitter>();
  return surface->split(request);
}

Result<Conductor::Submit> Conductor::find_served(const decl::ApiRequest& request) const {
  Submit out;
  MSTAR_TRY_ASSIGN(out.model, find_model(request.model));
  const ServedDeployment& served = options_.models[out.model];
  out.surface = served.compiled->declaration().surface_for(request.route);
  if (!out.surface)
    return std::move(invalid_request("the model '" + served.name + "' does not serve " +
                                     std::string(decl::route_name(request.route))))
        .with_field("model");
  std::lock_guard lock(state_mutex_);
  if (const std::string reason = why_not_served(out.model); !reason.empty()) return unavailable(reason);
  return out;
}

Result<Conductor::Submit> Conductor::make_submit(const decl::ApiRequest& request) const {
  MSTAR_TRY_ASSIGN(Submit submit, find_served(request));
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
  return submit;
}

// Shares what the prompt has become.
Conductor::Submit Conductor::choice_of(const Submit& first, int choice) {
  Submit out = first;
  if (choice == 0) return out;
  auto params = std::make_shared<decl::RequestParams>(*first.params);
  params->sampling.seed += static_cast<std::uint64_t>(choice);
  if (params->fields.has("seed")) params->fields.set("seed", static_cast<std::int64_t>(params->sampling.seed));
  out.params = std::move(params);
  return out;
}

class Conductor::Places {
 public:
  Places(Conductor& conductor, int num) : conductor_(conductor), num_(num) {}
  ~Places() {
    if (num_ > 0) conductor_.forget_submitted(num_);
  }
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;
  void keep() { num_ = 0; }

 private:
  Conductor& conductor_;
  int num_;
};

Status Conductor::reserve(int num_choices, const char* field) {
  const int most = options_.max_concurrent_requests + options_.max_queued_requests;
  if (num_choices > most)
    return std::move(invalid_request("'" + std::string(field) + "' asks for " + std::to_string(num_choices) +
                                     " answers in one call; this server has room for " + std::to_string(most) + " (" +
                                     std::to_string(options_.max_concurrent_requests) + " running, " +
                                     std::to_string(options_.max_queued_requests) + " waiting)"))
        .with_field(field);
  int now = num_submitted_.load();
  do {
    if (now + num_choices > most)
      return exhausted("the queue is full (" + std::to_string(options_.max_queued_requests) +
                       " waiting); try again shortly");
  } while (!num_submitted_.compare_exchange_weak(now, now + num_choices));
  return ok_status();
}

Result<std::vector<RequestId>> Conductor::submit_call(CallRequests call) {
  if (draining_) return unavailable("the server is shutting down");
  for (const decl::ApiRequest& request : call.requests) {
    if (auto served = find_served(request); !served) return std::move(served.error());
  }
  const int num_choices = static_cast<int>(call.requests.size()) * call.choices_per_request;
  MSTAR_TRY(reserve(num_choices, call.choices_per_request > 1 ? "n" : "prompt"));
  Places places(*this, num_choices);
  std::vector<Submit> submits;
  submits.reserve(static_cast<std::size_t>(num_choices));
  for (const decl::ApiRequest& request : call.requests) {
    if (call.wanted && !call.wanted()) return cancelled("nobody waits for the answer any more");
    MSTAR_TRY_ASSIGN(const Submit first, make_submit(request));
    const decl::Decl& declaration = options_.models[first.model].compiled->declaration();
    const bool takes_inputs = !client_input_ports(declaration).empty();
    for (int k = 0; k < call.choices_per_request; ++k) {
      Submit& submit = submits.emplace_back(choice_of(first, k));
      if (takes_inputs) submit.client = std::make_shared<ClientInputs>(declaration);
      submit.sink = std::move(call.sinks[submits.size() - 1]);
    }
  }
  std::vector<RequestId> ids;
  ids.reserve(submits.size());
  std::lock_guard lock(submit_mutex_);  // stop() closes the inbox before the first of them, or behind the last
  for (Submit& submit : submits) {
    const RequestId id = submit.id = RequestId(next_id_++);
    if (submit.client) {
      std::lock_guard open_lock(open_mutex_);
      open_[id] = submit.client;
    }
    if (!inbox_.push(Inbox(std::move(submit)))) {
      close_inputs(id);
      return unavailable("the server is shutting down");
    }
    ids.push_back(id);
  }
  places.keep();
  return ids;
}

// drain() waits for the number.
void Conductor::forget_submitted(int num_requests) {
  {
    std::lock_guard lock(state_mutex_);
    num_submitted_.fetch_sub(num_requests);
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
    for (const WorkerId each : ready_) num_ready -= standings_.at(each).is_cold ? 1 : 0;
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
  line("counter", "mstar_routed_by_prefix_total", "Choices of a replica because of a prompt's beginning.", "",
       c.by_prefix);
  line("gauge", "mstar_workers_ready", "Workers that are ready.", "", static_cast<std::int64_t>(num_ready));
  if (options_.worker_metrics) out += options_.worker_metrics();
  return out;
}

Result<std::string> Conductor::profile_json() const {
  if (!options_.profile_json) return Frontend::profile_json();
  return options_.profile_json();
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
