// One HTTP/1.1 exchange at a time over a kept connection, asynchronously; thousands of these share a thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/load/http_url.h"

namespace mstar::load {

// The addresses of a server's host; unavailable when its name is not known. Blocks.
Result<std::vector<boost::asio::ip::tcp::endpoint>> resolve(const HttpUrl& url);

struct HttpCall {
  std::string method = "POST";
  std::string target;  // with the URL's base path
  std::string api_key;
  std::string body;  // JSON
};

struct ResponseStart {
  int status = 0;
  std::string content_type;
  std::string server;  // its header Server
};

// Why an exchange ended before its answer did.
enum class ExchangeFault {
  none,
  connect,    // nothing answers there
  broken,     // the connection ended or failed
  malformed,  // the answer is no HTTP
};

// Who waits for an answer. Calls come from the client's thread, in order: one on_start, any number of on_body, one
// on_end; on_end alone where nothing came. Not after cancel().
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  virtual void on_start(const ResponseStart& start) = 0;
  // Bytes of the body with the transfer coding taken off. All bytes that one read of the socket gave arrive without
  // other work between them.
  virtual void on_body(std::string_view bytes) = 0;
  virtual void on_end(ExchangeFault fault, const std::string& message) = 0;
};

// Owner thread: the one that runs `io`. A connection that the server let stand is used again by the next call; when it
// turns out to be dead before the first byte of an answer, the call is sent once more over a new one.
class HttpClient {
 public:
  HttpClient(boost::asio::io_context& io, const HttpUrl& url,
             const std::vector<boost::asio::ip::tcp::endpoint>& endpoints, bool kernel_times = false);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // The last call has ended or was cancelled. `sink` lives until its on_end or cancel().
  void start(HttpCall call, AnswerSink& sink);
  // Ends the call without a word to its sink, and closes the connection. Not from inside of a sink's function.
  void cancel();
  // With kernel_times: when the kernel took in the last of the bytes that are being handed on. Before this process
  // found them, so that its own delay is not part of it. Empty: not known.
  std::optional<std::chrono::steady_clock::time_point> arrived() const;

 private:
  class Wire;
  std::shared_ptr<Wire> wire_;  // also owned by the operations in flight
};

}  // namespace mstar::load
