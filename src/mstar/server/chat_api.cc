#include "mstar/server/chat_api.h"

#include <memory>
#include <vector>

#include "mstar/server/chat_messages.h"
#include "mstar/server/chat_reply.h"
#include "mstar/server/completion_answer.h"
#include "mstar/server/json_text.h"
#include "mstar/server/openai_body.h"

namespace mstar::server {
namespace {

// "content" of a choice's logprobs, from its items.
void append_chat_logprobs(std::string& out, std::string_view items) {
  if (items.empty()) {
    out += "null";
  } else {
    out.append("{\"content\":[").append(items).append("],\"refusal\":null}");
  }
}

class WholeChat final : public AnswerWriter {
 public:
  WholeChat(AnswerName name, std::size_t num_choices)
      : name_(std::move(name)), choices_(num_choices), num_open_(num_choices), usage_(num_choices) {}

  bool streams() const override { return false; }
  std::string_view content_type() const override { return "application/json"; }

  Status on_chunk(std::size_t choice, const decl::Chunk& chunk, std::string&) override {
    if (chunk.modality != decl::Modality::text) return ok_status();
    choices_[choice].reply.add(chunk);
    append_items(choices_[choice].logprobs, logprob_items(chunk));
    return ok_status();
  }

  Status on_finished(std::size_t choice, const Finished& finished, std::string& out) override {
    choices_[choice].finish = finished.finish;
    usage_.add(choice, finished.usage);
    if (--num_open_ > 0) return ok_status();
    append_answer_head(out, name_, "chat.completion");
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      const Choice& each = choices_[i];
      out.append(i ? ",{\"index\":" : "{\"index\":").append(std::to_string(i));
      out += ",\"message\":{\"role\":\"assistant\",";
      each.reply.append_to(out);
      out += ",\"refusal\":null},\"logprobs\":";
      append_chat_logprobs(out, each.logprobs);
      out.append(",\"finish_reason\":\"").append(finish_name(each.reply.finish(each.finish))).append("\"}");
    }
    out += "],\"usage\":";
    usage_.append_to(out);
    out += '}';
    return ok_status();
  }

  void on_failed(const HttpError&, std::string&) override {}

 private:
  struct Choice {
    ChatReply reply;
    std::string logprobs;  // items
    decl::Finish finish = decl::Finish::stop;
  };
  const AnswerName name_;
  std::vector<Choice> choices_;
  std::size_t num_open_;
  UsageSum usage_;
};

// Everything of an event but the text is made once a choice.
class StreamedChat final : public AnswerWriter {
 public:
  StreamedChat(const AnswerName& name, std::size_t num_choices, bool include_usage)
      : choices_(num_choices), num_open_(num_choices), usage_(num_choices) {
    base_ = "data: ";
    append_answer_head(base_, name, "chat.completion.chunk");
    if (include_usage) {
      close_ = kUsageClose;
      text_tail_ = kUsageTextTail;
    }
    for (std::size_t i = 0; i < num_choices; ++i) {
      choices_[i].head = base_ + "{\"index\":" + std::to_string(i) + ",\"delta\":";
      choices_[i].text_head = choices_[i].head + "{\"content\":\"";
    }
    include_usage_ = include_usage;
  }

  bool streams() const override { return true; }
  std::string_view content_type() const override { return "text/event-stream; charset=utf-8"; }
  std::string_view keep_alive_frame() const override { return kSseKeepAlive; }

  Status on_chunk(std::size_t choice, const decl::Chunk& chunk, std::string& out) override {
    const std::string_view text = chunk.value.text();
    const std::string_view logprobs = logprob_items(chunk);
    if (chunk.modality != decl::Modality::text || (text.empty() && logprobs.empty())) return ok_status();
    begin(choice, out);
    if (is_said(chunk)) {
      out += choices_[choice].text_head;
      append_json_text(out, text);
      if (logprobs.empty()) {
        out += text_tail_;
        return ok_status();
      }
      out += "\"},\"logprobs\":";
    } else {
      choices_[choice].has_calls |= chunk.format == kCallFormat;
      out += choices_[choice].head;
      append_delta(out, chunk);
      out += ",\"logprobs\":";
    }
    append_chat_logprobs(out, logprobs);
    out.append(",\"finish_reason\":null}").append(close_);
    return ok_status();
  }

  Status on_finished(std::size_t choice, const Finished& finished, std::string& out) override {
    begin(choice, out);
    usage_.add(choice, finished.usage);
    out.append(choices_[choice].head).append("{},\"logprobs\":null,\"finish_reason\":\"");
    out.append(finish_name(finish_of(finished.finish, choices_[choice].has_calls))).append("\"}").append(close_);
    if (--num_open_ > 0) return ok_status();
    append_stream_end(base_, include_usage_ ? &usage_ : nullptr, out);
    return ok_status();
  }

