// libFuzzer: any bytes as a tokenizer.json or tokenizer.model must give a tokenizer or an Error; any bytes as text must
// come back from the ids.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "mstar/base/check.h"
#include "mstar/text/byte_level.h"
#include "mstar/text/incremental_decoder.h"
#include "mstar/text/tokenizer.h"
#include "mstar/text/utf8.h"

namespace mstar {
namespace {

// All bytes, some merges and some added tokens.
Tokenizer fixed_tokenizer() {
  std::string vocab, merges;
  for (int byte = 0; byte < 256; ++byte) {
    std::string token = text::spell_bytes(std::string(1, static_cast<char>(static_cast<std::uint8_t>(byte))));
    if (token == "\"" || token == "\\") token.insert(0, "\\");
    vocab.append("\"").append(token).append("\":").append(std::to_string(byte)).append(",");
  }
  std::string json = R"({"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},
    "decoder":{"type":"ByteLevel"},
    "added_tokens":[{"id":300,"content":"<|x|>","special":true},{"id":301,"content":"<y>"}],
    "model":{"type":"BPE","vocab":{)" +
                     vocab + R"("aa":256,"ab":257,"Ġa":258,"aaaa":259},
    "merges":["a a","a b","Ġ a","aa aa"]}})";
  auto tokenizer = Tokenizer::parse(json);
  MSTAR_CHECK(tokenizer.has_value());
  return std::move(*tokenizer);
}

void use(const Tokenizer& tokenizer, std::string_view input, bool reversible) {
  for (const bool parse_special : {false, true}) {
    const auto ids = tokenizer.encode(input, {.add_special = false, .parse_special = parse_special});
    const std::string whole = tokenizer.decode(ids, false);
    MSTAR_CHECK(is_valid_utf8(whole));
    if (reversible) MSTAR_CHECK(whole == replace_invalid_utf8(input));
    IncrementalDecoder decoder(tokenizer, false);
    std::string pieces;
    for (const std::int32_t id : ids) {
      const std::string piece = decoder.push(id);
      MSTAR_CHECK(is_valid_utf8(piece));
      pieces.append(piece);
      if (reversible && !parse_special) MSTAR_CHECK(!tokenizer.is_special(id));
    }
    MSTAR_CHECK(pieces + decoder.finish() == whole);
  }
}

}  // namespace
}  // namespace mstar

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const mstar::Tokenizer fixed = mstar::fixed_tokenizer();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (size == 0) return 0;
  // The first byte says what the rest is: text, a tokenizer.model, or a tokenizer.json with text after a NUL.
  if (input[0] % 3 == 0) {
    mstar::use(fixed, input.substr(1), true);
    return 0;
  }
  if (input[0] % 3 == 1) {
    const auto pieces = mstar::Tokenizer::parse_sentencepiece(input.substr(1));
    if (pieces) mstar::use(*pieces, "ab <s> \xE2\x96\x81 \xF0\x9F", false);
    return 0;
  }
  const std::size_t end = input.find('\0');
  const auto tokenizer = mstar::Tokenizer::parse(input.substr(1, end == std::string_view::npos ? end : end - 1));
  if (tokenizer)
    mstar::use(*tokenizer, end == std::string_view::npos ? "ab <|x|>\xF0\x9F" : input.substr(end + 1), false);
  return 0;
}
