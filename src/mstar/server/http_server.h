// The HTTP server: API surfaces in front of a Frontend. It knows no model.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "mstar/base/result.h"
#include "mstar/conductor/frontend.h"
#include "mstar/server/server_config.h"

namespace mstar::server {

// Thread: start and destroy from one thread (never an event sink's); the rest from any.
class HttpServer {
 public:
  // Listens at once. Errors: unavailable when the address cannot be had (its port is in use, needs privileges, ...),
  // invalid_request for a host that is no address. `frontend` must outlive the server.
  static Result<std::unique_ptr<HttpServer>> start(const ServerConfig& config, Frontend& frontend);
  // Closes every connection and aborts the calls in flight; the frontend is not called afterwards.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;
  // No new connections; idle ones close, the others with their current answer. May be called again.
  void stop_accepting();
  // stop_accepting(), then waits until every request is answered. False when the time ran out before.
  bool drain(std::chrono::milliseconds timeout);

 private:
  struct Threads;
  explicit HttpServer(std::unique_ptr<Threads> threads);
  std::unique_ptr<Threads> threads_;
};

}  // namespace mstar::server