  void on_failed(const HttpError& error, std::string& out) override { append_sse(out, error_body(error)); }

 private:
  struct Choice {
    std::string head;       // up to the value of "delta"
    std::string text_head;  // up to the text of "content"
    bool begun = false;
    bool has_calls = false;
  };

  void begin(std::size_t choice, std::string& out) {
    if (std::exchange(choices_[choice].begun, true)) return;
    out.append(choices_[choice].head).append("{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,");
    out.append("\"finish_reason\":null}").append(close_);
  }

  static constexpr std::string_view kClose = "]}\n\n", kUsageClose = "],\"usage\":null}\n\n";
  static constexpr std::string_view kTextTail = "\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
  static constexpr std::string_view kUsageTextTail =
      "\"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n";

  std::string_view close_ = kClose;         // from behind the only choice to the end of the event
  std::string_view text_tail_ = kTextTail;  // from behind the text to the end of the event
  std::string base_;                        // up to the list of choices
  std::vector<Choice> choices_;
  std::size_t num_open_;
  bool include_usage_ = false;
  UsageSum usage_;
};

Status read_logprobs(const OrderedJson& body, Params& fields) {
  MSTAR_TRY_ASSIGN(const bool wanted, bool_member(body, "logprobs", false));
  MSTAR_TRY_ASSIGN(const auto num_top, integer_member(body, "top_logprobs", 0, kMaxLogprobs));
  if (num_top && *num_top > 0 && !wanted) return bad_field("top_logprobs", "needs 'logprobs' to be true");
  if (!wanted) return ok_status();
  fields.set("logprobs", true);
  fields.set("top_logprobs", num_top.value_or(0));
  return ok_status();
}

Status read_modalities(const OrderedJson& body) {
  const OrderedJson* const list = find_member(body, "modalities");
  if (!list) return ok_status();
  if (!list->is_array() || list->size() != 1 || (*list)[0] != "text")
    return bad_field("modalities", "other than [\"text\"] is not supported");
  return ok_status();
}

// Variables of the chat template beside the messages. The model takes those that it knows.
Status read_template_fields(const OrderedJson& body, Params& fields) {
  MSTAR_TRY_ASSIGN(const bool adds_prompt, bool_member(body, "add_generation_prompt", true));
  if (!adds_prompt) fields.set("add_generation_prompt", false);
  MSTAR_TRY_ASSIGN(const bool apart, bool_member(body, "separate_reasoning", true));
  if (!apart) fields.set("separate_reasoning", false);
  const OrderedJson* const variables = find_member(body, "chat_template_kwargs");
  if (!variables) return ok_status();
  if (!variables->is_object()) return bad_field("chat_template_kwargs", "must be an object");
  if (const OrderedJson* const thinks = find_member(*variables, "enable_thinking")) {
    if (!thinks->is_boolean()) return bad_field("chat_template_kwargs", "needs enable_thinking to be true or false");
    fields.set("enable_thinking", thinks->get<bool>());
  }
  return ok_status();
}

}  // namespace

Result<Call> make_chat(std::string_view body_text, std::string_view request_id) {
  MSTAR_TRY_ASSIGN(const JsonBody parsed, parse_json_body(body_text));
  const OrderedJson& body = parsed.json;
  Call call;
  decl::ApiRequest& request = call.requests.emplace_back();
  request.route = decl::Route::chat_completions;
  MSTAR_TRY_ASSIGN(request.model, read_model(body));
  MSTAR_TRY(read_messages(body, request));
  MSTAR_TRY(read_tools(body, request));
  MSTAR_TRY(refuse_unsupported(body));
  MSTAR_TRY(read_modalities(body));
  MSTAR_TRY_ASSIGN(const StreamOptions options, read_stream_options(body));
  MSTAR_TRY_ASSIGN(call.choices_per_request, read_num_choices(body));
  MSTAR_TRY(read_sampling_fields(body, request.fields));
  MSTAR_TRY(read_logprobs(body, request.fields));
  MSTAR_TRY(read_template_fields(body, request.fields));
  request.stream = options.stream;
  request.output_modalities = {decl::Modality::text};
  AnswerName name = AnswerName::now("chatcmpl-", request_id, request.model);
  const auto num_choices = static_cast<std::size_t>(call.choices_per_request);
  if (options.stream) {
    call.answer = std::make_unique<StreamedChat>(name, num_choices, options.include_usage);
  } else {
    call.answer = std::make_unique<WholeChat>(std::move(name), num_choices);
  }
  return call;
}

}  // namespace mstar::server
