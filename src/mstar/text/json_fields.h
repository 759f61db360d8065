// Members of JSON objects in tokenizer.json, with errors that name the place. Private to tokenizer_json*.cc.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "mstar/base/result.h"

namespace mstar::text {

namespace dom = simdjson::dom;

// The longest sequence of sequences of steps that anybody writes is two deep.
inline constexpr int kMaxNesting = 8;

Error fault(std::string_view where, std::string_view what);
Error unsupported(std::string_view where, std::string_view what);
// A member, or null when it is missing or null.
std::optional<dom::element> member(const dom::object& o, std::string_view name);
Result<std::string_view> string_of(const dom::element& e, std::string_view where);
Result<std::string_view> string_at(const dom::object& o, std::string_view name, std::string_view where);
Result<bool> bool_at(const dom::object& o, std::string_view name, bool fallback, std::string_view where);
Result<std::int32_t> id_of(const dom::element& e, std::string_view where);
Result<dom::object> object_of(const dom::element& e, std::string_view where);
Result<dom::array> array_at(const dom::object& o, std::string_view name, std::string_view where);
Result<std::int64_t> count_at(const dom::object& o, std::string_view name, std::int64_t fallback,
                              std::string_view where);

struct TokenizerSpec;
struct ModelSpec;
struct PatternSpec;
Result<PatternSpec> read_pattern(const dom::object& o, std::string_view where);
Status read_normalizer(const dom::element& e, int depth, TokenizerSpec& spec);
Status read_pre_tokenizer(const dom::element& e, int depth, TokenizerSpec& spec);
Status read_decoder(const dom::element& e, int depth, TokenizerSpec& spec);
Status read_model(const dom::element& e, ModelSpec& model);
// Keeps `text` as long as the document lives.
std::string_view keep_text(TokenizerSpec& spec, std::string text);

}  // namespace mstar::text
