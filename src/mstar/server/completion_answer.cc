#include "mstar/server/completion_answer.h"

#include <algorithm>
#include <ctime>
#include <variant>

#include "mstar/server/json_text.h"

namespace mstar::server {

AnswerName AnswerName::now(std::string_view prefix, std::string_view request_id, std::string model) {
  AnswerName out;
  out.id.append(prefix).append(request_id);
  out.model = std::move(model);
  out.created_s = static_cast<std::int64_t>(std::time(nullptr));
  return out;
}

void append_answer_head(std::string& out, const AnswerName& name, std::string_view object) {
  out += "{\"id\":";
  append_json_string(out, name.id);
  out.append(",\"object\":\"").append(object).append("\",\"created\":").append(std::to_string(name.created_s));
  out += ",\"model\":";
  append_json_string(out, name.model);
  out += ",\"choices\":[";
}

std::string_view finish_name(decl::Finish finish) {
  switch (finish) {
    case decl::Finish::length:
      return "length";
    case decl::Finish::tool_calls:
      return "tool_calls";
    case decl::Finish::stop:
    case decl::Finish::error:
      break;
  }
  return "stop";
}

std::string_view logprob_items(const decl::Chunk& chunk) {
  const auto it = chunk.metadata.values().find("logprobs");
  if (it == chunk.metadata.values().end()) return {};
  const auto* list = std::get_if<std::string>(&it->second);
  if (!list || list->size() < 2 || list->front() != '[' || list->back() != ']') return {};
  return std::string_view(*list).substr(1, list->size() - 2);
}

void append_items(std::string& list, std::string_view items) {
  if (!list.empty() && !items.empty()) list += ',';
  list += items;
}

void UsageSum::add(std::size_t choice, const Usage& usage) {
  completion_tokens_ += usage.completion_tokens;
  const std::size_t k = choice / choices_per_prompt_;
  if (prompts_.size() <= k) prompts_.resize(k + 1);
  Prompt& prompt = prompts_[k];
  prompt.num_tokens = usage.prompt_tokens;
  if (usage.cached_tokens < 0) return;
  prompt.num_cached = prompt.num_cached < 0 ? usage.cached_tokens : std::min(prompt.num_cached, usage.cached_tokens);
}

void UsageSum::append_to(std::string& out) const {
  std::int64_t prompt_tokens = 0, cached_tokens = -1;
  for (const Prompt& each : prompts_) {
    prompt_tokens += each.num_tokens;
    if (each.num_cached >= 0) cached_tokens = std::max<std::int64_t>(cached_tokens, 0) + each.num_cached;
  }
  out += "{\"prompt_tokens\":" + std::to_string(prompt_tokens) +
         ",\"completion_tokens\":" + std::to_string(completion_tokens_) +
         ",\"total_tokens\":" + std::to_string(prompt_tokens + completion_tokens_);
  if (cached_tokens >= 0) out += ",\"prompt_tokens_details\":{\"cached_tokens\":" + std::to_string(cached_tokens) + "}";
  out += '}';
}

void append_stream_end(std::string_view base, const UsageSum* usage, std::string& out) {
  if (usage) {
    out.append(base).append("],\"usage\":");
    usage->append_to(out);
    out += "}\n\n";
  }
  out += "data: [DONE]\n\n";
}

}  // namespace mstar::server
