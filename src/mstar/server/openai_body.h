// The JSON bodies of OpenAI's text routes, read strictly: each fault names its field before anything is queued.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "mstar/base/params.h"
#include "mstar/base/result.h"

namespace mstar::server {

// Members keep their order: chat templates show it.
using OrderedJson = nlohmann::ordered_json;

// invalid_request with that field; the message is "'field' what".
Error bad_field(std::string_view field, std::string_view what);

struct JsonBody {
  OrderedJson json;
};
// An object within the bounds of check_json_bounds whose objects have kMaxJsonMembers members at most: they are
// searched one after the other. Malformed text (NaN, a number beyond double's range and bytes that are not UTF-8
// included) is invalid_request with the member of the body in or after which the fault is, where there is one.
inline constexpr std::size_t kMaxJsonMembers = 1024;
Result<JsonBody> parse_json_body(std::string_view text);
// Compact; bytes that are not UTF-8 become U+FFFD.
std::string json_text(const OrderedJson& value);

// Members of an object; null counts as missing. A value of another type or out of range is a bad_field.
const OrderedJson* find_member(const OrderedJson& object, std::string_view name);
Result<std::optional<double>> number_member(const OrderedJson& object, std::string_view name, double least,
                                            double most);
// A float that is whole counts as an integer, as in JSON Schema.
Result<std::optional<std::int64_t>> integer_member(const OrderedJson& object, std::string_view name, std::int64_t least,
                                                   std::int64_t most);
Result<bool> bool_member(const OrderedJson& object, std::string_view name, bool fallback);
Result<std::string> string_member(const OrderedJson& object, std::string_view name, std::string fallback);

// What the text routes share.
struct StreamOptions {
  bool stream = false;
  bool include_usage = false;
};
inline constexpr int kMaxChoices = 128;
inline constexpr std::int64_t kMaxLogprobs = 20;
Result<std::string> read_model(const OrderedJson& body);
Result<StreamOptions> read_stream_options(const OrderedJson& body);
Result<int> read_num_choices(const OrderedJson& body);
// The fields of sampling and of the answer's end, except logprobs, into the names that models read (see
// models/text_surface.h); logit_bias becomes the lists logit_bias_ids and logit_bias_values.
Status read_sampling_fields(const OrderedJson& body, Params& fields);
// bad_field for a field that would change the answer and that is not supported; null, false and {} are as good as none.
Status refuse_unsupported(const OrderedJson& body);

}  // namespace mstar::server
