// A chat with a model in this process.
#include <mutex>

#include "chat_backend.h"
#include "runtime.h"
#include "settings.h"
#include "waiting_sink.h"
#include "weight_cache.h"

namespace mstar::apps {
namespace {

constexpr const char* kDefaultModel = "smollm2-135m";

class LocalChat final : public ChatBackend {
 public:
  LocalChat(std::unique_ptr<Runtime> runtime, std::string model, Params params)
      : runtime_(std::move(runtime)), model_(std::move(model)), params_(std::move(params)) {}

  const std::string& model() const override { return model_; }

  Result<ChatReply> reply(const std::string& messages_json, const OnText& on_text) override {
    decl::ApiRequest request;
    request.route = decl::Route::chat_completions;
    request.model = model_;
    request.messages_json = messages_json;
    request.output_modalities = {decl::Modality::text};
    request.stream = true;
    request.fields = params_;
    request.fields.set("separate_reasoning", false);  // shown as it comes
    const auto sink = std::make_shared<WaitingSink>([&on_text](const decl::Chunk& chunk) {
      if (chunk.modality == decl::Modality::text) on_text(chunk.value.text());
    });
    {
      std::lock_guard lock(mutex_);
      stopped_ = false;
      MSTAR_TRY_ASSIGN(request_, runtime_->frontend().submit(std::move(request), sink));
    }
    auto finished = sink->wait();
    std::lock_guard lock(mutex_);
    request_ = RequestId();
    ChatReply out;
    out.stopped = stopped_;
    if (!finished && stopped_) return out;
    if (!finished) return std::move(finished.error());
    out.cut = finished->finish == decl::Finish::length;
    out.completion_tokens = finished->usage.completion_tokens;
    return out;
  }

  void stop() override {
    std::lock_guard lock(mutex_);
    if (!request_.valid()) return;
    stopped_ = true;
    runtime_->frontend().abort(request_);
  }

 private:
  const std::unique_ptr<Runtime> runtime_;
  const std::string model_;
  const Params params_;
  std::mutex mutex_;  // guards what follows
  RequestId request_;
  bool stopped_ = false;
};

}  // namespace

Result<std::unique_ptr<ChatBackend>> local_chat(const ChatFlags& flags) {
  ModelFlags model = flags.model;
  if (model.model.empty()) {
    model.model = kDefaultModel;
    if (find_model(model.model) == model.model)
      return bad_model(std::string("no model: name one, or run ./dev weights ") + kDefaultModel);
  }
  MSTAR_TRY_ASSIGN(Settings settings, model_settings(model));
  if (!model.max_requests) settings.runtime.max_concurrent_requests = 1;
  Params params;
  MSTAR_TRY(parse_params(flags.params, params));
  MSTAR_TRY_ASSIGN(std::unique_ptr<Runtime> runtime, Runtime::build(settings.runtime));
  std::string name;
  for (const ServedModel& each : runtime->frontend().models())
    for (const decl::Route route : each.routes)
      if (name.empty() && route == decl::Route::chat_completions) name = each.name;
  if (name.empty()) return invalid_request("'" + model.model + "' is no model that chats");
  return std::unique_ptr<ChatBackend>(
      std::make_unique<LocalChat>(std::move(runtime), std::move(name), std::move(params)));
}

}  // namespace mstar::apps
