// A server of streamed completions for the tests of its client: says anything, in any pieces.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace mstar::load {

struct FakeRequest {
  std::string head;  // lines, with the request line first
  std::string path;
  std::string body;
};

// What a script writes to. Thread: the connection's own.
class FakeWire {
 public:
  FakeWire(int socket, const std::atomic<bool>& stopping) : socket_(socket), stopping_(stopping) {}
  void send(std::string_view bytes);  // as it is, `piece_bytes` at a time
  void answer(int status, std::string_view content_type, std::string_view body);
  void begin_stream();                 // the head of a chunked event stream
  void chunk(std::string_view bytes);  // one chunk of it
  void event(std::string_view data);   // "data: ...\n\n" as one chunk
  void end_stream();                   // the last chunk
  void wait(int milliseconds);         // or until the server stops
  void close() { open = false; }
  std::size_t piece_bytes = std::size_t{1} << 20;
  bool open = true;

 private:
  int socket_;
  const std::atomic<bool>& stopping_;
};

class FakeCompletions {
 public:
  using Script = std::function<void(const FakeRequest&, FakeWire&)>;
  explicit FakeCompletions(Script script);  // listens on a free port of 127.0.0.1
  ~FakeCompletions();
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<FakeRequest> requests() const;
  int num_connections() const { return num_connections_; }

  // max_tokens of the body as many events of one token, the usage, [DONE].
  static void well(const FakeRequest& request, FakeWire& wire);
  // The number after "name": in the body.
  static int number_in(const FakeRequest& request, std::string_view name);

 private:
  void accept();
  void serve(int socket);

  Script script_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<int> num_connections_{0};
  mutable std::mutex mutex_;
  std::vector<FakeRequest> requests_;
  std::vector<int> sockets_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace mstar::load
