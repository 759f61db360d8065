#include "mstar/server/completions_api.h"

#include <limits>
#include <memory>
#include <vector>

#include "mstar/server/completion_answer.h"
#include "mstar/server/completion_logprobs.h"
#include "mstar/server/json_text.h"
#include "mstar/server/openai_body.h"

namespace mstar::server {
namespace {

constexpr std::size_t kMaxAnswers = 1024;  // prompts times n

// Choices by the order of prompts and, for each, of n. `echoes` has each prompt's text, or nothing.
class WholeCompletion final : public AnswerWriter {
 public:
  WholeCompletion(AnswerName name, std::vector<std::string> echoes, std::size_t choices_per_prompt, bool logprobs)
      : name_(std::move(name)), num_open_(echoes.size() * choices_per_prompt), usage_(choices_per_prompt) {
    for (const std::string& echo : echoes)
      for (std::size_t i = 0; i < choices_per_prompt; ++i) {
        Choice& choice = choices_.emplace_back();
        choice.text = echo;
        if (logprobs) choice.logprobs = std::make_unique<CompletionLogprobs>();
      }
  }

  bool streams() const override { return false; }
  std::string_view content_type() const override { return "application/json"; }

  Status on_chunk(std::size_t choice, const decl::Chunk& chunk, std::string&) override {
    if (chunk.modality != decl::Modality::text) return ok_status();
    Choice& to = choices_[choice];
    to.text += chunk.value.text();
    if (to.logprobs) MSTAR_TRY(to.logprobs->add(logprob_items(chunk)));
    return ok_status();
  }

  Status on_finished(std::size_t choice, const Finished& finished, std::string& out) override {
    choices_[choice].finish = finished.finish;
    usage_.add(choice, finished.usage);
    if (--num_open_ > 0) return ok_status();
    append_answer_head(out, name_, "text_completion");
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      Choice& each = choices_[i];
      out.append(i ? ",{\"index\":" : "{\"index\":").append(std::to_string(i)).append(",\"text\":");
      append_json_string(out, each.text);
      out += ",\"logprobs\":";
      if (each.logprobs) {
        each.logprobs->take(out);
      } else {
        out += "null";
      }
      out.append(",\"finish_reason\":\"").append(finish_name(each.finish)).append("\"}");
    }
    out += "],\"usage\":";
    usage_.append_to(out);
    out += '}';
    return ok_status();
  }

  void on_failed(const HttpError&, std::string&) override {}

 private:
  struct Choice {
    std::string text;
    std::unique_ptr<CompletionLogprobs> logprobs;
    decl::Finish finish = decl::Finish::stop;
  };
  const AnswerName name_;
  std::vector<Choice> choices_;
  std::size_t num_open_;
  UsageSum usage_;
};

class StreamedCompletion final : public AnswerWriter {
 public:
  StreamedCompletion(const AnswerName& name, std::vector<std::string> echoes, std::size_t choices_per_prompt,
                     bool logprobs, bool include_usage)
      : num_open_(echoes.size() * choices_per_prompt), include_usage_(include_usage), usage_(choices_per_prompt) {
    base_ = "data: ";
    append_answer_head(base_, name, "text_completion");
    if (include_usage) {
      close_ = kUsageClose;
      text_tail_ = kUsageTextTail;
    }
    for (const std::string& echo : echoes)
      for (std::size_t i = 0; i < choices_per_prompt; ++i) {
        Choice& choice = choices_.emplace_back();
        choice.echo = echo;
        choice.head = base_ + "{\"index\":" + std::to_string(choices_.size() - 1) + ",\"text\":\"";
        if (logprobs) choice.logprobs = std::make_unique<CompletionLogprobs>();
      }
  }

  bool streams() const override { return true; }
  std::string_view content_type() const override { return "text/event-stream; charset=utf-8"; }
  std::string_view keep_alive_frame() const override { return kSseKeepAlive; }

  Status on_chunk(std::size_t choice, const decl::Chunk& chunk, std::string& out) override {
    const std::string_view text = chunk.value.text();
    if (chunk.modality != decl::Modality::text || (text.empty() && chunk.metadata.values().empty())) return ok_status();
    Choice& to = choices_[choice];
    say_echo(to, out);
    out += to.head;
    append_json_text(out, text);
    if (!to.logprobs) {
      out += text_tail_;
      return ok_status();
    }
    MSTAR_TRY(to.logprobs->add(logprob_items(chunk)));
    out += "\",\"logprobs\":";
    to.logprobs->take(out);
    out.append(",\"finish_reason\":null}").append(close_);
    return ok_status();
  }

  Status on_finished(std::size_t choice, const Finished& finished, std::string& out) override {
    say_echo(choices_[choice], out);
    usage_.add(choice, finished.usage);
    out.append(choices_[choice].head).append("\",\"logprobs\":null,\"finish_reason\":\"");
    out.append(finish_name(finished.finish)).append("\"}").append(close_);
    if (--num_open_ > 0) return ok_status();
    append_stream_end(base_, include_usage_ ? &usage_ : nullptr, out);
    return ok_status();
  }

  void on_failed(const HttpError& error, std::string& out) override { append_sse(out, error_body(error)); }

 private:
  struct Choice {
    std::string echo;  // not sent yet
    std::string head;  // up to the text
    std::unique_ptr<CompletionLogprobs> logprobs;
  };

  void say_echo(Choice& choice, std::string& out) {
    if (choice.echo.empty()) return;
    out += choice.head;
    append_json_text(out, std::exchange(choice.echo, {}));
    out += text_tail_;
  }

