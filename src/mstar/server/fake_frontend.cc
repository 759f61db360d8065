#include "mstar/server/fake_frontend.h"

#include <algorithm>

#include "mstar/server/json_text.h"

namespace mstar::server {

void FakeJob::text(std::string_view text) {
  sink_->on_event(decl::Chunk{decl::Modality::text, "utf8", HostValue::utf8(text)});
}

void FakeJob::segment(int id, double start_s, double end_s, std::string_view text) {
  std::string json = "{\"id\":" + std::to_string(id) + ",\"seek\":0,\"start\":";
  append_json_number(json, start_s);
  json += ",\"end\":";
  append_json_number(json, end_s);
  json += ",\"text\":";
  append_json_string(json, text);
  json +=
      ",\"tokens\":[50364,11,50464],\"temperature\":0.0,\"avg_logprob\":-0.25,\"compression_ratio\":1.5,"
      "\"no_speech_prob\":0.01}";
  sink_->on_event(decl::Chunk{decl::Modality::text, "segment", HostValue::utf8(json)});
}

void FakeJob::finish(Params metadata) {
  Finished finished;
  finished.usage = {7, 9, 4.5};
  finished.metadata = std::move(metadata);
  sink_->on_event(std::move(finished));
}

void FakeJob::end(decl::Finish finish, Usage usage) { sink_->on_event(Finished{finish, usage, {}}); }

bool FakeJob::wait_aborted(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return wake_.wait_for(lock, time, [this] { return aborted.load(); });
}

FakeFrontend::FakeFrontend(Script script) : script_(std::move(script)) { state_.ready = true; }

FakeFrontend::~FakeFrontend() {
  std::vector<std::thread> threads;
  {
    std::lock_guard lock(mutex_);
    threads.swap(threads_);
  }
  for (std::thread& each : threads) each.join();
}

void FakeFrontend::two_segments(FakeJob& job) {
  job.segment(0, 0.0, 2.5, " Hello world.");
  job.segment(1, 2.5, 4.5, " Bye.");
  Params metadata;
  metadata.set("language", std::string("en"));
  metadata.set("duration", 4.5);
  job.finish(std::move(metadata));
}

Result<std::vector<RequestId>> FakeFrontend::submit_call(CallRequests call) {
  std::function<void(const CallRequests&)> hook;
  {
    std::lock_guard lock(mutex_);
    hook = before_submit_;
  }
  if (hook) hook(call);
  if (call.wanted && !call.wanted()) return cancelled("nobody waits any more");
  std::vector<RequestId> out;
  for (const decl::ApiRequest& request : call.requests)
    for (int k = 0; k < call.choices_per_request; ++k) {
      decl::ApiRequest choice = request;
      if (request.fields.has("seed")) {
        const auto seed = static_cast<std::uint64_t>(request.fields.get_int("seed", 0).value_or(0));
        choice.fields.set("seed", static_cast<std::int64_t>(seed + static_cast<std::uint64_t>(k)));
      }
      MSTAR_TRY_ASSIGN(const RequestId id, take(std::move(choice), call.sinks[out.size()]));
      out.push_back(id);
    }
  return out;
}

Result<RequestId> FakeFrontend::take(decl::ApiRequest request, std::shared_ptr<EventSink> sink) {
  bool known = false;
  for (const ServedModel& model : models())
    known = known || model.name == request.model ||
            std::find(model.aliases.begin(), model.aliases.end(), request.model) != model.aliases.end();
  std::lock_guard lock(mutex_);
  if (refusal_) return *refusal_;
  if (!known) return invalid_request("the model '" + request.model + "' is not served here").with_field("model");
  ++num_submitted_;
  requests_.push_back(request);
  const RequestId id(next_id_++);
  auto job = std::make_shared<FakeJob>(std::move(request), std::move(sink));
  jobs_.emplace(id, job);
  threads_.emplace_back([job, script = script_] { script(*job); });
  return id;
}

void FakeFrontend::abort(RequestId request) {
  std::shared_ptr<FakeJob> job;
  {
    std::lock_guard lock(mutex_);
    const auto it = jobs_.find(request);
    if (it == jobs_.end()) return;
    job = it->second;
  }
  ++num_aborted_;
  {
    std::lock_guard lock(job->mutex_);
    job->aborted = true;
  }
  job->wake_.notify_all();
}

Status FakeFrontend::push(RequestId request, std::string_view port, const HostValue& value, bool done) {
  std::shared_ptr<FakeJob> job;
  {
    std::lock_guard lock(mutex_);
    const auto it = jobs_.find(request);
    if (it == jobs_.end()) return invalid_request("unknown").with_field("request_id");
    job = it->second;
  }
  if (port == "full") return exhausted("too much waits").with_field("body");
  if (port != "action" && port != "sound") return invalid_request("no such input").with_field("port");
  {
    std::lock_guard lock(job->mutex_);
    job->inputs_.push_back({std::string(port), value, done});
  }
  job->wake_.notify_all();
  return ok_status();
}

std::optional<FakeJob::Input> FakeJob::wait_input() {
  std::unique_lock lock(mutex_);
  if (!wake_.wait_for(lock, std::chrono::seconds(20), [&] { return !inputs_.empty() || aborted; })) return std::nullopt;
  if (inputs_.empty()) return std::nullopt;
  Input out = std::move(inputs_.front());
  inputs_.pop_front();
  return out;
}

std::vector<ServedModel> FakeFrontend::models() const {
  return {{"fake-whisper",
           {"whisper-1"},
           {decl::Route::audio_transcriptions, decl::Route::audio_translations},
           1'700'000'000},
          {"lab/fake-llm",
           {},
           {decl::Route::generate, decl::Route::completions, decl::Route::chat_completions},
           1'700'000'001,
           {}},
          {"lab/fake-world", {}, {decl::Route::videos_generations}, 1'700'000'002, {"action", "sound"}}};
}

Result<decl::TextCodec> FakeFrontend::text_codec(std::string_view model) const {
  if (model != "lab/fake-llm") return Frontend::text_codec(model);
  decl::TextCodec out;
  const auto hook = [this] {
    std::function<void()> wanted;
    {
      std::lock_guard lock(mutex_);
      wanted = before_codec_;
    }
    if (wanted) wanted();
  };
  out.tokenize = [hook](const decl::ApiRequest& request) -> Result<std::vector<std::int32_t>> {
    hook();
    const std::string& text = request.route == decl::Route::chat_completions ? request.messages_json : request.text;
    if (text.empty()) return invalid_request("nothing to cut").with_field("prompt");
    std::vector<std::int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  };
  out.detokenize = [hook](std::span<const std::int32_t> ids) -> Result<std::string> {
    hook();
    std::string text;
    for (const std::int32_t id : ids) {
      if (id > 255) return invalid_request("no such token").with_field("tokens");
      text += static_cast<char>(id);
    }
    return text;
  };
  out.context_tokens = 4096;
  return out;
}

RuntimeState FakeFrontend::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

std::vector<WorkerInfo> FakeFrontend::workers() const {
  std::lock_guard lock(mutex_);
  return workers_;
}

Result<WorkerInfo> FakeFrontend::order_worker(int rank, WorkerOrder order) {
  std::lock_guard lock(mutex_);
  if (rank < 0 || static_cast<std::size_t>(rank) >= workers_.size()) return Frontend::order_worker(rank, order);
  using State = WorkerInfo::State;
  WorkerInfo& worker = workers_[static_cast<std::size_t>(rank)];
  worker.state = order == WorkerOrder::drain    ? State::drained
                 : order == WorkerOrder::remove ? State::removed
                                                : State::running;
  return worker;
}

Result<std::string> FakeFrontend::profile_json() const {
  std::lock_guard lock(mutex_);
  if (profile_.empty()) return Frontend::profile_json();
  return profile_;
}

void FakeFrontend::set_profile(std::string json) {
  std::lock_guard lock(mutex_);
  profile_ = std::move(json);
}

std::string FakeFrontend::metrics_text() const { return "# HELP fake_pages Pages in use\nfake_pages 0\n"; }

void FakeFrontend::set_script(Script script) {
  std::lock_guard lock(mutex_);
  script_ = std::move(script);
}

void FakeFrontend::set_state(RuntimeState state) {
  std::lock_guard lock(mutex_);
  state_ = std::move(state);
}

void FakeFrontend::refuse_with(std::optional<Error> error) {
  std::lock_guard lock(mutex_);
  refusal_ = std::move(error);
}

void FakeFrontend::before_submit(std::function<void(const CallRequests&)> hook) {
  std::lock_guard lock(mutex_);
  before_submit_ = std::move(hook);
}

void FakeFrontend::before_codec(std::function<void()> hook) {
  std::lock_guard lock(mutex_);
  before_codec_ = std::move(hook);
}

decl::ApiRequest FakeFrontend::last_request() const {
  std::lock_guard lock(mutex_);
  return requests_.empty() ? decl::ApiRequest() : requests_.back();
}

std::vector<decl::ApiRequest> FakeFrontend::requests() const {
  std::lock_guard lock(mutex_);
  return requests_;
}

}  // namespace mstar::server
