#include "mstar/server/completion_logprobs.h"

#include "mstar/server/completion_answer.h"
#include "mstar/server/json_text.h"
#include "mstar/server/openai_body.h"

namespace mstar::server {
namespace {

std::size_t num_characters(std::string_view text) {
  std::size_t out = 0;
  for (const char c : text) out += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return out;
}

bool is_entry(const OrderedJson& value) {
  const OrderedJson* const token = find_member(value, "token");
  const OrderedJson* const logprob = find_member(value, "logprob");
  return token && token->is_string() && logprob && logprob->is_number();
}

}  // namespace

Status CompletionLogprobs::add(std::string_view items) {
  if (items.empty()) return ok_status();
  const std::string list = "[" + std::string(items) + "]";
  const OrderedJson parsed = OrderedJson::parse(list, nullptr, false);
  if (!parsed.is_array()) return internal_error("the model's log-probabilities are no JSON");
  for (const OrderedJson& each : parsed) {
    if (!is_entry(each)) return internal_error("the model's log-probabilities have no token");
    const OrderedJson& token = each["token"];
    OrderedJson top = OrderedJson::object();
    if (const OrderedJson* const likeliest = find_member(each, "top_logprobs"))
      for (const OrderedJson& other : *likeliest)
        if (is_entry(other)) top.emplace(other["token"].get<std::string>(), OrderedJson(other["logprob"]));
    top.emplace(token.get<std::string>(), OrderedJson(each["logprob"]));
    append_items(tokens_, json_text(token));
    append_items(logprobs_, json_text(each["logprob"]));
    append_items(top_, json_text(top));
    append_items(offsets_, std::to_string(num_characters_));
    num_characters_ += num_characters(token.get_ref<const std::string&>());
  }
  return ok_status();
}

void CompletionLogprobs::take(std::string& out) {
  if (tokens_.empty()) {
    out += "null";
    return;
  }
  out.append("{\"tokens\":[").append(tokens_).append("],\"token_logprobs\":[").append(logprobs_);
  out.append("],\"top_logprobs\":[").append(top_).append("],\"text_offset\":[").append(offsets_).append("]}");
  for (std::string* each : {&tokens_, &logprobs_, &top_, &offsets_}) each->clear();
}

}  // namespace mstar::server
