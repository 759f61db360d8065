#include "mstar/server/tokenize_api.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "mstar/server/chat_messages.h"
#include "mstar/server/json_text.h"
#include "mstar/server/openai_body.h"

namespace mstar::server {
namespace {

bool reads_text(const ServedModel& model) {
  return std::find(model.routes.begin(), model.routes.end(), decl::Route::completions) != model.routes.end();
}

Result<std::string> model_of(const OrderedJson& body, const Frontend& frontend) {
  std::string only;
  bool several = false;
  for (const ServedModel& model : frontend.models()) {
    if (!reads_text(model)) continue;
    several = !only.empty();
    only = model.name;
  }
  MSTAR_TRY_ASSIGN(std::string model, string_member(body, "model", several ? "" : only));
  if (model.empty()) return bad_field("model", "is missing");
  return model;
}

Result<decl::ApiRequest> read_tokenize(std::string_view body_text, const Frontend& frontend) {
  MSTAR_TRY_ASSIGN(const JsonBody parsed, parse_json_body(body_text));
  const OrderedJson& body = parsed.json;
  decl::ApiRequest out;
  MSTAR_TRY_ASSIGN(out.model, model_of(body, frontend));
  if (find_member(body, "messages")) {
    if (find_member(body, "prompt")) return bad_field("prompt", "and 'messages' exclude each other");
    out.route = decl::Route::chat_completions;
    MSTAR_TRY(read_messages(body, out));
    MSTAR_TRY(read_tools(body, out));
    MSTAR_TRY_ASSIGN(const bool adds_prompt, bool_member(body, "add_generation_prompt", true));
    out.fields.set("add_generation_prompt", adds_prompt);
    return out;
  }
  out.route = decl::Route::completions;
  const OrderedJson* const prompt = find_member(body, "prompt");
  if (!prompt || !prompt->is_string()) return bad_field("prompt", "must be a string");
  out.text = prompt->get<std::string>();
  MSTAR_TRY_ASSIGN(const bool adds_special, bool_member(body, "add_special_tokens", true));
  out.fields.set("add_special_tokens", adds_special);
  return out;
}

struct Tokens {
  std::string model;
  std::vector<std::int32_t> ids;
};
Result<Tokens> read_detokenize(std::string_view body_text, const Frontend& frontend) {
  MSTAR_TRY_ASSIGN(const JsonBody parsed, parse_json_body(body_text));
  const OrderedJson& body = parsed.json;
  Tokens out;
  MSTAR_TRY_ASSIGN(out.model, model_of(body, frontend));
  const OrderedJson* const list = find_member(body, "tokens");
  const auto wrong = [] { return bad_field("tokens", "must be a list of token ids"); };
  if (!list || !list->is_array()) return wrong();
  for (const OrderedJson& id : *list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max()) return wrong();
    out.ids.push_back(id.get<std::int32_t>());
  }
  return out;
}

Reply refusal(const Error& error, Stage stage) {
  const HttpError out = to_http(error, stage);
  return {.status = out.status, .body = error_body(out), .retry_after_s = out.retry_after_s};
}

}  // namespace

Reply tokenize(std::string_view body, const Frontend& frontend) {
  const auto request = read_tokenize(body, frontend);
  if (!request) return refusal(request.error(), Stage::body);
  const auto codec = frontend.text_codec(request->model);
  if (!codec) return refusal(codec.error(), Stage::submit);
  const auto tokens = codec->tokenize(*request);
  if (!tokens) return refusal(tokens.error(), Stage::submit);
  Reply out;
  out.body = "{\"tokens\":[";
  for (std::size_t i = 0; i < tokens->size(); ++i) {
    if (i) out.body += ',';
    out.body += std::to_string((*tokens)[i]);
  }
  out.body += "],\"count\":" + std::to_string(tokens->size()) +
              ",\"max_model_len\":" + std::to_string(codec->context_tokens) + "}";
  return out;
}

Reply detokenize(std::string_view body, const Frontend& frontend) {
  const auto tokens = read_detokenize(body, frontend);
  if (!tokens) return refusal(tokens.error(), Stage::body);
  const auto codec = frontend.text_codec(tokens->model);
  if (!codec) return refusal(codec.error(), Stage::submit);
  const auto text = codec->detokenize(tokens->ids);
  if (!text) return refusal(text.error(), Stage::submit);
  Reply out;
  out.body = "{\"prompt\":";
  append_json_string(out.body, *text);
  out.body += '}';
  return out;
}

}  // namespace mstar::server
