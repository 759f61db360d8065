// What the HTTP server may use and how long it waits.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mstar/media/voice_network.h"

namespace mstar::server {

struct ServerConfig {
  std::string host = "127.0.0.1";  // an address or a name; "0.0.0.0" and "::" listen on every interface
  std::uint16_t port = 8000;       // 0: any free port, see HttpServer::port()

  std::size_t header_limit_bytes = 16 << 10;
  std::size_t body_limit_bytes = std::size_t{512} << 20;
  std::size_t json_limit_bytes = std::size_t{64} << 20;      // JSON and urlencoded bodies, which are parsed whole
  std::size_t input_limit_bytes = std::size_t{1} << 20;      // one piece of an input of a request that runs
  std::size_t max_buffered_bytes = std::size_t{2} << 30;     // request bodies of all connections together
  std::size_t max_pending_out_bytes = std::size_t{8} << 20;  // of one streamed answer that its client does not read
  std::size_t max_connections = 1024;
  int num_io_threads = 1;  // each with connections of its own
  bool io_uring = true;    // where the system allows it, sends that are due at the same time leave in one call
  bool keep_alive = true;
  std::vector<std::string> cors_origins = {"*"};  // whose pages may read answers; "*": all; none: no CORS headers
  std::vector<std::string> api_keys;              // one of them is asked for, but by /health and /ready; none: open

  std::chrono::milliseconds header_timeout{10'000};  // from a request's first byte to the end of its header
  // A body that arrives, or an answer that leaves, by less than min_bytes_per_s over this time has stalled, whatever
  // went before.
  std::chrono::milliseconds body_timeout{30'000};
  std::chrono::milliseconds write_timeout{30'000};
  std::chrono::milliseconds transfer_timeout{3'600'000};  // of one body, or of one stretch of an answer, at any rate
  std::chrono::milliseconds idle_timeout{75'000};         // between two requests of one connection
  std::chrono::milliseconds request_timeout{600'000};
  std::chrono::milliseconds sse_keep_alive{15'000};  // a comment is sent after this long without an event
  std::chrono::milliseconds linger_timeout{10'000};  // how long an unread body is discarded so that its error is seen
  std::size_t min_bytes_per_s = 1024;
  std::chrono::microseconds stays_awake{0};  // of an io thread, see IoLoop
  // The weights of voice activity, for realtime sessions; empty: there are none. Thread: any.
  std::function<Result<std::shared_ptr<const VoiceNetwork>>()> voice = {};
};

}  // namespace mstar::server
