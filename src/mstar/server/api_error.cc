#include "mstar/server/api_error.h"

#include "mstar/server/json_text.h"

namespace mstar::server {
namespace {

constexpr int kRetryWhenFull_s = 1;
constexpr int kRetryWhenUnavailable_s = 5;

struct Row {
  int status;
  std::string_view type;
  std::string_view code;
  int retry_after_s;
};

Row row_of(Code code, Stage stage) {
  switch (code) {
    case Code::invalid_request:
      return {400, "invalid_request_error", "", 0};
    case Code::bad_model:
      return {500, "server_error", "bad_model", 0};
    case Code::exhausted:
      if (stage == Stage::body) return {413, "invalid_request_error", "request_too_large", 0};
      if (stage == Stage::submit) return {429, "rate_limit_error", "rate_limit_exceeded", kRetryWhenFull_s};
      return {503, "server_error", "overloaded", kRetryWhenFull_s};
    case Code::unavailable:
      return {503, "server_error", "service_unavailable", kRetryWhenUnavailable_s};
    case Code::cancelled:
      return {499, "invalid_request_error", "cancelled", 0};
    case Code::internal:
      break;
  }
  return {500, "server_error", "internal_error", 0};
}

}  // namespace

HttpError to_http(const Error& error, Stage stage) {
  const Row row = row_of(error.code, stage);
  HttpError out;
  out.status = row.status;
  out.message = error.message;
  out.type = row.type;
  out.param = error.field;
  out.code = error.reason.empty() ? row.code : std::string_view(error.reason);
  out.retry_after_s = row.retry_after_s;
  if (stage == Stage::submit && error.code == Code::invalid_request && error.field == "model") {
    out.status = 404;
    out.code = "model_not_found";
  }
  return out;
}

HttpError http_error(int status, std::string message, std::string code) {
  HttpError out;
  out.status = status;
  out.message = std::move(message);
  out.type = status >= 400 && status < 500 ? "invalid_request_error" : "server_error";
  out.code = std::move(code);
  if (status == 503) out.retry_after_s = kRetryWhenUnavailable_s;
  return out;
}

std::string error_body(const HttpError& error) {
  std::string out = "{\"error\":{\"message\":";
  append_json_string(out, error.message);
  out += ",\"type\":";
  append_json_string(out, error.type);
  out += ",\"param\":";
  append_json_string_or_null(out, error.param);
  out += ",\"code\":";
  append_json_string_or_null(out, error.code);
  out += "}}";
  return out;
}

std::string_view status_text(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

}  // namespace mstar::server
