// One table from error codes to HTTP, and the OpenAI error shape.
#pragma once

#include <string>
#include <string_view>

#include "mstar/base/result.h"

namespace mstar::server {

struct HttpError {
  int status = 500;
  std::string message;
  std::string type = "server_error";
  std::string param;  // the field at fault; null in the body when empty
  std::string code;   // null in the body when empty
  int retry_after_s = 0;
  std::string allow;         // the Allow header of a 405
  bool client_gone = false;  // nobody is left to read it
};

// Where in a request's life an Error arose: the same code means different things to the client.
enum class Stage { body, submit, running };

// `code` is the error's reason, where it has one. body: exhausted is 413. submit: exhausted is 429 with Retry-After, a
// fault in field "model" is 404 model_not_found. running: exhausted is 503 with Retry-After.
HttpError to_http(const Error& error, Stage stage);
// An error that the HTTP layer itself finds; 4xx are invalid_request_error, the others server_error.
HttpError http_error(int status, std::string message, std::string code = {});
// {"error":{"message","type","param","code"}}
std::string error_body(const HttpError& error);
std::string_view status_text(int status);

}  // namespace mstar::server
