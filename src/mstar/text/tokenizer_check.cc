// For tools/golden/tokenizer_fuzz.py and gguf_vocabulary.py. Reads one JSON object a line: {"json": PATH},
// {"sentencepiece": PATH} or {"gguf": {model, pre, tokens, ...}} makes the tokenizer; {"text": ..., "special": bool} is
// answered with {"ids": [...]}, {"ids": [...]} with {"text": ..., "streamed": ...}; failures with {"error": ...}.
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "mstar/text/incremental_decoder.h"
#include "mstar/text/tokenizer.h"

namespace {

using Json = nlohmann::json;

mstar::GgufTokenizer gguf_of(const Json& j) {
  mstar::GgufTokenizer out;
  out.model = j.value("model", "");
  out.pre = j.value("pre", "");
  out.tokens = j.value("tokens", std::vector<std::string>());
  out.merges = j.value("merges", std::vector<std::string>());
  out.scores = j.value("scores", std::vector<float>());
  out.token_types = j.value("token_type", std::vector<std::int32_t>());
  if (j.contains("bos_token_id")) out.bos_id = j["bos_token_id"].get<std::int32_t>();
  if (j.contains("eos_token_id")) out.eos_id = j["eos_token_id"].get<std::int32_t>();
  if (j.contains("add_bos_token")) out.add_bos = j["add_bos_token"].get<bool>();
  if (j.contains("add_eos_token")) out.add_eos = j["add_eos_token"].get<bool>();
  if (j.contains("add_space_prefix")) out.add_space_prefix = j["add_space_prefix"].get<bool>();
  if (j.contains("remove_extra_whitespaces")) out.remove_extra_spaces = j["remove_extra_whitespaces"].get<bool>();
  for (const auto& byte : j.value("precompiled_charsmap", std::vector<int>()))
    out.char_map.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
  return out;
}

mstar::Result<mstar::Tokenizer> open(const Json& request) {
  if (request.contains("gguf")) return mstar::Tokenizer::from_gguf(gguf_of(request["gguf"]));
  return mstar::Tokenizer::load(request.contains("json") ? request["json"].get<std::string>()
                                                         : request["sentencepiece"].get<std::string>());
}

Json answer(const mstar::Tokenizer& tokenizer, const Json& request) {
  if (request.contains("text")) {
    const bool special = request.value("special", false);
    return {{"ids", tokenizer.encode(request["text"].get<std::string>(),
                                     {.add_special = request.value("add", false), .parse_special = special})}};
  }
  const auto ids = request["ids"].get<std::vector<std::int32_t>>();
  mstar::IncrementalDecoder decoder(tokenizer, false);
  std::string streamed;
  for (const std::int32_t id : ids) streamed += decoder.push(id);
  streamed += decoder.finish();
  return {{"text", tokenizer.decode(ids, false)}, {"streamed", streamed}, {"skipped", tokenizer.decode(ids, true)}};
}

}  // namespace

int main() {
  std::optional<mstar::Tokenizer> tokenizer;
  std::string line;
  while (std::getline(std::cin, line)) {
    const Json request = Json::parse(line, nullptr, false);
    Json out;
    if (request.contains("json") || request.contains("sentencepiece") || request.contains("gguf")) {
      tokenizer.reset();
      auto opened = open(request);
      if (opened) {
        tokenizer.emplace(std::move(*opened));
        out["vocab_size"] = tokenizer->vocab_size();
      } else {
        out["error"] = opened.error().message;
      }
    } else if (tokenizer && (request.contains("text") || request.contains("ids"))) {
      out = answer(*tokenizer, request);
    } else {
      out["error"] = "no tokenizer, or no such request";
    }
    std::cout << out.dump() << "\n";
  }
  return 0;
}
