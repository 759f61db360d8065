#include "mstar/server/input_api.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "mstar/server/json_text.h"
#include "mstar/server/request_id.h"

namespace mstar::server {
namespace {

using nlohmann::json;

Error bad_body(std::string message) { return invalid_request(std::move(message)).with_field("body"); }

// Takes the numbers of an array, in the order of the text, without building the document.
class NumberReader final : public nlohmann::json_sax<json> {
 public:
  std::vector<float> numbers;
  std::vector<std::int64_t> integers;
  bool all_integers = true;

  bool start_array(std::size_t) override { return ++depth_ <= kMaxJsonDepth; }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool number_integer(std::int64_t value) override { return take(value, static_cast<float>(value)); }
  bool number_unsigned(std::uint64_t value) override {
    return value <= static_cast<std::uint64_t>(INT64_MAX) && number_integer(static_cast<std::int64_t>(value));
  }
  bool number_float(double value, const std::string&) override {
    all_integers = false;
    return take(0, static_cast<float>(value));
  }
  bool null() override { return false; }
  bool boolean(bool) override { return false; }
  bool string(std::string&) override { return false; }
  bool binary(json::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return false; }
  bool key(std::string&) override { return false; }
  bool end_object() override { return false; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool take(std::int64_t integer, float number) {
    if (depth_ == 0) return false;
    integers.push_back(integer);
    numbers.push_back(number);
    return true;
  }
  int depth_ = 0;
};

Result<HostValue> read_body(const RequestHead& head, const Form& form) {
  if (form.files.empty() || form.files[0].bytes.empty()) return HostValue::blob("");
  const std::string& bytes = form.files[0].bytes;
  if (body_kind(head.header("content-type")) != kJson) return HostValue::blob(bytes);
  NumberReader reader;
  if (!json::sax_parse(bytes, &reader)) return bad_body("the body must be a JSON array of numbers");
  if (reader.all_integers) return HostValue::of<std::int64_t>(DType::i64, reader.integers);
  return HostValue::f32(reader.numbers);
}

Result<bool> read_done(const RequestHead& head) {
  MSTAR_TRY_ASSIGN(const Form query, parse_urlencoded(head.query));
  for (const auto& [name, value] : query.fields.values())
    if (name != "done") return invalid_request("unknown query parameter '" + name + "'").with_field(name);
  return query.fields.get_bool("done", false);
}

Reply error_reply(const HttpError& error) {
  return {.status = error.status, .body = error_body(error), .retry_after_s = error.retry_after_s};
}

Reply error_reply(const Error& error) {
  HttpError out = to_http(error, error.code == Code::invalid_request ? Stage::body : Stage::submit);
  if (error.field == "request_id" || error.field == "port") {
    out.status = 404;
    out.code = "not_found";
  }
  return error_reply(out);
}

}  // namespace

Reply push_input(const RequestHead& head, std::string_view rest, const Form& body, ServerCore& core) {
  constexpr std::string_view kInputs = "/inputs/";
  const std::size_t at = rest.find(kInputs);
  const std::string_view id = rest.substr(0, at);
  const std::string_view port = at == rest.npos ? std::string_view() : rest.substr(at + kInputs.size());
  if (port.empty() || !is_sane_request_id(id))
    return error_reply(http_error(404, "no such route: " + head.method + " " + head.path, "not_found"));
  const auto call = core.calls.find(id);
  if (!call)
    return error_reply(invalid_request("no request '" + std::string(id) + "' is running").with_field("request_id"));
  auto done = read_done(head);
  if (!done) return error_reply(done.error());
  auto value = read_body(head, body);
  if (!value) return error_reply(value.error());
  if (Status pushed = core.frontend.push(*call, port, *value, *done); !pushed) return error_reply(pushed.error());
  Reply reply;
  reply.body = "{\"request_id\":";
  append_json_string(reply.body, id);
  reply.body += ",\"input\":";
  append_json_string(reply.body, port);
  reply.body += *done ? ",\"done\":true}" : ",\"done\":false}";
  return reply;
}

}  // namespace mstar::server
