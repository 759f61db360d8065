#include "mstar/models/text_emitter.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>
#include <random>

#include "mstar/text/incremental_decoder.h"
#include "mstar/text/reply/reply_parser.h"
#include "mstar/text/stop_strings.h"

namespace mstar::models {
namespace {

using namespace decl;
using nlohmann::json;

const char* format_of(ReplyPart::Kind kind) {
  switch (kind) {
    case ReplyPart::Kind::thought:
      return "thought";
    case ReplyPart::Kind::call:
      return "call";
    case ReplyPart::Kind::arguments:
      return "arguments";
    case ReplyPart::Kind::text:
      break;
  }
  return "utf8";
}

// Unlike any other's, for clients send it back. Mistral's templates want nine letters and digits.
std::string new_call_id(CallStyle style) {
  static thread_local std::mt19937_64 random{std::random_device()()};
  constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string out = style == CallStyle::mistral ? "" : "call_";
  for (std::size_t i = 0; i < (style == CallStyle::mistral ? 9u : 24u); ++i)
    out += kLetters[random() % kLetters.size()];
  return out;
}

// Null: the answer is text alone.
std::unique_ptr<ReplyParser> make_parser(const TextModel& model, const RequestParams& params) {
  const std::string tools = params.fields.get_string(kToolsField, "").value_or("");
  const bool thinks = params.fields.get_bool(kThinksField, false).value_or(false);
  if (tools.empty() && !thinks) return nullptr;
  ReplyFormat format = model.text.reply;
  if (tools.empty()) {
    if (format.calls != CallStyle::command) format.dropped.clear();  // marks of calls
    format.calls = CallStyle::none;
  }
  if (!thinks) format.think_open = format.think_close = {};
  return std::make_unique<ReplyParser>(std::move(format),
                                       tools.empty() ? nullptr : std::make_shared<const ToolTypes>(tools),
                                       params.fields.get_bool(kBeginsThinkingField, false).value_or(false));
}

class TextEmitter final : public Emitter {
 public:
  TextEmitter(std::shared_ptr<const TextModel> model, const RequestParams& params)
      : model_(std::move(model)),
        wants_logprobs_(params.sampling.num_logprobs >= 0),
        parser_(make_parser(*model_, params)),
        decoder_(*model_->text.tokenizer, !(parser_ && model_->text.reply.has_special_marks)),
        stops_(params.sampling.stop_strings),
        stop_ids_(params.sampling.stop_ids) {
    if (!params.sampling.ignore_eos)
      stop_ids_.insert(stop_ids_.end(), model_->text.stop_ids.begin(), model_->text.stop_ids.end());
    std::sort(stop_ids_.begin(), stop_ids_.end());
  }

  Result<Emitted> push(PortRef port, std::span<const HostValue> values) override {
    Emitted out;
    for (const HostValue& value : values) {
      if (port == model_->token) {
        for (const std::int32_t id : value.as<std::int32_t>()) tokens_.push_back(id);
      } else if (port == model_->logprobs) {
        logprobs_.push_back(value);
      }
    }
    while (!tokens_.empty() && !stops_.matched() && (!wants_logprobs_ || !logprobs_.empty())) take(out.chunks);
    out.stop = stops_.matched();
    return out;
  }

  Result<Emitted> finish(Finish) override {
    Emitted out;
    std::string rest = stops_.push(decoder_.finish());
    rest += stops_.finish();
    give(std::move(rest), out.chunks);
    if (parser_) {
      parts_.clear();
      parser_->finish(parts_);
      give_parts(out.chunks);
    }
    out.stop = stops_.matched();
    return out;
  }

  std::int64_t num_tokens() const override { return num_tokens_; }

 private:
  void take(std::vector<Chunk>& chunks) {
    const std::int32_t id = tokens_.front();
    tokens_.pop_front();
    ++num_tokens_;
    if (wants_logprobs_) {
      waiting_.push_back(describe(logprobs_.front()));
      logprobs_.pop_front();
    }
    const bool is_stop = std::binary_search(stop_ids_.begin(), stop_ids_.end(), id);
    give(is_stop ? std::string() : stops_.push(decoder_.push(id)), chunks);
  }

  void give(std::string text, std::vector<Chunk>& chunks) {
    if (parser_) {
      parts_.clear();
      parser_->push(text, parts_);
      if (!parts_.empty()) return give_parts(chunks);
      text.clear();
    }
    if (text.empty() && waiting_.empty()) return;
    add({.modality = Modality::text, .format = "utf8", .value = HostValue::utf8(text)}, chunks);
  }

  void give_parts(std::vector<Chunk>& chunks) {
    for (const ReplyPart& part : parts_) {
      Chunk chunk{.modality = Modality::text, .format = format_of(part.kind), .value = HostValue::utf8(part.text)};
      if (part.call >= 0) chunk.metadata.set("index", static_cast<std::int64_t>(part.call));
      if (part.kind == ReplyPart::Kind::call) chunk.metadata.set("id", new_call_id(model_->text.reply.calls));
      add(std::move(chunk), chunks);
    }
  }

  void add(Chunk chunk, std::vector<Chunk>& chunks) {
    if (!waiting_.empty()) {
      chunk.metadata.set("logprobs", waiting_.dump(-1, ' ', false, json::error_handler_t::replace));
      waiting_ = json::array();
    }
    chunks.push_back(std::move(chunk));
  }

  json entry(float id, float logprob) const {
    const auto bytes = model_->text.tokenizer->token_bytes(static_cast<std::int32_t>(id));
    json list = json::array();
    for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
    return {{"token", std::string(bytes)}, {"logprob", std::isfinite(logprob) ? logprob : -9999.0f}, {"bytes", list}};
  }

  json describe(const HostValue& value) const {
    const auto pairs = value.as<float>();
    json out = entry(pairs[0], pairs[1]);
    out["top_logprobs"] = json::array();
    for (std::size_t i = 2; i + 1 < pairs.size(); i += 2) out["top_logprobs"].push_back(entry(pairs[i], pairs[i + 1]));
    return out;
  }

  std::shared_ptr<const TextModel> model_;
  bool wants_logprobs_;
  std::unique_ptr<ReplyParser> parser_;  // null: text alone
  std::vector<ReplyPart> parts_;         // of one call
  IncrementalDecoder decoder_;
  StopStrings stops_;
  std::vector<std::int32_t> stop_ids_;
  std::deque<std::int32_t> tokens_;  // whose log-probabilities have not come
  std::deque<HostValue> logprobs_;
  json waiting_ = json::array();  // of tokens whose text is held back
  std::int64_t num_tokens_ = 0;
};

}  // namespace

std::unique_ptr<Emitter> make_text_emitter(std::shared_ptr<const TextModel> model, const RequestParams& params) {
  return std::make_unique<TextEmitter>(std::move(model), params);
}

}  // namespace mstar::models