  static constexpr std::string_view kClose = "]}\n\n", kUsageClose = "],\"usage\":null}\n\n";
  static constexpr std::string_view kTextTail = "\",\"logprobs\":null,\"finish_reason\":null}]}\n\n";
  static constexpr std::string_view kUsageTextTail =
      "\",\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n";

  std::string_view close_ = kClose;         // from behind the only choice to the end of the event
  std::string_view text_tail_ = kTextTail;  // from behind the text to the end of the event
  std::string base_;                        // up to the list of choices
  std::vector<Choice> choices_;
  std::size_t num_open_;
  bool include_usage_;
  UsageSum usage_;
};

struct Prompt {
  std::string text;
  std::vector<std::int32_t> ids;
  bool is_ids = false;
};

Error wrong_prompt() {
  return bad_field("prompt", "must be a string, a list of strings, a list of token ids or a list of such lists");
}

Result<Prompt> one_prompt(const OrderedJson& value) {
  Prompt out;
  if (value.is_string()) {
    out.text = value.get<std::string>();
    return out;
  }
  if (!value.is_array()) return wrong_prompt();
  if (value.empty()) return bad_field("prompt", "has a list without a token id");
  out.is_ids = true;
  for (const OrderedJson& id : value) {
    if (!id.is_number_integer()) return wrong_prompt();
    // Beyond 63 bits unsigned numbers would wrap.
    const bool fits = id.is_number_unsigned() ? id.get<std::uint64_t>() <= std::numeric_limits<std::int32_t>::max()
                                              : id.get<std::int64_t>() >= 0;
    if (!fits) return bad_field("prompt", "holds what is no token id");
    out.ids.push_back(id.get<std::int32_t>());
  }
  return out;
}

Result<std::vector<Prompt>> read_prompts(const OrderedJson& body) {
  const OrderedJson* const value = find_member(body, "prompt");
  if (!value) return bad_field("prompt", "is missing");
  std::vector<Prompt> out;
  const bool is_list = value->is_array() && !value->empty() && !(*value)[0].is_number();
  if (value->is_array() && value->empty()) return bad_field("prompt", "is empty");
  if (!is_list) {
    MSTAR_TRY_ASSIGN(Prompt prompt, one_prompt(*value));
    out.push_back(std::move(prompt));
    return out;
  }
  for (const OrderedJson& each : *value) {
    if (each.type() != (*value)[0].type()) return wrong_prompt();
    MSTAR_TRY_ASSIGN(Prompt prompt, one_prompt(each));
    out.push_back(std::move(prompt));
  }
  return out;
}

Result<std::vector<std::string>> read_echoes(const OrderedJson& body, const std::vector<Prompt>& prompts,
                                             const Frontend& frontend, const std::string& model) {
  std::vector<std::string> out(prompts.size());
  MSTAR_TRY_ASSIGN(const bool echo, bool_member(body, "echo", false));
  if (!echo) return out;
  if (find_member(body, "logprobs"))
    return bad_field("echo", "with 'logprobs' is not supported: a prompt's log-probabilities are not computed");
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    out[i] = prompts[i].text;
    if (!prompts[i].is_ids) continue;
    MSTAR_TRY_ASSIGN(const decl::TextCodec codec, frontend.text_codec(model));
    auto text = codec.detokenize(prompts[i].ids);
    if (!text) return std::move(text.error()).with_field("prompt");
    out[i] = std::move(*text);
  }
  return out;
}

}  // namespace

Result<Call> make_completions(std::string_view body_text, const Frontend& frontend, std::string_view request_id) {
  MSTAR_TRY_ASSIGN(const JsonBody parsed, parse_json_body(body_text));
  const OrderedJson& body = parsed.json;
  Call call;
  decl::ApiRequest base;
  base.route = decl::Route::completions;
  MSTAR_TRY_ASSIGN(base.model, read_model(body));
  MSTAR_TRY_ASSIGN(std::vector<Prompt> prompts, read_prompts(body));
  MSTAR_TRY(refuse_unsupported(body));
  MSTAR_TRY_ASSIGN(const StreamOptions options, read_stream_options(body));
  MSTAR_TRY_ASSIGN(call.choices_per_request, read_num_choices(body));
  const auto n = static_cast<std::size_t>(call.choices_per_request);
  if (prompts.size() * n > kMaxAnswers)
    return bad_field(n > 1 ? "n" : "prompt", "asks for more than " + std::to_string(kMaxAnswers) + " answers");
  MSTAR_TRY(read_sampling_fields(body, base.fields));
  MSTAR_TRY_ASSIGN(const auto num_logprobs, integer_member(body, "logprobs", 0, kMaxLogprobs));
  if (num_logprobs) base.fields.set("logprobs", *num_logprobs);
  MSTAR_TRY_ASSIGN(std::vector<std::string> echoes, read_echoes(body, prompts, frontend, base.model));
  base.stream = options.stream;
  base.output_modalities = {decl::Modality::text};
  for (Prompt& prompt : prompts) {
    decl::ApiRequest& request = call.requests.emplace_back(base);
    request.text = std::move(prompt.text);
    if (prompt.is_ids) request.fields.set("prompt_ids", std::vector<double>(prompt.ids.begin(), prompt.ids.end()));
  }
  AnswerName name = AnswerName::now("cmpl-", request_id, base.model);
  if (options.stream) {
    call.answer = std::make_unique<StreamedCompletion>(name, std::move(echoes), n, num_logprobs.has_value(),
                                                       options.include_usage);
  } else {
    call.answer = std::make_unique<WholeCompletion>(std::move(name), std::move(echoes), n, num_logprobs.has_value());
  }
  return call;
}

}  // namespace mstar::server
