// Reads HTTP/1 requests from bytes, without a socket: head, route, body into a form.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "mstar/server/api_error.h"
#include "mstar/server/form.h"
#include "mstar/server/request_head.h"
#include "mstar/server/routes.h"
#include "mstar/server/server_config.h"

namespace mstar::server {

// Memory that all connections may hold in request bodies. Thread: any.
class BodyBudget {
 public:
  explicit BodyBudget(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}
  bool take(std::size_t bytes) {
    if (used_bytes_.fetch_add(bytes) + bytes <= limit_bytes_) return true;
    used_bytes_.fetch_sub(bytes);
    return false;
  }
  void give_back(std::size_t bytes) { used_bytes_.fetch_sub(bytes); }

 private:
  const std::size_t limit_bytes_;
  std::atomic<std::size_t> used_bytes_{0};
};

// One per connection, one thread at a time. Bytes go into room() and are announced by commit(); advance() parses what
// is there. Bytes of pipelined requests wait in the buffer until next().
class RequestReader {
 public:
  enum class Step {
    need_more,
    head_done,  // comes once a request that has a body; the body is still to be read
    complete,   // head() holds; error() is set if the request is to be refused, else take_form() may be called
    failed      // error() says why; what is left of the request cannot be read, so the connection must close
  };

  RequestReader(const ServerConfig& config, BodyBudget& budget);
  ~RequestReader();

  // Free space of the buffer; empty when it is full. Valid until the next call of room().
  std::span<char> room();
  void commit(std::size_t bytes);
  Step advance();

  bool started() const;      // a byte of the current request was seen
  bool head_parsed() const;  // head() and match() hold; the id in head() holds always
  const RequestHead& head() const;
  const RouteMatch& match() const;
  const std::optional<HttpError>& error() const;
  Form take_form();
  std::size_t body_bytes() const;      // received so far
  std::size_t buffered_bytes() const;  // not parsed yet
  // Drops the unparsed bytes.
  void discard();
  // Forgets the current request, whose body budget returns.
  void next();

 private:
  class Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace mstar::server
